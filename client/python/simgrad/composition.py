"""A world and a controller as one world: the controller computes a control in every step."""

from __future__ import annotations

import copy
import inspect
import sys
from types import FrameType
from typing import Any, Callable, Mapping, Sequence

from simgrad import functions
from simgrad.continued_builder import ContinuedBuilder
from simgrad.controllers import Controller, FunctionController, Readable, controller_of
from simgrad.expression import Expression
from simgrad.operation_writer import type_text
from simgrad.program_edit import depending_on, values_read
from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import ELEMENT_TYPE_REAL, INPUT_KIND_CONTROL, INPUT_KIND_PARAM, INPUT_KIND_STATE
from simgrad.world import WithDefaults, World
from simgrad.world_function import written_input


class ComposedWorld(World):
    """The world that `simgrad.compose` returns: inputs and results go by name, as in the program.

    Attributes:
      base: the world inside. controllers: those of all compositions, the innermost first.
    """

    def __init__(self, base: World, controllers: Sequence[Controller], program: program_pb2.Program):
        super().__init__(program=program)
        self.base = base
        self.controllers = tuple(controllers)

    @property
    def array_defaults(self) -> Mapping[int, Mapping[str, Any]]:
        """Those of the world inside, and the numbers that weights have now."""
        made = {kind: dict(arrays) for kind, arrays in self.base.array_defaults.items()}
        declared = {i.name for i in self._message.program.inputs if i.kind == INPUT_KIND_CONTROL}
        controls = made.get(INPUT_KIND_CONTROL, {})
        made[INPUT_KIND_CONTROL] = {n: x for n, x in controls.items() if n in declared}
        # A composed base has given those of its own controllers.
        made.setdefault(INPUT_KIND_PARAM, {}).update(self.controllers[-1].values())
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the program, with the numbers that weights have now, where a controller can go by no name: it is
        local, or in __main__, which may be another module elsewhere."""
        own = [c for c in self.controllers if isinstance(c, FunctionController)]
        if all(c.is_importable for c in own):
            return super().__reduce_ex__(protocol)
        return WithDefaults, (self._message, self.array_defaults)

    def __copy__(self) -> "ComposedWorld":
        return self._with(self.__dict__)

    def __deepcopy__(self, memo: Any) -> "ComposedWorld":
        return self._with(copy.deepcopy(self.__dict__, memo))

    def _with(self, attributes: Mapping[str, Any]) -> "ComposedWorld":
        made = type(self).__new__(type(self))
        made.__dict__.update(attributes)
        return made


def compose(
    world: World,
    controller: Controller | Callable[..., Any],
    *,
    control: str | Sequence[str] | None = None,
    role: str = "network",
    name: str = "",
) -> ComposedWorld:
    """A world in which a controller computes controls, from what the world knows at the start of a step.

        @sg.controller
        def feedback(angle, speed, gain: sg.Param[2] = 0.0):
            return gain[0] * angle + gain[1] * speed

        closed = sg.compose(pendulum, feedback)         # the control `torque` is no input any more

    The weights become params, declared as in the controller, and the control becomes an observable of its name, which costs go on
    reading; a terminal cost reads that of the last step. Where the controller reads an observable, what
    that is computed from runs before the controller. Several controls take several controllers, one
    compose() after the other, or one controller that returns all of them.

    Args:
      world: with a program of its own: sg.world, ProgramBuilder, simgrad.jax.world.
      controller: sg.controller, simgrad.torch.controller, or a function of what it reads.
      control: what the controller computes, of the declared shapes; None: every control of the world.
      role: of the controller's operations: sg.Policy("f32").role("network", format="bf16").
      name: of the program; without one that of the world.
    Errors: ValueError for a built-in world, for names that are not there, there twice or out of reach,
      and for shapes that do not fit.
    """
    program = _program_of(world)
    made_by = _controller_of(controller, sys._getframe(1))
    names = _controls_of(program, control)
    _check_weights(program, made_by)
    b = ContinuedBuilder(program)
    b.program.name = name or program.name
    replaced = {n: b.declared(INPUT_KIND_CONTROL)[n] for n in names}
    _check_elements(made_by, replaced)
    reached = _reached(program, replaced)
    readable = _readable(b, set(names), reached)
    weights = {n: written_input(b, n, declared) for n, declared in made_by.weights.items()}
    with functions.writing(b), b.role(role):
        given = made_by.controls(readable, weights, {n: x.shape for n, x in replaced.items()})
        computed = _following(b, made_by, given, replaced)
    b.place(readable.taken, reached)
    b.connect(computed)
    before = world.controllers if isinstance(world, ComposedWorld) else ()
    return ComposedWorld(world, (*before, made_by), b.build())


# ---- What is given ----


def _program_of(world: World) -> program_pb2.Program:
    if not isinstance(world, World):
        raise TypeError(f"world is a simgrad.World, not {world!r}")
    program = world.program
    if program is None:
        raise ValueError(
            f"{world!r} is a name, and its program is on the server: compose("
            "sg.World(program=client.program(world).source), ...) takes it from there"
        )
    return program


def _controller_of(given: Any, frame: FrameType) -> Controller:
    if isinstance(given, Controller):
        return given
    if not inspect.isroutine(given):
        raise TypeError(
            f"controller: sg.controller, simgrad.torch.controller or a function, not {given!r}"
        )
    return controller_of(given, {}, frame)


def _controls_of(program: program_pb2.Program, control: str | Sequence[str] | None) -> list[str]:
    there = [i.name for i in program.inputs if i.kind == INPUT_KIND_CONTROL]
    names = there if control is None else [control] if isinstance(control, str) else list(control)
    if unknown := [n for n in names if n not in there]:
        raise ValueError(
            f"{program.name} has no control {', '.join(unknown)}; it has {', '.join(there) or 'none'}"
        )
    if not there:
        raise ValueError(f"{program.name} has no control that a controller could compute")
    if not names or len(set(names)) != len(names):
        raise ValueError(f"control {', '.join(names) or 'none'}: each once, of {', '.join(there) or 'none'}")
    return names


def _check_elements(controller: Controller, replaced: Mapping[str, Expression]) -> None:
    others = {n: x for n, x in replaced.items() if x.element != ELEMENT_TYPE_REAL}
    if controller.gives_reals_alone and others:
        raise ValueError(
            f"control {', '.join(f'{n} is {type_text(x)}' for n, x in others.items())}: {controller.name or 'the module'} "
            "gives reals, and can compute controls of reals alone; control=... names them"
        )


def _check_weights(program: program_pb2.Program, controller: Controller) -> None:
    there = {i.name for i in program.inputs if i.kind == INPUT_KIND_PARAM}
    if twice := [n for n in controller.weights if n in there]:
        raise ValueError(
            f"{controller.name} has weights {', '.join(twice)}, and {program.name} has params of these "
            "names: give other ones to the weights"
        )


def _reached(program: program_pb2.Program, replaced: Mapping[str, Expression]) -> set[int]:
    """Values that depend on the controls. Raises ValueError where z[0] is one of them."""
    initial = values_read(program.initial)
    for n, x in replaced.items():
        if x.value in initial:
            raise ValueError(f"{program.name} computes its initial state from control {n}, before any step")
    return depending_on(program.step.ops, [x.value for x in replaced.values()])


def _readable(b: ContinuedBuilder, replaced: set[str], reached: set[int]) -> Readable:
    """By name. A name of a state is the state; another that stands twice is refused where it is asked for."""
    states = b.declared(INPUT_KIND_STATE)
    values = dict(states)
    refused: dict[str, str] = {}
    inputs = [(i.name, i.value) for i in b.program.inputs]
    for name, value in (*inputs, *((e.name, e.value) for e in b.program.exports)):
        if name in states:
            continue
        if value in reached:
            computed = name in replaced
            refused[name] = _COMPUTED if computed else f"it depends on {', '.join(sorted(replaced))}"
        elif name in values and values[name].value != value:
            refused[name] = "two inputs or observables have this name"
        else:
            values[name] = Expression(b, value)
    return Readable(values, list(states), refused, b.step)


_COMPUTED = "it is what a controller computes"


def _following(
    b: ContinuedBuilder,
    controller: Controller,
    given: Mapping[str, Any],
    replaced: Mapping[str, Expression],
) -> dict[str, Expression]:
    if set(given) != set(replaced):
        raise ValueError(
            f"{controller.name} computes {', '.join(map(str, given)) or 'nothing'}, and is asked for "
            f"{', '.join(replaced)}"
        )
    return {n: b.fitted(given[n], like) for n, like in replaced.items()}
