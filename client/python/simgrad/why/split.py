"""How much of a gradient's error is rounding, and how much is the path.

With g(A, p) the gradient of arithmetic A along path p, P the arithmetic of a policy and R that of the
reference (LANGUAGE section 5 has f64 for it):

    rounding = ((g(P, p_P) - g(R, p_P)) + (g(P, p_R) - g(R, p_R))) / 2
    path     = ((g(P, p_P) - g(P, p_R)) + (g(R, p_P) - g(R, p_R))) / 2
    rounding + path = g(P, p_P) - g(R, p_R)

The interaction g(P, p_P) - g(P, p_R) - g(R, p_P) + g(R, p_R) tells how much the answer to either question
depends on the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simgrad.results import Gradient
from simgrad.why.difference import gradients_by_name, without_gradient
from simgrad.why.fork import Forks
from simgrad.why.work import Variant, Work


@dataclass(frozen=True)
class Parts:
    """The parts of the error of one input's gradient, each of the gradient's shape, f64.

    Attributes:
      whole: g(P, p_P) - g(R, p_R). rounding, path: its parts; they add up to it but for the rounding of these
        sums in f64. interaction: see above.
      undefined: elements that are not finite in one of the four gradients; their parts are NaN. nonfinite: of
        these, those that are not finite in one of the two plain ones, g(P, p_P) and g(R, p_R).
      left_out: instances that have no gradient in one of the two plain runs; their parts are NaN, and `undefined` does
        not count them.
    """

    whole: np.ndarray
    rounding: np.ndarray
    path: np.ndarray
    interaction: np.ndarray
    undefined: int
    nonfinite: int
    left_out: int = 0

    @property
    def share_of_path(self) -> float:
        """|path| / (|path| + |rounding|), Euclidean over the elements that are defined; 0 where both are 0."""
        path, rounding = self.size_of_path, self.size_of_rounding
        return path / (path + rounding) if path + rounding else 0.0

    @property
    def is_rounding_alone(self) -> bool:
        """Whether there is an error, and either arithmetic gives the same numbers along both paths."""
        same = not self.undefined and not self.left_out and not self.path.any() and not self.interaction.any()
        return same and bool(self.rounding.any())

    @property
    def elements(self) -> int:
        """The number of elements of the gradient, without those of instances that are left out."""
        instances = len(self.whole) if self.left_out else 1
        return self.whole.size // instances * (instances - self.left_out)

    @property
    def size_of_path(self) -> float:
        """|path|, Euclidean over the elements that are defined."""
        return _norm(self.path)

    @property
    def size_of_rounding(self) -> float:
        """|rounding|, likewise."""
        return _norm(self.rounding)


def split(
    work: Work, reference: Variant, other: Variant, runs: tuple[Gradient, Gradient], forks: Forks
) -> dict[str, Parts]:
    """The parts by input, of two gradients that recorded their paths.

    Cost: a gradient of each along the other's path; none where no path parts, for a run along its own path
    is that run to the bit.
    """
    a, b = runs
    a_along_b, b_along_a = a, b
    if forks.count:
        work.calls.expect(2 * (reference.steps + other.steps))
        a_along_b = work.gradient(reference, diagnostics="off", path=b.path)
        b_along_a = work.gradient(other, diagnostics="off", path=a.path)
    left_out = without_gradient(a) | without_gradient(b)
    rr, rp, pr, pp = (_gradients(run) for run in (a, a_along_b, b_along_a, b))
    both = [name for name in rr if name in pr]  # a world may send what another has a number for
    return {name: parts_of(rr[name], rp[name], pr[name], pp[name], left_out) for name in both}


def _gradients(run: Gradient) -> dict[str, np.ndarray]:
    """The gradients of each instance, NaN where it has none."""
    found, without = gradients_by_name(run), without_gradient(run)
    if without.any():
        found = {name: np.array(g, np.float64) for name, g in found.items()}
        for g in found.values():
            g[without] = np.nan
    return found


def parts_of(
    reference: np.ndarray,
    reference_along_other: np.ndarray,
    other_along_reference: np.ndarray,
    other: np.ndarray,
    left_out: np.ndarray | None = None,
) -> Parts:
    """The parts, from g(R, p_R), g(R, p_P), g(P, p_R) and g(P, p_P), with a row for each instance. `left_out`: [N]
    bool, instances without a gradient in the first or the last; None: there are none."""
    rr, rp, pr, pp = (
        np.asarray(g, np.float64)
        for g in (reference, reference_along_other, other_along_reference, other)
    )
    plain = np.isfinite(rr) & np.isfinite(pp)
    defined = plain & np.isfinite(rp) & np.isfinite(pr)
    with np.errstate(invalid="ignore"):
        whole, interaction = pp - rr, (pp - pr) - (rp - rr)
        rounding = ((pp - rp) + (pr - rr)) / 2
        path = ((pp - pr) + (rp - rr)) / 2

    def masked(part: np.ndarray) -> np.ndarray:
        return np.where(defined, part, np.nan)

    left_out = np.zeros(len(rr), bool) if left_out is None else left_out
    defined[left_out] = False
    undefined, nonfinite = (int(np.count_nonzero(~x[~left_out])) for x in (defined, plain))
    missing = int(np.count_nonzero(left_out))
    return Parts(masked(whole), masked(rounding), masked(path), masked(interaction), undefined, nonfinite, missing)


def _norm(part: np.ndarray) -> float:
    finite = part[np.isfinite(part)]
    largest = float(np.abs(finite).max(initial=0.0))
    return largest * float(np.linalg.norm(finite / largest)) if largest else 0.0
