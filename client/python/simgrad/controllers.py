"""Controllers: functions with weights of their own that compute the controls of a world from its states."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from types import FrameType
from typing import Any, Callable, ClassVar, Iterator, Mapping, overload

from simgrad import pickled
from simgrad.expression import Expression
from simgrad.v1.program_pb2 import ELEMENT_TYPE_REAL
from simgrad.world_function import Declared, Param, declared_inputs

Function = Callable[..., Any]
Shapes = Mapping[str, tuple[int, ...]]


class Readable(Mapping[str, Expression]):
    """The values that a controller may read, by name: states, inputs, observables that no control reaches, and `step`.

    Args:
      step: makes the number of the step, for a world that does not read it.
    Attributes:
      states: names of the real states, in their order. taken: names that have been read.
    """

    def __init__(
        self,
        values: Mapping[str, Expression],
        states: list[str],
        refused: Mapping[str, str],
        step: Callable[[], Expression],
    ):
        self._values = dict(values)
        self._refused = refused
        self._step = step
        self.states = [n for n in states if self._values[n].element == ELEMENT_TYPE_REAL]
        self.taken: set[str] = set()

    def __getitem__(self, name: str) -> Expression:
        """Raises ValueError for what is not there, or cannot be read."""
        if name in self._refused:
            raise ValueError(f"a controller cannot read {name}: {self._refused[name]}")
        if name == "step" and name not in self._values:
            self._values[name] = self._step()
        if name not in self._values:
            raise ValueError(f"the world has no {name} to read; it has {', '.join(sorted(self))}")
        self.taken.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Controller(ABC):
    """Computes controls of a world in every step; `simgrad.compose` puts it into the world.

    Attributes:
      name: for messages.
      weights: its own inputs, by name; they become params of the composed world, those that are
        Weights declared as such.
    """

    name: str
    weights: Mapping[str, Param]
    gives_reals_alone: ClassVar[bool] = False  # `compose` refuses other controls for it

    def values(self) -> Mapping[str, Any]:
        """Arrays of weights that requests send where the caller sends none."""
        return {
            n: d.default for n, d in self.weights.items() if d.default is not None and d.number is None
        }

    @abstractmethod
    def controls(
        self, readable: Readable, weights: Mapping[str, Expression], shapes: Shapes
    ) -> Mapping[str, Any]:
        """Writes the operations. Returns the controls by name.

        Args:
          shapes: of the controls that it computes, by name.
        """


class FunctionController(Controller):
    """The controller that a function computes; `simgrad.controller` makes one."""

    def __init__(self, function: Function, weights: Mapping[str, Param]):
        self._function = function
        self.name = getattr(function, "__name__", "controller")
        self.weights = dict(weights)
        self.__doc__ = function.__doc__

    @property
    def is_importable(self) -> bool:
        """Whether a module other than __main__ has it under its function's name."""
        return self._is_named and pickled.place_of(self._function)[0] != pickled.MAIN

    @property
    def _is_named(self) -> bool:
        return pickled.decorated(self._function) is self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By its name, where it has one. Otherwise as any object: its function says by itself that it is local."""
        if self._is_named:
            return _named_controller, pickled.place_of(self._function)
        return super().__reduce_ex__(protocol)

    def __copy__(self) -> "FunctionController":
        return FunctionController(self._function, self.weights)

    def __deepcopy__(self, memo: Any) -> "FunctionController":
        return FunctionController(self._function, self.weights)

    def controls(
        self, readable: Readable, weights: Mapping[str, Expression], shapes: Shapes
    ) -> Mapping[str, Any]:
        names = inspect.signature(self._function).parameters
        made = self._function(**{n: weights[n] if n in weights else readable[n] for n in names})
        if isinstance(made, Mapping):
            return made
        values = list(made) if isinstance(made, (list, tuple)) and len(shapes) > 1 else [made]
        if made is None or len(values) != len(shapes):
            raise TypeError(f"{self.name} returns {', '.join(shapes)}, in this order or as a mapping")
        return dict(zip(shapes, values))


def _named_controller(module: str, name: str) -> FunctionController:
    found = pickled.loaded(module, name)
    if not isinstance(found, FunctionController):
        raise AttributeError(f"{module} has no controller {name}, which was pickled by this name")
    return found


@overload
def controller(function: Function, /) -> FunctionController: ...


@overload
def controller(**weights: Declared) -> Callable[[Function], FunctionController]: ...


def controller(function: Function | None = None, /, **weights: Declared) -> Any:
    """Turns a function that computes controls into a Controller, for `simgrad.compose`.

        @sg.controller
        def feedback(angle, speed, gain: sg.Param[2] = 0.0):
            return gain[0] * angle + gain[1] * speed

    Arguments declared as sg.Weights or sg.Param, by annotation or by keywords of the decorator, are its
    weights; sg.Param may be sent per instance, sg.Weights takes less memory for its gradient. All
    others are read from the world, by name. It returns one control, several in the order in which
    `compose` names them, or a mapping by name.

    Errors: TypeError for an argument that is declared as anything else.
    """
    frame = sys._getframe(1)
    if function is None:
        return lambda wrapped: controller_of(wrapped, weights, frame)
    return controller_of(function, weights, frame)


def controller_of(
    function: Function, weights: Mapping[str, Declared], frame: FrameType
) -> FunctionController:
    """The controller of a function; annotations that are text are read in `frame`."""
    declared = declared_inputs(function, weights, frame)
    if unknown := sorted(set(weights) - set(declared)):
        raise TypeError(f"{function.__name__} has no argument {', '.join(unknown)}")
    params = {n: d for n, d in declared.items() if isinstance(d, Param)}
    if other := [n for n in declared if n not in params]:
        raise TypeError(
            f"{function.__name__}: {', '.join(other)} is read from the world, and has no annotation; "
            "sg.Weights or sg.Param makes a weight"
        )
    return FunctionController(function, params)
