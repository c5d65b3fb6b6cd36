"""NumPy's operators, ufuncs and basic functions on values of a world, as operations of the table.

Composites say in their docstring what they are made of, as that is what gets rounded and
differentiated. `simgrad.numpy_table` says which function of NumPy is which of these.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Sequence

import numpy as np

from simgrad.constants import constant
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder

Axis = int | Sequence[int] | None
_LARGEST_UNROLLED_POWER = 8


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


def power(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Products for whole exponents of at most 8, sqrt for 0.5; else `pow`."""
    known = None if hasattr(y, "builder") else constant(y)
    if known is None or known.shape != ():
        return b.pow(x, y)
    exponent = float(known)
    base = b.value(x)
    if exponent == 0.5 and base.element == ELEMENT_TYPE_REAL:
        return b.sqrt(base)
    if not exponent.is_integer() or not 0 < abs(exponent) <= _LARGEST_UNROLLED_POWER:
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


def clip(x: Any, a_min: Any = None, a_max: Any = None) -> "Expression":
    """min(max(x, a_min), a_max)."""
    b = builder_of(x, a_min, a_max)
    low = b.value(x) if a_min is None else b.max(x, a_min)
    return low if a_max is None else b.min(low, a_max)


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
    return ~b.is_finite(b.sign(real(b, x)))


def is_infinite(b: "ProgramBuilder", x: Any) -> "Expression":
    """Whether x is not finite, and its sign is: no comparison, so no site."""
    value = real(b, x)
    return b.is_finite(b.sign(value)) & ~b.is_finite(value)


def _known_of(b: "ProgramBuilder", x: Any, y: Any, both: "Expression") -> "Expression":
    """`both`; x where y is NaN, and y where x is."""
    return b.where(is_nan(b, x), y, b.where(is_nan(b, y), x, both))


def arcsinh(b: "ProgramBuilder", x: Any) -> "Expression":
    """log1p(x + x^2 / (1 + sqrt(1 + x^2))), of -x below 0; x^2 is within the format."""

    def rising(y: "Expression") -> "Expression":
        square = y * y
        return b.log1p(y + square / (1 + b.sqrt(1 + square)))

    value = real(b, x)
    return b.where(value < 0, -rising(-value), rising(value))


def arccosh(b: "ProgramBuilder", x: Any) -> "Expression":
    """log1p(t + sqrt(t (t + 2))) of t = x - 1."""
    t = real(b, x) - 1
    return b.log1p(t + b.sqrt(t * (t + 2)))


def arctanh(b: "ProgramBuilder", x: Any) -> "Expression":
    """(log1p(x) - log1p(-x)) / 2."""
    value = real(b, x)
    return (b.log1p(value) - b.log1p(-value)) * 0.5


def logaddexp(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """The larger, and softplus of the smaller less the larger."""
    x, y = b.matched([real(b, x), real(b, y)])
    # At a tie one is the larger and the other the smaller, and each gets half of the cotangent.
    larger = b.max(x, y)
    return larger + b.softplus(b.min(y, x) - larger)


def logaddexp2(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """The larger, and log1p(2^(smaller - larger)) / log(2)."""
    x, y = b.matched([real(b, x), real(b, y)])
    larger = b.max(x, y)
    return larger + b.log1p(b.exp2(b.min(y, x) - larger)) * (1 / math.log(2))


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


def rounded(x: Any, decimals: int = 0) -> "Expression":
    """The nearest whole number of 10^-decimals, ties to even; integers stay where decimals >= 0."""
    b = builder_of(x)
    value = b.value(x)
    if value.element != ELEMENT_TYPE_REAL and decimals >= 0:
        return value
    if decimals == 0:
        return b.round(value)
    scale = 10.0 ** abs(decimals)
    return b.round(value * scale) / scale if decimals > 0 else b.round(value / scale) * scale


# ---- Shapes ----


def reshape(x: Any, shape: Any) -> "Expression":
    b = builder_of(x)
    given = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    try:
        known = np.broadcast_to(np.False_, x.shape).reshape(given).shape
    except ValueError as error:
        raise ValueError(f"{b.here()}{error}") from None
    return x if known == x.shape else b.reshape(x, known)


def transpose(x: Any, axes: Any = None) -> "Expression":
    dims = tuple(range(x.ndim))[::-1] if axes is None else tuple(int(a) % x.ndim for a in axes)
    if sorted(dims) != list(range(x.ndim)):
        raise ValueError(f"{x.builder.here()}axes {axes} are no order of the {x.ndim} axes")
    return x if x.ndim < 2 else builder_of(x).transpose(x, dims)


def squeeze(x: Any, axis: Axis = None) -> "Expression":
    return reshape(x, np.squeeze(np.empty(x.shape, bool), axis).shape)


def expand_dims(x: Any, axis: int | Sequence[int]) -> "Expression":
    return reshape(x, np.expand_dims(np.empty(x.shape, bool), axis).shape)


def swapaxes(x: Any, axis1: int, axis2: int) -> "Expression":
    dims = list(range(x.ndim))
    dims[axis1], dims[axis2] = dims[axis2], dims[axis1]
    return transpose(x, dims)


def moveaxis(x: Any, source: Axis, destination: Axis) -> "Expression":
    sources = [int(a) % x.ndim for a in np.atleast_1d(np.asarray(source))]
    targets = [int(a) % x.ndim for a in np.atleast_1d(np.asarray(destination))]
    dims = [axis for axis in range(x.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources)):
        dims.insert(target, axis)
    return transpose(x, dims)


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


def vstack(arrays: Sequence[Any]) -> "Expression":
    b = builder_of(arrays)
    values = [b.value(x) for x in arrays]
    return concatenate([x.reshape(1, -1) if x.ndim < 2 else x for x in values])


def hstack(arrays: Sequence[Any]) -> "Expression":
    b = builder_of(arrays)
    values = [b.value(x) for x in arrays]
    values = [x.reshape(1) if x.ndim == 0 else x for x in values]
    return concatenate(values, 0 if values[0].ndim == 1 else 1)


def roll(x: "Expression", shift: int, axis: int | None = None) -> "Expression":
    """Two slices, joined."""
    if axis is None:
        return roll(x.reshape(-1), shift, 0).reshape(x.shape)
    n = x.shape[axis]
    cut = (-shift) % n if n else 0
    if cut == 0:
        return builder_of(x).value(x)
    before: tuple[Any, ...] = (slice(None),) * (axis % x.ndim)
    return concatenate([x[(*before, slice(cut, n))], x[(*before, slice(0, cut))]], axis)


def flip(x: "Expression", axis: Axis = None) -> "Expression":
    gone = set(axes_of(x, axis))
    return x[tuple(slice(None, None, -1) if a in gone else slice(None) for a in range(x.ndim))]


def diff(x: "Expression", n: int = 1, axis: int = -1) -> "Expression":
    before: tuple[Any, ...] = (slice(None),) * (axis % x.ndim)
    for _ in range(n):
        x = x[(*before, slice(1, None))] - x[(*before, slice(None, -1))]
    return x


def triangle(x: Any, k: int, lower: bool) -> "Expression":
    b = builder_of(x)
    rows, columns = x.shape[-2:]
    kept = np.tri(rows, columns, k if lower else k - 1).astype(bool)
    return b.where(kept if lower else ~kept, x, 0)


def diagonal(x: Any, k: int = 0) -> "Expression":
    """Makes a matrix of a vector that is its diagonal, or takes the diagonal of a matrix: `take`."""
    places = np.arange(x.size).reshape(x.shape)
    if x.ndim == 1:
        places = np.diag(places + 1, k) - 1
    else:
        places = np.diag(places, k)
    return builder_of(x).take(x, places.shape, places.ravel().tolist())


def matrix_diagonal(x: Any, offset: int = 0) -> "Expression":
    """Takes the diagonal of the first two axes, as the last axis: `take`."""
    value = builder_of(x).value(x)
    places = np.diagonal(np.arange(value.size).reshape(value.shape), offset)
    return value.builder.take(value, places.shape, places.ravel().tolist())


# ---- Reductions ----


def axes_of(x: Any, axis: Axis) -> list[int]:
    """Ascending, counted from the front; None: all."""
    if axis is None:
        return list(range(x.ndim))
    given = [axis] if isinstance(axis, (int, np.integer)) else list(axis)
    if any(not -x.ndim <= a < x.ndim for a in given):
        raise ValueError(f"{x.builder.here()}axis {axis} is none of an array of shape {x.shape}")
    return sorted({int(a) % x.ndim for a in given})


def _kept(x: Any, axes: Sequence[int], result: "Expression", keepdims: bool) -> "Expression":
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
    if code in ("sum", "prod") and x.element == ELEMENT_TYPE_BOOL:
        x = x.astype("i32")
    result = b.apply(code, x, axes=axes) if axes else x
    return _kept(x, axes, result, keepdims)


def mean(x: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    """The sum divided by the number of elements."""
    count = math.prod(x.shape[a] for a in axes_of(x, axis))
    return true_divide(builder_of(x), reduced("sum", x, axis, keepdims), float(count))


def variance(x: Any, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> "Expression":
    """The sum of squared differences from the mean, divided by the number of elements less ddof."""
    centred = x - mean(x, axis, keepdims=True)
    count = math.prod(x.shape[a] for a in axes_of(x, axis))
    return reduced("sum", centred * centred, axis, keepdims) / float(count - ddof)


def extreme(code: str, x: Any, axis: Axis = None, keepdims: bool = False) -> "Expression":
    """reduce_max and reduce_min, one axis after the other from the last; all axes at once as one."""
    b, axes = builder_of(x), axes_of(x, axis)
    if len(axes) == x.ndim > 0:
        return _kept(x, axes, b.apply(code, x.reshape(-1), axes=0), keepdims)
    result = x
    for a in reversed(axes):
        result = b.apply(code, result, axes=a)
    return _kept(x, axes, result, keepdims)


def argument(code: str, x: Any, axis: int | None = None) -> "Expression":
    of, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return builder_of(x).apply(code, of, axes=along)


def cumsum(x: Any, axis: int | None = None) -> "Expression":
    of, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return builder_of(x).cumsum(of, axes=along)


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> "Expression":
    """A gather of the flat array."""
    b, axis = builder_of(x, indices), axis % x.ndim
    stride = math.prod(x.shape[axis + 1 :])
    base = np.arange(x.size).reshape(x.shape).take([0], axis).astype(np.int32)
    return b.gather(b.value(x).reshape(-1), indices * np.int32(stride) + base, axes=0)


def sort(x: Any, axis: int = -1) -> "Expression":
    """A stable argsort, and a gather."""
    return take_along_axis(x, x.argsort(axis), axis)


def take(x: Any, indices: Any, axis: int | None = None) -> "Expression":
    if axis is None:
        return builder_of(x, indices).value(x).reshape(-1)[indices]
    before: tuple[Any, ...] = (slice(None),) * (axis % x.ndim)
    return builder_of(x, indices).value(x)[(*before, indices)]


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
    **{"nextafter": "next_after", "isfinite": "is_finite", "less": "lt", "less_equal": "le"},
    **{"greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne"},
    **{"left_shift": "shl", "right_shift": "shr"},
    **{"bitwise_and": "and", "bitwise_or": "or", "invert": "not", "bitwise_xor": "xor"},
}

COMPOSITES: dict[str, Callable[..., Any]] = {
    "divide": true_divide,
    "floor_divide": floor_divide,
    "power": power,
    "float_power": power,
    "matmul": matmul,
    "square": lambda b, x: x * x,
    "reciprocal": lambda b, x: 1.0 / x,
    "positive": lambda b, x: x,
    "hypot": lambda b, x, y: b.sqrt(x * x + y * y),
    "divmod": lambda b, x, y: (floor_divide(b, x, y), b.mod(x, y)),
    "log10": lambda b, x: b.log(real(b, x)) * (1 / math.log(10)),
    "modf": lambda b, x: (x - b.trunc(x), b.trunc(x)),
    "ldexp": lambda b, x, n: x * b.exp2(real(b, n)),
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
