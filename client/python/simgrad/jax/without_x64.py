"""The widths of JAX without x64, with f64 in the place of f32: for steps that JAX takes without x64 alone.

JAX has one switch for the width of integers and of reals. Here its functions that choose widths are replaced while a
step is traced. What they miss has the width of x64, and meets what has another: an error, and no other number.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator, Sequence

import jax
import jax._src
import numpy as np
from jax._src import config, core, dtypes
from jax._src.interpreters import partial_eval

from simgrad.jax.trees import x64

_I32, _U32, _I64, _F32, _F64 = (np.dtype(x) for x in ("int32", "uint32", "int64", "float32", "float64"))
_SMALLEST, _LARGEST = -(2**31), 2**31 - 1
_literals: Any = getattr(jax._src, "literals", None)  # of JAX 0.10
_ARRAYS = (jax.Array, np.ndarray, np.generic)
# "erase" or "keep" in a thread that is inside, else None. JAX keeps traced functions by it, too.
_formats: Any = jax.make_user_context(None) if hasattr(jax, "make_user_context") else None
_lock = threading.Lock()
_inside = 0  # how many threads are inside
_before: list[tuple[Any, Any, Any]] = []  # module or mapping, name, former value of what is replaced


@contextlib.contextmanager
def widths_without_x64(formats: str = "erase") -> Iterator[None]:
    """Within it, for this thread and under `x64`: integers without a dtype, those of NumPy's arrays, and what is made of
    integers have 32 bits, as in JAX without x64. Reals have 64, and f32 is another name of f64 unless `formats` is
    "keep". An integer that is asked for with 64 bits has them, and so has an array of NumPy whose numbers need them.

    Raises AttributeError, KeyError or TypeError where JAX's insides are not those that are known: `has_widths_without_x64` tells.
    """
    _install()
    try:
        with _formats(formats):
            yield
    finally:
        _remove()


def has_widths_without_x64() -> bool:
    """Whether `widths_without_x64` does what it says, with the JAX that is installed."""
    try:
        with widths_without_x64(), x64():
            made = jax.eval_shape(_made, np.zeros(2), np.zeros(2, np.int32))
    except Exception:  # insides of JAX that are others may raise anything
        return False
    return [x.dtype for x in made] == [_I32] * 8 + [_F64] * 8


def _made(x: Any, n: Any) -> Sequence[Any]:
    """Eight results of integers, then eight of reals."""
    jnp, narrow = jax.numpy, np.array([0.1, 0.2], np.float32)
    integers = jnp.arange(3), jnp.zeros(2, int), jnp.sum(n), jnp.asarray(0), np.array([1, 2]) + n, jnp.argmax(x)
    of_both = n + jnp.uint32(1), jax.lax.fori_loop(0, 3, lambda k, s: s + k, n[0])
    reals = jnp.zeros(2), n / 3, jnp.array([0.1]), np.array([0.1, 0.2]) * x, jax.random.uniform(jax.random.key(0))
    return *integers, *of_both, *reals, jnp.float32(1), x.astype(jnp.float32), jnp.asarray(narrow)


def _install() -> None:
    global _inside
    with _lock:
        if not _inside:
            try:
                for place, name, of_narrow in _replaced():
                    former = place[name] if isinstance(place, dict) else getattr(place, name)
                    _set(place, name, _switched(former, of_narrow(former)))
                    _before.append((place, name, former))
            except BaseException:
                _restore()
                raise
        _inside += 1


def _remove() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            _restore()


def _restore() -> None:
    while _before:
        _set(*_before.pop())


def _set(place: Any, name: Any, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)


def _switched(former: Callable[..., Any], narrow: Callable[..., Any]) -> Callable[..., Any]:
    """`narrow` where this thread has these widths and x64 is on, else `former`."""

    def function(*args: Any, **kwargs: Any) -> Any:
        is_on = _formats.value is not None and config.enable_x64.value
        return (narrow if is_on else former)(*args, **kwargs)

    return function


Replacement = Callable[[Callable[..., Any]], Callable[..., Any]]


def _replaced() -> list[tuple[Any, Any, Replacement]]:
    """The functions of JAX that choose widths: the module or mapping, the name, and the replacement, of the former
    function."""
    signed: Replacement = lambda _: lambda: _I32
    unsigned: Replacement = lambda _: lambda: _U32
    arrays = [type_ for type_ in core.pytype_aval_mappings if getattr(type_, "__name__", "") == "ArrayImpl"]
    return [
        (dtypes, "default_int_dtype", signed),
        (dtypes, "default_uint_dtype", unsigned),
        (dtypes.default_types, "i", signed),
        (dtypes.default_types, "u", unsigned),
        (dtypes._DEFAULT_TYPEMAP, int, signed),
        (dtypes, "canonicalize_dtype", _canonical_type),
        (dtypes, "_maybe_canonicalize_explicit_dtype", _explicit_type),
        (dtypes, "canonicalize_value", _canonical_value),
        (dtypes, "dtype", _type_of),
        (dtypes, "_least_upper_bound", lambda former: lambda promotion, x64, *types: former(promotion, False, *types)),
        *((dtypes, f"to_{kind}_dtype", _inexact) for kind in ("inexact", "floating", "complex")),
        *((partial_eval.DynamicJaxprTrace, name, _constant) for name in ("new_const", "pure", "lift")),
        (core.pytype_aval_mappings, int, _aval_of_int),
        *((core.pytype_aval_mappings, type_, _aval_of) for type_ in (np.ndarray, np.int64, np.float32, *arrays)),
    ]


def _canonical_type(former: Callable[..., Any]) -> Callable[..., Any]:
    def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
        made = former(dtype, allow_extended_dtype)
        return _I32 if made == _I64 else _erased(made)

    return canonicalize_dtype


def _explicit_type(former: Callable[..., Any]) -> Callable[..., Any]:
    return lambda dtype, function: _erased(former(dtype, function))


def _erased(dtype: Any) -> Any:
    return _F64 if _formats.value == "erase" and dtype == _F32 else dtype


def _canonical_value(former: Callable[..., Any]) -> Callable[..., Any]:
    def canonicalize_value(x: Any) -> Any:
        if type(x) is int:
            return _literals.TypedInt(x, dtypes.scalar_type_to_dtype(int, x))
        aval = _own_aval(x)
        return former(x) if aval is None else _literals.TypedNdArray(np.asarray(x, aval.dtype), aval)

    return canonicalize_value


def _constant(former: Callable[..., Any]) -> Callable[..., Any]:
    """A constant of a trace comes in the type that it has there."""

    def new_const(trace: Any, x: Any, *others: Any, **named: Any) -> Any:
        return former(trace, x if _own_aval(x) is None else dtypes.canonicalize_value(x), *others, **named)

    return new_const


def _type_of(former: Callable[..., Any]) -> Callable[..., Any]:
    def dtype(x: Any) -> Any:
        own = _own_type(x)
        return former(x) if own is None else own

    return dtype


def _aval_of_int(former: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: _literals.TypedInt(x, dtypes.scalar_type_to_dtype(int, x)).aval


def _aval_of(former: Callable[..., Any]) -> Callable[..., Any]:
    def aval_of(x: Any) -> Any:
        own = _own_aval(x)
        return former(x) if own is None else own

    return aval_of


def _own_aval(x: Any) -> Any:
    """JAX's type of an array that `_own_type` gives one, else None."""
    dtype = _own_type(x)
    return None if dtype is None else core.ShapedArray(np.shape(x), dtype, weak_type=bool(getattr(x, "weak_type", False)))


def _own_type(x: Any) -> np.dtype[Any] | None:
    """The type of known numbers where these widths give them one; None of all other things, whose type JAX knows."""
    if isinstance(x, (core.Tracer, _literals.TypedNdArray, np.ma.MaskedArray)) or not isinstance(x, _ARRAYS):
        return None
    if x.dtype == _F32:
        return _F64 if _formats.value == "erase" else None
    if x.dtype != _I64 or isinstance(x, jax.Array):
        return None
    fits = x.size == 0 or (_SMALLEST <= int(x.min()) and int(x.max()) <= _LARGEST)
    return _I32 if fits else _I64


def _inexact(former: Callable[..., Any]) -> Callable[..., Any]:
    """An integer or a bool becomes a real of JAX's default, which is f64 here."""

    def to_inexact(dtype: Any) -> Any:
        given = np.dtype(dtype)
        is_exact = given.kind in "iub" or given.name in ("int2", "int4", "uint2", "uint4")
        return former(_I64 if is_exact else dtype)

    return to_inexact
