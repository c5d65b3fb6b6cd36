"""A world made of a step function of JAX: the program, and the caller's pytrees in and out."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from simgrad.arrays import PerStep
from simgrad.expression import Expression
from simgrad.jax.emission import Emission, JaxProgramBuilder, written_input
from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.given import Given
from simgrad.jax.liveness import Live
from simgrad.jax.lowering import Options
from simgrad.jax.node import Node, Place
from simgrad.jax.report import Report
from simgrad.jax.roles import CHOICES, WORDS, choosing, is_test, kinds
from simgrad.jax.roles import roles as roles_of
from simgrad.jax.sites import choice_names, halt_names, site_names, sites_of
from simgrad.jax.trace import (
    Lowered,
    Step,
    StepFinder,
    has_type_of,
    integers,
    lowered,
    traced,
    typed,
)
from simgrad.jax.trees import GROUPS, Group, called, called_by_kinds
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


class _Cost:
    """A cost, lowered by itself: it reads the state, other inputs and, at the end, observables."""

    def __init__(
        self, name: str, place: str, function: Callable[..., Any], groups: Sequence[Group], state: Group
    ):
        self.name = name
        self.place = place
        self._groups = groups
        kinds = {group.kind for group in groups}

        def whole(given: dict[str, Any]) -> Any:
            return called(function, {kind: given[kind] for kind in GROUPS if kind in kinds})

        self._jaxpr, _ = traced(whole, groups, f"{place} cost of {name!r}")
        if [tuple(a.shape) for a in self._jaxpr.out_avals] != [()]:
            raise JaxWorldError(
                "a cost is one real scalar:",
                [Problem("", f"{name!r} gives {[a.str_short() for a in self._jaxpr.out_avals]}")],
            )
        self._state = state

    def lowered(self, constants: set[tuple[str, str]], options: Options) -> tuple[Lowered, Live]:
        made = lowered(self._jaxpr, self._groups, constants, options)
        made.lowering.problems.raise_if_any(f"the cost {self.name!r} makes no world:")
        return made, Live(made.outputs)

    def reads(self, constants: set[tuple[str, str]], options: Options) -> set[str]:
        """Leaves of the state."""
        _, live = self.lowered(constants, options)
        return {x.attributes["name"] for x in live.inputs if x.attributes["kind"] == "state"}


class _Init:
    """The function that gives a run its start, lowered by itself.

    Attributes:
      names: leaves of the state that it gives.
    """

    def __init__(self, function: Callable[..., Any], groups: Mapping[str, Group]):
        self._groups = [groups[kind] for kind in GROUPS if kind in groups and kind != "control"]
        self._state = groups["state"]

        self._function = function
        self._jaxpr, (_, self.names) = traced(self.run, self._groups, "init")
        self._examples = {n: x for n, x in zip(self._state.names, self._state.examples) if n in self.names}
        self._check_types()

    def run(self, given: dict[str, Any]) -> dict[str, Any]:
        """The leaves that it gives, by name, of pytrees by kind."""
        made = called_by_kinds(self._function, given, ("params", "data", "state"))
        if jax.tree_util.tree_structure(made) == self._state.tree:
            leaves = jax.tree_util.tree_leaves(made)
            return dict(zip(self._state.names, leaves))
        if not isinstance(made, Mapping) or set(made) - set(self._state.names):
            raise JaxWorldError(
                "init gives the state, or leaves of it by name:",
                [Problem("", f"it gives {jax.tree_util.tree_structure(made)}", f"leaves are {', '.join(self._state.names)}")],
            )
        return dict(made)

    def _check_types(self) -> None:
        problems = [
            Problem("", f"state {name}: {self._examples[name].dtype}{list(self._examples[name].shape)} is {out.str_short()}")
            for name, out in zip(self.names, self._jaxpr.out_avals)
            if not has_type_of(self._examples[name], out)
        ]
        if problems:
            raise JaxWorldError("what init gives has the types of the state:", problems)

    def lowered(self, constants: set[tuple[str, str]], options: Options) -> tuple[Lowered, Live]:
        made = lowered(self._jaxpr, self._groups, constants, options)
        made.lowering.problems.raise_if_any("this init makes no world:")
        made.outputs = [typed(made.graph, x, self._examples[n]) for n, x in zip(self.names, made.outputs)]
        return made, Live(made.outputs)

    def varying(self, options: Options) -> frozenset[str]:
        """Leaves that it computes, or gives another number than the example's."""
        made, _ = self.lowered(integers(self._groups), options)
        return frozenset(
            name
            for name, out in zip(self.names, made.outputs)
            if out is not made.inputs["state", name]
            and (isinstance(out, Node) or not _equal(out, self._examples[name]))
        )


class JaxWorld(World):
    """The result of `simgrad.jax.world`: Client.rollout and Client.gradient take and give its pytrees.

    Attributes:
      step: the function. state, constants, observables: leaves of the state, by name.
      exports: what can be recorded.
      sites: the lines that decide, as Site.
      starts: init as a function of {kind: pytree} that gives leaves of the state by name; None without init.
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
    ):
        super().__init__(program=program)
        self._random = random
        self.step = step
        self.starts = starts
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
        if _is_by_name(given, group):
            leaves = [given.get(name) for name in group.names]
        else:
            leaves = group.flat(given)
        found = {}
        for name, example, key, leaf in zip(group.names, group.examples, group.keys, leaves):
            if leaf is None or (key is not None and self._random == "philox"):
                continue
            if (kind, name) in self._declared:
                found[name] = leaf if isinstance(leaf, PerStep) else _array(leaf, example)
            elif word != "state" or name in self.constants:
                self._check_constant(word, name, leaf, example)
        return found

    def _check_constant(self, word: str, name: str, leaf: Any, example: np.ndarray) -> None:
        array = _array(leaf, example)
        rank = array.ndim - example.ndim
        if rank < 0 or not _equal(array, example):
            why = (
                "the step never changes it; pass it in params to vary it"
                if word == "state"
                else "it is an integer, or nothing depends on it"
            )
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


def _array(leaf: Any, example: np.ndarray) -> Any:
    from simgrad.jax.trees import is_key

    if is_key(leaf):
        return np.asarray(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    return array if example.dtype.kind == "f" else array.astype(example.dtype)


def _equal(array: np.ndarray, example: np.ndarray) -> bool:
    if array.shape[array.ndim - example.ndim :] != example.shape:
        return False
    expected = example.astype(array.dtype)
    return bool(np.all((array == expected) | ((array != array) & (expected != expected))))


def world(
    step: Callable[..., Any],
    *,
    state: Any,
    control: Any = None,
    params: Any = None,
    data: Any = None,
    observe: Mapping[str, Callable[..., Any]] | Sequence[str] = (),
    objective: Mapping[str, Any] | None = None,
    init: Callable[..., Any] | None = None,
    max_iter: Mapping[str, int] | None = None,
    sites: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    tests: str = "decisions",
    formats: str = "erase",
    custom: str = "keep",
    kinks: str = "simgrad",
    random: str = "threefry",
    name: str = "",
) -> JaxWorld:
    """A step function of JAX as a world.

        world = simgrad.jax.world(step, state={"x": x0, "v": v0}, params={"k": 1.0},
                                  objective={"far": lambda state: jnp.sum(state["x"] ** 2)})
        client.gradient(world, steps=100, initial={"x": xs, "v": vs}, objective="far").params["k"]

    Args:
      step: step(state, control, params, data) -> state, or (state, outputs), of any pytrees. It takes
        what is given of the three behind state, by name where it has arguments of these names.
      state, control, params, data: examples; they fix structure, shapes and, of what the step does
        not change, numbers. What the step closes over is constant.
      observe: functions of the next state, by name; or names of its leaves. They can be recorded.
      objective: by name the terminal cost, of the state (and params), or {"stage": ..., "terminal":
        ...}; a stage cost takes what the step takes, at its start.
      init: init(params, data, state) -> the state that a run starts from, or leaves of it by name; it takes
        what of the three its arguments name, else params, then data, by place. What it gives need not be
        sent, and is part of the gradient.
      max_iter: caps of loops whose own tests give none, by "file.py:line" or function.
      sites: names of one's own for lines that decide, by "file.py:line".
      roles: roles by module, function or named scope: state, dynamics, solver, termination, event, network
        or objective.
      tests: the level: decisions, all or loops.
      formats: "erase": formats of reals are the policy's, whatever the step says. "keep": what the step
        computes in f32, bf16 or f16 although it is traced in f64 is rounded there as well.
      custom: "keep": functions with a jax.custom_jvp or custom_vjp have their author's derivative,
        those of JAX itself excepted. "inline": that of the operations that ran.
      kinks: derivatives at ties. "simgrad": those of the server's operations. "jax": those of JAX, for max,
        min, abs and the largest and smallest of an axis; results are the same bits.
      random: "threefry": what the step draws with a key of its state is what JAX draws in f64. "philox": each place
        that draws has a draw of the language, by the request's seed and the instance's id; keys mean nothing.
    Errors: JaxWorldError, all of a kind at once, with the lines, also for names in max_iter, sites and roles
      that stand for nothing; ValueError for other words.
    """
    _refuse_other_words(tests, formats, custom, kinks, random)
    caps, aliases, given_roles = Given("max_iter", max_iter), Given("sites", sites), Given("roles", roles)
    _refuse_unknown_roles(roles or {})
    options = Options(custom, formats, kinks, random, caps)
    without_draws = dataclasses.replace(options, random="none") if random == "philox" else options
    examples = {"state": state, "control": control, "params": params, "data": data}
    groups = {k: Group.of(k, x) for k, x in examples.items() if k == "state" or x is not None}
    functions = dict(observe) if isinstance(observe, Mapping) else {}
    wanted = [observe] if isinstance(observe, str) else [] if functions else list(observe)
    costs = _costs(objective or {}, groups)
    start = _Init(init, groups) if init is not None else None
    varying = start.varying(without_draws) if start else frozenset()
    finder = StepFinder(step, groups, functions, wanted, options, varying)
    all_constants: list[set[tuple[str, str]]] = []

    def read_by_costs(constants: set[tuple[str, str]]) -> tuple[set[str], set[str]]:
        all_constants.append(constants)
        stage = [c.reads(constants, without_draws) for c in costs if c.place == "stage"]
        terminal = [c.reads(constants, without_draws) for c in costs if c.place == "terminal"]
        return set().union(*stage), set().union(*terminal)

    found = finder.find(read_by_costs)
    writer = _Writer(name or _name_of(step), tests, groups, found, aliases, given_roles, kinks)
    writer.write(costs, start, all_constants[-1], without_draws)
    _refuse_unused(caps, aliases, given_roles, found.live.nodes)
    starts = start.run if start else None
    return JaxWorld(step, groups, found, writer.builder.build(), writer.report(), starts, random)


def _refuse_other_words(
    tests: str, formats: str, custom: str, kinks: str, random: str
) -> None:
    allowed = (
        ("tests", tests, ("decisions", "all", "loops")),
        ("formats", formats, ("erase", "keep")),
        ("custom", custom, ("keep", "inline")),
        ("kinks", kinks, ("simgrad", "jax")),
        ("random", random, ("threefry", "philox")),
    )
    for option, given, words in allowed:
        if given not in words:
            raise ValueError(f"{option} {given!r}: one of {', '.join(words)}")


def _refuse_unknown_roles(roles: Mapping[str, str]) -> None:
    unknown = {name: role for name, role in roles.items() if role not in WORDS}
    if unknown:
        raise JaxWorldError(
            "these are no roles:",
            [Problem("", f"roles {n!r}: {r!r}", f"one of {', '.join(WORDS)}") for n, r in unknown.items()],
        )


def _refuse_unused(
    caps: Given[int], aliases: Given[str], roles: Given[str], nodes: Sequence[Node]
) -> None:
    """Names that stand for nothing in the step or in a cost."""
    loops = _lines(x for x in nodes if x.op == "while")
    deciding = _lines(x for x in nodes if x.op == "while" or is_test(x) or x.op in CHOICES)
    functions = list(dict.fromkeys(x.line.function for x in nodes if x.line.function))
    problems = [
        Problem("", f"{given.argument} {name!r}: {what}", f"there {'are' if known else 'is'} {_listed(known)}")
        for given, what, known in (
            (caps, "no while_loop is on this line or in this function", loops),
            (aliases, "nothing is decided on this line", deciding),
            (roles, "no operation is in a module, function or named scope of this name", functions),
        )
        for name in given.unused
    ]
    if problems:
        raise JaxWorldError("these names stand for nothing:", problems)


_MOST_LISTED = 12


def _lines(nodes: Iterable[Node]) -> list[str]:
    return list(dict.fromkeys(x.line.text for x in nodes if x.line.text))


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else []
    return ", ".join([*names[:_MOST_LISTED], *more]) or "none"


def _name_of(step: Callable[..., Any]) -> str:
    name = getattr(step, "__name__", "step")
    return name if name.isidentifier() and name.isascii() else "step"


def _costs(objective: Mapping[str, Any], groups: Mapping[str, Group]) -> list[_Cost]:
    made = []
    for name, given in objective.items():
        parts = given if isinstance(given, Mapping) else {"terminal": given}
        if not parts or set(parts) - {"stage", "terminal"}:
            raise TypeError(f"objective {name!r}: a function, or stage= and terminal=")
        for place, function in parts.items():
            taken = _groups_of_cost(function, place, groups)
            made.append(_Cost(name, place, function, taken, groups["state"]))
    return made


def _groups_of_cost(
    function: Callable[..., Any], place: str, groups: Mapping[str, Group]
) -> list[Group]:
    """A stage cost takes what the step takes; a terminal one the state, and params where it has an
    argument more."""
    if place == "stage":
        return [groups[kind] for kind in GROUPS if kind in groups]
    names = list(inspect.signature(function).parameters)
    others = [kind for kind in ("params", "data") if kind in groups and kind in names]
    if not others and len(names) == 2 and "params" in groups:
        others = ["params"]
    return [groups[kind] for kind in ("state", *others)]


class _Writer:
    """Writes a step and its costs with one builder."""

    def __init__(
        self,
        name: str,
        level: str,
        groups: Mapping[str, Group],
        found: Step,
        aliases: Given[str],
        given_roles: Given[str],
        kinks: str,
    ):
        self._kinks = kinks
        self.builder = JaxProgramBuilder(name, level)
        self._groups = groups
        self._found = found
        self._given_roles = given_roles
        self._start: tuple[str, ...] = ()
        self._names = site_names(found.live.nodes, aliases)
        self._outputs = found.outputs
        self._halts = halt_names(found.halts, aliases)
        self._choosing = choosing(found.live, self._outputs) if level != "loops" else []
        self._chosen = choice_names(self._choosing, aliases)
        self._inputs: dict[tuple[str, str], Expression] = {}
        self._roles: dict[Node, str] = {}

    def write(
        self,
        costs: Sequence[_Cost],
        start: _Init | None,
        constants: set[tuple[str, str]],
        options: Options,
    ) -> None:
        lowered_costs = [(cost, *cost.lowered(constants, options)) for cost in costs]
        lives = [self._found.live, *(c[2] for c in lowered_costs)]
        begun = start.lowered(constants, options) if start is not None else None
        if begun is not None:
            lives.append(begun[1])
        self._declare({_key(x) for live in lives for x in live.inputs})
        if start is not None and begun is not None:
            self._write_start(start.names, *begun)
        self._write_step()
        for name in dict.fromkeys(cost.name for cost in costs):
            mine = {c.place: (made, live) for c, made, live in lowered_costs if c.name == name}
            self._write_cost(name, mine)

    def report(self) -> Report:
        found = self._found
        by_kind = kinds(found.live, self._outputs)
        sites = sites_of(found.live.nodes, self._names, by_kind, self._choosing, self._chosen)
        return Report.of(found, sites, self._start, self._roles, self._halts)

    def _declare(self, used: set[tuple[str, str]]) -> None:
        for kind in GROUPS:
            group = self._groups.get(kind)
            if group is None:
                continue
            for name, example in zip(group.names, group.examples):
                key = (kind, name)
                if name in self._found.state if kind == "state" else key in used:
                    self._inputs[key] = written_input(self.builder, kind, name, example)
        params = self._groups.get("params")
        unused = [n for n in (params.names if params else ()) if ("params", n) not in used]
        real = [n for n in unused if params and params.examples[params.names.index(n)].dtype.kind == "f"]
        if real:
            raise JaxWorldError(
                "nothing depends on these params:",
                [Problem("", f"params {n}", "leave it out, or use it in the step") for n in real],
            )

    def _write_start(self, names: Sequence[str], made: Lowered, live: Live) -> None:
        given = {n: x for n, x in zip(names, made.outputs) if n in self._found.state}
        self._start = tuple(given)

        def start() -> dict[str, Expression]:
            roles = roles_of(live, made.outputs, self._given_roles)
            emission = Emission(self.builder, live, self._inputs, roles, _Unnamed("init"), self._kinks)
            emission.write(made.graph.root)
            return {n: emission.value(x) for n, x in given.items()}

        if given:
            self.builder.initial(start)

    def _write_step(self) -> None:
        found = self._found
        self._roles = roles_of(found.live, self._outputs, self._given_roles)
        graph = found.lowered.graph
        emission = Emission(
            self.builder, found.live, self._inputs, self._roles, self._names, self._kinks, self._chosen
        )
        emission.write(graph.root)
        for halt, name in self._halts.items():
            with self.builder.lowered_from(halt.line, ""):
                self.builder.halt(name, emission.value(halt.operands[0]), error=True)
        self.builder.next(**{n: emission.value(x) for n, x in found.following.items()})
        for name, x in found.exports.items():
            self.builder.observe(name, emission.value(x))

    def _write_cost(self, name: str, parts: Mapping[str, tuple[Lowered, Live]]) -> None:
        def written(place: str, inputs: Mapping[tuple[str, str], Expression]) -> Expression:
            made, live = parts[place]
            given = roles_of(live, made.outputs, self._given_roles)
            roles = {x: "objective" for x in given}
            emission = Emission(self.builder, live, inputs, roles, _Unnamed("cost"), self._kinks)
            emission.write(made.graph.root)
            return emission.value(made.outputs[0])

        def stage() -> Expression:
            return written("stage", self._inputs)

        def terminal(
            states: Mapping[str, Expression], exports: Mapping[str, Expression]
        ) -> Expression:
            inputs = {k: x for k, x in self._inputs.items() if k[0] != "state"}
            inputs.update({("state", n): x for n, x in (*exports.items(), *states.items())})
            return written("terminal", inputs)

        self.builder.objective(
            name,
            stage=stage if "stage" in parts else None,
            terminal=terminal if "terminal" in parts else None,
        )


class _Unnamed(dict[Place, str]):
    """Names for costs and for init: their loops have one name, and their comparisons no sites."""

    def __init__(self, name: str):
        super().__init__()
        self._name = name

    def __missing__(self, place: Place) -> str:
        return self._name


def _key(x: Node) -> tuple[str, str]:
    return (x.attributes["kind"], x.attributes["name"])
