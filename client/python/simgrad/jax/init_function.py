"""The function that gives a run its start: beside the step, and lowered by itself."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import jax

from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.liveness import Live
from simgrad.jax.lowering import Options
from simgrad.jax.node import Node
from simgrad.jax.trace import Lowered, has_type_of, line_of_definition, line_of_result, lowered, traced, typed
from simgrad.jax.trees import GROUPS, Group, called_by_kinds, has_numbers_of


class InitFunction:
    """A caller's init=, which the program computes before the first step.

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
                [
                    Problem(
                        line_of_definition(self._function),
                        f"it gives {jax.tree_util.tree_structure(made)}",
                        f"leaves are {', '.join(self._state.names)}",
                    )
                ],
            )
        return dict(made)

    def _check_types(self) -> None:
        problems = [
            Problem(
                line_of_result(self._jaxpr, place, self._function),
                f"{self._state.told(name)}: {self._examples[name].dtype}{list(self._examples[name].shape)} is {out.str_short()}",
            )
            for place, (name, out) in enumerate(zip(self.names, self._jaxpr.out_avals))
            if not has_type_of(self._examples[name], out)
        ]
        if problems:
            raise JaxWorldError("what init gives has the types of the state:", problems)

    def lowered(self, constants: set[tuple[str, str]], options: Options) -> tuple[Lowered, Live]:
        made = self._typed(constants, options)
        made.outputs = [made.graph.given(x) for x in made.outputs]
        return made, Live(made.outputs)

    def _typed(self, constants: set[tuple[str, str]], options: Options) -> Lowered:
        made = lowered(self._jaxpr, self._groups, constants, options)
        made.lowering.problems.raise_if_any("this init makes no world:")
        made.outputs = [typed(made.graph, x, self._examples[n]) for n, x in zip(self.names, made.outputs)]
        return made

    def varying(self, constants: set[tuple[str, str]], options: Options) -> frozenset[str]:
        """Leaves that it computes, or gives another number than the example's; `constants`: leaves beside the state."""
        made = self._typed(constants, options)
        return frozenset(
            name
            for name, out in zip(self.names, made.outputs)
            if out is not made.inputs["state", name]
            and (isinstance(out, Node) or not has_numbers_of(out, self._examples[name]))
        )
