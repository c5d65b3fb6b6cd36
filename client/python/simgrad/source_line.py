"""The line of the user's file that asked for something: "pendulum.py:31"."""

from __future__ import annotations

import inspect
import linecache
import pathlib
import re
import sys
from types import FrameType
from typing import Any, Callable, NamedTuple, TypeVar

import numpy as np

_PACKAGE = str(pathlib.Path(__file__).parent)
# The last is where NumPy before 1.25 dispatches its functions.
_NOT_THE_USERS = (_PACKAGE, str(pathlib.Path(np.__file__).parent), "<__array_function__", "<frozen ")
_WORLDS = str(pathlib.Path(_PACKAGE) / "worlds")
_DEF = re.compile(r"\s*(async\s+)?def\b")
T = TypeVar("T")


class SourceLine(NamedTuple):
    """`function` is the innermost one with a name; empty: the line stands in none."""

    text: str
    function: str


def source_line() -> SourceLine:
    """The innermost frame that is neither this package's nor NumPy's, or the function that `on_behalf_of` names
    inside of that frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_the_users(frame):
        if frame.f_code is _FOR_LINE and frame.f_locals["line"].text:
            line: SourceLine = frame.f_locals["line"]
            return line
        frame = frame.f_back
    if frame is None:
        return SourceLine("", "")
    return SourceLine(_text(frame.f_code.co_filename, frame.f_lineno), _function(frame))


def on_behalf_of(function: Callable[..., Any], work: Callable[[], T]) -> T:
    """Does `work` for a function of the user's: lines that stand in no frame of the user's inside it are that of the
    function's `def`, and not that of the call which asked for the work."""
    return _for_line(_definition(function), work)


def _for_line(line: SourceLine, work: Callable[[], T]) -> T:
    """Does `work`; source_line() reads `line` from this frame."""
    return work()


_FOR_LINE = _for_line.__code__


def _definition(function: Callable[..., Any]) -> SourceLine:
    """The line of a function's `def`, below its decorators; empty for a callable without code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return SourceLine("", "")
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    below = 0 if code.co_name == "<lambda>" else next((i for i, x in enumerate(lines) if _DEF.match(x)), 0)
    name = code.co_name if code.co_name.isidentifier() and code.co_name.isascii() else ""
    return SourceLine(_text(code.co_filename, code.co_firstlineno + below), name[:96])


def _text(file: str, line: int) -> str:
    return f"{_printable(pathlib.Path(file).name)}:{line}"


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
