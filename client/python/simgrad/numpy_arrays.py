"""NumPy's functions that put arrays together, take them apart and count in them, on values of a world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from simgrad.constants import constant
from simgrad.numpy_elementary import is_finite, is_infinite, is_nan
from simgrad.numpy_operands import (
    Axis,
    along_one,
    axes_in_order,
    axes_of,
    axis_of,
    builder_of,
    counted,
    element_as,
    is_computed,
    real,
    values_of,
    whole,
)
from simgrad.numpy_order import sort, take
from simgrad.numpy_reductions import kept, mean, reduced
from simgrad.numpy_shapes import broadcast_to, concatenate, moveaxis, transpose
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder


def like(a: Any, fill: Any, dtype: Any = None) -> "Expression":
    b = builder_of(a, fill)
    x = b.value(a)
    element = x.element if dtype is None else element_as(dtype, x.element)
    value = b.value(fill, element)
    return b.broadcast_to(value if value.element == element else b.convert(value, element), x.shape)


def full_like(a: Any, fill_value: Any, dtype: Any = None) -> "Expression":
    return like(a, fill_value, dtype)


# ---- Copies of elements: gathers by numbers that NumPy gives ----


def _by(
    x: "Expression", axis: int | None, places: Callable[[np.ndarray], np.ndarray]
) -> "Expression":
    """x along an axis, or flat, at what `places` makes of 0, 1, 2 and so on."""
    count = x.size if axis is None else x.shape[axis_of(x, axis)]
    return take(x, np.asarray(places(np.arange(count))), axis)


def tile(A: Any, reps: int | Sequence[int]) -> "Expression":
    x = builder_of(A).value(A)
    places = np.tile(np.arange(x.size).reshape(x.shape), reps)
    return x.builder.take(x, places.shape, places.ravel().tolist())


def repeat(a: Any, repeats: Any, axis: int | None = None) -> "Expression":
    return _by(builder_of(a).value(a), axis, lambda places: np.repeat(places, repeats))


def delete(arr: Any, obj: Any, axis: int | None = None) -> "Expression":
    return _by(builder_of(arr).value(arr), axis, lambda places: np.delete(places, obj))


def insert(arr: Any, obj: int, values: Any, axis: int | None = None) -> "Expression":
    """`values` before the one place `obj`, as integers where `arr` has them."""
    b = builder_of(arr, values)
    x = b.value(arr)
    is_real = x.element == ELEMENT_TYPE_REAL
    if is_real or is_computed(values):
        y = b.value(values)
    else:
        known = constant(values)
        y = b.value(known.astype(bool if x.element == ELEMENT_TYPE_BOOL else np.int64), x.element)
    if not is_real and y.element != x.element:
        y = b.convert(y, x.element)
    x, along = along_one(x, axis)
    count = x.shape[along]
    if not isinstance(obj, (int, np.integer)) or not -count <= obj <= count:
        raise TypeError(f"{b.here()}np.insert at {obj!r}: one place of the {count} there are")
    at = int(obj) + count if obj < 0 else int(obj)
    before: tuple[Any, ...] = (slice(None),) * along
    # NumPy takes the first axis of the values for the one along which they go in.
    y = moveaxis(y.reshape((1,) * (x.ndim - y.ndim) + y.shape), 0, along)
    if y.ndim == x.ndim:
        y = b.broadcast_to(y, (*x.shape[:along], y.shape[along], *x.shape[along + 1 :]))
    return concatenate([x[(*before, slice(0, at))], y, x[(*before, slice(at, None))]], along)


def append(arr: Any, values: Any, axis: int | None = None) -> "Expression":
    return concatenate([arr, values], axis)


def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> "Expression":
    x = builder_of(m).value(m)
    places = np.rot90(np.arange(x.size).reshape(x.shape), k, axes)
    return x.builder.take(x, places.shape, places.ravel().tolist())


def pad(array: Any, pad_width: Any, mode: str = "constant", constant_values: Any = None) -> "Expression":
    b = builder_of(array)
    x = b.value(array)
    if isinstance(pad_width, Mapping):
        raise TypeError(f"{b.here()}np.pad by {pad_width}: a number, or one before and one after for each axis")
    widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2))
    if np.any(widths < 0):
        raise ValueError(f"{b.here()}np.pad by {pad_width}: widths of at least 0")
    if mode == "constant":
        constant_values = 0 if constant_values is None else constant_values
        if np.ndim(constant_values) or hasattr(constant_values, "builder"):
            raise TypeError(f"{b.here()}np.pad with one number that is known, not {constant_values!r}")
        if not np.isfinite(constant_values):
            raise ValueError(f"{b.here()}np.pad with {constant_values!r}: a finite number; np.concatenate joins others")
        shape = [n + int(w.sum()) for n, w in zip(x.shape, widths)]
        start = [int(w[0]) for w in widths]
        return b.pad(x, start, shape, fill=float(constant_values))
    places = np.pad(np.arange(x.size).reshape(x.shape), widths, mode)  # type: ignore[call-overload]
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(f"{b.here()}np.pad of mode {mode!r}: constant, edge, reflect, symmetric or wrap")
    if constant_values is not None:
        raise ValueError(f"{b.here()}np.pad of mode {mode!r} takes no constant_values: mode=\"constant\" does")
    return b.take(x, places.shape, places.ravel().tolist())


# ---- Apart and together ----


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list["Expression"]:
    b = builder_of(ary)
    x = b.value(ary)
    along = axis_of(x, axis)
    parts = np.array_split(np.arange(x.shape[along]), indices_or_sections)
    before = (slice(None),) * along
    return [x[(*before, slice(int(p[0]), int(p[-1]) + 1) if p.size else slice(0, 0))] for p in parts]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list["Expression"]:
    b = builder_of(ary)
    x = b.value(ary)
    count = x.shape[axis_of(x, axis)]
    if isinstance(indices_or_sections, (int, np.integer)) and (indices_or_sections < 1 or count % indices_or_sections):
        raise ValueError(
            f"{b.here()}np.split of {count} into {indices_or_sections}: equal parts; np.array_split makes others"
        )
    return array_split(x, indices_or_sections, axis)


def column_stack(tup: Sequence[Any]) -> "Expression":
    b = builder_of(tup)
    values = [b.value(x) for x in tup]
    return concatenate([x.reshape(-1, 1) if x.ndim < 2 else x for x in values], 1)


def atleast(count: int, x: Any) -> "Expression":
    value = builder_of(x).value(x)
    places = (np.atleast_1d, np.atleast_2d, np.atleast_3d)[count - 1](np.empty(value.shape, bool))
    return value.reshape(places.shape)


def each_atleast(count: int) -> Callable[..., Any]:
    def write(*arys: Any) -> Any:
        made = [atleast(count, builder_of(arys).value(x)) for x in arys]
        return made[0] if len(made) == 1 else tuple(made)

    return write


def dstack(tup: Sequence[Any]) -> "Expression":
    b = builder_of(tup)
    return concatenate([atleast(3, b.value(x)) for x in tup], 2)


def broadcast_arrays(*args: Any) -> tuple["Expression", ...]:
    b = builder_of(args)
    values = [b.value(x) for x in args]
    try:
        shape = np.broadcast_shapes(*(x.shape for x in values))
    except ValueError:
        raise b.unmet(*(x.shape for x in values)) from None
    return tuple(b.broadcast_to(x, shape) for x in values)


# ---- Sums and places ----


def accumulated(
    combine: Callable[[Any, Any], Any], x: Any, axis: int | None = None
) -> "Expression":
    """A scan."""
    b = builder_of(x)
    of, along = along_one(b.value(x), axis)
    order = [along, *(i for i in range(of.ndim) if i != along)]
    rows = transpose(of, order)
    if rows.shape[0] == 0:
        return of

    def turn(carried: list[Any], element: list[Any]) -> tuple[Any, Any]:
        following = combine(carried[0], element[0])
        return [following], [following]

    _, [stacked] = b.scan(turn, [rows[0]], [rows[1:]])
    return transpose(concatenate([rows[:1], stacked]), [int(i) for i in np.argsort(order)])


def cumprod(a: Any, axis: int | None = None) -> "Expression":
    return accumulated(lambda x, y: x * y, counted(builder_of(a).value(a)), axis)


def average(
    a: Any, axis: Axis = None, weights: Any = None, *, keepdims: bool = False
) -> "Expression":
    """sum(a w) / sum(w), of reals."""
    b = builder_of(a, weights)
    x = real(b, a)
    if weights is None:
        return mean(x, axis, keepdims=keepdims)
    w = real(b, weights)
    if w.shape != x.shape:
        if not isinstance(axis, (int, np.integer)) or w.ndim != 1:
            raise ValueError(f"{b.here()}np.average: weights of shape {w.shape} for {x.shape}")
        w = w.reshape([-1 if i == axis_of(x, axis) else 1 for i in range(x.ndim)])
        w = b.broadcast_to(w, x.shape)
    total = reduced("sum", x * w, axis, keepdims)
    return b.div(total, reduced("sum", w, axis, keepdims))


def _sorted(a: Any, axis: Axis) -> "Expression":
    """The reals along these axes, sorted along one, the last."""
    b = builder_of(a)
    x = real(b, a)
    if axis is None:
        return sort(x.reshape(-1))
    gone = axes_of(x, axis)
    rest = [i for i in range(x.ndim) if i not in gone]
    rows = transpose(x, [*rest, *gone])
    return sort(rows if len(gone) == 1 else rows.reshape([*(x.shape[i] for i in rest), -1]))


def quantile(a: Any, q: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    """The quantile `q`, on straight lines between sorted neighbours; NaN comes last.

    Args:
      q: a known number, or an array of them, from 0 to 1. The axes of an array come first in the result.
    """
    ordered = _sorted(a, axis)
    b = ordered.builder
    known = np.asarray(np.nan if hasattr(q, "builder") else q)
    if known.dtype.kind not in "iuf" or not np.all((known >= 0) & (known <= 1)) or not known.size:
        raise TypeError(f"{b.here()}a quantile of {q!r}: known numbers from 0 to 1")
    gone = axes_of(a, axis)
    each = [kept(a, gone, _between(ordered, float(one)), keepdims) for one in known.reshape(-1)]
    return b.stack(each).reshape([*known.shape, *each[0].shape]) if known.ndim else each[0]


def _between(ordered: "Expression", q: float) -> "Expression":
    at = q * (ordered.shape[-1] - 1)
    low = int(np.floor(at))
    first = ordered[..., low]
    return first if low == at else first + (ordered[..., low + 1] - first) * (at - low)


def percentile(a: Any, q: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    """The quantile of q / 100."""
    return quantile(a, q if hasattr(q, "builder") else np.true_divide(q, 100), axis, keepdims=keepdims)


def median(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    """The middle of the sorted array, or the mean of the two there; NaN comes last."""
    ordered = _sorted(a, axis)
    n = ordered.shape[-1]
    if n == 0:
        raise ValueError(f"{builder_of(a).here()}np.median of an array of shape {np.shape(a)}: nothing is in its middle")
    middle = ordered[..., n // 2]
    middle = middle * 1.0 if n % 2 else (ordered[..., n // 2 - 1] + middle) * 0.5
    return kept(a, axes_of(a, axis), middle, keepdims)


def nansum(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    b = builder_of(a)
    return reduced("sum", b.where(is_nan(b, a), 0, a), axis, keepdims)


def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> "Expression":
    """Needs `posinf` and `neginf`: the largest number is that of the policy's format."""
    b = builder_of(x)
    value = b.value(x)
    if value.element != ELEMENT_TYPE_REAL:
        return value
    if posinf is None or neginf is None:
        raise TypeError(
            f"{b.here()}np.nan_to_num needs posinf= and neginf=: the largest number is that of the policy"
        )
    finite = b.where(b.is_finite(value), value, b.where(b.sign(value).astype("i32") > 0, posinf, neginf))
    return b.where(is_nan(b, value), nan, finite)


def count_nonzero(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    x = builder_of(a).value(a)
    return reduced("sum", x.astype(bool), axis, keepdims)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> "Expression":
    b = builder_of(condlist, choicelist, default)
    if len(condlist) != len(choicelist):
        raise ValueError(
            f"{b.here()}np.select of {len(condlist)} conditions and {len(choicelist)} choices"
        )
    choices = [b.value(x) if is_computed(x) else x for x in choicelist]
    [result] = values_of(b, default, among=choices)
    for condition, choice in zip(reversed(condlist), reversed(choices)):
        result = b.where(condition, choice, result)
    return result


def searchsorted(a: Any, v: Any, side: str = "left") -> "Expression":
    """How many of a are below v (`right`: not above), NaN as the largest: a comparison of each with each."""
    b = builder_of(a, v)
    steps, wanted = b.value(a), b.value(v)
    if steps.ndim != 1 or side not in ("left", "right"):
        raise ValueError(f"{b.here()}np.searchsorted in shape {steps.shape}, side {side!r}")
    wanted = wanted[..., None]
    below = steps < wanted if side == "left" else steps <= wanted
    if wanted.element == ELEMENT_TYPE_REAL:
        last = is_nan(b, wanted)
        below = below | (last & ~is_nan(b, steps) if side == "left" else last)
    return reduced("sum", below, -1)


def interp(x: Any, xp: Any, fp: Any) -> "Expression":
    """Straight lines between the points; outside, the first and the last. At a point its height, to the bit."""
    b = builder_of(x, xp, fp)
    steps, heights = real(b, xp), real(b, fp)
    if steps.ndim != 1 or steps.shape != heights.shape or steps.size == 0:
        shapes = f"{steps.shape} and {heights.shape}"
        raise ValueError(f"{b.here()}np.interp between points of shapes {shapes}: one axis of one length, at least 1")
    if steps.size == 1:
        return broadcast_to(heights[0], np.shape(x))
    inside = b.min(b.max(x, steps[0]), steps[-1])
    last = np.int32(steps.size - 1)
    left = b.min(b.max(searchsorted(steps, inside, "right") - np.int32(1), np.int32(0)), last)
    slopes = (heights[1:] - heights[:-1]) / (steps[1:] - steps[:-1])
    # The last point begins a line too, with the slope of the one that ends there.
    slope = concatenate([slopes, slopes[-1:]])[left]
    beyond = inside - steps[left]
    risen = slope * beyond
    # At a point 0 times an infinite slope would be NaN.
    risen = b.where(beyond == 0, b.where(b.is_finite(slope), risen, 0.0), risen)
    return heights[left] + risen


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


def gradient(f: Any, *varargs: Any, axis: Axis = None) -> Any:
    """Central differences of reals inside, one-sided ones at the ends, of evenly spaced points.

    Spacings and results are in the order of `axis`.
    """
    b = builder_of(f)
    x = real(b, f)
    axes = list(range(x.ndim)) if axis is None else axes_in_order(x, axis)
    spacings = list(varargs) * (len(axes) if len(varargs) == 1 else 1) or [1.0] * len(axes)
    if any(np.ndim(h) for h in spacings):
        raise TypeError(f"{b.here()}np.gradient by arrays of coordinates: a number for each spacing")
    if len(spacings) != len(axes):
        raise TypeError(f"{b.here()}np.gradient of {len(axes)} axes: one spacing, or one for each")
    made = []
    for along, h in zip(axes, spacings):
        if x.shape[along] < 2:
            raise ValueError(f"{b.here()}np.gradient of shape {x.shape}: at least 2 along each axis")
        before: tuple[Any, ...] = (slice(None),) * along

        def at(start: int | None, stop: int | None) -> "Expression":
            return x[(*before, slice(start, stop))]

        first, last = (at(1, 2) - at(0, 1)) / h, (at(-1, None) - at(-2, -1)) / h
        inside = (at(2, None) - at(None, -2)) / (2.0 * h)
        made.append(concatenate([first, inside, last], along))
    return made[0] if len(made) == 1 else tuple(made)


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> "Expression":
    """Areas of reals, as in `gradient`."""
    b = builder_of(y, x)
    value = real(b, y)
    along = axis_of(value, axis)
    before: tuple[Any, ...] = (slice(None),) * along
    widths = dx
    if x is not None:
        steps = real(b, x)
        widths = diff(steps, axis=axis if steps.ndim > 1 else 0)
        if steps.ndim == 1:
            widths = widths.reshape([-1 if i == along else 1 for i in range(value.ndim)])
    both = value[(*before, slice(1, None))] + value[(*before, slice(None, -1))]
    return reduced("sum", widths * both * 0.5, axis)


def polyval(p: Any, x: Any) -> "Expression":
    """Horner's scheme."""
    b = builder_of(p, x)
    coefficients = b.value(p)
    result = b.like(b.value(x) * 1.0, 0.0)
    for i in range(coefficients.shape[0]):
        result = result * x + coefficients[i]
    return result


def is_close(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08) -> "Expression":
    """|a - b| <= atol + rtol |b| where b is finite; infinities are near those of their sign."""
    writer: "ProgramBuilder" = builder_of(a, b)
    left, right = real(writer, a), real(writer, b)
    apart = left - right
    near = abs(apart) <= atol + rtol * abs(right)
    # The difference of two infinities with one sign is NaN.
    same = is_infinite(writer, left) & is_infinite(writer, right) & is_nan(writer, apart)
    return near & is_finite(writer, right) | same


def array_equal(a1: Any, a2: Any) -> "Expression":
    """Whether the shapes are the same, and all elements equal."""
    b = builder_of(a1, a2)
    left, right = b.matched([a1, a2], shapes=False)
    return reduced("all", left == right) if left.shape == right.shape else b.value(False)
