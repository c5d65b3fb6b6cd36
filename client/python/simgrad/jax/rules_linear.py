"""Rules of products of matrices and of their factors."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import BOOL, I32, REAL, Value, neutral, size_of

_MOST_PRODUCTS = 1 << 20  # of elements of integers, which are written to memory


@rule("dot_general")
def _dot_general(low: Lowering, equation: Any, operands: Operands) -> Value:
    """As [batch, m, k] times [batch, k, n]."""
    graph = low.graph
    a, b = operands
    (along_a, along_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    result = equation.outvars[0].aval
    if size_of(result.shape) == 0 or 0 in a.shape:
        return np.zeros(result.shape, neutral(result.dtype))
    a, b = (graph.convert(x, result.dtype) for x in (a, b))
    free_a = [d for d in range(len(a.shape)) if d not in (*along_a, *batch_a)]
    free_b = [d for d in range(len(b.shape)) if d not in (*along_b, *batch_b)]
    batch = [a.shape[d] for d in batch_a]
    rows, inner = size_of([a.shape[d] for d in free_a]), size_of([a.shape[d] for d in along_a])
    columns = size_of([b.shape[d] for d in free_b])
    left = graph.transpose(a, [*batch_a, *free_a, *along_a])
    right = graph.transpose(b, [*batch_b, *along_b, *free_b])
    if inner == 1:
        left = graph.reshape(left, [*batch, rows, 1])
        right = graph.reshape(right, [*batch, 1, columns])
        return graph.reshape(graph.arithmetic("mul", left, right), result.shape)
    left = graph.reshape(left, [*batch, rows, inner])
    right = graph.reshape(right, [*batch, inner, columns])
    if a.dtype != REAL:
        return graph.reshape(_integer_product(low, left, right), result.shape)
    return graph.reshape(graph.emit("matmul", left, right), result.shape)


def _integer_product(low: Lowering, left: Value, right: Value) -> Value:
    """[batch, m, k] times [batch, k, n] of integers, which wrap, or of bools, of which any pair may hold: all products
    as one array, and their sum."""
    graph = low.graph
    *batch, rows, inner = left.shape
    columns = right.shape[-1]
    axes, whole = list(range(len(batch))), [*batch, rows, columns, inner]
    if size_of(whole) > _MOST_PRODUCTS:
        raise NotLowered(
            f"a product of matrices of integers with {size_of(whole):,} products of elements, above {_MOST_PRODUCTS:,}",
            "convert to float first, which is exact below 2^53 in f64",
        )
    swapped = graph.transpose(right, [*axes, len(batch) + 1, len(batch)])
    lines = graph.broadcast(left, whole, [*axes, len(batch), len(batch) + 2])
    products = graph.arithmetic("mul", lines, graph.broadcast(swapped, whole, [*axes, len(batch) + 1, len(batch) + 2]))
    return graph.emit("any" if left.dtype == BOOL else "sum", products, axes=(len(batch) + 2,))


@rule("cholesky")
def _cholesky(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit("cholesky", operands[0])


@rule("triangular_solve")
def _triangular_solve(low: Lowering, equation: Any, operands: Operands) -> Value:
    """x with t x = b; x t = b by the transposes of both."""
    graph, params = low.graph, equation.params
    triangle, b = operands
    on_left, transposed = bool(params["left_side"]), bool(params["transpose_a"])
    swapped = [*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2]
    made = graph.emit(
        "triangular_solve",
        triangle,
        b if on_left else graph.transpose(b, swapped),
        upper=not params["lower"],
        transposed=transposed if on_left else not transposed,
        unit=bool(params["unit_diagonal"]),
    )
    return made if on_left else graph.transpose(made, swapped)


@rule("lu")
def _lu(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    graph = low.graph
    a = operands[0]
    m, n = a.shape[-2:]
    matrices = size_of(a.shape[:-2])
    flat = graph.reshape(a, [matrices, m, n])
    factors, pivots, orders = [], [], []
    for k in range(matrices):
        one = graph.reshape(graph.slice(flat, [k, 0, 0], [1, *a.shape[-2:]]), a.shape[-2:])
        order = graph.emit("lu_permutation", one)
        factors.append(graph.reshape(graph.emit("lu", one), [1, *a.shape[-2:]]))
        pivots.append(graph.reshape(_pivots(low, order, min(m, n)), [1, min(m, n)]))
        orders.append(graph.reshape(order, [1, m]))
    shapes = [v.aval.shape for v in equation.outvars]
    joined = [graph.concat(parts, 0) for parts in (factors, pivots, orders)]
    return [graph.reshape(x, shape) for x, shape in zip(joined, shapes)]


def _pivots(low: Lowering, order: Value, count: int) -> Value:
    """The row that each of the first `count` rows was exchanged with, of the order that these
    exchanges make."""
    graph = low.graph
    n = order.shape[0]
    places: Value = np.arange(n, dtype=np.int32)  # which row stands where
    found: list[Value] = []
    for k in range(count):
        wanted = graph.slice(order, [k], [1])
        is_there = graph.compare("eq", places, wanted)
        weights = graph.select(is_there, np.arange(n, dtype=np.int32), np.zeros(n, np.int32))
        pivot = graph.emit("sum", weights, axes=(0,))
        found.append(graph.reshape(pivot, (1,)))
        other = graph.slice(places, [k], [1])
        at_k = np.arange(n) == k
        places = graph.select(at_k, wanted, graph.select(is_there, other, places))
    return graph.concat(found, 0)


@rule("lu_pivots_to_permutation")
def _pivots_to_permutation(low: Lowering, equation: Any, operands: Operands) -> Value:
    """The rows exchanged one after the other; few, so that each exchange is a choice."""
    graph = low.graph
    pivots, n = operands[0], int(equation.params["permutation_size"])
    lines = size_of(pivots.shape[:-1])
    count = pivots.shape[-1]
    flat = graph.reshape(pivots, [lines, count])
    made = [
        graph.reshape(_exchanged(low, graph.slice(flat, [k, 0], [1, count]), n), [1, n])
        for k in range(lines)
    ]
    return graph.reshape(graph.concat(made, 0), equation.outvars[0].aval.shape)


def _exchanged(low: Lowering, pivots: Value, n: int) -> Value:
    graph = low.graph
    places = np.arange(n, dtype=np.int32)
    order: Value = places
    for k in range(pivots.shape[1]):
        pivot = graph.convert(graph.reshape(graph.slice(pivots, [0, k], [1, 1]), (1,)), I32)
        is_there = graph.compare("eq", pivot, places)
        chosen = graph.select(is_there, order, np.zeros(n, np.int32))
        mine = graph.reshape(graph.emit("sum", chosen, axes=(0,)), (1,))
        other = graph.slice(order, [k], [1])
        kept = graph.select(places == k, mine, order)
        order = graph.select(graph.logic("and", is_there, places != k), other, kept)
    return order


# ---- Householder factors, as LAPACK has them: the diagonal of r has the sign against the column's ----


def _reflected(v: Any, tau: Any, c: Any) -> Any:
    """(1 - tau v v') c."""
    return c - tau * jnp.outer(v, v @ c)


def _reflector(column: Any, k: int) -> tuple[Any, Any, Any]:
    """v (1 at k, 0 above), tau and the diagonal's number, which take a column to its upper part."""
    below = jnp.arange(column.shape[0]) > k
    first = column[k]
    rest = jnp.sum(jnp.where(below, column, 0.0) ** 2)
    is_upper = rest == 0
    length = jnp.sqrt(jnp.where(is_upper, 1.0, first * first + rest))
    diagonal = jnp.where(first < 0, length, -length)
    tau = jnp.where(is_upper, 0.0, (diagonal - first) / diagonal)
    scaled = jnp.where(below, column / (first - diagonal), 0.0)
    v = jnp.where(is_upper, 0.0, scaled).at[k].set(1.0)
    return v, tau, jnp.where(is_upper, first, diagonal)


def _factored(a: Any) -> tuple[Any, Any]:
    """LAPACK's geqrf: r on and above the diagonal, the reflectors below it, and their tau."""
    rows, columns = a.shape
    factors, taus = a, []
    for k in range(min(rows, columns)):
        v, tau, diagonal = _reflector(factors[:, k], k)
        changed = _reflected(v, tau, factors[:, k + 1 :])
        column = jnp.where(jnp.arange(rows) > k, v, factors[:, k]).at[k].set(diagonal)
        factors = jnp.concatenate([factors[:, :k], column[:, None], changed], axis=1)
        taus.append(tau)
    return factors, jnp.stack(taus)


def _times_q(factors: Any, taus: Any, c: Any, transposed: bool) -> Any:
    """q c, or q' c."""
    order = range(taus.shape[0]) if transposed else reversed(range(taus.shape[0]))
    for k in order:
        below = jnp.arange(factors.shape[0]) > k
        v = jnp.where(below, factors[:, k], 0.0).at[k].set(1.0)
        c = _reflected(v, taus[k], c)
    return c


def _over_batch(function: Callable[..., Any], inner: int) -> Callable[..., Any]:
    """The function of matrices, of arrays with axes in front of `inner` others of the first."""

    def batched(*arrays: Any) -> Any:
        mapped = function
        for _ in range(arrays[0].ndim - inner):
            mapped = jax.vmap(mapped)
        return mapped(*arrays)

    return batched


@rule("geqrf")
def _geqrf(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    return low.function(_over_batch(_factored, 2), operands[0])


@rule("householder_product")
def _householder_product(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    def product(factors: Any, taus: Any) -> Any:
        start = jnp.eye(factors.shape[0], factors.shape[1], dtype=factors.dtype)
        return _times_q(factors, taus, start, False)

    return low.function(_over_batch(product, 2), *operands)


@rule("ormqr")
def _ormqr(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    on_left, transposed = equation.params["left"], equation.params["transpose"]

    def product(factors: Any, taus: Any, c: Any) -> Any:
        if on_left:
            return _times_q(factors, taus, c, transposed)
        return _times_q(factors, taus, c.T, not transposed).T

    return low.function(_over_batch(product, 2), *operands)


@rule("qr")
def _qr(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    if equation.params.get("pivoting"):
        raise NotLowered("qr with pivoting", "leave pivoting out")
    full = equation.params["full_matrices"]

    def both(a: Any) -> tuple[Any, Any]:
        rows, columns = a.shape
        kept = rows if full else min(rows, columns)
        factors, taus = _factored(a)
        q = _times_q(factors, taus, jnp.eye(rows, kept, dtype=a.dtype), False)
        return q, jnp.triu(factors)[:kept]

    return low.function(_over_batch(both, 2), operands[0])
