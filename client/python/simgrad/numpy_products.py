"""NumPy's products of arrays and its linear algebra, on values of a world: matmul, transposes and reshapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from simgrad.numpy_operands import (
    Axis,
    axes_in_order,
    axes_of,
    axis_of,
    builder_of,
    real,
    values_of,
    whole,
)
from simgrad.numpy_reductions import kept, reduced
from simgrad.numpy_shapes import diagonal
from simgrad.v1.program_pb2 import ELEMENT_TYPE_REAL

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder


def matmul(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """NumPy's product of matrices and vectors: axes in front are broadcast. Of integers products
    and a sum."""
    left, right = b.matched([x, y], shapes=False)
    if not left.shape or not right.shape:
        raise ValueError(f"{b.here()}x @ y needs vectors or matrices; x * y multiplies by a scalar")
    gone = [i for i, z in ((-2, left), (-1, right)) if z.ndim == 1]
    left = left.reshape(1, -1) if left.ndim == 1 else left
    right = right.reshape(-1, 1) if right.ndim == 1 else right
    try:
        front = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise b.unmet(left.shape, right.shape) from None
    if left.element != ELEMENT_TYPE_REAL and left.shape[-1] != right.shape[-2]:
        raise b.unmet(left.shape, right.shape)
    product = (
        reduced("sum", left[..., :, :, None] * right[..., None, :, :], -2)
        if left.element != ELEMENT_TYPE_REAL
        else b.matmul(
            b.broadcast_to(left, front + left.shape[-2:]),
            b.broadcast_to(right, front + right.shape[-2:]),
        )
    )
    shape = [n for i, n in enumerate(product.shape) if i - product.ndim not in gone]
    return product.reshape(shape) if gone else product


def vecdot(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Products, and their sum along the last axis."""
    left, right = values_of(b, x, y)
    if left.shape[-1:] != right.shape[-1:] or not left.shape:
        raise b.unmet(left.shape, right.shape)
    return reduced("sum", left * right, -1)


def matvec(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Matrices times vectors."""
    left, right = values_of(b, x, y)
    if left.ndim < 2 or not right.shape:
        raise b.unmet(left.shape, right.shape)
    return matmul(b, left, right[..., None])[..., 0]


def vecmat(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Vectors times matrices."""
    left, right = values_of(b, x, y)
    if not left.shape or right.ndim < 2:
        raise b.unmet(left.shape, right.shape)
    return matmul(b, left[..., None, :], right)[..., 0, :]


def dot(a: Any, b: Any) -> "Expression":
    writer = builder_of(a, b)
    left, right = values_of(writer, a, b)
    if not left.shape or not right.shape:
        return left * right
    return tensordot(left, right, (-1, -2)) if right.ndim > 2 else matmul(writer, left, right)


def inner(a: Any, b: Any) -> "Expression":
    writer = builder_of(a, b)
    left, right = values_of(writer, a, b)
    return tensordot(left, right, (-1, -1)) if left.shape and right.shape else left * right


def vdot(a: Any, b: Any) -> "Expression":
    writer = builder_of(a, b)
    left, right = values_of(writer, a, b)
    return matmul(writer, left.reshape(-1), right.reshape(-1))


def tensordot(a: Any, b: Any, axes: Any = 2) -> "Expression":
    """One matmul."""
    writer = builder_of(a, b)
    left, right = values_of(writer, a, b)
    if isinstance(axes, (int, np.integer)):
        axes = (range(left.ndim - int(axes), left.ndim), range(int(axes)))
    gone = [axes_in_order(x, k) for x, k in zip((left, right), axes)]
    rest = [[i for i in range(x.ndim) if i not in k] for x, k in zip((left, right), gone)]
    if [left.shape[i] for i in gone[0]] != [right.shape[i] for i in gone[1]]:
        raise writer.unmet(left.shape, right.shape)
    count = math.prod(left.shape[i] for i in gone[0])
    rows, columns = [left.shape[i] for i in rest[0]], [right.shape[i] for i in rest[1]]
    first = left.transpose(*rest[0], *gone[0]) if left.ndim > 1 else left
    second = right.transpose(*gone[1], *rest[1]) if right.ndim > 1 else right
    product = matmul(
        writer,
        first.reshape(math.prod(rows), count),
        second.reshape(count, math.prod(columns)),
    )
    return product.reshape(*rows, *columns) if rows or columns else product.reshape(())


def outer(a: Any, b: Any) -> "Expression":
    writer = builder_of(a, b)
    left, right = values_of(writer, a, b)
    return left.reshape(-1, 1) * right.reshape(1, -1)


def kron(a: Any, b: Any) -> "Expression":
    writer = builder_of(a, b)
    left, right = values_of(writer, a, b)
    count = max(left.ndim, right.ndim)
    first, second = ((1,) * (count - x.ndim) + x.shape for x in (left, right))
    product = left.reshape([n for m in first for n in (m, 1)]) * right.reshape(
        [n for m in second for n in (1, m)]
    )
    return product.reshape([m * n for m, n in zip(first, second)])


def cross(a: Any, b: Any, *, axis: int = -1) -> "Expression":
    """The cross product of vectors of 3 numbers."""
    writer = builder_of(a, b)
    left, right = writer.matched([a, b])
    if left.shape[axis_of(left, axis)] != 3:
        raise ValueError(f"{writer.here()}np.cross of shape {left.shape}: vectors of 3 numbers")
    after, before = [1, 2, 0], [2, 0, 1]

    def turned(x: "Expression", order: list[int]) -> "Expression":
        return x[(*(slice(None),) * axis_of(x, axis), order)]

    return turned(left, after) * turned(right, before) - turned(left, before) * turned(right, after)


def convolve(a: Any, v: Any, mode: str = "full") -> "Expression":
    """A matrix of shifted a, times v."""
    writer = builder_of(a, v)
    left, right = values_of(writer, a, v)
    if left.ndim > 1 or right.ndim > 1 or not left.size or not right.size:
        raise ValueError(f"{writer.here()}np.convolve of shapes {left.shape} and {right.shape}: two vectors with elements")
    if right.size > left.size:
        left, right = right, left
    n, m = left.size, right.size
    places = np.arange(n + m - 1)[:, None] - np.arange(m)
    places = np.where((places < 0) | (places >= n), -1, places)
    cut = {"full": 0, "same": (m - 1) // 2, "valid": m - 1}
    if mode not in cut:
        raise ValueError(f"{writer.here()}np.convolve of mode {mode!r}: full, same or valid")
    length = {"full": n + m - 1, "same": n, "valid": n - m + 1}[mode]
    places = places[cut[mode] : cut[mode] + length]
    return matmul(writer, writer.take(left, places.shape, places.ravel().tolist()), right)


# ---- einsum ----


def einsum(subscripts: str, *operands: Any, optimize: Any = None) -> "Expression":
    """Operands from the left, two at a time, each time a matmul, or a product where nothing is summed."""
    b = builder_of(subscripts, operands)
    if not isinstance(subscripts, str):
        raise TypeError(f"{b.here()}np.einsum begins with its subscripts, such as 'ij,j->i'")
    values = b.matched(operands, shapes=False)
    inputs, result = _subscripts(b, subscripts, values)
    _check_lengths(b, subscripts, list(zip(values, inputs)))
    terms = [_without_repeats(x, axes) for x, axes in zip(values, inputs)]
    x, axes = terms[0]
    for i, (y, others) in enumerate(terms[1:], 1):
        later = set(result).union(*(more for _, more in terms[i + 1 :]))
        x, axes = _contracted(b, x, axes, y, others, later)
    gone = [i for i, c in enumerate(axes) if c not in result]
    if gone:
        x, axes = reduced("sum", x, gone), "".join(c for c in axes if c in result)
    return x.transpose(*[axes.index(c) for c in result]) if x.ndim > 1 else x


def _subscripts(
    b: "ProgramBuilder", subscripts: str, values: Sequence["Expression"]
) -> tuple[list[str], str]:
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    inputs = left.split(",")
    letters = left.replace(",", "")
    if not arrow:
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if not (letters + result).isalpha() and letters + result:
        raise ValueError(
            f"{b.here()}np.einsum of {subscripts!r}: a letter for each axis, and no dots"
        )
    if [len(axes) for axes in inputs] != [x.ndim for x in values]:
        shapes = ", ".join(str(x.shape) for x in values)
        raise ValueError(
            f"{b.here()}np.einsum of {subscripts!r}: a letter for each axis of {shapes}"
        )
    if len(set(result)) < len(result) or not set(result) <= set(letters):
        raise ValueError(
            f"{b.here()}np.einsum of {subscripts!r}: the result has each letter once, and no new ones"
        )
    return inputs, result


def _without_repeats(x: "Expression", axes: str) -> tuple["Expression", str]:
    """An axis that stands twice is the diagonal of both."""
    for letter in sorted(set(axes)):
        while axes.count(letter) > 1:
            first = axes.index(letter)
            second = axes.index(letter, first + 1)
            order = [i for i in range(x.ndim) if i not in (first, second)]
            x = x.transpose(first, second, *order)
            places = np.arange(x.shape[0])
            x, axes = x[places, places], letter + "".join(axes[i] for i in order)
    return x, axes


def _check_lengths(
    b: "ProgramBuilder", subscripts: str, terms: Sequence[tuple["Expression", str]]
) -> None:
    lengths: dict[str, int] = {}
    for x, axes in terms:
        for letter, n in zip(axes, x.shape):
            if lengths.setdefault(letter, n) != n:
                raise ValueError(
                    f"{b.here()}np.einsum of {subscripts!r}: axis {letter} has {lengths[letter]} elements, "
                    f"and {n} elsewhere"
                )


def _contracted(
    b: "ProgramBuilder", x: "Expression", axes: str, y: "Expression", others: str, later: set[str]
) -> tuple["Expression", str]:
    """x y, summed over the letters that no later term has."""
    both = [c for c in axes if c in others]
    batch, summed = [c for c in both if c in later], [c for c in both if c not in later]
    rows, columns = [c for c in axes if c not in both], [c for c in others if c not in both]
    if not summed:
        result = "".join(batch + rows + columns)
        left = _spread(x, axes, result)
        return left * _spread(y, others, result), result
    size = {**dict(zip(axes, x.shape)), **dict(zip(others, y.shape))}

    def ordered(z: "Expression", have: str, *groups: list[str]) -> "Expression":
        want = [c for group in groups for c in group]
        z = z.transpose(*[have.index(c) for c in want]) if z.ndim > 1 else z
        return z.reshape(
            [size[c] for c in batch] + [math.prod(size[c] for c in group) for group in groups[1:]]
        )

    product = matmul(b, ordered(x, axes, batch, rows, summed), ordered(y, others, batch, summed, columns))
    result = "".join(batch + rows + columns)
    return product.reshape([size[c] for c in result]), result


def _spread(x: "Expression", axes: str, result: str) -> "Expression":
    """x with its axes in the order of `result`, and axes of length 1 where it has none."""
    order = [axes.index(c) for c in result if c in axes]
    x = x.transpose(*order) if x.ndim > 1 else x
    lengths = iter(x.shape)
    return x.reshape([next(lengths) if c in axes else 1 for c in result])


# ---- Linear algebra ----


def norm(x: Any, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> "Expression":
    """norm2; of order 1 and of infinity for vectors, sums and extremes of magnitudes."""
    b = builder_of(x)
    x = real(b, x)
    axes = axes_of(x, axis)
    is_euclidean = ord is None or (ord == "fro" and len(axes) == 2) or (ord == 2 and len(axes) == 1)
    if is_euclidean:
        result = b.norm2(x, axes=axes)
    elif ord == 1 and len(axes) == 1:
        result = reduced("sum", abs(x), axes)
    elif ord in (np.inf, -np.inf) and len(axes) == 1:
        result = b.apply("reduce_max" if ord > 0 else "reduce_min", abs(x), axes=axes[0])
    else:
        raise TypeError(
            f"{b.here()}np.linalg.norm of order {ord!r}: the Euclidean one, and 1 and inf of vectors"
        )
    return kept(x, axes, result, keepdims)


def square(x: Any, name: str) -> "Expression":
    """x as one square matrix of reals. Raises ValueError for another shape."""
    b = builder_of(x)
    value = b.value(x)
    if value.ndim != 2 or value.shape[0] != value.shape[1]:
        raise ValueError(f"{b.here()}{name} of shape {value.shape}: one square matrix")
    return real(b, value)


def solve(a: Any, b: Any) -> "Expression":
    writer = builder_of(a, b)
    matrix, right = square(writer.value(a), "np.linalg.solve"), writer.value(b)
    if right.ndim == 1:
        return writer.solve(matrix, right.reshape(-1, 1)).reshape(-1)
    return writer.solve(matrix, right)


def cholesky(a: Any) -> "Expression":
    b = builder_of(a)
    return b.cholesky(real(b, a))


def inv(a: Any) -> "Expression":
    matrix = square(a, "np.linalg.inv")
    return matrix.builder.solve(matrix, np.eye(matrix.shape[0]))


def _factored(a: Any, name: str) -> tuple["Expression", "Expression"]:
    """The pivots of `lu`, and the sign of its permutation, from the pairs that it puts in another order."""
    matrix = square(a, name)
    b = matrix.builder
    order = b.lu_permutation(matrix)
    first, second = np.triu_indices(matrix.shape[0], 1)
    turned = reduced("sum", order[first] > order[second])
    return diagonal(b.lu(matrix)), 1.0 - 2.0 * (turned % 2).astype(float)


def det(a: Any) -> "Expression":
    """Up to [3, 3] by cofactors of the first row; else the product of the pivots of `lu`, with the sign of
    its permutation.

    The gradient by pivots divides by each of them: from [4, 4] on it is NaN where one is 0.
    """
    matrix = square(a, "np.linalg.det")
    if matrix.shape[0] <= 3:
        return _cofactors(matrix, 0, list(range(matrix.shape[0])))
    pivots, sign = _factored(matrix, "np.linalg.det")
    return sign * reduced("prod", pivots)


def _cofactors(matrix: "Expression", row: int, columns: list[int]) -> "Expression":
    """The determinant of these columns from a row on."""
    if not columns:
        return matrix.builder.value(1.0)
    if len(columns) == 1:
        return matrix[row, columns[0]]
    total = None
    for i, column in enumerate(columns):
        term = matrix[row, column] * _cofactors(matrix, row + 1, columns[:i] + columns[i + 1 :])
        total = term if total is None else total - term if i % 2 else total + term
    return matrix.builder.value(total)


def slogdet(a: Any) -> tuple["Expression", "Expression"]:
    pivots, sign = _factored(a, "np.linalg.slogdet")
    b = pivots.builder
    return sign * reduced("prod", b.sign(pivots)), reduced("sum", b.log(abs(pivots)))


def matrix_power(a: Any, n: int) -> "Expression":
    """By squares; of negative n powers of the inverse."""
    matrix = square(a, "np.linalg.matrix_power")
    b = matrix.builder
    exponent = whole(n, "np.linalg.matrix_power of")
    if exponent == 0:
        return b.like(matrix, 0.0) + np.eye(matrix.shape[0])
    power, result, left = inv(matrix) if exponent < 0 else matrix, None, abs(exponent)
    while True:
        if left & 1:
            result = power if result is None else result @ power
        left >>= 1
        if left == 0:
            return matrix if result is None else result
        power = power @ power


def multi_dot(arrays: Sequence[Any]) -> "Expression":
    """Products from the left."""
    b = builder_of(arrays)
    result = b.value(arrays[0])
    for x in arrays[1:]:
        result = matmul(b, result, x)
    return result


def qr(a: Any, mode: str = "reduced") -> Any:
    """Householder reflections with the signs of LAPACK, one per column, written one after the other.

    A column below whose diagonal all is 0 already stays as it is, by a comparison with 0.
    """
    b = builder_of(a)
    r = real(b, a)
    if r.ndim != 2 or mode not in ("reduced", "complete", "r"):
        raise ValueError(
            f"{b.here()}np.linalg.qr of shape {r.shape}, mode {mode!r}: one matrix; reduced, complete or r"
        )
    (m, n), reflections = r.shape, []
    for k in range(min(m - 1, n)):
        head, tail = r[k, k], r[k + 1 :, k]
        rest = b.norm2(tail, axes=0)
        done = rest == 0
        length = b.norm2(np.stack([head, b.where(done, 1.0, rest)]), axes=0)
        # The diagonal's new element has the sign that cancels nothing.
        made = b.where(head < 0, length, -length)
        below = tail / (head - made)
        factor = b.where(done, 0.0, (made - head) / made)
        vector = np.concatenate([np.zeros(k), np.ones(1), below])
        reflections.append((vector, factor))
        r = r - factor * vector[:, None] * (vector @ r)
    rows = m if mode == "complete" else min(m, n)
    upper = b.where(np.tri(rows, n, -1).astype(bool), 0, r[:rows])
    if mode == "r":
        return upper
    q = b.value(np.eye(m)[:, :rows])
    for vector, factor in reversed(reflections):
        q = q - factor * vector[:, None] * (vector @ q)
    return q, upper
