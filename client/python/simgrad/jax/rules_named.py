"""Rules of functions of jax.numpy that JAX makes of bits of reals, or of loops without a bound: known by their names."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from simgrad.jax.lowering import Lowering, Operands
from simgrad.jax.node import REAL, Node, Value

_NUMPY_OF_JAX = f"{pathlib.Path(jax.__file__).parent / '_src' / 'numpy'}{os.sep}"
_TURNS_OF_A_BIT = 2  # of Euclid's algorithm there are at most 1.45
_ONE_FACTOR = 126  # powers of two up to here are normal numbers of f64, f32 and bf16
_BEYOND_F64 = 2200  # a power of two that takes every number of f64 to 0 or infinity


def of_name(low: Lowering, equation: Any, operands: Operands) -> Sequence[Value] | None:
    """The results of a function of jax.numpy that has a rule by its name; None of any other one."""
    made = _NAMED.get(equation.params.get("name", ""))
    if made is None or not any(isinstance(x, Node) for x in operands):
        return None
    called = getattr(equation.params.get("jaxpr"), "jaxpr", None)
    source = str(getattr(getattr(called, "debug_info", None), "func_src_info", ""))
    return made(low, operands, equation.outvars[0].aval) if _NUMPY_OF_JAX in source else None


def _signbit(low: Lowering, operands: Operands, result: Any) -> Sequence[Value] | None:
    """Whether x is below 0 or -0; of a NaN it does not hold. One test, of x moved by at most three of the smallest
    number of the format: up from +0, down from -0, where the angle to -1 is less half a turn."""
    graph, x = low.graph, operands[0]
    if x.dtype != REAL:
        return None
    smallest = graph.make("next_after", [np.zeros(()), np.ones(())], {}, (), REAL)
    angle = graph.emit("atan2", x, np.asarray(-1.0))
    moved = graph.arithmetic("add", x, graph.arithmetic("mul", angle, smallest))
    return [graph.compare("lt", moved, np.zeros(()))]


def _ldexp(low: Lowering, operands: Operands, result: Any) -> Sequence[Value] | None:
    """A product with a known power of two, rounded once; of a large power in three factors, each of which is finite."""
    graph, (x, exponent) = low.graph, operands
    if isinstance(exponent, Node) or x.dtype != REAL:
        return None
    left = np.clip(exponent, -_BEYOND_F64, _BEYOND_F64).astype(int)
    count = 1 if (np.abs(left) <= _ONE_FACTOR).all() else 3
    for k in range(count, 0, -1):
        part = left // k
        x, left = graph.arithmetic("mul", x, 2.0**part), left - part
    return [x]


def _gcd(low: Lowering, operands: Operands, result: Any) -> Sequence[Value] | None:
    """JAX's loop, with a count of turns that it does not reach."""
    graph, shape = low.graph, np.broadcast_shapes(*(x.shape for x in operands))
    if any(x.dtype.kind not in "iu" for x in operands) or str(result.dtype) not in ("int32", "int64", "uint32"):
        return None
    cap = 8 * result.dtype.itemsize * _TURNS_OF_A_BIT

    def turn(carried: Any) -> Any:
        count, a, b = carried
        rest = jnp.where(b != 0, lax.rem(a, jnp.where(b != 0, b, 1)), 0)
        larger = jnp.where(b != 0, b, a)
        return count + 1, jnp.where(larger < rest, rest, larger), jnp.where(larger < rest, larger, rest)

    def divisor(a: Any, b: Any) -> Any:
        goes_on = lambda carried: (carried[0] < cap) & jnp.any(carried[2] != 0)
        return lax.while_loop(goes_on, turn, (jnp.int32(0), jnp.abs(a), jnp.abs(b)))[1]

    return low.function(divisor, *(graph.broadcast_to(graph.convert(x, result.dtype), shape) for x in operands))


_NAMED: dict[str, Callable[[Lowering, Operands, Any], "Sequence[Value] | None"]] = {
    "signbit": _signbit,
    "ldexp": _ldexp,
    "gcd": _gcd,
}
