"""Results of operations on numbers that are known while tracing.

A partial evaluator: what is not in FOLDED is left to JAX (`lowering.py`).
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np


def evaluate(op: str, operands: Sequence[np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(FOLDED[op](*operands, **attributes))


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.asarray(np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b))), a.dtype)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    divisor = np.where(b == 0, 1, b)
    exact = (a - np.fmod(a, divisor)) // divisor
    made: np.ndarray = np.where(b == 0, -1, exact).astype(a.dtype)
    return made


def convert(a: np.ndarray, to: str) -> np.ndarray:
    """Real to integer toward zero, saturating, NaN to 0; to bool whether it is not 0."""
    kind = np.dtype(to)
    if kind.kind == "b":
        return np.asarray(a != 0)
    if a.dtype.kind != "f" or kind.kind == "f":
        return np.asarray(a, kind)
    info = np.iinfo(kind)
    whole = np.trunc(a)
    inside = (whole > float(info.min)) & (whole < float(info.max))
    exact = np.where(inside, whole, 0).astype(kind)
    ends = np.where(whole >= float(info.max), info.max, info.min).astype(kind)
    return np.where(inside | np.isnan(a), exact, ends).astype(kind)


def _shifted(shift: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    def fold(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = a.dtype.itemsize * 8
        outside = (b.astype(np.int64) < 0) | (b.astype(np.int64) >= width)
        emptied = np.where(a < 0, -1, 0) if shift is np.right_shift else np.zeros_like(a)
        moved = shift(a, np.where(outside, 0, b).astype(a.dtype))
        made: np.ndarray = np.where(outside, emptied, moved).astype(a.dtype)
        return made

    return fold


# By format of reals: bits of the significand, exponent of the smallest normal number, largest number.
_FORMATS = {"f32": (24, -126, 2.0**128 - 2.0**104), "f16": (11, -14, 65504.0), "bf16": (8, -126, 2.0**128 - 2.0**120)}


def cast(a: np.ndarray, format: str) -> np.ndarray:
    """Rounded to the nearest number of the format, to even at ties; infinite above the largest."""
    bits, smallest, largest = _FORMATS[format]
    exponent = np.maximum(np.frexp(a)[1] - 1, smallest)
    rounded = np.ldexp(np.rint(np.ldexp(a, bits - 1 - exponent)), exponent + 1 - bits)
    made: np.ndarray = np.where(np.abs(rounded) > largest, np.copysign(np.inf, a), rounded)
    return np.where(np.isfinite(a), made, a)


def broadcast(a: np.ndarray, shape: Sequence[int], dims: Sequence[int]) -> np.ndarray:
    """A view: repeated numbers take no memory, and are found again when they are written."""
    lined = [1] * len(shape)
    for axis, d in enumerate(dims):
        lined[d] = a.shape[axis]
    return np.broadcast_to(a.reshape(lined), tuple(shape))


def strided(
    a: np.ndarray, start: Sequence[int], shape: Sequence[int], stride: Sequence[int]
) -> np.ndarray:
    return a[tuple(slice(s, s + (n - 1) * t + 1 if n else s, t) for s, n, t in zip(start, shape, stride))]


def take(*arrays: np.ndarray, indices: np.ndarray, fill: float | None = None) -> np.ndarray:
    flat: np.ndarray = np.concatenate([x.reshape(-1) for x in arrays])
    if fill is None:
        return np.asarray(flat[indices])
    if flat.size == 0:
        return np.full(indices.shape, fill, flat.dtype)
    return np.where(indices < 0, np.asarray(fill, flat.dtype), flat[np.maximum(indices, 0)])


def padded(a: np.ndarray, fill: Any, padding: Sequence[Sequence[int]]) -> np.ndarray:
    """JAX's pad: (low, high, interior) per axis; negative low and high cut."""
    shape = [
        max(low + high + n + max(n - 1, 0) * k, 0)
        for (low, high, k), n in zip(padding, a.shape)
    ]
    out = np.full(shape, fill, a.dtype)
    source, target = [], []
    for (low, _, k), n, m in zip(padding, a.shape, shape):
        at = low + np.arange(n) * (k + 1)
        inside = (at >= 0) & (at < m)
        source.append(np.arange(n)[inside])
        target.append(at[inside])
    out[np.ix_(*target)] = a[np.ix_(*source)]
    return out


def _running_sum(a: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    turned = np.flip(a, axis) if reverse else a
    sums = np.cumsum(turned, axis, dtype=a.dtype)
    sums = sums + 0  # it begins with +0
    return np.flip(sums, axis) if reverse else sums


def _larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The maximum; two zeros give +0, if either is."""
    larger: np.ndarray = np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))
    return larger


def _smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The minimum; two zeros give -0, if either is."""
    return -_larger(-a, -b) if np.result_type(a, b).kind == "f" else np.minimum(a, b)


FOLDED: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("abs", "sqrt", "floor", "ceil", "trunc", "exp", "exp2")},
    **{name: getattr(np, name) for name in ("log", "log1p", "expm1", "sin", "cos", "tan", "sinh")},
    **{name: getattr(np, name) for name in ("cosh", "tanh", "cbrt")},
    "neg": np.negative,
    "sign": np.sign,  # of either zero it is +0, as on the server
    "round": np.rint,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "is_finite": np.isfinite,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "stop_gradient": lambda a: a,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "quot": _quotient,
    "rem": _remainder,
    "min": _smaller,
    "max": _larger,
    "atan2": np.arctan2,
    "pow": np.power,
    "next_after": np.nextafter,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": _shifted(np.left_shift),
    "shr": _shifted(np.right_shift),
    "select": np.where,
    "convert": convert,
    "broadcast": broadcast,
    "reshape": lambda a, shape: a.reshape(shape),
    "slice": strided,
    "transpose": lambda a, dims: np.transpose(a, dims),
    "take": take,
    "sum": lambda a, axes: np.sum(a, axes, dtype=a.dtype),
    "prod": lambda a, axes: np.prod(a, axes, dtype=a.dtype),
    "reduce_max": lambda a, axes: np.max(a, axes),
    "reduce_min": lambda a, axes: np.min(a, axes),
    "any": lambda a, axes: np.any(a, axes),
    "all": lambda a, axes: np.all(a, axes),
    "matmul": np.matmul,
    "cast": cast,
    "argmax": lambda a, axis: np.argmax(a, axis).astype(np.int32),
    "argmin": lambda a, axis: np.argmin(a, axis).astype(np.int32),
    "cumsum": _running_sum,
}

_UNARY = (
    *("neg", "abs", "sign", "sqrt", "floor", "ceil", "trunc", "round", "exp", "exp2", "log", "log1p"),
    *("expm1", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "cbrt", "sigmoid"),
    *("erf", "erfc", "is_finite", "stop_gradient", "not", "convert", "cast"),
)
_BINARY = (
    *("add", "sub", "mul", "div", "quot", "rem", "min", "max", "atan2", "pow", "next_after"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "shl", "shr"),
)
ELEMENTWISE = frozenset((*_UNARY, *_BINARY, "select"))
# Operations that do no harm where the program would skip them: finite reals give no NaN or infinity.
HARMLESS = frozenset(
    (
        *("neg", "abs", "sign", "floor", "ceil", "trunc", "round", "min", "max", "sin", "cos", "tanh"),
        *("and", "or", "xor", "not", "shl", "shr", "select", "is_finite", "stop_gradient", "atan2"),
        *("lt", "le", "gt", "ge", "eq", "ne", "convert", "quot", "any", "all", "sigmoid", "atan", "erf"),
        *("reshape", "broadcast", "slice", "transpose", "concat", "take", "reduce_max", "reduce_min"),
        *("argmax", "argmin", "argsort", "gather", "dynamic_slice", "update", "iota"),
    )
)
LAYOUT = frozenset(("broadcast", "reshape", "slice", "concat", "transpose", "take"))
# Operations that give elements of what they take.
ELEMENTS_OF = LAYOUT | {"gather", "dynamic_slice", "select"}
