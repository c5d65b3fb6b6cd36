"""HIRES ends where its test set says, and gradients of stiff equations are those of differences."""

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg
from simgrad.worlds import SYSTEMS

# Mazzia and Magherini, Test Set for Initial Value Problem Solvers 2.4 (2008), problem HIRES: y(321.8122),
# computed with RADAU5 in quadruple precision.
HIRES_AT_END = [
    *(0.7371312573325668e-3, 0.1442485726316185e-3, 0.5888729740967575e-4, 0.1175651343283149e-2),
    *(0.2386356198831331e-2, 0.6238968252742796e-2, 0.2849998395185769e-2, 0.2850001604814231e-2),
]


def stiff(name, **options):
    """As exact as f64 lets Newton be."""
    return sg.worlds.kinetics(name, newton_tol=1e-15 if name == "hires" else 1e-14, **options)


def hires_error(client, rtol, steps):
    r = client.rollout(stiff("hires", rtol=rtol, atol=1e-4 * rtol), steps=steps, policy="f64")
    assert r.ok.all() and float(r.state["t"][0]) == pytest.approx(321.8122, rel=1e-14)
    return np.max(np.abs(r.state["y"][0] / HIRES_AT_END - 1))


def test_hires_ends_where_the_test_set_says(client):
    coarse, fine = hires_error(client, 1e-6, 1000), hires_error(client, 1e-8, 4000)
    assert fine < 4e-5
    # Of second order: the step goes as rtol^(1/3), the error as its square, so 100^(2/3) = 22 is expected.
    assert 12 < coarse / fine < 40


def test_hires_keeps_what_its_equations_keep(client):
    """Of y7 and y8 one becomes the other: their sum stays, at 0.0057."""
    r = client.rollout(stiff("hires"), steps=400, policy="f64", record=["y"])
    np.testing.assert_allclose(r.trajectory["y"][0, :, 6:].sum(axis=1), 0.0057, rtol=1e-13)


def test_a_rejected_last_try_is_followed_by_a_shorter_one(client):
    """From a first try as long as the whole, and at an end that only a rejected try reached."""
    for options in ({"end": 4.4}, {"end": 2.0, "first_step": 2.0}, {"end": 2.0, "first_step": 1e3}):
        world = sg.worlds.kinetics("lotka_volterra", rtol=1e-4, atol=1e-7, **options)
        r = client.rollout(world, steps=400, policy="f64", record=["t", "accepted"])
        ends = r.trajectory["t"][0, 1:] + 0.0
        tries = r.trajectory["accepted"][0]
        last = int(np.argmax(ends == options["end"]))
        assert r.state["t"][0] == options["end"] and tries[last] == 1
        assert (tries[:last] == 0).any(), "no try was rejected"


@pytest.mark.parametrize("name, steps", [("hires", 300), ("van_der_pol", 800)])
def test_f32_takes_the_tries_of_f64(client, name, steps):
    """The Jacobian's differences are wide enough for the digits of either."""
    world = sg.worlds.kinetics(name, rtol=1e-3, atol=1e-6, newton_tol=1e-7)
    work = dict(steps=steps, record=["accepted", "t"])
    exact, rough = (client.rollout(world, policy=policy, **work) for policy in ("f64", "f32"))
    assert exact.ok.all() and rough.ok.all()
    tries = [int(np.argmax(r.trajectory["t"][0] == r.state["t"][0])) for r in (exact, rough)]
    assert 80 < tries[0] < steps - 1 and abs(tries[1] - tries[0]) <= 0.02 * tries[0]
    np.testing.assert_allclose(rough.state["y"], exact.state["y"], rtol=1e-3, atol=1e-6)


def test_an_equation_is_as_well_solved_in_any_units(client):
    """y' = -k y^2 from s with k = 1 / s: y(1) = s / 2."""
    error = []
    for s in (1.0, 1e-9, 1e-15):
        system = sg.worlds.System(lambda y, k: [-k * y[0] * y[0]], {"k": 1 / s}, (s,), 1.0)
        world = sg.worlds.kinetics(system, rtol=1e-6, atol=1e-9 * s, newton_tol=1e-12 * s)
        r = client.rollout(world, steps=200, policy="f64")
        assert r.ok.all() and r.state["t"][0] == 1.0
        error.append(r.state["y"][0, 0] / (s / 2) - 1)
    assert abs(error[0]) < 1e-4
    np.testing.assert_allclose(error, error[0], rtol=1e-6)


@pytest.mark.parametrize(
    "name, start, steps, rtol, end, changed",
    [
        ("hires", SYSTEMS["hires"].start, 1000, 1e-6, None, {}),
        ("robertson", (1.0, 1e-4, 1e-2), 800, 1e-7, None, {}),
        ("lotka_volterra", SYSTEMS["lotka_volterra"].start, 1200, 1e-6, 5.0, {}),
        # Once around, with both of its fast passages.
        ("van_der_pol", (2.0, 1.0), 2000, 1e-6, 2.0, {"epsilon": 1e-2}),
    ],
)
def test_gradients_by_params_and_start_are_those_of_central_differences(
    client, name, start, steps, rtol, end, changed
):
    """Of the first number at the end. The lengths of steps, which follow the error, have their part in it."""
    world = stiff(name, rtol=rtol, atol=1e-4 * rtol, end=end)
    params, end = {**SYSTEMS[name].params, **changed}, end or SYSTEMS[name].end
    inputs = dict(steps=steps, policy="f64", objective="first")
    g = client.gradient(world, params=params, initial={"y": start}, **inputs)
    assert g.ok.all()

    def run(params, y):
        r = client.rollout(world, params=params, initial={"y": y}, **inputs)
        assert float(r.state["t"][0]) == end
        return r.value

    for key, value in params.items():
        by = 1e-5 * value
        high, low = (run({**params, key: value + e}, start) for e in (by, -by))
        assert float(g.params[key]) == pytest.approx((high - low) / (2 * by), rel=1e-6), key
    for i, size in enumerate(start):
        by = 1e-5 * (size or 1e-3)
        high, low = (run(params, start + e * np.eye(len(start))[i]) for e in (by, -by))
        slope = float(np.ravel(g.initial["y"])[i])
        assert slope == pytest.approx((high - low) / (2 * by), rel=1e-6), i


# Central differences of sixth order, by values three places up and down.
PLACES, WEIGHTS = (3, 2, 1, -1, -2, -3), np.array([1, -9, 45, -45, 9, -1]) / 60


def along_the_slow_stretch(client, newton_tol):
    """Van der Pol's equation with mu = 1000, epsilon = 1e-6: through the layer at its start and on, nearly to where it
    leaves the slow stretch. Returns the gradient, and a function of epsilons and starts that gives rollouts."""
    world = sg.worlds.kinetics("van_der_pol", rtol=1e-6, atol=1e-10, newton_tol=newton_tol, end=0.7)
    inputs = dict(steps=210, policy="f64", objective="first", record=["accepted"])
    epsilon, start = SYSTEMS["van_der_pol"].params["epsilon"], SYSTEMS["van_der_pol"].start
    g = client.gradient(world, params={"epsilon": epsilon}, initial={"y": start}, **inputs)
    assert g.ok.all() and float(g.state["t"][0]) == 0.7 and not g.trajectory["accepted"].all()
    return g, lambda epsilons, starts: client.rollout(world, params={"epsilon": epsilons}, initial={"y": starts}, **inputs)


@pytest.mark.parametrize("name, by", [("epsilon", 5e-8), ("y", 2e-5), ("y'", 1e-5)])
def test_gradients_of_a_stiff_equation_are_those_of_differences_where_the_same_tries_are_accepted(client, name, by):
    """The end moves by 2.4e-6 for the whole of epsilon, and by 1.7e-3 for 1 of y' at the start, so differences are taken
    over wide steps. Newton goes on until rounding alone changes its numbers: the gradient of iterations that ran comes
    to the exact one as they come to their end, and is 5e-5 off by epsilon where they end at 1e-12."""
    g, runs = along_the_slow_stretch(client, newton_tol=1e-16)
    (epsilon,), (start,) = SYSTEMS["van_der_pol"].params.values(), np.array([SYSTEMS["van_der_pol"].start])
    moved = by * np.array(PLACES)
    epsilons = epsilon + moved * (name == "epsilon")
    r = runs(epsilons, start + np.outer(moved, [name == "y", name == "y'"]))
    assert r.ok.all() and (r.trajectory["accepted"] == g.trajectory["accepted"]).all()
    slopes = {"epsilon": float(g.params["epsilon"]), **dict(zip(("y", "y'"), np.ravel(g.initial["y"])))}
    assert slopes[name] == pytest.approx(float(WEIGHTS @ r.values) / by, rel=1e-6)


def test_the_gradient_of_a_stiff_equation_by_its_start_is_that_of_differences_on_one_path(client):
    """With every loop of Newton as long in all runs, to the signature of their paths."""
    g, runs = along_the_slow_stretch(client, newton_tol=1e-12)
    (epsilon,), start, by = SYSTEMS["van_der_pol"].params.values(), SYSTEMS["van_der_pol"].start, 2e-6
    r = runs([epsilon, epsilon], np.array(start) + np.outer([by, -by], [1, 0]))
    assert set(r.path_signatures) == set(g.path_signatures)
    assert float(np.ravel(g.initial["y"])[0]) == pytest.approx(float(r.values[0] - r.values[1]) / (2 * by), rel=1e-6)


def test_checkpoints_and_chunks_change_no_bit(client):
    """Over steps that were taken and steps that were not."""
    world = sg.worlds.kinetics("robertson", first_step=0.05)
    work = dict(steps=40, policy="f64", objective="first", record=["y", "t", "accepted"])
    one = client.gradient(world, **work)
    assert set(np.unique(one.trajectory["accepted"])) == {0.0, 1.0}
    for options in ({"checkpoint_interval": 1}, {"checkpoint_interval": 7}, {"chunk_steps": 4}):
        other = client.gradient(world, **work, **options)
        assert not differences(one, other, diagnostics="chunk_steps" not in options), options
