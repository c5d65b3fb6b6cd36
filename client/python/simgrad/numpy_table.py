"""The table of NumPy's functions: the function here for each, and what to write in place of those that are not.

Every refusal begins with the line of the user's file.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from simgrad import numpy_arithmetic as arithmetic
from simgrad import numpy_arrays as arrays
from simgrad import numpy_elementary as elementary
from simgrad import numpy_order as order
from simgrad import numpy_products as products
from simgrad import numpy_reductions as reductions
from simgrad import numpy_shapes as shapes
from simgrad import numpy_ufuncs as ufuncs
from simgrad.numpy_operands import Axis, axis_of, builder_of, element_as, values_of
from simgrad.numpy_shapes import reshape
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder


def call(b: "ProgramBuilder", function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the function here for one of NumPy's. Raises TypeError for an unknown function or argument."""
    name = _name(function)
    known = FUNCTIONS.get(function)
    if known is None:
        raise unknown(b, name, _INSTEAD.get(function, ""))
    signature = _signature(known)
    given = {k: v for k, v in kwargs.items() if k in signature.parameters or not _says_nothing(function, k, v)}
    try:
        signature.bind(*args, **given)
    except TypeError:
        others = [k for k in given if k not in signature.parameters]
        what = f"{name} with {', '.join(others)}" if others else f"{name} of these arguments"
        taken = ", ".join(str(p.name) for p in signature.parameters.values())
        raise unknown(b, what, f"it takes {taken}", _INSTEAD_OF.get(others[0]) if others else None) from None
    return with_line(b, known, *args, **given)


def with_line(
    b: "ProgramBuilder", function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """function(*args), whose errors begin with the line of the user's file."""
    try:
        return function(*args, **kwargs)
    except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        here = b.here()
        if str(error).startswith(here):
            raise
        if isinstance(error, (ValueError, ArithmeticError)):
            raise ValueError(f"{here}{error}") from None
        raise (IndexError if isinstance(error, IndexError) else TypeError)(f"{here}{error}") from None


def ufunc(
    b: "ProgramBuilder", function: Any, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """np.tan(x), np.add.reduce(x) and the like. Raises TypeError for what is unknown here."""
    name = f"np.{function.__name__}" + ("" if method == "__call__" else f".{method}")
    given = {k: v for k, v in kwargs.items() if v is not None}
    if method == "__call__":
        if given:
            first = next(iter(given))
            raise unknown(b, f"{name} with {', '.join(given)}", _INSTEAD_OF.get(first, ""))
        made = with_line(b, ufuncs.ufunc, b, function.__name__, inputs)
        if made is NotImplemented:
            raise unknown(b, name, "")
        return made
    if method == "outer" and not given and len(inputs) == 2:
        x, y = values_of(b, *inputs)
        return ufunc(b, function, "__call__", (x.reshape(*x.shape, *[1] * y.ndim), y), {})
    known = {"reduce": _REDUCE, "accumulate": _ACCUMULATE}.get(method, {}).get(function)
    if known is None:
        advice = "x.at[i].add(y) and its like bring in what a computed index says" if method == "at" else ""
        raise unknown(b, name, advice)
    axis = kwargs.get("axis", 0)
    given.pop("axis", None)
    keep = {"keepdims": given.pop("keepdims")} if "keepdims" in given and method == "reduce" else {}
    if given or len(inputs) > 1:
        raise unknown(b, f"{name} with {', '.join(given) or 'more'}", "it takes an array and axis")
    return with_line(b, known, inputs[0], axis, **keep)


def unknown(b: "ProgramBuilder", what: str, *advice: str | None) -> TypeError:
    told = "; ".join(text for text in advice if text) or "write it with others"
    return TypeError(
        f"{b.here()}{what} is not among the functions of worlds: {told} (docs/python.md)"
    )


def _name(function: Any) -> str:
    module = str(getattr(function, "__module__", "numpy")).replace("numpy", "np", 1)
    return f"{module}.{function.__name__}"


def _says_nothing(function: Any, name: str, value: Any) -> bool:
    """Whether an argument is NumPy's own "not given", or the default of the function of NumPy."""
    if value is None:
        return True
    default = _defaults(function).get(name)
    return value is default or isinstance(value, str) and bool(value == default)


@functools.lru_cache(maxsize=None)
def _defaults(function: Any) -> dict[str, Any]:
    """The arguments of a function of NumPy that have a default; none where it does not tell."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {k: p.default for k, p in parameters.items() if p.default is not p.empty}


@functools.lru_cache(maxsize=None)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


# ---- Tables ----

_DATA = "the shape would depend on data; "


def _reducing(code: str) -> Callable[..., Any]:
    def write(
        a: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False
    ) -> "Expression":
        x = builder_of(a).value(a)
        if dtype is not None:
            x = x.astype(dtype)
        return reductions.reduced(code, x, axis, keepdims)

    return write


def _bools(code: str) -> Callable[..., Any]:
    def write(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
        return reductions.reduced(code, a, axis, keepdims)

    return write


def _extreme(code: str) -> Callable[..., Any]:
    def write(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
        return reductions.extreme(code, a, axis, keepdims)

    return write


def where(condition: Any, x: Any = None, y: Any = None) -> "Expression":
    b = builder_of(condition, x, y)
    if x is None or y is None:
        raise TypeError(f"{b.here()}np.where needs both values: {_DATA}np.where(c, x, y)")
    chosen = b.value(condition)
    return b.where(chosen if chosen.element == ELEMENT_TYPE_BOOL else chosen.astype(bool), x, y)


def deviation(a: Any, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> "Expression":
    """The square root of the variance."""
    return builder_of(a).sqrt(reductions.variance(a, axis, ddof=ddof, keepdims=keepdims))


def spread(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    """The largest less the smallest."""
    largest = reductions.extreme("reduce_max", a, axis, keepdims)
    return largest - reductions.extreme("reduce_min", a, axis, keepdims)


def _mean(a: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> "Expression":
    if dtype is not None and element_as(dtype, a.element) != ELEMENT_TYPE_REAL:
        raise TypeError(f"a mean is real, not {dtype!r}")
    return reductions.mean(a, axis, keepdims=keepdims)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: where,
    np.clip: arithmetic.clip,
    np.sinc: elementary.sinc,
    np.round: elementary.rounded,
    np.isclose: arrays.is_close,
    np.allclose: lambda a, b, rtol=1e-05, atol=1e-08: reductions.reduced(
        "all", arrays.is_close(a, b, rtol, atol)
    ),
    np.array_equal: arrays.array_equal,
    np.nan_to_num: arrays.nan_to_num,
    np.select: arrays.select,
    np.interp: arrays.interp,
    np.polyval: arrays.polyval,
    # Products
    np.dot: products.dot,
    np.inner: products.inner,
    np.vdot: products.vdot,
    np.outer: products.outer,
    np.kron: products.kron,
    np.cross: products.cross,
    np.tensordot: products.tensordot,
    np.einsum: products.einsum,
    np.convolve: products.convolve,
    # Shapes
    np.reshape: lambda a, shape: reshape(a, shape),
    np.ravel: lambda a: reshape(a, -1),
    np.transpose: shapes.transpose,
    np.squeeze: shapes.squeeze,
    np.expand_dims: shapes.expand_dims,
    np.swapaxes: shapes.swapaxes,
    np.moveaxis: shapes.moveaxis,
    np.broadcast_to: shapes.broadcast_to,
    np.broadcast_arrays: arrays.broadcast_arrays,
    np.atleast_1d: arrays.each_atleast(1),
    np.atleast_2d: arrays.each_atleast(2),
    np.atleast_3d: arrays.each_atleast(3),
    np.concatenate: shapes.concatenate,
    np.append: arrays.append,
    np.insert: arrays.insert,
    np.delete: arrays.delete,
    np.stack: shapes.stack,
    np.vstack: shapes.vstack,
    np.hstack: shapes.hstack,
    np.dstack: arrays.dstack,
    np.column_stack: arrays.column_stack,
    np.split: arrays.split,
    np.array_split: arrays.array_split,
    np.vsplit: lambda ary, indices_or_sections: arrays.split(ary, indices_or_sections, 0),
    np.hsplit: lambda ary, indices_or_sections: arrays.split(
        ary, indices_or_sections, min(1, ary.ndim - 1)
    ),
    np.dsplit: lambda ary, indices_or_sections: arrays.split(ary, indices_or_sections, 2),
    np.tile: arrays.tile,
    np.repeat: arrays.repeat,
    np.pad: arrays.pad,
    np.roll: shapes.roll,
    np.flip: shapes.flip,
    np.flipud: lambda m: shapes.flip(m, 0),
    np.fliplr: lambda m: shapes.flip(m, 1),
    np.rot90: arrays.rot90,
    np.diff: arrays.diff,
    np.gradient: arrays.gradient,
    np.tril: lambda m, k=0: shapes.triangle(m, k, lower=True),
    np.triu: lambda m, k=0: shapes.triangle(m, k, lower=False),
    np.diag: shapes.diagonal,
    np.diagonal: shapes.matrix_diagonal,
    np.diagflat: lambda v, k=0: shapes.diagonal(reshape(v, -1), k),
    np.trace: lambda a, offset=0: reductions.reduced("sum", shapes.matrix_diagonal(a, offset), -1),
    np.copy: lambda a: builder_of(a).value(a),
    np.zeros_like: lambda a, dtype=None: arrays.like(a, 0, dtype),
    np.ones_like: lambda a, dtype=None: arrays.like(a, 1, dtype),
    np.full_like: arrays.full_like,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis_of(a, axis)],
    # Reductions
    np.sum: _reducing("sum"),
    np.prod: _reducing("prod"),
    np.nansum: arrays.nansum,
    np.any: _bools("any"),
    np.all: _bools("all"),
    np.count_nonzero: arrays.count_nonzero,
    np.max: _extreme("reduce_max"),
    np.min: _extreme("reduce_min"),
    np.amax: _extreme("reduce_max"),
    np.amin: _extreme("reduce_min"),
    np.ptp: spread,
    np.mean: _mean,
    np.average: arrays.average,
    np.median: arrays.median,
    np.quantile: arrays.quantile,
    np.percentile: arrays.percentile,
    np.var: reductions.variance,
    np.std: deviation,
    getattr(np, "trapezoid", None) or getattr(np, "trapz"): arrays.trapezoid,
    np.argmax: lambda a, axis=None: reductions.argument("argmax", a, axis),
    np.argmin: lambda a, axis=None: reductions.argument("argmin", a, axis),
    np.cumsum: reductions.cumsum,
    np.cumprod: arrays.cumprod,
    # Order and places
    np.argsort: order.argsort,
    np.sort: order.sort,
    np.searchsorted: arrays.searchsorted,
    np.take: order.take,
    np.take_along_axis: order.take_along_axis,
    # Linear algebra
    np.linalg.norm: products.norm,
    np.linalg.solve: products.solve,
    np.linalg.cholesky: products.cholesky,
    np.linalg.inv: products.inv,
    np.linalg.det: products.det,
    np.linalg.slogdet: products.slogdet,
    np.linalg.qr: products.qr,
    np.linalg.matrix_power: products.matrix_power,
    np.linalg.multi_dot: products.multi_dot,
}

if hasattr(np, "matrix_transpose"):  # of NumPy 2
    FUNCTIONS[np.matrix_transpose] = lambda x: shapes.swapaxes(x, -1, -2)

_REDUCE: dict[Any, Callable[..., Any]] = {
    np.add: _reducing("sum"),
    np.multiply: _reducing("prod"),
    np.maximum: _extreme("reduce_max"),
    np.minimum: _extreme("reduce_min"),
    np.logical_and: _bools("all"),
    np.logical_or: _bools("any"),
}

_ACCUMULATE: dict[Any, Callable[..., Any]] = {
    np.add: reductions.cumsum,
    np.multiply: arrays.cumprod,
    np.maximum: lambda a, axis: arrays.accumulated(np.maximum, a, axis),
    np.minimum: lambda a, axis: arrays.accumulated(np.minimum, a, axis),
}

_INSTEAD = {
    np.nonzero: f"{_DATA}np.where(c, x, 0) keeps the shape",
    np.flatnonzero: f"{_DATA}np.where(c, x, 0) keeps the shape",
    np.argwhere: f"{_DATA}np.where(c, x, 0) keeps the shape",
    np.unique: f"{_DATA}np.sort(x) keeps the shape",
    np.compress: f"{_DATA}np.where(c, x, 0) keeps the shape",
    np.extract: f"{_DATA}np.where(c, x, 0) keeps the shape",
    np.bincount: f"{_DATA}np.zeros(n) and .at[i].add(1.0) count",
    np.put: "a value does not change: x = x.at[i].set(y)",
    np.put_along_axis: "a value does not change: x = x.at[i].set(y)",
    np.fill_diagonal: "a value does not change: x = x.at[i, i].set(y), i = np.arange(n)",
    np.copyto: "a value does not change: y = x",
    np.linalg.pinv: "np.linalg.solve(a.T @ a, a.T) for columns that are independent",
    np.linalg.lstsq: "q, r = np.linalg.qr(a) and np.linalg.solve(r, q.T @ b)",
    np.piecewise: "np.select([c, ...], [x, ...])",
}
_INSTEAD_OF = {
    "out": "values do not change, and arrays of NumPy hold none: write y = x + z for y += z",
    "where": "np.where(c, f(x), x)",
    "dtype": "x.astype(dtype)",
}
