"""Questions for a NaN: they are no tests, whose margins would be 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import simgrad.jax
from simgrad.program_lines import operations


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


def rooted(guard):
    """Heron's method, with a guard in the test of its loop."""

    def step(state):
        def goes_on(carried):
            y, before, turns = carried
            error = jnp.abs(y - before)
            return (error > 1e-3) & (turns < 50) & guard(error)

        def turn(carried):
            y, _, turns = carried
            return 0.5 * (y + 2.0 / y), y, turns + 1

        y, _, _ = lax.while_loop(goes_on, turn, (state["x"], jnp.asarray(0.0), 0))
        return {"x": 0.9 * y + 0.2}

    return simgrad.jax.world(step, state={"x": 3.0})


@pytest.mark.parametrize("guard", [lambda e: ~jnp.isnan(e), lambda e: e == e, lambda e: ~(e != e), lambda e: e <= e])
def test_a_guard_against_nan_leaves_the_margin_of_a_loop(client, guard):
    plain = client.rollout(rooted(lambda error: True), steps=4, initial={"x": 3.0}, policy="f64")
    guarded = client.rollout(rooted(guard), steps=4, initial={"x": 3.0}, policy="f64")
    assert list(guarded.events) == list(plain.events)
    [expected], [found] = plain.sites.values(), guarded.sites.values()
    np.testing.assert_array_equal(found.margin, expected.margin)
    np.testing.assert_array_equal(found.iterations_max, expected.iterations_max)
    assert (found.margin != 0).all() and list(found.margin_test) == list(expected.margin_test)


def test_what_a_test_and_a_question_for_a_nan_read_has_the_role_of_the_test():
    step = rooted(lambda error: ~jnp.isnan(error)).program.step
    roles = {op.code: op.role for op in operations_of(step) if op.code in ("abs", "gt", "sign", "is_finite")}
    assert set(roles.values()) == {"termination"}, roles


def operations_of(region):
    for op in region.ops:
        yield op
        for inner in op.regions:
            yield from operations_of(inner)


POINTS = jnp.array([0.0, 1.0, 2.0, 3.0])
WITH_QUESTIONS = {
    "interp": lambda x: jnp.interp(x, POINTS, POINTS**2),
    "searchsorted": lambda x: x + jnp.searchsorted(POINTS, x),
    "median": lambda x: x + jnp.median(x),
    "quantile": lambda x: x + jnp.quantile(x, 0.3),
    "nanmax": lambda x: x + jnp.nanmax(x),
    "nan_to_num": jnp.nan_to_num,
}


@pytest.mark.parametrize("name", WITH_QUESTIONS)
def test_functions_that_ask_for_nan_add_no_test_at_0_ulps(client, name):
    x = np.array([0.31, 1.47, 2.53])
    world = simgrad.jax.world(lambda state: {"x": WITH_QUESTIONS[name](state["x"])}, state={"x": x})
    compared = [op for op in operations(world.program) if op.code in ("eq", "ne", "lt", "le", "gt", "ge")]
    assert all(op.operands[0] != op.operands[1] for op in compared)
    answer = client.rollout(world, steps=1, initial={"x": x}, policy="f64")
    assert all((event.margin_ulps != 0).all() for event in answer.events.values()), answer.events


def test_a_comparison_with_itself_holds_as_in_jax(client):
    def compared(x):
        held = [x < x, x <= x, x > x, x >= x, x == x, x != x]
        return jnp.stack(held).astype(float)

    x = np.array([0.3, np.nan, -np.inf, -0.0])
    world = simgrad.jax.world(lambda state: {"x": state["x"] * 1.0, "c": 0 * state["c"] + compared(state["x"])},
                              state={"x": x, "c": np.zeros((6, 4))})  # fmt: skip
    found = client.rollout(world, steps=1, initial={"x": x, "c": np.zeros((6, 4))}, policy="f64").state["c"][0]
    np.testing.assert_array_equal(found, compared(jnp.asarray(x)))
