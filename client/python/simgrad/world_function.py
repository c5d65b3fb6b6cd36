"""A world from a Python function of named states, params, controls, data and config."""

from __future__ import annotations

import inspect
import operator
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any, Callable, Mapping, Sequence, TypeVar, overload

import numpy as np

from simgrad import expression, functions, pickled
from simgrad.expression import Expression
from simgrad.numpy_operands import element_as
from simgrad.program import ProgramBuilder
from simgrad.source_line import on_behalf_of, source_line
from simgrad.v1 import program_pb2, simgrad_pb2
from simgrad.v1.program_pb2 import ELEMENT_TYPE_REAL
from simgrad.world import WithDefaults, World

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class Declared:
    """The kind of an argument of a world's function. As an annotation: State, State[3], State(8, 3),
    State(dtype="i32").

    Attributes:
      shape: of one instance.
      default: for requests that send none: a number for every element, or an array of the shape; of a
        Config its number.
      dtype: real, i32, i64, u32, u8 or bool, of a State, Param, Control or Data.
    """

    shape: tuple[int, ...] = ()
    default: Any = None
    dtype: Any = "real"

    def __init__(self, *shape: Any, default: Any = None, dtype: Any = "real"):
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        try:
            object.__setattr__(self, "shape", tuple(operator.index(n) for n in given))
        except TypeError:
            wrong = next(n for n in given if not hasattr(n, "__index__"))
            kind = type(self).__name__
            raise TypeError(f"{source_line().text}: {kind}[{wrong!r}]: a shape has whole numbers; a dtype is {kind}(3, dtype=\"i32\")") from None
        if default is not None and np.ndim(default) > 0 and np.shape(default) != self.shape:
            raise ValueError(
                f"a default of shape {np.shape(default)} for an input of shape {self.shape}"
            )
        object.__setattr__(self, "default", default)
        object.__setattr__(self, "dtype", dtype)

    def __class_getitem__(cls, shape: Any) -> "Declared":
        return cls(*shape) if isinstance(shape, tuple) else cls(shape)

    def with_default(self, default: Any) -> "Declared":
        return type(self)(*self.shape, default=default, dtype=self.dtype)

    @property
    def number(self) -> Any:
        """The default, where it is one number."""
        return None if self.default is None or np.ndim(self.default) > 0 else self.default


class State(Declared):
    """Changes from step to step; the function returns its next value."""


class Param(Declared):
    """The same at every step; gradients go to it."""


class Weights(Param):
    """A param that all instances share, such as a matrix of a network: w: sg.Weights[4, 64]. Its
    gradient takes memory for each block of 256 instances; that of a Param takes it for each instance."""


class Control(Declared):
    """May be sent per step; gradients go to it."""


class Data(Declared):
    """May be sent per step, and has no gradient."""


class Config(Declared):
    """A number that shapes the program and is part of it: another one makes another world."""


class Step(Declared):
    """The number of the step, an i32."""


# The kinds of inputs that may be arrays.
_KINDS: dict[type[Declared], int] = {
    State: program_pb2.INPUT_KIND_STATE,
    Param: program_pb2.INPUT_KIND_PARAM,
    Weights: program_pb2.INPUT_KIND_PARAM,
    Control: program_pb2.INPUT_KIND_CONTROL,
    Data: program_pb2.INPUT_KIND_DATA,
}


@dataclass(frozen=True)
class _Cost:
    name: str
    stage: Function | None
    terminal: Function | None


class FunctionWorld(World):
    """The world that a function computes a step of; `simgrad.world` makes one.

    Called with config by name, it gives the world with other numbers: pendulum(h=0.02).
    The program is written when it is first needed.
    """

    def __init__(self, function: Function, declared: Mapping[str, Declared], name: str, level: str):
        self._function = function
        self._inputs = dict(declared)
        self._title = name
        self._level = level
        self._costs: list[_Cost] = []
        self._start: Function | None = None
        self._written: simgrad_pb2.World | None = None
        self.__doc__ = function.__doc__
        self.__name__ = name

    def objective(self, cost: F) -> F:
        """Decorates a terminal cost: a function of states (at the end), observed values (of the
        last step), params and other inputs, by the names of its arguments. Together with a stage cost
        of the same name it is one objective, their sum.

        Raises ValueError where the world has a terminal cost of that name.
        """
        self._add(_Cost(_objective_of(cost), None, cost))
        return cost

    def stage_cost(self, cost: F) -> F:
        """Decorates a cost of every step, summed: a function of inputs (states at the start of the
        step) and observed values, by the names of its arguments. As `objective` otherwise."""
        self._add(_Cost(_objective_of(cost), cost, None))
        return cost

    def _add(self, cost: _Cost) -> None:
        """Brings in a cost, beside that of the other kind where there is one of its name."""
        for i, other in enumerate(self._costs):
            if other.name != cost.name:
                continue
            kind = "terminal" if cost.stage is None else "stage"
            if (other.terminal if cost.stage is None else other.stage) is not None:
                line = source_line().text
                raise ValueError(
                    f"{line}: {self._title} has a {kind} cost {cost.name} already: give this one another name"
                )
            self._costs[i] = _Cost(
                cost.name, cost.stage or other.stage, cost.terminal or other.terminal
            )
            break
        else:
            self._costs.append(cost)
        self._written = None

    def initial(self, start: F) -> F:
        """Decorates a function of inputs that returns {state: value}: z[0] from what was sent."""
        self._start = start
        self._written = None
        return start

    def __call__(self, **config: float) -> "FunctionWorld":
        numbers = {n for n, d in self._inputs.items() if isinstance(d, Config)}
        if unknown := sorted(set(config) - numbers):
            raise TypeError(
                f"{self._title}: no config {', '.join(unknown)}; it has {', '.join(sorted(numbers)) or 'none'}"
            )
        inputs = {
            n: d.with_default(config[n]) if n in config else d
            for n, d in self._inputs.items()
        }
        other = FunctionWorld(self._function, inputs, self._title, self._level)
        other._costs, other._start = list(self._costs), self._start
        return other

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """By its name and its config, where its module has this world under this name; otherwise as the program
        that it writes. A name in __main__ goes with the program, as another process may have another __main__."""
        named = self._named()
        if named is None:
            return WithDefaults, (self._message, self.array_defaults)
        place = pickled.place_of(self._function)
        numbers = {n: d.default for n, d in self._inputs.items() if d is not named._inputs[n]}
        if place[0] != pickled.MAIN:
            return _named_world, (*place, numbers)
        return _named_world, (*place, numbers, self._message, self.array_defaults)

    def __copy__(self) -> "FunctionWorld":
        return self()

    def __deepcopy__(self, memo: Any) -> "FunctionWorld":
        return self()

    def _named(self) -> "FunctionWorld | None":
        """The world of its function's name in its function's module, where it is this one but for config, and the
        module makes all of it."""
        other = pickled.decorated(self._function)
        if not isinstance(other, FunctionWorld) or other._parts() != self._parts():
            return None
        module = pickled.place_of(self._function)[0]
        made = [f for cost in self._costs for f in (cost.stage, cost.terminal)]
        return other if all(pickled.is_of(f, module) for f in (*made, self._start)) else None

    def _parts(self) -> tuple[Any, ...]:
        """All of it but config; inputs by identity, as a default may be an array."""
        inputs = [(n, None if isinstance(d, Config) else id(d)) for n, d in self._inputs.items()]
        return self._function, self._title, self._level, self._start, self._costs, inputs

    @property
    def array_defaults(self) -> Mapping[int, Mapping[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for name, declared in self._inputs.items():
            if declared.default is not None and declared.number is None:
                found.setdefault(_KINDS[type(declared)], {})[name] = declared.default
        return found

    @property
    def _message(self) -> simgrad_pb2.World:
        if self._written is None:
            self._written = simgrad_pb2.World(program=self._write().build())
        return self._written

    def _write(self) -> ProgramBuilder:
        b = ProgramBuilder(self._title, self._level)
        on_behalf_of(self._function, lambda: self._write_into(b))
        return b

    def _write_into(self, b: ProgramBuilder) -> None:
        inputs = {name: written_input(b, name, declared) for name, declared in self._inputs.items()}
        with functions.writing(b):
            if self._start is not None:
                start = self._start
                on_behalf_of(start, lambda: b.initial(lambda: _called(start, _wanted(start, inputs))))
            b.next(**self._states_of(b, _called(self._function, inputs)))
            for cost in self._costs:
                _write_cost(b, cost, inputs)

    def _states_of(self, b: ProgramBuilder, made: Any) -> dict[str, Any]:
        """Next states by name, from a mapping, or from values in the order of the arguments."""
        states = [n for n, d in self._inputs.items() if isinstance(d, State)]
        if isinstance(made, Mapping):
            return {**{n: Expression(b, i.value) for n, i in _by_name(b, states)}, **made}
        values = list(made) if isinstance(made, (list, tuple)) else [made]
        if made is None or len(values) != len(states):
            raise TypeError(
                f"{b.here()}{self._title} returns the next value of {', '.join(states)}, in this order or as a mapping"
            )
        return dict(zip(states, values))


def _named_world(
    module: str,
    name: str,
    config: Mapping[str, float],
    message: simgrad_pb2.World | None = None,
    defaults: Mapping[int, Mapping[str, Any]] | None = None,
) -> World:
    """A world that was pickled by its name; where there is none of it, the program that went along."""
    found = pickled.loaded(module, name)
    if message is None:
        if not isinstance(found, FunctionWorld):
            raise AttributeError(f"{module} has no world {name}, which was pickled by this name")
        return found(**config) if config else found
    if isinstance(found, FunctionWorld) and set(config) <= set(found._inputs):
        other = found(**config) if config else found
        if other._message == message:
            return other
    return WithDefaults(message, defaults or {})


def _name_of(function: Function) -> str:
    """The name that a def gave; "" for a lambda, and for what has none."""
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else ""


def _objective_of(cost: Function) -> str:
    name = _name_of(cost)
    if not name:
        raise ValueError(f"{source_line().text}: an objective has the name of its function: write a def")
    return name


def _by_name(b: ProgramBuilder, names: Sequence[str]) -> list[tuple[str, Any]]:
    return [(i.name, i) for i in b.program.inputs if i.name in names]


def written_input(b: ProgramBuilder, name: str, declared: Declared) -> Expression:
    """Declares an input in the program that is being written."""
    try:
        element = element_as(declared.dtype, ELEMENT_TYPE_REAL)
    except TypeError as error:
        raise TypeError(f"{b.here()}{name}: {error}") from None
    if isinstance(declared, (Config, Step, Weights)) and element != ELEMENT_TYPE_REAL:
        raise TypeError(f"{b.here()}{name}: a {type(declared).__name__} has no dtype")
    if isinstance(declared, (Config, Step)) and declared.shape:
        raise TypeError(f"{b.here()}{name}: a {type(declared).__name__} is one number, and has no shape")
    if isinstance(declared, Config):
        if declared.number is None:
            raise TypeError(f"config {name} needs its number: {name}: sg.Config = 0.01")
        return b.config(name, declared.number)
    if isinstance(declared, Step):
        if declared.default is not None:
            raise TypeError(f"{b.here()}{name}: a Step is counted, and has no default")
        return b.step()
    if isinstance(declared, Weights):
        return b.weights(name, declared.shape, declared.number)
    if isinstance(declared, State):
        return b.state(name, declared.shape, element, declared.number)
    write = {Param: b.param, Control: b.control, Data: b.data}[type(declared)]
    return write(name, declared.shape, declared.number, element)


def _write_cost(b: ProgramBuilder, cost: _Cost, inputs: Mapping[str, Expression]) -> None:
    stage, terminal = cost.stage, cost.terminal
    exports = {e.name: Expression(b, e.value) for e in b.program.exports}

    def made(part: Function, known: Mapping[str, Any]) -> Any:
        return on_behalf_of(part, lambda: b.cost(cost.name, _called(part, _wanted(part, known))))

    def at_step() -> Any:
        return made(stage, {**inputs, **exports}) if stage else None

    def at_end(states: Mapping[str, Expression], last: Mapping[str, Expression]) -> Any:
        return made(terminal, {**inputs, **last, **states}) if terminal else None

    def write() -> None:
        b.objective(cost.name, stage=at_step if stage else None, terminal=at_end if terminal else None)

    function = stage or terminal
    on_behalf_of(function, write) if function else write()


# The words of NumPy for an element that is no number.
_OF_NUMPY = "setting an array element with a sequence"


def _called(function: Function, arguments: Mapping[str, Any]) -> Any:
    """function(**arguments). An error of ours that NumPy put its own in front of (`y[i] = x[i]` with y an array of
    NumPy) is raised in place of that one, as it says the line and what to write."""
    try:
        return function(**arguments)
    except (TypeError, ValueError) as error:
        cause = error.__cause__
        if cause is None or not _is_ours(cause) or _OF_NUMPY not in str(error):
            raise
        raise cause.with_traceback(error.__traceback__) from None


def _is_ours(error: BaseException) -> bool:
    """Whether a value of the world raised it, for a function of the user's."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_filename == expression.__file__


def _wanted(function: Function, known: Mapping[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(function).parameters)
    if unknown := [n for n in names if n not in known]:
        line = source_line().text
        raise TypeError(
            f"{line and line + ': '}{function.__name__} asks for {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    return {n: known[n] for n in names}


def declared_inputs(
    function: Function, given: Mapping[str, Declared], frame: FrameType
) -> dict[str, Declared]:
    """Arguments that are declared, by `given` or by annotation, with their defaults. Annotations that
    are text are read in `frame`."""
    declared: dict[str, Declared] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = given.get(name, function.__annotations__.get(name))
        if isinstance(kind, str):
            kind = eval(kind, frame.f_globals, dict(frame.f_locals))
        if isinstance(kind, type) and issubclass(kind, Declared):
            kind = kind()
        if isinstance(kind, Declared):
            empty = parameter.default is inspect.Parameter.empty
            declared[name] = kind if empty else kind.with_default(parameter.default)
    return declared


def _declarations(function: Function, given: Mapping[str, Declared]) -> dict[str, Declared]:
    declared = declared_inputs(function, given, sys._getframe(2))
    takes_more = False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_more = True
        elif parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"{function.__name__}: *{name} names no inputs: write an argument for each")
        elif name not in declared:
            raise TypeError(
                f"{function.__name__}: what is {name}? Annotate it ({name}: sg.State), or give it to "
                f"the decorator (sg.world({name}=sg.State(3))): State, Param, Weights, Control, Data, "
                "Config or Step"
            )
    if takes_more:
        declared.update({name: kind for name, kind in given.items() if name not in declared})
    if unknown := sorted(set(given) - set(declared)):
        raise TypeError(f"{function.__name__} has no argument {', '.join(unknown)}")
    return declared


@overload
def world(function: Function, /, *, name: str = "", level: str = "decisions") -> FunctionWorld: ...


@overload
def world(
    *, name: str = "", level: str = "decisions", **inputs: Declared
) -> Callable[[Function], FunctionWorld]: ...


def world(
    function: Function | None = None,
    /,
    *,
    name: str = "",
    level: str = "decisions",
    **inputs: Declared,
) -> Any:
    """Turns a function that computes one step into a World.

        @sg.world
        def pendulum(angle: sg.State, speed: sg.State, gravity: sg.Param = 9.81, h: sg.Config = 0.01):
            speed = speed - h * gravity * np.sin(angle)
            return {"angle": angle + h * speed, "speed": speed}

        @pendulum.objective
        def final_energy(speed):
            return 0.5 * speed * speed

    Its arguments are states, params, weights, controls, data, config and the step, by annotation or by keywords
    of the decorator (sg.world(angle=sg.State(3))). It returns the next states, as a mapping (a state that is not
    in it stays) or in their order. It runs once, to write the program: Python's own `if` and loops decide then,
    and where, cond, while_loop, for_loop and scan for each instance.

    Args:
      name: of the program; without one that of the function, and "world" of a lambda.
      level: which comparisons of reals are sites; see ProgramBuilder.
    """

    def decorate(wrapped: Function) -> FunctionWorld:
        return FunctionWorld(
            wrapped, _declarations(wrapped, inputs), name or _name_of(wrapped) or "world", level
        )

    if function is None:
        return decorate
    return FunctionWorld(
        function, _declarations(function, inputs), name or _name_of(function) or "world", level
    )
