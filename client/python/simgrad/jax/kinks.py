"""Derivatives at ties as JAX has them: `kinks="jax"`.

The forward pass is the operation itself, to the bit. JAX gives each side of a tie of max and min half of the
cotangent, each of the n largest elements of reduce_max an n-th, and |x| at 0 the derivative 1.
"""

from __future__ import annotations

from typing import Sequence

from simgrad.expression import Expression
from simgrad.jax.node import REAL, Node
from simgrad.program import ProgramBuilder

KINKED = ("max", "min", "abs", "reduce_max", "reduce_min")


def has_kink(x: Node, role: str) -> bool:
    """Whether a derivative goes through it; none goes through what only tests read."""
    return x.op in KINKED and x.dtype == REAL and x.is_active and role not in ("termination", "event")


def write_with_kink(b: ProgramBuilder, x: Node, operands: Sequence[Expression]) -> Expression:
    """The operation, with JAX's derivative."""
    axes = x.attributes.get("axes", x.attributes.get("axis"))

    def forward(*given: Expression) -> list[Expression]:
        return [b.apply(x.op, *given) if axes is None else b.apply(x.op, *given, axes=axes)]

    def backward(
        given: list[Expression], results: list[Expression], cotangents: list[Expression]
    ) -> list[Expression]:
        result, g = results[0], cotangents[0]
        if x.op == "abs":
            return [b.select(b.apply("ge", given[0], b.literal(0.0, x.shape)), g, b.neg(g))]
        if axes is None:
            shares = [b.apply("eq", y, result) for y in given]
            return [_share(b, g, mine, other) for mine, other in zip(shares, reversed(shares))]
        shape = x.operands[0].shape
        axis = axes[0] if isinstance(axes, tuple) else axes
        kept = [k for k in range(len(shape)) if k != axis % len(shape)]
        largest = b.broadcast(result, shape=shape, dims=kept)
        chosen = b.apply("eq", given[0], largest)
        none, one = b.literal(0.0, shape), b.literal(1.0, shape)
        count = b.sum(b.select(chosen, one, none), axes=axes)
        part = b.broadcast(b.apply("div", g, count), shape=shape, dims=kept)
        return [b.select(chosen, part, none)]

    return b.call(forward, list(operands), backward)[0]


def _share(b: ProgramBuilder, g: Expression, mine: Expression, other: Expression) -> Expression:
    """The share of a cotangent for one of two operands: all where it is the result, half where both are, else 0."""
    half = b.apply("mul", g, b.literal(0.5, g.shape))
    return b.select(mine, b.select(other, half, g), b.literal(0.0, g.shape))
