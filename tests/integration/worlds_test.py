"""The worlds of simgrad.worlds have the properties and the published values that they should have."""

import re

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg
from simgrad.worlds import SYSTEMS, System


def central(value, at, by):
    return (value(at + by) - value(at - by)) / (2 * by)


# ---- Lennard-Jones ----


def icosahedron():
    """Centre and corners, at the scale of least energy, which is -B^2/A with the sums over pairs A of r^-12
    and B of r^-6: 4 (A s^-12 - B s^-6) is least at s^6 = 2 A / B."""
    golden = (1 + np.sqrt(5)) / 2
    corners = [np.roll([0, i, j * golden], k) for i in (-1, 1) for j in (-1, 1) for k in range(3)]
    x = np.array([[0, 0, 0], *corners])
    i, j = np.triu_indices(13, 1)
    r = np.linalg.norm(x[i] - x[j], axis=1)
    a, b = np.sum(r**-12.0), np.sum(r**-6.0)
    return x * (2 * a / b) ** (1 / 6), -b * b / a


def simplex(n):
    """n points with all distances at the minimum of the pair's energy, 2^(1/6): energy -1 for each pair."""
    x = np.eye(4)[:n] / np.sqrt(2) * 2 ** (1 / 6)
    _, _, axes = np.linalg.svd(x - x.mean(0))
    return (x - x.mean(0)) @ axes[:3].T, -n * (n - 1) / 2


@pytest.mark.parametrize("n", [2, 3, 4, 13])
def test_clusters_have_their_energies(client, n):
    x, energy = icosahedron() if n == 13 else simplex(n)
    world = sg.worlds.lennard_jones(n, cutoff=10.0, h=1e-6)
    r = client.rollout(
        world, steps=1, policy="f64", initial={"x": x, "v": 0 * x}, objective="energy"
    )
    assert r.value == pytest.approx(energy, abs=1e-9)
    np.testing.assert_allclose(r.state["x"][0], x, atol=1e-9)  # no force in the minimum
    if n == 13:
        assert energy == pytest.approx(-44.326801, abs=1e-6)  # Cambridge Cluster Database


@pytest.mark.parametrize("options", [{"onset": 1.5}, {"onset": 1.5, "box": 5.5}])
def test_a_switched_potential_keeps_energy_and_momentum_and_is_of_second_order(client, options):
    x, _ = icosahedron()
    v = np.random.default_rng(3).normal(0, 0.3, x.shape)
    v -= v.mean(0)

    def run(h):
        world = sg.worlds.lennard_jones(13, cutoff=2.2, h=h, **options)
        r = client.rollout(
            world,
            steps=round(0.4 / h),
            policy="f64",
            initial={"x": x, "v": v},
            record=["potential", "kinetic"],
        )
        np.testing.assert_allclose(r.state["v"][0].sum(0), 0, atol=1e-12)
        energy = r.trajectory["potential"] + r.trajectory["kinetic"]
        return np.ptp(energy)

    coarse, fine = run(0.004), run(0.002)
    assert fine < 1e-3 and 3.5 < coarse / fine < 4.5


def test_pairs_that_enter_and_leave_are_told_with_margins(client):
    """Two particles that fly past each other beyond the cutoff, and one pair that just enters it."""
    world = sg.worlds.lennard_jones(2, cutoff=1.5, h=0.01)
    x = np.array([[[0.0, 0, 0], [3.0, 1.499, 0]], [[0.0, 0, 0], [3.0, 1.501, 0]]])
    v = np.array([[0.0, 0, 0], [-4.0, 0, 0]])
    r = client.rollout(world, steps=160, policy="f64", initial={"x": x, "v": np.stack([v, v])})
    cutoff = r.events["cutoff"]
    assert cutoff.kind == "membership" and "lennard_jones.py" in cutoff.line
    assert cutoff.changes.sum() == 2 and cutoff.count.sum() > 0  # the first pair enters and leaves
    assert cutoff.first_step[1] == -1
    inside = np.sqrt(1.5**2 - 1.499**2)
    entered = int(np.flatnonzero(abs(3.0 - 0.04 * np.arange(1, 161)) < inside)[0])
    assert cutoff.first_step[0] == entered
    # At step 74 both are side by side, at 3 - 75 * 0.04 = 0: the second misses the cutoff by 1.501^2 - 1.5^2.
    assert cutoff.margin_instance[74] in (0, 1)
    assert np.abs(cutoff.margin[74]) <= 1.501**2 - 1.5**2 + 1e-12


@pytest.mark.parametrize("onset", [None, 1.5])
def test_its_gradients_agree_with_central_differences(client, onset):
    x, _ = icosahedron()
    world = sg.worlds.lennard_jones(13, cutoff=2.6, onset=onset, h=0.004)
    random = np.random.default_rng(2)
    start = {"x": 1.02 * x, "v": random.normal(0, 0.1, x.shape)}
    params = {"epsilon": np.array(1.3), "sigma": np.array(1.0)}
    work = dict(steps=50, policy="f64", objective="spread")
    g = client.gradient(world, initial=start, params=params, **work)
    inputs = {**start, **params}
    found = {**g.params, "x": g.initial["x"], "v": g.initial["v"]}
    for name, slopes in found.items():
        direction = random.normal(size=np.shape(inputs[name]))

        def run(by):
            moved = {**inputs, name: inputs[name] + by * direction}
            return client.rollout(
                world,
                initial={n: moved[n] for n in start},
                params={n: moved[n] for n in params},
                **work,
            )

        assert run(1e-5).path_signature == run(-1e-5).path_signature == g.path_signature, name
        slope = central(lambda by: run(by).value, 0.0, 1e-5)
        assert np.sum(np.reshape(slopes, direction.shape) * direction) == pytest.approx(
            slope, rel=1e-6
        ), name


@pytest.mark.parametrize("onset", [None, 1.5])
def test_checkpoints_and_chunks_change_no_bit_of_particles(client, onset):
    x, _ = icosahedron()
    world = sg.worlds.lennard_jones(13, cutoff=2.2, onset=onset, box=5.5, h=0.004)
    v = np.random.default_rng(3).normal(0, 0.5, x.shape)
    work = dict(steps=30, policy="f32", initial={"x": x, "v": v}, record=["x", "potential"])
    one = client.gradient(world, objective="spread", **work)
    for options in ({"checkpoint_interval": 1}, {"checkpoint_interval": 7}, {"chunk_steps": 4}):
        other = client.gradient(world, objective="spread", **work, **options)
        assert not differences(one, other, diagnostics="chunk_steps" not in options), options


# ---- Kinetics ----


@pytest.mark.parametrize(
    "name, steps, rtol, expected",
    [
        # Mazzia and Magherini, test set for IVP solvers (2008): vdpol at 2, rober at 40.
        ("van_der_pol", 12000, 1e-7, [1.706167732170483, -0.8928097010247976]),
        ("robertson", 1200, 1e-8, [0.7158270687193941, 9.185534764557656e-06, 0.2841637457458342]),
    ],
)
def test_stiff_problems_end_where_they_should(client, name, steps, rtol, expected):
    world = sg.worlds.kinetics(name, rtol=rtol, atol=1e-4 * rtol, newton_tol=1e-12)
    r = client.rollout(world, steps=steps, policy="f64")
    assert r.ok.all() and float(r.state["t"][0]) == pytest.approx(SYSTEMS[name].end, rel=1e-14)
    np.testing.assert_allclose(r.state["y"][0], expected, rtol=2e-5)
    assert r.events["accepted"].kind == "acceptance"


def test_predator_and_prey_keep_their_constant(client):
    r = client.rollout(
        sg.worlds.kinetics("lotka_volterra", rtol=1e-8),
        steps=8000,
        policy="f64",
        initial={"y": [1.0, 1.0]},
        record=["y", "t"],
    )
    x, y = r.trajectory["y"][0].T
    constant = x - 3 * np.log(x) + y - 1.5 * np.log(y)
    assert r.trajectory["t"][0, -1] == pytest.approx(10.0, rel=1e-14)
    np.testing.assert_allclose(constant, 2.0, atol=1e-5)


def test_a_users_equations_and_their_gradient(client):
    """y' = -k y: at the end e^(-k), with derivative -e^(-k)."""
    decay = System(lambda y, k: [-k * y[0]], {"k": 1.5}, (1.0,), 1.0)
    inputs = dict(steps=1500, policy="f64", initial={"y": [1.0]}, objective="first")
    world = sg.worlds.kinetics(decay, rtol=1e-9)
    g = client.gradient(world, params={"k": 1.5}, **inputs)
    assert g.value == pytest.approx(np.exp(-1.5), rel=1e-6)
    slope = central(lambda k: client.rollout(world, params={"k": k}, **inputs).value, 1.5, 1e-6)
    assert float(g.params["k"]) == pytest.approx(slope, rel=1e-6)
    assert float(g.params["k"]) == pytest.approx(-np.exp(-1.5), rel=1e-4)


def test_each_world_is_one_short_file(root):
    for path in (root / "client/python/simgrad/worlds").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path.name


def test_worlds_of_one_body_run_and_those_of_none_are_refused(client):
    start = {"x": np.zeros((1, 1, 3)), "v": np.ones((1, 1, 3))}
    for world in (sg.worlds.lennard_jones(1), sg.worlds.lennard_jones(1, skin=0.3)):
        r = client.rollout(world, steps=3, initial=start, policy="f64")
        np.testing.assert_allclose(r.state["x"], 0.015, rtol=1e-12)
    with pytest.raises(ValueError, match="capacity 2: of the list, which there is with a skin"):
        sg.worlds.lennard_jones(4, capacity=2)
    with pytest.raises(ValueError, match="spheres 0: at least 1"):
        sg.worlds.bodies(0)


def system(params, rates=lambda y, **params: [-y[0]], start=(1.0,)):
    return System(rates, params, start, 1.0)


WRONG = [
    (lambda w: w.kinetics(system({"h": 1.0})), "system: its params may not be named h: the world takes y, t, h, end, name, level"),
    (lambda w: w.kinetics(system({"k": 1.0, "end": 1.0, "t": 1.0})), "may not be named t, end: the world"),
    (lambda w: w.kinetics(system({"y": 1.0})), "may not be named y: the world"),
    (lambda w: w.kinetics(system({"name": 1.0})), "may not be named name: the world"),
    (lambda w: w.kinetics(system({}, start=())), "system: its start has a number for each rate, at least 1"),
    (lambda w: w.kinetics(system({}, start=(1.0, 2.0))).program, "system: 1 rates, and 2 in `start`: one rate for each number"),
    (lambda w: w.kinetics(system({}, lambda y: [y[0], y[0]])).program, "system: 2 rates, and 1 in `start`"),
    (lambda w: w.kinetics("foo"), "system 'foo': one of lotka_volterra, van_der_pol, robertson, hires, or a System"),
    (lambda w: w.kinetics(first_step=0), "first_step 0: above 0"),
    (lambda w: w.kinetics(first_step=-1e-3), "first_step -0.001: above 0"),
    (lambda w: w.kinetics(rtol=-1e-6), "rtol -1e-06: above 0"),
    (lambda w: w.kinetics(rtol=0.0, atol=0.0), "rtol 0.0: above 0"),
    (lambda w: w.kinetics(atol=0.0), "atol 0.0: above 0"),
    (lambda w: w.kinetics(newton_tol=-1.0), "newton_tol -1.0: above 0"),
    (lambda w: w.kinetics(end=-1.0), "end -1.0: not below 0, where the time begins"),
    (lambda w: w.bodies(0), "spheres 0: at least 1, and whole"),
    (lambda w: w.bodies(dimensions=0), "dimensions 0: at least 1, and whole"),
    (lambda w: w.bodies(box=[1, 2, 3]), "box [1, 2, 3]: one edge, or one for each of 2 dimensions, above 0"),
    (lambda w: w.bodies(box=0.0), "box 0.0: one edge, or one for each of 2 dimensions, above 0"),
    (lambda w: w.bodies(tol=-1.0), "tol -1.0: above 0"),
    (lambda w: w.chain(0), "masses 0: at least 1, and whole"),
    (lambda w: w.chain(dimensions=0), "dimensions 0: at least 1, and whole"),
    (lambda w: w.chain(caps=(5, 5)), "caps (5, 5): a whole number, at least 1, for each of newton, cg, search"),
    (lambda w: w.chain(caps=(5, 0, 5)), "caps (5, 0, 5): a whole number, at least 1, for each of newton, cg, search"),
    (lambda w: w.lennard_jones(0), "particles 0: at least 1, and whole"),
    (lambda w: w.lennard_jones(2.0), "particles 2.0: at least 1, and whole"),
    (lambda w: w.lennard_jones(cutoff=0.0), "cutoff 0.0: above 0"),
    (lambda w: w.lennard_jones(cutoff=-1), "cutoff -1: above 0"),
    (lambda w: w.lennard_jones(skin=0.2, capacity=-1), "capacity -1: at least 0, and whole"),
    (lambda w: w.cartpole((4, 0, 1)), "sizes[1] 0: at least 1, and whole"),
    (lambda w: w.cartpole_weights((4, 0, 1)), "sizes[1] 0: at least 1, and whole"),
    (lambda w: w.cartpole_weights((3, 1)), "sizes (3, 1): from 4 numbers of the state to 1 push"),
    (lambda w: w.visibility(4.0), "points 4.0: at least 1, and whole"),
]


@pytest.mark.parametrize("made, told", WRONG)
def test_wrong_arguments_of_worlds_are_told_by_name_with_what_is_right(made, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        made(sg.worlds)
