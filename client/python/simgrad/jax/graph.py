"""The graph of a step: writes each operation once, and none that is known while tracing.

Reals keep every operation that JAX has, in its order: no algebra is done on them. Integers and bools
are simplified, as that is exact.
"""

from __future__ import annotations

import collections
import contextlib
from typing import Any, Iterator, Sequence

import numpy as np

from simgrad.jax import fold
from simgrad.jax.fold import ELEMENTS_OF
from simgrad.jax.layout import Layout
from simgrad.jax.node import (
    BOOL,
    COMPARISONS,
    CONTROL,
    I32,
    REAL,
    U32,
    Line,
    Node,
    Scope,
    Shape,
    Value,
    frozen,
    known_array,
    neutral,
    same,
    taken_from,
)
from simgrad.jax.ranges import OF_I32, Ranges

_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_NEAR = 2.0**-4  # numbers that a format rounds to -1 or 0 lie nearer to it, also those of FP8
_REVERSED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def _key(op: str, operands: Sequence[Node], attributes: dict[str, Any]) -> Any:
    """Equal of operations that give the same."""
    return (op, tuple(n.number for n in operands), frozen(attributes))


class Graph(Layout):
    """Writes nodes into the scope that is open; equal ones are one.

    Attributes:
      line: of the operation that is being lowered.
      notes: what was found on the way, counted, for the report.
      halts: what ends a run, as nodes of their conditions.
      ranges: of the integers.
      unranged: how often the range of an integer was too large: of an index that is clamped, as i32 might not hold it, or
        of what would bound a loop.
    """

    def __init__(self) -> None:
        self.root = Scope(None, "root")
        self.scope = self.root
        self.line = Line()
        self.notes: collections.Counter[str] = collections.Counter()
        self.halts: list[Node] = []
        self._written: dict[Any, Node] = {}
        self._literals: dict[Any, Node] = {}
        self._uniforms: dict[Node, Node] = {}
        self.ranges = Ranges()
        self.unranged = 0

    # ---- Nodes ----

    def node(self, x: Value) -> Node:
        """x as a node: numbers become a literal of the step."""
        if isinstance(x, Node):
            return x
        if x.dtype == REAL and np.isnan(x).any():
            return self._with_nan(x, np.where(np.isnan(x), 0.0, 1.0))
        key = (x.dtype.str, x.shape, x.tobytes())
        found = self._literals.get(key)
        if found is None:
            found = Node("literal", (), {"value": x}, x.shape, x.dtype, self.line, self.root)
            self._literals[key] = found
        return found

    def given(self, x: Value) -> Value:
        """x as a program gives it: a constant with NaN, which no literal holds, as a node."""
        return x if isinstance(x, Node) or x.dtype != REAL or not np.isnan(x).any() else self.node(x)

    def _with_nan(self, x: np.ndarray, divisor: Value) -> Node:
        """Numbers, divided by 1, and NaN as 0 / 0, which no literal holds: of the scope that reads it, so that it is
        born where that runs. `divisor`: 0 in places of NaN, also of some alone, and 1 elsewhere."""
        return self.make("div", [np.where(np.isnan(x), 0.0, x), divisor], {}, x.shape, REAL)

    def make(
        self,
        op: str,
        operands: Sequence[Value],
        attributes: dict[str, Any],
        shape: Sequence[int],
        dtype: Any,
        outputs: Sequence[tuple[Shape, np.dtype]] = (),
        regions: Sequence[Scope] = (),
    ) -> Node:
        nodes = [self.node(x) for x in operands]
        scope = self.scope if op in CONTROL else self._home(op, nodes)
        if op in CONTROL:
            return Node(op, nodes, attributes, shape, dtype, self.line, scope, regions, outputs)
        found = self._find(op, nodes, attributes, scope)
        if found is not None:
            return found
        made = Node(op, nodes, attributes, shape, dtype, self.line, scope, (), outputs)
        self._written[(_key(op, nodes, attributes), scope)] = made
        return made

    def _find(self, op: str, nodes: Sequence[Node], attributes: dict[str, Any], scope: Scope) -> Node | None:
        key = _key(op, nodes, attributes)
        around: Scope | None = scope
        while around is not None:
            found = self._written.get((key, around))
            if found is not None:
                return found
            around = around.parent
        return None

    def is_written(self, op: str, *operands: Value) -> bool:
        """Whether an elementwise operation of these operands stands where the next one would."""
        nodes = [self.node(x) for x in self.widened(operands)]
        return self._find(op, nodes, {}, self._home(op, nodes)) is not None

    def _home(self, op: str, operands: Sequence[Node]) -> Scope:
        """The outermost scope that this may be written in: out of a loop if what it reads is, out of
        a loop that may not turn only where it does no harm, and never out of a branch."""
        deepest = max((x.scope.depth for x in operands), default=0)
        scope = self.scope
        while scope.depth > deepest and scope.parent is not None:
            if scope.kind == "branch" or (scope.kind == "while" and op not in fold.HARMLESS):
                break
            scope = scope.parent
        return scope

    def argument(self, scope: Scope, shape: Sequence[int], dtype: Any, kind: str, index: int) -> Node:
        """Adds the node for the value at place `index` of those that a loop carries ("carry") or scans ("scanned")."""
        attributes = {"of": scope, "kind": kind, "index": index}
        made = Node("argument", (), attributes, shape, dtype, self.line, scope)
        scope.arguments.append(made)
        return made

    def result(self, node: Node, index: int) -> Node:
        shape, dtype = node.outputs[index]
        key = ("result", node.number, index)
        found = self._written.get((key, node.scope))
        if found is None:
            attributes = {"index": index}
            found = Node("result", [node], attributes, shape, dtype, self.line, node.scope)
            self._written[(key, node.scope)] = found
        return found

    @contextlib.contextmanager
    def region(self, kind: str) -> Iterator[Scope]:
        before, self.scope = self.scope, Scope(self.scope, kind)
        try:
            yield self.scope
        finally:
            self.scope = before

    def results_of(self, scope: Scope, values: Sequence[Value]) -> list[Node]:
        """The results of a region, as nodes of it or of the scopes around it."""
        before, self.scope = self.scope, scope
        try:
            return [self.node(x) for x in values]
        finally:
            self.scope = before

    @contextlib.contextmanager
    def at(self, line: Line) -> Iterator[None]:
        before = self.line
        self.line = line if line.path else before
        try:
            yield
        finally:
            self.line = before

    # ---- Operations ----

    def emit(self, op: str, *operands: Value, **attributes: Any) -> Value:
        """One operation; its numbers where all operands are known."""
        given: Sequence[Value] = operands
        if op in fold.ELEMENTWISE and len(operands) > 1:
            given = self.widened(operands)
        if op in fold.FOLDED and all(not isinstance(x, Node) for x in given):
            return known_array(fold.evaluate(op, [x for x in given if not isinstance(x, Node)], attributes))
        shape, dtype = _type_of(op, given, attributes)
        return self.make(op, given, attributes, shape, dtype)

    def widened(self, operands: Sequence[Value]) -> list[Value]:
        shape = np.broadcast_shapes(*[x.shape for x in operands])
        return [self.broadcast_to(x, shape) for x in operands]

    def arithmetic(self, op: str, a: Value, b: Value) -> Value:
        """add, sub or mul; of integers without what changes nothing."""
        a, b = self.widened((a, b))
        if a.dtype.kind in "iu":
            for x, y in ((a, b), (b, a)):
                if not isinstance(y, Node) and op == "add" and not y.any():
                    return x
                if not isinstance(y, Node) and op == "mul" and (y == 1).all():
                    return x
            if op == "sub" and not isinstance(b, Node) and not b.any():
                return a
        if op in ("add", "mul") and a.dtype == BOOL:
            return self.logic("or" if op == "add" else "and", a, b)
        return self.emit(op, a, b)

    def convert(self, a: Value, to: Any) -> Value:
        wanted = neutral(to)
        if wanted == BOOL and a.dtype == REAL:
            return self.compare("ne", a, np.zeros(a.shape))
        return a if a.dtype == wanted else self.emit("convert", a, to=wanted.name)

    def as_number(self, a: Value) -> Value:
        """A bool as 0 or 1, for what ranks numbers."""
        return self.convert(a, I32) if a.dtype == BOOL else a

    def is_nan(self, x: Value) -> Value:
        """Whether x is NaN, without a comparison that would be a site: the sign of everything else is finite. Known where
        x has its numbers from constants without NaN."""
        if self._has_no_nan(x):
            return np.zeros(x.shape, np.bool_)
        return self.logic("not", self.emit("is_finite", self.emit("sign", x)))

    def _has_no_nan(self, x: Value) -> bool:
        stack: list[Value] = [x]
        seen = set()
        while stack:
            y = self.value(stack.pop())
            if not isinstance(y, Node):
                if y.dtype == REAL and np.isnan(y).any():
                    return False
            elif y.dtype == REAL and y not in seen:
                seen.add(y)
                if y.op not in ELEMENTS_OF or np.isnan(y.attributes.get("fill") or 0):
                    return False
                stack += taken_from(y)
        return True

    def motion(self, x: Value) -> Value:
        """0, with the derivative of x where x is finite: inf - inf would be a birth."""
        finite = self.select(self.emit("is_finite", x), x, np.zeros(()))
        return self.arithmetic("sub", finite, self.emit("stop_gradient", finite))

    def halt(self, condition: Value, line: Line, message: str, asked: str) -> bool:
        """Ends a run where a bool holds; False where none can stand: in a loop or a branch. `asked` is the line outside of
        installed packages that asks for it."""
        if self.scope is not self.root or not isinstance(condition, Node):
            return False
        if all(x.operands[0] is not condition for x in self.halts):
            said = {"message": message, "asked": asked}
            self.halts.append(Node("halt", [condition], said, (), BOOL, line, self.root))
        return True

    def key(self, shape: Sequence[int]) -> Node:
        """A random key whose words no draw reads."""
        return self.make("key", [], {"shape": tuple(shape)}, shape, U32)

    def below_one(self) -> Node:
        """The largest number below 1 of the format that it is computed in: f64's where that is the policy's."""
        return self.make("next_after", [np.ones(()), np.zeros(())], {}, (), REAL)

    def above(self, number: float) -> Value:
        """A number above -1 or 0 that stays above it in every format, also where the format rounds it to that."""
        for end in (-1.0, 0.0):
            if end < number < end + _NEAR:
                after = self.make("next_after", [np.asarray(end), np.asarray(end + 1.0)], {}, (), REAL)
                return self.emit("max", np.asarray(number), after)
        return np.asarray(number)

    def is_f16(self) -> Value:
        """1 where it is computed in f16, else 0: of the formats, f16 alone has 1 - 2^-11 below 1. It is no test."""
        gap = self.emit("sub", np.ones(()), self.below_one())
        return self.logic("and", self.convert(self.emit("mul", gap, np.asarray(2.0**11)), I32), np.ones((), I32))

    def draw(self, op: str, shape: Sequence[int], dtype: Any) -> Node:
        """A draw of its own: uniform, normal, or random_bits; it is never moved, and equals no other one."""
        self.notes["draws of the language"] += 1
        return Node(op, (), {}, shape, dtype, self.line, self.scope)

    def uniform_of(self, bits: Node) -> Node:
        """The uniform numbers that stand for random bits."""
        found = self._uniforms.get(bits)
        if found is None:
            found = Node("uniform", (), {}, bits.shape, REAL, bits.line, bits.scope)
            self._uniforms[bits] = found
        return found

    def as_index(self, a: Value) -> Value:
        """i32, for operands that are indices: a number that i32 does not hold becomes the nearest one, which is outside of
        every array, too."""
        found = self.ranges.of(a)
        self.unranged += not found.inside(OF_I32)
        if found.least < OF_I32.least:
            a = self.emit("max", a, np.asarray(OF_I32.least, a.dtype))
        if found.most > OF_I32.most:
            a = self.emit("min", a, np.asarray(OF_I32.most, a.dtype))
        return self.convert(a, I32)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """a where the condition holds."""
        condition, a, b = self.widened((condition, a, b))
        if same(a, b):
            return a
        if not isinstance(condition, Node):
            return self._known_select(condition, a, b)
        if condition.op == "not":
            return self.select(self.value(condition.operands[0]), b, a)
        a, b = self._made_where(condition, True, a), self._made_where(condition, False, b)
        if a.dtype == BOOL:
            if _is_all(a, True) and _is_all(b, False):
                return condition
            if _is_all(a, False) and _is_all(b, True):
                return self.logic("not", condition)
        return self.make("select", [condition, a, b], {}, a.shape, a.dtype)

    def _made_where(self, condition: Node, chosen: bool, x: Value) -> Value:
        """A constant, whose NaN is made only where the condition is `chosen`: made elsewhere, it would be a birth
        that nothing reads."""
        if isinstance(x, Node) or x.dtype != REAL or not np.isnan(x).any():
            return x
        divisors = [np.where(np.isnan(x), 0.0, 1.0), np.ones(x.shape)]
        ends = divisors if chosen else divisors[::-1]
        return self._with_nan(x, self.make("select", [condition, *ends], {}, x.shape, REAL))

    def _known_select(self, condition: np.ndarray, a: Value, b: Value) -> Value:
        if condition.all():
            return a
        if not condition.any():
            return b
        size = int(condition.size)
        places = np.arange(size).reshape(condition.shape)
        return self.take([a, b], np.where(condition, places, places + size))

    def logic(self, op: str, *operands: Value) -> Value:
        values = self.widened(operands)
        if op == "not":
            [x] = values
            if isinstance(x, Node) and x.op == "not":
                return self.value(x.operands[0])
            return self.emit("not", x)
        a, b = values
        if a.dtype == BOOL and op in ("and", "or"):
            absorbing = op == "or"
            for x, y in ((a, b), (b, a)):
                if _is_all(x, absorbing):
                    return x
                if _is_all(x, not absorbing):
                    return y
            if a is b:
                return a
        return self.emit(op, a, b)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """A comparison; of integers with constants behind choices, the formula of these choices."""
        a, b = self.widened((a, b))
        if a is b:
            return self._compared_with_itself(op, a)
        for x, y, code in ((a, b, op), (b, a, _SWAPPED[op])):
            if isinstance(x, Node) and not isinstance(y, Node) and x.dtype.kind in "iub":
                made = self._integer_compare(code, x, y)
                if made is not None:
                    return made
        if op == "ne" and a.dtype == REAL:  # NaN differs from itself, and `ne` of a program does not hold
            return self.logic("not", self.emit("eq", a, b))
        if a.dtype == BOOL and op not in ("eq", "ne"):
            a, b = self.convert(a, I32), self.convert(b, I32)
        return self.emit(op, a, b)

    def _compared_with_itself(self, op: str, a: Value) -> Value:
        """Known, but for a NaN, which no comparison holds of but `ne`. It is no test, whose margin would always be 0."""
        if op in ("lt", "gt"):
            return np.zeros(a.shape, np.bool_)
        is_nan = self.is_nan(a) if a.dtype == REAL else np.zeros(a.shape, np.bool_)
        return is_nan if op == "ne" else self.logic("not", is_nan)

    def _integer_compare(self, op: str, x: Node, y: np.ndarray) -> Value | None:
        if x.op == "select":
            choices = [self.value(v) for v in x.operands[1:]]
            if any(not isinstance(v, Node) for v in choices):
                made = [self.compare(op, v, y) for v in choices]
                return self.select(x.operands[0], made[0], made[1])
        if x.op == "convert" and x.operands[0].dtype == BOOL:
            ones, zeros = np.ones_like(y), np.zeros_like(y)
            held, not_held = (fold.evaluate(op, [v, y], {}) for v in (ones, zeros))
            return self.select(x.operands[0], held, not_held)
        if x.op == "broadcast":
            uniform = y.reshape(-1)[:1]
            if (y == uniform).all():
                inner = self.compare(op, self.value(x.operands[0]), uniform.reshape(()))
                return self.broadcast(inner, x.shape, x.attributes["dims"])
        if x.op == "reshape" and y.size and (y == y.reshape(-1)[:1]).all():
            inner = self.compare(op, self.value(x.operands[0]), y.reshape(-1)[0].reshape(()))
            return self.reshape(inner, x.shape)
        if x.dtype == BOOL and op in ("eq", "ne") and y.size:
            if (y == y.reshape(-1)[0]).all():
                positive = bool(y.reshape(-1)[0]) == (op == "eq")
                return x if positive else self.logic("not", x)
        return None

    def negated(self, x: Value) -> Value:
        """Not x; of a comparison of integers, the opposite one."""
        if isinstance(x, Node) and x.op in COMPARISONS and x.operands[0].dtype.kind != "f":
            a, b = (self.value(v) for v in x.operands)
            return self.compare(_REVERSED[x.op], a, b)
        return self.logic("not", x)


def _is_all(x: Value, held: bool) -> bool:
    return not isinstance(x, Node) and x.size > 0 and bool((x == held).all())


def _type_of(op: str, operands: Sequence[Value], attributes: dict[str, Any]) -> tuple[Shape, Any]:
    """Shape and dtype of the result."""
    a = operands[0]
    if op in COMPARISONS or op == "is_finite":
        return a.shape, BOOL
    if op == "convert":
        return a.shape, attributes["to"]
    if op == "select":
        return a.shape, operands[1].dtype
    if op in ("sum", "prod", "reduce_max", "reduce_min", "any", "all"):
        return tuple(n for k, n in enumerate(a.shape) if k not in attributes["axes"]), a.dtype
    if op in ("argmax", "argmin"):
        return tuple(n for k, n in enumerate(a.shape) if k != attributes["axis"]), I32
    if op == "argsort":
        return a.shape, I32
    if op == "matmul":
        return a.shape[:-1] + operands[1].shape[-1:], a.dtype
    if op == "gather":
        axis = attributes["axis"]
        return a.shape[:axis] + operands[1].shape + a.shape[axis + 1 :], a.dtype
    if op == "triangular_solve":
        return operands[1].shape, a.dtype
    if op == "lu_solve":
        return operands[3].shape, a.dtype
    if op == "dynamic_slice":
        return attributes["shape"], a.dtype
    if op == "lu_permutation":
        return a.shape[:1], I32
    return a.shape, a.dtype
