"""Rules of random keys and of what is drawn with them.

A key is its words here, unsigned integers of 32 bits on a last axis of their own. `random="threefry"`: keys are
split and bits are made by the operations that JAX has for them, so that a world draws what JAX draws in f64.
`random="philox"`: each place of the step that draws has a draw of the language (`uniform`, `normal`), and keys
mean nothing. A key that never changes draws once, as in JAX: its numbers are constants of the program.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from simgrad.jax.gamma_slope import slope_of_log
from simgrad.jax.lowering import OF_KEYS, Lowering, NotLowered, Operands, rule
from simgrad.jax.node import I64, REAL, U32, Node, Value, neutral
from simgrad.jax.rules_elementwise import carrying

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_LEAST_DRAWN = 1e-300  # what a draw of the gamma distribution that is 0 has its logarithm from
# By width of a format of reals: bits behind the point, and the word of 1.
_BITS_OF_F16 = 15  # of a draw: its largest number is below 2^16
_MANTISSA = {32: (23, 0x3F800000), 64: (52, 0x3FF0000000000000)}


def key_shape(aval: Any) -> tuple[int, ...]:
    """The shape of the words of an array of keys."""
    return (*aval.shape, *aval.dtype._impl.key_shape)


def _over(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """The function of one key, of an array of keys."""
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def _draws(low: Lowering, *operands: Value) -> bool:
    """Whether these operands make draws of the language."""
    return low.options.random == "philox" and any(isinstance(x, Node) for x in operands)


def _key(low: Lowering, equation: Any) -> Node:
    """A key whose words no draw reads."""
    shape = key_shape(equation.outvars[0].aval)
    return low.graph.key(shape)


@rule("random_wrap", "random_unwrap", "random_clone")
def _words(low: Lowering, equation: Any, operands: Operands) -> Value:
    return operands[0]


@rule("random_seed")
def _seed(low: Lowering, equation: Any, operands: Operands) -> Value:
    if _draws(low, *operands):
        return _key(low, equation)
    seed = equation.params["impl"].seed
    return low.function(_over(seed, len(operands[0].shape)), operands[0])[0]


@rule("random_split")
def _split(low: Lowering, equation: Any, operands: Operands) -> Value:
    if _draws(low, *operands):
        return _key(low, equation)
    aval, shape = equation.invars[0].aval, equation.params["shape"]
    split = aval.dtype._impl.split
    return low.function(_over(lambda key: split(key, shape), len(aval.shape)), operands[0])[0]


@rule("random_fold_in")
def _fold_in(low: Lowering, equation: Any, operands: Operands) -> Value:
    if _draws(low, *operands):
        return _key(low, equation)
    keys, numbers = (v.aval for v in equation.invars)
    shape = equation.outvars[0].aval.shape

    def folded(words: Any, data: Any) -> Any:
        of_all = jnp.broadcast_to(words, (*shape, *words.shape[len(keys.shape) :]))
        return _over(keys.dtype._impl.fold_in, len(shape))(of_all, jnp.broadcast_to(data, shape))

    types = [jax.ShapeDtypeStruct(operands[0].shape, np.uint32), jax.ShapeDtypeStruct(numbers.shape, numbers.dtype)]
    return low.jaxpr(jax.make_jaxpr(folded)(*types), operands)[0]


@rule("random_bits")
def _bits(low: Lowering, equation: Any, operands: Operands) -> Value:
    width, shape = equation.params["bit_width"], equation.params["shape"]
    if width not in _MANTISSA:
        raise NotLowered(f"a draw of {width} bits", "draw with dtype=jnp.float32, and convert")
    if low.options.random == "none":
        raise NotLowered(
            "a draw of the language in init or in a cost", 'draw in the step, or with random="threefry"'
        )
    result = equation.outvars[0].aval
    if _draws(low, *operands):
        return low.graph.draw("random_bits", result.shape, neutral(result.dtype))
    aval = equation.invars[0].aval
    bits = aval.dtype._impl.random_bits
    return low.function(_over(lambda key: bits(key, width, shape), len(aval.shape)), operands[0])[0]


def is_uniform(equation: Any) -> bool:
    """Whether it is what jax.random.uniform calls."""
    return bool(equation.params.get("name") == "_uniform")


def uniform_of(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """The result of jax.random.uniform. Its lowest number stays above what JAX keeps it from: -1, or 0."""
    ends = [
        low.graph.above(float(x)) if not isinstance(x, Node) and x.shape == () and x.dtype == REAL else x
        for x in operands
    ]
    return low.jaxpr(equation.params["jaxpr"], ends)


def draws_normally(equation: Any) -> bool:
    """Whether it is what jax.random.normal calls."""
    return bool(equation.params.get("name") == "_normal_real")


def normals_of(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """The results of jax.random.normal: the language's own draws, or by the inverse of erf, finite in any format."""
    if _draws(low, *operands):
        return [low.graph.draw("normal", equation.outvars[0].aval.shape, REAL)]
    before, low.draws_normally = low.draws_normally, True
    try:
        return low.jaxpr(equation.params["jaxpr"], operands)
    finally:
        low.draws_normally = before


@rule("rng_bit_generator")
def _of_hardware(low: Lowering, equation: Any, operands: Operands) -> Value:
    raise NotLowered("a draw with a key of rbg or unsafe_rbg", 'make it with jax.random.key(seed, impl="threefry2x32")')


@rule("random_gamma")
def _gamma(low: Lowering, equation: Any, operands: Operands) -> Value:
    """JAX's draw, with JAX's derivative by the shape: that of the loop that rejects draws would be biased."""
    graph, (key, shape) = low.graph, operands
    graph.notes["random_gamma: its implementation"] += 1
    held = graph.emit("stop_gradient", shape)
    found = low.jaxpr(low.implementation(equation), [key, held])[0]
    if not isinstance(shape, Node) or not shape.is_active:
        return found
    is_log = equation.params["log_space"]
    x = graph.emit("exp", found) if is_log else found
    log_x = found if is_log else graph.emit("log", graph.emit("max", found, graph.above(_LEAST_DRAWN)))
    slope = low.function(slope_of_log, held, x, log_x)[0]
    if not is_log:
        slope = graph.arithmetic("mul", x, slope)
    return carrying(graph, found, graph.arithmetic("mul", slope, graph.motion(shape)))


@rule("iota_2x32_shape")
def _counts(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    shape = equation.params["shape"]
    counts = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    return [(counts >> np.uint64(32)).astype(U32), counts.astype(U32)]


@rule("threefry2x32")
def _threefry(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """Twenty rounds of additions, rotations and exclusive ors of 32 bits."""
    graph = low.graph
    first, second, a, b = operands
    words = [first, second, graph.logic("xor", graph.logic("xor", first, second), np.asarray(_PARITY, U32))]
    a, b = graph.arithmetic("add", a, words[0]), graph.arithmetic("add", b, words[1])
    for turn in range(5):
        for places in _ROTATIONS[turn % 2]:
            a = graph.arithmetic("add", a, b)
            up = graph.emit("shl", b, np.asarray(places, U32))
            down = graph.emit("shr", b, np.asarray(32 - places, U32))
            b = graph.logic("xor", a, graph.logic("or", up, down))
        a = graph.arithmetic("add", a, words[(turn + 1) % 3])
        injected = graph.arithmetic("add", b, words[(turn + 2) % 3])
        b = graph.arithmetic("add", injected, np.asarray(turn + 1, U32))
    graph.notes["threefry2x32: integer operations"] += 1
    return [a, b]


@rule("bitcast_convert_type")
def _bitcast(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Bits as a number between 1 and 2, as JAX draws it; integers as others, of any width."""
    before, after = equation.invars[0].aval.dtype, np.dtype(equation.params["new_dtype"])
    if before == after:
        return operands[0]
    if before.kind in "iu" and after.kind in "iu":
        if before.itemsize > after.itemsize:
            return _parted(low, operands[0], after, before.itemsize // after.itemsize)
        if before.itemsize < after.itemsize:
            return _joined(low, operands[0], np.dtype(f"u{before.itemsize}"), after)
        return low.graph.convert(operands[0], after)
    fraction = _fraction(low, operands[0], after) if before.kind in "iu" and after.kind == "f" else None
    if fraction is None:
        raise NotLowered("the bits of a real", "a world has reals of any format; compute with numbers")
    made = low.graph.arithmetic("add", fraction, np.ones(()))
    if isinstance(made, Node):
        low.above_one[made] = fraction
    return made


def _parted(low: Lowering, x: Value, after: np.dtype, count: int) -> Value:
    """Each integer as `count` narrower ones on a last axis of their own, the lowest bits first."""
    graph, shape = low.graph, (*x.shape, count)
    places = np.arange(count) * 8 * after.itemsize
    of_each = graph.broadcast(x, shape, range(len(x.shape)))
    return graph.convert(graph.emit("shr", of_each, places.astype(x.dtype)), after)


def _joined(low: Lowering, x: Value, unsigned: np.dtype, after: np.dtype) -> Value:
    """The integers of the last axis as one wider integer each, the lowest bits first."""
    graph, axis = low.graph, len(x.shape) - 1
    places = np.arange(x.shape[axis]) * 8 * unsigned.itemsize
    parts = graph.convert(graph.convert(x, unsigned), after)
    return graph.emit("sum", graph.emit("shl", parts, places.astype(parts.dtype)), axes=(axis,))  # no bit meets another


def _fraction(low: Lowering, x: Value, real: np.dtype) -> Value | None:
    """x - 1, of bits x of a real with the sign and exponent of 1; None where they are not known to be those."""
    graph = low.graph
    behind, one = _MANTISSA.get(8 * real.itemsize, (0, 0))
    if not isinstance(x, Node) or x.op != "or" or 8 * x.dtype.itemsize != 8 * real.itemsize:
        return None
    parts = [(y, graph.value(z)) for y, z in (x.operands, x.operands[::-1])]
    for y, number in parts:
        if isinstance(number, Node) or not (number == one).all():
            continue
        below = _shifted_from(low, y, 8 * real.itemsize - behind)
        if below is None:
            return None
        if below.op == "random_bits":
            return graph.uniform_of(below)
        # Narrower formats than JAX's would round the largest of these to 1, and f16 has no integer as large.
        few, more = graph.is_f16(), behind - _BITS_OF_F16
        dropped = graph.arithmetic("mul", graph.convert(few, y.dtype), np.asarray(more, y.dtype))
        unit, other = 2.0**-behind, 2.0**-_BITS_OF_F16
        chosen = graph.arithmetic("mul", graph.convert(few, REAL), np.asarray(other - unit))
        scaled = graph.convert(graph.emit("shr", y, dropped), REAL)
        scaled = graph.arithmetic("mul", scaled, graph.arithmetic("add", np.asarray(unit), chosen))
        return graph.emit("min", scaled, graph.below_one())
    return None


def _shifted_from(low: Lowering, x: Node, places: int) -> Node | None:
    """The node that was shifted down by at least so many places to make x; None where x is no such shift."""
    if x.op == "and" and x.dtype == I64:  # a logical shift of 64 bits
        x = next((y for y in x.operands if y.op == "shr"), x)
    if x.op != "shr":
        return None
    count = low.graph.value(x.operands[1])
    if isinstance(count, Node) or not (count >= places).all():
        return None
    return x.operands[0]


# ---- Arrays of keys ----

_MOVING = (
    *("slice", "squeeze", "reshape", "broadcast_in_dim", "transpose", "concatenate", "gather", "rev", "scatter"),
    *("dynamic_slice", "dynamic_update_slice", "select_n", "expand_dims", "split", "stack"),
)


def _moved(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """An operation that moves whole keys: it moves each of their words alike."""
    is_key = [jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.prng_key) for v in equation.invars]

    def move(*arrays: Any) -> Any:
        return equation.primitive.bind(*arrays, **equation.params)

    axes = [-1 if k else None for k in is_key]
    return low.function(jax.vmap(move, in_axes=axes, out_axes=-1), *operands)


OF_KEYS.update(dict.fromkeys(_MOVING, _moved))
