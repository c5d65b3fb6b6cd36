"""The arithmetic of several servers, as of one: rows by operation, whose counts add."""

from __future__ import annotations

from typing import Iterable

from simgrad.arithmetic import COUNTS
from simgrad.v1 import diagnostics_pb2, policy_pb2

MOST_OPERATIONS = 256  # that a server tells, as sim/diagnostics/arithmetic.h has it


def merged_arithmetic(
    answers: Iterable[Iterable[diagnostics_pb2.Arithmetic]], policy: policy_pb2.ResolvedPolicy
) -> list[diagnostics_pb2.Arithmetic]:
    """The rows of one pass: counts add, and rows stand in the order of sim/diagnostics/arithmetic.cc. A program with more
    operations than a server tells may lack here those of a shard in which they lost little: roles are whole."""
    places = {role.role: place for place, role in enumerate(policy.roles)}
    sums: dict[tuple[int, str, str, str], diagnostics_pb2.Arithmetic] = {}
    for row in (row for rows in answers for row in rows):
        key = (places.get(row.role, len(places)), row.operation, row.label, row.site)
        known = sums.get(key)
        if known is None:
            sums[key] = diagnostics_pb2.Arithmetic()
            sums[key].CopyFrom(row)
            continue
        for name in COUNTS:
            setattr(known, name, getattr(known, name) + getattr(row, name))
    in_order = [sums[key] for key in sorted(sums)]
    roles = [row for row in in_order if not row.operation]
    operations = [row for row in in_order if row.operation]
    operations.sort(key=_lost, reverse=True)  # rows of as many losses stay in order
    return roles + operations[:MOST_OPERATIONS]


def _lost(row: diagnostics_pb2.Arithmetic) -> int:
    return row.underflows + row.overflows + row.absorbed
