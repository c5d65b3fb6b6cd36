"""Finds the tests that are knife edges, by runs that differ in rounding alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from simgrad.policy import Policy
from simgrad.program_lines import operations
from simgrad.progress import ProgressCallback
from simgrad.results import Gradient, Rollout
from simgrad.v1 import program_pb2
from simgrad.why.difference import gradients_by_name
from simgrad.why.fork import Forks, forks_of, traces_of
from simgrad.why.recorder import Recorder
from simgrad.why.sentence import Sentence, ulps
from simgrad.why.table import aligned
from simgrad.why.variants import policy_of, with_order, with_rounding
from simgrad.why.work import Calls, Variant, check_arguments, work_of
from simgrad.world import World

if TYPE_CHECKING:
    from simgrad.client import Client

MOST_DIGITS = 53 * float(np.log10(2.0))  # of what an f64 tells: 15.95


@dataclass(frozen=True)
class SiteSensitivity:
    """How easily one site decides otherwise.

    Attributes:
      site, line: which.
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
      value_digits: [N] significant decimal digits of the values, or None without an objective.
      gradient_digits: by input, of the gradient's shape.
      calls: how many calls of the server this took.

    Digits: -log10(s / |m|) with mean m and standard deviation s over base and runs; 15.95 where all are
    equal, 0 where s >= |m| or one is not finite.
    """

    base: Rollout
    results: list[Rollout]
    names: list[str]
    sites: list[SiteSensitivity]
    parted: np.ndarray
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
        if not flipped:
            kept = "No test flips" if self.sites else "There is no test"
            return Sentence(f"{kept} in {runs} {differ} in rounding alone.", {"runs": runs})
        worst = flipped[0]
        line = f" ({worst.line})" if worst.line else ""
        return Sentence(
            f"`{worst.site}`{line} is the knife edge: paths part there in {worst.runs} of {runs} {differ} in rounding alone, "
            f"in {worst.share:.1%} of all pairs of run and instance.",
            {"site": worst.site, "line": worst.line, "flipped": worst.runs, "runs": runs, "share": worst.share},
        )

    def table(self) -> str:
        """The sites, then the digits: smallest and median over the elements."""
        runs = len(self.results)
        rows = [["site", "line", "runs that flip", "pairs of run and instance", "closest test", "at"]]
        for s in self.sites:
            tested = np.isfinite(s.margin_ulps)
            rows.append(
                [
                    s.site,
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


def significant_digits(samples: Sequence[np.ndarray]) -> np.ndarray:
    """Decimal digits in which samples agree, element by element (see Sensitivity)."""
    stacked = np.stack([np.asarray(x, np.float64) for x in samples])
    with np.errstate(all="ignore"):
        mean, deviation = stacked.mean(axis=0), stacked.std(axis=0, ddof=1)
        digits = -np.log10(deviation / np.abs(mean))
    equal = (stacked == stacked[0]).all(axis=0)
    digits = np.where(equal, MOST_DIGITS, np.nan_to_num(digits, nan=0.0, neginf=0.0))
    finite = np.isfinite(stacked).all(axis=0)
    return np.asarray(np.where(finite, np.clip(digits, 0.0, MOST_DIGITS), 0.0))


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
    if runs < 1:
        raise ValueError(f"runs {runs}: at least 1")
    check_arguments(arguments, gradient)
    with Calls("sensitivity", timeout, retry, progress) as calls:
        plain, work = work_of(client, world, calls, **arguments)
        base = Variant("base", plain, policy_of(policy), steps)
        if stochastic and plain.program is not None and _draws(plain.program):
            raise ValueError(
                "stochastic: this world draws random numbers, and stochastic rounding would change its draws: "
                "give stochastic=False"
            )
        variants = _perturbed(base, runs, orders, stochastic)
        calls.expect(steps * (1 + len(variants)) * (2 if gradient else 1))
        recorder = Recorder(work, gradient)
        first = recorder.run(base)
        results, forks = [], []
        for variant in variants:
            result = recorder.run(variant)
            results.append(result)
            forks.append(forks_of(work, base, variant, (first, result)))
    values = [r.values for r in (first, *results) if r.values is not None]
    return Sensitivity(
        base=first,
        results=results,
        names=[variant.name for variant in variants],
        sites=_sites(first, forks),
        parted=np.stack([f.parted for f in forks]),
        value_digits=significant_digits(values) if values else None,
        gradient_digits=_gradient_digits([first, *results]),
        calls=calls.count,
    )


def _perturbed(
    base: Variant, runs: int, orders: bool | Sequence[str], stochastic: bool
) -> list[Variant]:
    """Run k, from 1 on: its order of sums in every role, and rounding that is drawn by seed k."""
    if isinstance(orders, str):
        raise ValueError(f"orders {orders!r}: True, False, or a list of orders")
    if not orders and not stochastic:
        raise ValueError("orders, stochastic: without either no run differs")
    names = list(orders) if not isinstance(orders, bool) else []
    made = []
    for k in range(1, (min(runs, len(names)) if names else runs) + 1):
        variant = replace(base, name=f"run {k}")
        order = names[k - 1] if names else f"shuffled({k})" if orders else ""
        if order:
            variant = replace(variant, name=order, policy=with_order(variant.policy, order))
        if stochastic:
            policy = with_rounding(variant.policy, "stochastic")
            variant = replace(variant, name=f"{variant.name}, stochastic", policy=policy, seed=k)
        made.append(variant)
    return made


def _draws(program: program_pb2.Program) -> bool:
    return any(op.code in ("uniform", "normal") for op in operations(program))


def _gradient_digits(results: Sequence[Rollout]) -> dict[str, np.ndarray]:
    named = [gradients_by_name(r) for r in results if isinstance(r, Gradient)]
    return {n: significant_digits([g[n] for g in named]) for n in named[0]} if named else {}


def _sites(base: Rollout, forks: Sequence[Forks]) -> list[SiteSensitivity]:
    pairs = len(forks) * base.instances
    found = []
    for name, trace in traces_of(base).items():
        counts = [f.site.count(name) for f in forks]
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
    return sorted(found, key=lambda s: (-s.runs, -s.share, abs(s.margin_ulps), s.site))
