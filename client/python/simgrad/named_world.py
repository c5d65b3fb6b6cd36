"""Worlds by the names that the command line takes."""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import sys
import traceback
from typing import Any, Iterator, Mapping

from simgrad.world import World
from simgrad.world_function import FunctionWorld


ENDING = ".txtpb"  # of files that World.save wrote


def named_world(text: str, config: Mapping[str, Any]) -> World:
    """The world of a name: `bouncing_ball`, of the server; `file.py:pendulum` or
    `package.module:pendulum`, a World in a Python file or module, or a function that returns one;
    `world.txtpb`, a file of World.save.

    Args:
      config: of the world, or arguments of the function, where whole numbers are ints.
    """
    if text.endswith(ENDING):
        return _configured(text, World.load(text), config)
    source, colon, name = text.rpartition(":")
    if not colon:
        return World(text, **config)
    found = _members(source).get(name)
    if isinstance(found, FunctionWorld):
        with _told(f"--world {text}: {name}"):
            configured = found(**config) if config else found
        return _written(text, name, configured)
    if isinstance(found, World):
        return _written(text, name, _configured(text, found, config))
    try:
        with _told(f"--world {text}: {name}"):
            made = found(**{k: _whole(v) for k, v in config.items()}) if callable(found) else found
    except SystemExit as error:
        raise ValueError(f"--world {text}: {name} ends Python ({error!r}), and returns no world") from None
    if not isinstance(made, World):
        raise ValueError(f"--world {text}: {name} is {_what(found)}, and not a simgrad.World")
    return _written(text, name, made)


def _written(text: str, name: str, world: World) -> World:
    """The world, whose functions have run and raised nothing."""
    with _told(f"--world {text}: {name}"):
        world.program
    return world


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors that a user's function raises, with their line. This package's own say by themselves what was wrong."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not _is_outside(frames[-1]):
            if isinstance(error, AttributeError):  # of what a value of a world has not
                raise ValueError(str(error)) from None
            raise
        raise ValueError(f"{what} fails{_line_of(error)} with {type(error).__name__}: {error}") from None


def _configured(text: str, world: World, config: Mapping[str, Any]) -> World:
    if config:
        raise ValueError(f"--config {', '.join(sorted(config))}: {text} has its configuration")
    return world


def _members(source: str) -> Mapping[str, Any]:
    is_file = source.endswith(".py")
    try:
        if not is_file:
            return vars(importlib.import_module(source))
        sys.path.insert(0, os.path.dirname(os.path.abspath(source)))  # as Python does for a script
        return runpy.run_path(source)
    except OSError:
        raise
    except SystemExit as error:
        raise ValueError(f"--world {source}: it ends Python ({error!r})") from None
    except ModuleNotFoundError as error:
        raise ValueError(f"--world {source}: {error}{'' if is_file else '; a file ends in .py'}") from None
    except Exception as error:
        at = _line_of(error)
        raise ValueError(f"--world {source}: it fails{at} with {type(error).__name__}: {error}") from None


def _line_of(error: Exception) -> str:
    """The innermost line that is not Python's own, nor this package's."""
    if isinstance(error, SyntaxError):
        return f" at line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    frames = list(filter(_is_outside, frames)) or frames
    return f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def _is_outside(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(os.path.dirname(__file__))


def _whole(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _what(found: Any) -> str:
    if found is None:
        return "not there"
    name = type(found).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
