"""Rules of unsigned integers of 64 bits, which the language does not have: an i64 of the same bits stands for them.

Sums, products and operations on bits are the same for both. Rules here are of what is not; a primitive that has
neither is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simgrad.jax.lowering import WIDE, Lowering, NotLowered, Operands
from simgrad.jax.node import I64, REAL, Node, Value, known_array, neutral
from simgrad.jax.rules_elementwise import shifted_down

_LOW = np.asarray(0xFFFFFFFF, I64)
_SIGN = np.asarray(np.iinfo(np.int64).min, I64)
_LARGEST_DIVISOR = 1 << 31


def _halves(low: Lowering, x: Value) -> tuple[Value, Value]:
    """The upper and the lower 32 bits, as i64."""
    graph = low.graph
    return shifted_down(low, x, np.asarray(32, I64)), graph.logic("and", x, _LOW)


def _shift_right(low: Lowering, equation: Any, operands: Operands) -> Value:
    return shifted_down(low, *operands)


def _convert(low: Lowering, equation: Any, operands: Operands) -> Value:
    graph, x = low.graph, operands[0]
    before, after = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    if before == np.uint64 and neutral(after) == REAL:
        return _as_real(low, x)
    if neutral(before) == REAL:
        raise NotLowered("a real as an unsigned integer of 64 bits", "use int64, or uint32")
    return graph.convert(x, after)


def _as_real(low: Lowering, x: Value) -> Value:
    """The number, rounded once. One of 2^63 and more is halved and doubled: its last two bits become one that is set
    where either is, which rounds alike in every format."""
    graph, one = low.graph, np.ones((), I64)
    is_large = graph.logic("and", graph.emit("shr", x, np.asarray(63, I64)), one)
    halved = graph.logic("or", graph.emit("shr", x, is_large), graph.logic("and", x, is_large))
    number = graph.convert(graph.logic("and", halved, np.asarray(2**63 - 1, I64)), REAL)
    return graph.arithmetic("mul", number, graph.arithmetic("add", np.ones(()), graph.convert(is_large, REAL)))


def _comparison(low: Lowering, equation: Any, operands: Operands) -> Value:
    """The order of unsigned numbers is that of signed ones with the first bit turned."""
    turned = [low.graph.logic("xor", x, _SIGN) for x in operands]
    return low.graph.compare(equation.primitive.name, *turned)


def _remainder(low: Lowering, equation: Any, operands: Operands) -> Value:
    """By a constant: of both halves, one after the other."""
    graph, (x, by) = low.graph, operands
    if isinstance(by, Node) or not ((by > 0) & (by <= _LARGEST_DIVISOR)).all():
        raise NotLowered(
            "a remainder of unsigned integers of 64 bits", "divide by a constant below 2^31, or use dtype=jnp.int32"
        )
    upper, lower = _halves(low, x)
    weight = known_array(np.asarray((1 << 32) % by, I64))
    scaled = graph.arithmetic("mul", graph.emit("rem", upper, by), weight)
    return graph.emit("rem", graph.arithmetic("add", scaled, lower), by)


WIDE.update(
    {
        "shift_right_logical": _shift_right,
        "convert_element_type": _convert,
        "rem": _remainder,
        **{name: _comparison for name in ("lt", "le", "gt", "ge")},
    }
)
