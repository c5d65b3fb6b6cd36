"""Attributes of a result that are made when one of them is first read.

Most callers of a training loop never look at what each step did, and reading it out of the answer takes longer than
all else that the client does with a call.
Threads: safe.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterable, Mapping

Made = Mapping[str, Any]


class OnRead:
    """Values by name, made together.

    Args:
      make: called once, at the first reading. What it raises is raised then, and at each later reading.
    """

    def __init__(self, make: Callable[[], Made]):
        self._make: Callable[[], Made] | None = make
        self._afterwards: list[Callable[[Made], None]] = []
        self._made: Made = {}
        self._lock = threading.Lock()

    def afterwards(self, change: Callable[[Made], None]) -> None:
        """Has the values changed, in place, once they are made."""
        with self._lock:
            if self._make is not None:
                self._afterwards.append(change)
                return
        change(self._made)

    def get(self, name: str) -> Any:
        with self._lock:
            if self._make is not None:
                made = self._make()
                for change in self._afterwards:
                    change(made)
                self._made, self._make, self._afterwards = made, None, []
        return self._made[name]


class Attribute:
    """An attribute whose value may be an OnRead, which is asked for the value of the attribute's name."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            raise AttributeError(self._name)
        try:
            value = owner.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
        if isinstance(value, OnRead):
            value = owner.__dict__[self._name] = value.get(self._name)
        return value

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__[self._name] = value

    def __delete__(self, owner: Any) -> None:
        del owner.__dict__[self._name]


def unread(owner: Any, name: str) -> Any:
    """The attribute without reading it: for another object of the same kind."""
    return owner.__dict__[name]


def made_on_read(kind: type, names: Iterable[str]) -> None:
    """Lets these attributes of a class be OnRead."""
    for name in names:
        setattr(kind, name, Attribute(name))
