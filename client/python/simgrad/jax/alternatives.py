"""Integers that can be told beforehand: those of constants that a step chooses among, as the codes of an enumeration are."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from simgrad.jax.fold import ELEMENTS_OF
from simgrad.jax.graph import Graph
from simgrad.jax.node import BOOL, Node, Scope, Value, taken_from
from simgrad.jax.ranges import Range

_ONE_OF_THEIRS = ELEMENTS_OF | {"max", "min", "reduce_max", "reduce_min"}
_DEEPEST = 4  # tables whose places are read from tables


def integers_of(graph: Graph, x: Value) -> set[int] | None:
    """All integers that elements of x may be, and others that cannot come about. None: they are not known."""
    return _integers(graph, x, {}, _DEEPEST)


def _integers(graph: Graph, x: Value, owners: dict[Scope, Node], depth: int) -> set[int] | None:
    found: set[int] = set()
    seen: set[Node] = set()
    stack: list[Value] = [x]
    while stack:
        y = graph.value(stack.pop())
        if y.dtype.kind not in "iu":
            return None
        if not isinstance(y, Node):
            found.update(map(int, np.unique(y)))
        elif y not in seen:
            seen.add(y)
            read = _read(graph, y, owners, depth)
            sources = _sources(y, owners) if read is None else [read]
            if sources is None:
                return None
            stack += sources
    if not found:
        return None
    whole = Range(min(found), max(found))
    return found if all(whole.inside(Range.of_dtype(y.dtype)) for y in seen) else None  # else a conversion may wrap


def _read(graph: Graph, x: Node, owners: dict[Scope, Node], depth: int) -> np.ndarray | None:
    """The numbers of a known table that x may be, by the places that it reads; None: it is none, or they are not known."""
    is_element = x.op == "gather" or (x.op == "dynamic_slice" and x.shape == (1,))
    table = graph.value(x.operands[0]) if is_element else x
    if isinstance(table, Node) or table.ndim != 1 or not depth:
        return None
    places = _integers(graph, x.operands[1], owners, depth - 1)
    return None if places is None else table[np.clip(sorted(places), 0, len(table) - 1)]


def _sources(x: Node, owners: dict[Scope, Node]) -> Sequence[Value] | None:
    """Values that x has its integers from, each of them one of theirs; None: it makes others. `owners` are the loops and
    branches around what was found."""
    if x.op == "convert" and x.operands[0].dtype == BOOL:
        return [np.arange(2)]
    if x.op == "convert":
        return x.operands
    if x.op in _ONE_OF_THEIRS:
        return None if x.attributes.get("fill") is not None else taken_from(x)
    if x.op == "result":
        owner, place = x.operands[0], x.attributes["index"]
        owners.update(dict.fromkeys(owner.regions, owner))
        return _carried(owner, place)
    loop = owners.get(x.attributes["of"]) if x.op == "argument" else None
    if loop is None:
        return None
    carried, index = loop.attributes["carried"], x.attributes["index"]
    if x.attributes["kind"] == "carry":
        return _carried(loop, carried.index(index))
    return [loop.operands[len(carried) + index]]


def _carried(owner: Node, place: int) -> Sequence[Value] | None:
    """Values that a result of a loop, at its start and behind a turn, or of a branch is one of; None: it is another's."""
    if owner.op == "cond":
        return [region.results[place] for region in owner.regions]
    if owner.op not in ("while", "for"):
        return None
    first = owner.operands[place : place + 1] if place < len(owner.attributes["carried"]) else ()
    return [*first, owner.regions[-1].results[place]]
