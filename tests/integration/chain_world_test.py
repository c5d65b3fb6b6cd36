"""Each step of simgrad.worlds.chain is the backward Euler step that it should be."""

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg

PARAMS = {"stiffness": 200.0, "rest": 0.1, "mass": 0.05, "gravity": 9.81}


def springs(x, anchor):
    return np.diff(np.concatenate([np.broadcast_to(anchor, x[..., :1, :].shape), x], -2), axis=-2)


def acceleration(x, anchor, stiffness, rest, mass, gravity):
    d = springs(x, anchor)
    pull = stiffness * (1 - rest / np.linalg.norm(d, axis=-1, keepdims=True)) * d
    on_each = -pull
    on_each[..., :-1, :] += pull[..., 1:, :]
    on_each[..., -1] -= mass * gravity
    return on_each / mass


def held_sideways(masses, dimensions, rest=0.1):
    """Straight, a fifth longer than at rest, sloping down, a little bent."""
    along = np.arange(1.0, masses + 1)[:, None] * np.eye(dimensions)[0]
    bend = np.random.default_rng(4).normal(0, 0.02, along.shape)
    return 1.2 * max(rest, 0.1) * (along + bend)


def linear_system(masses, h):
    """A, with A y = x + h v - h^2 g + (h^2 k/m anchor at the first mass) for a step to y, rest = 0."""
    k, m = PARAMS["stiffness"], PARAMS["mass"]
    both = 2 * np.eye(masses) - np.eye(masses, k=1) - np.eye(masses, k=-1)
    both[-1, -1] = 1
    return np.eye(masses) + h * h * k / m * both, h * h * k / m


@pytest.mark.parametrize("masses, dimensions", [(1, 1), (2, 3), (7, 2), (20, 3)])
def test_springs_without_rest_length_take_the_step_in_closed_form(client, masses, dimensions):
    h, steps = 0.02, 25
    anchor = np.linspace(0.3, -0.2, dimensions)
    start = held_sideways(masses, dimensions)
    velocity = np.random.default_rng(1).normal(0, 1, start.shape)
    r = client.rollout(
        sg.worlds.chain(masses, dimensions=dimensions, h=h, tol=1e-13, cg_tol=1e-13),
        steps=steps,
        policy="f64",
        initial={"x": start, "v": velocity},
        params={**PARAMS, "rest": 0.0, "anchor": anchor},
        record=["x", "v"],
    )
    matrix, scale = linear_system(masses, h)
    x, v = start, velocity
    for step in range(1, steps + 1):
        right = x + h * v
        right[:, -1] -= h * h * PARAMS["gravity"]
        right[0] += scale * anchor
        y = np.linalg.solve(matrix, right)
        x, v = y, (y - x) / h
        np.testing.assert_allclose(r.trajectory["x"][0, step], x, rtol=0, atol=1e-11)
        np.testing.assert_allclose(r.trajectory["v"][0, step], v, rtol=0, atol=1e-9)
    assert r.sites["newton"].iterations_max.max() <= 2
    assert r.sites["cg"].iterations_max.max() <= masses + 2  # as many as there are eigenvalues


def test_the_gradient_of_a_linear_step_is_a_row_of_the_inverse(client):
    masses, h = 6, 0.02
    x = held_sideways(masses, 2)
    g = client.gradient(
        sg.worlds.chain(masses, h=h, tol=1e-13, cg_tol=1e-13),
        steps=1,
        policy="f64",
        initial={"x": x, "v": 0 * x},
        params={**PARAMS, "rest": 0.0, "anchor": [0.0, 0.0]},
        objective="tip",
    )
    matrix, scale = linear_system(masses, h)
    row = np.linalg.inv(matrix)[-1]
    np.testing.assert_allclose(g.initial["x"][:, 1], row, rtol=1e-10)
    np.testing.assert_allclose(g.initial["v"][:, 1], h * row, rtol=1e-10)
    np.testing.assert_allclose(g.initial["x"][:, 0], 0, atol=1e-12)
    np.testing.assert_allclose(g.params["anchor"], [0, scale * row[0]], rtol=1e-10, atol=1e-12)
    assert float(g.params["gravity"]) == pytest.approx(-h * h * row.sum(), rel=1e-10)


@pytest.mark.parametrize("h, searched", [(0.01, False), (0.2, True)])
def test_springs_with_a_rest_length_solve_backward_euler(client, h, searched):
    """v' = v + h a(x + h v'), also from a tangle, where full steps of Newton would rise."""
    random = np.random.default_rng(11)
    x = random.normal(0, 0.3, (8, 6, 3)) if searched else held_sideways(6, 3)[None]
    r = client.rollout(
        sg.worlds.chain(6, dimensions=3, h=h),
        steps=10,
        policy="f64",
        initial={"x": x, "v": 5 * random.normal(0, 0.3, x.shape)},
        params=PARAMS,
        record=["x", "v"],
    )
    assert r.ok.all() and r.sites["newton"].reasons.sum(0)[1:].sum() == 0  # all converged
    assert (r.sites["search"].iterations_max.max() > 0) == searched
    assert r.sites["search"].reasons.sum(0)[1:].sum() == 0
    x, v = r.trajectory["x"], r.trajectory["v"]
    residual = v[:, 1:] - v[:, :-1] - h * acceleration(x[:, 1:], np.zeros(3), **PARAMS)
    assert np.abs(residual * h).max() < 2e-10  # `tol`, a length
    for name in ("newton", "cg", "search"):
        assert "chain.py" in r.sites[name].line


def test_f32_comes_to_its_tolerance(client):
    x = held_sideways(6, 2)
    inputs = dict(steps=50, initial={"x": x, "v": 0 * x}, params=PARAMS)
    narrow = client.rollout(sg.worlds.chain(6, h=0.02, tol=1e-6), policy="f32", **inputs)
    wide = client.rollout(sg.worlds.chain(6, h=0.02), policy="f64", **inputs)
    for site in narrow.sites.values():
        assert site.reasons.sum(0)[1:].sum() == 0, site.site
    np.testing.assert_allclose(narrow.state["x"], wide.state["x"], atol=1e-4)


def test_a_cap_ends_newton_and_is_reported(client):
    x = held_sideways(6, 2)
    r = client.rollout(
        sg.worlds.chain(6, h=0.1, caps=(1, 3, 20)),
        steps=1,
        policy="f64",
        initial={"x": x, "v": 0 * x},
        params=PARAMS,
    )
    assert r.sites["newton"].reasons.sum(0).tolist() == [0, 1, 0, 0]
    assert r.sites["cg"].reasons.sum(0).tolist() == [0, 1, 0, 0]
    assert r.sites["cg"].iterations_max.tolist() == [3]


def test_energy_decays_until_the_chain_hangs(client):
    """At rest spring i carries the weight of the masses below it."""
    masses, (k, rest, m, g) = 5, PARAMS.values()
    x = held_sideways(masses, 2)
    r = client.rollout(
        sg.worlds.chain(masses, h=0.05),
        steps=1500,
        policy="f64",
        initial={"x": x, "v": 0 * x},
        params=PARAMS,
        record=["energy"],
    )
    energy = r.trajectory["energy"][0]
    assert np.diff(energy).max() <= 1e-9
    stretch = np.arange(masses, 0, -1) * m * g / k
    hanging = np.stack([np.zeros(masses), -np.cumsum(rest + stretch)], axis=1)
    np.testing.assert_allclose(r.state["x"][0], hanging, atol=1e-6)
    least = m * g * hanging[:, 1].sum() + k / 2 * np.sum(stretch**2)
    assert energy[0] > least + 0.1 and energy[-1] == pytest.approx(least, abs=1e-9)


def test_it_is_of_first_order_in_h(client):
    """Against the exact motion of springs without rest length, by eigenvectors."""
    masses, end, (k, _, m, gravity) = 4, 0.2, PARAMS.values()
    x = held_sideways(masses, 2)
    matrix, scale = linear_system(masses, 1.0)
    squares, modes = np.linalg.eigh(matrix - np.eye(masses))
    omega = np.sqrt(squares)[:, None]
    middle = np.linalg.solve(matrix - np.eye(masses), np.tile([0, -gravity], (masses, 1)))
    exact = middle + modes @ (np.cos(omega * end) * (modes.T @ (x - middle)))

    def error(steps):
        r = client.rollout(
            sg.worlds.chain(masses)(h=end / steps),
            steps=steps,
            policy="f64",
            initial={"x": x, "v": 0 * x},
            params={**PARAMS, "rest": 0.0},
        )
        return np.linalg.norm(r.state["x"][0] - exact)

    coarse, middling, fine = error(500), error(1000), error(2000)
    assert 1.85 < coarse / middling < 2.1 and 1.93 < middling / fine < 2.07
    assert fine < 0.02 * np.linalg.norm(exact)


def bent(name, by, x, params, direction):
    """Inputs in which one is moved by `by` along a direction in instance 0, and back in instance 1."""
    both = np.array([by, -by]).reshape(-1, *(1,) * np.ndim(direction)) * direction
    states = {"x": np.stack([x, x]), "v": np.stack([0 * x, 0 * x])}
    params = {n: np.asarray(v) for n, v in params.items()}
    if name in states:
        return {**states, name: states[name] + both}, params
    return states, {**params, name: params[name] + both}


def slope_of(client, world, name, x, params, steps, direction=1.0):
    """The central difference of `tip` along a direction of one input, on one path."""
    by = 1e-5 * (1.0 if np.ndim(direction) else params[name])
    states, given = bent(name, by, x, params, direction)
    r = client.rollout(
        world, steps=steps, policy="f64", initial=states, params=given, objective="tip"
    )
    assert r.path_signatures[0] == r.path_signatures[1]
    return (r.values[0] - r.values[1]) / (2 * by)


def gradient_of(client, world, x, params, steps, **options):
    return client.gradient(
        world,
        steps=steps,
        policy="f64",
        initial={"x": x, "v": 0 * x},
        params=params,
        objective="tip",
        **options,
    )


ALL = {**PARAMS, "anchor": [0.1, 0.2]}


@pytest.mark.parametrize("name", [*ALL, "x", "v"])
def test_its_gradients_agree_with_central_differences(client, name):
    world, x = sg.worlds.chain(5, h=0.02, tol=1e-12, cg_tol=1e-10), held_sideways(5, 2)
    g = gradient_of(client, world, x, ALL, 40)
    found = {**g.params, **g.initial}[name]
    shape = np.shape({**ALL, "x": x, "v": x}[name])
    direction = np.random.default_rng(6).normal(size=shape) if shape else 1.0
    slope = slope_of(client, world, name, x, ALL, 40, direction)
    assert np.sum(np.reshape(found, shape) * direction) == pytest.approx(slope, rel=1e-6)


def test_it_is_the_same_in_any_units(client):
    """Lengths in units of a power of two, from far above to far below those of the defaults."""
    x, told = held_sideways(4, 2), []
    for unit in (1.0, 2.0**-20, 2.0**-40):
        g = client.gradient(
            sg.worlds.chain(4, tol=1e-10 * unit),
            steps=40,
            policy="f64",
            initial={"x": unit * x, "v": np.zeros_like(x)},
            params={"rest": 0.1 * unit, "gravity": 9.81 * unit},
            objective="tip",
        )
        assert g.ok.all()
        told.append([float(g.value) / unit, float(g.params["rest"])])
    np.testing.assert_allclose(told, [told[0]] * 3, rtol=1e-9)


def test_a_loose_tolerance_changes_the_gradient(client):
    """The gradient is that of the iterations that ran; it comes to the step's own with the tolerance."""
    x = held_sideways(5, 2)

    def at(tol, cg_tol):
        world = sg.worlds.chain(5, h=0.02)(tol=tol, cg_tol=cg_tol)
        found = float(gradient_of(client, world, x, ALL, 40).params["stiffness"])
        return found, world

    exact, _ = at(1e-13, 1e-12)
    errors = [abs(at(tol, tol)[0] / exact - 1) for tol in (1e-2, 1e-3, 1e-5, 1e-9)]
    assert errors[0] > 0.01 and errors[1] > 1e-4
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-6
    loose, world = at(1e-3, 1e-3)
    own = slope_of(client, world, "stiffness", x, ALL, 40)
    assert loose == pytest.approx(own, rel=1e-6)  # right for what ran, and not for the step


def test_checkpoints_and_chunks_change_no_bit(client):
    world, x = sg.worlds.chain(4), held_sideways(4, 2)
    one = gradient_of(client, world, x, ALL, 30, record=["x", "energy"])
    for options in ({"checkpoint_interval": 1}, {"checkpoint_interval": 7}, {"chunk_steps": 4}):
        other = gradient_of(client, world, x, ALL, 30, record=["x", "energy"], **options)
        assert not differences(one, other, diagnostics="chunk_steps" not in options), options
