"""simgrad.worlds.cartpole against the same cart, pole and network in NumPy."""

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg

STEPS = 50
START = {
    "x": np.array([0.0, 0.3, -0.5]),
    "speed": np.array([0.0, -0.4, 0.2]),
    "angle": np.array([0.05, -0.3, 2.0]),
    "spin": np.array([0.0, 0.5, -1.0]),
}
SIZES = [(4, 1), (4, 8, 1), (4, 16, 12, 1)]


def parameters(sizes, seed=5):
    """Weights that push in earnest, and biases that are not 0."""
    weights = {n: 2 * w for n, w in sg.worlds.cartpole_weights(sizes, seed).items()}
    random = np.random.default_rng(seed)
    biases = {f"b{i}": random.normal(0, 0.1, sizes[i]) for i in range(1, len(sizes))}
    return {**weights, **biases}


def in_numpy(sizes, params, start, steps, h=0.02):
    """States of every step and the sum of costs, for M = cart + pole and half of the length l:
    theta'' = (g sin - cos F/M) / (l (4/3 - m cos^2 / M)) with F = push + m l theta'^2 sin."""
    x, speed, angle, spin = (start[n].copy() for n in ("x", "speed", "angle", "spin"))
    states, cost = [np.stack([x, speed, angle, spin])], 0.0
    for _ in range(steps):
        layer = np.stack([x, speed, angle, spin], axis=1)
        for i in range(1, len(sizes)):
            layer = np.tanh(layer @ params[f"w{i}"] + params[f"b{i}"])
        push = 10 * layer[:, 0]
        cost = cost + 1 - np.cos(angle) + x**2 / 100 + push**2 / 10000
        force = push + 0.05 * spin**2 * np.sin(angle)
        turn = 9.8 * np.sin(angle) - np.cos(angle) * force / 1.1
        turn = turn / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        speed = speed + h * (force - 0.05 * turn * np.cos(angle)) / 1.1
        spin = spin + h * turn
        x, angle = x + h * speed, angle + h * spin
        states.append(np.stack([x, speed, angle, spin]))
    return np.stack(states, axis=1), cost


def run(client, sizes, params, policy="f64", steps=STEPS, **options):
    return client.rollout(
        sg.worlds.cartpole(sizes),
        steps=steps,
        policy=policy,
        initial=START,
        params=params,
        objective="balance",
        **options,
    )


@pytest.mark.parametrize("sizes", [*SIZES, (4, 64, 64, 1)])
def test_it_moves_as_in_numpy(client, sizes):
    params = parameters(sizes)
    states, cost = in_numpy(sizes, params, START, STEPS)
    r = run(client, sizes, params, record=list(START))
    for name, expected in zip(START, states):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            r.trajectory[name], expected.T, rtol=1e-12, atol=1e-12 * scale, err_msg=name
        )
    np.testing.assert_allclose(r.values, cost, rtol=1e-12)


def test_without_a_push_momentum_and_energy_stay_to_first_order(client):
    """Those of a cart and a rod of length 1, from mechanics and not from the equations of motion."""
    zeros = {"w1": np.zeros((4, 1))}

    def run_at(h):
        world = sg.worlds.cartpole((4, 1), h=h)
        r = client.rollout(
            world,
            steps=round(2 / h),
            policy="f64",
            initial=START,
            params=zeros,
            record=["speed", "angle", "spin"],
        )
        speed, angle, spin = (r.trajectory[n] for n in ("speed", "angle", "spin"))
        momentum = 1.1 * speed + 0.05 * spin * np.cos(angle)
        energy = 0.55 * speed**2 + 0.05 * speed * spin * np.cos(angle)
        energy = energy + 0.1 * 0.25 * (2 / 3) * spin**2 + 0.1 * 9.8 * 0.5 * np.cos(angle)
        return np.array([np.ptp(momentum, axis=1).max(), np.ptp(energy, axis=1).max()])

    coarse, fine = run_at(0.002), run_at(0.001)
    assert np.all(fine < [0.01, 0.005]) and np.all(abs(coarse / fine - 2) < 0.05)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_gradient_of_its_weights_agrees_with_central_differences(client, sizes):
    """Matrices are shared by the three carts: the gradient is that of the sum of their costs."""
    params = parameters(sizes)
    g = client.gradient(
        sg.worlds.cartpole(sizes),
        steps=STEPS,
        policy="f64",
        initial=START,
        params=params,
        objective="balance",
    )
    random = np.random.default_rng(9)
    for name, value in params.items():
        assert g.params[name].shape == value.shape
        direction = random.normal(0, 1, value.shape)
        up, down = (
            run(client, sizes, {**params, name: value + by * direction}).value
            for by in (1e-5, -1e-5)
        )
        found = float(np.sum(g.params[name] * direction))
        assert found == pytest.approx((up - down) / 2e-5, rel=1e-6), name


PHYSICS = {"gravity": 9.8, "cart": 1.0, "pole": 0.1, "length": 0.5, "limit": 10.0}


@pytest.mark.parametrize("name", [*PHYSICS, *START])
def test_gradients_by_masses_and_states_agree_with_central_differences(client, name):
    sizes, by = (4, 8, 1), 1e-5
    given = {**PHYSICS, **START}
    world, network = sg.worlds.cartpole(sizes), parameters(sizes)
    direction = np.array([0.7, -1.1, 0.4]) if name in START else 1.0

    def work(moved):
        return dict(
            steps=STEPS,
            policy="f64",
            initial={n: moved[n] for n in START},
            params={**network, **{n: moved[n] for n in PHYSICS}},
            objective="balance",
        )

    g = client.gradient(world, **work(given))
    up, down = (
        client.rollout(world, **work({**given, name: given[name] + e * direction})).value
        for e in (by, -by)
    )
    found = np.sum({**g.params, **g.initial}[name] * direction)
    assert found == pytest.approx((up - down) / (2 * by), rel=1e-6)


def test_checkpoints_and_chunks_change_no_bit(client):
    def run_with(**options):
        return client.gradient(
            sg.worlds.cartpole((4, 8, 1)),
            steps=30,
            policy=sg.Policy("f32").role("network", format="bf16"),
            initial=START,
            params=parameters((4, 8, 1)),
            objective="balance",
            record=["push"],
            **options,
        )

    one = run_with()
    for options in ({"checkpoint_interval": 1}, {"checkpoint_interval": 7}, {"chunk_steps": 4}):
        assert not differences(one, run_with(**options), diagnostics="chunk_steps" not in options)


def rounded(x, bits):
    """x rounded to this many bits of precision, ties to even."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)


def bf16(x):
    return rounded(x, 8)


def test_a_network_in_bf16_is_rounded_as_its_policy_says(client):
    """The first push, to the bit: weights and layers in bf16, sums of products in f32, the cart in f32."""
    sizes = (4, 16, 12, 1)
    params = parameters(sizes)
    policy = sg.Policy("f32").role("network", format="bf16")
    r = run(client, sizes, params, policy, 1, record=["push"])
    layer = bf16(np.stack(list(START.values()), axis=1))
    for i in range(1, len(sizes)):
        sums = np.zeros((3, sizes[i]))
        for k in range(sizes[i - 1]):
            sums = rounded(sums + layer[:, k, None] * bf16(params[f"w{i}"])[k], 24)
        layer = bf16(np.tanh(bf16(bf16(sums) + bf16(params[f"b{i}"]))))
    np.testing.assert_array_equal(r.trajectory["push"][:, 0], rounded(10 * layer[:, 0], 24))


def test_a_network_in_tf32_rounds_what_it_multiplies_and_nothing_else(client):
    """The first push, to the bit: layers, biases and sums of products are those of f32."""
    sizes = (4, 16, 12, 1)
    params = parameters(sizes)
    policy = sg.Policy("f32").role("network", format="tf32")
    r = run(client, sizes, params, policy, 1, record=["push"])
    assert r.program.text.count("inputs=tf32 nearest_even") == len(sizes) - 1
    f32 = {name: rounded(value, 24) for name, value in params.items()}
    layer = rounded(np.stack(list(START.values()), axis=1), 24)
    for i in range(1, len(sizes)):
        sums = np.zeros((3, sizes[i]))
        for k in range(sizes[i - 1]):
            read = rounded(layer[:, k, None], 11) * rounded(f32[f"w{i}"][k], 11)
            sums = rounded(sums + read, 24)
        layer = rounded(np.tanh(rounded(sums + f32[f"b{i}"], 24)), 24)
    np.testing.assert_array_equal(r.trajectory["push"][:, 0], rounded(10 * layer[:, 0], 24))


def test_a_network_in_tf32_has_gradients_beside_those_of_f32(client):
    sizes = (4, 16, 12, 1)
    params = parameters(sizes)

    def weights_of(policy):
        g = client.gradient(
            sg.worlds.cartpole(sizes),
            steps=STEPS,
            policy=policy,
            initial=START,
            params=params,
            objective="balance",
            wrt=["w1", "w2", "w3"],
        )
        return np.concatenate([g.params[f"w{i}"].ravel() for i in (1, 2, 3)])

    exact, plain = weights_of("f64"), weights_of("f32")
    network = sg.Policy("f32").role("network", format="tf32", rounding="toward_zero")
    forward = weights_of(network)
    both = weights_of(network.role("adjoint", format="tf32", rounding="toward_zero"))
    scale = np.abs(exact).max()
    errors = [np.abs(found - exact).max() / scale for found in (plain, forward, both)]
    assert errors[0] < 1e-4 < errors[1] < 0.1 and errors[2] < 0.1
    assert (forward != both).any() and (forward != 0).all()


def test_narrow_networks_differ_and_the_answer_says_what_ran(client):
    sizes = (4, 16, 12, 1)
    params = parameters(sizes)
    exact = run(client, sizes, params).values
    errors = {}
    for name in ("f32", "tf32", "bf16", "e4m3"):
        r = run(client, sizes, params, sg.Policy("f32").role("network", format=name))
        ran = r.program.policy.roles
        assert ran["network"].format == name and ran["network"].accumulator == "f32"
        assert ran["dynamics"].format == ran["state"].format == "f32"
        errors[name] = np.abs(r.values / exact - 1).max()
    assert errors["f32"] < 1e-5 < 1e-4 < errors["bf16"] < 0.1 and errors["bf16"] < errors["e4m3"]
    assert errors["f32"] < errors["tf32"] < errors["bf16"]


def test_sizes_that_do_not_fit_are_refused():
    for sizes in ((4,), (3, 8, 1), (4, 8, 2)):
        with pytest.raises(ValueError, match="from 4 numbers"):
            sg.worlds.cartpole(sizes)
