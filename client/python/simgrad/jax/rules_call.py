"""Rules of calls: inlined jaxprs, custom derivatives, wrappers that change no number, and callbacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from simgrad.jax.graph import Graph
from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import Node, Value, neutral, size_of


@rule("jit", "pjit", "closed_call", "core_call", "core_closed_call", "remat", "remat2", "checkpoint")
def _inlined(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    params = equation.params
    return low.jaxpr(params.get("jaxpr") or params["call_jaxpr"], operands)


@rule("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_derivative(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """The function itself: its derivative is that of the operations that ran."""
    params = equation.params
    low.graph.notes[f"{equation.primitive.name}: inlined"] += 1
    return low.jaxpr(params.get("call_jaxpr") or params["fun_jaxpr"], operands)


@rule("custom_linear_solve")
def _custom_linear_solve(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """With the derivative of a solution: the matrix gets -w x' of w, which solves the transposed
    system. It does not matter how the solution was found."""
    lengths = list(equation.params["const_lengths"])
    ends = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    of_matvec, _, of_solve, _ = (operands[a:b] for a, b in zip(ends, ends[1:]))
    right = operands[ends[-1] :]
    jaxprs = equation.params["jaxprs"]
    dense = _dense(low, jaxprs.matvec, of_matvec, of_solve, right)
    if dense is not None:
        return [dense]
    graph = low.graph
    low.graph.notes["custom_linear_solve: its derivative by a second solve"] += 1
    found = [_frozen(graph, x) for x in low.jaxpr(jaxprs.solve, [*of_solve, *right])]
    # x + (y - y) is x; y = S(b - A x) carries the derivative by b and by A.
    products = low.jaxpr(jaxprs.matvec, [*of_matvec, *found])
    left = [graph.arithmetic("sub", b, product) for b, product in zip(right, products)]
    carrying = low.jaxpr(jaxprs.solve, [*of_solve, *left])
    zeros = [graph.arithmetic("sub", y, _frozen(graph, y)) for y in carrying]
    return [graph.arithmetic("add", x, zero) for x, zero in zip(found, zeros)]


def _frozen(graph: Graph, x: Value) -> Value:
    return graph.emit("stop_gradient", x)


def _dense(
    low: Lowering, matvec: Any, of_matvec: Operands, of_solve: Operands, right: Operands
) -> Value | None:
    """The solution by lu_solve, where the matrix is given and its factors are those of JAX's lu."""
    codes = [e.primitive.name for e in matvec.jaxpr.eqns]
    if codes != ["dot_general"] or len(of_matvec) != 1 or len(of_solve) != 2 or len(right) != 1:
        return None
    [equation] = matvec.jaxpr.eqns
    matrix, (factors, permutation) = of_matvec[0], of_solve
    numbers = ((1,), (0,)), ((), ())
    if equation.params["dimension_numbers"] != numbers or len(matrix.shape) != 2:
        return None
    if list(equation.invars) != list(matvec.jaxpr.invars):
        return None
    made_of = (_matrix_of(factors, "lu"), _matrix_of(permutation, "lu_permutation"))
    if any(x is None or x is not _plain(matrix) for x in made_of):
        return None
    graph = low.graph
    columns = graph.reshape(right[0], [*right[0].shape[:1], max(1, size_of(right[0].shape[1:]))])
    solved = graph.emit("lu_solve", matrix, factors, permutation, columns)
    return graph.reshape(solved, right[0].shape)


def _matrix_of(x: Value, op: str) -> Value | None:
    if isinstance(x, Node) and x.op == op:
        return _plain(x.operands[0])
    return None


def _plain(x: Value) -> Value:
    while isinstance(x, Node) and x.op == "stop_gradient":
        x = x.operands[0]
    return x


@rule(
    *("copy", "copy_p", "device_put", "optimization_barrier", "sharding_constraint", "pvary"),
    *("nonbatchable", "nontraceable", "nondifferentiable", "nondifferentiable_backward"),
)
def _unchanged(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    return operands


@rule("select_if_vmap")
def _select_if_vmap(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Equinox masks carried values where it is vectorised: here every instance stops alone."""
    return operands[1]


@rule("unvmap_any", "unvmap_all", "unvmap_max")
def _over_instances(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Equinox asks all instances of a batch: here there is one."""
    x = operands[0]
    codes = {"unvmap_any": "any", "unvmap_all": "all", "unvmap_max": "reduce_max"}
    if not x.shape:
        return x
    flat = low.graph.reshape(x, (x.size,))
    return low.graph.emit(codes[equation.primitive.name], flat, axes=(0,))


@rule("debug_callback", "debug_print")
def _debug(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    low.dropped[low.graph.line.text] = equation.primitive.name
    return [np.zeros(v.aval.shape, neutral(v.aval.dtype)) for v in equation.outvars]


@rule("pure_callback", "io_callback")
def _callback(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    raise NotLowered(
        f"{equation.primitive.name} calls Python at every step",
        "a world is data: write it in jax.numpy, or compute it before",
    )


@rule("platform_index")
def _platform(low: Lowering, equation: Any, operands: Operands) -> Value:
    for number, platforms in enumerate(equation.params["platforms"]):
        if platforms is None or "cpu" in platforms:
            return np.asarray(number, np.int32)
    raise NotLowered("a choice of platforms without the CPU")
