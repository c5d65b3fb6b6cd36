"""How far the answers of two runs are from each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Container, Mapping, Sequence

import numpy as np

from simgrad.diagnostics import BirthCertificate
from simgrad.results import Gradient, NonFinite, Rollout

_WORDS = {"initial": "state", "params": "param", "controls": "control"}


@dataclass(frozen=True)
class Difference:
    """The difference of one array of another run from the reference's.

    Attributes:
      largest: largest |other - reference|; inf or NaN where an element of either is not finite and they differ.
      relative: |other - reference| / |reference|, Euclidean over all elements; 0 only where both are equal, inf
        only where the reference is 0 and the other is not, NaN where `largest` is not finite.
      at: index of the element with the largest difference; () where there is none.
    """

    largest: float
    relative: float
    at: tuple[int, ...]

    @property
    def rank(self) -> float:
        """The key that sorts differences by size: the relative one; inf where that is NaN."""
        return float("inf") if np.isnan(self.relative) else self.relative


@dataclass(frozen=True)
class GradientDifference(Difference):
    """The difference of a gradient; also, for (reference, other):

    Attributes:
      connected: instances in which the input received a cotangent.
      counted: instances that have a gradient.
      zero: of these, instances whose gradient is 0 in every element.
      gated_by: the site that gated a disconnected input; "" where none did.
      finite: whether every number of the gradient is finite.

    and `left_out`: instances that have no gradient in one of the two. They are in none of the numbers of the
    difference, nor are they in the sums of inputs that instances share; where none is left, `largest` and `relative`
    are NaN.
    """

    connected: tuple[int, int]
    counted: tuple[int, int]
    zero: tuple[int, int]
    gated_by: tuple[str, str]
    finite: tuple[bool, bool]
    left_out: int = 0


@dataclass(frozen=True)
class NewlyNonfinite:
    """Instances that are not finite in the other run, where the reference's are. Those that a policy stopped in one
    of the two are none of them.

    Attributes:
      instances: [N] bool: not ok, or with a last state or a value that is not finite.
      ends: [N] bool: of these, those with such a state or value.
      first: the earliest of them; None where no step is known.
      birth: its certificate; None where the answer has none.
    """

    instances: np.ndarray
    ends: np.ndarray
    first: NonFinite | None
    birth: BirthCertificate | None


def difference(reference: np.ndarray, other: np.ndarray) -> Difference:
    """How far `other` is from `reference`, in f64; an infinity or a NaN that both have is no difference."""
    a, b = np.asarray(reference, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, b - a)
    if all(np.asarray(x).dtype.kind in "iu" for x in (reference, other)):
        # f64 holds integers up to 2^53.
        unequal = np.asarray(reference) != np.asarray(other)
        exact = np.subtract(np.asarray(other, object), np.asarray(reference, object))
        off = np.where(unequal, exact, 0).astype(np.float64)
    if off.size == 0 or not off.any():
        return Difference(0.0, 0.0, ())
    flat = int(np.argmax(np.where(np.isnan(off), np.inf, np.abs(off))))
    at = tuple(int(k) for k in np.unravel_index(flat, off.shape))
    return Difference(float(np.abs(off[at])), _relative(off, a), at)


def _relative(off: np.ndarray, a: np.ndarray) -> float:
    if not np.isfinite(off).all():
        return float("nan")
    (size, norm), (largest, reference) = _scaled_norm(off), _scaled_norm(a[np.isfinite(a)])
    if largest == 0.0:
        return float("inf")
    with np.errstate(over="ignore", under="ignore"):
        ratio = np.float64(norm / reference) * (np.float64(size) / largest)
    limits = np.finfo(np.float64)
    return float(np.clip(ratio, limits.smallest_subnormal, limits.max))


def _scaled_norm(x: np.ndarray) -> tuple[float, float]:
    """The largest |x|, and the Euclidean norm of x divided by it: squares of that neither overflow nor vanish."""
    largest = float(np.abs(x).max(initial=0.0))
    return largest, float(np.linalg.norm((x / largest).ravel())) if largest else 0.0


def differences(
    reference: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> dict[str, Difference]:
    """The differences by name, of arrays that both have in one shape."""
    return {
        name: difference(a, other[name])
        for name, a in reference.items()
        if name in other and np.shape(a) == np.shape(other[name])
    }


def gradients_by_name(result: Gradient) -> dict[str, np.ndarray]:
    """The gradients of an answer, under the names that `connected` has: "k", or "param.k" where two kinds
    of inputs have one name."""
    found = {}
    for group, word in _WORDS.items():
        for name, array in getattr(result, group).items():
            found[name if name in result.connected else f"{word}.{name}"] = array
    return found


def ended(result: Rollout) -> np.ndarray:
    """[N] bool: whether an instance ended with an error, or the policy stopped it: it has no value and no gradient, and
    the answer has zeros in their place."""
    told = np.zeros(result.instances, bool)
    told[[halted.instance for halted in result.halted if halted.error]] = True
    return np.asarray(told | _stopped(result))


def without_gradient(result: Rollout) -> np.ndarray:
    """[N] bool: whether an instance has no gradient: it ended so, or was left out as it is not finite."""
    return np.asarray(ended(result) | ~result.ok) if getattr(result, "left_out", 0) else ended(result)


def _stopped(result: Rollout) -> np.ndarray:
    told = np.zeros(result.instances, bool)
    told[[bad.instance for bad in result.health if bad.stopped and bad.phase != "adjoint"]] = True
    return told


def difference_among(reference: np.ndarray, other: np.ndarray, left_out: np.ndarray) -> Difference:
    """As `difference`, of arrays with a row for each instance, without those of `left_out` ([N] bool)."""
    return _placed(difference(reference[~left_out], other[~left_out]), left_out, True)


def _placed(off: Difference, left_out: np.ndarray, has_rows: bool) -> Difference:
    """A difference of arrays without the rows of `left_out`, with its place among all rows; unknown where all are left
    out."""
    if left_out.all():
        return Difference(float("nan"), float("nan"), ())
    at = (int(np.flatnonzero(~left_out)[off.at[0]]), *off.at[1:]) if off.at and has_rows else off.at
    return Difference(off.largest, off.relative, at)


def named_rows(result: Gradient, own: Mapping[str, Container[str]]) -> dict[str, bool]:
    """By the names of gradients_by_name, whether a gradient has a row for each instance. `own`: as Work.own."""
    rows = [name in own[group] for group in _WORDS for name in getattr(result, group)]
    return dict(zip(gradients_by_name(result), rows))


def gradient_differences(
    reference: Gradient,
    other: Gradient,
    own: Mapping[str, Container[str]],
    among: tuple[Gradient, Gradient] | None = None,
) -> dict[str, GradientDifference]:
    """The differences of gradients, under the names that gradients_by_name gives.

    Args: own: as Work.own. among: the two answers, or in the place of each the one of the instances alone that have a
      gradient in both; None: the two answers.
    """
    left_out = without_gradient(reference) | without_gradient(other)
    rows, found = named_rows(reference, own), {}
    a, b = ({n: x for n, x in gradients_by_name(run).items() if n in rows} for run in among or (reference, other))
    for of, run in zip((a, b), among or (reference, other)):
        if left_out.any() and run.instances == len(left_out):
            of.update({name: x[~left_out] for name, x in of.items() if rows[name]})
    for name, off in differences(a, b).items():
        plain = _placed(off, left_out, rows[name])
        found[name] = GradientDifference(
            plain.largest,
            plain.relative,
            plain.at,
            connected=(reference.connected[name], other.connected[name]),
            counted=(_having(reference), _having(other)),
            zero=(zeros(reference, name), zeros(other, name)),
            gated_by=(reference.gated_by[name], other.gated_by[name]),
            finite=(bool(np.isfinite(a[name]).all()), bool(np.isfinite(b[name]).all())),
            left_out=int(np.count_nonzero(left_out)),
        )
    return found


def nonfinite_instances(result: Rollout, own: Mapping[str, Container[str]]) -> np.ndarray:
    """[N] bool: whether an instance has a state, a value or a gradient that is not finite. A gradient that
    all instances share is one of each. `own`: as Work.own."""
    arrays = [(a, True) for a in (*result.state.values(), result.values)]
    if isinstance(result, Gradient):
        for group in _WORDS:
            arrays += [(a, name in own[group]) for name, a in getattr(result, group).items()]
    return _nonfinite(result.instances, arrays)


def nonfinite_ends(result: Rollout) -> np.ndarray:
    """[N] bool: whether an instance ends in a state or a value that is not finite."""
    return _nonfinite(result.instances, [(a, True) for a in (*result.state.values(), result.values)])


def newly_nonfinite(reference: Rollout, other: Rollout) -> np.ndarray:
    """[N] bool: whether an instance of the other run is not ok, or ends in a state or a value that is not finite,
    where that of the reference is and does not."""
    ends = nonfinite_ends(other) & ~nonfinite_ends(reference)
    return np.asarray((reference.ok & ~other.ok) | ends)


def newly_nonfinite_of(reference: Rollout, other: Rollout, ids: np.ndarray) -> NewlyNonfinite:
    """The instances that are not finite in the other run alone. `ids`: [N], of the instances."""
    told = newly_nonfinite(reference, other)
    told &= ~(_stopped(reference) | _stopped(other))
    found = [bad for bad in other.health if told[bad.instance]]
    first = min(found, key=_order, default=None)
    births = {} if first is None else {(c.instance_id, c.phase, c.step): c for c in other.certificates}
    birth = None if first is None else births.get((int(ids[first.instance]), first.phase, first.step))
    return NewlyNonfinite(told, told & nonfinite_ends(other), first, birth)


def _order(bad: NonFinite) -> tuple[bool, int, int]:
    """The key that sorts births by time: the reverse pass goes from the last step to the first."""
    is_adjoint = bad.phase == "adjoint"
    return is_adjoint, -bad.step if is_adjoint else bad.step, bad.instance


def _nonfinite(instances: int, arrays: Sequence[tuple[np.ndarray | None, bool]]) -> np.ndarray:
    """[N] bool: whether an instance has a number that is not finite in one of the arrays, of which each comes with
    whether it has a row for each instance."""
    bad = np.zeros(instances, bool)
    for array, has_rows in arrays:
        if array is None or not np.issubdtype(np.asarray(array).dtype, np.floating):
            continue
        off = ~np.isfinite(array)
        bad |= off.reshape(len(off), -1).any(axis=1) if has_rows else off.any()
    return bad


def zeros(result: Gradient, name: str) -> int:
    """Instances that have a gradient of an input which is 0 in every element. An answer counts those that the policy
    stopped among its zeros."""
    return round(result.zero_share[name] * result.counted) - (result.counted - _having(result))


def _having(result: Gradient) -> int:
    return int(np.count_nonzero(~without_gradient(result)))
