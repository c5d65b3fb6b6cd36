"""Merges the steps of several servers into those of one.

Counts add, extremes and margins are those of the smallest instance id among ties, as
sim/diagnostics/diagnostics.h joins the parts of one server. Arrays have the steps as their first axis.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from simgrad.diagnostics import (
    EVENT_COLUMNS,
    EXPONENT_BUCKETS,
    ITERATION_BOUNDS,
    MARGIN_BUCKETS,
    REASONS,
    STATE_COLUMNS,
    TERMINATION_COLUMNS,
    addition_counts,
)
from simgrad.v1 import diagnostics_pb2

Columns = dict[str, np.ndarray]

_NO_ITERATIONS = np.iinfo(np.uint32).max
_TEST_REASONS = len(REASONS) - 1  # all but `counter`


def smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The IEEE minimum of numbers: -0 is below +0."""
    return np.where((b < a) | ((b == a) & np.signbit(b)), b, a)


def larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((b > a) | ((b == a) & np.signbit(a)), b, a)


def add_ranges(blocks: Iterable[Any], target: Any) -> None:
    """Counts by role, summed over blocks."""
    sums: dict[str, list[int]] = {}
    for block in blocks:
        for entry in block.ranges:
            of_role = sums.setdefault(entry.role, [0, 0])
            of_role[0] += entry.underflows
            of_role[1] += entry.overflows
    for role, (underflows, overflows) in sums.items():
        target.ranges.add(role=role, underflows=underflows, overflows=overflows)


def add_absorption(blocks: Iterable[Any], target: diagnostics_pb2.DiagnosticsBlock) -> None:
    """Additions into states, summed over blocks."""
    for (state, role, label), (additions, absorbed) in addition_counts(blocks).items():
        target.absorption.add(
            state=state, role=role, label=label, additions=additions, absorbed=absorbed
        )


def _arrays(message: Any, dtypes: Mapping[str, Any]) -> Columns:
    return {name: np.array(getattr(message, name), dtype) for name, dtype in dtypes.items()}


def _grid(data: bytes, dtype: str, width: int) -> np.ndarray:
    return np.frombuffer(data, dtype).reshape(-1, width)


def _termination(message: diagnostics_pb2.TerminationColumns) -> Columns:
    columns = _arrays(message, TERMINATION_COLUMNS)
    columns["reasons"] = columns["reasons"].reshape(-1, _TEST_REASONS)
    columns["histogram"] = _grid(message.histogram, "<u4", MARGIN_BUCKETS)
    columns["iterations"] = _grid(message.iterations, "<u4", len(ITERATION_BOUNDS) + 1)
    none = [0] * len(message.runs)
    columns["counter"] = np.array(message.counter or none, np.uint64)
    names = ["", *message.tests]
    columns["margin_test"] = np.array([names[k] for k in message.margin_test or none], object)
    # A mean is one division of whole numbers, so it gives back their quotient up to 2^51.
    columns["iterations_sum"] = np.rint(columns.pop("iterations_mean") * columns["runs"])
    ran = columns["runs"] > 0
    columns["iterations_min"] = np.where(ran, columns["iterations_min"], _NO_ITERATIONS)
    return columns


def _take_margin(kept: Columns, offered: Columns, name: str, *with_it: str) -> None:
    """The margin of smallest magnitude, of several the smallest instance; `with_it`: its columns."""
    value, instance = kept[name], kept[f"{name}_instance"]
    other, other_instance = offered[name], offered[f"{name}_instance"]
    size, other_size = np.abs(value), np.abs(other)
    closer = (other_size < size) | ((other_size == size) & (other_instance < instance))
    # Without a margin a column holds +inf and instance 0.
    has, other_has = (c["checks"] > c["nan_margins"] for c in (kept, offered))
    takes = other_has & (~has | closer)
    for column in (name, f"{name}_instance", *with_it):
        kept[column] = np.where(takes, offered[column], kept[column])


def _merged_sites(parts: Sequence[Columns]) -> Columns:
    """Columns of one site, over all parts."""
    kept = dict(parts[0])
    for offered in parts[1:]:
        _take_margin(kept, offered, "margin")
        _take_margin(kept, offered, "margin_ulps", *(["margin_test"] if "margin_test" in kept else []))
        for name in kept:
            if name.startswith("margin"):
                continue
            if name == "iterations_min":
                kept[name] = np.minimum(kept[name], offered[name])
            elif name == "iterations_max":
                kept[name] = np.maximum(kept[name], offered[name])
            elif name == "tested_min":
                kept[name] = smaller(kept[name], offered[name])
            elif name == "tested_max":
                kept[name] = larger(kept[name], offered[name])
            else:
                kept[name] = kept[name] + offered[name]
    return kept


def _merged_states(parts: Sequence[Columns]) -> Columns:
    kept = dict(parts[0])
    for offered in parts[1:]:
        for name in kept:
            join = {"min": smaller, "max": larger, "smallest": smaller}.get(name, np.add)
            kept[name] = join(kept[name], offered[name])
    return kept


def _lists(columns: Columns, names: Iterable[str]) -> dict[str, Any]:
    return {name: columns[name].ravel().tolist() for name in names}


def _termination_message(site: str, columns: Columns) -> diagnostics_pb2.TerminationColumns:
    runs = columns["runs"].astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean = np.where(runs > 0, columns["iterations_sum"] / runs, 0.0)
    columns = {
        **columns,
        "iterations_mean": mean,
        "iterations_min": np.where(runs > 0, columns["iterations_min"], 0),
    }
    message = diagnostics_pb2.TerminationColumns(
        site=site,
        histogram=columns["histogram"].astype("<u4").tobytes(),
        iterations=columns["iterations"].astype("<u4").tobytes(),
        **_lists(columns, TERMINATION_COLUMNS),
    )
    if columns["counter"].any():
        message.counter.extend(columns["counter"].tolist())
    tests = {name: k + 1 for k, name in enumerate(dict.fromkeys(filter(None, columns["margin_test"])))}
    if tests:
        message.tests.extend(tests)
        message.margin_test.extend(tests.get(name, 0) for name in columns["margin_test"])
    return message


class StepColumns:
    """The columns of one server, block after block."""

    def __init__(self) -> None:
        self.blocks: list[diagnostics_pb2.DiagnosticsBlock] = []
        self.end = 0  # steps [0, end) are there
        self._of_block: list[tuple[int, int, dict[tuple[str, str], Columns], np.ndarray]] = []

    def add(self, block: diagnostics_pb2.DiagnosticsBlock) -> None:
        self.blocks.append(block)
        self.end = block.first_step + block.steps
        columns = {("termination", c.site): _termination(c) for c in block.terminations}
        columns.update({("event", c.site): _arrays(c, EVENT_COLUMNS) for c in block.events})
        columns.update(
            {
                ("event margins", c.site): {
                    "histogram": _grid(c.histogram, "<u4", MARGIN_BUCKETS)
                }
                for c in block.events
                if c.histogram
            }
        )
        columns.update({("state", c.state): _arrays(c, STATE_COLUMNS) for c in block.states})
        sampled = np.array(block.sampled_steps, np.int64)
        self._of_block.append((block.first_step, self.end, columns, sampled))

    def cut(self, first: int, end: int) -> tuple[dict[tuple[str, str], Columns], np.ndarray]:
        """The columns of [first, end), by kind and name, and the steps that states were sampled at."""
        pieces: dict[tuple[str, str], list[Columns]] = {}
        sampled: list[np.ndarray] = []
        for block_first, block_end, columns, steps in self._of_block:
            if block_first >= end > first or block_end <= first < end:
                continue
            of_steps = slice(max(first - block_first, 0), end - block_first)
            of_samples = (steps >= first) & (steps < end)
            for key, arrays in columns.items():
                kept = of_samples if key[0] in ("state", "event margins") else of_steps
                pieces.setdefault(key, []).append({n: a[kept] for n, a in arrays.items()})
            sampled.append(steps[of_samples])
        joined = {
            key: {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
            for key, parts in pieces.items()
        }
        return joined, np.concatenate(sampled or [np.zeros(0, np.int64)])


class ForwardMerge:
    """Blocks of several servers, merged for the steps that all of them have done."""

    def __init__(self, shards: int):
        self._shards = [StepColumns() for _ in range(shards)]
        self._given = 0  # steps [0, given) were handed out
        self._total: int | None = None
        self._is_over = False

    def begin(self, steps: int) -> None:
        """Takes from the header how many steps there are in all."""
        self._total = steps

    def restart(self, shard: int) -> None:
        """Forgets what a server sent that does not end its answer; what was handed out stays."""
        if not self._is_over:
            self._shards[shard] = StepColumns()

    def add(self, shard: int, block: diagnostics_pb2.DiagnosticsBlock) -> None:
        if not self._is_over:
            self._shards[shard].add(block)

    def take(self) -> diagnostics_pb2.DiagnosticsBlock | None:
        """The steps that all have done since the last block; None where there are none."""
        if self._is_over or not all(shard.blocks for shard in self._shards):
            return None
        first, end = self._given, min(shard.end for shard in self._shards)
        self._is_over = end == self._total
        if end <= first and not self._is_over:
            return None
        self._given = end
        block = self._merged(first, end)
        if self._is_over:
            # They belong to all steps since the last ones, and servers count them at different steps.
            add_ranges((b for shard in self._shards for b in shard.blocks), block)
            add_absorption((b for shard in self._shards for b in shard.blocks), block)
            self._shards = []
        return block

    def _merged(self, first: int, end: int) -> diagnostics_pb2.DiagnosticsBlock:
        cuts = [shard.cut(first, end) for shard in self._shards]
        block = diagnostics_pb2.DiagnosticsBlock(first_step=first, steps=end - first)
        block.sampled_steps.extend(cuts[0][1].tolist())
        kinds = {event.site: event.kind for event in self._shards[0].blocks[0].events}
        events: dict[str, diagnostics_pb2.EventColumns] = {}
        histograms: dict[str, bytes] = {}
        for kind, name in cuts[0][0]:
            # Blocks without a sampled step have no margins.
            parts = [columns[kind, name] for columns, _ in cuts if (kind, name) in columns]
            if kind == "termination":
                block.terminations.append(_termination_message(name, _merged_sites(parts)))
            elif kind == "event":
                lists = _lists(_merged_sites(parts), EVENT_COLUMNS)
                events[name] = block.events.add(site=name, kind=kinds[name], **lists)
            elif kind == "event margins":
                counts = np.sum([part["histogram"] for part in parts], axis=0)
                histograms[name] = counts.astype("<u4").tobytes()
            else:
                block.states.add(state=name, **_lists(_merged_states(parts), STATE_COLUMNS))
        for name, histogram in histograms.items():
            events[name].histogram = histogram
        return block


def merged_backward(
    shards: Sequence[Sequence[diagnostics_pb2.BackwardBlock]],
) -> diagnostics_pb2.BackwardBlock | None:
    """The reverse pass of all servers, as one block; None where they sent none."""
    if not any(shards):
        return None
    largest, nonfinite, exponents = [], [], []
    for blocks in shards:
        ordered = sorted(blocks, key=lambda b: b.first_step)
        largest.append(np.array([x for b in ordered for x in b.largest], np.float64))
        nonfinite.append(np.array([x for b in ordered for x in b.nonfinite], np.uint64))
        data = b"".join(b.exponents for b in ordered)
        exponents.append(_grid(data, "<u8", EXPONENT_BUCKETS))
    most = largest[0]
    for other in largest[1:]:
        most = larger(most, other)
    merged = diagnostics_pb2.BackwardBlock(
        first_step=0,
        steps=len(most),
        largest=most.tolist(),
        nonfinite=np.stack(nonfinite).sum(axis=0).tolist(),
        exponents=np.sum(exponents, axis=0, dtype="<u8").tobytes(),
    )
    add_ranges((block for blocks in shards for block in blocks), merged)
    return merged
