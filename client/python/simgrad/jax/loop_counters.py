"""Counters of loops: how often a loop turns at most, and the ranges of what each turn changes by one number."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Sequence

import numpy as np

from simgrad.jax.graph import Graph
from simgrad.jax.node import BOOL, Node, Scope, Value
from simgrad.jax.ranges import Range

# Whether each value that a loop carries keeps its first value, and so need not be carried.
Fixed = list[bool]


@dataclasses.dataclass
class Body:
    """A body as it was lowered: what varies, and what it gives for each carried value."""

    scope: Scope
    fixed: Fixed
    arguments: list[Value]
    results: list[Value]

    @property
    def varying(self) -> list[int]:
        return [k for k, fixed in enumerate(self.fixed) if not fixed]


MOST_TURNS = 100_000  # of a loop on a server (sim/program/verify.h)
BEYOND_TURNS = 2**24  # turns that no loop has


class Bound(NamedTuple):
    """How often a loop turns at most, as one of its tests says; `is_exact`: as often as that. Behind that many turns the test
    fails, and were the loop to go on, it would fail up to turn `reach`."""

    turns: int
    is_exact: bool
    reach: int


class _Counts(NamedTuple):
    """By how much a turn changes a counter; `exact`: the numbers that it changes so, others wrap."""

    step: int
    exact: Range


def ranges_of_counters(graph: Graph, body: Body, initial: Sequence[Value], turns: int) -> dict[int, Range]:
    """The ranges of carried integers that each turn changes by one number, and that do not wrap in so many turns, by
    their places."""
    found = {}
    for k in body.varying:
        counts = _step(graph, body, k, False) if initial[k].dtype.kind in "iu" else None
        if counts is not None:
            (least, most), step = graph.ranges.of(initial[k]), counts.step
            passed = Range(least + min(step, 0) * turns, most + max(step, 0) * turns)
            if passed.inside(counts.exact):
                found[k] = passed
    return found


def conjuncts(x: Node, held: bool = True, is_batched: bool = False) -> list[tuple[Node, bool]]:
    """Tests that must all come out as said for x to be as `held` says; of a loop that is batched, in one element at
    least."""
    if x.op == "not":
        return conjuncts(x.operands[0], not held, is_batched)
    if x.op == ("and" if held else "or"):
        return [leaf for y in x.operands for leaf in conjuncts(y, held, is_batched)]
    if x.op in ("reshape", "convert") and x.operands[0].dtype == BOOL:
        return conjuncts(x.operands[0], held, is_batched)
    if x.op == "any" and held and is_batched:
        return conjuncts(x.operands[0], held, is_batched)
    return [(x, held)]


_WHERE_TRUE = {code: code for code in ("lt", "le", "gt", "ge", "ne", "eq")}
_WHERE_FALSE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne", "eq": "eq"}


def bound_of(
    graph: Graph, leaf: tuple[Node, bool], tested: Scope, initial: Sequence[Value], body: Body, is_batched: bool
) -> Bound | None:
    """How often a loop may turn while a test holds that compares a counter with a number, or with an integer whose range
    ends it soon, or one of several such tests. Of one that is batched, as often as the element that turns most. None: it is
    not known, as where the counter wraps, or a conversion changes it."""
    test, held = leaf
    if test.op == ("or" if held else "and"):
        parts = [conjuncts(x, held, is_batched) for x in test.operands]
        return _of_either([[bound_of(graph, x, tested, initial, body, is_batched) for x in side] for side in parts])
    code = (_WHERE_TRUE if held else _WHERE_FALSE).get(test.op)
    if code is None or len(test.operands) != 2 or test.operands[0].dtype.kind not in "iu":
        return None
    sides = [_through(x) for x in test.operands]
    compared = sides[0][1].common(sides[1][1])
    left, right = (_one_number(graph.value(x), is_batched) for x, _ in sides)
    for counter, limit, way in ((left, right, code), (right, left, _MIRRORED[code])):
        if isinstance(counter, Node) and _is_carried(counter, tested) and (is_batched or not counter.shape):
            k = counter.attributes["index"]
            counts = _step(graph, body, k, is_batched)
            if counts is not None:
                counts = _Counts(counts.step, compared.common(counts.exact))
                return _turns_between(graph, way, _one_number(initial[k], is_batched), limit, counts)
    return None


def _of_either(sides: Sequence[Sequence[Bound | None]]) -> Bound | None:
    """The bound of a loop that goes on while one of several sides holds, by the bounds of the parts of each: all sides must
    fail at one turn. One that fails at its last turn alone, as a counter does that is unlike a number, may hold again."""
    ends = [min(filter(None, side), key=lambda end: (end.turns, -end.reach), default=None) for side in sides]
    known = [end for end in ends if end is not None]
    turns, reach = max(end.turns for end in known) if known else 0, min((end.reach for end in known), default=0)
    return Bound(turns, False, reach) if len(known) == len(sides) and turns <= reach else None


def _is_carried(x: Node, tested: Scope) -> bool:
    """Whether it is what a loop carries, in its test."""
    return x.op == "argument" and x.attributes["kind"] == "carry" and x.attributes["of"] is tested


def _turns_between(graph: Graph, code: str, start: Value, limit: Value, counts: _Counts) -> Bound | None:
    """How often a counter turns from `start` while the comparison with the limit holds; None: it is not known."""
    is_rising = counts.step > 0
    if code == "eq":  # it is not equal where it has passed
        found = _turns_between(graph, "le" if is_rising else "ge", start, limit, counts)
        return found and found._replace(is_exact=False)
    if not isinstance(start, Node) and not isinstance(limit, Node):
        turns = [_turns(code, int(s), int(e), counts.step, counts.exact) for s, e in np.broadcast(start, limit)]
        ends = [n for n in turns if n is not None]
        if len(ends) < len(turns):
            return None
        reaches = ends if code == "ne" else [_reach(int(s), counts) for s in np.ravel(start)]
        return Bound(max(ends, default=0), True, min(reaches, default=0))
    starts, limits = graph.ranges.of(start), graph.ranges.of(limit)
    first, last = (starts.least, limits.most) if is_rising else (starts.most, limits.least)
    passed = last + counts.step - (0 if code in ("le", "ge") else 1 if is_rising else -1)
    if code == "ne" or not all(
        x.inside(counts.exact) for x in (starts, limits, Range(passed, passed))
    ):
        return None
    most = _turns(code, first, last, counts.step, counts.exact)
    if most is None or most > BEYOND_TURNS:
        return None
    return Bound(most, False, min(_reach(n, counts) for n in starts))


def _reach(start: int, counts: _Counts) -> int:
    """How often a counter may turn before it is one that does not count exactly."""
    end = counts.exact.most if counts.step > 0 else counts.exact.least
    return (end - start) // counts.step


def _turns(code: str, start: int, limit: int, step: int, exact: Range) -> int | None:
    """How often a counter turns, from `start` by `step` while the comparison with the limit holds; None: without end, or
    through numbers that are not counted exactly."""
    distance = limit - start
    if code in ("le", "ge"):
        distance += 1 if code == "le" else -1
    rising = code in ("lt", "le") or (code == "ne" and distance >= 0)
    if (step > 0) != rising or (code == "ne" and distance % step):
        return None
    turns = max(0, -(-distance // step))
    end = start + turns * step
    return turns if Range(min(start, end), max(start, end)).inside(exact) else None


def _one_number(x: Value, is_batched: bool) -> Value:
    """A constant array of one number as that number, and a counter that stands for all elements."""
    if not is_batched:
        return x
    if not isinstance(x, Node):
        return np.asarray(x.flat[0]) if x.size and (x == x.flat[0]).all() else x
    while x.op in ("broadcast", "reshape"):
        x = x.operands[0]
    return x


def _through(x: Node) -> tuple[Node, Range]:
    """The integer behind conversions of x, and the numbers that all of them leave as they are."""
    exact = Range.of_dtype(x.dtype)
    while x.op == "convert" and x.operands[0].dtype.kind in "iu":
        x = x.operands[0]
        exact = exact.common(Range.of_dtype(x.dtype))
    return x, exact


def _step(graph: Graph, body: Body, k: int, is_batched: bool) -> _Counts | None:
    """The change of a counter by the body, a constant that is not 0; of a loop that is batched in the elements that go
    on, where others keep theirs."""
    result = body.results[k]
    if not isinstance(result, Node) or result.dtype.kind not in "iu":
        return None
    changed, exact = _through(result)
    if is_batched and changed.op == "select":
        (changed, inner), (kept, of_kept) = (_through(x) for x in changed.operands[1:])
        if kept is not body.arguments[k]:
            return None
        exact = exact.common(inner).common(of_kept)
    if changed.op not in ("add", "sub"):
        return None
    numbers = [_one_number(graph.value(x), is_batched) for x in changed.operands]
    for mine, other in ((0, 1), (1, 0)):
        part, inner = _through(changed.operands[mine])
        number = numbers[other]
        if part is body.arguments[k] and not isinstance(number, Node) and not number.shape:
            if changed.op == "sub" and mine == 1:
                return None
            step = int(number) if changed.op == "add" else -int(number)
            return _Counts(step, exact.common(inner)) if step else None
    return None
