"""Traces a step of JAX and its costs, and finds what of its state is state.

A leaf of the state that comes back unchanged is a constant, and is folded; one that no later step
reads is an observable; the rest is state.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import inspect
from typing import Any, Callable, Mapping, Sequence

import jax
import jax.extend.core
import numpy as np

from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.graph import Graph
from simgrad.jax.liveness import Live
from simgrad.jax.lowering import ERROR_IF, Lowering, Options, equations_of, line_of
from simgrad.jax.node import INSTALLED, U64, Line, Node, Value, known_array, neutral
from simgrad.jax.trace_errors import error_of_tracing, mixes_formats
from simgrad.jax.trees import GROUPS, Group, called, path_name, unique, x64

@dataclasses.dataclass
class Lowered:
    """A traced function as a graph.

    Attributes:
      inputs: nodes of the leaves that are not constant, by (kind, name).
      outputs: one value per output.
    """

    graph: Graph
    lowering: Lowering
    inputs: dict[tuple[str, str], Node]
    outputs: list[Value]


@dataclasses.dataclass
class Step:
    """A step with what was found of its leaves, by name, in their order.

    Attributes:
      state, constants, observables: the leaves of the state. exports: what else is computed: leaves
        of outputs and of `observe`, and observables and constants that were asked for.
      halts: what ends a run. Where a cost reads observables at the end there is none: behind a halt they are 0.
    """

    lowered: Lowered
    live: Live
    state: tuple[str, ...]
    constants: tuple[str, ...]
    observables: tuple[str, ...]
    following: dict[str, Value]
    exports: dict[str, Value]
    halts: tuple[Node, ...] = ()

    @property
    def outputs(self) -> list[Value]:
        """The values that the step is computed for: next states, exports, tests of halts."""
        return [*self.following.values(), *self.exports.values(), *(x.operands[0] for x in self.halts)]


def traced(
    function: Callable[[dict[str, Any]], Any], groups: Sequence[Group], what: str
) -> tuple[Any, Any]:
    """The jaxpr of a function of {kind: pytree}, and the structure of what it returns."""
    shape: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        given, rest = {}, list(leaves)
        for group in groups:
            given[group.kind] = group.built(rest[: group.count])
            rest = rest[group.count :]
        made = function(given)
        paths, tree = jax.tree_util.tree_flatten_with_path(made)
        shape.append((tree, [path_name(path) for path, _ in paths]))
        return [_plain(leaf) for _, leaf in paths]

    examples = [x for group in groups for x in group.examples]
    is_narrow = not jax.config.jax_enable_x64  # outside
    with x64():
        try:
            return in_f64(flat, examples, is_narrow), shape[-1]
        except (TypeError, IndexError) as error:
            leaves = [group.told(name) for group in groups for name in group.names]
            told = error_of_tracing(error, what, leaves, has_x64=not is_narrow)
            if told is None:
                raise
            raise told from error


_OF_THEIR_MAKERS: set[tuple[Any, ...]] = set()  # arrays that were f32 after JAX's caches had been cleared


def in_f64(function: Callable[..., Any], examples: Sequence[Any], is_narrow: bool) -> Any:
    """The jaxpr of a function, with NumPy's f64 arrays as f64. Called with x64 on; `is_narrow` says that it is off outside.

    JAX keeps what it made of an array of NumPy for as long as some function has it as a constant: an f32, where that
    was compiled without x64, which it then gives with x64, too. So where an f32 array is met that was not met before,
    JAX's caches are cleared.
    """
    new: set[tuple[Any, ...]] = set()
    try:
        made = jax.make_jaxpr(function)(*examples)
        new = _narrow_constants(made) - _OF_THEIR_MAKERS if is_narrow else new
        if not new:
            return made
    except (TypeError, ValueError) as error:
        if not (is_narrow and mixes_formats(str(error))):
            raise
    made = None  # it holds those constants
    jax.clear_caches()
    made = jax.make_jaxpr(function)(*examples)
    _OF_THEIR_MAKERS.update(new & _narrow_constants(made))
    return made


def _narrow_constants(closed: Any) -> set[tuple[Any, ...]]:
    """The f32 arrays of NumPy among its constants, by shape and numbers. A jax.Array does not count: its maker chose its format.
    Nor do integers of 32 bits: models are full of them, and only numbers beyond 2^31 would change."""
    constants = [*getattr(closed, "consts", ())]
    for equation in equations_of(closed):
        constants += [x.val for x in equation.invars if isinstance(x, jax.extend.core.Literal)]
        for nested in equation.params.values():
            for x in nested if isinstance(nested, (tuple, list)) else (nested,):
                constants += getattr(x, "consts", ())
    arrays = (x for x in constants if not isinstance(x, jax.Array) and np.ndim(x) > 0 and x.dtype == np.float32)
    return {(x.shape, hashlib.sha256(np.asarray(x).tobytes()).digest()) for x in arrays}


def _near(name: str, names: Sequence[str]) -> str:
    """The leaves that may be meant: those that end in the name, else those that are written alike."""
    alike = [leaf for leaf in names if leaf.endswith(f".{name}")] or difflib.get_close_matches(name, names)
    return f"there is {' and '.join(repr(leaf) for leaf in alike[:3])}" if alike else ""


def _plain(leaf: Any) -> Any:
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", np.float64), jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return jax.numpy.asarray(leaf)


def line_of_definition(function: Callable[..., Any]) -> str:
    """The line where a function begins; empty of one that Python does not have."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return Line(code.co_filename, code.co_firstlineno).text if code is not None else ""


def line_of_result(jaxpr: Any, place: int, function: Callable[..., Any]) -> str:
    """The user's line that computes a result of a traced function; else the line where the function begins."""
    result = jaxpr.jaxpr.outvars[place]
    for equation in jaxpr.eqns:
        if any(variable is result for variable in equation.outvars):
            return line_of(equation, outside=INSTALLED).text or line_of_definition(function)
    return line_of_definition(function)


def lowered(
    jaxpr: Any, groups: Sequence[Group], constants: set[tuple[str, str]], options: Options
) -> Lowered:
    """Lowers a jaxpr of the groups' leaves; those in `constants` have the numbers of their example."""
    graph = Graph()
    lowering = Lowering(graph, options)
    inputs: dict[tuple[str, str], Node] = {}
    operands: list[Value] = []
    for group in groups:
        for name, example, random in zip(group.names, group.examples, group.keys):
            key = (group.kind, name)
            if random is not None and group.kind != "state" and options.random != "threefry":
                operands.append(graph.key(example.shape))  # which means nothing
                continue
            if key in constants:
                operands.append(known_array(example))
                continue
            attributes = {"kind": group.kind, "name": name}
            dtype = neutral(example.dtype)
            node = Node("input", (), attributes, example.shape, dtype, graph.line, graph.root)
            inputs[key] = node
            operands.append(node)
    with x64():
        outputs = lowering.jaxpr(jaxpr, operands)
    return Lowered(graph, lowering, inputs, outputs)


class StepFinder:
    """Finds state, constants and observables of a step, to a fixed point.

    Args:
      step: as `simgrad.jax.world` takes it.
      groups: by kind; the state first.
      observe: functions of the next state, by name, and names of its leaves.
      varying: leaves that are state whether or not the step changes them: what starts each run computes them, or the
        caller asks for that.
      constants: (kind, name) of the leaves beside the state that are numbers of the program.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        groups: Mapping[str, Group],
        observe: Mapping[str, Callable[..., Any]],
        wanted: Sequence[str],
        options: Options,
        varying: frozenset[str],
        constants: set[tuple[str, str]],
    ):
        self._step = step
        self._groups = groups
        self._ordered = [groups[kind] for kind in GROUPS if kind in groups]
        self._state = groups["state"]
        self._options = options
        self._wanted = wanted
        self._varying = {("state", name) for name in varying}
        self._constants = constants
        if not self._state.names:
            what = f"the state {self._state.built([])!r} has no leaf"
            hint = "give an example of what a step takes and returns: a number, an array, or a pytree of them"
            raise JaxWorldError("this step makes no world:", [Problem("", what, hint)])

        def whole(given: dict[str, Any]) -> Any:
            made = called(step, given)
            following, outputs = self._split(made)
            seen = {name: observed(following) for name, observed in observe.items()}
            return following, outputs, seen

        self.jaxpr, (_, paths) = traced(whole, self._ordered, "step")
        self._check_types()
        others = [(place, name or "output") for place, _, name in (p.partition(".") for p in paths[self._state.count :])]
        outputs, seen = ([name for place, name in others if place == which] for which in ("1", "2"))
        names = self._state.names
        unlike = unique([*names, *seen, *outputs])[len(names) :]  # an output gives way to a name of `observe`
        self._other_names = unlike[len(seen) :] + unlike[: len(seen)]
        self._refuse_u64()
        if taken := [name for name in observe if name in names]:
            raise JaxWorldError(
                "observe gives names that leaves of the state have:",
                [Problem("", f"{name!r}; observe=[{name!r}] records the leaf") for name in taken],
            )
        unknown = [name for name in wanted if name not in self._state.names]
        if unknown:
            raise JaxWorldError(
                "observe names what is not there:",
                [Problem("", f"no leaf {name!r} of the state", _near(name, names)) for name in unknown],
            )

    def _split(self, made: Any) -> tuple[Any, Any]:
        """The next state and the outputs of what a step returned."""
        structure = jax.tree_util.tree_structure
        if structure(made) == self._state.tree:
            return made, ()
        if isinstance(made, tuple) and len(made) == 2 and structure(made[0]) == self._state.tree:
            return made
        problems = [
            Problem("", f"it takes {self._state.tree}"),
            Problem(line_of_definition(self._step), f"it returns {structure(made)}", self._return_hint(made)),
        ]
        raise JaxWorldError("a step returns the state that it takes, or (state, outputs):", problems)

    def _return_hint(self, made: Any) -> str:
        """Tells what to write in a step that returns another tree."""
        if made is None:
            return "return the next state"
        paths, _ = jax.tree_util.tree_flatten_with_path(made)
        returned = [path_name(path) for path, _ in paths]
        missing = [name for name in self._state.names if name not in returned]
        others = [name for name in returned if name not in self._state.names]
        if missing and others or not missing + others:
            return "return the structure of the example, alone or as (state, outputs)"
        if missing:
            return f"return {', '.join(missing)}, too"
        names = ", ".join(others)
        return f"give {names} in the example of the state, or return (state, outputs)"

    def _check_types(self) -> None:
        found = []
        outs = self.jaxpr.out_avals
        for place, (name, example, out) in enumerate(zip(self._state.names, self._state.examples, outs)):
            if not has_type_of(example, out):
                before = f"{example.dtype}{list(example.shape)}"
                line = line_of_result(self.jaxpr, place, self._step)
                what = f"{self._state.told(name)}: {before} becomes {out.str_short()}"
                found.append(Problem(line, what, _type_hint(example, out)))
        if found:
            raise JaxWorldError("a state keeps its shape and its type:", found)

    def _refuse_u64(self) -> None:
        """An i64 of the same bits stands for a u64, and would come back as another number."""
        first = self._state.count
        problems = [
            Problem(
                line_of_result(self.jaxpr, first + place, self._step),
                f"output {name} is {out.str_short()}",
                "x.astype(jnp.int64), or two words: (x >> 32).astype(jnp.uint32) and x.astype(jnp.uint32)",
            )
            for place, (name, out) in enumerate(zip(self._other_names, self.jaxpr.out_avals[first:]))
            if out.dtype == U64
        ]
        if problems:
            raise JaxWorldError("a world has int64 and uint32, and no uint64:", problems)

    def find(self, read_by_costs: Callable[[set[tuple[str, str]]], tuple[set[str], set[str]]]) -> Step:
        """`read_by_costs`: of the constants; which leaves of the state stage costs read, and which
        terminal costs do."""
        constants = self._constants | (self._handed_through() - self._varying)
        while True:
            made = lowered(self.jaxpr, self._ordered, constants, self._options)
            made.lowering.problems.raise_if_any("this step makes no world:")
            same = self._unchanged(made, constants)
            if not same:
                break
            constants |= same
        leaves = {("state", name) for name in self._state.names}
        if leaves <= constants:  # a world has a state, here one that stands still
            constants.discard(("state", self._state.names[0]))
            made = lowered(self.jaxpr, self._ordered, constants, self._options)
        return self._classified(made, constants, read_by_costs(constants))

    def _handed_through(self) -> set[tuple[str, str]]:
        """Leaves that the step returns as they are: seen without lowering."""
        jaxpr = self.jaxpr.jaxpr
        source = {
            id(equation.outvars[0]): equation.invars[0]
            for equation in jaxpr.eqns
            if equation.primitive.name in ("random_wrap", "random_unwrap", "random_clone")
        }

        def origin(variable: Any) -> Any:
            while id(variable) in source:
                variable = source[id(variable)]
            return variable

        pairs = zip(self._state.names, jaxpr.invars, jaxpr.outvars)
        return {("state", name) for name, before, after in pairs if before is origin(after)}

    def _unchanged(self, made: Lowered, constants: set[tuple[str, str]]) -> set[tuple[str, str]]:
        found = set()
        for name, example, out in zip(self._state.names, self._state.examples, made.outputs):
            key = ("state", name)
            if key in constants:
                continue
            if example.size == 0 or (out is made.inputs[key] and key not in self._varying):
                found.add(key)
        return found

    def _classified(
        self, made: Lowered, constants: set[tuple[str, str]], by_costs: tuple[set[str], set[str]]
    ) -> Step:
        halts = tuple(made.graph.halts)
        found = self._with_halts(made, constants, by_costs, halts)
        if not halts or not by_costs[1] & set(found.observables):
            return found
        made.lowering.dropped.update((x.line.text, ERROR_IF) for x in halts)
        return self._with_halts(made, constants, by_costs, ())

    def _with_halts(
        self,
        made: Lowered,
        constants: set[tuple[str, str]],
        by_costs: tuple[set[str], set[str]],
        halts: tuple[Node, ...],
    ) -> Step:
        names = self._state.names
        free = [n for n in names if ("state", n) not in constants]
        outputs = dict(zip(names, made.outputs))
        others = dict(zip(self._other_names, made.outputs[len(names) :]))
        everything = Live([*(outputs[n] for n in free), *others.values(), *(x.operands[0] for x in halts)])
        read = {x.attributes["name"] for x in everything.inputs if x.attributes["kind"] == "state"}
        read |= by_costs[0] & set(free)
        if not read:
            read = set(free[:1]) or set(names[:1])
        state = tuple(n for n in names if n in read)
        observables = tuple(n for n in free if n not in read)
        fixed = tuple(n for n in names if ("state", n) in constants and n not in state)
        asked = [n for n in names if n in self._wanted or n in observables and n in by_costs[1]]
        examples = dict(zip(names, self._state.examples))
        observed = {n: typed(made.graph, outputs[n], examples[n]) for n in asked if n not in state}
        exports = {n: made.graph.given(x) for n, x in {**observed, **others}.items()}
        following = {n: made.graph.given(typed(made.graph, outputs[n], examples[n])) for n in state}
        live = Live([*following.values(), *exports.values(), *(x.operands[0] for x in halts)])
        return Step(made, live, state, fixed, observables, following, exports, halts)


def _type_hint(example: np.ndarray, out: Any) -> str:
    """Tells what to write where a leaf of the state becomes one of another shape or type."""
    if example.shape != tuple(out.shape):
        return f"return an array of shape {example.shape}, or give an example of shape {tuple(out.shape)}"
    if example.dtype.kind in "iu" and np.dtype(out.dtype).kind == "f":
        return "give a real in the example, 1.0 for 1"
    return f'convert it: x.astype("{example.dtype}"), or give an example of {out.dtype}'


def has_type_of(example: np.ndarray, out: Any) -> bool:
    """Whether what was traced has the shape and the kind of numbers of a leaf; integers of any width are alike."""
    kinds = (neutral(example.dtype), neutral(out.dtype))
    alike = kinds[0] == kinds[1] or all(k.kind in "iu" for k in kinds)
    return example.shape == tuple(out.shape) and alike


def typed(graph: Graph, out: Value, example: np.ndarray) -> Value:
    """An integer of another width comes back in the state's."""
    return graph.convert(out, example.dtype) if out.dtype != neutral(example.dtype) else out


