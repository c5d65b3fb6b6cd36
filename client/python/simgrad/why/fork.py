"""Finds where the paths of two runs part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from simgrad import errors
from simgrad.diagnostics import REASONS, EventTrace, TerminationTrace
from simgrad.path import FirstDifference, is_refused
from simgrad.results import Rollout
from simgrad.why.recorder import first_difference
from simgrad.why.work import Variant, Work


@dataclass(frozen=True)
class Side:
    """One of two runs at a fork: what it did in the instance and the step of the fork.

    A site may decide several times in a step: for each element, and in each turn of loops around it. Where paths
    are known, what is told is of the decision that parts, and else of the step.

    Attributes:
      iterations: of a loop, the turns of the run that parts; -1 where that is not known, or it is no loop.
      reason: of a loop that ran once in the step, why it stopped; else "".
      held: of a test that is no loop's: 1 where the decision that parts held, else 0; where that is not known, how
        many of the `checks` held; -1 for others.
      chosen: of a choice, the index that was chosen; -1 for others, and where it is not known.
      margin, margin_ulps: a - b of a test of this site in this step, and its distance in ulps; inf where none is
        told. `exact`: it is that of the decision that parts; else both are those of the test nearest to its threshold, and
        of two tests where the nearest one by a - b is another than by ulps.
      checks: how many tests of this site there were in this step.
      test: of a loop with a predicate, the test that decided; else "".
    """

    iterations: int
    reason: str
    held: int
    margin: float
    margin_ulps: float
    exact: bool
    checks: int
    test: str = ""
    chosen: int = -1


@dataclass(frozen=True)
class Fork:
    """The first decision that two runs of one instance take otherwise.

    Attributes:
      instance: index in the request; instance_id: its id.
      step: the first step whose decisions differ. site: whose. line: of the user's file, or "".
      index: of an element of the site, loops around it first; () where it is not known, or the site has one.
      kind: "loop", "test", or "choice" (of an index by reals).
      reference, other: what the two runs did there.
    """

    instance: int
    instance_id: int
    step: int
    site: str
    line: str
    index: tuple[int, ...]
    kind: str
    reference: Side
    other: Side


@dataclass(frozen=True)
class Forks:
    """The places where the paths of all instances part.

    Attributes:
      parted: [N] bool: whether the paths differ.
      step: [N] first step at which they do; -1: never, or not located (`located` tells which).
      site: [N] the site of that decision; "" where it is not known. Without paths that of the first fork is, and
        those of instances whose loops tell it.
      located: [N] bool: whether step is known.
      first: the earliest, of the lowest instance among equals; None without one.
      unrecorded: [N] bool: of the parted, those whose recorded paths are the same. They decide otherwise in the test of
        a loop, where it steers no number. None without paths.
    """

    parted: np.ndarray
    step: np.ndarray
    site: list[str]
    located: np.ndarray
    first: Fork | None
    unrecorded: np.ndarray | None = None

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
    work: Work,
    reference: Variant,
    other: Variant,
    runs: tuple[Rollout, Rollout],
    differs: FirstDifference | None,
) -> Forks:
    """Finds where two runs part: by the first difference of their paths where it is known, else by signatures. A path
    leaves out what only stops a loop, as the count of turns says it; where such tests alone differ, signatures tell.

    Cost: up to the first fork, two runs of one instance, and two more along the other's path where there
    were several tests. Without paths, log2(T) prefixes of both runs. Where policy "stop" ended instances at E different
    steps, log2(E) prefixes more if all of them part before, or none does; E at most.
    """
    a, b = runs
    if differs is None:
        return _by_signatures(work, reference, other, runs)
    forks = _by_paths(work, reference, other, runs, differs)
    whole = _last_steps(runs) == a.steps - 1  # what "stop" ended has decided less
    hidden = whole & ~forks.parted & (a.path_signatures != b.path_signatures)
    if not hidden.any():
        return forks
    return _joined(forks, _by_signatures(work, reference, other, runs, hidden), hidden)


def _last_steps(runs: tuple[Rollout, Rollout]) -> np.ndarray:
    """[N] the last step that both runs of an instance took: policy "stop" ends one behind the step in which it has
    a number that is not finite."""
    last = np.full(runs[0].instances, runs[0].steps - 1)
    for run in runs:
        for bad in run.health:
            if bad.stopped and bad.phase != "adjoint":
                last[bad.instance] = min(last[bad.instance], bad.step)
    return last


def _by_paths(
    work: Work,
    reference: Variant,
    other: Variant,
    runs: tuple[Rollout, Rollout],
    differs: FirstDifference,
) -> Forks:
    parted = (differs.step >= 0) & (differs.step <= _last_steps(runs))
    first = None
    if parted.any():
        step = int(differs.step[parted].min())
        i = int(np.flatnonzero(parted & (differs.step == step))[0])
        first = look_closely(work, reference, other, i, step, differs.site[i], differs.index[i])
    site = [name if at else "" for name, at in zip(differs.site, parted.tolist())]
    return Forks(parted, np.where(parted, differs.step, -1), site, parted, first, np.zeros_like(parted))


def _joined(forks: Forks, others: Forks, among: np.ndarray) -> Forks:
    """`forks`, but for the instances of `among`, [N] bool, those of `others`: no path records what parts there."""
    found = [f for f in (forks.first, others.first) if f is not None]
    return Forks(
        forks.parted | among,
        np.where(among, others.step, forks.step),
        [theirs if of_others else own for own, theirs, of_others in zip(forks.site, others.site, among)],
        np.where(among, others.located, forks.located),
        min(found, key=lambda f: (f.step, f.instance), default=None),
        among,
    )


def _by_signatures(
    work: Work,
    reference: Variant,
    other: Variant,
    runs: tuple[Rollout, Rollout],
    of: np.ndarray | None = None,
) -> Forks:
    """The forks of all instances, or of those of the mask `of`, [N]. Loops tell their steps at diagnostics "instances".
    Where there are other tests too, only the earliest step is searched, and a site is known only of the fork that is
    looked at closely: a test may have parted before a loop of the same step."""
    a, b = runs
    last = _last_steps(runs)
    parted = a.path_signatures != b.path_signatures
    if of is not None:
        parted &= of
    step, site = _loops_differ(a, b)
    parted &= step <= last
    # A run that "stop" ended has no more decisions, and its signature says nothing of later ones.
    stopped = np.flatnonzero(parted & (step < 0) & (last < a.steps - 1))
    if len(stopped):
        parted[stopped] = _differ_in(work.take(stopped), reference, other, last[stopped] + 1)
    site = [name if differs else "" for name, differs in zip(site, parted)]
    step = np.where(parted, step, -1)
    located = step >= 0
    if parted.any() and (a.program.event_sites or not located[parted].all()):
        among = np.flatnonzero(parted)
        differs = _prefix_differs(work.take(among), reference, other)
        earliest = first_step(lambda steps: bool(differs(steps).any()), a.steps)
        located = np.zeros(parted.shape, bool)
        located[among] = differs(earliest + 1)
        known = not a.program.event_sites
        site = [name if known and at == earliest else "" for name, at in zip(site, np.where(located, step, -1))]
        step = np.where(located, earliest, -1)
    programs = (a.program, b.program)
    names = [*{name for p in programs for name in (*p.termination_sites, *p.event_sites)}]
    if len(names) == 1:  # where there is one, that is it
        site = [names[0] if at else "" for at in located]
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


def _differ_in(work: Work, reference: Variant, other: Variant, steps: np.ndarray) -> np.ndarray:
    """[N] bool: whether prefixes of so many steps, [N], differ. One that differs still does in a longer prefix."""
    found = np.zeros(steps.shape, bool)
    left = [np.arange(len(steps))]
    while left:
        among = left.pop()
        own = steps[among]
        middle = int(np.sort(own)[len(own) // 2])
        differs = _prefix_differs(work.take(among), reference, other)(middle)
        found[among[differs & (own >= middle)]] = True
        shorter, longer = among[differs & (own < middle)], among[~differs & (own > middle)]
        left += [part for part in (shorter, longer) if len(part)]
    return found


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


def decided_alike(
    work: Work, reference: Variant, other: Variant, runs: tuple[Rollout, Rollout], fork: Fork
) -> bool | None:
    """Whether all instances decide as the one of the fork does: of a loop, whether the same run turns less often; of
    others, whether both runs take the same decision. None where no path has the site.

    Cost: where the runs have no paths, rollouts of both up to the fork.
    """
    known: Sequence[Rollout] = runs
    if any(run.path is None for run in runs):
        count, variants = fork.step + 1, (reference, other)
        work.calls.expect(2 * count)
        known = work.run_all(variants, gradient=False, steps=count, sends_paths=True, diagnostics="off", path=True)
    paths = [p for p in (run.path for run in known) if p is not None and fork.site in (c.site for c in p.layout)]
    if len(paths) < 2:
        return None
    before, now = (np.moveaxis(p[fork.site][:, fork.step], 0, -1)[fork.index].astype(np.int64) for p in paths)
    i = fork.instance
    if fork.kind == "loop":
        return bool((np.sign(now - before) == np.sign(now - before)[i]).all())
    return bool((before == before[i]).all() and (now == now[i]).all())


def look_closely(
    work: Work,
    reference: Variant,
    other: Variant,
    instance: int,
    step: int,
    site: str = "",
    index: tuple[int, ...] = (),
) -> Fork:
    """The fork of both runs of one instance at a step at which they part: they run again, alone. `site` and
    `index`: of the decision, where paths told it. Else a path of these runs tells it, where there is one without the
    objective, whose decisions may have none. A side that rounds by chance follows no path, so its margin is that of the
    nearest test."""
    alone = work.take([instance])
    count = step + 1
    variants = (reference, other)
    work.calls.expect(2 * count)
    how: dict[str, Any] = {"gradient": False, "steps": count, "diagnostics": "summary"}
    if not site:
        how |= {"objective": "", "weights": None}
    a, b = _recorded(alone, variants, bool(site), how)
    differs = None if site else first_difference(a, b)
    if differs is not None and differs.step[0] == step:
        site, index = differs.site[0], differs.index[0]
    recorded = bool(site)
    name, kind = (site, _kind(a, site)) if recorded else _parting_site(a, b, step)
    sides = [_side(run, name, kind, step) for run in (a, b)]
    if recorded:
        for k, (variant, own, their) in enumerate(zip(variants, (a, b), (b, a))):
            sides[k] = _decided(sides[k], own, name, kind, step, index)
            follows = not own.program.policy.rounds_by_chance
            if not sides[k].exact and follows and their.path is not None:
                work.calls.expect(count)
                forced = alone.run(variant, path=their.path, **how)
                sides[k] = _exact(sides[k], forced, name, step)
    trace = traces_of(a).get(name) or traces_of(b).get(name)
    line = trace.line if trace is not None else variants[0].world.lines_of_sites().get(name, "")
    return Fork(instance, int(work.ids[instance]), step, name, line, index, kind, *sides)


def _recorded(
    alone: Work, variants: tuple[Variant, Variant], has_path: bool, how: Mapping[str, Any]
) -> tuple[Rollout, Rollout]:
    """Both runs, with their paths where there are any."""

    def both(path: bool) -> tuple[Rollout, Rollout]:
        a, b = (alone.run(v, path=path, **how) for v in variants)
        return a, b

    before = alone.calls.begun
    try:
        return both(True)
    except (errors.InvalidArgument, errors.ResourceExhausted) as error:
        if has_path or not is_refused(error):
            raise
    alone.calls.expect(alone.calls.begun - before)
    return both(False)


_KINDS = {"count": "loop", "test": "test", "choice": "choice"}


def _kind(run: Rollout, site: str) -> str:
    layout = run.path.layout if run.path is not None else ()
    return next((_KINDS[c.kind] for c in layout if c.site == site), "test")


def _decided(
    side: Side, run: Rollout, site: str, kind: str, step: int, index: tuple[int, ...]
) -> Side:
    """The side with the decision that parts, as its path has it."""
    assert run.path is not None
    outcome = int(run.path.columns[site][0, step][index])
    if kind == "loop":
        return replace(side, iterations=outcome)
    return replace(side, chosen=outcome) if kind == "choice" else replace(side, held=outcome)


def _exact(side: Side, forced: Rollout, site: str, step: int) -> Side:
    """The side with the margin at which its run disagrees with the other's path, where that is one test's."""
    told = forced.forced.get(site)
    if told is None or told.count[step] == 0 or not np.isfinite(told.margin[step]):
        return side
    margin, ulps = float(told.margin[step]), float(told.margin_ulps[step])
    return replace(side, margin=margin, margin_ulps=ulps, exact=int(told.count[step]) == 1)


def traces_of(run: Rollout) -> dict[str, TerminationTrace | EventTrace]:
    """The traces of every site by name: loops, then other tests."""
    return {**run.sites, **run.events}


def _parting_site(a: Rollout, b: Rollout, step: int) -> tuple[str, str]:
    """The first site whose decisions differ in a step. Worlds of other structures may have other sites: one
    that a run has alone differs where it decided."""
    for name in dict.fromkeys([*a.sites, *b.sites]):
        trace, theirs = a.sites.get(name), b.sites.get(name)
        if trace is None or theirs is None:
            alone = trace or theirs
            if alone is not None and alone.runs[step]:
                return name, "loop"
        elif (
            trace.iterations_max[step] != theirs.iterations_max[step]
            or trace.runs[step] != theirs.runs[step]
            or (trace.reasons[step] != theirs.reasons[step]).any()
        ):
            return name, "loop"
    for name in dict.fromkeys([*a.events, *b.events]):
        event, held = a.events.get(name), b.events.get(name)
        if event is None or held is None:
            one = event or held
            if one is not None and one.changes[step]:
                return name, "test"
        elif event.count[step] != held.count[step] or event.changes[step] != held.changes[step]:
            return name, "test"
    names = list(dict.fromkeys([*a.sites, *b.sites, *a.events, *b.events]))
    if len(names) == 1:  # where there is one, that is it: a permutation may differ where its counts do not
        return names[0], "loop" if names[0] in a.sites else "test"
    return "", "test"


def _side(run: Rollout, name: str, kind: str, step: int) -> Side:
    loop, event = run.sites.get(name), run.events.get(name)
    if kind == "loop" and loop is not None:
        reasons = [*loop.reasons[step].tolist(), int(loop.counter[step])]
        ran_once = int(loop.runs[step]) == 1
        return Side(
            iterations=int(loop.iterations_max[step]) if ran_once else -1,
            reason=REASONS[int(np.argmax(reasons))] if ran_once and any(reasons) else "",
            held=-1,
            margin=float(loop.margin[step]),
            margin_ulps=float(loop.margin_ulps[step]),
            exact=int(loop.checks[step]) == 1,
            checks=int(loop.checks[step]),
            test=str(loop.margin_test[step]),
        )
    if event is None:
        return Side(-1, "", -1, np.inf, np.inf, False, 0)
    return Side(
        iterations=-1,
        reason="",
        held=-1 if kind == "choice" else int(event.count[step]),
        margin=float(event.margin[step]),
        margin_ulps=float(event.margin_ulps[step]),
        exact=int(event.checks[step]) == 1,
        checks=int(event.checks[step]),
    )
