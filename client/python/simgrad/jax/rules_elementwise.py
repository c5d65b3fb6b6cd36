"""Rules of operations that work element by element."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import BOOL, COMPARISONS, REAL, Value, neutral

# By the name in JAX.
_UNARY = {
    **{name: name for name in ("abs", "sqrt", "floor", "ceil", "exp", "exp2", "log", "log1p", "expm1")},
    **{name: name for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{name: name for name in ("erf", "erfc", "cbrt", "is_finite")},
    "logistic": "sigmoid",
    "neg": "neg",
    "sign": "sign",
}
_BINARY = {"rem": "rem", "max": "max", "min": "min", "atan2": "atan2", "nextafter": "next_after"}


@rule(*_UNARY)
def _unary(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit(_UNARY[equation.primitive.name], operands[0])


@rule(*_BINARY)
def _binary(low: Lowering, equation: Any, operands: Operands) -> Value:
    if operands[0].dtype == BOOL:
        code = {"max": "or", "min": "and"}[equation.primitive.name]
        return low.graph.logic(code, *operands)
    return low.graph.emit(_BINARY[equation.primitive.name], *operands)


@rule("add", "sub", "mul", "add_any")
def _arithmetic(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.arithmetic(equation.primitive.name.removesuffix("_any"), *operands)


@rule("div")
def _div(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit("div" if operands[0].dtype == REAL else "quot", *operands)


@rule("stop_gradient")
def _stop_gradient(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit("stop_gradient", operands[0])


@rule("not")
def _not(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.logic("not", operands[0])


@rule("and", "or", "xor")
def _logic(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.logic(equation.primitive.name, *operands)


@rule("shift_left")
def _shift_left(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit("shl", *operands)


@rule("shift_right_logical", "shift_right_arithmetic")
def _shift_right(low: Lowering, equation: Any, operands: Operands) -> Value:
    signed = operands[0].dtype.kind == "i"
    if signed and equation.primitive.name == "shift_right_logical":
        raise NotLowered("a logical shift of a signed integer", "shift an unsigned one")
    return low.graph.emit("shr", *operands)


@rule("pow")
def _pow(low: Lowering, equation: Any, operands: Operands) -> Value:
    base, exponent = operands
    return low.graph.emit("pow", base, low.graph.convert(exponent, REAL))


@rule(*COMPARISONS, "lt_to", "le_to", "eq_to")
def _comparison(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.compare(equation.primitive.name.removesuffix("_to"), *operands)


@rule("square")
def _square(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.arithmetic("mul", operands[0], operands[0])


@rule("integer_pow")
def _integer_pow(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Square and multiply, lowest bit first: the order of XLA."""
    exponent, base = int(equation.params["y"]), operands[0]
    left, product = abs(exponent), None
    while left:
        if left & 1:
            product = base if product is None else low.graph.arithmetic("mul", product, base)
        left >>= 1
        if left:
            base = low.graph.arithmetic("mul", base, base)
    if product is None:
        return np.ones(base.shape, base.dtype)
    return low.graph.emit("div", np.ones(()), product) if exponent < 0 else product


@rule("rsqrt")
def _rsqrt(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit("div", np.ones(()), low.graph.emit("sqrt", operands[0]))


@rule("clamp")
def _clamp(low: Lowering, equation: Any, operands: Operands) -> Value:
    lowest, x, highest = operands
    return low.graph.emit("min", low.graph.emit("max", x, lowest), highest)


@rule("round")
def _round(low: Lowering, equation: Any, operands: Operands) -> Value:
    x = operands[0]
    if int(equation.params["rounding_method"]) == 1:
        return low.graph.emit("round", x)
    away = low.graph.emit("floor", low.graph.emit("add", low.graph.emit("abs", x), np.asarray(0.5)))
    return low.graph.emit("mul", low.graph.emit("sign", x), away)


@rule("select_n")
def _select_n(low: Lowering, equation: Any, operands: Operands) -> Value:
    which, *cases = operands
    if which.shape != cases[0].shape:
        which = low.graph.broadcast(which, cases[0].shape, ())
    if which.dtype == BOOL:
        return low.graph.select(which, cases[1], cases[0])
    made = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        is_it = low.graph.compare("eq", which, np.full(which.shape, number, which.dtype))
        made = low.graph.select(is_it, cases[number], made)
    return made


@rule("convert_element_type")
def _convert(low: Lowering, equation: Any, operands: Operands) -> Value:
    before, after = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    if neutral(before) == REAL and neutral(after) == REAL and np.dtype(before) != np.dtype(after):
        low.erased[low.graph.line.text] = f"{before} to {np.dtype(after)}"
    return low.graph.convert(operands[0], after)


@rule("reduce_precision")
def _reduce_precision(low: Lowering, equation: Any, operands: Operands) -> Value:
    params = equation.params
    low.erased[low.graph.line.text] = f"{params['exponent_bits']} and {params['mantissa_bits']} bits"
    return operands[0]


@rule("asinh", "acosh", "atanh")
def _inverse_hyperbolic(low: Lowering, equation: Any, operands: Operands) -> Value:
    formulas = {
        "asinh": lambda x: jnp.sign(x) * jnp.log1p(jnp.abs(x) + x * x / (1 + jnp.sqrt(x * x + 1))),
        "acosh": lambda x: jnp.log(x + jnp.sqrt((x + 1) * (x - 1))),
        "atanh": lambda x: 0.5 * (jnp.log1p(x) - jnp.log1p(-x)),
    }
    return low.function(formulas[equation.primitive.name], operands[0])[0]
