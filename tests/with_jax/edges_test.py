"""Values and derivatives of JAX where a formula has a kink, leaves a format, or meets a NaN; what is refused there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simgrad.jax
from jax import lax

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
        (lambda x: x.at[1].apply(jnp.sin), "write x.at[i].set(f(x[i]))"),
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
