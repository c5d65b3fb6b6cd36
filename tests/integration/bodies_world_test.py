"""Spheres in a box keep what mechanics says they keep, and do what it says in closed form."""

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg

G = 9.81


def bodies(spheres, dimensions=2, **options):
    return sg.worlds.bodies(spheres, dimensions=dimensions, **options)


def scene(spheres, dimensions, seed, speed=1.0):
    """Spheres of radius 0.1 on a jittered grid in a unit box, that do not touch."""
    random = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.linspace(0.2, 0.8, 3)] * dimensions), -1)
    x = random.permutation(grid.reshape(-1, dimensions))[:spheres]
    v = random.normal(0, speed, x.shape)
    return x + random.uniform(-0.04, 0.04, x.shape), v, random.uniform(0.5, 2, spheres)


def touching_pair(dimensions, depth=1e-9):
    """Two spheres of radius 0.1 far from the walls, the unit vector from the second to the first, and one
    across."""
    n, t = np.zeros(dimensions), np.zeros(dimensions)
    n[:2], t[:2] = (0.6, 0.8), (-0.8, 0.6)
    middle = np.full(dimensions, 5.0)
    apart = (0.1 - depth / 2) * n
    return np.stack([middle + apart, middle - apart]), n, t


@pytest.mark.parametrize("dimensions", [2, 3])
def test_free_collisions_conserve_momentum(client, dimensions):
    """Spheres that meet in the middle of a box whose walls they do not reach."""
    x, v, mass = scene(6, dimensions, seed=1)
    v = 4.0 * (0.5 - x) + 0.1 * v
    params = {"mass": mass, "gravity": 0.0, "friction": 0.5, "restitution": 0.7}
    r = client.rollout(
        bodies(6, dimensions, box=11.0),
        steps=200,
        policy="f64",
        initial={"x": x + 5, "v": v},
        params=params,
        record=["x", "v", "touching"],
    )
    path = r.trajectory["x"][0]
    assert path.min() > 0.2 and path.max() < 10.8  # no wall took part
    assert r.trajectory["touching"].sum() >= 6 and r.events["cone"].count.sum() > 0
    momentum = np.einsum("i,tid->td", mass, r.trajectory["v"][0])
    np.testing.assert_allclose(momentum, np.tile(mass @ v, (201, 1)), rtol=0, atol=1e-13)
    assert np.abs(r.state["v"][0] - v).max() > 0.5
    np.testing.assert_allclose(mass @ r.state["v"][0], mass @ v, rtol=0, atol=1e-13)


@pytest.mark.parametrize("restitution", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("spheres, dimensions", [(1, 3), (5, 2), (6, 3)])
def test_energy_never_grows(client, spheres, dimensions, restitution):
    scenes = [scene(spheres, dimensions, seed) for seed in range(3)]
    x, v, mass = (np.stack(part) for part in zip(*scenes))
    r = client.rollout(
        bodies(spheres, dimensions, tol=1e-11, max_iter=1000),
        steps=300,
        policy="f64",
        initial={"x": x, "v": v},
        params={"mass": mass[0], "friction": 0.4, "restitution": restitution},
        record=["energy", "touching"],
    )
    assert r.ok.all()
    before = 0.5 * np.einsum("i,bid,bid->b", mass[0], v, v) + G * x[:, :, -1] @ mass[0]
    energy = np.concatenate([before[:, None], r.trajectory["energy"]], axis=1)
    assert np.diff(energy, axis=1).max() <= 1e-9
    assert r.trajectory["touching"].max() >= min(spheres, 3)
    assert r.sites["solver"].reasons[:, 1].sum() == 0  # max_iter never


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("u", [(1.0, 0.0), (0.7, 1.3), (2.0, -0.4)])
def test_elastic_collisions_have_their_closed_form(client, dimensions, u):
    """Of the velocities of approach (u[0] along the normal, u[1] across) the normal ones change as on a
    line, (m1 - m2) / (m1 + m2) and 2 m1 / (m1 + m2), the ones across not at all. The first u is
    head-on."""
    x, n, t = touching_pair(dimensions)
    m1, m2 = 1.7, 0.6
    v = np.stack([-u[0] * n + u[1] * t, np.zeros(dimensions)])
    r = client.rollout(
        bodies(2, dimensions, box=10.0),
        steps=50,
        policy="f64",
        initial={"x": x, "v": v},
        params={"mass": [m1, m2], "gravity": 0.0, "friction": 0.0, "restitution": 1.0},
        record=["energy"],
    )
    first = -(m1 - m2) / (m1 + m2) * u[0] * n + u[1] * t
    second = -2 * m1 / (m1 + m2) * u[0] * n
    np.testing.assert_allclose(r.state["v"][0], [first, second], rtol=0, atol=1e-14)
    before = 0.5 * m1 * (u[0] ** 2 + u[1] ** 2)
    np.testing.assert_allclose(r.trajectory["energy"], before, rtol=1e-14)
    assert r.events["push"].count[0] > 0 and r.events["push"].count[1:].sum() == 0


@pytest.mark.parametrize("across", [0.2, 2.0])
def test_friction_in_a_collision_stays_in_the_cone(client, across):
    """The impulse j = (1 + e) m u along the normal, with the reduced mass m, has at most mu j across; less
    where (1 + e) m times the speed across, which reverses a part e of it, is less."""
    x, n, t = touching_pair(3)
    m, e, mu, u = 1.7 * 0.6 / 2.3, 0.5, 0.25, 1.1
    v = np.stack([-u * n + across * t, np.zeros(3)])
    r = client.rollout(
        bodies(2, 3, box=10.0),
        steps=1,
        policy="f64",
        initial={"x": x, "v": v},
        params={"mass": [1.7, 0.6], "gravity": 0.0, "friction": mu, "restitution": e},
    )
    normal, rubbed = (1 + e) * m * u, min((1 + e) * m * across, mu * (1 + e) * m * u)
    impulse = normal * n - rubbed * t
    np.testing.assert_allclose(r.state["v"][0], v + [impulse / 1.7, -impulse / 0.6], rtol=0, atol=1e-14)
    assert (r.events["cone"].count.sum() > 0) == (across == 2.0)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_sphere_at_rest_on_the_floor_stays(client, dimensions):
    x = np.full((1, dimensions), 0.5)
    x[0, -1] = 0.1
    r = client.rollout(
        bodies(1, dimensions), steps=500, policy="f64", initial={"x": x}, record=["touching"]
    )
    np.testing.assert_array_equal(r.state["x"][0], x)
    np.testing.assert_array_equal(r.state["v"][0], 0)
    assert (r.trajectory["touching"] == 1).all()


def test_a_falling_sphere_rebounds(client):
    """k g h after k steps, until it overlaps the floor: then e times that upward, less the g h of the step."""
    h, e, up = 0.01, 0.8, 0.5
    r = client.rollout(
        bodies(1, 2, h=h),
        steps=40,
        policy="f64",
        initial={"x": [[0.5, up]]},
        params={"restitution": e},
        record=["v"],
    )
    k = np.arange(41)
    fallen = int(np.flatnonzero(G * h * h * k * (k + 1) / 2 >= up - 0.1)[0])
    expected = np.where(k <= fallen, -k, e * fallen - (k - fallen)) * G * h
    np.testing.assert_allclose(r.trajectory["v"][0, :, 0, 1], expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(r.trajectory["v"][0, :, 0, 0], 0)
    assert fallen == 29 and r.events["touch"].first_step[0] == fallen


def test_a_tower_stands(client):
    """Contacts are coupled: each carries what is above it, so one sweep does not do."""
    heights = 0.1 + 0.2 * np.arange(4) - 1e-9 * (1 + np.arange(4))
    x = np.stack([np.full(4, 0.5), heights], axis=1)
    r = client.rollout(bodies(4), steps=100, policy="f64", initial={"x": x})
    np.testing.assert_allclose(r.state["v"][0], 0, atol=1e-9)
    np.testing.assert_allclose(r.state["x"][0], x, rtol=0, atol=1e-9)
    assert (r.sites["solver"].iterations_max > 10).all()


def test_friction_slows_a_sliding_sphere_and_stops_it(client):
    """v - k mu g h after k steps, until that is below 0; the way is that of v^2 / (2 mu g), of first order in h."""
    mu, speed, h = 0.3, 1.0, 0.01
    initial = {"x": [[0.5, 0.1]], "v": [[speed, 0.0]]}
    work = dict(policy="f64", initial=initial, params={"friction": mu, "mass": [2.5]})
    world = bodies(1, box=2.0, h=h)
    r = client.rollout(world, steps=50, record=["v"], **work)
    expected = np.maximum(speed - mu * G * h * np.arange(51), 0)
    np.testing.assert_allclose(r.trajectory["v"][0, :, 0, 0], expected, rtol=0, atol=1e-13)
    last = int(speed / (mu * G * h))
    assert last == 33
    np.testing.assert_array_equal(r.trajectory["v"][0, last + 1 :], 0)
    np.testing.assert_array_equal(r.trajectory["v"][0, :, 0, 1], 0)
    assert (r.events["cone"].count > 0).sum() == last
    assert r.state["x"][0, 0, 0] == pytest.approx(0.5 + speed**2 / (2 * mu * G), abs=h * speed)
    # On the way: x = 0.5 + h sum (speed - k mu g h), whose derivative by mu is -g h^2 k (k + 1) / 2.
    g = client.gradient(world, steps=20, objective="spread", **work)
    slope = -G * h * h * 20 * 21 / 2
    where = 0.5 + 20 * h * speed + mu * slope
    assert g.value == pytest.approx(where**2 + 0.01, rel=1e-13)
    assert float(g.params["friction"]) == pytest.approx(2 * where * slope, rel=1e-12)


@pytest.mark.parametrize("spheres, dimensions, seed", [(3, 2, 3), (4, 3, 5)])
def test_its_gradients_agree_with_central_differences(client, spheres, dimensions, seed):
    x, v, mass = scene(spheres, dimensions, seed)
    start = {"x": x, "v": v}
    params = {
        "mass": mass,
        "radius": np.full(spheres, 0.1),
        **{"gravity": np.array(G), "friction": np.array(0.2), "restitution": np.array(0.6)},
    }
    work = dict(steps=60, policy="f64", objective="spread")
    world = bodies(spheres, dimensions, tol=1e-13, max_iter=500)
    g = client.gradient(world, initial=start, params=params, **work)
    # Impacts of pairs and with walls, of both kinds of friction.
    assert g.events["push"].count.sum() > 3 and g.events["cone"].count.sum() > 0
    inputs = {**start, **params}
    random = np.random.default_rng(0)
    for name, found in {**g.initial, **g.params}.items():
        direction = random.normal(size=np.shape(inputs[name]))
        by = 1e-6

        def run(sign):
            moved = {**inputs, name: inputs[name] + sign * by * direction}
            return client.rollout(
                world,
                initial={k: moved[k] for k in start},
                params={k: moved[k] for k in params},
                **work,
            )

        up, down = run(1), run(-1)
        assert up.path_signature == down.path_signature == g.path_signature, name
        slope = (up.value - down.value) / (2 * by)
        assert np.sum(np.reshape(found, direction.shape) * direction) == pytest.approx(
            slope, rel=1e-6
        ), name


@pytest.mark.parametrize("policy", ["f64", "f32"])
def test_chunks_checkpoints_and_batches_do_not_matter(client, policy):
    scenes = [scene(4, 2, seed) for seed in range(5)]
    x, v, mass = (np.stack(part) for part in zip(*scenes))
    world = bodies(4, tol=1e-6)
    work = dict(steps=90, policy=policy, params={"mass": mass[0]}, objective="spread")

    def gradient(rows=slice(None), **options):
        sent = {"x": x[rows], "v": v[rows]}
        return client.gradient(world, initial=sent, record=["x", "energy"], **work, **options)

    whole = gradient()
    assert whole.events["push"].count.sum() > 5
    for options in ({"chunk_steps": 1}, {"chunk_steps": 7}, {"checkpoint_interval": 1}):
        assert differences(whole, gradient(**options)) == []
    assert differences(whole, gradient(checkpoint_interval=13)) == []
    for i in range(5):
        alone = gradient(slice(i, i + 1), first_instance=i)
        for found, expected in (
            (alone.state["x"], whole.state["x"]),
            (alone.trajectory["energy"], whole.trajectory["energy"]),
            (alone.path_signatures, whole.path_signatures),
            (alone.values, whole.values),
            (alone.initial["x"], whole.initial["x"]),
            (alone.initial["v"], whole.initial["v"]),
        ):
            assert found[0].tobytes() == expected[i].tobytes()
