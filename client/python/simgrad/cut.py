"""Some of the steps of a block of diagnostics."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeAlias, TypeVar

import numpy as np

from simgrad.diagnostics import (
    BackwardTrace,
    EventTrace,
    ForwardTrace,
    StateRange,
    TerminationTrace,
)

Trace: TypeAlias = "ForwardTrace | BackwardTrace"
SiteTrace = TypeVar("SiteTrace", TerminationTrace, EventTrace)


def cut(trace: Trace, start: int, stop: int) -> Trace:
    """The steps [start, stop) of a block, counted from its first.

    Counts of ranges are of the whole block: they stay as they are.
    """
    first = trace.first_step + start
    if isinstance(trace, BackwardTrace):
        return replace(
            trace,
            first_step=first,
            largest=trace.largest[start:stop],
            nonfinite=trace.nonfinite[start:stop],
            exponents=trace.exponents[start:stop],
        )
    return replace(
        trace,
        first_step=first,
        steps=stop - start,
        sites={name: _cut_site(site, start, stop) for name, site in trace.sites.items()},
        events={
            name: _cut_event(event, first, start, stop) for name, event in trace.events.items()
        },
        states_range={
            name: _cut_range(state, first, first + stop - start)
            for name, state in trace.states_range.items()
        },
    )


def _cut_site(site: SiteTrace, start: int, stop: int) -> SiteTrace:
    """Every array of a block's site or event has the steps as its first axis, but the tested values,
    which are flat for each instance."""
    columns = {
        f.name: getattr(site, f.name)[start:stop]
        for f in fields(site)
        if isinstance(getattr(site, f.name), np.ndarray)
    }
    if isinstance(site, TerminationTrace) and site.flat_values is not None:
        assert site.value_counts is not None  # they come together
        ends = np.cumsum(site.value_counts, axis=0, dtype=np.int64)
        begins = np.concatenate([np.zeros_like(ends[:1]), ends])[start]
        columns["flat_values"] = [
            values[begin:end] for values, begin, end in zip(site.flat_values, begins, ends[stop - 1])
        ]
    return replace(site, begins=site.begins + start, **columns)


def _cut_event(event: EventTrace, first: int, start: int, stop: int) -> EventTrace:
    """A histogram has sampled steps as its first axis. `first`: the step at `start`."""
    histogram, steps = event.histogram, event.histogram_steps
    if histogram is not None and steps is not None:
        kept = (steps >= first) & (steps < first + stop - start)
        histogram, steps = histogram[kept], steps[kept]
    rest = replace(event, histogram=None, histogram_steps=None)
    return replace(_cut_site(rest, start, stop), histogram=histogram, histogram_steps=steps)


def _cut_range(state: StateRange, first: int, end: int) -> StateRange:
    kept = (state.steps >= first) & (state.steps < end)
    return StateRange(**{f.name: getattr(state, f.name)[kept] for f in fields(state)})
