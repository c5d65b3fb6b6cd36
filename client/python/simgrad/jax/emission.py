"""Writes a graph as a program: an operation for each live node, with its role, site and line."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np

from simgrad.constants import element_of
from simgrad.expression import Expression
from simgrad.jax.errors import told
from simgrad.jax.fold import ELEMENTWISE
from simgrad.jax.kinks import has_kink, write_with_kink
from simgrad.jax.literals import EXACT, write_literal
from simgrad.jax.liveness import Live
from simgrad.jax.node import CONTROL, Line, Node, Place, Scope, Value, size_of
from simgrad.program import ProgramBuilder
from simgrad.v1.program_pb2 import ELEMENT_TYPE_REAL

# Operations without attributes.
_PLAIN = ("matmul", "cholesky", "lu", "lu_permutation", "lu_solve", "update")
_SKIPPED = ("input", "argument", "result")


class JaxProgramBuilder(ProgramBuilder):
    """Operations are labelled with the lines of JAX's trace, and comparisons named after them."""

    def __init__(self, name: str, level: str):
        super().__init__(name, level)
        self._traced = Line()
        self._test = ""
        self._asked = ""

    @contextlib.contextmanager
    def lowered_from(self, line: Line, test: str, asked: str = "") -> Iterator[None]:
        before = self._traced, self._test, self._asked
        self._traced, self._test, self._asked = line, test, asked
        try:
            yield
        finally:
            self._traced, self._test, self._asked = before

    def _label(self) -> str:
        return told(self._traced.text, self._asked)

    def _test_name(self, x: Expression) -> dict[str, str]:
        is_test = self.program.level and x.element == ELEMENT_TYPE_REAL
        return {"decision_site": self._test} if is_test and self._test and 1 in self._scopes else {}


class Emission:
    """One graph being written into a builder.

    Args:
      inputs: the expressions of input nodes, by kind and name.
      roles: of nodes; empty: dynamics.
      names: of sites, by the place of a test or loop.
      kinks: whose derivatives ties have: "simgrad" or "jax".
      chosen: the author's names for choices, by node.
      guards: comparisons that are written as tests with their names, as the server reports no guard.
    """

    def __init__(
        self,
        builder: JaxProgramBuilder,
        live: Live,
        inputs: Mapping[tuple[str, str], Expression],
        roles: Mapping[Node, str],
        names: Mapping[Place, str],
        kinks: str = "simgrad",
        chosen: Mapping[Node, str] | None = None,
        guards: frozenset[Node] = frozenset(),
    ):
        self._chosen = chosen or {}
        self._guards = guards
        self._b = builder
        self._live = live
        self._inputs = inputs
        self._roles = roles
        self._names = names
        self._kinks = kinks
        self._written: dict[Node, Expression] = {}
        self._results: dict[tuple[Node, int], Node] = {
            (x.operands[0], x.attributes["index"]): x for x in live.nodes if x.op == "result"
        }

    def write(self, root: Scope) -> None:
        """All that is live in a scope."""
        for x in self._live.inside[root]:
            if x.op == "input":
                self._written[x] = self._inputs[x.attributes["kind"], x.attributes["name"]]
            elif x.op not in _SKIPPED:
                self._write(x)

    def value(self, x: Value) -> Expression:
        """The expression of an output that was written, or of a constant."""
        if not isinstance(x, Node):
            return write_literal(self._b, x)
        if x.op == "result" and x not in self._written:
            raise AssertionError(f"{x} was not written")
        return self._written[x]

    # ---- Nodes ----

    def _write(self, x: Node) -> None:
        name = self._names.get(x.line.place, "")
        with self._b.role(self._roles.get(x, ""), self._chosen.get(x, "")), self._b.lowered_from(x.line, name):
            if x.op in CONTROL:
                write = {"while": self._while, "for": self._for, "cond": self._cond}[x.op]
                made = write(x)
                for place, expression in made.items():
                    if (x, place) in self._results:  # else the loop alone reads it
                        self._written[self._results[x, place]] = expression
            elif self._kinks == "jax" and has_kink(x, self._roles.get(x, "")):
                with self._b.lowered_from(x.line, ""):  # what a derivative compares has no site
                    self._written[x] = write_with_kink(self._b, x, [self._written[y] for y in x.operands])
            else:
                self._written[x] = self._operation(x)
                if x in self._guards:
                    self._b.test(name, self._written[x])

    def _operation(self, x: Node) -> Expression:
        b, attributes = self._b, x.attributes
        operands = [self._written[y] for y in x.operands]
        if x.op == "literal":
            return write_literal(b, attributes["value"])
        if x.op == "convert":
            return b.convert(operands[0], _element(x.dtype))
        if x.op == "cast":
            return b.cast(operands[0], format=attributes["format"])
        if x.op in ELEMENTWISE or x.op in _PLAIN:
            return b.apply(x.op, *operands)
        if x.op in ("sum", "prod", "any", "all", "reduce_max", "reduce_min", "argmax", "argmin"):
            axes = attributes["axes"] if "axes" in attributes else attributes["axis"]
            return b.apply(x.op, *operands, axes=axes)
        if x.op in ("broadcast", "slice"):
            return b.apply(x.op, *operands, **attributes)
        write = _WRITERS.get(x.op)
        if write is None:
            raise AssertionError(f"no writer for {x.op}")
        return write(b, x, operands)

    # ---- Regions ----

    def _while(self, x: Node) -> dict[int, Expression]:
        kept = sorted(self._live.results[x])
        tested, body = x.regions
        places = [x.attributes["carried"][place] for place in kept]

        def stop(*carried: Expression) -> Expression:
            self._bind(tested, "carry", places, carried)
            self.write(tested)
            return self._b.not_(self._written[tested.results[0]])

        def turn(carried: Sequence[Expression], exports: Sequence[Expression]) -> list[Expression]:
            self._bind(body, "carry", places, carried)
            self.write(body)
            return [self._written[body.results[place]] for place in kept]

        site = self._names[x.line.place]
        given = [self._written[x.operands[place]] for place in kept]
        cap = x.attributes["max_iter"]
        made, _, _ = self._b.while_loop(site, given, stop, turn, max_iter=cap)
        return dict(zip(kept, made))

    def _for(self, x: Node) -> dict[int, Expression]:
        body = x.regions[0]
        count = len(x.attributes["carried"])
        kept = sorted(self._live.results[x])
        carried = [place for place in kept if place < count]
        stacked = [place for place in kept if place >= count]
        places = [x.attributes["carried"][place] for place in carried]
        read = sorted(
            {a.attributes["index"] for a in self._live.inside[body] if _is_scanned(a)}
        )

        def turn(
            now: list[Expression], elements: list[Expression]
        ) -> tuple[list[Expression], list[Expression]]:
            self._bind(body, "carry", places, now)
            self._bind(body, "scanned", read, elements)
            self.write(body)
            following = [self._written[body.results[place]] for place in carried]
            return following, [self._written[body.results[place]] for place in stacked]

        given = [self._first(x.operands[place]) for place in carried]
        scanned = [self._written[x.operands[count + k]] for k in read]
        length = x.attributes["length"]
        reverse = x.attributes["reverse"] and bool(read or stacked)  # without rows all turns are alike
        last, stacks = self._b.scan(turn, given, scanned, length=length, reverse=reverse)
        return {**dict(zip(carried, last)), **dict(zip(stacked, stacks))}

    def _first(self, x: Node) -> Expression:
        """The first value that a `for` carries; any, where no turn reads it."""
        return self._written[x] if x in self._live else write_literal(self._b, np.zeros(x.shape, x.dtype))

    def _cond(self, x: Node) -> dict[int, Expression]:
        kept = sorted(self._live.results[x])

        def branch(region: Scope) -> Callable[..., list[Expression]]:
            def run() -> list[Expression]:
                self.write(region)
                return [self._written[region.results[place]] for place in kept]

            return run

        choice = self._written[x.operands[0]]
        made = self._b.switch(choice, [branch(region) for region in x.regions])
        return dict(zip(kept, made))

    def _bind(
        self, scope: Scope, kind: str, places: Sequence[int], given: Sequence[Expression]
    ) -> None:
        by_place = dict(zip(places, given))
        for x in scope.arguments:
            if x.attributes["kind"] == kind and x.attributes["index"] in by_place:
                self._written[x] = by_place[x.attributes["index"]]


def _is_scanned(x: Node) -> bool:
    return x.op == "argument" and bool(x.attributes["kind"] == "scanned")


def _element(dtype: np.dtype) -> int:
    return element_of("real" if dtype.kind == "f" else dtype)


def _take(b: ProgramBuilder, x: Node, operands: Sequence[Expression]) -> Expression:
    """Takes elements of the arrays, which are flattened and joined one after the other if there are several."""
    flat = operands[0]
    if len(operands) > 1:
        lines = [b.reshape(y, shape=(size_of(y.shape),)) for y in operands]
        flat = b.concat(*lines, axes=0)
    fill = x.attributes["fill"]
    indices = x.attributes["indices"].reshape(-1).tolist()
    if fill is not None and not _is_sent(fill):
        inside = write_literal(b, x.attributes["indices"] >= 0)
        taken = b.take(flat, shape=x.shape, indices=indices)
        return b.select(inside, taken, write_literal(b, np.full(x.shape, fill, x.dtype)))
    return b.take(flat, shape=x.shape, indices=indices, fill=float(fill or 0))


def _is_sent(fill: Any) -> bool:
    """Whether a program holds it as a number."""
    return abs(fill) < EXACT if isinstance(fill, int) else bool(np.isfinite(fill))


def _random_bits(b: ProgramBuilder, x: Node) -> Expression:
    """Random bits, made of draws of 16 bits each: f32 and f64 hold so many exactly."""
    element = _element(x.dtype)
    made = None
    for place in range(0, 8 * x.dtype.itemsize, 16):
        part = b.convert(b.mul(b.uniform(x.shape), b.literal(65536.0, x.shape)), element)
        moved = b.shl(part, b.literal(place, x.shape, element)) if place else part
        made = moved if made is None else b.or_(made, moved)
    assert made is not None
    return made


_WRITERS: dict[str, Callable[[ProgramBuilder, Node, Sequence[Expression]], Expression]] = {
    "reshape": lambda b, x, o: b.reshape(o[0], shape=x.shape),
    "transpose": lambda b, x, o: b.transpose(o[0], dims=x.attributes["dims"]),
    "concat": lambda b, x, o: b.concat(*o, axes=x.attributes["axis"]),
    "take": _take,
    "gather": lambda b, x, o: b.gather(o[0], o[1], axes=x.attributes["axis"]),
    "scatter": lambda b, x, o: b.scatter(
        *(o[0], o[1], o[2], x.attributes["axis"], x.attributes["bounds"], x.attributes["combine"])
    ),
    "dynamic_slice": lambda b, x, o: b.dynamic_slice(o[0], o[1], shape=x.shape),
    "argsort": lambda b, x, o: b.argsort(*o, axes=x.attributes["axis"]),
    "cumsum": lambda b, x, o: b.cumsum(
        o[0], axes=x.attributes["axis"], reverse=x.attributes["reverse"]
    ),
    "uniform": lambda b, x, o: b.uniform(x.shape),
    "normal": lambda b, x, o: b.normal(x.shape),
    "random_bits": lambda b, x, o: _random_bits(b, x),
    "key": lambda b, x, o: write_literal(b, np.zeros(x.shape, x.dtype)),
    "triangular_solve": lambda b, x, o: b.triangular_solve(o[0], o[1], **x.attributes),
}


def written_input(b: ProgramBuilder, kind: str, name: str, x: Any) -> Expression:
    """Declares an input like an example array."""
    array = np.asarray(x)
    if kind == "state":
        return b.state(name, array.shape, _element(array.dtype))
    declare = {"control": b.control, "params": b.param, "data": b.data}[kind]
    return declare(name, array.shape, element=_element(array.dtype))
