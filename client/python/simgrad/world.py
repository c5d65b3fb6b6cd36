"""A world: the differentiable program z[t+1] = F(z[t], u[t]; theta) that a server unrolls."""

from __future__ import annotations

import numbers
import os
import pathlib
from typing import TYPE_CHECKING, Any, Iterable, Mapping

import numpy as np
from google.protobuf import text_format

from simgrad import arrays, named_programs
from simgrad.program_lines import site_lines
from simgrad.v1 import program_pb2, simgrad_pb2

if TYPE_CHECKING:
    from simgrad.program import ProgramBuilder


class World:
    """A built-in world with its configuration, or a program of the caller's own.

    Args:
      name: a built-in world; `simgrad worlds` lists them with their configuration.
      program: a simgrad.v1.Program instead of a name, or a ProgramBuilder with one; simgrad.world makes
        a World of a function. It has no configuration: its numbers are in it.
      config: numbers, words and flags that shape a built-in world, for example contact="toi",
        elements=9.
    """

    # Made of a message, which comes first, when they are first asked for.
    _lines: tuple[simgrad_pb2.World, Mapping[str, str]] | None = None
    _request: tuple[simgrad_pb2.World, named_programs.NamedProgram | None, simgrad_pb2.World] | None = None

    def __init__(
        self,
        name: str | None = None,
        *,
        program: "program_pb2.Program | ProgramBuilder | None" = None,
        **config: Any,
    ):
        if (name is None) == (program is None):
            raise TypeError("a World has a name or a program, and not both")
        if program is not None and config:
            raise TypeError(f"an inline program has no configuration: {', '.join(sorted(config))}")
        if program is None:
            message = simgrad_pb2.World(name=name)
        elif isinstance(program, program_pb2.Program):
            message = simgrad_pb2.World(program=program)
        else:
            message = simgrad_pb2.World(program=program.build())
        for key, value in config.items():
            _set_config(message.config[key], key, value)
        self._own_message = message

    @property
    def _message(self) -> simgrad_pb2.World:
        return self._own_message

    @property
    def array_defaults(self) -> Mapping[int, Mapping[str, Any]]:
        """Arrays that requests send where the caller sends none, by kind of input and name."""
        return {}

    def named(self, kind: int, given: Any) -> Mapping[str, Any]:
        """The arrays of one kind of input by name, of what the caller sends. Raises TypeError for what has no names."""
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"{_FIELD_OF_KIND[kind]} are arrays by name, a dict, not {given!r}")
        return given or {}

    def unsent_instances(self, kind: int, given: Any) -> frozenset[int]:
        """Numbers of instances that arrays of the caller have which the world does not send."""
        return frozenset()

    def check_record(self, names: Iterable[str]) -> None:
        """Raises ValueError for a name that the world could record, had its author asked for it."""

    @property
    def halt_messages(self) -> Mapping[str, str]:
        """Messages of halts, by name, where their authors give any."""
        return {}

    def shaped(self, result: Any) -> None:
        """Gives an answer the form of the world's own, in place."""

    @property
    def name(self) -> str:
        return self._message.name or self._message.program.name

    @property
    def program(self) -> program_pb2.Program | None:
        """A copy of the inline program, or None for a built-in world."""
        if not self.has_program:
            return None
        copy = program_pb2.Program()
        copy.CopyFrom(self._message.program)
        return copy

    @property
    def has_program(self) -> bool:
        """Whether it is an inline program, and not a built-in world."""
        return bool(self._message.WhichOneof("source") == "program")

    def lines_of_sites(self, message: simgrad_pb2.World | None = None) -> Mapping[str, str]:
        """The line of the caller's file of each site of an inline program, by the site's name. `message`: to_proto of
        this world at an earlier time, which may have had other costs; None: that of now."""
        message = self._message if message is None else message
        if self._lines is None or self._lines[0] is not message:
            is_program = message.WhichOneof("source") == "program"
            self._lines = message, site_lines(message.program) if is_program else {}
        return self._lines[1]

    def to_proto(self) -> simgrad_pb2.World:
        """The world's message, which is not to be changed."""
        return self._message

    def to_request(self) -> simgrad_pb2.World:
        """The message that a request has of it: a large program is named there (named_programs), as long as this
        world lives."""
        message = self._message
        if self._request is None or self._request[0] is not message:
            found = named_programs.named(message.program) if self.has_program else None
            sent = message if found is None else simgrad_pb2.World(program_ref=found.sha256)
            self._request = message, found, sent
        return self._request[2]

    def __getstate__(self) -> dict[str, Any]:
        made = ("_lines", "_request")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the world and its array defaults as a text file that World.load reads: a
        simgrad.v1.RolloutSpec in the text format of protobuf."""
        spec = simgrad_pb2.RolloutSpec(world=self._message)
        for kind, field in _FIELD_OF_KIND.items():
            for name, value in self.array_defaults.get(kind, {}).items():
                per_step = isinstance(value, arrays.PerStep)
                tensor = arrays.to_tensor(np.asarray(value.array if per_step else value))
                getattr(spec, field).add(name=name, tensor=tensor, per_step=per_step)
        pathlib.Path(path).write_text(text_format.MessageToString(spec), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "World":
        """The world that World.save wrote.

        Errors: OSError; ValueError for a file that holds something else.
        """
        spec = simgrad_pb2.RolloutSpec()
        try:
            text_format.Parse(pathlib.Path(path).read_text(encoding="utf-8"), spec)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise ValueError(f"{os.fspath(path)}: no world that World.save wrote: {error}") from None
        if spec.world.WhichOneof("source") is None:
            raise ValueError(f"{os.fspath(path)}: names no world and holds no program")
        if spec.world.WhichOneof("source") == "program_ref":
            raise ValueError(f"{os.fspath(path)}: names a program that was uploaded, and does not hold it")
        defaults = {
            kind: {t.name: _default_of(t) for t in getattr(spec, field)}
            for kind, field in _FIELD_OF_KIND.items()
        }
        return WithDefaults(spec.world, defaults)

    def __repr__(self) -> str:
        config = "".join(
            f", {key}={getattr(value, value.WhichOneof('value'))!r}"
            for key, value in sorted(self._message.config.items())
        )
        return (
            f"World({self.name!r}{config})"
            if not self.has_program
            else f"World(program={self.name!r})"
        )


class WithDefaults(World):
    """A world as its message has it, with array defaults."""

    def __init__(self, message: simgrad_pb2.World, defaults: Mapping[int, Mapping[str, Any]]):
        self._own_message = message
        self._defaults = defaults

    @property
    def array_defaults(self) -> Mapping[int, Mapping[str, Any]]:
        return self._defaults


_FIELD_OF_KIND: dict[int, str] = {
    program_pb2.INPUT_KIND_STATE: "initial",
    program_pb2.INPUT_KIND_PARAM: "params",
    program_pb2.INPUT_KIND_CONTROL: "controls",
    program_pb2.INPUT_KIND_DATA: "data",
}


def _default_of(sent: simgrad_pb2.NamedTensor) -> Any:
    array = arrays.from_tensor(sent.tensor)
    return arrays.PerStep(array) if sent.per_step else array


def _set_config(message: simgrad_pb2.ConfigValue, key: str, value: Any) -> None:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        message.flag = bool(value)
    elif isinstance(value, str):
        message.word = value
    elif isinstance(value, numbers.Real):
        message.number = float(value)
    else:
        raise TypeError(f"config {key}: a number, a word or a flag, not {value!r}")
