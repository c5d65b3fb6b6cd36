"""The role of each operation, by a written rule, so that a policy means the same for every world.

1. A comparison of reals, and a question for a NaN, is of role `termination` where it reaches the test of a loop, else
   `event`.
2. What only these read, directly or through operations that only they read, has their role:
   the sum behind a test is in the format of the test. A value for both has `termination`.
3. What costs alone read is `objective` (costs are written in regions of their own).
4. What stands in a `while` is `solver`. `for` and `cond` change no role.
5. All else is `dynamics`. The author may give modules, functions and named scopes a role (`roles=`),
   which comes before 4 and 5.
"""

from __future__ import annotations

import collections
import math
from typing import Iterable, Mapping

from simgrad.jax.given import Given
from simgrad.jax.liveness import Live
from simgrad.jax.node import COMPARISONS, CONTROL, REAL, Line, Node, Scope, Value

# The roles that an operation can have (program_from_proto.cc).
WORDS = ("state", "dynamics", "solver", "termination", "event", "network", "objective")
_SMALLEST = 1e-5  # the largest number that a guard compares with, other than an infinity
# Operations that choose by reals, with the name of the test where the author gives none (name_tests.cc).
CHOICES = {
    **{op: op for op in ("argmax", "argmin", "argsort", "cholesky", "convert")},
    "lu_permutation": "lu",
}
_PLACED = ("gather", "scatter", "dynamic_slice", "update", "lu_solve")  # take places
_NUMBERS_ONLY = ("literal", "input", "argument")


def is_test(x: Node) -> bool:
    """Whether it is a comparison of reals."""
    return x.op in COMPARISONS and x.operands[0].dtype == REAL


def roles(live: Live, outputs: Iterable[Value], given: Given[str]) -> dict[Node, str]:
    """The role of every live node that computes."""
    users = users_of(live)
    kept = {x for x in outputs if isinstance(x, Node)}
    ending = behind_predicates(live)
    found: dict[Node, str] = {}
    for x in reversed(live.nodes):
        if is_test(x) or _asks_for_nan(x):
            found[x] = "termination" if x in ending else "event"
            continue
        read_by = users.get(x, [])
        asked = {found[y] for y in read_by if _is_for_tests(found, y)}
        only = bool(read_by) and all(_is_for_tests(found, y) for y in read_by)
        if only and x not in kept and x.dtype == REAL and x.op not in CONTROL:
            found[x] = "termination" if "termination" in asked else "event"
        else:
            found[x] = _given(x.line, given) or _place(x, live)
    return {x: role for x, role in found.items() if x.op not in _NUMBERS_ONLY}


def _asks_for_nan(x: Node) -> bool:
    """Whether it is what Graph.is_nan writes."""
    return x.op == "is_finite" and x.operands[0].op == "sign"


def _is_for_tests(found: Mapping[Node, str], x: Node) -> bool:
    return found.get(x) in ("termination", "event")


def kinds(live: Live, outputs: Iterable[Value]) -> dict[Node, str]:
    """The kind of each comparison of reals, by the server's rule: termination, guard, event or weight.
    A guard compares with zero, a small number or an infinity, and chooses or weighs alone."""
    users, ending = users_of(live), behind_predicates(live)
    kept = {x for x in outputs if isinstance(x, Node)}
    found = {}
    for x in live.nodes:
        if not is_test(x):
            continue
        weighs = all(_chooses_or_weighs(x, y) for y in users.get(x, [])) and x not in kept
        if x in ending:
            found[x] = "termination"
        elif weighs and any(_is_of_guards(y) for y in x.operands):
            found[x] = "guard"
        else:
            found[x] = "event" if _decides(x, users, kept) else "weight"
    return found


def _chooses_or_weighs(x: Node, user: Node) -> bool:
    chooses = user.op == "select" and user.operands[0] is x and x not in user.operands[1:]
    return chooses or (user.op == "convert" and user.dtype == REAL)


def _is_of_guards(x: Node) -> bool:
    """Whether it is a number that guards compare with."""
    if x.op == "broadcast":
        return _is_of_guards(x.operands[0])
    if x.op != "literal":
        return False
    size = abs(x.attributes["value"])
    return bool(((size <= _SMALLEST) | (size == math.inf)).all())


def _decides(x: Node, users: Mapping[Node, list[Node]], kept: set[Node]) -> bool:
    """Whether a bool reaches a choice, a branch, or what is carried or kept."""
    stack, seen = [x], {x}
    while stack:
        y = stack.pop()
        if y in kept:
            return True
        for user in users.get(y, []):
            if user.op in CONTROL or (user.op == "select" and user.operands[0] is y):
                return True
            if user.dtype != REAL and user not in seen:
                seen.add(user)
                stack.append(user)
    return False


def behind_predicates(live: Live) -> set[Node]:
    """The nodes that reach the test of a loop as bools and integers, also through carried values."""
    return _behind((y for x in live.nodes if x.op == "while" for y in x.regions[0].results), live)


def choosing(live: Live, outputs: Iterable[Value]) -> list[Node]:
    """The nodes that choose integers by reals, by the server's rule: argmax, an order, pivots; and a conversion
    that reaches the test of a loop, a choice, a place, or what is carried or kept."""
    roots = [x for x in outputs if isinstance(x, Node) and x.dtype != REAL]
    for x in live.nodes:
        if x.op in ("select", "cond"):
            roots.append(x.operands[0])
        if x.op in _PLACED:
            roots += [y for y in x.operands[1:] if y.dtype != REAL]
        for region in x.regions:
            roots += [y for y in region.results if y.dtype != REAL]
    counted = _behind(roots, live)
    found = []
    for x in live.nodes:
        by_reals = any(y.dtype == REAL for y in x.operands)
        if x.op in CHOICES and by_reals and (x.op != "convert" or (x.dtype != REAL and x in counted)):
            axis = x.attributes.get("axis")
            if axis is None or x.operands[0].shape[axis] > 1:
                found.append(x)
    return found


def _behind(roots: Iterable[Node], live: Live) -> set[Node]:
    """The nodes that these are made of through bools and integers, up to tests; these among them."""
    reached: set[Node] = set()
    stack = list(roots)
    while stack:
        x = stack.pop()
        if x in reached:
            continue
        reached.add(x)
        if is_test(x):
            continue
        for y in _feeding(x, live):
            if y.dtype != REAL:
                stack.append(y)
    return reached


def _feeding(x: Node, live: Live) -> list[Node]:
    if x.op == "argument":
        loop = live.owner.get(x.attributes["of"])
        if loop is None or x.attributes["kind"] != "carry":
            return []
        place = loop.attributes["carried"].index(x.attributes["index"])
        return [loop.operands[place], loop.regions[-1].results[place]]
    if x.op == "result":
        node, place = x.operands[0], x.attributes["index"]
        if node.op not in CONTROL:
            return list(node.operands)
        inner = [region.results[place] for region in node.regions if len(region.results) > place]
        if node.op == "while":
            inner = [node.regions[1].results[place]]
        return [*inner, *(node.operands[:1] if node.op == "cond" else node.operands[place : place + 1])]
    return list(x.operands)


def users_of(live: Live) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = collections.defaultdict(list)
    for x in live.nodes:
        for y in x.operands:
            users[y].append(x)
        for region in x.regions:
            for place, y in enumerate(region.results):
                if region.kind == "predicate" or place in live.results[x]:
                    users[y].append(x)
    return users


def _place(x: Node, live: Live) -> str:
    scope: Scope | None = x.scope
    while scope is not None:
        if scope.kind in ("while", "predicate"):
            return "solver"
        scope = scope.parent
    return "solver" if x.op == "while" else ""


def _given(line: Line, given: Given[str]) -> str:
    """The role that the author gave to a module ("solver" for solver.py), function or named scope."""
    module = line.file.removesuffix(".py")
    function, scopes = line.function.rpartition(".")[2], line.scope.split("/")
    names = (line.function, function, f"{module}.{line.function}", *reversed(scopes), module)
    return given.find(*names) or ""
