"""Functions of arrays that are lowered to others: order, products of integers, windows, signs, divisors; values and
gradients of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simgrad.jax
from jax import lax

RANDOM = np.random.default_rng(0)
LINE = np.array([0.3, -0.0, 0.9, 0.0, 0.9, -2.0, 0.4])
IMAGES = RANDOM.normal(size=(2, 4, 3, 5))
FILTERS = RANDOM.normal(size=(4, 4, 3, 2))
COUNTS = {
    "i": np.array([[3, 1, -3], [0, 2, 2**31 - 1]], np.int32),
    "u": np.array([[3, 1, 3], [0, 2, 2**32 - 1]], np.uint32),
    "l": np.array([[3, 1, 3], [0, -2, 2**62]], np.int64),
    "s": np.array([[3, 1, 3], [0, 2, 200]], np.uint8),
    "b": np.array([[True, False, True], [False, False, True]]),
}
PLACES = np.array([1, 3])
MANY = np.ones((200, 200), int)
STATE = {"x": LINE, "m": IMAGES, **COUNTS}
RANKED = {f"top of {k}": lambda s, k=k: lax.top_k(s[k], 2) for k in COUNTS}
PRODUCTS = {
    f"{name} of {k}": lambda s, k=k, function=function: function(s[k])
    for k in COUNTS
    for name, function in {
        "products": lambda a: [a @ a.T, a.T @ a, a[0] @ a[1], jnp.outer(a[0], a[1])],
        "products of a batch": lambda a: jnp.einsum("bij,bjk->bik", jnp.stack([a, a]), jnp.stack([a.T, a.T])),
        "products of none": lambda a: [a[:0] @ a.T, a[:, :0] @ a.T[:0]],
    }.items()
}


def convolved(s, strides=(1, 1), padding="SAME", weights=FILTERS, **options):
    return lax.conv_general_dilated(s["m"], weights * s["x"][0], strides, padding, **options)


def of_windows(combine, start, *window, **options):
    return lambda s: lax.reduce_window(s["m"][0, 0], start, combine, *window, **options)


WINDOWS = {
    "inside": ((2, 3), (1, 1), "VALID"),
    "around": ((2, 2), (2, 2), "SAME"),
    "beyond": ((3, 3), (1, 2), ((1, 4), (2, 0))),
    "of one": ((1, 1), (1, 1), "VALID"),
}
GROUPS = {
    "order": {
        "top": lambda s: lax.top_k(s["x"], 3),
        "all": lambda s: lax.top_k(s["x"], 7),
        "none": lambda s: lax.top_k(s["x"], 0),
        "of one": lambda s: lax.top_k(s["x"][:1], 1),
        "axes": lambda s: [lax.top_k(s["m"], 2, axis=k) for k in range(4)],
        "of a batch": lambda s: jax.vmap(lambda y: lax.top_k(y, 2))(s["m"]),
        "infinite": lambda s: lax.top_k(jnp.where(s["x"] > 0.8, jnp.inf, s["x"]), 3)[1],
        "NaN": lambda s: lax.top_k(jnp.where(s["x"] > 0.8, jnp.nan, s["x"]), 7)[1],
        "partition": lambda s: [jnp.partition(s["x"], 2), jnp.argpartition(s["x"], 2)],
        "nearly": lambda s: [lax.approx_max_k(s["x"], 2), lax.approx_min_k(s["x"], 2)],
        **RANKED,
    },
    "products of integers": {
        **PRODUCTS,
        "wider": lambda s: lax.dot(s["i"], s["i"].T, preferred_element_type=jnp.int64),
        "as reals": lambda s: lax.dot(s["i"], s["i"].T, preferred_element_type=jnp.float64),
        "with reals": lambda s: s["i"][:1] @ s["x"][:3] + jnp.vdot(s["i"][0], s["i"][0]) * s["x"][0],
        "powers": lambda s: jnp.linalg.matrix_power(s["i"] @ s["i"].T, 3),
    },
    "convolutions": {
        "convolve": lambda s: [jnp.convolve(s["x"], s["x"][:3], mode) for mode in ("full", "same", "valid")],
        "of integers": lambda s: lax.conv(s["i"][None] % 7, s["i"][None, :, :2] % 5, (1,), "SAME"),
        "polymul": lambda s: jnp.polymul(s["x"], s["x"][:2]),
        "toeplitz": lambda s: jax.scipy.linalg.toeplitz(s["x"][:3], s["x"][3:]),
        "same": convolved,
        "strides": lambda s: convolved(s, (2, 1), "VALID"),
        "apart": lambda s: convolved(s, (1, 2), ((1, 2), (0, 3)), rhs_dilation=(1, 2)),
        "spread": lambda s: convolved(s, (1, 1), ((1, 2), (2, 2)), lhs_dilation=(2, 3)),
        "cut": lambda s: convolved(s, (1, 1), ((-1, 1), (0, -1))),
        "groups": lambda s: convolved(s, weights=FILTERS[:, :2], feature_group_count=2),
        "groups of a batch": lambda s: convolved(s, batch_group_count=2),
        "channels last": lambda s: lax.conv_general_dilated(
            *(s["m"].transpose(0, 2, 3, 1), FILTERS.T * s["x"][0], (1, 1), "SAME"),
            dimension_numbers=("NHWC", "WHIO", "NHWC"),
        ),
        "transposed": lambda s: lax.conv_transpose(
            *(s["m"], FILTERS.T, (2, 2), "SAME"), dimension_numbers=("NCHW", "WHIO", "NCHW")
        ),
        "without places": lambda s: lax.conv_general_dilated(s["m"][..., 0, 0], FILTERS[..., 0, 0], (), ()),
        "nowhere": lambda s: convolved({**s, "m": s["m"][:, :, :2]}, padding="VALID"),
        "derivative": lambda s: jax.grad(lambda m: jnp.sum(convolved({**s, "m": m}, (2, 1)) ** 2))(s["m"]),
    },
    "windows": {
        **{
            f"{combine.__name__} {name}": of_windows(combine, start, *window)
            for combine, start in ((lax.max, -jnp.inf), (lax.min, jnp.inf), (lax.add, 0.0))
            for name, window in WINDOWS.items()
        },
        "between": of_windows(lax.add, 0.0, (2, 2), (1, 1), "SAME", base_dilation=(2, 3), window_dilation=(1, 2)),
        "ties": lambda s: lax.reduce_window(jnp.repeat(s["x"], 2), -jnp.inf, lax.max, (3,), (1,), "SAME"),
        "ties beside padding": lambda s: [
            lax.reduce_window(s["x"][np.array(places)], -jnp.inf, lax.max, (3,), (1,), "SAME")
            for places in ([2, 4, 0], [0, 4, 2])  # two of them are 0.9
        ],
        "of integers": lambda s: lax.reduce_window(s["i"], np.int32(-(2**31)), lax.max, (1, 2), (1, 1), "SAME"),
        "of bools": lambda s: lax.reduce_window(s["b"], False, lax.bitwise_or, (1, 2), (1, 1), "SAME"),
        "NaN": lambda s: 0 < lax.reduce_window(
            *(jnp.where(s["x"] > 0.5, jnp.nan, 1.0), -jnp.inf, lax.max, (3,), (1,), "SAME")
        ),
        "sums of exponentials": lambda s: [lax.cumlogsumexp(9 * s["x"], reverse=r) for r in (False, True)],
        "along axes": lambda s: [lax.cumlogsumexp(s["m"], k) for k in (0, 3)],
        "of one exponential": lambda s: lax.cumlogsumexp(s["x"][:1]),
    },
}
GROUPS["signs, powers of two and divisors"] = {
    "signbit": lambda s: [jnp.signbit(s["x"]), jnp.signbit(jnp.array([5e-324, -5e-324, jnp.inf, -jnp.inf]) * s["x"][6])],
    "copysign": lambda s: [jnp.copysign(2.0, s["x"]), jnp.copysign(s["x"][4:], -s["x"][4:])],
    "ldexp": lambda s: [jnp.ldexp(s["x"] + 3, k) for k in (3, -3, 0, np.arange(7) - 3)],
    "gcd": lambda s: [jnp.gcd(s["i"][0], s["i"][1]), jnp.gcd(s["i"], 6), jnp.gcd(s["u"][0, 0], s["u"])],
    "gcd of 64 bits": lambda s: jnp.gcd(s["l"], s["l"][0]),
    "lcm": lambda s: [jnp.lcm(s["i"][0], s["i"][1]), jnp.lcm(s["l"][0], 2)],
}
# Those that JAX has no derivative of.
WITHOUT_DERIVATIVE = {
    "products": lambda s: lax.reduce_window(s["m"][0, 0], 1.0, lax.mul, (2, 2), (1, 1), "SAME"),
    "from two": lambda s: lax.reduce_window(s["m"][0, 0], 2.0, lax.add, (2, 2), (1, 1), "SAME"),
    "from half": lambda s: lax.reduce_window(s["m"][0, 0], 0.5, lax.max, (2, 2), (1, 1), "SAME"),
    "unlike": lambda s: lax.reduce_window(s["m"][0, 0], 0.5, lax.min, (2, 2), (1, 1), "SAME", window_dilation=(1, 2)),
}
APPLIED = {
    "at places": lambda s: s["x"].at[PLACES].apply(jnp.sin),
    "at a slice": lambda s: s["x"].at[1:].apply(lambda y: jnp.where(y > 0, y, 0)),
    "at several": lambda s: s["x"].at[np.array([1, 4, 1, 0, 9, 4, 1])].apply(lambda y: 2 * jnp.sin(y)),
    "of lines": lambda s: [s["m"].at[:, 1].apply(jnp.exp), s["m"][0].at[PLACES, ::2].apply(jnp.exp)],
    "at a computed place": lambda s: [s["x"].at[s["i"][0, k]].apply(jnp.exp) for k in range(3)],
    "of a computed line": lambda s: s["m"].at[0, s["i"][0, 0]].apply(jnp.exp),
    "at computed places": lambda s: s["x"].at[s["i"][0]].apply(jnp.exp, unique_indices=True),
    "of other types": lambda s: [s["i"].at[1:].apply(lambda y: y * 3), s["b"].at[0].apply(jnp.logical_not)],
    "nowhere": lambda s: s["x"].at[2:2].apply(jnp.sin),
    "of nothing": lambda s: s["x"][:0].at[np.array([3])].apply(jnp.sin),
    "in f32": lambda s: jnp.sign(s["x"]).astype(jnp.float32).at[PLACES].apply(lambda y: 2 * y).astype(float),
}


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


def leaves_of(functions, state):
    """The results of all functions, by name and count."""
    made = {name.replace(" ", "_"): jax.tree_util.tree_leaves(function(state)) for name, function in functions.items()}
    return {f"{name}_{k}": x for name, leaves in made.items() for k, x in enumerate(leaves)}


def weighted(leaves):
    """A sum of all reals, each with another weight."""
    reals = [jnp.ravel(x) for x in leaves.values() if x.dtype == float]
    return sum(jnp.sum(jnp.cos(1.0 + jnp.arange(x.size)) * x) for x in reals)


def of_jax(functions, reals):
    made = leaves_of(functions, {k: jnp.asarray(x) for k, x in {**STATE, **reals}.items()})
    return weighted(made), made


def next_of(state):
    return {k: ~x if x.dtype == bool else x + jnp.ones((), x.dtype) for k, x in state.items()}


def assert_equal_to_jax(found, expected, near):
    for name, x in expected.items():
        y = np.asarray(found[name]).reshape(x.shape)
        if x.dtype == float:
            np.testing.assert_allclose(y, x, rtol=near, atol=near, err_msg=name)
        else:
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(y, x, err_msg=name)


@pytest.mark.parametrize("group", GROUPS)
def test_values_and_gradients_are_those_of_jax(client, group):
    functions = GROUPS[group]
    world = simgrad.jax.world(lambda s: (next_of(s), leaves_of(functions, s)), state=STATE,
                              objective={"o": {"stage": lambda s: weighted(leaves_of(functions, s))}})  # fmt: skip
    slope_and_values = jax.jit(jax.grad(lambda reals: of_jax(functions, reals), has_aux=True))
    slopes, expected = slope_and_values({k: STATE[k] for k in "xm"})
    found = client.gradient(world, steps=1, initial=STATE, objective="o", policy="f64", record=list(expected))
    assert_equal_to_jax(found.trajectory, expected, 1e-12)
    for k, slope in slopes.items():
        np.testing.assert_allclose(found.initial[k].reshape(slope.shape), slope, rtol=1e-11, atol=1e-11)
    rounded = client.rollout(world, steps=1, initial=STATE, policy="f32", record=list(expected)).trajectory
    assert_equal_to_jax(rounded, {k: x for k, x in expected.items() if x.dtype == float}, 1e-4)


@pytest.mark.parametrize("functions", [WITHOUT_DERIVATIVE, APPLIED], ids=["windows", "applied"])
def test_values_of_what_jax_has_no_derivative_of(client, functions):
    world = simgrad.jax.world(lambda s: (next_of(s), leaves_of(functions, s)), state=STATE)
    expected = leaves_of(functions, {k: jnp.asarray(x) for k, x in STATE.items()})
    found = client.rollout(world, steps=1, initial=STATE, policy="f64", record=list(expected))
    assert_equal_to_jax(found.trajectory, expected, 1e-12)


def test_what_is_applied_at_places_has_the_derivative_of_each_turn(client):
    step = lambda s: {"x": s["x"].at[np.array([1, 1, 0])].apply(lambda y: 2 * jnp.sin(y))}
    world = simgrad.jax.world(step, state={"x": LINE}, objective={"o": lambda s: jnp.sum(s["x"])})
    found = client.gradient(world, steps=1, initial={"x": LINE}, objective="o", policy="f64").initial["x"]
    once = lambda y: 2 * jnp.sin(y)
    cost = lambda x: once(x[0]) + once(once(x[1])) + jnp.sum(x[2:])
    np.testing.assert_allclose(found.reshape(LINE.shape), jax.grad(cost)(jnp.asarray(LINE)), rtol=1e-14)


def test_a_function_is_applied_no_oftener_than_it_is_asked_for(client):
    step = lambda s: {"x": s["x"].at[np.array([1, 1, 0])].apply(jnp.log)}
    world = simgrad.jax.world(step, state={"x": np.array([0.5, 3.0])})
    found = client.rollout(world, steps=1, initial={"x": np.array([0.5, 3.0])}, policy="f64")
    np.testing.assert_allclose(found.state["x"].ravel(), [np.log(0.5), np.log(np.log(3.0))], rtol=1e-14)
    assert found.ok.all()  # log(log(0.5)) is NaN


@pytest.mark.parametrize("policy", ["f64", "f32", "bf16_safe"])
def test_zeros_have_signs_in_every_format(client, policy):
    x = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf])
    world = simgrad.jax.world(lambda s: {"x": jnp.copysign(3.0, s["x"])}, state={"x": x})
    found = client.rollout(world, steps=1, initial={"x": x}, policy=policy).state["x"]
    np.testing.assert_array_equal(found.reshape(x.shape), np.copysign(3.0, x))


def test_large_powers_of_two_are_several_factors(client):
    powers = np.array([1900, 1000, -60, 2500, 800])
    x = np.array([0.3, -0.7, 2.0, 0.0, 1.0]) * 2.0**-900
    world = simgrad.jax.world(lambda s: {"x": jnp.ldexp(s["x"], powers)}, state={"x": x})
    found = client.rollout(world, steps=1, initial={"x": x}, policy="f64").state["x"]
    np.testing.assert_array_equal(found.reshape(x.shape), np.ldexp(x, powers))
    assert found.reshape(x.shape)[0] > 2.0**900


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda x: x + jnp.sum(MANY * x.astype(int)[0] @ MANY), "8,000,000 products"),
        (lambda x: jnp.convolve(jnp.tile(x, 10_000), jnp.tile(x, 200))[0] * x, "elements together, above 4,194,304"),
        (lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b * b, (2,), (1,), "SAME"), "a function of one's own"),
        (lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + 1.0, (2,), (1,), "SAME"), "a function of one's own"),
        (lambda x: x.at[np.zeros(40, int)].apply(jnp.sin), "40 times at one place"),
        (lambda x: lax.approx_max_k(x, 1, aggregate_to_topk=False)[0] * x, "approx_max_k without aggregate_to_topk"),
    ],
)
def test_what_is_too_large_or_of_another_kind_is_refused_with_its_line(function, says):
    with pytest.raises(simgrad.jax.JaxWorldError, match=r"arrays_test.py:\d+: ") as refused:
        simgrad.jax.world(lambda s: {"x": function(s["x"])}, state={"x": np.ones(3)})
    assert says in str(refused.value)
