"""A world made of a step function of JAX, with the caller's pytrees in and out."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterable, Mapping

import numpy as np

from simgrad.arrays import Bits, PerStep, from_tensor, to_tensor
from simgrad.constants import element_of, range_of
from simgrad.jax.report import Report
from simgrad.jax.trace import Step
from simgrad.jax.trees import Group, has_numbers_of, is_key, words_of
from simgrad.results import Gradient, Rollout
from simgrad.v1 import program_pb2
from simgrad.world import World

KINDS: dict[str, int] = {
    "state": program_pb2.INPUT_KIND_STATE,
    "control": program_pb2.INPUT_KIND_CONTROL,
    "params": program_pb2.INPUT_KIND_PARAM,
    "data": program_pb2.INPUT_KIND_DATA,
}
_KIND_OF = {number: kind for kind, number in KINDS.items()}


class JaxWorld(World):
    """The result of `simgrad.jax.world`: Client.rollout and Client.gradient take and give its pytrees.

    Attributes:
      step: the function. state, constants, observables: leaves of the state, by name.
      exports: what can be recorded.
      sites: the lines that decide, as Site.
      starts: init as a function of {kind: pytree} that gives leaves of the state by name; None without init.
      widths: within widths() and x64, JAX gives the step the numbers of bits that it has in the world.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        groups: Mapping[str, Group],
        found: Step,
        program: program_pb2.Program,
        report: Report,
        starts: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        random: str = "threefry",
        constants: frozenset[tuple[str, str]] = frozenset(),
        widths: Callable[[], ContextManager[None]] = contextlib.nullcontext,
    ):
        super().__init__(program=program)
        self._random = random
        self._constants = constants
        self.step = step
        self.starts = starts
        self.widths = widths
        self.groups = groups
        self.state = found.state
        self.constants = found.constants
        self.observables = found.observables
        self.exports = tuple(found.exports)
        self.sites = report.sites
        self._report = report
        self._export_types = {n: (x.shape, x.dtype) for n, x in found.exports.items()}
        self._declared = {(i.kind, i.name) for i in program.inputs}

    def report(self) -> Report:
        """A report on what was found in the step; str() of it is for people."""
        return self._report

    @property
    def halt_messages(self) -> Mapping[str, str]:
        """The messages of error_if, by the name of its halt."""
        return self._report.messages

    @property
    def array_defaults(self) -> Mapping[int, Mapping[str, Any]]:
        """The examples, of inputs that a request does not send."""
        return {
            KINDS[kind]: {
                name: example
                for name, example in zip(group.names, group.examples)
                if (KINDS[kind], name) in self._declared
            }
            for kind, group in self.groups.items()
        }

    # ---- Pytrees in ----

    def named(self, kind: int, given: Any) -> Mapping[str, Any]:
        """The arrays of a caller's pytree by name. Raises TypeError for another pytree, ValueError for
        another number in place of one that is part of the world."""
        word = _KIND_OF[kind]
        if given is None:
            return {}
        if isinstance(given, PerStep):
            return {n: PerStep(x) for n, x in self.named(kind, given.array).items()}
        group = self.groups.get(word)
        if group is None:
            raise TypeError(f"this world has no {word}")
        found = {}
        for name, example, key, leaf in zip(group.names, group.examples, group.keys, _leaves(given, group)):
            if leaf is None or (key is not None and self._random == "philox"):
                continue
            if (kind, name) in self._declared:
                found[name] = _array(f"{word} {name}", leaf, example)
            elif word != "state" or name in self.constants:
                self._check_constant(word, name, leaf, example)
        return found

    def unsent_instances(self, kind: int, given: Any) -> frozenset[int]:
        group = self.groups.get(_KIND_OF[kind])
        if given is None or group is None:
            return frozenset()
        is_stepped = isinstance(given, PerStep)
        leaves = _leaves(given.array if is_stepped else given, group)
        counts = set()
        for name, example, key, leaf in zip(group.names, group.examples, group.keys, leaves):
            is_sent = (kind, name) in self._declared and (key is None or self._random != "philox")
            if leaf is None or is_sent:
                continue
            stepped = is_stepped or isinstance(leaf, PerStep)
            array = leaf.array if isinstance(leaf, PerStep) else leaf
            own = example.ndim - (key is not None and is_key(array))  # in an example a key is its words
            if np.ndim(array) > own + stepped:
                counts.add(len(array))
        return frozenset(counts)

    def check_record(self, names: Iterable[str]) -> None:
        for name in names:
            if name in (*self.observables, *self.constants) and name not in self.exports:
                what = "reads" if name in self.observables else "changes"
                raise ValueError(
                    f"record {name!r}: no step {what} this leaf of the state, and it is recorded only where it is "
                    f"asked for: simgrad.jax.world(..., observe=[{name!r}])"
                )

    def _check_constant(self, word: str, name: str, leaf: Any, example: np.ndarray) -> None:
        array = _numbers(_array(f"{word} {name}", leaf, example))
        rank = array.ndim - example.ndim
        if rank < 0 or not has_numbers_of(array, example):
            path = self.groups[word].path(name)
            if word == "state":
                why = f"the step never changes it; simgrad.jax.world(..., varying=[{path!r}]) makes it state"
            elif (word, name) not in self._constants:
                why = "nothing depends on it"
            elif example.dtype.kind in "iub":
                why = f"integers and bools of {word} are constants; simgrad.jax.world(..., varying=[{path!r}]) makes it an input"
            else:
                why = f"{example.dtype} is no type of an input"
            raise ValueError(
                f"{word} {name} is part of the world, and has another number here: {why}"
            )

    # ---- Pytrees out ----

    def shaped(self, result: Rollout) -> None:
        """Puts pytrees in place of arrays by name."""
        group = self.groups["state"]
        count = result.instances
        final: dict[str, Any] = dict(result.state)
        for name in group.names:
            if name in result.trajectory and name not in final:
                recorded = result.trajectory[name]
                final[name] = recorded[:, -1] if recorded.shape[1] else None
        for name, example in zip(group.names, group.examples):
            if name in self.constants:
                final[name] = np.broadcast_to(example, (count, *example.shape))
        result.state = group.filled([final.get(name) for name in group.names])
        if isinstance(result, Gradient):
            result.initial = self._gradients("state", result.initial)
            result.params = self._gradients("params", result.params)
            result.controls = self._gradients("control", result.controls)

    def _gradients(self, kind: str, given: Mapping[str, np.ndarray]) -> Any:
        group = self.groups.get(kind)
        return given if group is None else group.filled([given.get(n) for n in group.names])

    def by_name(self, tree: Any, kind: str = "state") -> dict[str, Any]:
        """The leaves of a pytree of an answer by name, without those that it has not."""
        group = self.groups.get(kind)
        if group is None:
            return {}
        leaves = group.tree.flatten_up_to(tree)
        return {name: leaf for name, leaf in zip(group.names, leaves) if leaf is not None}

    def export_types(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of what can be recorded beside the state."""
        return dict(self._export_types)

    def differentiable(self) -> frozenset[tuple[str, str]]:
        """(kind, name) of the inputs that have gradients; data have them as controls."""
        return frozenset(
            (kind, name)
            for kind, group in self.groups.items()
            for name, example in zip(group.names, group.examples)
            if (KINDS[kind], name) in self._declared and example.dtype.kind == "f"
        )

    def __repr__(self) -> str:
        return f"JaxWorld({self.name!r}, {len(self.sites)} sites)"


def _is_by_name(given: Any, group: Group) -> bool:
    if not isinstance(given, Mapping) or not all(isinstance(k, str) for k in given):
        return False
    return set(given) <= set(group.names)


def _leaves(given: Any, group: Group) -> list[Any]:
    """The leaves of a caller's pytree, or of its arrays by name, in the group's order."""
    return [given.get(name) for name in group.names] if _is_by_name(given, group) else group.flat(given)


def _array(what: str, leaf: Any, example: np.ndarray) -> Any:
    """A leaf as the numbers of an input, with its mark if it has one. Raises ValueError where an integer or a bool does
    not hold them, TypeError where a mask leaves some out."""
    if isinstance(leaf, PerStep):
        return PerStep(_array(what, leaf.array, example))
    if is_key(leaf):
        return words_of(leaf)
    if np.ma.is_masked(leaf):
        raise TypeError(f"{what}: a masked array lacks numbers; say which by value.filled(...)")
    is_real = example.dtype.kind == "f"
    if is_real and isinstance(leaf, Bits):
        return leaf
    array = _numbers(leaf)
    if is_real or array.dtype == example.dtype:
        return array
    if array.dtype.kind in "biufc":
        with np.errstate(invalid="ignore"):
            held = array.astype(example.dtype)
        other = np.atleast_1d(array)[np.atleast_1d(held != array)]
        if not other.size:
            return held
        array = other[0]
    takes = f"; it takes {range_of(element_of(example.dtype))}" if example.dtype.kind in "iub" else ""
    raise ValueError(f"{what}: an input of {example.dtype} does not hold {array}{takes}")


def _numbers(given: Any) -> np.ndarray:
    """An array without its marks."""
    given = given.array if isinstance(given, PerStep) else given
    return from_tensor(to_tensor(given)) if isinstance(given, Bits) else np.asarray(given)
