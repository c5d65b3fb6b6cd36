"""Finds the line of the user's file that wrote a part of a program: the labels of its operations."""

from __future__ import annotations

import re
from typing import Any, Iterator

from simgrad import errors
from simgrad.guards import COMPARISONS, Guards
from simgrad.v1 import program_pb2

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
    spec, prefix = (message.spec, "spec.") if hasattr(message, "spec") else (message, "")
    field = f"{prefix}world.program."
    if not error.field.startswith(field):
        return
    line = line_of(spec.world.program, error.field[len(field) :])
    if line:
        error.line = line
        error.args = (f"{line}: {error}",)


def site_lines(program: program_pb2.Program) -> dict[str, str]:
    """The line of each site: loops, events, accepted steps, comparisons with a name, and choices of the largest, of an
    order and of pivots. Whether a conversion counts, only the flow of data says: it has no line, nor has what stands
    behind it under its name. A comparison that the level does not report has the line of its name where no other has it."""
    lines: dict[str, str] = {}
    unreported: dict[str, str] = {}
    seen: dict[str, int] = {}
    unsure = set()
    guards = Guards(program)
    for op in _ops_of(program.step, with_vjps=False):
        name = op.decision_site or _choice_name(program, op)
        if name and op.code in COMPARISONS and not _is_reported(program, guards, op):
            unreported.setdefault(name, op.label)
        elif name and name not in unsure:
            before = seen.get(name, 0)
            seen[name] = before + 1
            lines[f"{name}#{before}" if before else name] = op.label
        elif op.code == "convert" and _may_choose(program, op):
            unsure.add(op.site)
    return {**unreported, **lines}


def guard_lines(program: program_pb2.Program) -> list[str]:
    """The lines of the guards that no signature holds, one for each guard: those of a program of level decisions."""
    if program.level != "decisions":
        return []
    guards = Guards(program)
    compared = (op for op in _ops_of(program.step, with_vjps=False) if op.code in COMPARISONS)
    of_reals = (op for op in compared if program.values[op.operands[0]].element == program_pb2.ELEMENT_TYPE_REAL)
    return [op.label for op in of_reals if guards.has(op)]


def _is_reported(program: program_pb2.Program, guards: Guards, op: program_pb2.Op) -> bool:
    """Whether the program's level makes an event of a comparison with a name. It makes none of integers."""
    if program.values[op.operands[0]].element != program_pb2.ELEMENT_TYPE_REAL:
        return False
    return program.level == "all" or (program.level == "decisions" and not guards.has(op))


# The server's names of choices that have no site (sim/program/choices.h).
_CHOICES = {**{code: code for code in ("argmax", "argmin", "argsort", "cholesky")}, "lu_permutation": "lu", "solve": "lu"}


def _choice_name(program: program_pb2.Program, op: program_pb2.Op) -> str:
    """Lines of operations that choose by reals, in a program whose level counts choices; conversions need the flow of data, and have none."""
    if op.code not in _CHOICES or program.level not in ("decisions", "all"):
        return ""
    operands = [program.values[k] for k in op.operands]
    by_reals = any(x.element == program_pb2.ELEMENT_TYPE_REAL for x in operands)
    several = not op.axes or operands[0].shape[op.axes[0]] > 1
    return (op.site or _CHOICES[op.code]) if by_reals and several else ""


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
    """Those of a region, each before its own regions. The second of a `call` is a vjp, which has no sites."""
    for op in region.ops:
        yield op
        of_call = op.code == "call" and not with_vjps
        for nested in op.regions[:1] if of_call else op.regions:
            yield from _ops_of(nested, with_vjps)
