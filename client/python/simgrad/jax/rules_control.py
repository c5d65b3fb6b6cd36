"""Rules of loops and branches.

A scan that does nothing once its work is done becomes a `while`; a while that only counts becomes a
`for`; a while whose test counts as well knows its cap.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from simgrad.jax.alternatives import integers_of
from simgrad.jax.graph import Graph
from simgrad.jax.integer_inputs import integer_inputs, remedy, told_input
from simgrad.jax.loop_counters import (
    BEYOND_TURNS,
    MOST_TURNS,
    Body,
    Bound,
    Fixed,
    bound_of,
    conjuncts,
    ranges_of_counters,
)
from simgrad.jax.lowering import ERROR_IF, Lowering, Operands, primitives_of, rule
from simgrad.jax.node import BOOL, DRAWS, I32, Line, Node, Scope, Value, neutral, same
from simgrad.jax.ranges import Range


def _carried(graph: Graph, scope: Scope, initial: Sequence[Value], fixed: Fixed) -> list[Value]:
    return [
        x if fixed[k] else graph.argument(scope, x.shape, x.dtype, "carry", k)
        for k, x in enumerate(initial)
    ]


def _lowered_body(
    low: Lowering,
    closed: Any,
    kind: str,
    constants: Sequence[Value],
    initial: Sequence[Value],
    most_turns: Callable[[Body], int | None],
    scanned: Sequence[Value] = (),
) -> Body:
    """The body, lowered until what it does not change is known: first nothing is thought to change. Where it asks for
    ranges (Graph.unranged) it is lowered once more, with those of its counters. Its problems are those of the last time.

    Args:
      most_turns: how often the loop turns at most; None: it is not known.
    """
    graph = low.graph
    fixed = [True] * len(initial)
    ranges: dict[int, Range] = {}
    unranged = graph.unranged
    while True:
        graph.unranged = unranged
        with low.problems.apart() as found, graph.region(kind) as scope:
            arguments = _carried(graph, scope, initial, fixed)
            _note_ranges(graph, arguments, ranges)
            elements = [_element(graph, scope, k, x) for k, x in enumerate(scanned)]
            results = low.jaxpr(closed, [*constants, *arguments, *elements])
        changed = [k for k, x in enumerate(initial) if fixed[k] and not same(results[k], x)]
        for k in changed:
            fixed[k] = False
        if changed:
            continue
        body = Body(scope, fixed, arguments, results)
        if not ranges and graph.unranged != unranged:
            turns = most_turns(body)
            ranges = ranges_of_counters(graph, body, initial, BEYOND_TURNS if turns is None else max(turns - 1, 0))
            if ranges:
                continue
        low.problems.take(found)
        return body


def _note_ranges(graph: Graph, arguments: Sequence[Value], ranges: dict[int, Range]) -> None:
    for k, found in ranges.items():
        graph.ranges.note(arguments[k], found)


def _all_rows_are_one(a: np.ndarray) -> bool:
    """To the bit: rows of +0 and -0 are two."""
    rows = np.ascontiguousarray(a).reshape(len(a), -1).view(np.uint8)
    return bool((rows == rows[:1]).all())


def _element(graph: Graph, scope: Scope, index: int, scanned: Value) -> Value:
    """One row of what is scanned; a constant where all rows are equal."""
    if not isinstance(scanned, Node) and _all_rows_are_one(scanned):
        return np.asarray(scanned[0])
    element = graph.argument(scope, scanned.shape[1:], scanned.dtype, "scanned", index)
    if element.dtype.kind in "iu":
        graph.ranges.note(element, graph.ranges.of(scanned))
    return element


# ---- while ----


class _Test(NamedTuple):
    """The test of a while as it was lowered: its region, its result, and a bound of each part that must hold; None: the part
    has none."""

    scope: Scope
    goes_on: Value
    bounds: list[Bound | None]

    @property
    def caps(self) -> list[int]:
        return [bound.turns for bound in self.bounds if bound is not None]


@rule("while")
def _while(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    graph, params = low.graph, equation.params
    line = graph.line
    _given_cap(low, line)  # it names this loop, whether or not the loop turns out to count
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    for_test, for_body = operands[:tests], operands[tests : tests + bodies]
    initial = list(operands[tests + bodies :])
    test_of, body_of = params["cond_jaxpr"], params["body_jaxpr"]
    is_batched = bool(test_of.out_avals[0].shape)
    if is_batched:
        test_of, body_of = _together(test_of, body_of, tests)
        for_body = [*for_test, *for_body]

    def test(body: Body) -> _Test:
        with graph.region("predicate") as scope:
            arguments = _carried(graph, scope, initial, body.fixed)
            _note_ranges(graph, arguments, ranges_of_counters(graph, body, initial, BEYOND_TURNS))
            goes_on = low.jaxpr(test_of, [*for_test, *arguments])[0]
        leaves = conjuncts(goes_on, True, is_batched) if isinstance(goes_on, Node) else []
        return _Test(scope, goes_on, [bound_of(graph, leaf, scope, initial, body, is_batched) for leaf in leaves])

    def most_turns(body: Body) -> int | None:
        with low.problems.apart():
            known = test(body).caps
        given = _given_cap(low, line)
        return min([*known, *([] if given is None else [given])], default=None)

    body = _lowered_body(low, body_of, "while", for_body, initial, most_turns)
    tested = test(body)
    goes_on, bounds = tested.goes_on, tested.bounds
    if not isinstance(goes_on, Node):
        if bool(goes_on):
            low.refuse("a while_loop that never stops", "its test is always true")
        return initial
    if 0 in tested.caps:
        return initial
    if len(bounds) == 1 and bounds[0] is not None and bounds[0].is_exact and not is_batched:
        _check_turns(low, bounds[0].turns)
        return _counted(graph, bounds[0].turns, initial, body, line)
    behind = integer_inputs([goes_on], {tested.scope: initial})
    return _while_node(graph, goes_on, tested.scope, initial, body, _cap(low, line, tested.caps, behind), line)


def _together(test_of: Any, body_of: Any, tests: int) -> tuple[Any, Any]:
    """The test and the body of a loop under vmap, whose test is an array: it goes on while one of them does, and
    those that are done keep what they carry. The body takes the constants of both."""
    tested, turned = jax.extend.core.jaxpr_as_fun(test_of), jax.extend.core.jaxpr_as_fun(body_of)
    count = len(body_of.out_avals)

    def any_goes_on(*given: Any) -> Any:
        return jnp.any(tested(*given)[0])

    def turn(*given: Any) -> list[Any]:
        carried = given[len(given) - count :]
        goes_on = tested(*given[:tests], *carried)[0]
        made = turned(*given[tests:])
        return [
            jnp.where(jnp.expand_dims(goes_on, tuple(range(goes_on.ndim, new.ndim))), new, old)
            for new, old in zip(made, carried)
        ]

    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (*test_of.in_avals[:tests], *body_of.in_avals)]
    for_test = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in test_of.in_avals]
    return jax.make_jaxpr(any_goes_on)(*for_test), jax.make_jaxpr(turn)(*types)


def _cap(low: Lowering, line: Line, bounds: Sequence[int], behind: Sequence[Node]) -> int:
    """`behind`: integer inputs that the test reads."""
    given = _given_cap(low, line)
    if given is not None:
        return min([int(given), *bounds])
    if not bounds:
        low.graph.unranged += 1
        reads = f", whose test reads {' and '.join(map(told_input, behind))}" if behind else ""
        hint = f'say how often it may turn: max_iter={{"{line.text}": 50}}{remedy(behind)}'
        low.refuse(f"a while_loop without a bound{reads}", hint)
        return 1
    if min(bounds) > MOST_TURNS:
        what = f"a while_loop whose test lets it turn {min(bounds)} times, where a loop has at most {MOST_TURNS} turns"
        low.refuse(what, f'say how often it may turn: max_iter={{"{line.text}": 50}}')
    return min(bounds)


def _check_turns(low: Lowering, turns: int) -> None:
    if turns > MOST_TURNS:
        low.refuse(f"a loop of {turns} turns, where one has at most {MOST_TURNS}", "make it a loop in a loop, or take more steps")


def _given_cap(low: Lowering, line: Line) -> int | None:
    return low.options.max_iter.find(line.text, line.function.rpartition(".")[2])


def _while_node(
    graph: Graph,
    goes_on: Value,
    tested: Scope,
    initial: Sequence[Value],
    body: Body,
    cap: int,
    line: Line,
) -> list[Value]:
    with graph.at(line):
        tested.results = [graph.node(goes_on)]
        body.scope.results = graph.results_of(body.scope, [body.results[k] for k in body.varying])
        attributes = {"carried": body.varying, "max_iter": cap}
        given = [initial[k] for k in body.varying]
        outputs = [(x.shape, x.dtype) for x in given]
        node = graph.make(
            "while", given, attributes, (), BOOL, outputs, [tested, body.scope]
        )
    return _results(graph, node, initial, body.varying)


def _results(
    graph: Graph, node: Node, initial: Sequence[Value], varying: Sequence[int]
) -> list[Value]:
    made = list(initial)
    for place, k in enumerate(varying):
        made[k] = graph.result(node, place)
    return made


def _counted(
    graph: Graph, count: int, initial: Sequence[Value], body: Body, line: Line
) -> list[Value]:
    """A while that only counts."""
    if count == 0:
        return list(initial)
    body.scope.kind = "for"
    return _for_node(graph, count, initial, (), body, False, line)


def _for_node(
    graph: Graph,
    count: int,
    initial: Sequence[Value],
    scanned: Sequence[Value],
    body: Body,
    reverse: bool,
    line: Line,
) -> list[Value]:
    stacked = body.results[len(initial) :]
    varying = body.varying
    with graph.at(line):
        body.scope.results = graph.results_of(body.scope, [*(body.results[k] for k in varying), *stacked])
        attributes = {"carried": varying, "length": count, "reverse": reverse}
        given = [initial[k] for k in varying]
        outputs = [(x.shape, x.dtype) for x in given]
        outputs += [((count, *x.shape), x.dtype) for x in stacked]
        node = graph.make(
            "for", [*given, *scanned], attributes, (), BOOL, outputs, [body.scope]
        )
    made = _results(graph, node, initial, varying)
    for place, x in enumerate(stacked):
        if isinstance(x, Node) and x.scope.inside(body.scope):
            made.append(graph.result(node, len(varying) + place))
        else:  # the same at every turn
            made.append(graph.broadcast(x, (count, *x.shape), range(1, 1 + len(x.shape))))
    return made


# ---- scan ----


@rule("scan")
def _scan(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    graph, params = low.graph, equation.params
    line = graph.line
    length, reverse = int(params["length"]), bool(params["reverse"])
    constants, carries = params["num_consts"], params["num_carry"]
    initial = list(operands[constants : constants + carries])
    scanned = operands[constants + carries :]
    stacked = equation.outvars[carries:]
    if length == 0:
        return initial + [np.zeros(v.aval.shape, neutral(v.aval.dtype)) for v in stacked]
    if length == 1:
        return _one_turn(low, params["jaxpr"], operands[:constants], initial, scanned)
    body = _lowered_body(low, params["jaxpr"], "for", operands[:constants], initial, lambda _: length, scanned)
    if not stacked:
        masked = _masked(graph, body)
        if masked is not None and not any(x.attributes["kind"] == "scanned" for x in body.scope.arguments):
            return _unmasked(low, equation, operands, initial, body, masked)
    _check_turns(low, length)
    return _for_node(graph, length, initial, scanned, body, reverse, line)


def _one_turn(
    low: Lowering,
    closed: Any,
    constants: Sequence[Value],
    initial: Sequence[Value],
    scanned: Sequence[Value],
) -> list[Value]:
    elements = [low.graph.reshape(x, x.shape[1:]) for x in scanned]
    made = low.jaxpr(closed, [*constants, *initial, *elements])
    stacked = [low.graph.reshape(x, (1, *x.shape)) for x in made[len(initial) :]]
    return made[: len(initial)] + stacked


@dataclasses.dataclass(frozen=True)
class _Mask:
    """A body that is one branch: `condition` true runs branch `running`, else all stays."""

    condition: Node
    running: int


def _masked(graph: Graph, body: Body) -> _Mask | None:
    results = [body.results[k] for k in body.varying]
    branches = {x.operands[0] for x in results if isinstance(x, Node) and x.op == "result"}
    if len(branches) != 1 or any(not isinstance(x, Node) or x.op != "result" for x in results):
        return None
    [branch] = branches
    if branch.op != "cond" or len(branch.regions) != 2 or branch.scope is not body.scope:
        return None
    condition = branch.operands[0]
    if condition.dtype != BOOL or not _reads_carried_alone(condition, body.scope):
        return None
    for idle in (0, 1):
        places = [(k, x.attributes["index"]) for k, x in zip(body.varying, results)]  # type: ignore[union-attr]
        given = [(k, branch.regions[idle].results[place]) for k, place in places]
        if all(_stays(graph, x, body.arguments[k], condition, idle) for k, x in given):
            return _Mask(condition, 1 - idle)
    return None


def _stays(graph: Graph, x: Node, before: Value, condition: Node, idle: int) -> bool:
    """Whether the idle branch leaves a carried value as it is."""
    if x is before:
        return True
    number = graph.value(x)
    if isinstance(number, Node) or number.shape:
        return False
    if condition is before:
        return bool(number) == bool(idle)
    return condition.op == "not" and condition.operands[0] is before and bool(number) != bool(idle)


def _reads_carried_alone(x: Node, scope: Scope) -> bool:
    if x.op in DRAWS:
        return False
    if x.op == "argument":
        return x.attributes["kind"] == "carry" or x.scope is not scope
    if x.op in ("result", "cond", "while", "for"):
        return x.scope is not scope
    return x.scope is not scope or all(_reads_carried_alone(y, scope) for y in x.operands)


def _unmasked(
    low: Lowering,
    equation: Any,
    operands: Operands,
    initial: list[Value],
    before: Body,
    mask: _Mask,
) -> list[Value]:
    """The scan as a while: it stops where the masked one does nothing any more. In its body the condition is known,
    and each branch that it decides is taken."""
    graph, params = low.graph, equation.params
    line = graph.line
    constants, carries = params["num_consts"], params["num_carry"]
    scanned = operands[constants + carries :]
    with graph.region("while") as scope:
        arguments = _carried(graph, scope, initial, before.fixed)
        elements = [_element(graph, scope, k, x) for k, x in enumerate(scanned)]
        known = graph.node(_moved(graph, mask.condition, before, arguments))
        low.chosen[known] = mask.running
        results = low.jaxpr(params["jaxpr"], [*operands[:constants], *arguments, *elements])
        del low.chosen[known]
    body = Body(scope, before.fixed, arguments, results)
    with graph.region("predicate") as tested:
        condition = _moved(graph, mask.condition, before, _carried(graph, tested, initial, before.fixed))
        goes_on = condition if mask.running else graph.negated(condition)
    graph.notes["masked scan: while"] += 1
    return _while_node(graph, goes_on, tested, initial, body, int(params["length"]), line)


def _moved(graph: Graph, x: Node, body: Body, arguments: Sequence[Value]) -> Value:
    """x of a body, written again in the open region with other arguments."""
    return _copy(graph, x, body.scope, {id(a): b for a, b in zip(body.arguments, arguments) if isinstance(a, Node)})


def _copy(graph: Graph, x: Node, scope: Scope, copies: dict[int, Value]) -> Value:
    found = copies.get(id(x))
    if found is not None:
        return found
    if x.scope is not scope:
        return graph.value(x)
    operands = [_copy(graph, y, scope, copies) for y in x.operands]
    with graph.at(x.line):
        made = graph.make(x.op, operands, x.attributes, x.shape, x.dtype)
    copies[id(x)] = made
    return made


# ---- cond ----


@rule("cond")
def _cond(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    graph = low.graph
    line = graph.line
    index, *given = operands
    branches = equation.params["branches"]
    if isinstance(index, Node):
        chosen = low.chosen.get(_bool_of(index))
    else:
        chosen = max(0, min(int(index), len(branches) - 1))
    if chosen is None:
        chosen = _without_error(low, equation, index, given)
    if chosen is not None:
        return low.jaxpr(branches[chosen], given)
    scopes, made = [], []
    for branch in branches:
        with graph.region("branch") as scope:
            made.append(low.jaxpr(branch, given))
        scopes.append(scope)
    results: list[Value] = []
    differing = []
    for k, first in enumerate(made[0]):
        if not all(same(x[k], first) for x in made):
            differing.append(k)
        results.append(first)
    if not differing:
        return results
    with graph.at(line):
        for scope, branch_results in zip(scopes, made):
            scope.results = graph.results_of(scope, [branch_results[k] for k in differing])
        outputs = [(made[0][k].shape, made[0][k].dtype) for k in differing]
        choice = _choice(graph, index, len(branches))
        node = graph.make("cond", [choice], {}, (), BOOL, outputs, scopes)
    for place, k in enumerate(differing):
        results[k] = graph.result(node, place)
    return results


def _choice(graph: Graph, index: Value, branches: int) -> Value:
    """A bool where the index was made of one."""
    choice = _bool_of(index) if isinstance(index, Node) and branches == 2 else index
    return choice if choice.dtype == BOOL else graph.convert(index, I32)


def _bool_of(index: Node) -> Node:
    """The bool that an index was made of; else the index."""
    return index.operands[0] if index.op == "convert" and index.operands[0].dtype == BOOL else index


def _without_error(low: Lowering, equation: Any, index: Value, given: Operands) -> int | None:
    """The index of the branch of Equinox's error_if that goes on; the other one ends the run. None: no error_if."""
    graph, branches = low.graph, equation.params["branches"]
    if len(branches) != 2:
        return None
    raising = [_raised(branch) for branch in branches]
    if raising.count(None) != 1:
        return None
    goes_on = raising.index(None)
    [raised] = filter(None, raising)
    choice = _choice(graph, index, 2)
    if choice.dtype != BOOL:
        choice = graph.compare("ne", choice, np.zeros((), I32))
    line = low.line_outside("equinox")
    ends = choice if goes_on == 0 else graph.negated(choice)
    if not graph.halt(ends, line, _told(graph, raised, given), low.asked(line)):
        low.dropped[line.text] = ERROR_IF
    return goes_on


class _Raised(NamedTuple):
    """An error of Equinox's error_if in a branch: one of several messages, by an integer, and the place of that among what
    the branch is given. None: it is not known."""

    messages: Sequence[str]
    place: int | None


def _raised(branch: Any) -> _Raised | None:
    """The error that Equinox's error_if raises in a branch; None: it raises nothing."""
    if "pure_callback" not in primitives_of(branch):
        return None
    places = {id(v): place for place, v in enumerate(branch.jaxpr.invars)}
    for equation in branch.jaxpr.eqns:
        callback = equation.params.get("callback")
        inner = getattr(callback, "callback_func", callback)
        if getattr(inner, "__qualname__", "").startswith("_error.<locals>.raises"):
            given = inspect.getclosurevars(inner).nonlocals.get("msgs", ())
            return _Raised(list(map(str, given)), places.get(id(equation.invars[0])))
        nested = equation.params.get("jaxpr")
        if nested is not None and hasattr(nested, "jaxpr"):
            raised = _raised(nested)
            if raised is not None:
                of_nested = None if raised.place is None else equation.invars[raised.place]
                return _Raised(raised.messages, places.get(id(of_nested)))
    return None


def _told(graph: Graph, raised: _Raised, given: Operands) -> str:
    """The message of an error; where there are several that it may be, all of them. An empty one says nothing."""
    count = len(raised.messages)
    chosen = None if raised.place is None else integers_of(graph, given[raised.place])
    places = range(count) if chosen is None else sorted({k % count for k in chosen if -count <= k < count})
    messages = list(dict.fromkeys(filter(None, (raised.messages[k] for k in places))))
    if len(messages) <= 1:
        return "".join(messages)
    return "one of: " + " ".join(f"({k}) {m}" for k, m in enumerate(messages, start=1))
