"""Finds the guards of a program, which no answer reports at the level decisions: the server's rule (sim/program/name_tests.h).

A guard is a comparison of reals with zero, a number of at most 1e-5 or an infinity, that no loop's test hangs on, and that
only selects and conversions to reals read.
"""

from __future__ import annotations

import collections
import functools
from typing import Container, Iterable, Sequence

from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import ELEMENT_TYPE_REAL

COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
# Operations whose regions say what their results are made of.
_WITH_REGIONS = frozenset(("while", "for", "cond", "call"))
_SMALLEST = 1e-5  # the largest number that a guard compares with, other than an infinity


class Guards:
    """The guards of a program's step. Cost: linear."""

    def __init__(self, program: program_pb2.Program):
        self._program = program
        self._behind: dict[int, list[int]] = collections.defaultdict(list)  # what integers and bools are made of
        self._predicates: list[int] = []
        self._chosen_by: set[int] = set()  # conditions of selects, and what becomes a real
        self._elsewhere: set[int] = set()  # operands in other places
        self._of_guards: set[int] = set()  # numbers that guards compare with
        self._choosing: list[int] = []  # integers and bools that choose numbers, or are states
        self._weighing: list[int] = []  # those that become reals
        self._of_sites: set[int] = set()  # outcomes of events and choices
        self._read(program.step)
        exported = [x.value for x in program.exports]
        self._elsewhere.update(exported)
        self._choosing += program.step.yields
        self._told = exported
        self._ending = self._reached(self._predicates)

    def has(self, op: program_pb2.Op) -> bool:
        """Whether a comparison of reals is a guard. One that declares its kind is what it says."""
        if op.test_kind:
            return op.test_kind == "guard"
        [result] = op.results
        weighs = result in self._chosen_by and result not in self._elsewhere
        return weighs and result not in self._ending and not self._of_guards.isdisjoint(op.operands)

    def decides(self, op: program_pb2.Op) -> bool:
        """Whether the outcome of an operation that makes integers or bools of reals chooses a number, is of a state, is
        told, or ends an instance; of a comparison also whether it becomes a real. An outcome that only stops a loop, or
        goes into an event or a choice, does not: what the loop or the site decides says it."""
        found = self._chooses if op.code == "convert" else self._chooses | self._weighs
        return not found.isdisjoint(op.results)

    def is_chosen(self, op: program_pb2.Op) -> bool:
        """Whether a conversion of reals to integers or bools is a site, at levels that count choices: where its outcome
        chooses a number, is of a state, ends an instance or stops a loop."""
        return not (self._chooses_numbers | self._ending).isdisjoint(op.results)

    @functools.cached_property
    def _chooses(self) -> set[int]:
        return self._chooses_numbers | self._reached(self._told, self._of_sites)

    @functools.cached_property
    def _chooses_numbers(self) -> set[int]:
        return self._reached(self._choosing, self._of_sites)

    @functools.cached_property
    def _weighs(self) -> set[int]:
        return self._reached(self._weighing, self._of_sites)

    def _is_real(self, value: int) -> bool:
        return self._program.values[value].element == ELEMENT_TYPE_REAL

    def _read(self, region: program_pb2.Region) -> None:
        for op in region.ops:
            if op.code == "literal" and all(abs(x) <= _SMALLEST or abs(x) == float("inf") for x in op.literal):
                self._of_guards.update(op.results)
            elif op.code == "broadcast" and op.operands[0] in self._of_guards:
                self._of_guards.update(op.results)
            weighs = op.code == "convert" and self._is_real(op.results[0])
            for place, value in enumerate(op.operands):
                chooses = weighs or (op.code == "select" and place == 0)
                (self._chosen_by if chooses else self._elsewhere).add(value)
            self._read_choices(op, weighs)
            self._flow_through(op)
            for nested in op.regions:
                self._read(nested)
        self._elsewhere.update(region.yields)

    def _read_choices(self, op: program_pb2.Op, weighs: bool) -> None:
        """Notes the integers and bools by which an operation gives its numbers."""
        if op.code in ("event", "choice"):
            self._of_sites.update(op.results)
        elif weighs:
            self._weighing += op.operands
        elif op.code == "cond":
            self._choosing += op.operands[:1]
        elif op.code not in _WITH_REGIONS and (op.code == "halt" or any(map(self._is_real, op.results))):
            self._choosing += op.operands

    def _flow_through(self, op: program_pb2.Op) -> None:
        if op.code == "while":
            self._flow_through_while(op)
        elif op.code == "for":
            self._flow_through_for(op)
        elif op.code == "cond":
            for region in op.regions:
                self._flow(op.operands[1:], region.args)
                self._flow(region.yields, op.results)
            self._all_of(op.operands[:1], op.results)
        elif op.code == "call":
            body = op.regions[0]
            self._flow(op.operands, body.args)
            self._flow(body.yields, op.results)
        elif op.code != "choice":  # the pair that it compares says how far it is from another one
            self._all_of(op.operands, op.results)

    def _flow_through_while(self, op: program_pb2.Op) -> None:
        test, body = op.regions
        c = op.carried
        exports = test.yields[1 if op.predicate else 3 if op.has_entry else 2 :]
        if op.predicate:
            self._predicates.append(test.yields[0])
            self._all_of(test.yields[:1], op.results)
        self._flow(op.operands, test.args)
        self._flow(op.operands, [*body.args[:c], *body.args[c + len(exports) :]])
        for to in (test.args, body.args, op.results):
            self._flow(body.yields, to[:c])
        self._flow(test.args[:c], op.results)
        self._flow(op.operands[:c], op.results)
        self._flow(exports, body.args[c:])
        self._flow(exports, op.results[c:])

    def _flow_through_for(self, op: program_pb2.Op) -> None:
        [body] = op.regions
        self._flow(op.operands, body.args[1:])
        self._flow(body.yields, op.results)
        self._flow(body.yields[: op.carried], body.args[1:])
        self._flow(op.operands[: op.carried], op.results)

    def _flow(self, sources: Sequence[int], results: Sequence[int]) -> None:
        """Each result is made of the source in its place."""
        for source, result in zip(sources, results):
            self._behind[result].append(source)

    def _all_of(self, sources: Sequence[int], results: Sequence[int]) -> None:
        """Each result is made of all sources."""
        for result in results:
            self._behind[result] += sources

    def _reached(self, roots: Iterable[int], ends: Container[int] = ()) -> set[int]:
        """The integers and bools that these are made of; themselves among them, but for `ends` and what is behind those."""
        found: set[int] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value not in found and value not in ends and not self._is_real(value):
                found.add(value)
                stack += self._behind[value]
        return found
