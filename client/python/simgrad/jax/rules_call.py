"""Rules of calls: inlined jaxprs, custom derivatives, wrappers that change no number, and callbacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import Value, neutral


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
    lengths = list(equation.params["const_lengths"])
    before = sum(lengths[:2])
    constants = operands[before : before + lengths[2]]
    low.graph.notes["custom_linear_solve: inlined"] += 1
    solve = equation.params["jaxprs"].solve
    return low.jaxpr(solve, [*constants, *operands[sum(lengths) :]])


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
