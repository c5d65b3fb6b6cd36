"""Integers and bools that are inputs, where a number is needed while tracing."""

from __future__ import annotations

from typing import Mapping, Sequence

from simgrad.jax.node import REAL, Node, Scope, Value


def integer_inputs(values: Sequence[Value], carried: Mapping[Scope, Sequence[Value]]) -> list[Node]:
    """The integer and bool inputs beside the state that integers and bools are made of; `carried`: the first values of
    what loops carry, by the region that reads them."""
    return [x for x in _roots(values, carried) if _is_input(x)]


def alone_behind(values: Sequence[Value]) -> list[Node]:
    """The inputs of integer_inputs where all that is not known is made of them; else none."""
    roots = _roots(values, {})
    return roots if all(map(_is_input, roots)) else []


def _is_input(x: Node) -> bool:
    return x.op == "input" and x.dtype != REAL and x.attributes["kind"] != "state"


def _roots(values: Sequence[Value], carried: Mapping[Scope, Sequence[Value]]) -> list[Node]:
    """The nodes that integers and bools are made of: inputs, arguments and results of loops, and reals."""
    stack, seen, found = list(reversed(values)), set(), []
    while stack:
        x = stack.pop()
        if not isinstance(x, Node) or x in seen:
            continue
        seen.add(x)
        if x.op == "argument" and x.attributes["kind"] == "carry" and x.attributes["of"] in carried:
            stack.append(carried[x.attributes["of"]][x.attributes["index"]])
        elif x.dtype == REAL or not x.operands:
            found += [x] if x.op != "literal" else []
        else:
            stack += reversed(x.operands)
    return found


def told_input(x: Node) -> str:
    """"control n", or "control" where the group is one array."""
    kind, name = x.attributes["kind"], x.attributes["name"]
    return f"{kind} {name}" if name != kind else f"{kind}"


def remedy(inputs: Sequence[Node]) -> str:
    """A remedy where a number is needed while tracing, to be added to a hint; empty without inputs."""
    if not inputs:
        return ""
    names = " and ".join(map(told_input, inputs))
    kinds = {x.attributes["kind"] for x in inputs}
    if kinds == {"control"}:
        return f"; to make {names} a constant, pass it in params or data"
    return f"; to make {names} a constant, leave it out of varying{', or pass it in params' if 'control' in kinds else ''}"
