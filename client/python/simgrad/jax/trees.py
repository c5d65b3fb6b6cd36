"""Pytrees of what a step takes: names, examples and structure, and arrays by name from a caller's."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import re
from typing import Any, Callable, Iterator, Sequence

import jax
import numpy as np

from simgrad.arrays import PerStep
from simgrad.jax.node import known_array

GROUPS = ("state", "control", "params", "data")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]+")


@contextlib.contextmanager
def x64() -> Iterator[None]:
    """JAX with f64 and i64, whatever it is set to."""
    if hasattr(jax, "enable_x64"):
        enable = jax.enable_x64
    else:
        enable = importlib.import_module("jax.experimental").enable_x64
    with enable(True):
        yield


@dataclasses.dataclass(frozen=True)
class Group:
    """One group of inputs: a pytree, flat.

    Attributes:
      kind: state, control, params or data.
      tree: JAX's structure. names, examples: of the leaves; reals as f64, keys as their words.
      keys: of leaves that are random keys their dtype, else None.
    """

    kind: str
    tree: Any
    names: tuple[str, ...]
    examples: tuple[np.ndarray, ...]
    keys: tuple[Any, ...]

    @classmethod
    def of(cls, kind: str, example: Any) -> "Group":
        paths, tree = jax.tree_util.tree_flatten_with_path(example)
        leaves = [leaf for _, leaf in paths]
        keys = tuple(leaf.dtype if is_key(leaf) else None for leaf in leaves)
        names = unique([path_name(path) or kind for path, _ in paths])
        return cls(kind, tree, names, tuple(_example(kind, n, leaf) for n, leaf in zip(names, leaves)), keys)

    @property
    def count(self) -> int:
        return len(self.names)

    def told(self, name: str) -> str:
        """A leaf in a message: "state x.pos", or "state" where the group is one array."""
        return self.kind if jax.tree_util.treedef_is_leaf(self.tree) else f"{self.kind} {name}"

    def path(self, name: str) -> str:
        """A leaf as `varying` names it: "state.x.pos", or "state" where the group is one array."""
        return self.kind if jax.tree_util.treedef_is_leaf(self.tree) else f"{self.kind}.{name}"

    def built(self, leaves: Sequence[Any]) -> Any:
        """The pytree, for JAX, of arrays as `examples` has them."""
        made = [x if key is None else wrapped(x, key) for x, key in zip(leaves, self.keys)]
        return jax.tree_util.tree_unflatten(self.tree, made)

    def filled(self, leaves: Sequence[Any]) -> Any:
        """The pytree with any leaves, None too."""
        return jax.tree_util.tree_unflatten(self.tree, list(leaves))

    def flat(self, given: Any) -> list[Any]:
        """The leaves of a caller's pytree. Raises TypeError where it is another one."""
        leaves, tree = jax.tree_util.tree_flatten(given, is_leaf=_is_per_step)
        if tree != self.tree:
            raise TypeError(
                f"{self.kind} is a pytree like the example of the world, {self.tree}, not {tree}"
            )
        return list(leaves)


def _example(kind: str, name: str, leaf: Any) -> np.ndarray:
    try:
        found = numbers(leaf)
    except ValueError as error:
        raise ValueError(f"{kind} {name}: {error}") from None
    if found.dtype.kind not in "fiubVc":
        what = "a function" if callable(leaf) else f"a {type(leaf).__name__}"
        raise TypeError(
            f"{kind} {name} is {what}, and no array: split a module (equinox.partition(module, equinox.is_array)), and "
            "register a class of your own as a pytree"
        )
    return found


def _is_per_step(x: Any) -> bool:
    return isinstance(x, PerStep)


def wrapped(words: Any, dtype: Any) -> Any:
    """The random key that has these words, of the implementation that its dtype names."""
    return jax.random.wrap_key_data(words, impl=dtype._impl.name)


def is_key(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def words_of(key: Any) -> np.ndarray:
    """The words of a random key that is known, also where JAX traces what it closes over."""
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.random.key_data(key))


def numbers(leaf: Any) -> np.ndarray:
    """A leaf as an array: reals f64, keys their words, Python's integers i32."""
    if is_key(leaf):
        return words_of(leaf)
    if isinstance(leaf, int) and not isinstance(leaf, bool):
        if not -(2**31) <= leaf < 2**31:
            raise ValueError(f"{leaf}: a Python integer is an i32 of a world; say np.int64({leaf})")
        return np.asarray(leaf, np.int32)
    if getattr(leaf, "dtype", None) == np.uint64:
        raise ValueError("a leaf of uint64; a world has int64 and uint32")
    return known_array(leaf)


def has_numbers_of(array: np.ndarray, example: np.ndarray) -> bool:
    """Whether an array ends in the shape of a leaf and has its numbers throughout: NaN where it has NaN, and zeros of
    the same sign. Reals of a narrower format are compared in it."""
    if array.shape[array.ndim - example.ndim :] != example.shape:
        return False
    narrows = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    expected = example.astype(array.dtype) if narrows else example
    alike = array == expected
    if example.dtype.kind == "f":
        alike &= np.signbit(array) == np.signbit(expected)
    return bool(np.all(alike | ((array != array) & (expected != expected))))


def path_name(path: Sequence[Any]) -> str:
    """ "pipeline_state.x.pos", "0.momentum": keys, fields and places, joined by dots."""
    parts = []
    for entry in path:
        for attribute in ("name", "key", "idx"):
            if hasattr(entry, attribute):
                parts.append(str(getattr(entry, attribute)))
                break
        else:
            parts.append(str(entry))
    return _FORBIDDEN.sub("_", ".".join(parts))


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """The same names; where two are equal, the second gets an ordinal that no other has."""
    given, seen, made = set(names), set(), []
    for name in names:
        own, ordinal = name, 1
        while own in seen or (ordinal > 1 and own in given):
            ordinal += 1
            own = f"{name}.{ordinal}"
        seen.add(own)
        made.append(own)
    return tuple(made)


def called_by_kinds(function: Callable[..., Any], groups: dict[str, Any], order: Sequence[str]) -> Any:
    """function(...) of groups alone: an argument with the name of one takes it, and others take the rest by place."""
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if missing := [name for name in names if name in order and name not in groups]:
        raise TypeError(f"this world has no {', '.join(missing)}")
    others = [name for name in names if name not in order]
    rest = [kind for kind in order if kind in groups and kind not in names]
    if len(others) > len(rest) or set(others) & set(GROUPS):
        raise TypeError(f"it takes {', '.join(names)}, and what it may take are {', '.join(order)}")
    by_place = dict(zip(others, rest))
    return _bound(function, signature, {name: groups[by_place.get(name, name)] for name in names})


def called(function: Callable[..., Any], groups: dict[str, Any]) -> Any:
    """function(state, ...): an argument with the name of a group takes it. The other groups go to the other arguments
    that have no default, in the order state, control, params, data. What is left then goes to **kwargs by name, else
    to *args, else nowhere."""
    given = [kind for kind in GROUPS if kind in groups]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function(*(groups[kind] for kind in given))
    parameters = signature.parameters.values()
    by_place = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    by_name = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    named = [p.name for p in parameters if p.name in given]
    free = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in GROUPS]
    places = [p.name for p in free if p.default is p.empty] or [p.name for p in free[:1]]
    rest = [kind for kind in given if kind not in named]
    arguments = {**{kind: groups[kind] for kind in named}, **{name: groups[kind] for name, kind in zip(places, rest)}}
    left = rest[len(places) :]
    if by_place is not None:
        first = [kind for kind in left if kind == "state" or by_name is None]
        arguments[by_place] = tuple(groups[kind] for kind in first)
        left = [kind for kind in left if kind not in first]
    if by_name is not None:
        arguments[by_name] = {kind: groups[kind] for kind in left}
    return _bound(function, signature, arguments)


def _bound(function: Callable[..., Any], signature: inspect.Signature, arguments: dict[str, Any]) -> Any:
    """The function of arguments by name, also of those that it takes by place alone."""
    bound = signature.bind_partial()
    bound.arguments.update(arguments)
    return function(*bound.args, **bound.kwargs)
