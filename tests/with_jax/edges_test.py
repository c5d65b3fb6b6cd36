"""Values and derivatives of JAX where a formula has a kink, leaves a format, or meets a NaN; what is refused there."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import simgrad as sg
import simgrad.jax
from jax import lax
from jax.interpreters import ad

from simgrad.jax.trees import called

POINTS = [-3.0, -1e-9, 0.0, 1e-9, 0.5, 2.0, 40.0]
SMOOTH = {
    "softplus": (jax.nn.softplus, POINTS),
    "log_sigmoid": (jax.nn.log_sigmoid, POINTS),
    "logaddexp": (lambda x: jnp.logaddexp(x, -x), POINTS),
    "relu": (jax.nn.relu, POINTS),
    "relu6": (jax.nn.relu6, [*POINTS, 6.0]),
    "xlogy": (lambda x: jax.scipy.special.xlogy(x, 2.0), POINTS),
    "logcdf": (jax.scipy.stats.norm.logcdf, [-20.0, -30.0, -1.0, 0.0, 2.0]),
    "arcsinh": (jnp.arcsinh, [*POINTS, 1e10, -1e100, 1e-200]),
    "arccosh": (jnp.arccosh, [1.0, 1 + 1e-12, 1.5, 2.0, 1e8]),
    "arctanh": (jnp.arctanh, [-0.5, 0.0, 0.3, 0.999]),
    "softmax": (lambda x: jax.nn.softmax(jnp.stack([x, 2 * x, -x]))[1], POINTS),
}


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


def world_of(function, element=(), **options):
    return simgrad.jax.world(
        lambda state: {"x": function(state["x"])},
        state={"x": np.zeros(element)}, objective={"x": lambda state: jnp.sum(state["x"])}, **options)  # fmt: skip


def values_of(client, function, x, policy="f64"):
    """Of one step, for each element of the outermost axis of x."""
    x = np.asarray(x, np.float64)
    return client.rollout(world_of(function, x.shape[1:]), steps=1, initial={"x": x}, policy=policy).state["x"]


@pytest.mark.parametrize("kinks", ["simgrad", "jax"])
@pytest.mark.parametrize("name", SMOOTH)
def test_functions_of_jax_keep_the_derivatives_that_their_rules_give(client, name, kinks):
    function, points = SMOOTH[name]
    answer = client.gradient(world_of(function, kinks=kinks), steps=1, initial={"x": np.array(points)},
                             objective="x", policy="f64")  # fmt: skip
    np.testing.assert_allclose(answer.values, jax.vmap(function)(jnp.array(points)), rtol=1e-12)
    expected = jax.vmap(jax.grad(function))(jnp.array(points))
    np.testing.assert_allclose(answer.initial["x"], expected, rtol=1e-10, atol=1e-300)


def test_inverse_hyperbolic_functions_stay_in_the_format(client):
    for policy, x, near in (("f64", 1e200, 1e-14), ("f32", 1e20, 1e-6), ("f16_unsafe", 300.0, 2e-3)):
        expected = np.log(x) + np.log(2)
        for function in (jnp.arcsinh, jnp.arccosh):
            np.testing.assert_allclose(values_of(client, function, [x], policy), [expected], rtol=near)
    assert values_of(client, jnp.arcsinh, [np.inf, -np.inf]).tolist() == [np.inf, -np.inf]
    assert values_of(client, jnp.arccosh, [np.inf]).tolist() == [np.inf]


NAN = {
    "isnan": lambda x: jnp.where(jnp.isnan(x / x), 7.0, x),
    "unequal": lambda x: jnp.where(x / x != x / x, 7.0, x),
    "not unequal": lambda x: jnp.where(~(x / x != x / x), 7.0, x),
    "nan_to_num": lambda x: jnp.nan_to_num(x / x, nan=5.0),
    "as bool": lambda x: (x / x).astype(bool).astype(float),
    "logaddexp": lambda x: jnp.logaddexp(jnp.log(x), jnp.log(x)),
}


@pytest.mark.parametrize("name", NAN)
def test_a_nan_differs_from_itself(client, name):
    x = [0.0, 2.0]
    np.testing.assert_allclose(values_of(client, NAN[name], x), jax.vmap(NAN[name])(jnp.array(x)), rtol=1e-15)


# Functions in whose steps JAX has a NaN constant that is chosen nowhere.
WITH_NAN_BESIDE = {
    "searchsorted": lambda x: x + jnp.searchsorted(jnp.array([0.2, 0.5, 0.9]), x),
    "median": lambda x: x + jnp.median(jnp.stack([x, 2 * x, 0.3 + x])),
    "quantile": lambda x: x + jnp.quantile(jnp.stack([x, 2 * x, 0.3 + x]), 0.3),
    "interp": lambda x: jnp.interp(x, jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 2.0])),
    "take": lambda x: jnp.take(jnp.stack([x, 2 * x]), jnp.array([1]))[0],
    "nanmax": lambda x: x + jnp.nanmax(jnp.stack([x, 2 * x])),
}


@pytest.mark.parametrize("name", WITH_NAN_BESIDE)
def test_a_nan_that_is_not_chosen_is_no_birth(client, name):
    x = np.array([0.3, 0.6, 1.4])
    function = WITH_NAN_BESIDE[name]
    world = simgrad.jax.world(lambda s: {"x": function(s["x"])}, state={"x": 0.0}, objective={"o": lambda s: s["x"] ** 2})
    g = client.gradient(world, steps=1, initial={"x": x}, objective="o", policy="f64")
    assert g.ok.all(), g
    np.testing.assert_allclose(g.state["x"], jax.vmap(function)(jnp.array(x)), rtol=1e-15)
    expected = jax.vmap(jax.grad(lambda y: function(y) ** 2))(jnp.array(x))
    np.testing.assert_allclose(g.initial["x"], expected, rtol=1e-12)


@pytest.mark.parametrize("place", ["step", "cost"])
@pytest.mark.parametrize(
    "masked",
    [
        lambda x: jnp.where(jnp.isfinite(jnp.log(x)), jnp.log(x), 0.0),
        lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0),
        lambda x: jnp.where(x != 0, jnp.sin(x) / x, 0.0),
    ],
)
def test_the_gradient_through_what_a_mask_leaves_out_is_0(client, masked, place):
    world = simgrad.jax.world(lambda s: {"x": masked(s["x"]) if place == "step" else s["x"] * 1.0}, state={"x": 1.0},
                              objective={"o": lambda s: s["x"] if place == "step" else masked(s["x"])})  # fmt: skip
    x = np.array([0.0, 0.7])
    g = client.gradient(world, steps=1, initial={"x": x}, objective="o", policy="f64")
    of_jax = jax.vmap(jax.grad(masked))(jnp.asarray(x))
    assert np.isnan(of_jax[0]) and g.initial["x"][0] == 0
    np.testing.assert_allclose(g.initial["x"][1], of_jax[1], rtol=1e-14)


TABLES = {
    "padded with NaN": np.array([0.0, 0.5, 1.0, np.nan, np.nan]),
    "without NaN": np.array([-0.0, 0.5, 1.0]),
    "between infinities": np.array([-np.inf, 0.5, np.inf]),
}


@pytest.mark.parametrize("known", [True, False], ids=["constant", "of the state"])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("method", ["scan", "compare_all"])
def test_nan_stands_behind_infinity_in_a_table(client, method, side, name, known):
    asked = np.array([-1.0, 0.0, -0.0, 0.3, 0.5, 2.0, np.nan, np.inf, -np.inf])

    def step(state):
        table = TABLES[name] if known else state["table"]
        places = jnp.searchsorted(table, state["x"], side=side, method=method)
        return {"x": state["x"] * 1.0, "table": state["table"] * 1.0, "places": 0 * state["places"] + places}

    start = {"x": asked, "table": TABLES[name], "places": np.zeros(asked.size, np.int32)}
    world = simgrad.jax.world(step, state=start)
    found = client.rollout(world, steps=1, initial={k: x[None] for k, x in start.items()}, policy="f64").state["places"][0]
    assert found.tolist() == np.asarray(jnp.searchsorted(TABLES[name], asked, side=side, method=method)).tolist()
    signs = sum(op.code == "sign" for op in operations(world.program.step.ops))
    asks_known_table = known and name != "padded with NaN" and method == "scan"
    assert (signs == 1) == asks_known_table, "x is asked whether it has a NaN, and a table that is known is not"


def operations(ops):
    """Those of a region and of the regions in it."""
    for op in ops:
        yield op
        for region in op.regions:
            yield from operations(region.ops)


def test_a_nan_that_is_chosen_is_born_where_it_is(client):
    fill = jnp.array([1.0, np.nan])

    def step(state):
        return {"x": jnp.where(state["x"] > 0.5, fill, state["x"])}

    world = simgrad.jax.world(step, state={"x": jnp.zeros(2)})
    r = client.rollout(world, steps=1, initial={"x": np.array([[0.3, 0.4], [0.9, 0.4], [0.3, 0.9]])}, policy="f64")
    assert r.ok.tolist() == [True, True, False]
    np.testing.assert_array_equal(r.state["x"], [[0.3, 0.4], [1.0, 0.4], [0.3, np.nan]])


def test_halves_are_rounded_away_from_zero_and_what_is_below_is_not(client):
    below = np.nextafter(0.5, 0)
    x = [below, -below, 0.5, -0.5, 2.5, np.nextafter(1.5, 0), 1e300, np.inf]
    assert values_of(client, lax.round, x).tolist() == [0, 0, 1, -1, 3, 1, 1e300, np.inf]
    assert values_of(client, lax.round, [40000.0, -2.5], "f16_unsafe").tolist() == [40000, -3]


def test_the_derivative_by_an_exponent_is_zero_where_the_base_is(client):
    world = simgrad.jax.world(
        lambda state, params: {"x": state["x"] ** params["n"]}, state={"x": 0.0}, params={"n": 2.0},
        objective={"x": lambda state: state["x"]})  # fmt: skip
    for x in (0.0, 0.5, 2.0, -1.0):
        answer = client.gradient(world, steps=1, initial={"x": np.array([x])}, params={"n": 2.0}, objective="x", policy="f64")
        by_x, by_n = jax.grad(lambda x, n: x**n, (0, 1))(x, 2.0)
        np.testing.assert_allclose([answer.initial["x"][0], answer.params["n"]], [by_x, by_n], rtol=1e-14)


def test_bools_are_ranked(client):
    ranks = lambda x: jnp.argmax(x > 1, axis=0) + 1.0 * jnp.sort(x > 1)[::-1]
    chosen = lambda x: jnp.select([x > 1, x > 0.5], [x * 2, x * 3], -1.0)
    x = np.array([[0.5, 1.2, 1.5], [1.2, 0.7, 0.1]])
    for function in (ranks, chosen):
        np.testing.assert_allclose(values_of(client, function, x), jax.vmap(function)(x), rtol=1e-15)


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda x: x.at[x.astype(int)].apply(jnp.sin), "write x.at[i].set(f(x[i]))"),
        (lambda x: x.astype(jnp.int8).astype(float), "integers of 8 or 16 bits; use int32"),
        (lambda x: x.astype(jnp.uint16).astype(float), "integers of 8 or 16 bits; use int32"),
    ],
)
def test_what_would_give_other_numbers_is_refused_with_its_line(function, says):
    with pytest.raises(simgrad.jax.JaxWorldError) as refused:
        world_of(function, (3,))
    assert says in str(refused.value) and "edges_test.py:" in str(refused.value)


def test_a_counter_beside_a_test_is_no_site(client):
    def step(state):
        goes_on = lambda c: (jnp.sum(c[0]) > 0.1) & (c[1] < 50)
        return {"x": lax.while_loop(goes_on, lambda c: (c[0] * 0.5, c[1] + 1), (state["x"], 0))[0] + 1.0}

    world = simgrad.jax.world(step, state={"x": np.ones(4)})
    answer = client.rollout(world, steps=3, initial={"x": np.ones((2, 4))}, policy="f64")
    assert [event.count.tolist() for event in answer.events.values()] == [[12, 12, 12]]


def test_an_author_whose_rule_adds_to_the_cotangent_is_said_to_be_left_out(client):
    """Its linear part alone would be another derivative than JAX's, and than that of the function."""

    @jax.custom_vjp
    def pulled(x):
        return jnp.sin(x)

    pulled.defvjp(lambda x: (pulled(x), x), lambda x, g: (g * jnp.cos(x) + 0.2 * jnp.sign(x),))
    with pytest.warns(UserWarning, match="edges_test.py:.*gives more than 0 for a cotangent of 0"):
        world = world_of(pulled)
    g = client.gradient(world, steps=1, initial={"x": np.array([0.3])}, objective="x", policy="f64")
    np.testing.assert_allclose(g.initial["x"], np.cos([0.3]), rtol=1e-14)
    assert any("gives more than 0" in line for line in str(world.report()).splitlines())


# Backward rules of f, by the cotangent and cos x.
NOT_LINEAR = {
    "an integer": lambda c, g: (g * c * 256).astype(jnp.int32).astype(g.dtype) / 256,
    "a comparison": lambda c, g: c * (g > 0),
    "a bool": lambda c, g: c * g.astype(bool),
    "a rest": lambda c, g: c * g + 0.25 * (g - g.astype(jnp.int32)),
    "beside NaN": lambda c, g: (g * jnp.sqrt(c) * 256).astype(jnp.int32).astype(g.dtype) / 256 + 0 * jnp.sqrt(c),
}
LINEAR = {
    "f32": lambda c, g: (g.astype(jnp.float32) * c.astype(jnp.float32)).astype(g.dtype),
    "bf16": lambda c, g: (g.astype(jnp.bfloat16) * c.astype(jnp.bfloat16)).astype(g.dtype),
    "reduced": lambda c, g: lax.reduce_precision(g, 8, 4) * c,
    "NaN in places": lambda c, g: g * jnp.where(c > 0, c, jnp.log(c)),
    "an inverse": lambda c, g: jnp.linalg.solve(jnp.outer(c, c) + jnp.eye(len(c)), g),
    "a sum": lambda c, g: jnp.cumsum(g * c) + jnp.sum(g) * c,
}


def sine_with(rule):
    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda c, g: (rule(c, g),))
    return sine


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_an_author_whose_rule_makes_integers_of_the_cotangent_is_said_to_be_left_out(client, name):
    """JAX transposes it, in silence, to a rule of another derivative."""
    with pytest.warns(UserWarning, match="edges_test.py:.*is not linear in the cotangent, and JAX's transpose of it gives other"):
        world = world_of(sine_with(NOT_LINEAR[name]), (3,))
    x = np.array([[0.3, -1.2, 0.7]])
    g = client.gradient(world, steps=1, initial={"x": x}, objective="x", policy="f64")
    np.testing.assert_allclose(g.initial["x"], np.cos(x), rtol=1e-14)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LINEAR)
def test_an_author_whose_rule_is_rounded_or_nan_somewhere_is_kept(client, name):
    sine = sine_with(LINEAR[name])
    x = np.array([0.3, -1.2, 0.7])
    g = client.gradient(world_of(sine, (3,)), steps=1, initial={"x": x[None]}, objective="x", policy="f64")
    np.testing.assert_allclose(g.initial["x"][0], jax.grad(lambda x: jnp.sum(sine(x)))(x), rtol=0.04)


def test_a_line_is_warned_of_once_and_at_the_line_that_asked_for_the_world():
    """A step is lowered more than once, and a line may call a function more than once."""

    @jax.custom_vjp
    def pulled(x):
        return jnp.sin(x)

    pulled.defvjp(lambda x: (pulled(x), x), lambda x, g: (g * jnp.cos(x) + 0.2 * jnp.sign(x),))

    def step(state):
        return {"x": pulled(pulled(state["x"]))}

    with pytest.warns(UserWarning) as warned:
        simgrad.jax.world(step, state={"x": np.ones(1)})
    line = step.__code__.co_firstlineno + 4
    assert [(w.filename, w.lineno) for w in warned] == [(__file__, line)]


@pytest.mark.parametrize("count", [1, 3])
def test_a_loop_under_vmap_turns_until_all_are_done_and_keeps_those_that_are(client, count):
    def grown(x):
        return lax.while_loop(lambda c: c[0] < 2.0, lambda c: (c[0] * 1.4 + 0.1, c[1] + 1), (x, 0))

    def step(state):
        x, turns = jax.vmap(grown)(state["x"])
        return {"x": 0.5 * x, "turns": state["turns"] + turns}

    start = {"x": np.linspace(0.1, 3.0, count), "turns": np.zeros(count, np.int64)}
    world = simgrad.jax.world(step, state=start, max_iter={"grown": 20})
    result = client.rollout(world, steps=2, initial={k: v[None] for k, v in start.items()}, policy="f64")
    expected = step(step({k: jnp.asarray(v) for k, v in start.items()}))
    np.testing.assert_allclose(result.state["x"][0], expected["x"], rtol=1e-14)
    assert result.state["turns"][0].tolist() == expected["turns"].tolist()


@pytest.mark.parametrize("dtype", [np.uint32, np.uint8, np.int32, np.int64])
def test_shifts_to_the_right_are_those_of_jax(client, dtype):
    top = int(np.iinfo(dtype).max)
    numbers = np.array([0, 1, 5, top, top - 1, top // 2 + 1], dtype)
    counts = np.array([0, 1, 3, 31, 7, 40], dtype)

    def step(state):
        n = state["n"]
        shifted = {"a": lax.shift_right_arithmetic(n, counts), "l": lax.shift_right_logical(n, counts)}
        return {"n": n * 2, **{k: state[k] + x for k, x in shifted.items()}}

    start = {"a": np.zeros(6, dtype), "l": np.zeros(6, dtype), "n": numbers}
    world = simgrad.jax.world(step, state=start)
    result = client.rollout(world, steps=1, initial={k: x[None] for k, x in start.items()})
    expected = step({k: jnp.asarray(x) for k, x in start.items()})
    for name in ("a", "l"):
        assert result.state[name][0].tolist() == expected[name].tolist(), name


def test_a_force_of_an_energy_with_a_branch(client):
    def energy(x):
        return lax.cond(x > 1.0, lambda y: jnp.sin(y), lambda y: y * y, x)

    force = jax.grad(energy)
    np.testing.assert_allclose(values_of(client, force, [0.5, 2.0]), [1.0, np.cos(2.0)], rtol=1e-14)


@pytest.mark.parametrize("number", [1.5, 2**33, -1e12])
def test_a_number_that_an_integer_leaf_does_not_hold_is_refused(client, number):
    world = simgrad.jax.world(lambda state: {"n": state["n"] + 1}, state={"n": np.int32(0)})
    with pytest.raises(ValueError, match="n: an input of int32 does not hold"):
        client.rollout(world, steps=1, initial={"n": number})


def test_a_python_integer_beyond_i32_says_what_to_write():
    with pytest.raises(ValueError, match=r"np.int64\(8589934592\)"):
        simgrad.jax.world(lambda state: {"n": state["n"] + 1}, state={"n": 2**33})


def test_a_hessian_of_a_world_without_controls_and_with_a_counter(client):
    world = simgrad.jax.world(
        lambda state, params: {"x": state["x"] * params["k"], "n": state["n"] + 1},
        state={"x": np.float64(0.0), "n": np.int32(0)}, params={"k": np.float64(1.0)},
        objective={"x": lambda state: state["x"]})  # fmt: skip
    found = client.hessian_vector(
        world, {"params": {"k": 1.0}}, steps=3, initial={"x": 2.0, "n": 0}, params={"k": 1.5}, objective="x", policy="f64"
    )
    np.testing.assert_allclose(found.params["k"], 2.0 * 6 * 1.5, rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.lax.reshape(x, (2, 3), (1, 0)),
        lambda x: jnp.ravel(jnp.outer(x[0], x[1]), order="F")[:6].reshape(2, 3),
        lambda x: jnp.reshape(x, (3, 2), order="F").T,
    ],
)
def test_elements_are_reshaped_in_the_order_that_is_asked_for(client, function):
    x = np.arange(1.0, 7.0).reshape(2, 3)

    def step(state):
        return {"x": 0.5 * state["x"] + function(state["x"])}

    weights = np.arange(6.0).reshape(2, 3)
    world = simgrad.jax.world(step, state={"x": x}, objective={"o": lambda s: jnp.sum(weights * s["x"] ** 2)})
    g = client.gradient(world, steps=1, initial={"x": x}, objective="o", policy="f64")
    np.testing.assert_array_equal(g.state["x"][0], step({"x": x})["x"])
    expected = jax.grad(lambda x: jnp.sum(weights * step({"x": x})["x"] ** 2))(jnp.array(x))
    np.testing.assert_allclose(g.initial["x"], expected, rtol=1e-13)


@pytest.mark.parametrize("policy", ["f64", "f32", "f16_safe", "f16_unsafe"])
def test_sums_of_unsigned_integers_are_numbers_of_every_format(client, policy):
    def step(state):
        return {"x": state["x"] * jnp.sum(state["b"]), "b": state["b"] + jnp.uint32(1)}

    world = simgrad.jax.world(step, state={"x": np.ones(2), "b": np.array([1, 2, 3], np.uint32)})
    r = client.rollout(world, steps=2, policy=policy)
    assert r.ok.all() and np.asarray(r.state["x"], float).tolist() == [[54.0, 54.0]]


def test_an_unsigned_integer_of_64_bits_is_rounded_once(client):
    numbers = np.array([0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1025, 2**64 - 1025, 2**64 - 1, 0x8000000000000400], np.uint64)

    def step(state):
        words = state["w"].astype(jnp.uint64)
        x = ((words[0] << 32) | words[1]).astype(float)
        return {"x": x, "w": state["w"] ^ jnp.asarray(state["x"] > 1.0, jnp.uint32)}

    world = simgrad.jax.world(step, state={"x": 0.0, "w": np.zeros(2, np.uint32)})
    words = np.stack([numbers >> np.uint64(32), numbers & np.uint64(0xFFFFFFFF)], 1).astype(np.uint32)
    r = client.rollout(world, steps=1, initial={"x": 0.0, "w": words}, policy="f64")
    assert r.state["x"].tolist() == [float(int(n)) for n in numbers]


@pytest.mark.parametrize(
    "before, after",
    [
        *(("int64", "uint32"), ("int64", "int32"), ("int64", "uint8"), ("uint64", "uint32"), ("uint64", "uint8")),
        *(("uint32", "uint8"), ("int32", "uint8"), ("uint8", "uint32"), ("uint8", "int32"), ("uint8", "int64")),
        *(("uint32", "int64"), ("int32", "int64"), ("uint32", "uint64"), ("uint8", "uint64")),
    ],
)
def test_the_bits_of_integers_are_integers_of_other_widths(client, before, after):
    ends = [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF, -0x123456789ABCDEF, 2**31, -(2**31), 255, 2**32 - 1, 128]
    numbers = np.array(ends, np.int64).view("int64" if before == "uint64" else before).reshape(3, -1)
    count = np.dtype(after).itemsize // np.dtype(before).itemsize
    numbers = numbers.reshape(3, -1, count) if count else numbers

    def step(state):
        made = lax.bitcast_convert_type(state["n"].astype(before), after)
        return {"n": ~state["n"], "y": made.astype("int64") if after == "uint64" else made}

    with jax.enable_x64(True):
        expected = np.asarray(step({"n": jnp.asarray(numbers)})["y"])
    world = simgrad.jax.world(step, state={"n": numbers, "y": np.zeros_like(expected)}, observe=["y"])
    found = client.rollout(world, steps=1, initial={"n": numbers[None]}, record=["y"]).trajectory["y"][0, 0]
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


def test_bits_taken_as_their_own_type_are_what_they_were(client):
    step = lambda s: {"x": 2 * lax.bitcast_convert_type(s["x"], s["x"].dtype), "on": ~lax.bitcast_convert_type(s["on"], bool)}
    made = client.rollout(simgrad.jax.world(step, state={"x": 1.5, "on": False}), steps=3, policy="f64").state
    assert (made["x"].item(), made["on"].item()) == (12.0, True)


def test_a_nan_of_a_branch_is_born_where_the_branch_runs(client):
    def step(state):
        x = jax.lax.cond(state["x"][0] > 5, lambda: jnp.full(3, jnp.nan), lambda: state["x"] * 2)
        return {"x": x + jax.scipy.linalg.expm(0.1 * jnp.outer(state["x"], state["x"]))[0]}

    world = simgrad.jax.world(step, state={"x": np.array([0.3, 0.5, 0.7])})
    x = np.array([[0.3, 0.5, 0.7], [6.0, 0.5, 0.7]])
    r = client.rollout(world, steps=1, initial={"x": x}, policy="f64")
    assert r.ok.tolist() == [True, False] and np.isnan(r.state["x"][1]).all()
    np.testing.assert_allclose(r.state["x"][0], step({"x": jnp.array(x[0])})["x"], rtol=1e-14)


def test_a_nan_constant_that_is_given_is_born_there(client):
    """As output, state, what is observed, cost and start; the numbers beside it are what they were."""
    beside = lambda state: jnp.array([1.5, jnp.nan])
    step = lambda state: ({"x": 2 * state["x"], "y": beside(state), "seen": jnp.nan}, {"o": jnp.full(2, jnp.nan)})
    start = {"x": 1.0, "y": np.zeros(2), "seen": 0.0}
    with_y = lambda state: ({**step(state)[0], "x": 2 * state["x"] + jnp.where(jnp.isnan(state["y"][1]), 1.0, 0.0)}, step(state)[1])
    cost = {"c": {"stage": lambda state: jnp.nan, "terminal": lambda state: jnp.nan}}
    world = simgrad.jax.world(with_y, state=start, observe={"e": beside}, objective=cost)
    r = client.rollout(world, steps=2, initial=start, policy="f64", objective="c", record=["o", "e", "y"])
    assert r.state["x"].tolist() == [5.0] and not r.ok.any() and np.isnan(r.values).all()
    np.testing.assert_array_equal(r.state["y"], [[1.5, np.nan]])
    np.testing.assert_array_equal(r.trajectory["e"], [[[1.5, np.nan]] * 2])
    assert np.isnan(r.trajectory["o"]).all() and r.trajectory["o"].shape == (1, 2, 2)
    world = simgrad.jax.world(lambda s: step(s)[0], state=start, observe=["seen"])
    assert np.isnan(client.rollout(world, steps=1, initial=start, policy="f64", record=["seen"]).trajectory["seen"]).all()


@pytest.mark.parametrize("example", [0.0, np.nan])
def test_an_init_that_gives_a_nan_starts_there(client, example):
    step = lambda state: {"x": jnp.where(jnp.isnan(state["y"]), state["x"] + 1, 0.0), "y": state["y"]}
    world = simgrad.jax.world(step, state={"x": 1.0, "y": example}, init=lambda state: {"y": jnp.nan})
    assert ("y" in world.constants) == np.isnan(example)
    assert client.rollout(world, steps=1, initial={"x": 1.0}, policy="f64").state["x"].tolist() == [2.0]


@pytest.mark.parametrize("custom", ["keep", "inline"])
def test_a_derivative_of_an_author_gives_no_birth_at_infinity(client, custom):
    def step(state):
        y = jnp.where(jnp.arange(3) < 1, state["x"], jnp.inf)
        return {"x": state["x"] + jnp.exp(-jax.nn.softplus(y))}

    world = simgrad.jax.world(step, state={"x": np.array([0.3, 0.5, 0.7])}, objective={"o": lambda s: jnp.sum(s["x"])}, custom=custom)
    x = np.array([0.3, 0.5, 0.7])
    g = client.gradient(world, steps=1, initial={"x": x}, objective="o", policy="f64")
    assert g.ok.all(), g
    np.testing.assert_allclose(g.initial["x"], jax.grad(lambda x: jnp.sum(step({"x": x})["x"]))(jnp.array(x)), rtol=1e-13)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * jnp.abs(jnp.exp(1j * x)),
        lambda x: x * jax.scipy.linalg.sqrtm(jnp.diag(x)).real.sum(0),
        lambda x: jax.scipy.fft.dct(x),
    ],
)
def test_complex_numbers_are_refused_with_their_line(function):
    with pytest.raises(simgrad.jax.JaxWorldError, match=r"edges_test.py:\d+: .*of complex numbers"):
        simgrad.jax.world(lambda s: {"x": function(s["x"])}, state={"x": np.array([0.7, 0.3])})


def test_complex_numbers_that_are_known_are_computed_and_sent_back(client):
    def step(state):
        return {"x": state["x"] + jnp.abs(state["z"] * 1j) + jnp.real(jnp.fft.fft(jnp.arange(2.0)))[0], "z": state["z"]}

    state = {"x": 1.0, "z": 3.0 + 4.0j}
    world = simgrad.jax.world(step, state=state)
    assert client.rollout(world, steps=1, initial=state, policy="f64").state["x"].tolist() == [7.0]


def test_a_leaf_of_uint64_says_what_to_write():
    with pytest.raises(ValueError, match="state b: a leaf of uint64; a world has int64 and uint32"):
        simgrad.jax.world(lambda s: {"b": s["b"] * jnp.uint64(3)}, state={"b": np.array([1, 2**63], np.uint64)})


@pytest.mark.parametrize("place", ["output", "observe"])
def test_an_output_of_uint64_is_refused_with_its_line_and_what_to_write(place):
    mixed = lambda state: state["n"].astype(jnp.uint64) * jnp.uint64(0x9E3779B97F4A7C15)
    step = lambda state: ({"n": state["n"] + 1}, {"u": mixed(state), "k": state["n"]} if place == "output" else {})
    said = r"no uint64:\n  edges_test.py:\d+: output u is uint64\[2\]; x.astype\(jnp.int64\), or two words: \(x >> 32\)"
    with pytest.raises(simgrad.jax.JaxWorldError, match=said):
        simgrad.jax.world(step, state={"n": np.zeros(2, np.int32)}, observe={"u": mixed} if place == "observe" else {})


def test_an_observed_leaf_keeps_the_width_of_its_example(client):
    step = lambda state: {"n": state["n"] + 1, "low": state["n"].astype(jnp.uint64) * jnp.uint64(0x9E3779B97F4A7C15)}
    start = {"n": np.int32(1), "low": np.uint32(0)}
    world = simgrad.jax.world(step, state=start, observe=["low"])
    r = client.rollout(world, steps=1, initial=start, policy="f64", record=["low"])
    assert r.trajectory["low"].dtype == np.uint32 and r.trajectory["low"].tolist() == [[0x7F4A7C15]]


@pytest.mark.parametrize("e", [2.5, np.array([-0.0, np.inf, np.nan]), np.int32(3), np.array([True, False]), np.zeros((0, 2))])
def test_an_observed_leaf_that_no_step_changes_is_recorded_as_it_is(client, e):
    start = {"x": 1.0, "e": e}
    world = simgrad.jax.world(lambda state: {**state, "x": 0.5 * state["x"]}, state=start, observe=["e"])
    assert world.constants == world.exports == ("e",) and world.observables == ()
    r = client.rollout(world, steps=2, initial=start, policy="f64", record=["e"])
    assert r.trajectory["e"].dtype == np.asarray(e).dtype
    np.testing.assert_array_equal(r.trajectory["e"], np.broadcast_to(e, (1, 2, *np.shape(e))))
    np.testing.assert_array_equal(r.state["e"], np.broadcast_to(e, (1, *np.shape(e))))


def test_recording_a_leaf_that_no_step_changes_is_refused_with_observe(client):
    start = {"x": 1.0, "e": 2.5}
    world = simgrad.jax.world(lambda state: {**state, "x": 0.5 * state["x"]}, state=start)
    with pytest.raises(ValueError, match=r"record 'e': no step changes this leaf of the state.*observe=\['e'\]"):
        client.rollout(world, steps=2, initial=start, record=["x", "e"])


def test_outputs_with_names_of_leaves_have_names_of_their_own(client):
    def step(state):
        x = state["x"] * 0.5
        return {"x": x, "e": x * x}, {"e": 100 * x, "x": -x}

    start = {"x": 1.0, "e": 0.0}
    world = simgrad.jax.world(step, state=start, objective={"o": lambda s: s["e"]})
    g = client.gradient(world, steps=2, initial=start, objective="o", policy="f64", record=["e.2", "x.2"])
    assert (g.value, g.initial["x"]) == (0.0625, 0.125)
    assert g.trajectory["e.2"].tolist() == [[50.0, 25.0]] and g.trajectory["x.2"].tolist() == [[-0.5, -0.25]]
    with pytest.raises(simgrad.jax.JaxWorldError, match=r"'e'; observe=\['e'\] records the leaf"):
        simgrad.jax.world(lambda s: step(s)[0], state=start, observe={"e": lambda s: s["x"]})


def test_an_output_gives_way_to_what_is_observed_by_its_name(client):
    step = lambda state: ({"x": 0.5 * state["x"]}, {"e": 100 * state["x"]})
    world = simgrad.jax.world(step, state={"x": 1.0}, observe={"e": lambda state: -state["x"]})
    r = client.rollout(world, steps=2, policy="f64", record=["e", "e.2"])
    assert r.trajectory["e"].tolist() == [[-0.5, -0.25]] and r.trajectory["e.2"].tolist() == [[100.0, 50.0]]


def test_a_leaf_that_a_step_resets_to_the_number_of_its_example_is_state(client):
    def step(state):
        return {"x": state["x"] + state["kick"], "kick": jnp.zeros(()), "read": jnp.zeros(()), "mass": state["mass"]}

    world = simgrad.jax.world(step, state={"x": 1.0, "kick": 0.0, "read": 0.0, "mass": 2.0})
    assert (world.state, world.observables, world.constants) == (("kick", "x"), ("read",), ("mass",))
    r = client.rollout(world, steps=2, initial={"x": 1.0, "kick": 0.25, "read": 3.0, "mass": 2.0}, policy="f64", record=["x"])
    assert r.trajectory["x"].tolist() == [[1.0, 1.25, 1.25]]


def test_a_constant_zero_has_its_sign(client):
    world = simgrad.jax.world(lambda s: {"x": s["x"] + 1 / (s["m"] + s["w"]), "m": s["m"], "w": s["w"]},
                              state={"x": 1.0, "m": -0.0, "w": 1.5})  # fmt: skip
    client.rollout(world, steps=1, initial={"x": 1.0, "m": -0.0, "w": np.float32(1.5)}, policy="f64")
    for leaf, other in (("m", 0.0), ("w", 1)):
        with pytest.raises(ValueError, match=f"state {leaf} is part of the world, and has another number here"):
            client.rollout(world, steps=1, initial={"x": 1.0, "m": -0.0, "w": 1.5, leaf: other}, policy="f64")


def test_the_sign_of_a_known_zero_is_that_of_a_computed_one(client):
    zeros = np.array([-0.0, 0.0, -2.0, 3.0, np.nan])
    told = lambda z: jnp.copysign(1.0, jnp.sign(z))
    step = lambda s: {"z": s["z"] + 0.0, "computed": told(s["z"]), "known": told(jnp.asarray(zeros)), "n": s["n"] + 1}
    state = {"z": zeros, "computed": 0 * zeros, "known": 0 * zeros, "n": 0}
    world = simgrad.jax.world(step, state=state, observe=["computed", "known"])
    found = client.rollout(world, steps=1, initial={"z": zeros[None]}, policy="f64", record=["computed", "known"])
    computed, known = (found.trajectory[name][0, 0] for name in ("computed", "known"))
    np.testing.assert_array_equal(known[:4], [1, 1, -1, 1])
    np.testing.assert_array_equal(known, computed)


def test_an_init_that_gives_a_zero_of_the_other_sign_gives_state(client):
    step = lambda state, params: {"x": state["x"] + params["k"] / state["m"], "m": state["m"]}
    world = simgrad.jax.world(
        step, state={"x": 1.0, "m": 0.0}, params={"k": 1.0}, init=lambda params: {"x": params["k"], "m": -0.0})  # fmt: skip
    assert client.rollout(world, steps=1, policy="f64").state["x"].tolist() == [-np.inf]


STATED = {"state": 1.0, "control": 2.0, "params": 3.0, "data": 5.0}


@pytest.mark.parametrize(
    ("function", "groups", "places"),
    [
        (lambda s, data, p: (s, data, p), ("params", "data"), ("state", "data", "params")),
        (lambda s, params, u: (s, params, u), ("control", "params"), ("state", "params", "control")),
        (lambda s, u, p: (s, u, p), ("control", "params"), ("state", "control", "params")),
        (lambda s, *rest: (s, *rest), ("control", "data"), ("state", "control", "data")),
        (lambda s, p, **rest: (s, p, rest["data"]), ("params", "data"), ("state", "params", "data")),
        (lambda *s, **rest: (*s, rest["params"]), ("params",), ("state", "params")),
        (lambda s, data, p, /: (s, data, p), ("params", "data"), ("state", "data", "params")),
        (lambda params, state: (params, state), ("params",), ("params", "state")),
    ],
)
def test_an_argument_with_the_name_of_a_group_takes_it_and_the_others_the_rest(function, groups, places):
    made = called(function, {kind: STATED[kind] for kind in ("state", *groups)})
    assert made == tuple(STATED[kind] for kind in places)


def test_groups_that_a_step_names_go_by_name_in_a_world_and_in_its_costs(client):
    step = lambda s, data, p: {"x": s["x"] * p + data}
    world = simgrad.jax.world(step, state={"x": 1.0}, params=3.0, data=5.0, init=lambda data, p: {"x": data + 10 * p},
                              objective={"o": lambda s, data, p: s["x"] + 100 * data + 1000 * p})  # fmt: skip
    r = client.rollout(world, steps=1, policy="f64", objective="o")
    assert r.state["x"].tolist() == [110.0] and r.values.tolist() == [3610.0]
    with pytest.raises(TypeError, match="this world has no data"):
        simgrad.jax.world(lambda s, p: {"x": s["x"] * p}, state={"x": 1.0}, params=3.0, init=lambda p, data: {"x": p})


def test_the_report_names_lines_whose_integers_are_others_without_x64():
    def step(state):
        key = jax.random.split(state["key"])[0]
        a = jnp.sum(state["n"])
        b = state["n"] * jnp.array([100000, 2, 3])
        c = jax.random.randint(key, (3,), 0, 10)
        d = jax.random.randint(key, (3,), 0, 10, jnp.int32) + jnp.sum(state["n"], dtype=jnp.int32)
        e = jnp.sum(state["n"] > 2) + jnp.sum(state["n"] % 7) + jnp.argmax(state["n"])
        f = lax.fori_loop(0, 3, lambda i, n: n + state["n"][i], 0)
        return {"n": (a + b + c + d + e + f).astype(jnp.int32), "key": key}

    start = {"n": np.array([1, 2, 3], np.int32), "key": jax.random.key(0)}
    first = step.__code__.co_firstlineno
    assert not simgrad.jax.world(step, state=start).report().wide_integers
    with jax.enable_x64(False):
        report = simgrad.jax.world(step, state=start).report()
    lines = {2: "reduce_sum", 3: "mul", 4: "randint"}
    assert report.wide_integers == {f"edges_test.py:{first + n}": what for n, what in lines.items()}
    assert "integers of 64 bits that JAX without x64 has with 32:" in str(report).splitlines()


def test_a_step_in_the_form_of_a_scan_makes_a_world(client):
    def step(state):
        new = {"x": state["x"] * 0.5, "v": state["x"]}
        return new, new

    world = simgrad.jax.world(step, state={"x": 1.0, "v": 0.0})
    r = client.rollout(world, steps=2, policy="f64", record=["x.2", "v.2"])
    assert r.trajectory["x.2"].tolist() == [[0.5, 0.25]] and r.trajectory["v.2"].tolist() == [[1.0, 0.5]]


def test_names_that_are_made_equal_nothing_else():
    state = {"a b": 1.0, "a_b": 2.0, "a_b.2": 3.0}
    world = simgrad.jax.world(lambda s: {k: 0.5 * v for k, v in s.items()}, state=state)
    assert len(set(world.state)) == 3


def test_an_alias_that_is_another_sites_name_loses_no_line():
    def step(state):
        a = jnp.where(state["x"] > 0.3, state["x"] * 0.5, state["x"] * 0.7)
        return {"x": jnp.where(a > 0.1, a * 0.5, a * 0.7)}

    first = step.__code__.co_firstlineno + 1
    world = simgrad.jax.world(step, state={"x": 1.0}, sites={f"edges_test.py:{n}": "b" for n in (first, first + 1)})
    assert [(s.name, s.line, s.operations) for s in world.report().sites] == [
        ("b", f"edges_test.py:{first}", 1),
        ("b", f"edges_test.py:{first + 1}", 1),
    ]


@pytest.mark.parametrize(
    "given, error, said",
    [
        ({"max_iter": {"f": 2.7}}, ValueError, r"max_iter\['f'\]: a whole number from 1, not 2.7"),
        ({"max_iter": {"f": 0}}, ValueError, r"max_iter\['f'\]: a whole number from 1, not 0"),
        ({"max_iter": 20}, TypeError, "max_iter is a dict by name, not 20"),
        ({"roles": "solver"}, TypeError, "roles is a dict by name, not 'solver'"),
        ({"sites": "a"}, TypeError, "sites is a dict by name, not 'a'"),
        ({"objective": len}, TypeError, "objective: functions by name"),
        ({"objective": {"o": 3}}, TypeError, "objective 'o': a function, not 3"),
    ],
)
def test_arguments_of_other_kinds_are_refused_by_name(given, error, said):
    with pytest.raises(error, match=said):
        simgrad.jax.world(lambda s: {"x": s["x"] * 0.5}, state={"x": 1.0}, **given)


def test_a_function_raises_where_an_error_ends_an_instance(client):
    eqx = pytest.importorskip("equinox")

    def step(state, params):
        x = state["x"] + 0.1 * params["k"]
        return {"x": eqx.error_if(x, x > 1.0, "x is too large")}

    world = simgrad.jax.world(step, state={"x": 0.0}, params={"k": 1.0})
    run = simgrad.jax.function(client, world, policy="f64", steps=3)
    loss = lambda k: run({"x": 0.5}, params={"k": k}).state["x"] ** 2
    assert float(jax.grad(loss)(1.0)) == pytest.approx(2 * 0.8 * 0.3)
    for call in (loss, jax.grad(loss), jax.jit(loss), lambda k: jax.vmap(loss)(jnp.array([1.0, k]))):
        with pytest.raises(Exception, match=r"x is too large \(edges_test.py:\d+\), in step \d of instance \d"):
            call(5.0)


OF_A_TABLE = {
    "by a computed place": lambda x, table: table[jnp.clip(jnp.floor(x).astype(int), 0, 3)],
    "with at": lambda x, table: table.at[0].add(1.0)[0],
    "with a rule of its own": lambda x, table: jax.vmap(jax.nn.relu)(table).sum(),
}


@pytest.mark.parametrize("group", ["params", "control", "data"])
@pytest.mark.parametrize("name", OF_A_TABLE)
def test_check_gives_a_step_arrays_of_jax(client, name, group):
    step = {
        "params": lambda state, params: {"x": state["x"] + OF_A_TABLE[name](state["x"], params)},
        "control": lambda state, control: {"x": state["x"] + OF_A_TABLE[name](state["x"], control)},
        "data": lambda state, data: {"x": state["x"] + OF_A_TABLE[name](state["x"], data)},
    }[group]
    start = lambda state: {"x": state["x"].at[...].add(0.25)}
    table = np.array([0.1, 0.2, 0.3, 0.4])
    world = simgrad.jax.world(step, state={"x": 0.5}, init=start, **{group: table})
    assert simgrad.jax.check(world, client, steps=2).worst <= 1e-14


def test_check_says_what_it_takes(client):
    world = simgrad.jax.world(
        lambda state, control: {"x": state["x"] + control["u"], "v": state["v"] * 0.5}, state={"x": 1.0, "v": 0.5}, control={"u": 0.0}
    )
    with pytest.raises(TypeError, match="a step returns the state that it takes"):
        simgrad.jax.check(world, lambda state, control: {"x": state["x"]}, client=client)
    with pytest.raises(TypeError, match=r"control u has shape \(5, 2\), not \(\): check runs one instance"):
        simgrad.jax.check(world, client, control={"u": np.ones((5, 2))})


def test_an_init_that_asks_for_a_control_is_told_what_there_is():
    with pytest.raises(TypeError, match="it takes control, and what it may take are params, data, state"):
        simgrad.jax.world(
            lambda state, control: {"x": state["x"] + control["u"]},
            state={"x": 1.0},
            control={"u": 0.0},
            init=lambda control: {"x": control["u"]},
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.take(x, np.array([0, 2, 7])),
        lambda x: x.at[np.array([1, 5, 0])].get(mode="fill"),
        lambda x: x.at[np.array([1, 5, 0])].get(mode="fill", fill_value=-1.0),
    ],
)
def test_a_known_place_outside_an_array_has_what_jax_puts_there(client, function):
    x = np.array([2.0, 4.0, 8.0])
    np.testing.assert_array_equal(values_of(client, function, x[None])[0], function(jnp.asarray(x)))


SCATTERED_BOOLS = {
    "max at a known place": lambda b, i: ~b.at[0, 1].max(True),
    "min at known places": lambda b, i: ~b.at[jnp.array([1, 0])].min(b[::-1]),
    "max at one known place twice": lambda b, i: b.at[0, jnp.array([0, 0])].max(b[1, :2]),
    "largest of known segments": lambda b, i: jax.ops.segment_max(b, jnp.array([1, 0]), 2),
    "set at a computed place": lambda b, i: b.at[i[0], i[1]].set(~b[0, 0]),
    "max at computed places": lambda b, i: b.at[i, i[::-1]].max(b[:, 2]),
    "min at computed places": lambda b, i: b.at[i, i].min(b[:, 0], mode="clip"),
    "at a computed place outside": lambda b, i: b.at[i[0] + 2, i[1]].set(True),
}


@pytest.mark.parametrize("name", SCATTERED_BOOLS)
def test_bools_are_brought_to_places(client, name):
    b = np.random.default_rng(1).integers(0, 2, (6, 2, 3)).astype(bool)
    i = np.random.default_rng(2).integers(0, 2, (6, 2)).astype(np.int32)
    step = lambda state: {"b": SCATTERED_BOOLS[name](state["b"], state["i"]), "i": state["i"] + state["b"][0, :2]}
    world = simgrad.jax.world(step, state={"b": b[0], "i": i[0]})
    found = client.rollout(world, steps=1, initial={"b": b, "i": i}, policy="f64").state["b"]
    np.testing.assert_array_equal(found, jax.vmap(lambda b, i: step({"b": b, "i": i})["b"])(jnp.asarray(b), jnp.asarray(i)))


@pytest.mark.parametrize("dtype, fill", [(np.uint64, None), (np.uint64, 2**63 + 5), (np.uint64, 7), (np.int64, None), (np.int64, 2**60 + 1),
                                         (np.uint32, None), (bool, True)])  # fmt: skip
def test_outside_of_an_array_stands_the_integer_that_jax_has_there(client, dtype, fill):
    def words(n, at):
        found = n.astype(dtype).at[at].get(mode="fill", fill_value=fill).astype(jnp.uint64)
        return jnp.stack([(found >> 32).astype(jnp.uint32), found.astype(jnp.uint32)])

    at = np.array([2, 0, 7])
    step = lambda state: ({"n": state["n"] + 1, "at": state["at"] + 1}, {"known": words(state["n"], at), "found": words(state["n"], state["at"])})
    start = {"n": np.array([5, -1, 3]), "at": at}
    r = client.rollout(simgrad.jax.world(step, state=start), steps=1, initial=start, policy="f64", record=["known", "found"])
    for found in r.trajectory.values():
        np.testing.assert_array_equal(found[0, 0], words(jnp.asarray(start["n"]), at))


@pytest.mark.parametrize(
    "place", [np.uint32(2**31 + 1), np.uint32(2**32 - 1), np.int64(2**32 + 1), np.int64(-(2**40)), np.int64(2**31), np.int64(-1)]
)
def test_places_beyond_i32_are_outside(client, place):
    array = jnp.arange(12.0).reshape(4, 3)

    def read(k):
        taken = [array.at[k].get(mode="clip"), array.at[k].get(mode="fill", fill_value=-1.0), array.at[k, k].get(mode="clip")]
        written = [array.at[k].set(-1.0, mode=mode) for mode in ("clip", "drop")]
        written.append(lax.dynamic_update_slice(array, -array[:2, :2], (k, k)))
        return jnp.concatenate([jnp.ravel(x) for x in (lax.dynamic_slice(array, (k, k), (2, 2)), *taken, *written)])

    expected = read(jnp.asarray(place))
    step = lambda state: {"x": 0 * state["x"] + read(state["k"]), "k": state["k"] + place.dtype.type(1)}
    start = {"x": np.zeros(expected.shape), "k": place}
    found = client.rollout(simgrad.jax.world(step, state=start), steps=1, initial=start, policy="f64").state["x"]
    np.testing.assert_array_equal(np.ravel(found), expected)


@pytest.mark.parametrize(
    "counted",
    [
        lambda x: lax.fori_loop(0, 3, lambda i, y: y.at[i].add(x[2 - i]), x),
        lambda x: lax.scan(lambda y, i: (y.at[i].add(x[i]), None), x, jnp.arange(3))[0],
        lambda x: lax.while_loop(lambda c: (c[0] < 2) & (c[1][c[0]] < 9), lambda c: (c[0] + 1, c[1].at[c[0]].add(x[0])), (0, x))[1],
        lambda x: x.at[jnp.argmax(x)].add(x[jnp.argsort(x)[0] + jnp.sum(x > 2)]),
    ],
)
def test_a_counter_is_not_clamped_to_i32(counted):
    world = simgrad.jax.world(lambda s: {"x": counted(s["x"])}, state={"x": np.ones(3)})
    assert not {"min", "max"} & set(world.report().operations)


def test_arrays_are_taken_apart_along_every_axis(client):
    x = np.arange(24.0).reshape(2, 3, 4)
    for axis in (0, 1, -1):
        function = lambda x: sum((k + 1) * jnp.sum(p) for k, p in enumerate(jnp.unstack(x, axis=axis))) * jnp.ones((2, 3, 4))
        np.testing.assert_array_equal(values_of(client, function, x[None])[0], function(jnp.asarray(x)))
    energy = lambda q: jnp.sum(jnp.stack([q[0], jnp.sin(q[1])]) ** 2)
    np.testing.assert_allclose(values_of(client, jax.grad(energy), [[0.3, 0.5]])[0], jax.grad(energy)(jnp.array([0.3, 0.5])))


@pytest.mark.parametrize("first", [0, 3, 25, 30])
def test_a_loop_under_vmap_has_the_cap_of_its_test(client, first):
    def halved(x):
        goes_on = lambda c: (jnp.abs(c[0]) > 1e-3) & (c[1] < 25)
        return lax.while_loop(goes_on, lambda c: (0.5 * c[0], c[1] + 1), (x, first))[0]

    function = lambda x: 2.0 * jax.vmap(halved)(x)
    x = np.array([1.0, 100.0, 1e-4, 1e30])
    world = world_of(function, (4,))
    np.testing.assert_array_equal(values_of(client, function, x[None])[0], function(jnp.asarray(x)))
    caps = [op.max_iter for op in world.program.step.ops if op.code == "while"]
    assert caps == ([25 - first] if first < 25 else [])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: np.sin(x), "NumPy is given a value of the step"),
        (lambda x: x * np.arange(3.0)[x.argmax()], "jnp.asarray(table)[i]"),
        (lambda x: x * np.arange(6.0).reshape(2, 3)[0, x.argmax()], "jnp.asarray(table)[i]"),
        (lambda x: x * [1.0, 2.0, 3.0][x.argmax()], "Python takes a value of the step for an index or a count"),
        (lambda x: x * [1.0, 2.0, 3.0][x.argmax()], "jnp.asarray(table)[i]"),
        (lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * b, (0,)) * x, "jax.lax.scan along the axis"),
    ],
)
def test_mistakes_of_python_are_told_with_the_line_and_what_to_write(function, said):
    with pytest.raises(simgrad.jax.JaxWorldError, match=r"edges_test.py:\d+: ") as failed:
        world_of(function, (3,))
    assert said in str(failed.value)


def test_a_step_that_changes_nothing_gives_what_was_sent(client):
    world = simgrad.jax.world(lambda state: dict(state), state={"x": np.zeros(2), "n": np.int32(3)}, objective={"x": lambda state: jnp.sum(state["x"])})
    for sent in ({"x": np.array([3.0, 4.0]), "n": np.int32(3)}, {"x": np.zeros(2), "n": np.int32(3)}):
        try:
            made = client.rollout(world, steps=2, initial=sent, policy="f64").state
        except ValueError as refused:
            assert "state x is part of the world, and has another number here" in str(refused)
        else:
            np.testing.assert_array_equal(made["x"], [sent["x"]])
            assert made["n"] == 3
    identity = simgrad.jax.world(lambda x: x, state=np.zeros(2))
    np.testing.assert_array_equal(client.rollout(identity, steps=2, initial=np.array([[3.0, 4.0]]), policy="f64").state, [[3.0, 4.0]])


def test_examples_that_are_no_arrays_and_integers_that_become_reals_say_what_to_give():
    class Plain:
        x = 1.0

    for leaf, said in ((jnp.tanh, "params f is a function, and no array: split a module"), (Plain(), "params f is a Plain, and no array")):
        with pytest.raises(TypeError, match=said):
            simgrad.jax.world(lambda state, params: state, state={"x": 1.0}, params={"f": leaf})
    with pytest.raises(simgrad.jax.JaxWorldError, match="int32.* becomes float64.*give a real in the example, 1.0 for 1"):
        simgrad.jax.world(lambda state: {"x": 0.5 * state["x"]}, state={"x": 1})


@jax.custom_gradient
def doubled_with_its_own_derivative(x):
    return 2 * x, lambda cotangent: jnp.cos(x) * cotangent


safe_sqrt = jax.custom_vjp(jnp.sqrt)
safe_sqrt.defvjp(
    lambda x: (jnp.sqrt(x), x),
    lambda x, cotangent: (jnp.where(x > 0, cotangent / (2 * jnp.sqrt(jnp.where(x > 0, x, 1.0))), 7 * cotangent),),
)


@pytest.mark.parametrize("function", [doubled_with_its_own_derivative, safe_sqrt])
def test_an_authors_rule_is_kept_whosever_the_function_is(client, function):
    x = np.array([0.0, 0.5, 2.0])
    answer = client.gradient(world_of(function), steps=1, initial={"x": x}, objective="x", policy="f64")
    np.testing.assert_allclose(answer.initial["x"], jax.vmap(jax.grad(function))(x), rtol=1e-14)


def _halved_until_small(x, **params):
    """x halved until it is at most 1: a sawtooth, of which the rule below gives the slope of 1 / x."""
    return lax.while_loop(lambda y: y > 1, lambda y: 0.5 * y, x)


def primitive_with(rule, name="halved_until_small"):
    made = jax.extend.core.Primitive(name)
    made.def_impl(_halved_until_small)
    made.def_abstract_eval(lambda aval, **params: aval)
    ad.defjvp2(made, rule)
    return made


def test_a_primitive_with_an_implementation_has_the_derivative_of_its_rule(client):
    halved = primitive_with(lambda tangent, found, x: -tangent * found * found / x)
    world = world_of(lambda x: 3 * halved.bind(x * x), max_iter={"_halved_until_small": 40})
    x = np.array([0.5, 3.0, -7.0])
    answer = client.gradient(world, steps=1, initial={"x": x}, objective="x", policy="f64")
    found = np.array([0.25, 0.5625, 0.765625])
    np.testing.assert_array_equal(answer.values, 3 * found)
    np.testing.assert_allclose(answer.initial["x"], 3 * -found * found / (x * x) * 2 * x, rtol=1e-14)


@pytest.mark.parametrize("rule", [lambda tangent, found, x: tangent * jax.scipy.special.i0e(x), lambda *given: given[7]])
def test_a_primitive_whose_rule_is_not_lowered_is_warned_of(client, rule):
    halved = primitive_with(rule)
    with pytest.warns(UserWarning, match="edges_test.py:[0-9]+: 'halved_until_small' has the derivative of its operations"):
        world = world_of(halved.bind, max_iter={"_halved_until_small": 40})
    answer = client.gradient(world, steps=1, initial={"x": np.array([0.5, 3.0])}, objective="x", policy="f64")
    np.testing.assert_array_equal(answer.initial["x"], [1.0, 0.25])


def test_nothing_is_kept_of_a_rule_that_is_not_lowered(client):
    def rule(tangent, found, x):
        x = eqx.error_if(x, x > 1, "only in the rule")
        return tangent * jax.scipy.special.i0e(x)

    with pytest.warns(UserWarning, match="'halved_until_small' has the derivative of its operations"):
        world = world_of(primitive_with(rule).bind, max_iter={"_halved_until_small": 40})
    answer = client.rollout(world, steps=1, initial={"x": np.array([0.5, 3.25])}, policy="f64")
    assert not answer.halted
    np.testing.assert_array_equal(answer.state["x"], [0.5, 0.8125])


def test_erf_inv_is_nan_outside_its_domain(client):
    found = values_of(client, jax.scipy.special.erfinv, [1.5, -1.5, 1.0, -1.0, 0.3])
    np.testing.assert_array_equal(np.isnan(found), [True, True, False, False, False])
    assert found[2:4].tolist() == [np.inf, -np.inf]


def test_a_power_by_a_computed_exponent_keeps_the_sign_of_zero(client):
    world = simgrad.jax.world(
        lambda state, power: {"x": state["x"] ** power}, state={"x": 0.0}, params=3.0, objective={"x": lambda s: s["x"]})  # fmt: skip
    x = np.array([-0.0, -np.inf, -1e-200, 2.0])
    found = client.rollout(world, steps=1, initial={"x": x}, policy="f64").state["x"]
    assert found.tobytes() == np.power(x, 3.0).tobytes()
    answer = client.gradient(world, steps=1, initial={"x": 2.0}, objective="x", policy="f64")
    assert answer.params == pytest.approx(8 * np.log(2), rel=1e-14)
    assert answer.initial["x"] == pytest.approx(12, rel=1e-14)


def test_a_vmapped_loop_turns_as_often_as_the_largest_of_constant_limits(client):
    limits = jnp.arange(5)

    def step(state, factor):
        power = lambda x, n: lax.fori_loop(0, n, lambda i, y: y * factor, x)
        falling = lambda x, n: lax.fori_loop(n, 4, lambda i, y: y + factor, x)
        return {"x": jax.vmap(falling)(jax.vmap(power)(state["x"], limits), limits)}

    world = simgrad.jax.world(step, state={"x": np.ones(5)}, params=3.0)
    (found,) = client.rollout(world, steps=1, policy="f64").state["x"]
    np.testing.assert_array_equal(found, 3.0 ** np.arange(5) + 3.0 * (4 - np.arange(5)))


def counting(goes_on, start, step):
    """A function that takes a factor off x while goes_on(count) holds; its counter is `start`, and `step` more each turn."""
    return lambda x: lax.while_loop(lambda c: goes_on(c[0]), lambda c: (c[0] + step, 0.99 * c[1]), (start, x))[1]


# Loops whose counters meet their limit otherwise than by counting up to it.
WRAPPING = {
    "u8": counting(lambda k: k < 210, np.uint8(3), np.uint8(100)),
    "u8 and a test": counting(lambda k: (k < 210) & (k != 1), np.uint8(3), np.uint8(100)),
    "u8 down": counting(lambda k: k > 20, np.uint8(155), np.uint8(-100 % 256)),
    "u32": counting(lambda k: k != 3, np.uint32(3 + 2**31), np.uint32(2**31)),
    "i32": counting(lambda k: k > 0, np.int32(1), np.int32(2**30)),
    "i32 as u8": counting(lambda k: k.astype(jnp.uint8) < 210, np.int32(3), 100),
    "i64 as i32": counting(lambda k: k.astype(jnp.int32) < 5, np.int64(2**32 - 3), 1),
    "u32 as i32": counting(lambda k: k.astype(jnp.int32) < 5, np.uint32(2**32 - 3), np.uint32(1)),
    "i32 as u32": counting(lambda k: k.astype(jnp.uint32) < 5, np.int32(-2), 1),
    "i32 kept as u8": lambda x: lax.while_loop(
        lambda c: c[0] < 210, lambda c: ((c[0] + 100).astype(jnp.uint8).astype(jnp.int32), 0.99 * c[1]), (np.int32(3), x)
    )[1],
    "u8 beside another": lambda x: lax.while_loop(
        lambda c: (c[0] < 100) | (c[1] < 9), lambda c: (c[0] + np.uint8(60), c[1] + 1, 0.99 * c[2]), (np.uint8(0), 0, x)
    )[2],
    "u8 of a batch": lambda x: jax.vmap(counting(lambda k: k < 210, np.uint8(3), np.uint8(100)))(jnp.stack([x, 2 * x]))[1],
}


@pytest.mark.parametrize("name", WRAPPING)
def test_a_counter_that_wraps_or_is_cut_bounds_no_loop(client, name):
    function, x = WRAPPING[name], np.array([0.7])
    expected = function(jnp.asarray(x[0]))
    with pytest.raises(simgrad.jax.JaxWorldError, match="a while_loop without a bound"):
        world_of(function)
    world = simgrad.jax.world(lambda s: {"x": function(s["x"])}, state={"x": 0.0}, max_iter={"<lambda>": 50})
    assert client.rollout(world, steps=1, initial={"x": x}, policy="f64").state["x"].tolist() == [expected]


PAIRS = {
    "hypot": jnp.hypot,
    "product": lambda x, y: jnp.minimum(x, y) * jnp.maximum(x, y),
    "of larger first": lambda x, y: jnp.exp(jnp.maximum(x, y)) * jnp.exp(2 * x * y + jnp.minimum(x, y)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_larger_and_the_smaller_of_two_that_are_equal_have_the_derivatives_of_both(client, name):
    function = PAIRS[name]
    step = lambda s: {"x": s["x"] * 1.5, "y": s["y"] * 1.5, "f": function(s["x"], s["y"])}
    world = simgrad.jax.world(step, state={"x": 0.0, "y": 0.0, "f": 0.0}, objective={"f": lambda s: s["f"]})
    x, y = np.array([1.0, 1.0, -1.0, 2.0, 0.3]), np.array([1.0, -1.0, -1.0, 1.0, 0.3])
    start = {"x": x, "y": y, "f": np.zeros(5)}
    found = client.gradient(world, steps=1, initial=start, objective="f", policy="f64").initial
    wanted = jax.vmap(jax.grad(function, (0, 1)))(x, y)
    for mine, theirs in zip((found["x"], found["y"]), wanted):
        np.testing.assert_allclose(mine, theirs, rtol=1e-14)


TABLE = np.array([0.1, 0.2, 0.3])
OF_NUMPY = {
    "a factor": lambda y: y * jnp.asarray(TABLE),
    "in a function of its own": lambda y: jax.jit(lambda z: z * jnp.asarray(TABLE))(y),
    "in a branch": lambda y: lax.cond(y[0] > 0, lambda z: z * TABLE, lambda z: z, y),
    "a carry": lambda y: lax.scan(lambda c, _: (c * y, None), jnp.asarray(TABLE), None, 1)[0],
    "a matrix of lineax": lambda y: lx.linear_solve(lx.MatrixLinearOperator(jnp.asarray(np.diag(1 / TABLE))), y, lx.LU()).value,
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_a_step_that_ran_in_f32_before_is_the_same_world(client, name):
    step = lambda state: {"y": OF_NUMPY[name](state["y"])}
    start = {"y": np.ones(3)}
    with jax.enable_x64(False):
        jax.jit(step)(start)
        world = simgrad.jax.world(step, state=start)
        assert simgrad.jax.check(world, client, steps=1).worst <= 1e-16
    found = client.rollout(world, steps=1, initial={"y": np.ones((1, 3))}, policy="f64").state["y"]
    np.testing.assert_allclose(found[0], TABLE, rtol=1e-15)


def test_a_table_of_ones_own_in_f32_clears_jaxs_caches_once(monkeypatch):
    clears = []
    monkeypatch.setattr(jax, "clear_caches", lambda clear=jax.clear_caches: clears.append(clear()))
    narrow, places = np.array([0.1, 0.7, 0.31], np.float32), np.array([2, 0, 1], np.int32)
    with jax.enable_x64(False):
        simgrad.jax.world(lambda s: {"y": s["y"][places] * 0.5}, state={"y": np.ones(3)})
        assert clears == []
        for _ in range(3):
            simgrad.jax.world(lambda s: {"y": s["y"] * jnp.asarray(narrow)}, state={"y": np.ones(3)})
    assert len(clears) == 1


WHOLE_POWERS = {
    "a polynomial": lambda x, n: jnp.sum(jnp.array([0.1, 2.0, 3.0, 4.0]) * jnp.power(x, jnp.arange(4))),
    "of several bases": lambda x, n: jnp.sum((x + jnp.array([0.0, 1.0, -0.5])) ** jnp.array([-1 + 1, 2, 0])),
    "by a state": lambda x, n: x**n + 2.0 * x,
}


@pytest.mark.parametrize("name", WHOLE_POWERS)
def test_whole_powers_have_the_derivatives_of_jax_at_bases_of_nothing(client, name):
    function = WHOLE_POWERS[name]
    step = lambda s: {"x": function(s["x"], s["n"]), "n": (s["n"] + 1) % 3}
    world = simgrad.jax.world(step, state={"x": 0.0, "n": np.int32(0)}, objective={"x": lambda s: s["x"]})
    x, n = np.array([0.0, 0.0, 0.0, 0.5, -0.5, -1.0]), np.array([0, 1, 2, 0, 2, 1], np.int32)
    answer = client.gradient(world, steps=1, initial={"x": x, "n": n}, objective="x", policy="f64")
    expected = jax.vmap(jax.grad(function))(x, n)
    np.testing.assert_allclose(answer.initial["x"], expected, rtol=1e-14)
    assert answer.ok.all()


TOO_LONG = {
    "a fori_loop": (lambda x, n: lax.fori_loop(0, 200_000, lambda _, y: 0.9 * y, x), "a loop of 200000 turns"),
    "a scan": (lambda x, n: lax.scan(lambda y, _: (0.9 * y, None), x, None, 100_001)[0], "a loop of 100001 turns"),
    "a range": (
        lambda x, n: lax.fori_loop(0, jnp.minimum(n, 200_000), lambda _, y: 0.9 * y, x),
        "lets it turn 200000 times.* max_iter=",
    ),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_loop_longer_than_any_is_refused_where_it_is_traced(name):
    function, words = TOO_LONG[name]
    step = lambda s: {"x": function(s["x"], s["n"]), "n": s["n"] + 1}
    with pytest.raises(simgrad.jax.JaxWorldError, match=words):
        simgrad.jax.world(step, state={"x": 0.0, "n": np.int32(0)})


def test_a_long_loop_of_unknown_length_may_be_given_a_cap(client):
    function, _ = TOO_LONG["a range"]
    step = lambda s: {"x": function(s["x"], s["n"]), "n": s["n"] + 1}
    world = simgrad.jax.world(step, state={"x": 0.0, "n": np.int32(0)}, max_iter={"<lambda>": 50})
    start = {"x": np.array([1.0]), "n": np.array([3], np.int32)}
    assert client.rollout(world, steps=1, initial=start, policy="f64").state["x"].tolist() == [0.9 * 0.9 * 0.9]


def test_a_counter_that_wraps_is_a_place_outside(client):
    def read(x):
        turn = lambda c: (c[0] - jnp.uint32(1), c[1] + x.at[c[0]].get(mode="clip"), c[2] + 1)
        return lax.while_loop(lambda c: c[2] < 4, turn, (jnp.uint32(1), 0.0, 0))[1] * jnp.ones(5)

    x = np.arange(1.0, 6.0)
    assert values_of(client, read, x[None])[0].tolist() == read(jnp.asarray(x)).tolist() == [2 + 1 + 5 + 5] * 5


@pytest.mark.parametrize(
    "function",
    [
        counting(lambda k: k.astype(jnp.uint8) < 210, np.int32(0), 25),
        counting(lambda k: k < 250, np.uint8(0), np.uint8(25)),
        counting(lambda k: k.astype(jnp.int64) <= 9, np.int32(0), 1),
        counting(lambda k: k.astype(jnp.int32) < 9, np.int64(0), 1),
    ],
)
def test_a_conversion_that_changes_no_count_leaves_the_bound(function):
    codes = [op.code for op in world_of(function).program.step.ops]
    assert "for" in codes and "while" not in codes


def test_a_format_that_the_step_fixes_is_told_with_its_line(client):
    def step(state):
        return {"x": lax.fori_loop(0, 3, lambda i, y: y + state["x"], jnp.zeros(2, jnp.float32))}

    with pytest.raises(simgrad.jax.JaxWorldError, match=r"edges_test.py:\d+.*float64, in which a world is traced"):
        simgrad.jax.world(step, state={"x": np.ones(2, np.float32)})


def narrow_reals_and_integers(state):
    def turn(carry, _):
        carry["a"], carry["k"] = carry["a"] + state["x"], carry["k"] + jnp.sum(jnp.ones(2, int))
        return carry, None

    start = {"a": jnp.zeros((), jnp.float32), "b": jnp.zeros(3), "k": jnp.int32(0)}
    return {"n": state["n"], "x": lax.scan(turn, start, length=3)[0]["a"]}


MIXED_WIDTHS = {
    "select": lambda s: {"n": lax.select(s["n"] > 3, jnp.argmax(jnp.ones(3)), s["n"]), "x": s["x"]},
    "fori_loop": lambda s: {"n": lax.fori_loop(0, 3, lambda k, n: n + jnp.sum(jnp.ones(2, int)), s["n"]), "x": s["x"]},
    "cond": lambda s: {"n": lax.cond(s["n"] > 3, lambda: jnp.argmax(jnp.ones(3)), lambda: s["n"]), "x": s["x"]},
    "scan": narrow_reals_and_integers,
}
SAID_OF_WIDTHS = {
    "select": r"\(lax.select requires .* int32, int64\)",
    "fori_loop": r"\(.*int32\[\].*int64\[\].*\)",
    "cond": r"\(.*true_fun has type int64\[\].*int32\[\].*\)",
    "scan": r"float64.*narrower.*\(.*carry\['a'\] has type float32\[\].*; .*carry\['k'\] has type int32\[\].*param_dtype",
}


@pytest.mark.parametrize("name", MIXED_WIDTHS)
def test_integers_of_two_widths_are_told_with_line_leaves_and_what_to_write(name):
    state = {"n": np.int32(0), "x": np.float32(1)}
    with jax.enable_x64(False):
        jax.jit(MIXED_WIDTHS[name])(state)  # JAX runs it
    with pytest.raises(simgrad.jax.JaxWorldError) as caught:
        simgrad.jax.world(MIXED_WIDTHS[name], state=state)
    said = str(caught.value)
    assert re.search(r"edges_test.py:\d+: .*int64, which an integer without a dtype has in a world, meets int32", said)
    assert re.search(SAID_OF_WIDTHS[name], said)
    assert "jnp.sum(x, dtype=jnp.int32)" in said
    assert "jax_enable_x64" not in said


def test_an_integer_with_a_dtype_meets_a_state_of_32_bits():
    def step(state):
        return {"n": lax.fori_loop(0, 3, lambda k, n: n + jnp.sum(jnp.ones(2, int), dtype=jnp.int32), state["n"])}

    assert simgrad.jax.world(step, state={"n": np.int32(0)}).report().state == ("n",)


def test_a_cloned_key_is_its_key(client):
    def step(state):
        drawn = jax.random.uniform(jax.random.clone(state["key"]))
        return {"key": jax.random.split(state["key"])[0], "x": 0.0 * state["x"] + drawn}

    key = jax.random.key(3)
    world = simgrad.jax.world(step, state={"key": key, "x": 0.0})
    assert client.rollout(world, steps=1, policy="f64").state["x"] == jax.random.uniform(key)


def masked(keeps_finite):
    """A step that divides by r where r is not 0; with `keeps_finite` there alone."""

    def step(state):
        r = state["r"]
        divisor = jnp.where(r > 0, r, 1.0) if keeps_finite else r
        return {"r": 0.5 * r, "x": state["x"] + jnp.where(r > 0, state["x"] / divisor, 0.0)}

    return simgrad.jax.world(step, state={"r": 2.0, "x": 1.0}, objective={"end": lambda state: state["x"]})


def test_a_number_that_a_mask_leaves_out_counts_as_non_finite_unless_a_second_mask_keeps_it_finite(client):
    work = dict(steps=2, initial={"r": np.array([2.0, 0.0]), "x": np.ones(2)}, objective="end", policy="f64")
    once, twice = (client.gradient(masked(keeps_finite), **work) for keeps_finite in (False, True))
    assert once.ok.tolist() == [True, False] and twice.ok.all()
    for result in (once, twice):
        assert result.state["x"].tolist() == [3.0, 1.0] and result.initial["x"].tolist() == [3.0, 1.0]
    [born] = once.certificates
    assert born.operation == "div" and "edges_test.py:" in str(born)
    left = client.gradient(masked(False), **work, reduction="finite_only")
    assert left.left_out == 1 and left.initial["x"].tolist() == [3.0, 0.0]
    stopped = client.gradient(masked(False), **{**work, "policy": sg.Policy("f64").nonfinite("stop")})
    assert stopped.health[0].stopped and stopped.health[0].step == 0
    assert client.gradient(masked(True), **work, reduction="finite_only").left_out == 0


ZEROS = np.array([0.0, -0.0, 0.0, -0.0])


def test_rows_that_differ_in_the_sign_of_a_zero_are_scanned_one_by_one(client):
    def step(state):
        signs, _ = lax.scan(lambda c, z: (c + jnp.copysign(1.0, z), None), state["signs"], jnp.asarray(ZEROS))
        turns, _ = lax.scan(lambda c, z: (c + jnp.arctan2(z, -1.0), None), state["turns"], jnp.asarray(ZEROS))
        return {"signs": signs, "turns": turns}

    world = simgrad.jax.world(step, state={"signs": 1.0, "turns": 0.0})
    r = client.rollout(world, steps=1, initial={"signs": 1.0, "turns": 0.0}, policy="f64")
    assert r.state["signs"][0] == 1.0 and r.state["turns"][0] == 0.0


@pytest.mark.parametrize(
    "function",
    [jnp.cumsum, lambda z: jnp.maximum(z, 0.0), lambda z: jnp.maximum(0.0, z), lambda z: jnp.minimum(z, 0.0),
     lambda z: jnp.minimum(-0.0, z), lambda z: jnp.clip(z, 0.0)],
    ids=["cumsum", "max", "max, turned", "min", "min, turned", "clip"])  # fmt: skip
def test_zeros_of_what_is_known_have_the_signs_of_what_runs(client, function):
    def step(state):
        told = {"known": 1 / function(jnp.asarray(ZEROS)), "run": 1 / function(state["z"])}
        return {"n": state["n"] + 1, "z": state["z"] + 0 * state["n"] * state["z"]}, told

    start = {"n": 0.0, "z": ZEROS}
    world = simgrad.jax.world(step, state=start)
    r = client.rollout(world, steps=1, initial=start, policy="f64", record=["known", "run"])
    expected = np.asarray(1 / function(jnp.asarray(ZEROS)))
    for name in ("known", "run"):
        np.testing.assert_array_equal(r.trajectory[name][0, 0], expected, err_msg=name)
