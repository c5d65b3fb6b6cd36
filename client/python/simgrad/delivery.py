"""The part of a streamed answer that its caller has been given, so that a second run goes on where the
first broke."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterator

from simgrad import errors
from simgrad.cut import Trace, cut
from simgrad.diagnostics import ForwardTrace, RangeCounts, by_state
from simgrad.v1 import simgrad_pb2


class Delivery:
    """Leaves out of the blocks of a repeated run what was already given, by steps.

    A repeated run may cut its blocks elsewhere, so a block is given in the parts that are new. Counts
    of ranges come with some blocks only and belong to all steps since the last ones; of a repeated
    run, only what goes beyond the sum that was given is given.
    """

    def __init__(self) -> None:
        self._header: simgrad_pb2.StreamHeader | None = None
        self._given = {"forward": _Steps(), "adjoint": _Steps()}
        self._ranges = _Counts()
        self._additions = _Counts()

    @property
    def is_begun(self) -> bool:
        return any(steps.intervals or steps.has_empty for steps in self._given.values())

    def take_header(self, header: simgrad_pb2.StreamHeader) -> None:
        """Begins a run.

        Errors: FailedPrecondition (reason SERVER_CHANGED) where blocks were given and this run is
          not of the same program on a server of the same revision: its bits might be others.
        """
        if self._header is not None and self.is_begun:
            was, now = _of_answer(self._header), _of_answer(header)
            changed = [
                f"{name} {was[name]} is now {now.get(name, 'unknown')}"
                for name in was
                if was[name] != now.get(name)
            ]
            if changed:
                raise errors.FailedPrecondition(
                    "the answer broke in its middle, and the server that would go on with it is "
                    f"another one ({', '.join(changed)}), so its bits may differ: ask again for the "
                    "whole",
                    reason="SERVER_CHANGED",
                )
        self._header = header
        self._ranges.restart()
        self._additions.restart()

    def new_of(self, trace: Trace) -> Iterator[Trace]:
        """The parts of a block that the caller has not been given; they count as given now."""
        for role, counts in trace.ranges.items():
            self._ranges.add((trace.phase, role), (counts.underflows, counts.overflows))
        for absorption in getattr(trace, "absorption", {}).values():
            for site in absorption.sites:
                key = (absorption.state, site.role, site.line)
                self._additions.add(key, (site.additions, site.absorbed))
        first, end = trace.first_step, trace.first_step + trace.steps
        for start, stop in self._given[trace.phase].add(first, end):
            whole = (start, stop) == (first, end)
            part = trace if whole else cut(trace, start - first, stop - first)
            due = self._ranges.due(lambda key: key[0] == trace.phase)
            part = replace(part, ranges={role: RangeCounts(*n) for (_, role), n in due.items()})
            if isinstance(part, ForwardTrace):
                part = replace(part, absorption=by_state(self._additions.due(lambda key: True)))
            yield part


class _Counts:
    """Pairs of counts by key: what was given, and what the run that goes on has come to."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, ...], tuple[int, int]] = {}
        self._run: dict[tuple[str, ...], tuple[int, int]] = {}

    def restart(self) -> None:
        self._run = {}

    def add(self, key: tuple[str, ...], counts: tuple[int, int]) -> None:
        before = self._run.get(key, (0, 0))
        self._run[key] = (before[0] + counts[0], before[1] + counts[1])

    def due(self, wanted: Callable[[tuple[str, ...]], bool]) -> dict[Any, tuple[int, int]]:
        """The counts beyond those given so far; they count as given now."""
        due = {}
        for key, run in self._run.items():
            given = self._given.get(key, (0, 0))
            more = (run[0] - given[0], run[1] - given[1])
            if wanted(key) and (more[0] > 0 or more[1] > 0):
                due[key] = more
                self._given[key] = run
        return due


class _Steps:
    """A set of steps, as intervals [first, end) that ascend and do not touch."""

    def __init__(self) -> None:
        self.intervals: list[tuple[int, int]] = []
        self.has_empty = False

    def add(self, first: int, end: int) -> list[tuple[int, int]]:
        """Adds [first, end); returns the parts of it that are new. An empty one is new once."""
        if first == end:
            new = [] if self.has_empty or self.intervals else [(first, end)]
            self.has_empty = True
            return new
        new, at = [], first
        for start, stop in self.intervals:
            if start > at and at < end:
                new.append((at, min(start, end)))
            at = max(at, stop)
        if at < end:
            new.append((at, end))
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(self.intervals + new):
            if merged and start == merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        self.intervals = merged
        return new


def identity(header: simgrad_pb2.StreamHeader) -> dict[str, str]:
    """The facts of a server and its program that must be equal for equal bits."""
    identity = {
        "version": header.server_version,
        "revision": header.revision,
        "program": header.program.fingerprint[:16],
    }
    if any(role.guarantee != "bitwise" for role in header.program.policy.roles):
        identity["device"] = header.device  # hardware decides
    return identity


def _of_answer(header: simgrad_pb2.StreamHeader) -> dict[str, str]:
    return {**identity(header), "shape": f"{header.instances} x {header.steps}"}
