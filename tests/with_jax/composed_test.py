"""A step of JAX as the world that a controller closes."""

import jax
import jax.numpy as jnp
import numpy as np

import simgrad as sg
import simgrad.jax


def step(state, control, params):
    v = state["v"] + 0.1 * (control["push"] - params["k"] * state["x"])
    return {"x": state["x"] + 0.1 * v, "v": v}


def cost(state):
    return jnp.sum(state["x"] ** 2)


@sg.controller
def law(x, v, gain: sg.Param[2]):
    return np.tanh(gain * x - v)


def closed(x, v, gain, k=3.0):
    state = {"x": x, "v": v}
    for _ in range(20):
        push = jnp.tanh(gain * state["x"] - state["v"])
        state = step(state, {"push": push}, {"k": k})
    return cost(state)


def test_a_step_of_jax_is_closed_by_a_controller(client):
    state = {"x": np.array([0.5, -1.0]), "v": np.zeros(2)}
    world = simgrad.jax.world(
        step, state=state, control={"push": np.zeros(2)}, params={"k": 3.0}, objective={"end": cost}
    )
    gain = np.array([0.7, -0.4])
    g = client.gradient(
        sg.compose(world, law),
        steps=20,
        initial={"x": state["x"]},
        params={"gain": gain, "k": 3.0},
        objective="end",
        policy="f64",
    )
    with jax.enable_x64(True):
        value, slopes = jax.value_and_grad(closed, (0, 2, 3))(state["x"], state["v"], gain, 3.0)
        np.testing.assert_allclose(g.value, value, rtol=1e-12)
        for mine, theirs in zip((g.initial["x"], g.params["gain"], g.params["k"]), slopes):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11)
