"""The same work in several variants, and what parts them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np

from simgrad import errors
from simgrad.progress import ProgressCallback
from simgrad.results import Gradient, Rollout
from simgrad.why import printed
from simgrad.why.both import gradients_in_both, value_of
from simgrad.why.difference import (
    Difference,
    GradientDifference,
    NewlyNonfinite,
    difference,
    difference_among,
    differences,
    ended,
    newly_nonfinite_of,
    nonfinite_instances,
)
from simgrad.why.fork import Forks, decided_alike, forks_of
from simgrad.why.recorder import Recorder
from simgrad.why.sentence import Sentence, sentences
from simgrad.why.split import Parts, split
from simgrad.why.table import aligned
from simgrad.why.variants import Policies, variants_of, without_weights
from simgrad.why.work import Calls, Variant, Work, check_arguments, plain_of, work_of
from simgrad.world import World

if TYPE_CHECKING:
    from simgrad.client import Client


@dataclass(repr=False)
class Pair:
    """The differences of a variant from the reference.

    Attributes:
      reference, other: their names. reference_result, other_result: their answers.
      forks: where paths part; None where the two have no common structure of paths (another number of steps).
      states, trajectories: Difference by name, of what both have in one shape.
      value: (reference, other) of the objective, summed over the instances that have a value in both; None without one.
      values: Difference of the values of these instances, or None.
      gradients: GradientDifference by input; empty for rollouts.
      split: Parts by input, with split=True; else None.
      sentences: the above in words, the most important first.
      nonfinite: instances with a state, a value or a gradient of the reference that is not finite.
      newly_nonfinite: NewlyNonfinite: the instances that are not finite in the other run alone.
      left_out: instances that ended with an error, or that the policy stopped, in one of the two: they have no value and
        no gradient there, and are in no difference of either.
      is_of_other_world: whether the other run is of another configuration or world, under the same policy.
    """

    reference: str
    other: str
    reference_result: Rollout
    other_result: Rollout
    forks: Forks | None
    states: dict[str, Difference]
    trajectories: dict[str, Difference]
    value: tuple[float, float] | None
    values: Difference | None
    gradients: dict[str, GradientDifference]
    split: dict[str, Parts] | None
    sentences: list[Sentence]
    nonfinite: int = 0
    newly_nonfinite: NewlyNonfinite | None = None
    left_out: int = 0
    is_of_other_world: bool = False

    @property
    def why(self) -> str:
        """The most important sentence."""
        return self.sentences[0].text

    @property
    def iterations(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By loop, the iterations of (reference, other): mean over the runs of each step, [T]."""
        mine, theirs = self.reference_result.sites, self.other_result.sites
        return {n: (mine[n].iterations_mean, theirs[n].iterations_mean) for n in mine if n in theirs}

    @property
    def events(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By test that is no loop's, for how many elements it held in (reference, other), [T]."""
        mine, theirs = self.reference_result.events, self.other_result.events
        return {n: (mine[n].count, theirs[n].count) for n in mine if n in theirs}

    @property
    def absorption(self) -> dict[str, tuple[float, float]]:
        """By state, the share of its additions that did nothing in (reference, other)."""
        mine, theirs = self.reference_result.absorption, self.other_result.absorption
        return {n: (mine[n].share, theirs[n].share) for n in mine if n in theirs}

    def __repr__(self) -> str:
        """The sentences, and a table of the arrays and sites that differ."""
        return "\n".join([*map(str, self.sentences), *filter(None, [printed.of_pair(self)])])


@dataclass(repr=False)
class Comparison:
    """The result of Client.compare.

    Attributes:
      reference: name of the first variant.
      results: the answers by variant: Rollouts, or Gradients. Arrays are by name, also those of worlds
        with pytrees.
      pairs: a Pair for each variant but the reference, by its name.
      calls: how many calls of the server this took.
    """

    reference: str
    results: dict[str, Rollout]
    pairs: dict[str, Pair]
    calls: int

    @property
    def why(self) -> str:
        """One sentence for each variant but the reference: what its numbers changed, and where."""
        return "\n".join(pair.why for pair in self.pairs.values())

    def __repr__(self) -> str:
        """The table, the sentences, and a table of the sites that differ; a Pair prints the arrays that do."""
        sites = printed.of_sites(list(self.pairs.values()))
        return "\n".join(filter(None, [f"Comparison with {self.reference}", self.table(), self.why, sites]))

    def table(self) -> str:
        """A row for each variant but the reference."""
        heads = ["variant", "instances that part", "first step", "site"]
        rows = [[*heads, "value off by", "state off by (relative)", "gradient off by (relative)"]]
        for name, pair in self.pairs.items():
            forks = pair.forks
            first = forks.first if forks else None
            rows.append(
                [
                    name,
                    f"{forks.count} of {pair.other_result.instances}" if forks else "not comparable",
                    str(first.step) if first else "",
                    (first.site or "?") if first else "",
                    "" if pair.value is None else f"{difference(*map(np.asarray, pair.value)).largest:.2g}",
                    printed.worst_of(pair.states),
                    printed.worst_of(pair.gradients),
                ]
            )
        return aligned(rows)

    def html(self) -> str:
        """A report in one file: no script, no font and no image is fetched."""
        from simgrad.why.report_html import page

        return page(self)


def compare(
    client: Client,
    world: World,
    *,
    steps: int,
    policies: Policies,
    orders: Sequence[str],
    configs: Sequence[Mapping[str, Any]],
    worlds: Mapping[str, World] | None,
    gradient: bool,
    divide: bool,
    timeout: float,
    retry: Any,
    progress: bool | ProgressCallback,
    **arguments: Any,
) -> Comparison:
    """Does the work of Client.compare."""
    if divide and not gradient:
        raise ValueError("split=True divides the error of a gradient: it needs gradient=True")
    check_arguments(arguments, gradient)
    variants = variants_of(world, steps, policies, orders, configs, worlds)
    with Calls("compare", timeout, retry, progress) as calls:
        plain, work = work_of(client, world, calls, **arguments)
        variants = [replace(v, world=plain if v.world is world else plain_of(v.world)) for v in variants]
        if divide:
            work, variants = work.each(), [without_weights(v) for v in variants]
        reference, *others = variants
        calls.expect(sum(v.steps for v in variants) * (2 if gradient else 1))
        recorder = Recorder(work, gradient, keeps_paths=divide)
        compared = recorder.run(variants)
        results = {v.name: result for v, result in zip(variants, compared.results)}
        pairs = {}
        for other, differs in zip(others, compared.differs):
            runs = (results[reference.name], results[other.name])
            forks = None
            if reference.steps == other.steps:
                forks = forks_of(work, reference, other, runs, differs)
            parts = _split(work, reference, other, runs, forks, recorder) if divide else None
            pair = pair_of(work, reference, other, runs, forks, parts)
            by_path = partial(decided_alike, work, reference, other, runs)
            pair.sentences = sentences(pair) if differs is None else sentences(pair, by_path)
            pairs[other.name] = pair
    return Comparison(reference.name, results, pairs, calls.count)


def _split(
    work: Work,
    reference: Variant,
    other: Variant,
    runs: tuple[Rollout, Rollout],
    forks: Forks | None,
    recorder: Recorder,
) -> dict[str, Parts]:
    a, b = runs
    assert isinstance(a, Gradient) and isinstance(b, Gradient)
    if forks is None:
        raise ValueError(f"split=True: {other.name} has another number of steps than {reference.name}")
    if a.path is None or b.path is None:
        raise errors.Unimplemented(
            f"split=True needs the paths of runs, and the server gives none: {recorder.refusal}",
            reason="NO_PATH",
        )
    if a.path.structure != b.path.structure:
        raise ValueError(f"split=True: {other.name} cannot be forced along the path of {reference.name}: "
                         "they have other operations, shapes or caps")
    return split(work, reference, other, (a, b), forks)


def pair_of(
    work: Work,
    reference: Variant,
    other: Variant,
    runs: tuple[Rollout, Rollout],
    forks: Forks | None,
    split: dict[str, Parts] | None,
) -> Pair:
    """The differences of two runs, without sentences."""
    a, b = runs
    left_out = ended(a) | ended(b)
    mine, theirs = (value_of(work, run, left_out) for run in runs)
    values = None
    if a.values is not None and b.values is not None:
        values = difference_among(a.values, b.values, left_out)
    return Pair(
        reference.name,
        other.name,
        a,
        b,
        forks,
        states=differences(a.state, b.state),
        trajectories=differences(a.trajectory, b.trajectory),
        value=None if mine is None or theirs is None else (mine, theirs),
        values=values,
        gradients=gradients_in_both(work, (reference, other), (a, b))
        if isinstance(a, Gradient) and isinstance(b, Gradient)
        else {},
        split=split,
        sentences=[],
        nonfinite=int(np.count_nonzero(nonfinite_instances(a, work.own))),
        newly_nonfinite=newly_nonfinite_of(a, b, work.ids),
        left_out=int(np.count_nonzero(left_out)),
        is_of_other_world=reference.world is not other.world,
    )
