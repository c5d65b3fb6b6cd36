"""Finds the line of the user's file that wrote a part of a program: the labels of its operations."""

from __future__ import annotations

import re
from typing import Any, Iterator, Sequence

from simgrad import errors, named_programs
from simgrad.guards import COMPARISONS, Guards
from simgrad.v1 import program_pb2
from simgrad.variants import parts_with_world

_PART = re.compile(r"(\w+)(?:\[(\d+)\])?")
_VALUE = re.compile(r"values\[(\d+)\]")


def line_of(program: program_pb2.Program, path: str) -> str:
    """The label of the innermost operation of a path such as "step.ops[3].operands[0]", or of the
    one that gives "values[7]"; empty where there is none."""
    value = _VALUE.match(path)
    if value is not None:
        return next((op.label for op in operations(program) if int(value[1]) in op.results), "")
    line, at = "", program
    for name, index in _PART.findall(path):
        try:
            part: Any = getattr(at, name)
            at = part[int(index)] if index else part
        except (AttributeError, IndexError, TypeError):
            break
        line = getattr(at, "label", "") or line
    return line


def add_line(error: errors.SimgradError, message: Any) -> None:
    """Adds the line of the user's file to an error that names a field of the request's program."""
    for prefix, part in parts_with_world(message):
        field = f"{prefix}world.program."
        is_there = error.field.startswith(field)
        line = line_of(named_programs.program_of(part.world), error.field[len(field) :]) if is_there else ""
        if line:
            error.line = line
            error.args = (f"{line}: {error}",)


def site_lines(program: program_pb2.Program) -> dict[str, str]:
    """The line of each site: loops, events, accepted steps, comparisons with a name, and choices of the largest, of an
    order, of pivots and of whole numbers. A comparison that the level does not report has the line of its name where no
    other has it."""
    lines: dict[str, str] = {}
    unreported: dict[str, str] = {}
    seen: dict[str, int] = {}
    guards = Guards(program)
    for op in _ops_of(program.step, with_vjps=False):
        name = op.decision_site or _choice_name(program, guards, op)
        if name and op.code in COMPARISONS and not _is_reported(program, guards, op):
            unreported.setdefault(name, op.label)
        elif name:
            before = seen.get(name, 0)
            seen[name] = before + 1
            lines[f"{name}#{before}" if before else name] = op.label
    return {**unreported, **lines, **_initial_lines(program)}


def _initial_lines(program: program_pb2.Program) -> dict[str, str]:
    """The line of each comparison of reals in `initial`, which has no site, by its name in a path."""
    lines: dict[str, str] = {}
    seen: dict[str, int] = {}
    for op in _ops_of(program.initial, with_vjps=False):
        if op.code in COMPARISONS and _is_of_reals(program, op):
            name = f"initial.{op.site or op.code}"
            before = seen.get(name, 0)
            seen[name] = before + 1
            lines[f"{name}#{before}" if before else name] = op.label
    return lines


def unsigned_lines(program: program_pb2.Program) -> tuple[list[str], list[str]]:
    """The lines of what decides by reals in `step` and is in no signature, one for each: of guards, and of the rest.
    The level leaves out comparisons and choices; no level counts `is_finite`, nor the pivots of an `lu` alone."""
    guards, alone = Guards(program), _lone_factors(program)
    of_guards, of_others = [], []
    for op in _ops_of(program.step, with_vjps=False):
        if op.code in COMPARISONS:
            if not _is_of_reals(program, op) or _is_reported(program, guards, op):
                continue
            if guards.has(op):
                of_guards.append(op.label)
            elif guards.decides(op):
                of_others.append(op.label)
        elif _is_unsigned_choice(program, guards, op) or not alone.isdisjoint(op.results):
            of_others.append(op.label)
    return of_guards, of_others


def _lone_factors(program: program_pb2.Program) -> set[int]:
    """The factors whose pivots no `lu_permutation` beside them tells: the first of each matrix."""
    found: set[int] = set()
    for region in _regions_of(program.step, with_vjps=False):
        told = {op.operands[0] for op in region.ops if op.code == "lu_permutation" and len(op.operands) == 1}
        for op in region.ops:
            if op.code == "lu" and len(op.operands) == 1 and op.operands[0] not in told and _has_rivals(program, op):
                told.add(op.operands[0])
                found.update(op.results)
    return found


def _is_unsigned_choice(program: program_pb2.Program, guards: Guards, op: program_pb2.Op) -> bool:
    """Whether it chooses by reals, decides, and is in no signature."""
    if op.code == "is_finite":
        return guards.decides(op)
    if program.level in ("decisions", "all"):
        return False  # each that decides is in them
    if op.code in ("solve", "lu_permutation"):
        return _has_rivals(program, op)
    if op.code == "cholesky":
        return True
    if op.code in ("argmax", "argmin", "argsort"):
        return _chooses_places(program, op) and guards.decides(op)
    return op.code == "convert" and _may_choose(program, op) and guards.decides(op)


def _is_of_reals(program: program_pb2.Program, op: program_pb2.Op) -> bool:
    return program.values[op.operands[0]].element == program_pb2.ELEMENT_TYPE_REAL


def _has_rivals(program: program_pb2.Program, op: program_pb2.Op) -> bool:
    """Whether a pivot is one of several rows."""
    return program.values[op.operands[0]].shape[0] > 1


def _is_reported(program: program_pb2.Program, guards: Guards, op: program_pb2.Op) -> bool:
    """Whether the program's level makes an event of a comparison with a name. It makes none of integers."""
    if not _is_of_reals(program, op):
        return False
    return program.level == "all" or (program.level == "decisions" and not guards.has(op))


# The server's names of choices that have no site (sim/program/choices.h).
_CHOICES = {**{code: code for code in ("argmax", "argmin", "argsort", "cholesky")}, "lu_permutation": "lu", "solve": "lu"}


def _choice_name(program: program_pb2.Program, guards: Guards, op: program_pb2.Op) -> str:
    """The name of an operation that chooses by reals, in a program whose level counts choices; else none."""
    if program.level not in ("decisions", "all"):
        return ""
    if op.code == "convert" and _may_choose(program, op) and guards.is_chosen(op):
        return op.site or op.code
    if op.code not in _CHOICES:
        return ""
    return (op.site or _CHOICES[op.code]) if _chooses_places(program, op) else ""


def _chooses_places(program: program_pb2.Program, op: program_pb2.Op) -> bool:
    """Whether it is of reals, and of several along its axis."""
    operands = [program.values[k] for k in op.operands]
    by_reals = any(x.element == program_pb2.ELEMENT_TYPE_REAL for x in operands)
    return by_reals and (not op.axes or operands[0].shape[op.axes[0]] > 1)


def _may_choose(program: program_pb2.Program, op: program_pb2.Op) -> bool:
    """Whether it makes integers or bools of reals."""
    before, after = (program.values[ids[0]].element for ids in (op.operands, op.results))
    return before == program_pb2.ELEMENT_TYPE_REAL and after != program_pb2.ELEMENT_TYPE_REAL


def operations(program: program_pb2.Program) -> Iterator[program_pb2.Op]:
    """All operations of a program in the order of its text."""
    yield from _ops_of(program.initial)
    yield from _ops_of(program.step)
    for objective in program.objectives:
        yield from _ops_of(objective.stage)
        yield from _ops_of(objective.terminal)


def _ops_of(region: program_pb2.Region, with_vjps: bool = True) -> Iterator[program_pb2.Op]:
    """Those of a region, each before its own regions."""
    for op in region.ops:
        yield op
        for nested in _nested(op, with_vjps):
            yield from _ops_of(nested, with_vjps)


def _regions_of(region: program_pb2.Region, with_vjps: bool = True) -> Iterator[program_pb2.Region]:
    """A region, and those within it."""
    yield region
    for op in region.ops:
        for nested in _nested(op, with_vjps):
            yield from _regions_of(nested, with_vjps)


def _nested(op: program_pb2.Op, with_vjps: bool) -> Sequence[program_pb2.Region]:
    """The regions of an operation. The second of a `call` is a vjp, which has no sites."""
    return op.regions[:1] if op.code == "call" and not with_vjps else op.regions
