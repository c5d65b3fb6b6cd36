"""Leaves that are inputs of a world, and leaves that are numbers of its program."""

from __future__ import annotations

import difflib
from typing import Iterable, Mapping, Sequence

import numpy as np

from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.trees import Group
from simgrad.request import names_of

_REFUSED = ("int8", "int16", "uint16")


class Varying:
    """The argument `varying` of simgrad.jax.world: leaves that are inputs although they would be constants.

    Attributes:
      state: names of leaves that are state whether or not the step changes them.
      constants: (kind, name) of the other leaves that are numbers of the program: integers and bools of params and
        data that are not named, and what is neither real, integer nor bool, or has no element.
    """

    def __init__(self, given: str | Sequence[str], groups: Mapping[str, Group]):
        """Errors: TypeError for what are no names; JaxWorldError for integers that no input has."""
        self._named = {name: _leaves_of(name, groups) for name in names_of("varying", "leaves", given)}
        self._paths = {group.path(name): (kind, name) for kind, group in groups.items() for name in group.names}
        named = {key for leaves in self._named.values() for key in leaves}
        self.state = frozenset(name for kind, name in named if kind == "state")
        self.constants: set[tuple[str, str]] = set()
        narrow = []
        for kind, group in groups.items():
            for name, example in zip(group.names, group.examples):
                is_given = (kind, name) in named or (kind == "control" and example.dtype.kind in "iub")
                if is_given and example.size and example.dtype.name in _REFUSED:
                    narrow.append(Problem("", f"{group.told(name)} is {example.dtype}", "give an example of int32"))
                if kind != "state" and not (_is_input(example, is_given) and example.size):
                    self.constants.add((kind, name))
        if narrow:
            raise JaxWorldError("integers that are inputs have 32 or 64 bits, or are uint8:", narrow)

    def unused(self, inputs: Iterable[tuple[str, str]]) -> list[Problem]:
        """Names that no input of the program has, of its inputs by kind and name."""
        known, problems = set(inputs), []
        for name, leaves in self._named.items():
            if not leaves:
                near = difflib.get_close_matches(name, self._paths) or list(self._paths)[:_MOST_LISTED]
                problems.append(Problem("", f"varying {name!r}: no leaf has this name", f"there is {', '.join(near)}"))
            elif not known.intersection(leaves):
                problems.append(Problem("", f"varying {name!r}: nothing depends on it", "leave it out, or use it in the step"))
        return problems


_MOST_LISTED = 12


def _is_input(example: np.ndarray, is_given: bool) -> bool:
    return example.dtype.kind == "f" or (is_given and example.dtype.kind in "iub")


def _leaves_of(given: str, groups: Mapping[str, Group]) -> list[tuple[str, str]]:
    """The leaf of this path, else all leaves below it."""
    paths = {(kind, name): group.path(name) for kind, group in groups.items() for name in group.names}
    exact = [key for key, path in paths.items() if path == given]
    return exact or [key for key, path in paths.items() if path.startswith(f"{given}.") or key[0] == given]
