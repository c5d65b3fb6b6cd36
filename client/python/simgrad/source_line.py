"""The line of the user's file that asked for something: "pendulum.py:31"."""

from __future__ import annotations

import pathlib
import sys
from types import FrameType
from typing import NamedTuple

import numpy as np

_PACKAGE = str(pathlib.Path(__file__).parent)
# The last is where NumPy before 1.25 dispatches its functions.
_NOT_THE_USERS = (_PACKAGE, str(pathlib.Path(np.__file__).parent), "<__array_function__", "<frozen ")
_WORLDS = str(pathlib.Path(_PACKAGE) / "worlds")


class SourceLine(NamedTuple):
    """`function` is the innermost one with a name; empty: the line stands in none."""

    text: str
    function: str


def source_line() -> SourceLine:
    """The innermost frame that is neither this package's nor NumPy's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_the_users(frame):
        frame = frame.f_back
    if frame is None:
        return SourceLine("", "")
    text = f"{_printable(pathlib.Path(frame.f_code.co_filename).name)}:{frame.f_lineno}"
    return SourceLine(text, _function(frame))


def _is_the_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_WORLDS) or not name.startswith(_NOT_THE_USERS)


def _function(frame: FrameType | None) -> str:
    """A lambda or a comprehension belongs to the function around it."""
    while frame is not None:
        name = frame.f_code.co_name
        if _is_the_users(frame) and name == "<module>":
            return ""
        if _is_the_users(frame) and name.isidentifier() and name.isascii():
            return name[:96]
        frame = frame.f_back
    return ""


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)[:120]
