"""Costs of a caller: functions beside the step, each lowered by itself."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Mapping, Sequence

from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.liveness import Live
from simgrad.jax.lowering import Options
from simgrad.jax.node import REAL, neutral
from simgrad.jax.trace import Lowered, line_of_definition, line_of_result, lowered, traced
from simgrad.jax.trees import GROUPS, Group, called


class CostFunction:
    """A cost, lowered by itself: it reads the state, other inputs and, at the end, observables."""

    def __init__(
        self, name: str, place: str, function: Callable[..., Any], groups: Sequence[Group]
    ):
        self.name = name
        self.place = place
        self._groups = groups
        kinds = {group.kind for group in groups}

        def whole(given: dict[str, Any]) -> Any:
            return called(function, {kind: given[kind] for kind in GROUPS if kind in kinds})

        self._jaxpr, _ = traced(whole, groups, f"{place} cost of {name!r}")
        given = self._jaxpr.out_avals
        if [(a.shape, neutral(a.dtype)) for a in given] != [((), REAL)]:
            line = line_of_result(self._jaxpr, 0, function) if len(given) == 1 else line_of_definition(function)
            what = f"{name!r} gives {', '.join(a.str_short() for a in given) or 'nothing'}"
            raise JaxWorldError("a cost is one real scalar:", [Problem(line, what, _hint(given))])

    def lowered(self, constants: set[tuple[str, str]], options: Options) -> tuple[Lowered, Live]:
        made = lowered(self._jaxpr, self._groups, constants, options)
        made.lowering.problems.raise_if_any(f"the cost {self.name!r} makes no world:")
        made.outputs = [made.graph.given(x) for x in made.outputs]
        return made, Live(made.outputs)

    def reads(self, constants: set[tuple[str, str]], options: Options) -> set[str]:
        """Leaves of the state."""
        _, live = self.lowered(constants, options)
        return {x.attributes["name"] for x in live.inputs if x.attributes["kind"] == "state"}


def _hint(given: Sequence[Any]) -> str:
    """Tells what to write in a cost that gives something else than a real scalar."""
    if len(given) != 1:
        return "return one number"
    if given[0].shape:
        return "jnp.sum(x) adds up its elements, and x[i] is one of them"
    return "x.astype(float) makes it a real"


def cost_functions(objective: Mapping[str, Any], groups: Mapping[str, Group]) -> list[CostFunction]:
    """Those of the argument `objective`, in its order."""
    made = []
    if not isinstance(objective, Mapping):
        raise TypeError(f"objective: functions by name, as {{'far': f}}, not {objective!r}")
    for name, given in objective.items():
        parts = given if isinstance(given, Mapping) else {"terminal": given}
        if not all(map(callable, parts.values())):
            raise TypeError(f"objective {name!r}: a function, not {given!r}")
        if not parts or set(parts) - {"stage", "terminal"}:
            raise TypeError(f"objective {name!r}: a function, or stage= and terminal=")
        for place, function in parts.items():
            taken = _groups_of_cost(function, place, groups)
            made.append(CostFunction(name, place, function, taken))
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
    if len(names) == len(others) + 2 and "params" in groups and "params" not in others:
        others = ["params", *others]
    return [groups[kind] for kind in ("state", *others)]
