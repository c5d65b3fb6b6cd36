"""A Verlet list changes what Lennard-Jones particles cost, and nothing that they do."""

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg


def gas(side=3, spacing=1.6, heat=1.0):
    """A cube of particles near a lattice, in motion."""
    random = np.random.default_rng(1)
    places = np.stack(np.meshgrid(*[np.arange(side)] * 3), axis=-1).reshape(-1, 3) * spacing
    x = places + random.normal(0, 0.05, places.shape)
    return {"x": x, "v": random.normal(0, heat, x.shape)}


PARAMS = {"epsilon": 1.1, "sigma": 1.0}


def both(call, initial, steps=200, skin=0.4, capacity=260, **options):
    """Results without and with a list."""
    inputs = dict(steps=steps, policy="f64", initial=initial, params=PARAMS, objective="spread")
    record = ["x", "neighbours"]
    for listed in ({}, {"skin": skin, "capacity": capacity}):
        world = sg.worlds.lennard_jones(initial["x"].shape[-2], **options, **listed)
        yield call(world, record=[*record, "near"] if listed else record, **inputs)


OPTIONS = [{"cutoff": 1.9}, {"cutoff": 1.9, "box": 4.8}, {"cutoff": 1.9, "onset": 1.5, "box": 4.8}]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_pairs_and_forces_are_those_of_all_pairs(client, options):
    every, listed = both(client.rollout, gas(), **options)
    assert listed.ok.all()
    np.testing.assert_array_equal(every.trajectory["neighbours"], listed.trajectory["neighbours"])
    np.testing.assert_allclose(listed.trajectory["x"], every.trajectory["x"], rtol=0, atol=1e-12)
    for site in ("cutoff", "onset") if "onset" in options else ("cutoff",):
        a, b = every.events[site], listed.events[site]
        assert b.kind == "membership" and b.changes.sum() > 0
        for column in ("count", "changes", "first_step"):
            np.testing.assert_array_equal(getattr(a, column), getattr(b, column))
    # The list was shorter than all pairs, and was made again sometimes, not always.
    assert listed.trajectory["near"].max() < 260 < 27 * 26 / 2
    assert 3 <= listed.events["rebuild"].count.sum() <= 50
    assert listed.events["overflow"].count.sum() == 0


def test_a_list_is_made_again_when_a_particle_moved_half_the_skin(client):
    """Alone, at speed 1: 0.125 are behind it after 13 steps of 0.01, and again 13 steps later."""
    world = sg.worlds.lennard_jones(2, cutoff=1.5, h=0.01, skin=0.25)
    x, v = np.array([[0.0, 0, 0], [20.0, 0, 0]]), np.array([[1.0, 0, 0], [0.0, 0, 0]])
    r = client.rollout(
        world, steps=60, policy="f64", initial={"x": x, "v": v}, record=["near", "built"]
    )
    rebuild = r.events["rebuild"]
    assert np.flatnonzero(rebuild.count).tolist() == [12, 25, 38, 51]
    np.testing.assert_allclose(np.abs(rebuild.margin[[11, 12]]), [0.001225, 0.001275], rtol=1e-9)
    assert rebuild.kind == "guard" and "verlet_list.py" in rebuild.line
    # Pairs are looked through where a list is made, and nowhere else.
    assert np.flatnonzero(np.isfinite(r.events["listed"].margin)).tolist() == [12, 25, 38, 51]
    np.testing.assert_allclose(r.state["built"][0, 0, 0], 0.52, rtol=1e-12)


def test_pairs_that_enter_and_leave_are_told_as_without_a_list(client):
    """Flights past one another that touch the cutoff or miss it; the pair is on no list at first."""
    x = np.array([[[0.0, 0, 0], [3.0, 1.499, 0]], [[0.0, 0, 0], [3.0, 1.501, 0]]])
    v = np.array([[[0.0, 0, 0], [-4.0, 0, 0]]] * 2)
    every, listed = both(
        client.rollout, {"x": x, "v": v}, 160, skin=0.3, capacity=1, cutoff=1.5, h=0.01
    )
    a, b = every.events["cutoff"], listed.events["cutoff"]
    assert a.changes.sum() == 2 and a.first_step[1] == -1
    for column in ("count", "changes", "first_step"):
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column))
    # The list knows how near the pair is from where it is made; before, it counts as at 2 * 1.5.
    known = a.margin == b.margin
    assert known[60:90].all() and not known[0]
    np.testing.assert_allclose(b.margin[~known], 3 * 1.5**2, rtol=1e-12)
    np.testing.assert_array_equal(every.state["x"], listed.state["x"])


def test_a_pair_no_longer_listed_is_no_change(client):
    """Entries move up when a list is made; a decision stays with its pair."""
    every, listed = both(client.rollout, gas(heat=3.0), cutoff=1.9, box=4.8)
    assert listed.events["rebuild"].count.sum() > 20
    np.testing.assert_array_equal(every.events["cutoff"].changes, listed.events["cutoff"].changes)


def test_a_list_that_is_too_short_is_told(client):
    _, listed = both(client.rollout, gas(), **OPTIONS[1])
    near = listed.trajectory["near"][0, 1:]
    most = int(near.max())

    every, enough = both(client.rollout, gas(), capacity=most, **OPTIONS[1])
    assert enough.events["overflow"].count.sum() == 0
    assert np.min(np.abs(enough.events["overflow"].margin)) == 0.5
    np.testing.assert_allclose(enough.state["x"], every.state["x"], rtol=0, atol=1e-12)

    _, short = both(client.rollout, gas(), capacity=most - 1, **OPTIONS[1])
    overflow = short.events["overflow"]
    assert overflow.first_step[0] == np.flatnonzero(near == most)[0]
    assert "verlet_list.py" in overflow.line
    assert short.ok.all()  # told, and no error


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_those_without_a_list_and_of_central_differences(client, options):
    every, listed = both(client.gradient, gas(), 60, **options)
    assert listed.events["rebuild"].count.sum() >= 2
    for name, slope in every.params.items():
        assert float(listed.params[name]) == pytest.approx(float(slope), rel=1e-11)
    np.testing.assert_allclose(listed.initial["x"], every.initial["x"], rtol=1e-9, atol=1e-12)

    world = sg.worlds.lennard_jones(27, skin=0.4, capacity=260, **options)

    def run(epsilon):
        params = {"epsilon": epsilon, "sigma": 1.0}
        inputs = dict(steps=60, policy="f64", initial=gas(), objective="spread")
        return client.rollout(world, params=params, **inputs)

    high, low = run(1.1 + 1e-6), run(1.1 - 1e-6)
    assert high.path_signature == low.path_signature
    slope = (high.value - low.value) / 2e-6
    assert float(listed.params["epsilon"]) == pytest.approx(slope, rel=1e-6)


def test_checkpoints_and_chunks_change_no_bit(client):
    world = sg.worlds.lennard_jones(27, skin=0.4, capacity=260, **OPTIONS[2])
    inputs = dict(steps=30, policy="f64", initial=gas(), objective="spread", record=["x", "near"])
    one = client.gradient(world, **inputs)
    for options in ({"checkpoint_interval": 1}, {"checkpoint_interval": 7}, {"chunk_steps": 4}):
        other = client.gradient(world, **inputs, **options)
        assert not differences(one, other, diagnostics="chunk_steps" not in options), options


def test_a_skin_below_0_and_a_box_too_small_for_it_are_refused():
    with pytest.raises(ValueError, match="skin -0.1"):
        sg.worlds.lennard_jones(4, skin=-0.1)
    sg.worlds.lennard_jones(4, box=5.0)
    with pytest.raises(ValueError, match="the cutoff of 2.5 and the skin"):
        sg.worlds.lennard_jones(4, box=5.0, skin=0.3)
