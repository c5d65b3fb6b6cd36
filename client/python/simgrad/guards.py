"""Finds the guards of a program, which no answer reports at the level decisions: the server's rule (sim/program/name_tests.h).

A guard is a comparison of reals with zero, a number of at most 1e-5 or an infinity, that no loop's test hangs on, and that
only selects and conversions to reals read.
"""

from __future__ import annotations

import collections
from typing import Sequence

from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import ELEMENT_TYPE_REAL

COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
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
        self._read(program.step)
        self._elsewhere.update(x.value for x in program.exports)
        self._ending = self._reached(self._predicates)

    def has(self, op: program_pb2.Op) -> bool:
        """Whether a comparison of reals is a guard. One that declares its kind is what it says."""
        if op.test_kind:
            return op.test_kind == "guard"
        [result] = op.results
        weighs = result in self._chosen_by and result not in self._elsewhere
        return weighs and result not in self._ending and not self._of_guards.isdisjoint(op.operands)

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
            self._flow_through(op)
            for nested in op.regions:
                self._read(nested)
        self._elsewhere.update(region.yields)

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

    def _reached(self, roots: Sequence[int]) -> set[int]:
        """The integers and bools that these are made of; themselves among them."""
        found: set[int] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value not in found and not self._is_real(value):
                found.add(value)
                stack += self._behind[value]
        return found
