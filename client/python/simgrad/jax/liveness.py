"""Finds the nodes of a graph that some of its outputs need, and the results of loops."""

from __future__ import annotations

import collections
from typing import Iterable

from simgrad.jax.node import CONTROL, Node, Scope, Value


class Live:
    """The nodes that some outputs need.

    Attributes:
      nodes: in an order in which operands come first.
      inside: of these, those written in each scope.
      results: of a node with several results, the places that are needed. A `for` makes a turn at least, so the first value
        of what it carries is needed where a turn reads it, and only there.
      owner: the loop or branch that a scope is a region of.
    """

    def __init__(self, outputs: Iterable[Value]):
        self.owner: dict[Scope, Node] = {}
        self.results: dict[Node, set[int]] = collections.defaultdict(set)
        self.inside: dict[Scope, list[Node]] = collections.defaultdict(list)
        self._seen: set[Node] = set()
        self._waiting: dict[Scope, list[Node]] = collections.defaultdict(list)
        self._stack = [x for x in outputs if isinstance(x, Node)]
        while self._stack:
            self._reach(self._stack.pop())
        self.nodes = sorted(self._seen, key=lambda x: x.number)
        for x in self.nodes:
            self.inside[x.scope].append(x)

    def __contains__(self, x: Node) -> bool:
        return x in self._seen

    @property
    def inputs(self) -> list[Node]:
        return [x for x in self.nodes if x.op == "input"]

    def _reach(self, x: Node) -> None:
        if x in self._seen:
            return
        self._seen.add(x)
        if x.op == "result":
            self._reach_result(x.operands[0], x.attributes["index"])
        elif x.op == "argument":
            if x.attributes["of"] in self.owner:
                self._reach_argument(x)
            else:
                self._waiting[x.attributes["of"]].append(x)
        elif x.op not in CONTROL:
            self._stack.extend(x.operands)

    def _reach_argument(self, x: Node) -> None:
        """Reaches the values behind an argument: the carried value, first and following, or the scanned array."""
        loop, index = self.owner[x.attributes["of"]], x.attributes["index"]
        carried = loop.attributes["carried"]
        if x.attributes["kind"] == "carry":
            self._reach_result(loop, carried.index(index))
            self._stack.append(loop.operands[carried.index(index)])
        else:
            self._stack.append(loop.operands[len(carried) + index])

    def _reach_result(self, loop: Node, place: int) -> None:
        if loop not in self._seen:
            self._open(loop)
        if place in self.results[loop]:
            return
        self.results[loop].add(place)
        if loop.op == "cond":
            self._stack.extend(region.results[place] for region in loop.regions)
        elif loop.op in CONTROL:
            self._stack.append(loop.regions[-1].results[place])
            if loop.op == "while":  # it may make no turn
                self._stack.append(loop.operands[place])

    def _open(self, loop: Node) -> None:
        self._seen.add(loop)
        for region in loop.regions:
            self.owner[region] = loop
        if loop.op == "while":
            self._stack.extend(loop.regions[0].results)
        elif loop.op == "cond":
            self._stack.append(loop.operands[0])
        elif loop.op not in CONTROL:
            self._stack.extend(loop.operands)
        for region in loop.regions:
            for x in self._waiting.pop(region, []):
                self._reach_argument(x)
