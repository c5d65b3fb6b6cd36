"""Edits a program that is already written: finds what reads a value, and puts another in its place."""

from __future__ import annotations

from typing import Any, Iterable, Iterator

from simgrad.v1 import program_pb2


def operations(region: program_pb2.Region) -> Iterator[program_pb2.Op]:
    """Those of a region and of the regions inside."""
    for op in region.ops:
        yield op
        for inner in op.regions:
            yield from operations(inner)


def values_read(region: program_pb2.Region) -> set[int]:
    """Values that a region reads or yields, in the regions inside too."""
    return {x for op in operations(region) for x in _read_by(op)} | set(region.yields)


def depending_on(ops: Iterable[program_pb2.Op], sources: Iterable[int]) -> set[int]:
    """The sources, and all results of these operations that depend on one of them."""
    found = set(sources)
    for op in ops:
        if not found.isdisjoint(_all_read_by(op)):
            found.update(op.results)
    return found


def needed_for(ops: Iterable[program_pb2.Op], wanted: Iterable[int]) -> list[int]:
    """The places of the operations that these values are computed by, ascending."""
    values, places = set(wanted), []
    for place, op in reversed(list(enumerate(ops))):
        if not values.isdisjoint(op.results):
            places.append(place)
            values |= _all_read_by(op)
    return places[::-1]


def first_reader(ops: Iterable[program_pb2.Op], values: set[int]) -> int:
    """The place of the first operation that reads one of these values; behind the last if none does."""
    place = -1
    for place, op in enumerate(ops):
        if not values.isdisjoint(_all_read_by(op)):
            return place
    return place + 1


def replace_value(region: program_pb2.Region, old: int, new: int) -> None:
    """Reads `new` wherever the region, or one inside, reads `old`."""
    for op in operations(region):
        _replace(op.operands, old, new)
        for inner in op.regions:
            _replace(inner.yields, old, new)
    _replace(region.yields, old, new)


def _read_by(op: program_pb2.Op) -> set[int]:
    return set(op.operands).union(*(inner.yields for inner in op.regions))


def _all_read_by(op: program_pb2.Op) -> set[int]:
    return _read_by(op).union(*(values_read(inner) for inner in op.regions))


def _replace(values: Any, old: int, new: int) -> None:  # a repeated field
    for place, value in enumerate(values):
        if value == old:
            values[place] = new
