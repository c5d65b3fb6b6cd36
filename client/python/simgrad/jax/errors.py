"""Problems of a step: all of a kind at once, each with the line that asked for it."""

from __future__ import annotations

import collections
import contextlib
from typing import Iterator, NamedTuple

from simgrad.jax.node import Line


class JaxWorldError(TypeError):
    """A step that makes no world. `problems` are what was found, one each. `is_clash`: 64-bit numbers of the trace met
    narrower ones of the step."""

    def __init__(self, headline: str, problems: "list[Problem]", is_clash: bool = False):
        self.problems = problems
        self.is_clash = is_clash
        super().__init__("\n".join([headline, *map(str, problems)]))


class Problem(NamedTuple):
    """One thing to change. `times` says how often the line asks for it; `asked` is the line outside of installed packages
    that asks for it, where `line` is one of a package."""

    line: str
    what: str
    hint: str = ""
    times: int = 1
    asked: str = ""

    def __str__(self) -> str:
        where = f"{told(self.line, self.asked)}: " if self.line else ""
        often = f" ({self.times} times)" if self.times > 1 else ""
        return f"  {where}{self.what}{often}" + (f"; {self.hint}" if self.hint else "")


def told(line: str, asked: str) -> str:
    """ "_pool.py:80 (asked for by step.py:12)"."""
    return f"{line} (asked for by {asked})" if asked else line


class Problems:
    """Collects what is wrong while the rest is lowered."""

    def __init__(self) -> None:
        self._found: collections.Counter[tuple[str, str, str, str]] = collections.Counter()

    def add(self, line: Line, what: str, hint: str = "", asked: str = "") -> None:
        self._found[(line.text, what, hint, asked)] += 1

    def take(self, others: "Problems") -> None:
        """Adds those of a trial."""
        self._found.update(others._found)

    @contextlib.contextmanager
    def apart(self) -> "Iterator[Problems]":
        """Problems of a trial: those found meanwhile are kept apart, and are not told."""
        before, self._found = self._found, collections.Counter()
        apart = Problems()
        try:
            yield apart
        finally:
            apart._found, self._found = self._found, before

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_if_any(self, headline: str) -> None:
        """Raises JaxWorldError with all of them."""
        if self._found:
            found = [Problem(line, what, hint, n, asked) for (line, what, hint, asked), n in self._found.items()]
            raise JaxWorldError(headline, found)
