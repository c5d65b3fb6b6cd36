"""Diagnostics: what happened at each step, as columns over steps.

T is the number of steps of the block or rollout, N the number of instances. A margin is the signed
distance of a tested value from its threshold; +inf where nothing was tested at a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Sequence, TypeAlias

import numpy as np

from simgrad import summary
from simgrad.v1 import diagnostics_pb2

# Why a run of a loop stopped; all but `counter` are the second axis of TerminationTrace.reasons.
REASONS = ("converged", "max_iter", "nonfinite", "not_entered", "counter")
MARGIN_BUCKETS = 64
EXPONENT_BUCKETS = 34
# A run of a loop is in the first bucket whose bound is not below its iterations, or in one more.
ITERATION_BOUNDS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)


@dataclass(repr=False)
class TerminationTrace:
    """A termination site: a named loop and its stopping test.

    Attributes (arrays over the T steps):
      iterations: [T, 3] smallest, mean and largest count; at level "instances" [T, N] counts.
      iterations_min, iterations_mean, iterations_max: the same columns at every level.
      iterations_histogram: [T, 16] runs by iterations: up to each of ITERATION_BOUNDS, and above.
      runs: how often the loop ran. checks: how many tests were evaluated.
      reasons: [T, 4] runs that stopped for each of REASONS but `counter`.
      counter: runs of a loop with a predicate that integers alone ended.
      tested_min, tested_max: range of the last tested value over the runs, NaN left out.
      margin, margin_instance: the test closest to its threshold, and whose it was (instance id).
      margin_ulps, margin_ulps_instance: the same, measured in ulps of the comparison's format.
      margin_test: of a loop with a predicate, the test that decided where margin_ulps was smallest,
        whose own margin it is: its site, else its line or operation. "" where there was none.
      histogram: [T, 64] |margin| in ulps at the stop: bucket 0 is zero, 1 is (0, 1], k is (2^(k-2),
        2^(k-1)].
      nan_margins: tests that have no margin: of a NaN, or of two equal infinities.
      near_stopped, near_continued: tests within the server's band, by outcome.
      instance_reasons: level "instances": [T, N] reason of the last run, an index into REASONS;
        else None.
      line: of the user's file, in the result of a program that ProgramBuilder or simgrad.world wrote.
      begins: the step of the run that the first column is of: other than 0 in blocks of a stream.
    """

    site: str
    runs: np.ndarray
    iterations_min: np.ndarray
    iterations_mean: np.ndarray
    iterations_max: np.ndarray
    iterations_histogram: np.ndarray
    reasons: np.ndarray
    tested_min: np.ndarray
    tested_max: np.ndarray
    margin: np.ndarray
    margin_instance: np.ndarray
    margin_ulps: np.ndarray
    margin_ulps_instance: np.ndarray
    histogram: np.ndarray
    nan_margins: np.ndarray
    checks: np.ndarray
    near_stopped: np.ndarray
    near_continued: np.ndarray
    counter: np.ndarray
    margin_test: np.ndarray
    instance_iterations: np.ndarray | None = None
    instance_reasons: np.ndarray | None = None
    value_counts: np.ndarray | None = field(default=None, repr=False)  # [T, N]
    flat_values: list[np.ndarray] | None = field(
        default=None, repr=False
    )  # per instance, steps ascending
    line: str = ""
    begins: int = 0

    def __repr__(self) -> str:
        return summary.of_site(self)

    @property
    def iterations(self) -> np.ndarray:
        if self.instance_iterations is not None:
            return self.instance_iterations
        return np.stack([self.iterations_min, self.iterations_mean, self.iterations_max], axis=1)

    @property
    def values(self) -> list[list[np.ndarray]]:
        """Every tested value, [step][instance] -> f64 array. Only at level "instances"."""
        if self.flat_values is None or self.value_counts is None:
            raise ValueError('tested values come at diagnostics="instances"')
        per_instance = [
            np.split(flat, np.cumsum(counts)[:-1])
            for flat, counts in zip(self.flat_values, self.value_counts.T)
        ]
        return [list(step) for step in zip(*per_instance)]


@dataclass(repr=False)
class EventTrace:
    """An event site: a named threshold that is crossed, per element.

    Attributes (arrays over the T steps): checks, count (true), changes (differs from the step
    before), margin, margin_instance, margin_ulps, margin_ulps_instance, nan_margins as for a
    TerminationTrace.
      histogram: [S, 64] of the S sampled steps, in programs with a level of tests: |margin| in ulps of
        the elements for which it was decided, in the buckets of a TerminationTrace; else None.
      histogram_steps: [S] these steps.
      first_step: [N] first step at which the event held, -1: never. Only in a final result.
      kind: what the test is for, in programs with a level: "event", "termination", "weight", "guard",
        "acceptance", "membership" or "halt"; else "".
      line, begins: as for a TerminationTrace.
    """

    site: str
    checks: np.ndarray
    count: np.ndarray
    changes: np.ndarray
    margin: np.ndarray
    margin_instance: np.ndarray
    margin_ulps: np.ndarray
    margin_ulps_instance: np.ndarray
    nan_margins: np.ndarray
    histogram: np.ndarray | None = field(default=None, repr=False)
    histogram_steps: np.ndarray | None = field(default=None, repr=False)
    first_step: np.ndarray | None = None
    kind: str = ""
    line: str = ""
    begins: int = 0

    def __repr__(self) -> str:
        return summary.of_event(self)


@dataclass
class StateRange:
    """Range of one state after the sampled steps.

    Attributes (arrays over `steps`): min and max of the finite values, smallest non-zero magnitude
    (+inf: none), and counts of subnormals, zeros, nans, infinities.
    """

    steps: np.ndarray
    min: np.ndarray
    max: np.ndarray
    smallest: np.ndarray
    subnormals: np.ndarray
    zeros: np.ndarray
    nans: np.ndarray
    infinities: np.ndarray


@dataclass
class RangeCounts:
    """How often a role's casts and stores left the range of its format."""

    underflows: int = 0
    overflows: int = 0


@dataclass
class AdditionSite:
    """One addition (or subtraction, or fma) that a state is stored from, by its role and line.

    Attributes: additions: how many had operands that are finite and not zero, over instances, elements
      and sampled steps. absorbed: of how many the sum, as the state stores it, is one of the operands.
    """

    role: str
    line: str
    additions: int = 0
    absorbed: int = 0


@dataclass(repr=False)
class Absorption:
    """Last additions into one state that did nothing: x + y that is stored as x although y is not zero.

    Where `share` is near 1, what is added last changes nothing while the derivative counts it: the format of the
    state, or of the addition, is too narrow for it. Counted at the steps of states_range.
    Attributes: state: its name; "others": several, behind the first 64 additions. sites: the additions.
    """

    state: str
    sites: list[AdditionSite] = field(default_factory=list)

    @property
    def additions(self) -> int:
        return sum(site.additions for site in self.sites)

    @property
    def absorbed(self) -> int:
        return sum(site.absorbed for site in self.sites)

    @property
    def share(self) -> float:
        """The part of all additions that was absorbed; 0 where there was none."""
        return self.absorbed / self.additions if self.additions else 0.0

    def __repr__(self) -> str:
        return summary.of_absorption(self)


@dataclass
class BackwardTrace:
    """The reverse pass, by step.

    Attributes: largest: [T] largest finite |adjoint|, still scaled by the loss scale. nonfinite:
      [T] count.
      exponents: [T, 34] histogram: bucket 0 is zero, k is [2^(8k-136), 2^(8k-128)).
      ranges: RangeCounts by role.
    """

    first_step: int
    largest: np.ndarray
    nonfinite: np.ndarray
    exponents: np.ndarray
    ranges: dict[str, RangeCounts]
    phase = "adjoint"

    @property
    def steps(self) -> int:
        return len(self.largest)


@dataclass
class ForwardTrace:
    """Diagnostics of the steps [first_step, first_step + steps); also what a stream yields."""

    first_step: int
    steps: int
    sites: dict[str, TerminationTrace]
    events: dict[str, EventTrace]
    states_range: dict[str, StateRange]
    ranges: dict[str, RangeCounts]
    absorption: dict[str, Absorption] = field(default_factory=dict)
    phase = "forward"


@dataclass
class BirthCertificate:
    """The birth of a non-finite value: the first operation whose result is not finite.

    `phase` is input, forward or adjoint; `non_finite_class` is input, invalid, divide_by_zero,
    overflow or conversion; `step`, `element` and `iteration` count from 0.
    """

    phase: str
    step: int
    operation: str
    label: str
    value: str
    site: str
    role: str
    format: str
    instance_id: int
    element: int
    iteration: int
    operands: tuple[float, ...]
    result: float
    non_finite_class: str

    def __str__(self) -> str:
        operands = ", ".join(repr(x) for x in self.operands)
        where = f" at site {self.site}" if self.site else ""
        label = f" ({self.label})" if self.label else ""
        return (
            f"instance {self.instance_id}: {self.phase}, step {self.step}: "
            f"{self.operation}({operands}) = "
            f"{self.result!r} in {self.format} ({self.role}{where}), element {self.element}, "
            f"iteration {self.iteration}: {self.non_finite_class}{label}"
        )


TERMINATION_COLUMNS = {
    "runs": np.uint64,
    "iterations_min": np.uint32,
    "iterations_mean": np.float64,
    "iterations_max": np.uint32,
    "reasons": np.uint64,
    "tested_min": np.float64,
    "tested_max": np.float64,
    "margin": np.float64,
    "margin_instance": np.uint64,
    "margin_ulps": np.float64,
    "margin_ulps_instance": np.uint64,
    "nan_margins": np.uint64,
    "checks": np.uint64,
    "near_stopped": np.uint64,
    "near_continued": np.uint64,
}
EVENT_COLUMNS = {
    "checks": np.uint64,
    "count": np.uint64,
    "changes": np.uint64,
    "margin": np.float64,
    "margin_instance": np.uint64,
    "margin_ulps": np.float64,
    "margin_ulps_instance": np.uint64,
    "nan_margins": np.uint64,
}
STATE_COLUMNS = {
    "min": np.float64,
    "max": np.float64,
    "smallest": np.float64,
    "subnormals": np.uint64,
    "zeros": np.uint64,
    "nans": np.uint64,
    "infinities": np.uint64,
}


def forward_trace(
    blocks: Sequence[diagnostics_pb2.DiagnosticsBlock], instances: int
) -> ForwardTrace:
    """One trace of blocks that follow each other."""
    blocks = sorted(blocks, key=lambda b: b.first_step)
    first = blocks[0].first_step if blocks else 0
    steps = max((b.first_step + b.steps for b in blocks), default=0) - first
    sites = {}
    for name, columns in _by_name(blocks, "terminations", "site").items():
        trace = TerminationTrace(
            site=name,
            histogram=_bytes_column(columns, "histogram", "<u4", MARGIN_BUCKETS),
            iterations_histogram=_bytes_column(
                columns, "iterations", "<u4", len(ITERATION_BOUNDS) + 1
            ),
            counter=np.concatenate(
                [
                    np.array(c.counter, np.uint64) if c.counter else np.zeros(len(c.runs), np.uint64)
                    for c in columns
                ]
            ),
            margin_test=np.concatenate([_deciding(c) for c in columns]),
            begins=first,
            **_columns(columns, TERMINATION_COLUMNS),
        )
        trace.reasons = trace.reasons.reshape(-1, len(REASONS) - 1)
        sites[name] = trace
    _add_instances(sites, blocks, first, steps, instances)
    sampled = np.array([s for b in blocks for s in b.sampled_steps], np.int64)
    events = {
        name: EventTrace(
            site=name,
            kind=columns[0].kind,
            begins=first,
            **_event_histogram(columns, sampled),
            **_columns(columns, EVENT_COLUMNS),
        )
        for name, columns in _by_name(blocks, "events", "site").items()
    }
    states = {
        name: StateRange(steps=sampled, **_columns(columns, STATE_COLUMNS))
        for name, columns in _by_name(blocks, "states", "state").items()
    }
    return ForwardTrace(
        first, steps, sites, events, states, range_counts(blocks), absorption_of(blocks)
    )


def _event_histogram(
    columns: Sequence[diagnostics_pb2.EventColumns], sampled: np.ndarray
) -> dict[str, Any]:
    # Programs that state a level name the kind of each event. Few blocks have a sampled step.
    if not columns[0].kind:
        return {}
    found = _bytes_column(columns, "histogram", "<u4", MARGIN_BUCKETS)
    return {"histogram": found, "histogram_steps": sampled}


def _deciding(columns: diagnostics_pb2.TerminationColumns) -> np.ndarray:
    names = ["", *columns.tests]
    chosen = columns.margin_test or [0] * len(columns.runs)
    return np.array([names[k] for k in chosen], str)


def backward_trace(blocks: Sequence[diagnostics_pb2.BackwardBlock]) -> BackwardTrace:
    """One trace of blocks of the reverse pass, in whatever order they came."""
    blocks = sorted(blocks, key=lambda b: b.first_step)
    return BackwardTrace(
        first_step=blocks[0].first_step if blocks else 0,
        exponents=_bytes_column(blocks, "exponents", "<u8", EXPONENT_BUCKETS),
        ranges=range_counts(blocks),
        **_columns(blocks, {"largest": np.float64, "nonfinite": np.uint64}),
    )


def range_counts(blocks: Sequence[Any]) -> dict[str, RangeCounts]:
    """Underflows and overflows by role, summed over blocks."""
    counts: dict[str, RangeCounts] = {}
    for block in blocks:
        for entry in block.ranges:
            total = counts.setdefault(entry.role, RangeCounts())
            total.underflows += entry.underflows
            total.overflows += entry.overflows
    return dict(sorted(counts.items()))  # in one order, whatever block told of a role first


Addition: TypeAlias = "tuple[str, str, str]"  # state, role, line


def addition_counts(blocks: Iterable[Any]) -> dict[Addition, tuple[int, int]]:
    """Additions and those absorbed, summed over blocks."""
    counts: dict[Addition, tuple[int, int]] = {}
    for block in blocks:
        for entry in block.absorption:
            key = (entry.state, entry.role, entry.label)
            additions, absorbed = counts.get(key, (0, 0))
            counts[key] = (additions + entry.additions, absorbed + entry.absorbed)
    return counts


def by_state(counts: Mapping[Addition, tuple[int, int]]) -> dict[str, Absorption]:
    absorption: dict[str, Absorption] = {}
    for (state, role, line), (additions, absorbed) in counts.items():
        of_state = absorption.setdefault(state, Absorption(state))
        of_state.sites.append(AdditionSite(role, line, additions, absorbed))
    return absorption


def absorption_of(blocks: Iterable[Any]) -> dict[str, Absorption]:
    """By state, summed over blocks."""
    return by_state(addition_counts(blocks))


def certificate(message: diagnostics_pb2.BirthCertificate) -> BirthCertificate:
    values = {name: getattr(message, name) for name in BirthCertificate.__dataclass_fields__}
    return BirthCertificate(**{**values, "operands": tuple(message.operands)})


def _by_name(blocks: Sequence[Any], group: str, key: str) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for block in blocks:
        for columns in getattr(block, group):
            grouped.setdefault(getattr(columns, key), []).append(columns)
    return grouped


def _columns(messages: Sequence[Any], dtypes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: np.concatenate(
            [np.asarray(getattr(m, name), dtype) for m in messages] or [np.zeros(0, dtype)]
        )
        for name, dtype in dtypes.items()
    }


def _bytes_column(messages: Sequence[Any], name: str, dtype: str, width: int) -> np.ndarray:
    return np.frombuffer(b"".join(getattr(m, name) for m in messages), dtype).reshape(-1, width)


def _add_instances(
    sites: dict[str, TerminationTrace], blocks: Sequence[Any], first: int, steps: int, instances: int
) -> None:
    """Puts what each instance did into its site's trace."""
    flat: dict[str, list[list[np.ndarray]]] = {}
    for block in blocks:
        for columns in block.instances:
            trace = sites.get(columns.site)
            if trace is None:  # the columns over all instances came with an earlier block
                continue
            if trace.instance_iterations is None:
                trace.instance_iterations = np.zeros((steps, instances), np.uint32)
                trace.instance_reasons = np.zeros((steps, instances), np.uint8)
                trace.value_counts = np.zeros((steps, instances), np.uint32)
                flat[columns.site] = [[] for _ in range(instances)]
            rows = slice(block.first_step - first, block.first_step - first + block.steps)
            lanes = slice(block.instance_offset, block.instance_offset + columns.instances)
            shape = (block.steps, columns.instances)
            counts = np.frombuffer(columns.value_counts, "<u4").reshape(shape)
            iterations = np.frombuffer(columns.iterations, "<u4").reshape(shape)
            reasons = np.frombuffer(columns.reasons, "u1").reshape(shape)
            for whole, part in (
                (trace.instance_iterations, iterations),
                (trace.instance_reasons, reasons),
                (trace.value_counts, counts),
            ):
                assert whole is not None  # all three are made above
                whole[rows, lanes] = part
            ends = np.cumsum(counts.sum(axis=0, dtype=np.int64))[:-1]
            for lane, values in enumerate(np.split(np.frombuffer(columns.values, "<f8"), ends)):
                flat[columns.site][block.instance_offset + lane].append(values)
    for site, lanes_values in flat.items():
        sites[site].flat_values = [
            np.concatenate(parts) if parts else np.zeros(0) for parts in lanes_values
        ]
