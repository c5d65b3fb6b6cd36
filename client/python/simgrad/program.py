"""Writes a world of one's own as a simgrad.v1.Program, from expressions in Python.

    b = ProgramBuilder("decay")
    x, k, h = b.state("x"), b.param("k", default=1.0), b.config("h", 0.01)
    b.next(x=x - h * k * x)
    b.objective("final", terminal=lambda states, exports: states["x"] * states["x"])
    world = simgrad.World(program=b.build())

A world is data, never code: loops and branches exist only as `while_loop`, `for_loop`, `cond` and
`where`, and every comparison of reals that decides something is a site, so that they can report. The server
verifies the program before anything of it runs; its errors name the path, for example
"spec.world.program.step.ops[3].operands[0]", and the line of your file.
Shapes are per instance and meet by NumPy's broadcasting. `simgrad.world` writes the same from a function.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Callable, Iterator, Mapping, Sequence

from simgrad import numpy_reductions, numpy_shapes
from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_I32, ELEMENT_TYPE_REAL

from .constants import default_of
from .control_flow import ControlFlow
from .expression import Expression
from .operation_writer import INPUTS, STEP, type_text


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class ProgramBuilder(ControlFlow):
    """Builds one program. Operations go into the region being written, with the current role and
    site.

    `level` says which comparisons of reals are tests with sites: "decisions" (all that decide, but
    guards against a small number), "all" or "loops"; with "", events alone decide, and nothing
    says which line wrote an operation.

    Errors: ValueError for shapes that do not meet and for values used where they cannot be seen;
    TypeError for a cost that is no real scalar; everything else is verified by the server. All name the line.
    """

    def __init__(self, name: str, level: str = "decisions"):
        super().__init__(name, level)
        self._in_cost = ""

    # ---- Inputs ----

    def state(
        self,
        name: str,
        shape: Sequence[int] = (),
        element: int = ELEMENT_TYPE_REAL,
        default: float | None = None,
    ) -> Expression:
        """`default`: a number for every element, for requests that send none."""
        return self._input(program_pb2.INPUT_KIND_STATE, name, shape, default, element)

    def param(
        self,
        name: str,
        shape: Sequence[int] = (),
        default: float | None = None,
        element: int = ELEMENT_TYPE_REAL,
    ) -> Expression:
        return self._input(program_pb2.INPUT_KIND_PARAM, name, shape, default, element)

    def weights(self, name: str, shape: Sequence[int], default: float | None = None) -> Expression:
        """A param that all instances share, such as the matrices and biases of a network.

        Requests send it in `params`, and find its gradient there. The server adds that up over the
        instances of each block of 256 ids within a step, so it takes memory for each block and not
        for each instance. An array for each instance is refused: that takes `param`.
        """
        made = self.param(name, shape, default)
        self.program.inputs[-1].weights = True
        return made

    def control(
        self,
        name: str,
        shape: Sequence[int] = (),
        default: float | None = None,
        element: int = ELEMENT_TYPE_REAL,
    ) -> Expression:
        return self._input(program_pb2.INPUT_KIND_CONTROL, name, shape, default, element)

    def data(
        self,
        name: str,
        shape: Sequence[int] = (),
        default: float | None = None,
        element: int = ELEMENT_TYPE_REAL,
    ) -> Expression:
        return self._input(program_pb2.INPUT_KIND_DATA, name, shape, default, element)

    def config(self, name: str, value: float) -> Expression:
        """A number that shapes the program and is part of it."""
        return self._input(program_pb2.INPUT_KIND_CONFIG, name, (), value)

    def step(self) -> Expression:
        """The number of the step, an i32."""
        value = self._new((), ELEMENT_TYPE_I32, "step")
        self._scope_of[value.value] = self._scopes[0]
        self.program.inputs.add(kind=program_pb2.INPUT_KIND_STEP, name="step", value=value.value)
        return value

    # ---- What is not in the table ----

    def relu(self, x: Any) -> Expression:
        """max(x, 0)."""
        return self.max(x, 0.0)

    def mean(self, x: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The sum over `axes`, or over all, divided by the number of elements."""
        return numpy_reductions.mean(self.value(x), axes)

    def where(self, condition: Any, a: Any, b: Any) -> Expression:
        """a where the condition holds, else b; both are computed, and neither's NaN reaches the
        other's cotangent."""
        return self.select(self.value(condition, ELEMENT_TYPE_BOOL), a, b)

    def stack(self, values: Sequence[Any], axis: int = 0) -> Expression:
        """The values along a new axis."""
        return numpy_shapes.stack([self.value(x) for x in values], axis)

    def like(self, a: Expression, fill: Any) -> Expression:
        """fill, in the shape and type of a."""
        return self.broadcast_to(self.value(fill, a.element), a.shape)

    def test(self, site: str, condition: Expression, kind: str = "") -> Expression:
        """Makes a comparison an event with a name: b.test("cold", x < 0.5). It is a site at every
        level. `kind` declares what it is for: acceptance, membership, halt or guard. An acceptance is compared in
        role `termination`; any other in the role it stands in, or `event` outside of all."""
        op = self._comparisons.pop(getattr(condition, "value", -1), None)
        if op is None:
            raise TypeError(f"{self.here()}test() names a comparison, such as x < 0.5, once")
        op.code, op.comparison, op.decision_site, op.test_kind = "event", op.code, site, kind
        if kind == "acceptance":
            op.role, op.site = "termination", site
        elif not op.role:
            op.role, op.site = "event", site
        return condition

    def event(
        self, site: str, a: Any, comparison: str, b: Any, guard: Expression | None = None
    ) -> Expression:
        """A named threshold: (a comparison b), only where `guard` holds; comparison is lt, le, gt,
        ge, eq, ne."""
        with self.role("event", site):
            operands = self.matched([a, b])
            if guard is not None:
                operands = self._broadcast([*operands, self.value(guard)])
            return self._emit(
                "event",
                operands,
                operands[0].shape,
                ELEMENT_TYPE_BOOL,
                decision_site=site,
                comparison=comparison,
            )

    def choice(self, site: str, chosen: Any, a: Any, b: Any) -> Expression:
        """Integers that are `chosen` because the real a is above the real b: a named decision for
        each element, whose margin is a - b. Returns `chosen`."""
        with self.role("event", site):
            chosen = self.value(chosen)
            a, b = (self.broadcast_to(self.value(x), chosen.shape) for x in (a, b))
            return self._emit(
                "choice", [chosen, a, b], chosen.shape, chosen.element, decision_site=site
            )

    # ---- What leaves the step ----

    def next(self, **states: Any) -> None:
        """The next value of every state, by name."""
        declared = self._declared(program_pb2.INPUT_KIND_STATE)
        if sorted(states) != sorted(declared):
            raise ValueError(
                f"{self.here()}next() gives every state its next value: {', '.join(declared)}; "
                f"it got {', '.join(states) or 'none'}"
            )
        given = self._following(list(states.values()), [declared[name] for name in states], "state")
        following = dict(zip(states, given))
        self.program.step.yields.extend(following[name].value for name in declared)

    def initial(self, start: Callable[..., Mapping[str, Any]]) -> None:
        """z[0] from what was sent: `start` returns {state: value} for the states that it changes,
        and may use all inputs."""
        declared = self._declared(program_pb2.INPUT_KIND_STATE)
        with self._cost(self.program.initial, "initial"):
            given = dict(start())
            if unknown := sorted(set(given) - set(declared)):
                raise ValueError(f"{self.here()}initial() knows no state {', '.join(unknown)}")
            values = [given.get(name, x) for name, x in declared.items()]
            made = self._following(values, list(declared.values()), "state")
            self.program.initial.yields.extend(x.value for x in made)

    def observe(self, name: str, x: Any) -> None:
        """Exports a value of the step, as an observable of the trajectory and for costs."""
        value = self.value(x)
        self._check_name(name)
        states = self._declared(program_pb2.INPUT_KIND_STATE)
        if name in states or any(e.name == name for e in self.program.exports):
            has = "a state has this name" if name in states else "another observable has this name"
            raise ValueError(f"{self.here()}observe({name!r}): {has}, so give it another one")
        if self._scope_of[value.value] not in (INPUTS, STEP):
            raise ValueError(
                f"{self.here()}observe({name!r}): the value was made inside a loop or a branch: return it from there, "
                "and observe that"
            )
        self.program.exports.add(name=name, value=value.value, observable=True)

    def objective(
        self,
        name: str,
        *,
        stage: Callable[[], Any] | None = None,
        terminal: Callable[[Mapping[str, Expression], Mapping[str, Expression]], Any] | None = None,
    ) -> None:
        """Costs, summed over steps, terminal last.

        Args:
          stage: returns the scalar cost of a step; may use inputs and exported values.
          terminal: returns the scalar cost of (final states by name, exports of the last step by
            name).
        """
        self._check_name(name)
        objective = self.program.objectives.add(name=name)
        with self.role("objective"):
            if stage is not None:
                with self._cost(objective.stage, "stage"):
                    objective.stage.yields.append(self.cost(name, stage()).value)
            if terminal is not None:
                with self._cost(objective.terminal, "terminal"):
                    states = {
                        name: self._argument(objective.terminal, x)
                        for name, x in self._declared(program_pb2.INPUT_KIND_STATE).items()
                    }
                    exports = {
                        e.name: self._argument(objective.terminal, Expression(self, e.value))
                        for e in self.program.exports
                    }
                    objective.terminal.yields.append(self.cost(name, terminal(states, exports)).value)

    def cost(self, name: str, made: Any) -> Expression:
        """A cost as a value. Raises TypeError for what is no cost."""
        if made is None:
            raise TypeError(f"{self.here()}objective `{name}` returns None; a cost is one real scalar")
        value = self.value(made)
        if value.shape or value.element != ELEMENT_TYPE_REAL:
            raise TypeError(
                f"{self.here()}objective `{name}` returns {type_text(value)}; a cost is one real scalar"
            )
        return value

    def build(self) -> program_pb2.Program:
        """The program; states come first among its inputs, as regions take and yield them."""
        inputs = sorted(self.program.inputs, key=lambda i: i.kind != program_pb2.INPUT_KIND_STATE)
        built = program_pb2.Program()
        built.CopyFrom(self.program)
        del built.inputs[:]
        built.inputs.extend(inputs)
        return built

    # ---- Internal ----

    def _check_name(self, name: str) -> None:
        """Raises ValueError for what a server takes for no name."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{self.here()}{name!r}: a name has 1 to 128 letters of ASCII, digits, '_', '-' and '.'"
            )

    def _input(
        self,
        kind: int,
        name: str,
        shape: Sequence[int],
        default: float | None = None,
        element: int = ELEMENT_TYPE_REAL,
    ) -> Expression:
        self._check_name(name)
        number = default_of(f"{self.here()}{name}", default, element)
        value = self._new(shape, element, name)
        self._scope_of[value.value] = self._scopes[0]
        self.program.inputs.add(kind=kind, name=name, value=value.value, default_value=number)
        return value

    def _declared(self, kind: int) -> dict[str, Expression]:
        return {i.name: Expression(self, i.value) for i in self.program.inputs if i.kind == kind}

    @contextlib.contextmanager
    def _cost(self, region: program_pb2.Region, kind: str) -> Iterator[None]:
        """A region of its own: it sees inputs; a stage also sees exports."""
        before = self._scopes, self._in_cost
        self._scopes, self._in_cost = self._scopes[:1], kind
        try:
            with self._region(region):
                yield
        finally:
            self._scopes, self._in_cost = before

    def _check_seen(self, x: Expression) -> None:
        exported = self._in_cost == "stage" and any(
            e.value == x.value for e in self.program.exports
        )
        if not exported or self._seen_from >= 0:
            super()._check_seen(x)

    def _why_unseen(self) -> str:
        if not self._in_cost:
            return super()._why_unseen()
        if self._in_cost == "initial":
            return "initial reads inputs"
        return f"the {self._in_cost} cost reads inputs and exports: observe() it in the step"
