"""Pickling by name: objects that a decorator puts in the place of a function."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable

MAIN = "__main__"


def place_of(function: Callable[..., Any]) -> tuple[str, str]:
    """The module and the qualified name of a function; "" for one that has none."""
    return str(getattr(function, "__module__", None) or ""), str(getattr(function, "__qualname__", ""))


def decorated(function: Callable[..., Any]) -> Any:
    """The object that a function's module has under the function's name now; None without one."""
    module, name = place_of(function)
    return _attribute(sys.modules.get(module), name)


def is_of(function: Callable[..., Any] | None, module: str) -> bool:
    """Whether loading the module makes the function, so far as its name tells; None is no function, and missing
    nowhere."""
    return function is None or (place_of(function)[0] == module and "<locals>" not in place_of(function)[1])


def loaded(module: str, name: str) -> Any:
    """The object of a name in a module, which is imported for it; None where it is not there. Raises what the
    import raises."""
    return _attribute(importlib.import_module(module), name)


def _attribute(found: Any, name: str) -> Any:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
