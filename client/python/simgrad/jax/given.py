"""Settings that an author gives by name: caps of loops, names of sites, roles."""

from __future__ import annotations

from typing import Generic, Mapping, TypeVar

T = TypeVar("T")


class Given(Generic[T]):
    """Numbers or words by name, and which of the names stood for something.

    Attributes:
      argument: of simgrad.jax.world. unused: names that nothing had so far.
    """

    def __init__(self, argument: str, by_name: Mapping[str, T] | None):
        if by_name is not None and not isinstance(by_name, Mapping):
            raise TypeError(f"{argument} is a dict by name, not {by_name!r}")
        self.argument = argument
        self._by_name = dict(by_name or {})
        self._used: set[str] = set()

    def find(self, *names: str) -> T | None:
        """The value of the first of these names that was given, or None. All given ones of them count as used."""
        found = [name for name in names if name in self._by_name]
        self._used.update(found)
        return self._by_name[found[0]] if found else None

    @property
    def unused(self) -> list[str]:
        return [name for name in self._by_name if name not in self._used]
