"""Products at places of an array: their gradients, where a place comes several times."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import simgrad.jax

X = np.array([1.5, -0.7, 0.0, 1.1, 2.3, -1.9, 0.4])
GIVEN = np.array([2.0, 0.0, -3.0])
PLACES = np.array([0, 2, 0, 1, 0, 2, 0])


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


def world_of(function):
    """A world of one cost, with the function's result in it; its state, the weights of the cost, and all warnings."""
    state = {"x": np.zeros(3), "k": np.arange(3, dtype=np.int32)}

    def step(state, params):
        return {"x": -state["x"] + params[0], "k": state["k"] + 1}, {"y": function(state, params)}

    shape = jax.eval_shape(function, state, jnp.asarray(X)).shape
    weights = np.random.default_rng(0).normal(size=shape)
    cost = {"y": {"stage": lambda state, params: jnp.sum(weights * function(state, params))}}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        world = simgrad.jax.world(step, state=state, params=X, objective=cost)
    return world, state, weights, [str(w.message) for w in warned]


def of_products(places, factors):
    """The products at three places, each factor after the other."""
    made = jnp.asarray(GIVEN)
    for place, factor in zip(places, factors):
        made = made.at[place].set(made[place] * factor)
    return made


KNOWN = {
    "at": (lambda state, x: jnp.asarray(GIVEN).at[PLACES].multiply(x), lambda x: of_products(PLACES, x)),
    "segments": (
        lambda state, x: jax.ops.segment_prod(x, PLACES, num_segments=3),
        lambda x: jnp.stack([x[0] * x[2] * x[4] * x[6], x[3], x[1] * x[5]]),
    ),
    "windows": (
        lambda state, x: jnp.ones((2, 3)).at[np.array([1, 1])].multiply(jnp.reshape(x[:6], (2, 3))),
        lambda x: jnp.stack([jnp.ones(3), x[:3] * x[3:6]]),
    ),
    "outside": (
        lambda state, x: jnp.asarray(GIVEN).at[PLACES * 2].multiply(x, mode="drop"),
        lambda x: jnp.asarray(GIVEN).at[0].multiply(x[0] * x[2] * x[4] * x[6]).at[2].multiply(x[3]),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_places_that_come_several_times_have_the_gradient_of_the_product(client, name):
    function, product = KNOWN[name]
    world, state, weights, warned = world_of(function)
    assert not warned
    answer = client.gradient(world, steps=1, initial=state, params=X, objective="y", policy="f64", record=["y"])
    np.testing.assert_array_equal(answer.trajectory["y"][0, 0], function(state, X))
    expected = jax.grad(lambda x: jnp.sum(weights * product(x)))(jnp.asarray(X))
    np.testing.assert_allclose(answer.params, expected, rtol=1e-14, atol=1e-15)


def test_factors_of_known_places_are_multiplied_in_their_order(client):
    world, state, _, _ = world_of(KNOWN["at"][0])
    answer = client.rollout(world, steps=1, initial=state, params=X, policy="f32", record=["y"])
    expected = np.float32(GIVEN)
    for place, factor in zip(PLACES, np.float32(X)):
        expected[place] *= factor
    np.testing.assert_array_equal(np.float32(answer.trajectory["y"][0, 0]), expected)


def at_computed(state, x):
    return jnp.asarray(GIVEN).at[state["k"] % 2].multiply(x[:3])


def rows_at_computed(state, x):
    return jnp.ones((2, 3)).at[0, state["k"]].multiply(x[:3])


@pytest.mark.parametrize("function", [at_computed, rows_at_computed])
def test_computed_places_that_may_come_several_times_are_warned_of(client, function):
    """JAX has no gradient of these."""
    world, state, _, warned = world_of(function)
    line = f"products_at_test.py:{function.__code__.co_firstlineno + 1}"
    assert len(warned) == 1
    assert warned[0].startswith(f"{line}: the gradient of 'scatter-mul' by its factors is wrong where")
    assert "its factors is right for distinct places alone" in str(world.report())
    answer = client.rollout(world, steps=1, initial=state, params=X, policy="f64", record=["y"])
    np.testing.assert_array_equal(answer.trajectory["y"][0, 0], function(state, X))


@pytest.mark.parametrize(
    "function",
    [
        lambda state, x: jnp.asarray(GIVEN).at[state["k"]].multiply(x[:3], unique_indices=True),
        lambda state, x: jnp.asarray(GIVEN).at[state["k"][1]].multiply(x[0]),
        lambda state, x: x[:3].at[state["k"] % 2].multiply(2.0),
        lambda state, x: jax.vmap(lambda row, k, y: row.at[k].multiply(y))(jnp.ones((3, 2)), state["k"] % 2, x[:3]),
    ],
)
def test_computed_places_that_are_distinct_or_take_constant_factors_are_not_warned_of(client, function):
    world, state, weights, warned = world_of(function)
    assert not warned
    answer = client.gradient(world, steps=1, initial=state, params=X, objective="y", policy="f64")
    cost = lambda x: jnp.sum(weights * function(state, jnp.asarray(x)))
    expected = [(cost(X + e) - cost(X - e)) / 2e-6 for e in 1e-6 * np.eye(len(X))]
    np.testing.assert_allclose(answer.params, expected, atol=1e-8)
