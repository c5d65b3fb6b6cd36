"""The table of NumPy's ufuncs: the operation for each, or the function here that writes it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Sequence

from simgrad.numpy_arithmetic import divide_with_remainder, floor_divide, power, true_divide
from simgrad.numpy_elementary import (
    arccosh,
    arcsinh,
    arctanh,
    copysign,
    heaviside,
    hypot,
    is_finite,
    is_infinite,
    is_nan,
    ldexp,
    log10,
    logaddexp,
    logaddexp2,
    modf,
    reciprocal,
)
from simgrad.numpy_operands import real
from simgrad.numpy_products import matmul, matvec, vecdot, vecmat
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder


def ufunc(b: "ProgramBuilder", name: str, inputs: Sequence[Any]) -> Any:
    if name in COMPOSITES:
        return COMPOSITES[name](b, *inputs)
    code = _OF_UFUNC.get(name)
    if code is None:
        return NotImplemented
    if name in _TO_WHOLE and b.value(inputs[0]).element != ELEMENT_TYPE_REAL:
        return b.value(inputs[0])
    return b.apply(code, *inputs)


def _on_bools(code: str) -> Callable[..., "Expression"]:
    def write(b: "ProgramBuilder", *operands: Any) -> "Expression":
        values = b.matched(operands)
        is_bool = values[0].element == ELEMENT_TYPE_BOOL
        return b.apply(
            code, *(values if is_bool else [b.convert(x, ELEMENT_TYPE_BOOL) for x in values])
        )

    return write


def _known_of(b: "ProgramBuilder", x: Any, y: Any, both: "Expression") -> "Expression":
    """`both`; x where y is NaN, and y where x is."""
    return b.where(is_nan(b, x), y, b.where(is_nan(b, y), x, both))

# Integers stay as they are.
_TO_WHOLE = frozenset(("floor", "ceil", "trunc"))

_OF_UFUNC = {
    **{
        name: name
        for name in (
            *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh"),
            *("cosh", "tanh", "cbrt", "floor", "ceil", "trunc", "sign"),
        )
    },
    **{"add": "add", "subtract": "sub", "multiply": "mul", "negative": "neg", "absolute": "abs"},
    **{"minimum": "min", "maximum": "max", "remainder": "mod", "fmod": "rem"},
    **{"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2"},
    **{"nextafter": "next_after", "less": "lt", "less_equal": "le"},
    **{"greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne"},
    **{"left_shift": "shl", "right_shift": "shr"},
    **{"bitwise_and": "and", "bitwise_or": "or", "invert": "not", "bitwise_xor": "xor"},
}

COMPOSITES: dict[str, Callable[..., Any]] = {
    "divide": true_divide,
    "floor_divide": floor_divide,
    "power": power,
    "fabs": lambda b, x: b.abs(real(b, x)),  # NumPy gives floats for fabs and rint of integers
    "rint": lambda b, x: b.round(real(b, x)),
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
    "vecdot": vecdot,
    "matvec": matvec,
    "vecmat": vecmat,
    "logical_and": _on_bools("and"),
    "logical_or": _on_bools("or"),
    "logical_not": _on_bools("not"),
    "logical_xor": _on_bools("ne"),
}
