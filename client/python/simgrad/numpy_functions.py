"""NumPy's operators, ufuncs and basic functions on values of a world, as operations of the table.

Composites say in their docstring what they are made of, as that is what gets rounded and
differentiated. `simgrad.numpy_table` says which function of NumPy is which of these.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Callable, Sequence

import numpy as np

from simgrad.constants import constant, element_of
from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_I64,
    ELEMENT_TYPE_REAL,
    ELEMENT_TYPE_U8,
    ELEMENT_TYPE_U32,
)

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder

Axis = int | Sequence[int] | None
_LARGEST_UNROLLED_POWER = 8
_LARGEST_EXPONENT = 4096  # of 2, and more than the 2098 from the smallest number of f64 to its largest


def builder_of(*values: Any) -> "ProgramBuilder":
    """The builder of the first value of a world among these, in lists too."""
    found = _found(values)
    if found is None:
        raise TypeError("none of these is a value of a world")
    return found


def _found(values: Sequence[Any]) -> "ProgramBuilder | None":
    for x in values:
        inside = _found(x) if isinstance(x, (list, tuple)) else getattr(x, "builder", None)
        if inside is not None:
            return inside
    return None


def element_as(dtype: Any, held: int) -> int:
    """The element type of a dtype, for what is held in another: `int` is i64 of u32 and i64, else i32."""
    if isinstance(dtype, str) and dtype == "int":
        dtype = int
    if dtype is int and held in (ELEMENT_TYPE_U32, ELEMENT_TYPE_I64):
        return ELEMENT_TYPE_I64
    element = element_of(dtype)
    if element == ELEMENT_TYPE_I32 and dtype is not int and not _is_i32(dtype):
        raise TypeError(f"dtype {dtype!r}: worlds have no integers of 8 or 16 bits with a sign; np.int32")
    return element


def _is_i32(dtype: Any) -> bool:
    own = isinstance(dtype, int) or (isinstance(dtype, str) and dtype == "i32")
    return own or np.dtype(dtype) == np.int32


# ---- Arithmetic ----


def ufunc(b: "ProgramBuilder", name: str, inputs: Sequence[Any]) -> Any:
    if name in COMPOSITES:
        return COMPOSITES[name](b, *inputs)
    code = _OF_UFUNC.get(name)
    if code is None:
        return NotImplemented
    if name in _TO_WHOLE and b.value(inputs[0]).element != ELEMENT_TYPE_REAL:
        return b.value(inputs[0])
    return b.apply(code, *inputs)


def real(b: "ProgramBuilder", x: Any) -> "Expression":
    """x as a real."""
    value = b.value(x)
    return value if value.element == ELEMENT_TYPE_REAL else b.convert(value, ELEMENT_TYPE_REAL)


def whole(n: Any, what: str) -> int:
    """n as an int of Python. Raises TypeError for what is none, with `what` it would have been."""
    try:
        return operator.index(n)
    except TypeError:
        raise TypeError(f"{what} {n!r}: a whole number that is known") from None


def counted(x: "Expression") -> "Expression":
    """x, with bools as the i32 0 and 1."""
    return x.astype("i32") if x.element == ELEMENT_TYPE_BOOL else x


def true_divide(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """x / y; of integers the quotient of the reals."""
    left, right = b.matched([x, y])
    if left.element != ELEMENT_TYPE_REAL:
        left, right = b.convert(left, ELEMENT_TYPE_REAL), b.convert(right, ELEMENT_TYPE_REAL)
    return b.div(left, right)


def floor_divide(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Integers: `div`; reals: floor(x / y), each rounded."""
    quotient = b.div(x, y)
    return b.floor(quotient) if quotient.element == ELEMENT_TYPE_REAL else quotient


def divide_with_remainder(
    b: "ProgramBuilder", x: Any, y: Any
) -> "tuple[Expression, Expression]":
    """Integers: `div` and `mod`; reals: NumPy's quotient, which goes with the exact remainder, and `mod`.

    That quotient is (x - rem(x, y)) / y, less 1 where rem and y differ in sign, rounded to a whole number.
    """
    left, right = b.matched([x, y])
    remainder = b.mod(left, right)
    if left.element != ELEMENT_TYPE_REAL:
        return b.div(left, right), remainder
    rest = b.rem(left, right)
    below = b.min(b.sign(rest) * b.sign(right), 0.0)
    quotient = b.round((left - rest) / right + below)
    # The quotient of a finite x by 0 is infinite and that of an infinite x NaN; `rem` is NaN in both cases.
    undefined = b.floor(left / right + (left - left))
    return b.where(b.is_finite(rest), quotient, undefined), remainder


def power(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Products for whole exponents of at most 8 and known ones of integers, sqrt for 0.5; else `pow`."""
    known = None if hasattr(y, "builder") else constant(y)
    if known is None or known.shape != ():
        base, exponents = b.matched([x, y])
        if base.element != ELEMENT_TYPE_REAL:
            raise TypeError(
                f"{b.here()}x ** y of integers takes one known y; x.astype(float) ** y is of reals"
            )
        return b.pow(base, exponents)
    exponent = float(known)
    base = real(b, x) if known.dtype.kind == "f" or exponent < 0 else counted(b.value(x))
    is_real = base.element == ELEMENT_TYPE_REAL
    if exponent == 0:
        return b.like(base, 1)
    if exponent == 0.5:
        return b.sqrt(base)
    if not exponent.is_integer() or is_real and abs(exponent) > _LARGEST_UNROLLED_POWER:
        return b.pow(base, y)
    product = _product(base, int(abs(exponent)))
    return product if exponent > 0 else true_divide(b, 1.0, product)


def _product(x: "Expression", n: int) -> "Expression":
    """x^n by squares: x^7 = x (x^2) (x^4)."""
    result = None
    square = x
    while True:
        if n & 1:
            result = square if result is None else result * square
        n >>= 1
        if n == 0:
            return x if result is None else result
        square = square * square


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


def clip(
    a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> "Expression":
    """min(max(a, a_min), a_max)."""
    b = builder_of(a, a_min, a_max, min, max)
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise ValueError(f"{b.here()}np.clip takes a_min and a_max, or min and max, not both")
    low, high = (a_min, a_max) if min is None and max is None else (min, max)
    above = b.value(a) if low is None else b.max(a, low)
    return above if high is None else b.min(above, high)


def _on_bools(code: str) -> Callable[..., "Expression"]:
    def write(b: "ProgramBuilder", *operands: Any) -> "Expression":
        values = b.matched(operands)
        is_bool = values[0].element == ELEMENT_TYPE_BOOL
        return b.apply(
            code, *(values if is_bool else [b.convert(x, ELEMENT_TYPE_BOOL) for x in values])
        )

    return write


# ---- Elementary functions made of others ----


def is_nan(b: "ProgramBuilder", x: Any) -> "Expression":
    """Whether the sign is not finite: no comparison, so no site."""
    return _of_reals(b, x, lambda value: ~b.is_finite(b.sign(value)), False)


def is_infinite(b: "ProgramBuilder", x: Any) -> "Expression":
    """Whether x is not finite, and its sign is: no comparison, so no site."""
    return _of_reals(b, x, lambda value: b.is_finite(b.sign(value)) & ~b.is_finite(value), False)


def is_finite(b: "ProgramBuilder", x: Any) -> "Expression":
    return _of_reals(b, x, b.is_finite, True)


def _of_reals(
    b: "ProgramBuilder", x: Any, asked: Callable[["Expression"], "Expression"], of_integers: bool
) -> "Expression":
    """`asked` of reals; one answer for integers, which are finite in every format."""
    value = b.value(x)
    if value.element == ELEMENT_TYPE_REAL:
        return asked(value)
    return b.broadcast_to(b.value(of_integers, ELEMENT_TYPE_BOOL), value.shape)


def _known_of(b: "ProgramBuilder", x: Any, y: Any, both: "Expression") -> "Expression":
    """`both`; x where y is NaN, and y where x is."""
    return b.where(is_nan(b, x), y, b.where(is_nan(b, y), x, both))


def reciprocal(b: ProgramBuilder, x: Expression) -> Expression:
    """1 / x, of reals."""
    if x.element != ELEMENT_TYPE_REAL:
        raise TypeError(f"{b.here()}np.reciprocal takes reals; of integers, 1 // x and 1 / x say which quotient is meant")
    return 1.0 / x


def hypot(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """norm2 of the two, which scales them: no square leaves the format."""
    return b.norm2(stack(b.matched([real(b, x), real(b, y)])), axes=0)


def arcsinh(b: "ProgramBuilder", x: Any) -> "Expression":
    """log1p(x) + log1p(x / (1 + h) x / (1 + x)) with h = hypot(1, x), of -x below 0; infinities stay.

    The sum of the logarithms is that of x + h, and no factor leaves the format.
    """
    value = real(b, x)
    finite, below = b.is_finite(value), value < 0
    size = b.where(finite, b.where(below, -value, value), 0.0)
    rising = b.log1p(size) + b.log1p(size / (1 + hypot(b, 1.0, size)) * (size / (1 + size)))
    return b.where(finite, b.where(below, -rising, rising), value)


def arccosh(b: "ProgramBuilder", x: Any) -> "Expression":
    """log1p(t) + log1p(sqrt(t) sqrt(t + 2) / (1 + t)) of t = x - 1; sqrt(x) of an infinity."""
    value = real(b, x)
    finite = b.is_finite(value)
    t = b.where(finite, value - 1, 1.0)
    risen = b.log1p(t) + b.log1p(b.sqrt(t) * (b.sqrt(t + 2) / (1 + t)))
    return b.where(finite, risen, b.sqrt(b.where(finite, 1.0, value)))


def arctanh(b: "ProgramBuilder", x: Any) -> "Expression":
    """(log1p(x) - log1p(-x)) / 2."""
    value = real(b, x)
    return (b.log1p(value) - b.log1p(-value)) * 0.5


def logaddexp(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """The larger, and softplus of the smaller less the larger."""
    x, y = b.matched([real(b, x), real(b, y)])
    larger, below = _larger(b, x, y)
    return larger + b.softplus(below)


def logaddexp2(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """The larger, and log1p(2^(smaller - larger)) / log(2)."""
    x, y = b.matched([real(b, x), real(b, y)])
    larger, below = _larger(b, x, y)
    return larger + b.log1p(b.exp2(below)) * (1 / math.log(2))


def _larger(
    b: "ProgramBuilder", x: "Expression", y: "Expression"
) -> tuple["Expression", "Expression"]:
    """The larger, and the smaller less the larger; 0 where the larger is infinite."""
    # At a tie one is the larger and the other the smaller, and each gets half of the cotangent.
    larger = b.max(x, y)
    return larger, b.where(b.is_finite(larger), b.min(y, x) - larger, 0.0)


def log10(b: "ProgramBuilder", x: Any) -> "Expression":
    """r + log(x / 10^r) / log(10) with r = round(q), q = log(x) / log(10): r itself at powers of ten.

    The result is q where the two are more than 4 ulps apart: the format has no number near 10^r there. The derivative is
    that of q.
    """
    value = real(b, x)
    quotient = b.log(value) / math.log(10)
    nearest = b.round(quotient)
    moved = nearest + b.log(value / b.pow(10.0, nearest)) / math.log(10) - quotient
    # An eighth of less than 4 ulps is lost in a sum. A comparison would be a site, and no cost with one has a path.
    lost = 1 - abs(b.sign(quotient + moved * 0.125 - quotient))
    return quotient + b.stop_gradient(b.where(b.is_finite(moved), moved * lost, 0.0))


def ldexp(b: "ProgramBuilder", x: Any, n: Any) -> "Expression":
    """x 2^n in three factors that every format holds, the largest last: only the last product rounds.

    Three times the exponent of the smallest normal number spans a format, from its smallest number to its largest.
    """
    exponent = _within_i32(b, n)
    smallest_normal = b.next_after(0.0, 1.0) / (b.next_after(1.0, 2.0) - 1.0)
    most = b.convert(-b.log2(smallest_normal), ELEMENT_TYPE_I32)
    result, powers = real(b, x), []
    for _ in range(3):
        part = b.min(b.max(exponent, -most), most)
        powers.append(b.exp2(b.convert(part, ELEMENT_TYPE_REAL)))
        exponent = exponent - part
    for factor in reversed(powers):
        result = result * factor
    return result


def _within_i32(b: "ProgramBuilder", n: Any) -> "Expression":
    """Exponents of 2 as i32, those beyond 4096 as 4096. Raises TypeError for reals."""
    if not hasattr(n, "builder"):
        known = constant(n)
        if known.dtype.kind == "f":
            raise TypeError(f"{b.here()}np.ldexp by {n!r}: whole numbers; x * np.exp2(y) takes reals")
        return b.value(np.clip(known, -_LARGEST_EXPONENT, _LARGEST_EXPONENT).astype(np.int32))
    if n.element == ELEMENT_TYPE_REAL:
        raise TypeError(f"{b.here()}np.ldexp by reals: whole numbers; x * np.exp2(y) takes reals")
    if n.element == ELEMENT_TYPE_I32:
        return b.value(n)
    most = np.int64(_LARGEST_EXPONENT)
    wide = b.convert(n, ELEMENT_TYPE_I64)
    return b.convert(b.min(b.max(wide, -most), most), ELEMENT_TYPE_I32)


def modf(b: "ProgramBuilder", x: Any) -> tuple["Expression", "Expression"]:
    """x - trunc(x), 0 of an infinity, and trunc(x)."""
    value = real(b, x)
    cut = b.trunc(value)
    return b.where(is_infinite(b, value), 0.0, value - cut), cut


def copysign(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """|x|, or -|x| where y is below 0; -0 is not."""
    size = b.abs(real(b, x))
    return b.where(b.value(y) < 0, -size, size)


def heaviside(b: "ProgramBuilder", x: Any, middle: Any) -> "Expression":
    """(1 + sign(x)) / 2, and `middle` at 0."""
    value = real(b, x)
    return b.where(value == 0, middle, b.sign(value) * 0.5 + 0.5)


def sinc(x: Any) -> "Expression":
    """sin(pi x) / (pi x), and 1 at 0."""
    b = builder_of(x)
    value = real(b, x)
    angle = math.pi * b.where(value == 0, 1e-20, value)
    return b.where(value == 0, 1.0, b.sin(angle) / angle)


def rounded(a: Any, decimals: int = 0) -> "Expression":
    """The nearest whole number of 10^-decimals, ties to even; integers stay where decimals >= 0."""
    b = builder_of(a)
    value, places = b.value(a), whole(decimals, "np.round of decimals")
    if value.element != ELEMENT_TYPE_REAL and places >= 0:
        return value
    if places == 0:
        return b.round(value)
    scale = 10.0 ** abs(places)
    return b.round(value * scale) / scale if places > 0 else b.round(value / scale) * scale


# ---- Shapes ----


def reshape(a: Any, shape: Any) -> "Expression":
    b = builder_of(a)
    try:
        known = np.broadcast_to(np.False_, a.shape).reshape(lengths_of(shape)).shape
    except ValueError as error:
        raise ValueError(f"{b.here()}{error}") from None
    return a if known == a.shape else b.reshape(a, known)


def lengths_of(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple; one number is the length of one axis."""
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


def broadcast_to(array: Any, shape: Any) -> "Expression":
    return builder_of(array).broadcast_to(array, lengths_of(shape))


def transpose(a: Any, axes: Any = None) -> "Expression":
    dims = list(range(a.ndim))[::-1] if axes is None else axes_in_order(a, axes)
    if len(dims) != a.ndim:
        raise ValueError(f"{a.builder.here()}axes {axes} are no order of the {a.ndim} axes")
    return a if a.ndim < 2 else builder_of(a).transpose(a, dims)


def squeeze(a: Any, axis: Axis = None) -> "Expression":
    return reshape(a, np.squeeze(np.empty(a.shape, bool), axis).shape)


def expand_dims(a: Any, axis: int | Sequence[int]) -> "Expression":
    return reshape(a, np.expand_dims(np.empty(a.shape, bool), axis).shape)


def swapaxes(a: Any, axis1: int, axis2: int) -> "Expression":
    dims = list(range(a.ndim))
    first, second = axis_of(a, axis1), axis_of(a, axis2)
    dims[first], dims[second] = dims[second], dims[first]
    return transpose(a, dims)


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> "Expression":
    sources, targets = axes_in_order(a, source), axes_in_order(a, destination)
    if len(sources) != len(targets):
        raise ValueError(
            f"{a.builder.here()}np.moveaxis of {source} to {destination}: as many places as axes"
        )
    dims = [axis for axis in range(a.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources)):
        dims.insert(target, axis)
    return transpose(a, dims)


def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> "Expression":
    b = builder_of(arrays)
    values = b.matched(arrays, shapes=False)
    if axis is None:
        values, axis = [x.reshape(-1) for x in values], 0
    return values[0] if len(values) == 1 else b.concat(*values, axes=axis)


def stack(arrays: Sequence[Any], axis: int = 0) -> "Expression":
    b = builder_of(arrays)
    values = b.matched(arrays, shapes=False)
    if len({x.shape for x in values}) != 1:
        raise b.unmet(*(x.shape for x in values))
    return concatenate([expand_dims(x, axis) for x in values], axis)


def vstack(tup: Sequence[Any]) -> "Expression":
    b = builder_of(tup)
    values = [b.value(x) for x in tup]
    return concatenate([x.reshape(1, -1) if x.ndim < 2 else x for x in values])


def hstack(tup: Sequence[Any]) -> "Expression":
    b = builder_of(tup)
    values = [b.value(x) for x in tup]
    values = [x.reshape(1) if x.ndim == 0 else x for x in values]
    return concatenate(values, 0 if values[0].ndim == 1 else 1)


def roll(a: "Expression", shift: int | Sequence[int], axis: Axis = None) -> "Expression":
    """Two slices along each axis, joined."""
    if axis is None:
        return roll(a.reshape(-1), shift, 0).reshape(a.shape)
    by = dict.fromkeys(range(a.ndim), 0)
    for n, along in zip(*np.broadcast_arrays(np.atleast_1d(shift), np.atleast_1d(axis))):
        by[axis_of(a, along)] += whole(n, "np.roll by")
    for along, n in by.items():
        length = a.shape[along]
        cut = -n % length if length else 0
        if cut:
            before: tuple[Any, ...] = (slice(None),) * along
            a = concatenate([a[(*before, slice(cut, length))], a[(*before, slice(0, cut))]], along)
    return builder_of(a).value(a)


def flip(m: "Expression", axis: Axis = None) -> "Expression":
    gone = set(axes_of(m, axis))
    return m[tuple(slice(None, None, -1) if a in gone else slice(None) for a in range(m.ndim))]


def diff(a: "Expression", n: int = 1, axis: int = -1) -> "Expression":
    """Neighbours, subtracted; of bools whether they differ."""
    before: tuple[Any, ...] = (slice(None),) * axis_of(a, axis)
    times = whole(n, "np.diff with n")
    if times < 0:
        raise ValueError(f"{a.builder.here()}np.diff with n {n}: at least 0")
    for _ in range(times):
        after, first = a[(*before, slice(1, None))], a[(*before, slice(None, -1))]
        a = after != first if a.element == ELEMENT_TYPE_BOOL else after - first
    return a


def triangle(m: Any, k: int, lower: bool) -> "Expression":
    b = builder_of(m)
    if m.ndim == 0:
        raise ValueError(f"{b.here()}a triangle of a scalar: at least one axis")
    inside = np.tri(*m.shape[-2:], k=k if lower else k - 1).astype(bool)  # type: ignore[call-overload]
    return b.where(inside if lower else ~inside, m, False if m.element == ELEMENT_TYPE_BOOL else 0)


def diagonal(v: Any, k: int = 0) -> "Expression":
    """Makes a matrix of a vector that is its diagonal, or takes the diagonal of a matrix: `take`."""
    places = np.arange(v.size).reshape(v.shape)
    if v.ndim == 1:
        places = np.diag(places + 1, k) - 1
    else:
        places = np.diag(places, k)
    return builder_of(v).take(v, places.shape, places.ravel().tolist())


def matrix_diagonal(a: Any, offset: int = 0) -> "Expression":
    """Takes the diagonal of the first two axes, as the last axis: `take`."""
    value = builder_of(a).value(a)
    places = np.diagonal(np.arange(value.size).reshape(value.shape), offset)
    return value.builder.take(value, places.shape, places.ravel().tolist())


# ---- Reductions ----


def axes_in_order(x: Any, axis: int | Sequence[int]) -> list[int]:
    """Counted from the front, in the order given. Raises ValueError for one that is outside or stands twice."""
    given = [axis] if np.ndim(axis) == 0 else list(axis)  # type: ignore[arg-type]
    axes = [whole(a, "axis") for a in given]
    if any(not -x.ndim <= a < x.ndim for a in axes):
        raise ValueError(f"{x.builder.here()}axis {axis} is none of an array of shape {x.shape}")
    in_front = [a % x.ndim for a in axes]
    if len(set(in_front)) < len(axes):
        raise ValueError(f"{x.builder.here()}axis {axis} names an axis twice")
    return in_front


def axes_of(x: Any, axis: Axis) -> list[int]:
    """Ascending, counted from the front; None: all."""
    return list(range(x.ndim)) if axis is None else sorted(axes_in_order(x, axis))


def axis_of(x: Any, axis: int) -> int:
    """One axis, counted from the front. Raises TypeError for several."""
    if np.ndim(axis):
        raise TypeError(f"{x.builder.here()}axis {axis}: one axis, as a whole number")
    return axes_in_order(x, axis)[0]


def kept(x: Any, axes: Sequence[int], result: "Expression", keepdims: bool) -> "Expression":
    return (
        reshape(result, [1 if a in axes else n for a, n in enumerate(x.shape)])
        if keepdims
        else result
    )


def reduced(code: str, x: Any, axis: Axis = None, keepdims: bool = False) -> "Expression":
    """sum, prod, any, all; any and all of numbers ask whether they are not 0."""
    b, axes = builder_of(x), axes_of(x, axis)
    if code in ("any", "all") and x.element != ELEMENT_TYPE_BOOL:
        x = b.convert(x, ELEMENT_TYPE_BOOL)
    if code in ("sum", "prod"):
        x = counted(x)
    result = b.apply(code, x, axes=axes) if axes else x
    return kept(x, axes, result, keepdims)


def mean(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    """The sum, of reals, divided by the number of elements."""
    b = builder_of(a)
    count = math.prod(a.shape[i] for i in axes_of(a, axis))
    return b.div(reduced("sum", real(b, a), axis, keepdims), float(count))


def variance(a: Any, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> "Expression":
    """The sum of squared differences from the mean, divided by the number of elements less ddof."""
    x = real(builder_of(a), a)
    centred = x - mean(x, axis, keepdims=True)
    count = math.prod(x.shape[i] for i in axes_of(x, axis))
    return reduced("sum", centred * centred, axis, keepdims) / float(count - ddof)


def extreme(code: str, x: Any, axis: Axis = None, keepdims: bool = False) -> "Expression":
    """reduce_max and reduce_min, one axis after the other from the last; all axes at once as one."""
    b, axes = builder_of(x), axes_of(x, axis)
    if len(axes) == x.ndim > 0:
        return kept(x, axes, b.apply(code, x.reshape(-1), axes=0), keepdims)
    result = x
    for a in reversed(axes):
        result = b.apply(code, result, axes=a)
    return kept(x, axes, result, keepdims)


def along_one(x: Any, axis: int | None) -> tuple["Expression", int]:
    """x and its axis counted from the front; None: x flat, and 0."""
    return (x.reshape(-1), 0) if axis is None else (x, axis_of(x, axis))


def argument(code: str, x: Any, axis: int | None = None) -> "Expression":
    of, along = along_one(x, axis)
    return builder_of(x).apply(code, of, axes=along)


def cumsum(a: Any, axis: int | None = None) -> "Expression":
    of, along = along_one(a, axis)
    return builder_of(a).cumsum(counted(of), axes=along)


def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> "Expression":
    """A gather of the flat array; a computed index that is outside means the nearest element."""
    b = builder_of(arr, indices)
    x, along = along_one(b.value(arr), axis)
    if np.ndim(indices) != x.ndim:
        raise ValueError(
            f"{b.here()}np.take_along_axis of shape {x.shape} at indices of shape {np.shape(indices)}: "
            "as many axes"
        )
    if not hasattr(indices, "builder"):
        places = np.take_along_axis(np.arange(x.size).reshape(x.shape), np.asarray(indices), along)
        return b.take(x, places.shape, places.ravel().tolist())
    if indices.element in (ELEMENT_TYPE_REAL, ELEMENT_TYPE_BOOL):
        raise TypeError(f"{b.here()}np.take_along_axis takes computed indices, not reals or bools")
    # A bound above 255 is no u8.
    given = indices.astype("i32") if indices.element == ELEMENT_TYPE_U8 else indices
    inside = b.min(b.max(given, np.int32(0)), np.int32(x.shape[along] - 1))
    return _at_places(x, inside.astype("i32"), along)


def _at_places(x: "Expression", places: "Expression", axis: int) -> "Expression":
    """x at i32 places along an axis, all inside."""
    stride = math.prod(x.shape[axis + 1 :])
    base = np.arange(x.size).reshape(x.shape).take([0], axis).astype(np.int32)
    return x.builder.gather(x.reshape(-1), places * np.int32(stride) + base, axes=0)


def argsort(a: Any, axis: int | None = -1) -> "Expression":
    of, along = along_one(a, axis)
    return of.builder.argsort(of, axes=along)


def sort(a: Any, axis: int | None = -1) -> "Expression":
    """A stable argsort, and a gather."""
    of, along = along_one(a, axis)
    return _at_places(of, argsort(of, along), along) if of.size else of


def take(a: Any, indices: Any, axis: int | None = None) -> "Expression":
    b = builder_of(a, indices)
    x, along = along_one(b.value(a), axis)
    # A tuple in a key of its own is a list of indices.
    return x[(*(slice(None),) * along, list(indices) if isinstance(indices, tuple) else indices)]


# ---- Tables ----

# Integers stay as they are.
_TO_WHOLE = frozenset(("floor", "ceil", "trunc", "rint"))

_OF_UFUNC = {
    **{
        name: name
        for name in (
            *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh"),
            *("cosh", "tanh", "cbrt", "floor", "ceil", "trunc", "sign"),
        )
    },
    **{"add": "add", "subtract": "sub", "multiply": "mul", "negative": "neg", "absolute": "abs"},
    **{"fabs": "abs", "minimum": "min", "maximum": "max", "remainder": "mod", "fmod": "rem"},
    **{"rint": "round", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2"},
    **{"nextafter": "next_after", "less": "lt", "less_equal": "le"},
    **{"greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne"},
    **{"left_shift": "shl", "right_shift": "shr"},
    **{"bitwise_and": "and", "bitwise_or": "or", "invert": "not", "bitwise_xor": "xor"},
}

COMPOSITES: dict[str, Callable[..., Any]] = {
    "divide": true_divide,
    "floor_divide": floor_divide,
    "power": power,
    "float_power": lambda b, x, y: power(b, real(b, x), y),
    "matmul": matmul,
    "square": lambda b, x: x * x,
    "reciprocal": reciprocal,
    "positive": lambda b, x: x,
    "hypot": hypot,
    "divmod": divide_with_remainder,
    "log10": log10,
    "modf": modf,
    "ldexp": ldexp,
    "deg2rad": lambda b, x: x * (math.pi / 180),
    "radians": lambda b, x: x * (math.pi / 180),
    "rad2deg": lambda b, x: x * (180 / math.pi),
    "degrees": lambda b, x: x * (180 / math.pi),
    "arcsinh": arcsinh,
    "arccosh": arccosh,
    "arctanh": arctanh,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    "copysign": copysign,
    "heaviside": heaviside,
    "isnan": is_nan,
    "isinf": is_infinite,
    "isfinite": is_finite,
    "fmax": lambda b, x, y: _known_of(b, x, y, b.max(x, y)),
    "fmin": lambda b, x, y: _known_of(b, x, y, b.min(x, y)),
    "conjugate": lambda b, x: x,
    "vecdot": lambda b, x, y: reduced("sum", b.value(x) * y, -1),
    "matvec": lambda b, x, y: matmul(b, x, b.value(y)[..., None])[..., 0],
    "vecmat": lambda b, x, y: matmul(b, b.value(x)[..., None, :], y)[..., 0, :],
    "logical_and": _on_bools("and"),
    "logical_or": _on_bools("or"),
    "logical_not": _on_bools("not"),
    "logical_xor": _on_bools("ne"),
}
