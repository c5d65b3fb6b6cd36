"""Where the paths of two runs part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import numpy as np

from simgrad.diagnostics import REASONS, EventTrace, TerminationTrace
from simgrad.results import Rollout
from simgrad.why.work import Variant, Work


@dataclass(frozen=True)
class Side:
    """What one of two runs did at a fork, in the instance and the step of it.

    Attributes:
      iterations, reason: of a loop: how often it turned, and why it stopped; -1 and "" for another test.
      held: of a test that is no loop's: elements for which it held; -1 for a loop.
      margin, margin_ulps: a - b of the test nearest to its threshold among those of this site in this step,
        and its distance in ulps. `checks` is how many tests there were: of one, the margin is its own.
      test: of a loop with a predicate, the test that decided; else "".
    """

    iterations: int
    reason: str
    held: int
    margin: float
    margin_ulps: float
    checks: int
    test: str = ""


@dataclass(frozen=True)
class Fork:
    """The first decision that two runs of one instance take otherwise.

    Attributes:
      instance: index in the request; instance_id: its id.
      step: the first step whose decisions differ. site: whose. line: of the user's file, or "".
      kind: "loop" or "test".
      reference, other: what the two runs did there.
    """

    instance: int
    instance_id: int
    step: int
    site: str
    line: str
    kind: str
    reference: Side
    other: Side


@dataclass(frozen=True)
class Forks:
    """Where the paths of all instances part.

    Attributes:
      parted: [N] bool: whether the paths differ.
      step: [N] first step at which they do; -1: never, or not located (`located` tells which).
      site: [N] the site of that decision; "" where it is not known.
      located: [N] bool: whether step is known.
      first: the earliest, of the lowest instance among equals; None without one.
    """

    parted: np.ndarray
    step: np.ndarray
    site: list[str]
    located: np.ndarray
    first: Fork | None

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.parted))

    def sites(self) -> dict[str, int]:
        """How many instances part at each site, most first, then by name."""
        counts: dict[str, int] = {}
        for name in self.site:
            if name:
                counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def forks_of(
    work: Work, reference: Variant, other: Variant, runs: tuple[Rollout, Rollout]
) -> Forks:
    """Where two runs part, from their signatures, and from loops at diagnostics "instances".

    Cost: log2(T) prefixes of both runs where the world has tests beside loops, and one instance of both
    up to the first fork.
    """
    a, b = runs
    parted = a.path_signatures != b.path_signatures
    step, site = _loops_differ(a, b)
    site = [name if differs else "" for name, differs in zip(site, parted)]
    step = np.where(parted, step, -1)
    located = step >= 0
    if parted.any() and (a.program.event_sites or not located[parted].all()):
        among = np.flatnonzero(parted)
        part = work.take(among)
        differs = _prefix_differs(part, reference, other)
        earliest = first_step(lambda steps: bool(differs(steps).any()), a.steps)
        at = np.zeros(parted.shape, bool)
        at[among] = differs(earliest + 1)
        site = [name if here and step[i] == earliest else "" for i, (name, here) in enumerate(zip(site, at))]
        step = np.where(at, earliest, -1)
        located = at
    first = None
    if located.any():
        earliest = int(step[located].min())
        instance = int(np.flatnonzero(located & (step == earliest))[0])
        first = look_closely(work, reference, other, instance, earliest)
        site[instance] = first.site
    return Forks(parted, step, site, located, first)


def first_step(differs: Callable[[int], bool], steps: int) -> int:
    """The first step t for which prefixes of t + 1 steps differ, where those of `steps` do."""
    agree, differ = 0, steps
    while differ - agree > 1:
        middle = (agree + differ) // 2
        agree, differ = (agree, middle) if differs(middle) else (middle, differ)
    return differ - 1


def _prefix_differs(
    work: Work, reference: Variant, other: Variant
) -> Callable[[int], np.ndarray]:
    known: dict[int, np.ndarray] = {}

    def differs(steps: int) -> np.ndarray:
        if steps not in known:
            work.calls.expect(2 * steps)
            a, b = (
                work.run(v, gradient=False, steps=steps, diagnostics="off").path_signatures
                for v in (reference, other)
            )
            known[steps] = a != b
        return known[steps]

    return differs


def _loops_differ(a: Rollout, b: Rollout) -> tuple[np.ndarray, list[str]]:
    """[N] first step at which a loop turns or stops otherwise, -1: none; and which loop."""
    step = np.full(a.instances, -1)
    site = [""] * a.instances
    for name, trace in a.sites.items():
        other = b.sites.get(name)
        if other is None or trace.instance_iterations is None or other.instance_iterations is None:
            continue
        assert trace.instance_reasons is not None and other.instance_reasons is not None
        differs = (trace.instance_iterations != other.instance_iterations) | (
            trace.instance_reasons != other.instance_reasons
        )
        for i in np.flatnonzero(differs.any(axis=0)):
            t = int(differs[:, i].argmax())
            if step[i] < 0 or t < step[i]:
                step[i], site[i] = t, name
    return step, site


def look_closely(
    work: Work, reference: Variant, other: Variant, instance: int, step: int
) -> Fork:
    """What both runs of one instance do at a step at which they part: they run again, alone."""
    alone = work.take([instance])
    work.calls.expect(2 * (step + 1))
    a, b = (
        alone.run(v, gradient=False, steps=step + 1, diagnostics="instances")
        for v in (reference, other)
    )
    name, kind = _parting_site(a, b, step)
    sides = tuple(_side(run, name, kind, step) for run in (a, b))
    line = traces_of(a)[name].line if name else ""
    return Fork(instance, int(work.ids[instance]), step, name, line, kind, *sides)


def traces_of(run: Rollout) -> dict[str, TerminationTrace | EventTrace]:
    """What happened at every site: loops, then other tests."""
    return {**run.sites, **run.events}


def _parting_site(a: Rollout, b: Rollout, step: int) -> tuple[str, str]:
    for name, trace in a.sites.items():
        theirs = b.sites[name]
        if (
            trace.iterations_max[step] != theirs.iterations_max[step]
            or trace.runs[step] != theirs.runs[step]
            or (trace.reasons[step] != theirs.reasons[step]).any()
        ):
            return name, "loop"
    for name, event in a.events.items():
        held = b.events[name]
        if event.count[step] != held.count[step] or event.changes[step] != held.changes[step]:
            return name, "test"
    return "", "test"


def _side(run: Rollout, name: str, kind: str, step: int) -> Side:
    if kind == "loop":
        loop = run.sites[name]
        reasons = [*loop.reasons[step].tolist(), int(loop.counter[step])]
        reason = REASONS[int(np.argmax(reasons))] if any(reasons) else ""
        return Side(
            int(loop.iterations_max[step]),
            reason,
            -1,
            float(loop.margin[step]),
            float(loop.margin_ulps[step]),
            int(loop.checks[step]),
            str(loop.margin_test[step]),
        )
    if not name:
        return Side(-1, "", -1, np.inf, np.inf, 0)
    event = run.events[name]
    return Side(
        -1,
        "",
        int(event.count[step]),
        float(event.margin[step]),
        float(event.margin_ulps[step]),
        int(event.checks[step]),
    )


