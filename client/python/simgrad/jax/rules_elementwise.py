"""Rules of operations that work element by element."""

from __future__ import annotations

from typing import Any, Callable

import jax.numpy as jnp
import numpy as np

from simgrad.jax.erf_inv import SLOPE, erf_inv, finite_erf_inv
from simgrad.jax.graph import Graph
from simgrad.jax.lowering import FORMATS, Lowering, NotLowered, Operands, evaluated, rule
from simgrad.jax.node import BOOL, COMPARISONS, I32, I64, REAL, U32, Node, Value, neutral

# By the name in JAX.
_UNARY = {
    **{name: name for name in ("abs", "sqrt", "floor", "ceil", "exp", "exp2", "log", "log1p", "expm1")},
    **{name: name for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{name: name for name in ("erf", "erfc", "cbrt", "is_finite")},
    "logistic": "sigmoid",
    "neg": "neg",
    "sign": "sign",
}
_EXPONENTS_OF_PRODUCTS = {-1, 0, 1, 2, 3}
_BINARY = {"rem": "rem", "max": "max", "min": "min", "atan2": "atan2"}
# At a tie max and min of the same operands, as in jnp.hypot, take different ones. Together they are a permutation then, and
# have its derivative. Each by itself takes the second.
_OTHER_OF_PAIR = {"max": "min", "min": "max"}


@rule(*_UNARY)
def _unary(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit(_UNARY[equation.primitive.name], operands[0])


@rule(*_BINARY)
def _binary(low: Lowering, equation: Any, operands: Operands) -> Value:
    if operands[0].dtype == BOOL:
        code = {"max": "or", "min": "and"}[equation.primitive.name]
        return low.graph.logic(code, *operands)
    code, (a, b) = _BINARY[equation.primitive.name], operands
    other = _OTHER_OF_PAIR.get(code)
    if other is not None and low.graph.is_written(other, a, b):
        a, b = b, a
    return low.graph.emit(code, a, b)


@rule("nextafter")
def _nextafter(low: Lowering, equation: Any, operands: Operands) -> Value:
    """The next number of the policy's format, or of the one that the step names where formats are kept."""
    named = str(equation.outvars[0].aval.dtype)
    if low.options.formats == "erase" or named == "float64":
        return low.graph.emit("next_after", *operands)
    if any(isinstance(x, Node) for x in operands):
        raise NotLowered(f'nextafter of {named} with formats="keep"', "convert to float64 before, or erase formats")
    return evaluated(equation, operands)[0]


@rule("add", "sub", "mul", "add_any")
def _arithmetic(low: Lowering, equation: Any, operands: Operands) -> Value:
    drawn = low.above_one.get(operands[0]) if isinstance(operands[0], Node) else None
    if drawn is not None and equation.primitive.name == "sub" and _is_one(operands[1]):
        return drawn
    return low.graph.arithmetic(equation.primitive.name.removesuffix("_any"), *operands)


def _is_one(x: Value) -> bool:
    return not isinstance(x, Node) and bool((x == 1).all())


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


def shifted_down(low: Lowering, a: Value, count: Value) -> Value:
    """The bits of a signed integer moved down, zeros behind them."""
    graph = low.graph
    if a.dtype == I32:
        return graph.convert(graph.emit("shr", graph.convert(a, U32), graph.convert(count, U32)), I32)
    if isinstance(count, Node):
        raise NotLowered("a logical shift of 64 bits by a computed number of places", "shift by a constant")
    places = np.clip(count, 1, 63)
    kept = np.where(count == 0, -1, np.where(places == count, (np.asarray(1, I64) << (64 - places)) - 1, 0))
    return graph.logic("and", graph.emit("shr", a, count), kept.astype(I64))


@rule("shift_left")
def _shift_left(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.emit("shl", *operands)


@rule("shift_right_logical", "shift_right_arithmetic")
def _shift_right(low: Lowering, equation: Any, operands: Operands) -> Value:
    signed = operands[0].dtype.kind == "i"
    is_logical = equation.primitive.name == "shift_right_logical"
    if signed and is_logical:
        return shifted_down(low, *operands)
    if signed or is_logical:
        return low.graph.emit("shr", *operands)
    return _shifted_by_sign(low.graph, *operands)


def _shifted_by_sign(graph: Graph, a: Value, count: Value) -> Value:
    """The arithmetic shift of an unsigned integer, whose highest bit counts as its sign."""
    known, sign = a.dtype, np.asarray(1 << (8 * a.dtype.itemsize - 1), I64)
    wide = graph.arithmetic("sub", graph.logic("xor", graph.convert(a, I64), sign), sign)
    places = graph.arithmetic("min", graph.convert(count, I64), np.asarray(63, I64))
    return graph.convert(graph.emit("shr", wide, places), known)


@rule("pow")
def _pow(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Powers that XLA turns into products are products here, too."""
    base, exponent = operands
    if not isinstance(exponent, Node) and base.dtype == REAL:
        known = set(np.unique(exponent))
        if len(known) == 1 and known <= _EXPONENTS_OF_PRODUCTS and exponent.shape in ((), base.shape):
            return _product(low, base, int(known.pop()), equation.outvars[0].aval)
    graph = low.graph
    if exponent.dtype.kind in "iu" and (isinstance(exponent, Node) or not exponent.all()):
        # x^0 is 1, and JAX's derivative of it 0; that of a real exponent is 0 x^-1, at 0 NaN, here and in JAX.
        base = graph.select(graph.compare("eq", exponent, np.zeros(exponent.shape, exponent.dtype)), np.ones(()), base)
    exponent = graph.convert(exponent, REAL)
    if not isinstance(exponent, Node) or not exponent.is_active:
        return graph.emit("pow", base, exponent)
    # At a base of 0 JAX's derivative by the exponent is 0, which is that of 1 to this power.
    is_zero = graph.compare("eq", base, np.zeros(base.shape))
    power = graph.emit("pow", graph.emit("stop_gradient", graph.select(is_zero, np.ones(()), base)), exponent)
    # Less than nothing moves: x - 0 keeps the sign of a zero, x + 0 does not.
    finite = graph.select(graph.emit("is_finite", power), power, np.zeros(()))
    against = graph.arithmetic("sub", graph.emit("stop_gradient", finite), finite)
    return graph.arithmetic("sub", graph.emit("pow", base, graph.emit("stop_gradient", exponent)), against)


@rule(*COMPARISONS)
def _comparison(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.compare(equation.primitive.name, *operands)


@rule("lt_to", "le_to", "eq_to")
def _ordered_comparison(low: Lowering, equation: Any, operands: Operands) -> Value:
    """A comparison in JAX's order of sorts, where NaN is behind infinity and equals NaN. JAX has made every -0 a +0
    before."""
    graph, code = low.graph, equation.primitive.name.removesuffix("_to")
    a, b = operands
    found = graph.compare(code, a, b)
    if code == "eq":
        return graph.logic("or", found, graph.logic("and", graph.is_nan(a), graph.is_nan(b)))
    behind = graph.is_nan(b)
    if code == "lt":
        behind = graph.logic("and", behind, graph.logic("not", graph.is_nan(a)))
    return graph.logic("or", found, behind)


@rule("square")
def _square(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.arithmetic("mul", operands[0], operands[0])


@rule("integer_pow")
def _integer_pow(low: Lowering, equation: Any, operands: Operands) -> Value:
    return _product(low, operands[0], int(equation.params["y"]), equation.outvars[0].aval)


def _product(low: Lowering, base: Value, exponent: int, aval: Any) -> Value:
    """Square and multiply, lowest bit first: the order of XLA. Each product is rounded to a format that is kept."""
    left, product = abs(exponent), None

    def multiplied(x: Value, y: Value) -> Value:
        return low.narrowed(low.graph.arithmetic("mul", x, y), aval)

    while left:
        if left & 1:
            product = base if product is None else multiplied(product, base)
        left >>= 1
        if left:
            base = multiplied(base, base)
    if product is None:
        return np.ones(base.shape, base.dtype)
    return low.graph.emit("div", np.ones(()), product) if exponent < 0 else product


@rule("rsqrt")
def _rsqrt(low: Lowering, equation: Any, operands: Operands) -> Value:
    root = low.narrowed(low.graph.emit("sqrt", operands[0]), equation.outvars[0].aval)
    return low.graph.emit("div", np.ones(()), root)


@rule("erf_inv")
def _erf_inv(low: Lowering, equation: Any, operands: Operands) -> Value:
    """With the derivative of the function, not of the polynomials."""
    graph, x = low.graph, operands[0]
    if low.draws_normally and isinstance(x, Node):  # no draw of JAX is 1, and none of a narrower format
        end = graph.below_one()
        inside = graph.emit("max", graph.emit("min", x, end), graph.emit("neg", end))
        return low.function(finite_erf_inv, inside)[0]
    found = low.function(erf_inv, x)[0]
    return _with_slope(low, x, found, lambda y: SLOPE * jnp.exp(y * y), of=found)


def _with_slope(low: Lowering, x: Value, found: Value, slope: Callable[[Any], Any], of: Value | None = None) -> Value:
    """`found`, a function of x, with slope(x), or slope(of), for its derivative."""
    graph = low.graph
    if not isinstance(x, Node) or not x.is_active:
        return found
    held = graph.emit("stop_gradient", found)
    steep = low.function(slope, graph.emit("stop_gradient", x if of is None else of))[0]
    return carrying(graph, held, graph.arithmetic("mul", steep, graph.motion(x)))


def carrying(graph: Graph, held: Value, tangent: Value) -> Value:
    """Returns `held` with the derivative of a tangent that is 0 where it is finite."""
    safe = graph.select(graph.emit("is_finite", tangent), tangent, np.zeros(()))
    return graph.arithmetic("add", held, safe)


@rule("clamp")
def _clamp(low: Lowering, equation: Any, operands: Operands) -> Value:
    lowest, x, highest = operands
    return low.graph.emit("min", low.graph.emit("max", x, lowest), highest)


@rule("round")
def _round(low: Lowering, equation: Any, operands: Operands) -> Value:
    x = operands[0]
    if int(equation.params["rounding_method"]) == 1:
        return low.graph.emit("round", x)
    graph = low.graph
    size = graph.emit("abs", x)
    whole = graph.emit("floor", size)
    rest = graph.select(graph.emit("is_finite", x), graph.emit("sub", size, whole), np.zeros(()))
    away = graph.emit("add", whole, graph.emit("floor", graph.emit("add", rest, rest)))  # both sums are exact
    return graph.emit("mul", graph.emit("sign", x), away)


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
    narrows = neutral(before) == REAL and neutral(after) == REAL and np.dtype(before) != np.dtype(after)
    if narrows and (low.options.formats == "erase" or str(np.dtype(after)) not in FORMATS):
        low.erased[low.graph.line.text] = f"{before} to {np.dtype(after)}"
    return low.graph.convert(operands[0], after)


# Formats by the bits of exponent and mantissa.
_FORMAT_OF_BITS = {(11, 52): "f64", (8, 23): "f32", (8, 7): "bf16", (5, 10): "f16"}


@rule("reduce_precision")
def _reduce_precision(low: Lowering, equation: Any, operands: Operands) -> Value:
    exponent, mantissa = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    name = _FORMAT_OF_BITS.get((exponent, mantissa))
    if low.options.formats == "keep" and name is not None:
        return operands[0] if name == "f64" else _without_subnormals(low, operands[0], name, exponent, mantissa)
    low.erased[low.graph.line.text] = f"{exponent} and {mantissa} bits"
    return operands[0]


def _without_subnormals(low: Lowering, x: Value, name: str, exponent: int, mantissa: int) -> Value:
    """x in a format whose subnormal numbers are 0, as those of XLA's reduce_precision. XLA rounds to the mantissa first:
    what is rounded up to the smallest normal number is kept. No comparison is made, which would be a site."""
    graph = low.graph
    smallest = 2.0 ** (2 - 2 ** (exponent - 1))
    largest_lost = np.nextafter(smallest * (1 - 2.0 ** -(mantissa + 2)), 0)
    above = graph.emit("sub", graph.emit("abs", x), np.asarray(largest_lost))
    is_kept = graph.emit("ceil", graph.emit("min", graph.emit("max", above, np.zeros(())), np.ones(())))  # 0 or 1
    return graph.emit("mul", graph.emit("cast", x, format=name), graph.emit("stop_gradient", is_kept))


@rule("asinh", "acosh", "atanh")
def _inverse_hyperbolic(low: Lowering, equation: Any, operands: Operands) -> Value:
    """No square leaves a narrow format, and asinh has a derivative at 0."""
    name, x = equation.primitive.name, operands[0]
    if name == "asinh":
        return _with_slope(low, x, low.function(_asinh, x)[0], _asinh_slope)
    return low.function(_acosh if name == "acosh" else _atanh, x)[0]


def _atanh(x: Any) -> Any:
    return 0.5 * (jnp.log1p(x) - jnp.log1p(-x))


def _asinh(x: Any) -> Any:
    """The logarithm of |x| + h with h = hypot(1, x), in two factors."""
    size = jnp.where(jnp.isfinite(x), jnp.abs(x), 0.0)
    risen = jnp.log1p(size) + jnp.log1p(size / (1 + _hypot_of_one(size)) * (size / (1 + size)))
    return jnp.where(jnp.isfinite(x), jnp.sign(x) * risen, x)


def _hypot_of_one(size: Any) -> Any:
    larger, smaller = jnp.maximum(size, 1.0), jnp.minimum(size, 1.0)
    return larger * jnp.sqrt(1 + (smaller / larger) * (smaller / larger))


def _asinh_slope(x: Any) -> Any:
    return 1 / _hypot_of_one(jnp.abs(x))


def _acosh(x: Any) -> Any:
    """The logarithm of 1 + t + sqrt(t) sqrt(t + 2) with t = x - 1, in two factors."""
    t = jnp.where(jnp.isfinite(x), x - 1, 1.0)
    risen = jnp.log1p(t) + jnp.log1p(jnp.sqrt(t) * (jnp.sqrt(t + 2) / (1 + t)))
    return jnp.where(jnp.isfinite(x), risen, jnp.sqrt(x))
