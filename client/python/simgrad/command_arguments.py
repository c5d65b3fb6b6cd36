"""Arguments that several commands of the command line take, and what they say."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from typing import Any, Sequence

import numpy as np

from simgrad.arrays import PerStep
from simgrad.client import Client
from simgrad.command_output import NotWritten
from simgrad.constants import element_name, holds, range_of
from simgrad.named_world import named_world
from simgrad.request import Declaration, declarations_of
from simgrad.v1 import program_pb2
from simgrad.world import World

WORLD_HELP = (
    "a built-in world; or file.py:NAME or module:NAME, a World of Python or a function that returns one; or "
    "file.txtpb, which World.save wrote"
)


def target(text: str) -> str:
    """The argument of an option that names a server."""
    if not text:
        raise argparse.ArgumentTypeError("host:port, and it is empty")
    return text


def file_name(text: str) -> str:
    """The argument of an option that names a file."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a file, and it is empty")
    return text


def preset(text: str) -> str:
    """The argument of an option that names a preset."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a preset, and it is empty")
    return text


def number(text: str) -> float:
    """The argument of an option that is a number."""
    try:
        return _number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def int32(text: str) -> int:
    """The argument of an option that is an int32."""
    value = _decimal(text)
    if not -(1 << 31) <= value < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text} is beyond the range of an int32")
    return value


def fits_int64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _int64(text: str) -> int:
    value = _decimal(text)
    if not fits_int64(value):
        raise argparse.ArgumentTypeError(f"{text} is beyond the range of an int64")
    return value


def _uint64(text: str) -> int:
    value = _decimal(text)
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text} is beyond the range of a uint64")
    return value


def _decimal(text: str) -> int:
    found = re.fullmatch(r"\s*([+-]?)0*([0-9]+)\s*", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    sign, digits = found.groups()
    return int(sign + digits[:30])  # enough to be beyond 64 bits; Python reads no more than some thousand


def add_world(command: argparse.ArgumentParser) -> None:
    """The world, by its place or as --world."""
    either = command.add_mutually_exclusive_group(required=True)
    either.add_argument("world", nargs="?", default=argparse.SUPPRESS, metavar="WORLD", help=WORLD_HELP)
    either.add_argument("--world", default=argparse.SUPPRESS, metavar="WORLD", help="the same, as an option")


def add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a number, a word, true or false, or numbers with commas between (repeatable); arguments of a function "
        "that returns a world",
    )


def add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--steps", type=_int64, required=True, help="number of steps")
    for name, what in (
        ("initial", "initial state"),
        ("param", "parameter"),
        ("control", "control"),
        ("data", "data"),
    ):
        command.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME=VALUES",
            help=f"{what} (repeatable)",
        )
    command.add_argument(
        "--per-step",
        action="append",
        default=[],
        metavar="NAME",
        help="a control or data whose array @file.npy has a value per step, [step, field], that all instances share "
        "(repeatable)",
    )
    command.add_argument(
        "--weights", metavar="VALUES", help="one per instance, of their values in the sum (default ones)"
    )
    command.add_argument(
        "--instances", type=_int64, default=0, metavar="N", help="how many, where no input says so"
    )
    command.add_argument(
        "--first-instance", type=_uint64, default=0, metavar="ID", help="id of the first (default 0)"
    )
    command.add_argument("--seed", type=_uint64, default=0, metavar="S", help="of random draws (default 0)")
    command.add_argument("--progress", action="store_true", help="show a progress bar")


def world_of(options: argparse.Namespace) -> World:
    return named_world(options.world, config_of("config", options.config))


def sent(client: Client, world: World, options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of calls that `add_inputs` asks for."""
    source = client.program(world).source
    declared, shapes = declarations_of(source), _shapes_of(source)
    shared = set(options.per_step)

    def inputs(option: str, given: Sequence[str], kind: int) -> dict[str, Any]:
        found = {
            name: named_array_of(
                f"--{option} {name}", text, declared.get((kind, name), Declaration(0)), shapes.get((kind, name), ())
            )
            for name, text in assignments(option, given).items()
        }
        if option not in ("control", "data"):
            return found
        series = {name: PerStep(array) for name, array in found.items() if name in shared}
        shared.difference_update(series)
        return {**found, **series}

    groups = dict(
        initial=inputs("initial", options.initial, program_pb2.INPUT_KIND_STATE),
        params=inputs("param", options.param, program_pb2.INPUT_KIND_PARAM),
        controls=inputs("control", options.control, program_pb2.INPUT_KIND_CONTROL),
        data=inputs("data", options.data, program_pb2.INPUT_KIND_DATA),
    )
    if shared:
        raise ValueError(f"--per-step {', '.join(sorted(shared))}: no --control or --data has this name")
    return dict(
        **groups,
        steps=options.steps,
        objective=options.objective,
        weights=None if options.weights is None else named_array_of("--weights", options.weights, Declaration(1)),
        instances=options.instances,
        first_instance=options.first_instance,
        seed=options.seed,
        progress=options.progress,
    )


def shape_of_state(client: Client, world: World, name: str) -> tuple[int, ...]:
    """The declared shape of a state; () where it is not known."""
    return _shapes_of(client.program(world).source).get((program_pb2.INPUT_KIND_STATE, name), ())


def _shapes_of(source: program_pb2.Program | None) -> dict[tuple[int, str], tuple[int, ...]]:
    if source is None:
        return {}
    return {(i.kind, i.name): tuple(source.values[i.value].shape) for i in source.inputs}


def assignments(option: str, texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE by name; each name once, so that nothing that was typed is ignored."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--{option} {text}: NAME=VALUE")
        if name in values:
            raise ValueError(f"--{option} {name} is given twice, as {values[name]} and as {value}")
        values[name] = value
    return values


class _WrongNumber(ValueError):
    """A number that is too large, or written as Python alone reads it: it is no word either."""


def _number(text: str) -> float:
    beyond = f"{text!r} is beyond the largest f64"
    other = f"{text!r} is no number: decimal, or C hexadecimal (0x1.8p-11)"
    try:
        value = float.fromhex(text) if "0x" in text.lower() else float(text)
    except OverflowError:
        raise _WrongNumber(beyond) from None
    except ValueError:
        raise ValueError(other) from None
    if "_" in text or not text.isascii():
        raise _WrongNumber(other)
    if math.isinf(value) and "inf" not in text.lower():
        raise _WrongNumber(beyond)
    return value


def config_of(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Configuration by name, from NAME=VALUE of an option."""
    config: dict[str, Any] = {}
    for name, text in assignments(option, texts).items():
        try:
            config[name] = _config_value(text)
        except _WrongNumber as error:
            raise ValueError(f"--{option} {name}: {error}") from None
    return config


def _config_value(text: str) -> float | str | bool | tuple[float, ...]:
    if text in ("true", "false"):
        return text == "true"
    try:
        return tuple(map(_number, text.split(","))) if "," in text else _number(text)
    except _WrongNumber:
        raise
    except ValueError:
        return text


def _whole_number(text: str) -> int:
    """An integer, or a bool as 0 or 1."""
    if text in ("true", "false"):
        return int(text == "true")
    try:
        if "_" in text or not text.isascii():
            raise ValueError
        return int(text, 0)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number, nor true or false") from None


def named_array_of(what: str, text: str, declared: Declaration, shape: Sequence[int] = ()) -> Any:
    """`array_of`, whose errors begin with `what`: the option, and the name that it gives."""
    try:
        return array_of(text, declared, shape)
    except OSError as error:
        raise ValueError(f"{what}: {text[1:]}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def array_of(text: str, declared: Declaration, shape: Sequence[int] = ()) -> Any:
    """The numbers of `text`; a single number stays one where the input is declared as a scalar. A list with one
    number per element of `shape` gets it, the last axis first. Whole numbers of integers and bools have no dtype
    of their own."""
    if text.startswith("@"):
        return _array_in(text[1:])
    is_real = declared.element == program_pb2.ELEMENT_TYPE_REAL
    numbers = [(_number if is_real else _whole_number)(part) for part in text.split(",")]
    if not is_real and not holds(declared.element, np.array(numbers, object)):
        raise ValueError(f"an input of {element_name(declared.element)} takes {range_of(declared.element)}, not {text}")
    values: Any = numbers[0] if declared.rank == 0 and len(numbers) == 1 else numbers
    if len(shape) > 1 and len(numbers) == math.prod(shape):
        values = np.array(numbers, object).reshape(shape).tolist()
    return np.array(values) if is_real else values


def _array_in(file: str) -> np.ndarray:
    try:
        array = np.load(file, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # NumPy has a kind of its own for each way in which a file is none
        raise ValueError(f"{file}: no array of numbers that np.save wrote ({type(error).__name__})") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{file}: several arrays in an .npz; save the one that is meant as .npy")
    return array


def drop_output() -> None:
    """Sends standard output nowhere: Python flushes the rest at its end, and would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_fields(options: argparse.Namespace, fields: dict[str, Any], text: Any) -> None:
    shown = json.dumps(fields, indent=2) if options.json else text(fields)
    try:
        # Flushed here, so that a reader that has left is noticed here.
        print(shown, flush=True)
    except OSError as error:
        drop_output()
        if isinstance(error, BrokenPipeError):
            raise
        raise NotWritten(f"standard output: it cannot be written ({error.strerror})") from None
