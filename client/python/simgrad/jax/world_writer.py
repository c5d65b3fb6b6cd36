"""Writes the program of a world: a step that was lowered, its costs and its start."""

from __future__ import annotations

from typing import Mapping, Sequence

from simgrad.expression import Expression
from simgrad.jax.cost_function import CostFunction
from simgrad.jax.emission import Emission, JaxProgramBuilder, written_input
from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.given import Given
from simgrad.jax.init_function import InitFunction
from simgrad.jax.liveness import Live
from simgrad.jax.lowering import Options
from simgrad.jax.node import Node, Place
from simgrad.jax.report import Beside, Report
from simgrad.jax.roles import choosing, kinds
from simgrad.jax.roles import roles as roles_of
from simgrad.jax.sites import choice_names, halt_names, named_guards, site_names, sites_of
from simgrad.jax.trace import Lowered, Step
from simgrad.jax.trees import GROUPS, Group


class WorldWriter:
    """Writes a step and its costs with one builder.

    Attributes:
      builder: of the program. inputs: those that it has, by (kind, name), once it is written.
    """

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
        self._kinds = kinds(found.live, self._outputs)
        self._guards: frozenset[Node] = frozenset()
        if level == "decisions":  # no level reports fewer comparisons, but for "loops", which reports none
            self._guards = named_guards(found.live.nodes, self._kinds, self._choosing, aliases)
        self.inputs: dict[tuple[str, str], Expression] = {}
        self._constants: set[tuple[str, str]] = set()
        self._roles: dict[Node, str] = {}

    def write(
        self,
        costs: Sequence[CostFunction],
        start: InitFunction | None,
        constants: set[tuple[str, str]],
        options: Options,
    ) -> None:
        self._constants = constants
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
        by_kind = {**self._kinds, **dict.fromkeys(self._guards, "event")}
        sites = sites_of(found.live.nodes, self._names, by_kind, self._choosing, self._chosen)
        beside = Beside.of(self._groups, self.inputs, self._constants)
        return Report.of(found, beside, sites, self._start, self._roles, self._halts)

    def _declare(self, used: set[tuple[str, str]]) -> None:
        for kind in GROUPS:
            group = self._groups.get(kind)
            if group is None:
                continue
            for name, example in zip(group.names, group.examples):
                key = (kind, name)
                if name in self._found.state if kind == "state" else key in used:
                    self.inputs[key] = written_input(self.builder, kind, name, example)
        params = self._groups.get("params")
        unused = [n for n in (params.names if params else ()) if ("params", n) not in used]
        real = [
            self._unused_param(n, params.told(n))
            for n in unused
            if params and params.examples[params.names.index(n)].dtype.kind == "f"
        ]
        if real:
            raise JaxWorldError("this world does not depend on these params:", real)

    def _unused_param(self, name: str, told: str) -> Problem:
        """Tells of a param that nothing reads, or only leaves that were not asked for."""
        found = self._found
        leaves = dict(zip(self._groups["state"].names, found.lowered.outputs))
        unasked = [n for n in found.observables if n not in found.exports]
        by = [n for n in unasked if ("params", name) in {_key(x) for x in Live([leaves[n]]).inputs}]
        if not by:
            return Problem("", told, "leave it out, or use it in the step")
        what = f"{told}: nothing depends on it but {', '.join(by)} of the state, which no step reads and nothing observes"
        return Problem("", what, f"give observe={by!r}, or leave it out")

    def _write_start(self, names: Sequence[str], made: Lowered, live: Live) -> None:
        given = {n: x for n, x in zip(names, made.outputs) if n in self._found.state}
        self._start = tuple(given)

        def start() -> dict[str, Expression]:
            roles = roles_of(live, made.outputs, self._given_roles)
            emission = Emission(self.builder, live, self.inputs, roles, _Unnamed("init"), self._kinks)
            emission.write(made.graph.root)
            return {n: emission.value(x) for n, x in given.items()}

        if given:
            self.builder.initial(start)

    def _write_step(self) -> None:
        found = self._found
        self._roles = roles_of(found.live, self._outputs, self._given_roles)
        graph = found.lowered.graph
        emission = Emission(
            *(self.builder, found.live, self.inputs, self._roles, self._names),
            *(self._kinks, self._chosen, self._guards),
        )
        emission.write(graph.root)
        for halt, name in self._halts.items():
            with self.builder.lowered_from(halt.line, "", halt.attributes["asked"]):
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
            return written("stage", self.inputs)

        def terminal(
            states: Mapping[str, Expression], exports: Mapping[str, Expression]
        ) -> Expression:
            inputs = {k: x for k, x in self.inputs.items() if k[0] != "state"}
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
