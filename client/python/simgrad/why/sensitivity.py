"""Finds the tests that are knife edges, by runs that differ in rounding alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np

from simgrad.policy import Policy
from simgrad.program_lines import operations
from simgrad.progress import ProgressCallback
from simgrad.results import Gradient, Rollout
from simgrad.v1 import program_pb2
from simgrad.why.difference import ended, gradients_by_name, named_rows, without_gradient
from simgrad.why.fork import Forks, forks_of, traces_of
from simgrad.why.recorder import Recorder
from simgrad.why.sentence import Sentence, ulps
from simgrad.why.table import aligned
from simgrad.why.variants import policy_of, with_order, with_stochastic_rounding
from simgrad.why.work import Calls, Variant, Work, check_arguments, work_of
from simgrad.world import World

if TYPE_CHECKING:
    from simgrad.client import Client

# Significant decimal digits of what a format tells: 15.95 of an f64.
_BITS = {"f64": 53, "f32": 24, "tf32": 24, "f16": 11, "bf16": 8}
DIGITS = {format: bits * float(np.log10(2.0)) for format, bits in _BITS.items()}


@dataclass(frozen=True)
class SiteSensitivity:
    """How easily one site decides otherwise.

    Attributes:
      site, line: which; "" for all decisions whose site is not known (docs/why.md), in the last row.
      runs: runs in which it is where the path of at least one instance parts from the base's.
      share: of all pairs of run and instance, those whose path parts here.
      margin_ulps: the test nearest to its threshold in the base run, in ulps; inf where none was evaluated.
      step, instance_id: of that test.
    """

    site: str
    line: str
    runs: int
    share: float
    margin_ulps: float
    step: int
    instance_id: int


@dataclass(repr=False)
class Sensitivity:
    """The result of Client.sensitivity.

    Attributes:
      base: the run under the policy itself. results: the k others, in order. names: what each did.
      sites: every site of the base, those that flip in most runs first, then by |margin|.
      parted: [k, N] bool: whether the path of an instance differs from the base's.
      differing: runs of which a state, a value, a gradient or a path differs in any bit from the base's. There is
        none where the policy sums and casts nothing, or where all sums and casts are exact; then the others say nothing.
      value_digits: [N] significant decimal digits of the values, or None without an objective. They are 0, as those of
        gradients are, where a run has no such number: it is not finite, or the instance ended with an error or stopped.
      gradient_digits: by input, of the gradient's shape.
      calls: how many calls of the server this took.

    Digits: -log10(s / |m|) with mean m and standard deviation s over base and runs; those of the format (15.95 of
    f64, 7.2 of f32) where all are equal, and at most these; 0 where s >= |m| or one is not finite.
    """

    base: Rollout
    results: list[Rollout]
    names: list[str]
    sites: list[SiteSensitivity]
    parted: np.ndarray
    differing: int
    value_digits: np.ndarray | None
    gradient_digits: dict[str, np.ndarray]
    calls: int

    @property
    def why(self) -> str:
        """The answer in a sentence."""
        return self.sentence.text

    @property
    def sentence(self) -> Sentence:
        """The answer in a sentence, with the facts that it states."""
        runs, flipped = len(self.results), [s for s in self.sites if s.runs]
        differ = "run that differs" if runs == 1 else "runs that differ"
        facts: dict[str, Any] = {"runs": runs, "differing": self.differing}
        if not self.differing:
            return Sentence(
                f"No number differs in {'the run' if runs == 1 else f'any of {runs} runs'}: under this policy nothing is "
                "summed in another order or cast otherwise, or all of it is exact, so they tell nothing of rounding.",
                facts,
            )
        if not flipped:
            kept = "No test flips" if self.sites else "There is no test"
            text = f"{kept} in {runs} {differ} in rounding alone"
            if self.differing < runs:
                text += f", of which {self.differing} {'gives' if self.differing == 1 else 'give'} other numbers"
            return Sentence(text + ".", facts)
        worst = flipped[0]
        facts |= {"site": worst.site, "line": worst.line, "flipped": worst.runs, "share": worst.share}
        part = f"in {worst.runs} of {runs} {differ} in rounding alone, "
        pairs = f"{worst.share:.1%} of all pairs of run and instance"
        if not worst.site:
            return Sentence(f"Paths part {part}in {pairs}, at sites that are not known.", facts)
        line = f" ({worst.line})" if worst.line else ""
        unknown = next((s.share for s in flipped if not s.site), 0.0)
        if not unknown:
            return Sentence(f"`{worst.site}`{line} is the knife edge: paths part there {part}in {pairs}.", facts)
        return Sentence(
            f"`{worst.site}`{line} is the knife edge: paths part there {part}in at least {pairs}; the site is not known in "
            f"{unknown:.1%}.",
            {**facts, "unknown": unknown},
        )

    def table(self) -> str:
        """The sites, then the digits: smallest and median over the elements."""
        runs = len(self.results)
        rows = [["site", "line", "runs that flip", "pairs of run and instance", "closest test", "at"]]
        for s in self.sites:
            tested = np.isfinite(s.margin_ulps)
            rows.append(
                [
                    s.site or "(not known)",
                    s.line,
                    f"{s.runs} of {runs}",
                    f"{s.share:.1%}",
                    ulps(s.margin_ulps) if tested else "",
                    f"step {s.step}, instance {s.instance_id}" if tested else "",
                ]
            )
        digits = [["significant digits", "smallest", "median"]]
        named = [] if self.value_digits is None else [("value", self.value_digits)]
        named += [(f"gradient of {name}", d) for name, d in self.gradient_digits.items()]
        for name, d in named:
            if d.size:
                digits.append([name, f"{d.min():.1f}", f"{np.median(d):.1f}"])
        return aligned(rows) + "\n\n" + aligned(digits)

    def __repr__(self) -> str:
        return f"Sensitivity over {len(self.results)} runs\n{self.table()}\n{self.why}"


def significant_digits(samples: Sequence[np.ndarray], most: float = DIGITS["f64"]) -> np.ndarray:
    """Decimal digits in which samples agree, element by element, at most `most` (see Sensitivity)."""
    stacked = np.stack([np.asarray(x, np.float64) for x in samples])
    with np.errstate(all="ignore"):
        largest = np.abs(stacked).max(axis=0)
        scaled = stacked / np.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
        mean, deviation = scaled.mean(axis=0), scaled.std(axis=0, ddof=1)
        digits = -np.log10(deviation / np.abs(mean))
    equal = (stacked == stacked[0]).all(axis=0)
    digits = np.where(equal, most, np.nan_to_num(digits, nan=0.0, neginf=0.0))
    finite = np.isfinite(stacked).all(axis=0)
    return np.asarray(np.where(finite, np.clip(digits, 0.0, most), 0.0))


def sensitivity(
    client: Client,
    world: World,
    *,
    steps: int,
    policy: Policy | str,
    runs: int,
    orders: bool | Sequence[str],
    stochastic: bool,
    gradient: bool,
    timeout: float,
    retry: Any,
    progress: bool | ProgressCallback,
    **arguments: Any,
) -> Sensitivity:
    """Does the work of Client.sensitivity."""
    if not hasattr(runs, "__index__"):
        raise TypeError(f"runs is a whole number, not {runs!r}")
    if runs < 1:
        raise ValueError(f"runs {runs}: at least 1")
    if isinstance(orders, str):
        raise ValueError(f"orders {orders!r}: True, False, or a list of orders")
    if not orders and not stochastic:
        raise ValueError("orders, stochastic: without either no run differs")
    check_arguments(arguments, gradient)
    with Calls("sensitivity", timeout, retry, progress) as calls:
        plain, work = work_of(client, world, calls, **arguments)
        base = Variant("base", plain, policy_of(policy), steps)
        if stochastic and plain.program is not None and _draws(plain.program):
            raise ValueError(
                "stochastic: this world draws random numbers, and stochastic rounding would change its draws: "
                "give stochastic=False"
            )
        rounded = base.policy
        if stochastic:
            resolved = calls.program(client, plain, policy=base.policy).policy
            rounded = with_stochastic_rounding(base.policy, resolved)
            stochastic = rounded != base.policy or resolved.rounds_by_chance
        variants = _perturbed(base, runs, orders, rounded if stochastic else None)
        calls.expect(steps * (1 + len(variants)) * (2 if gradient else 1))
        compared = Recorder(work, gradient).run([base, *variants])
        first, *results = compared.results
        pairs = zip(variants, results, compared.differs)
        forks = [forks_of(work, base, variant, (first, result), differs) for variant, result, differs in pairs]
    values = [_known(r.values, ended(r)) for r in (first, *results) if r.values is not None]
    return Sensitivity(
        base=first,
        results=results,
        names=[variant.name for variant in variants],
        sites=_sites(first, forks, plain.lines_of_sites()),
        parted=np.stack([f.parted for f in forks]),
        differing=sum(_differs(first, other) for other in results),
        value_digits=significant_digits(values, _most(first, "objective")) if values else None,
        gradient_digits=_gradient_digits([first, *results], work),
        calls=calls.count,
    )


def _perturbed(
    base: Variant, runs: int, orders: bool | Sequence[str], rounded: Policy | None
) -> list[Variant]:
    """Run k, from 1 on: its order of sums in every role, and rounding that is drawn by seed k under `rounded`, the
    policy with it; None: without it."""
    if not orders and rounded is None:
        raise ValueError(
            "stochastic: under this policy no cast rounds by chance (roles and sites in f64 or tf32, and those with "
            "scale amax, have no such choice), and without orders no run differs: give orders=True, or another policy"
        )
    names = list(orders) if not isinstance(orders, bool) else []
    made = []
    for k in range(1, (min(runs, len(names)) if names else runs) + 1):
        variant = replace(base, name=f"run {k}", policy=rounded or base.policy)
        order = names[k - 1] if names else f"shuffled({k})" if orders else ""
        if order:
            variant = replace(variant, name=order, policy=with_order(variant.policy, order))
        if rounded is not None:
            variant = replace(variant, name=f"{variant.name}, stochastic", seed=k)
        made.append(variant)
    return made


def _draws(program: program_pb2.Program) -> bool:
    return any(op.code in ("uniform", "normal") for op in operations(program))


def _known(rows: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """NaN in the place of the zeros that an answer has for instances without these numbers; `missing`: [N] bool."""
    if not missing.any():
        return rows
    return np.where(missing.reshape(-1, *[1] * (rows.ndim - 1)), np.nan, np.asarray(rows, np.float64))


def _gradient_digits(results: Sequence[Rollout], work: Work) -> dict[str, np.ndarray]:
    named = []
    for r in results:
        if isinstance(r, Gradient):
            rows, missing = named_rows(r, work.own), without_gradient(r)
            named.append({n: _known(g, missing) if rows.get(n) else g for n, g in gradients_by_name(r).items()})
    most = _most(results[0], "gradient")
    return {n: significant_digits([g[n] for g in named], most) for n in named[0]} if named else {}


def _most(base: Rollout, role: str) -> float:
    """The digits of the format of a role."""
    return DIGITS[base.program.policy.roles[role].format]


def _differs(base: Rollout, other: Rollout) -> bool:
    """Whether a state, a value, a gradient or a path is other than the base's."""
    if (base.path_signatures != other.path_signatures).any():
        return True
    arrays = [({**r.state, **({"": r.values} if r.values is not None else {})}) for r in (base, other)]
    if isinstance(base, Gradient) and isinstance(other, Gradient):
        arrays += [gradients_by_name(base), gradients_by_name(other)]
    pairs = ((a, theirs[n]) for mine, theirs in zip(arrays[::2], arrays[1::2]) for n, a in mine.items())
    return any(a.tobytes() != b.tobytes() for a, b in pairs)


def _sites(base: Rollout, forks: Sequence[Forks], lines: Mapping[str, str]) -> list[SiteSensitivity]:
    """A row for each site that has a trace, and for each other one where paths part: of guards that have none, and
    one for those that are not known."""
    pairs = len(forks) * base.instances
    found = []
    traces = traces_of(base)
    rows = [[name for name, parted in zip(f.site, f.parted) if parted] for f in forks]
    for name in dict.fromkeys(name for row in rows for name in row if name not in traces):
        counts = [row.count(name) for row in rows]
        flips = sum(1 for count in counts if count)
        found.append(SiteSensitivity(name, lines.get(name, ""), flips, sum(counts) / pairs, float("inf"), -1, -1))
    for name, trace in traces.items():
        counts = [row.count(name) for row in rows]
        margins = np.abs(np.where(np.isnan(trace.margin_ulps), np.inf, trace.margin_ulps))
        step = int(np.argmin(margins)) if margins.size else -1
        tested = step >= 0 and bool(np.isfinite(margins[step]))
        found.append(
            SiteSensitivity(
                name,
                trace.line,
                sum(1 for count in counts if count),
                sum(counts) / pairs,
                float(trace.margin_ulps[step]) if tested else float("inf"),
                step if tested else -1,
                int(trace.margin_ulps_instance[step]) if tested else -1,
            )
        )
    return sorted(found, key=lambda s: (not s.site, -s.runs, -s.share, abs(s.margin_ulps), s.site))
