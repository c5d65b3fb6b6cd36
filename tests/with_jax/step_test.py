"""Steps of JAX as worlds: every kind of operation, loop and branch, against JAX, to the last bits.

JAX runs without fused multiply-adds. Gradients are those of jax.grad.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from live_server import BINARY

import simgrad as sg
import simgrad.jax
from simgrad.jax import fold

X = np.array([0.3, 0.9, 0.7, -0.2])  # f64, where JAX is not yet
PLACES = np.array([0, 1, 3], np.int32)
MATRIX = np.random.default_rng(0).normal(size=(4, 4)) + 4 * np.eye(4)


def positive(x):
    return jnp.outer(x, x) + 4 * jnp.eye(4)


def general(x):
    return positive(x) + jnp.outer(x, x * x)


FUNCTIONS = {
    "constant places": lambda x, k: x[np.array([[0, 2], [1, 1]])].sum() * x,
    "computed places": lambda x, k: x[k].sum() * x,
    "rows": lambda x, k: x * jnp.outer(x, x)[k].sum(0),
    "columns": lambda x, k: x * jnp.outer(x, x * x)[:, k].sum(1),
    "pairs of places": lambda x, k: x * jnp.outer(x, x * x)[k, k[::-1]].sum(),
    "add at": lambda x, k: x.at[k].add(1.0, mode="drop") * x[0],
    "add twice at one": lambda x, k: x.at[jnp.asarray([0, 0, 1])].add(x[k][:3]) * x,
    "add at computed": lambda x, k: x.at[k % 2].add(x[k][:3]) * x,
    "set at": lambda x, k: x.at[k].set(x[k] * x[1]) * x,
    "largest at": lambda x, k: x.at[k].max(0.5) * x,
    "outside": lambda x, k: x * x.at[k + 2].set(7.0, mode="drop") + x.at[k + 2].get(mode="fill", fill_value=2.0)[0],
    "dynamic slice": lambda x, k: x * lax.dynamic_slice(x, (k[0],), (2,)).sum(),
    "dynamic update": lambda x, k: x * lax.dynamic_update_slice(x, x[:2] * 3, (k[1],)),
    "sort": lambda x, k: x * jnp.sort(jnp.stack([x, x * x]), axis=1)[0],
    "argsort": lambda x, k: x * jnp.take_along_axis(x, jnp.argsort(x), 0),
    "cholesky": lambda x, k: x * jnp.linalg.cholesky(positive(x)).sum(0),
    "inverse": lambda x, k: x * jnp.linalg.inv(general(x)).sum(0),
    "solve": lambda x, k: x * jnp.linalg.solve(general(x), x),
    "qr": lambda x, k: jnp.linalg.qr(general(x))[0].sum(0) + jnp.linalg.qr(general(x))[1].sum(0),
    "tall qr": lambda x, k: x * jnp.linalg.norm(jnp.linalg.qr(general(x)[:, :2])[1]),
    "tall factors": lambda x, k: x * lax.linalg.lu(general(x)[:, :2])[0].sum(1) + lax.linalg.lu(general(x)[:, :2])[1].sum(),
    "wide factors": lambda x, k: x * lax.linalg.lu(general(x)[:2])[0].sum(0) + lax.linalg.lu(general(x)[:2])[1].sum(),
    "determinant": lambda x, k: x * jnp.linalg.det(general(x)) * 1e-3,
    "roll and flip": lambda x, k: x * jnp.roll(x, 1) + jnp.flip(x) * x,
    "triangle": lambda x, k: x * jnp.tril(jnp.outer(x, x)).sum(1) + jnp.diag(jnp.outer(x, x)),
    "pad": lambda x, k: x * jnp.pad(x, (2, 1))[1:5] + lax.pad(x, 0.5, [(1, -1, 0)]),
    "whole powers": lambda x, k: sum(lax.pow(x, jnp.full_like(x, n)) for n in (-1, 0, 1, 2, 3)) * 0.1,
    "products": lambda x, k: x * jnp.prod(x) + jnp.cumprod(x) + lax.cumprod(x, reverse=True),
    "sums": lambda x, k: x * jnp.cumsum(x) + lax.cumsum(x, reverse=True),
    "running extremes": lambda x, k: x * lax.cummax(x) + lax.cummin(x),
    "extremes": lambda x, k: x * jnp.max(x) * jnp.min(x) + jnp.maximum(x, 0.4),
    "extremes of two axes": lambda x, k: x * jnp.max(jnp.outer(x, x + 1), axis=(0, 1)),
    "einsum": lambda x, k: jnp.einsum("ij,jk,k->i", MATRIX, MATRIX.T, x) * 0.01,
    "batched products": lambda x, k: jnp.einsum("bij,bj->bi", jnp.stack([general(x)] * 2), jnp.stack([x, x * x])).sum(0) * 0.1,
    "tile and repeat": lambda x, k: jnp.tile(x, 2)[2:6] * jnp.repeat(x[:2], 2),
    "hyperbolic": lambda x, k: jnp.sinh(x) + jnp.cosh(x) * jnp.tanh(x),
    "inverse hyperbolic": lambda x, k: jnp.arcsinh(x) + jnp.arctanh(0.5 * x) + jnp.arccosh(2 + x * x),
    "trigonometric": lambda x, k: jnp.sin(x) * jnp.cos(x) + jnp.tan(0.5 * x) + jnp.arctan2(x, 1.5),
    "inverse trigonometric": lambda x, k: jnp.arcsin(0.5 * x) + jnp.arccos(0.5 * x) * jnp.arctan(x),
    "exponential": lambda x, k: jnp.exp(x) + jnp.exp2(x) + jnp.expm1(x) + jnp.log1p(x * x),
    "logarithms": lambda x, k: jnp.log(2 + x) + jnp.logaddexp(x, 1.0) + jax.nn.softplus(x),
    "powers": lambda x, k: jnp.abs(x) ** 1.7 + x**3 + (2 + x) ** -2 + jnp.cbrt(2 + x) + lax.rsqrt(2 + x),
    "rounding": lambda x, k: x + jnp.floor(x * 3) + jnp.ceil(x) + jnp.round(x * 3) + jnp.trunc(2 * x),
    "remainders": lambda x, k: jnp.mod(x, 0.3) + lax.rem(x, 0.25) + x,
    "clip and sign": lambda x, k: jnp.clip(x, -0.15, 0.5) + jnp.sign(x) * x,
    "erf": lambda x, k: jax.scipy.special.erf(x) + jax.nn.gelu(x) + jax.scipy.special.erfc(x),
    "softmax": lambda x, k: jax.nn.softmax(x) + jax.nn.sigmoid(x) + jax.nn.relu(x),
    "norms": lambda x, k: x * jnp.linalg.norm(x) + jnp.hypot(x, 2.0),
    "integers": lambda x, k: x * ((k[0] * 7 // 3) % 5 + (k[1] << 2) ^ 3),
    "masks": lambda x, k: x * (x > 0.5) + jnp.where((x > 0) & ~(x > 0.8), x * x, -x),
    "switch cases": lambda x, k: lax.select_n(k % 3, x[:3], 2 * x[:3], -x[:3]).sum() * x,
}


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


def compared(client, step, state, steps, near, watch="x"):
    """A check of the trajectory, and the gradient of sum(x^2) against jax.grad or jax.jacfwd."""
    state = jax.tree_util.tree_map(lambda x: jnp.asarray(np.asarray(x)), state)
    world = simgrad.jax.world(
        step, state=state, objective={"square": lambda s: jnp.sum(s[watch] ** 2)}
    )
    found = simgrad.jax.check(world, client, steps)
    assert found.worst <= near, found

    def loss(x):
        following = {**state, watch: x}
        for _ in range(steps):
            following = step(following)
        return jnp.sum(following[watch] ** 2)

    answer = client.gradient(
        world, steps=steps, initial=state, objective="square", policy="f64"
    )
    try:
        expected = jax.grad(loss)(state[watch])
    except ValueError:  # a while_loop
        expected = jax.jacfwd(loss)(state[watch])
    scale = max(1.0, float(jnp.abs(expected).max()))
    np.testing.assert_allclose(answer.initial[watch], expected, atol=3e-13 * scale, rtol=0)
    return world, answer


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_give_what_they_give_in_jax(client, name):
    function = FUNCTIONS[name]

    def step(state):
        x = function(state["x"], state["k"])
        return {"x": x if x.shape == (4,) else jnp.resize(x, 4), "k": (state["k"] + 1) % 4}

    compared(client, step, {"x": X, "k": PLACES}, 2, 2e-15)


def test_five_thousand_operations_are_lowered_in_ten_seconds(client, pytestconfig):
    """Processor time counts; a normal run has five times the room."""
    bounds = np.linspace(-0.5, 0.5, 1000)

    def step(state):
        x = state["x"]
        for bound in bounds:
            x = jnp.where(x > bound, x - bound * jnp.sin(x), x + 0.5)
        return {"x": x}

    begin = time.process_time()
    world = simgrad.jax.world(step, state={"x": X})
    took = time.process_time() - begin
    assert 4900 < world.report().operation_count < 6100 and took <= 10 * (1 if pytestconfig.getoption("--long") else 5)
    assert simgrad.jax.check(world, client, steps=1).worst <= 1e-14


def test_check_runs_a_step_and_a_world_and_prints_the_worst_leaf(client, capsys, monkeypatch):
    def step(state, params):
        return {"x": state["x"] + params["rate"] * jnp.sin(state["v"]), "v": state["v"] * 0.5}

    def other(state, params):
        made = step(state, params)
        return {**made, "x": made["x"] + 0.25 * (state["v"] < 0.2)}

    monkeypatch.setenv("SIMGRAD_SERVER", str(BINARY))
    params = {"rate": jnp.asarray(0.1)}
    world = simgrad.jax.world(step, state={"x": X, "v": X[::-1]}, params=params)
    found = simgrad.jax.check(world, step)  # a server of its own
    assert found.worst <= 1e-15 and found.steps == 5 and {x.name for x in found.leaves} == {"x", "v"}
    assert capsys.readouterr().out == f"5 steps in f64, worst of 2 leaves: {found.leaves[0]}\n"
    # One element of v is below 0.2 from the start, and all are from the third step on.
    wrong = simgrad.jax.check(world, other, client=client, steps=1)
    assert (wrong.leaves[0].name, wrong.worst, wrong.leaves[0].step) == ("x", 0.25, 1)
    assert simgrad.jax.check(world, client, 3) == simgrad.jax.check(world, client=client, steps=3)
    again = simgrad.jax.check(world, client, params={"rate": jnp.asarray(0.2)})
    assert again.worst <= 1e-15
    with pytest.raises(TypeError, match="check has no parameters"):
        simgrad.jax.check(world, client, parameters=params)


def test_check_sees_a_difference_beside_an_infinity_and_in_the_last_digit_of_an_integer(client):
    def step(state):
        return {"x": state["x"] * jnp.asarray([0.5, 1.0]), "n": state["n"] + 2}

    state = {"x": np.array([1.0, np.inf]), "n": np.int64(2**60)}
    world = simgrad.jax.world(step, state=state)
    worst = lambda other: {x.name: x.worst for x in simgrad.jax.check(world, other, client=client, steps=1).leaves}
    assert worst(step) == {"x": 0, "n": 0}
    assert worst(lambda s: {"x": s["x"] * jnp.asarray([0.75, 1.0]), "n": s["n"] + 3}) == {"x": 0.25, "n": 1}
    assert worst(lambda s: {"x": s["x"] * jnp.asarray([0.5, -1.0]), "n": -s["n"]}) == {"x": np.inf, "n": 2.0**61}
    assert worst(lambda s: {"x": jnp.asarray([jnp.inf, jnp.inf]), "n": s["n"] + 2}) == {"x": np.inf, "n": 0}


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_what_a_constant_key_draws_is_what_it_draws_in_jax(client, kind):
    def step(state):
        return {**state, "x": state["x"] + jax.random.normal(jax.random.fold_in(state["key"], 3), (4,))}

    state = {"x": jnp.asarray(X), "key": jax.random.key(7, impl=kind)}
    found = simgrad.jax.check(simgrad.jax.world(step, state=state), client, steps=2)
    assert found.worst <= 1e-15, found


def swung(state, params):
    v = state["v"] - 0.1 * params["k"] * state["x"] / state["mass"]
    return {**state, "x": state["x"] + 0.1 * v, "v": v, "turn": state["turn"] + 1}


SWUNG = {"x": X, "v": X * 0, "mass": jnp.asarray(1.0), "turn": 0, "gain": jnp.asarray(2.0)}


def whole_start(params, data, state):
    mass = jnp.where(data["heavy"] > 0.5, 2.0, 1.0) * params["m"]
    return {**state, "x": data["place"] * params["k"] + state["v"], "mass": mass, "turn": 3}


def some_leaves(params, data):
    return {k: x for k, x in whole_start(params, data, SWUNG).items() if k in ("x", "mass", "turn")}


@pytest.mark.parametrize("init", [whole_start, some_leaves])
def test_a_run_starts_from_what_init_gives_and_gradients_go_through_it(client, init):
    params = {"k": jnp.asarray(1.5), "m": jnp.asarray(0.8)}
    data = {"place": jnp.asarray(X), "heavy": jnp.asarray(1.0)}
    world = simgrad.jax.world(
        swung, state=SWUNG, params=params, data=data, init=init, objective={"far": lambda s: jnp.sum(s["x"] ** 2)}
    )
    # The step returns mass and gain as they are; init gives the mass.
    assert world.state == ("mass", "turn", "v", "x") and world.constants == ("gain",)
    assert world.report().initial and "initial: " in str(world.report())
    found = simgrad.jax.check(world, client, steps=4)
    assert found.worst <= 1e-15, found

    def loss(params):
        state = {**SWUNG, **init(*((params, data) if init is some_leaves else (params, data, SWUNG)))}
        for _ in range(4):
            state = swung(state, params)
        return jnp.sum(state["x"] ** 2)

    expected, by_params = jax.value_and_grad(loss)(params)
    g = client.gradient(world, steps=4, params=params, data=data, objective="far", policy="f64")
    assert g.value == pytest.approx(float(expected), rel=1e-15)
    np.testing.assert_allclose([g.params["k"], g.params["m"]], [by_params["k"], by_params["m"]], rtol=1e-13)
    assert int(np.ravel(g.state["turn"])[0]) == 7


class Pendulum(NamedTuple):
    angle: jax.Array
    speed: jax.Array


def test_a_state_of_another_tree_than_a_mapping_comes_back_and_prints(client):
    def step(state):
        speed = state.speed - 0.01 * jnp.sin(state.angle)
        return Pendulum(state.angle + 0.01 * speed, speed)

    start = Pendulum(jnp.asarray(0.5), jnp.asarray(0.0))
    world = simgrad.jax.world(step, state=start)
    result = client.rollout(world, steps=3, initial=start, policy="f64")
    assert isinstance(result.state, Pendulum)
    assert "Pendulum" in repr(result)


def test_a_while_loop_stops_where_jax_stops_and_is_differentiated(client):
    def step(state):
        x = state["x"]

        def goes_on(carried):
            y, count, change = carried
            return (change > 1e-10) & (count < 50)

        def body(carried):
            y, count, change = carried
            d = jnp.linalg.solve(MATRIX + jnp.diag(3 * y**2), MATRIX @ y + y**3 - jnp.sin(x))
            return y - d, count + 1, jnp.sum(d * d)

        y, count, _ = lax.while_loop(goes_on, body, (x, 0, jnp.inf))
        return {"x": x + 0.1 * y, "n": state["n"] + count}

    world, answer = compared(client, step, {"x": X, "n": jnp.asarray(0)}, 3, 1e-15)
    [(name, loop)] = answer.sites.items()
    assert loop.line.startswith("step_test.py:")
    [op] = [op for op in world.program.step.ops if op.code == "while"]
    assert op.max_iter == 50, "the cap stands in its test"
    assert {site.what for site in world.sites} == {"loop", "test", "choice"}, "pivots of lu choose"
    assert all("change > 1e-10" in s.text for s in world.sites if s.what == "test")


@pytest.mark.parametrize(
    "goes_on, step_of, start",
    [
        (lambda i: i < 7, 1, 2),
        (lambda i: i <= 7, 2, 0),
        (lambda i: 7 > i, 3, 0),
        (lambda i: i != 6, 2, 0),
        (lambda i: i >= -2, -2, 5),
        (lambda i: ~(i < 1), -1, 4),
    ],
)
def test_a_while_loop_that_counts_is_a_for(client, goes_on, step_of, start):
    def step(state):
        def body(carried):
            i, y = carried
            return i + step_of, y + 0.1 * jnp.cos(y * i)

        _, x = lax.while_loop(lambda carried: goes_on(carried[0]), body, (start, state["x"]))
        return {"x": x}

    world, _ = compared(client, step, {"x": X}, 2, 1e-15)
    assert world.report().operations["for"] == 1 and "while" not in world.report().operations


def turned(first, last, x):
    return lax.fori_loop(first, last, lambda j, y: 0.9 * y + 0.1 * jnp.cos(y * j), x)


def pairs_while(x, n):
    goes_on = lambda c: (c[0] < 6) & (c[1].sum() < 1e3)
    return lax.while_loop(goes_on, lambda c: (c[0] + 2, turned(0, c[0], c[1])), (0, x))[1]


BOUNDED = {  # the function of x and of n = 0, 1, ...; caps of its loops, the outer one first
    "a triangle": (lambda x, n: lax.fori_loop(0, 8, lambda i, y: turned(0, i, y), x), [7]),
    "its other half": (lambda x, n: lax.fori_loop(0, 8, lambda i, y: turned(i, 8, y), x), [8]),
    "downwards": (lambda x, n: lax.fori_loop(0, 8, lambda i, y: turned(0, 3 - i, y), x), [3]),
    "a pyramid": (
        lambda x, n: lax.fori_loop(0, 5, lambda i, y: lax.fori_loop(0, i, lambda j, z: turned(0, j, z), y), x),
        [4, 3],
    ),
    "rows": (lambda x, n: lax.scan(lambda y, i: (turned(0, i, y), None), x, jnp.asarray([3, 0, 5]))[0], [5]),
    "in a while": (pairs_while, [3, 4]),
    "a minimum": (lambda x, n: turned(0, jnp.minimum(n, 5), x), [5]),
    "a clipped number": (lambda x, n: turned(-2, jnp.clip(3 * n, 1, 4), x), [6]),
    "a remainder": (lambda x, n: turned(0, lax.rem(n, 3), x), [2]),
    "a place": (lambda x, n: turned(0, jnp.argmax(x), x), [3]),
    "under vmap": (lambda x, n: jax.vmap(turned, (None, 0, 0))(0, jnp.minimum(n + jnp.arange(4), 5), x), [5]),
    "a limit that falls": (
        lambda x, n: lax.while_loop(lambda c: c[0] > jnp.maximum(n, 2), lambda c: (c[0] - 3, 0.9 * c[1]), (9, x))[1],
        [3],
    ),
    "an empty range": (lambda x, n: turned(0, jnp.minimum(n, 0), x) + 0.1 * x, []),
    "a negative range": (lambda x, n: turned(2, jnp.minimum(n, -1), x) + 0.1 * x, []),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_loop_up_to_an_integer_of_a_known_range_has_its_end_as_cap(client, name):
    function, caps = BOUNDED[name]
    step = lambda state: {"x": function(state["x"], state["n"]), "n": state["n"] + 1}
    world, _ = compared(client, step, {"x": X, "n": jnp.asarray(0)}, 3, 1e-14)
    assert [op.max_iter for op in operations_of(world.program.step.ops) if op.code == "while"] == caps


def while_either(goes_on):
    """A loop of x and n while goes_on(k, j, x, n) holds, with k one more and j two less each turn."""

    def looped(x, n):
        return lax.while_loop(lambda c: goes_on(*c, n), lambda c: (c[0] + 1, c[1] - 2, 0.9 * c[2]), (0, 0, x))[2]

    return looped


EITHER = {
    "at the first turn too": (while_either(lambda k, j, x, n: ((k < 7) & (x[0] > 1.0)) | (k == 0)), 7),
    "at the first turn alone": (while_either(lambda k, j, x, n: ((k < 0) & (x[0] > 1.0)) | (k == 0)), 1),
    "the later end": (while_either(lambda k, j, x, n: (k < 4) | (j > -10)), 5),
    "not both": (while_either(lambda k, j, x, n: ~((k >= 6) & (k != 0))), 6),
    "of three": (while_either(lambda k, j, x, n: (k < 3) | ((j > -4) | (k == 8))), 9),
    "of a known range": (while_either(lambda k, j, x, n: (k < jnp.minimum(n + 2, 5)) | (k == 0)), 5),
    "unlike a number that it meets last": (while_either(lambda k, j, x, n: (k != 12) | (k < 9)), 12),
    "unlike a number that it meets before": (while_either(lambda k, j, x, n: ((k != 5) | (k < 9)) & (j > -40)), 20),
    "a side without an end": (while_either(lambda k, j, x, n: ((k < 5) | (x[0] > 0.1)) & (k < 30)), 30),
    "under vmap": (
        lambda x, n: jax.vmap(lambda y, m: while_either(lambda k, j, y, n: ((k < n) & (y > 1)) | (k < 2))(y, m))(
            x, jnp.asarray([3, 6, 0, 1])
        ),
        6,
    ),
}


@pytest.mark.parametrize("name", EITHER)
def test_a_loop_that_goes_on_by_one_of_several_tests_has_a_turn_where_all_fail_as_cap(client, name):
    function, cap = EITHER[name]
    step = lambda state: {"x": function(state["x"], state["n"]), "n": state["n"] + 1}
    world, _ = compared(client, step, {"x": 3 + X, "n": jnp.asarray(0)}, 3, 1e-14)
    assert [op.max_iter for op in operations_of(world.program.step.ops) if op.code == "while"] == [cap]


def operations_of(ops):
    for op in ops:
        yield op
        for region in op.regions:
            yield from operations_of(region.ops)


def test_the_counter_of_an_outer_loop_gives_an_inner_one_no_cap(client):
    def walked(i, x):
        return lax.while_loop(lambda c: (i < 5) & (c[1].sum() > 1), lambda c: (c[0] + 1, 0.9 * c[1]), (0, x))[1]

    world = simgrad.jax.world(lambda s: {"x": lax.fori_loop(0, 8, walked, s["x"])}, state={"x": 50 + X}, max_iter={"walked": 60})
    found = simgrad.jax.check(world, client, 1)
    assert found.worst <= 1e-13, found


def test_scans_take_elements_and_stack_results_in_both_directions(client):
    def step(state):
        x = state["x"]

        def turn(carried, element):
            return carried * 0.5 + element, carried + element

        c, forward = lax.scan(turn, x[0], x * 2)
        d, backward = lax.scan(turn, x[1], x * 2, reverse=True)
        return {"x": forward * 0.1 + backward * 0.2 + c - d}

    compared(client, step, {"x": X}, 2, 1e-15)


def ones(c, row):
    return c * 1.5 - row, None


REVERSED = {
    "nothing is scanned": (lambda c, _: (c * 1.5 - 1, None), None),
    "all rows are equal": (ones, jnp.ones(4)),
    "rows are not read": (lambda c, row: (c * 1.5 - 1, None), jnp.arange(4.0)),
    "what is stacked is not used": (lambda c, _: (c * 1.5 - 1, c), None),
    "rows are read": (ones, jnp.arange(4.0)),
}


@pytest.mark.parametrize("case", REVERSED)
def test_a_scan_in_reverse_may_have_no_rows(client, case):
    body, rows = REVERSED[case]
    compared(client, lambda s: {"x": lax.scan(body, s["x"], rows, length=4, reverse=True)[0]}, {"x": X}, 2, 1e-15)


def masked(goes_on, body, start, length):
    """A scan that does nothing once its work is done, as jaxopt and MJX write it."""

    def run(value):
        following = body(value)
        return following, goes_on(following)

    def turn(carried, _):
        value, going = carried
        return lax.cond(going, run, lambda x: (x, False), value), None

    return lax.scan(turn, (start, goes_on(start)), None, length=length)[0][0]


def test_a_masked_scan_is_a_while(client):
    def step(state):
        x = state["x"]
        root, count = masked(
            lambda v: jnp.abs(v[0] - jnp.sqrt(x)) > 1e-6,
            lambda v: (0.5 * (v[0] + x / v[0]), v[1] + 1),
            (x, 0),
            30,
        )
        return {"x": root + 1.0, "n": state["n"] + count}

    world, answer = compared(client, step, {"x": jnp.asarray(7.0), "n": jnp.asarray(0)}, 3, 1e-15)
    assert "for" not in world.report().operations and "cond" not in world.report().operations
    [loop] = answer.sites.values()
    assert loop.iterations[0, 0] == 5, "it turns no more often than its work takes"


HALVED = lambda c: (0.5 * c[0], c[1] + 1, 0.5 * c[0] < 0.2)
DONE = {
    "by a real": lambda c: c[0] < 0.2,
    "by its opposite": lambda c: ~(c[0] > 0.2),
    "by an integer": lambda c: c[1] >= 4,
    "by either": lambda c: (c[0] < 0.2) | (c[1] > 6),
    "by what it carries": lambda c: c[2],
}


@pytest.mark.parametrize("name", DONE)
def test_a_masked_scan_that_idles_once_it_is_done_is_a_while(client, name):
    def step(state):
        x = state["x"]
        turn = lambda c, _: (lax.cond(DONE[name](c), lambda c: c, HALVED, c), None)
        root, count, _ = lax.scan(turn, (x, 0, x < 0.2), None, length=20)[0]
        return {"x": root + 1.0, "n": state["n"] + count}

    world, answer = compared(client, step, {"x": jnp.asarray(7.0), "n": jnp.asarray(0)}, 3, 1e-15)
    assert world.report().operations["while"] == 1 and not {"for", "cond"} & set(world.report().operations)
    [loop] = answer.sites.values()
    assert loop.iterations[0, 0] == (4 if name == "by an integer" else 6)


def test_a_branch_that_stands_twice_in_a_masked_scan_is_taken_where_its_mask_is(client):
    @jax.jit
    def advance(is_on, x, other):
        return lax.cond(is_on, lambda x, o: 0.5 * x, lambda x, o: o, x, other)

    def step(state):
        turn = lambda x, _: (advance(x > 0.1, advance(x > 5.0, x, x), x), None)
        return {"x": lax.scan(turn, state["x"], None, length=9)[0] + 2.0}

    world, _ = compared(client, step, {"x": jnp.asarray(2.8)}, 2, 1e-15)
    assert world.report().operations["while"] == world.report().operations["cond"] == 1, "x > 5 is another condition"


def test_branches_run_alone(client):
    def step(state):
        x = state["x"]
        a = lax.cond(jnp.sum(x) > 1.0, jnp.sin, lambda y: 0.5 * y, x)
        cases = [lambda y: y, lambda y: -y, lambda y: jnp.exp(-y * y)]
        return {"x": a + 0.1 * lax.switch(jnp.argmax(x), cases, x)}

    world, _ = compared(client, step, {"x": X[:3]}, 4, 1e-15)
    assert world.report().operations["cond"] == 2


def test_custom_derivatives_are_kept_or_inlined(client):
    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    sine.defjvp(lambda x, t: (sine(*x), 11 * t[0]))

    @jax.custom_vjp
    def product(x, k):
        return x * x * k

    product.defvjp(
        lambda x, k: (product(x, k), (x, k)), lambda r, g: (7 * r[0] * g, 5 * r[1] * jnp.sum(g))
    )

    def step(state):
        return {"x": 0.1 * product(state["x"], state["x"][0]) + sine(state["x"])}

    compared(client, step, {"x": X}, 2, 1e-15)
    world = simgrad.jax.world(
        step, state={"x": X}, custom="inline", objective={"sum": lambda s: jnp.sum(s["x"])}
    )
    g = client.gradient(world, steps=1, initial={"x": X}, objective="sum", policy="f64")
    expected = jnp.cos(X) + 0.2 * X * X[0] + jnp.eye(4)[0] * 0.1 * jnp.sum(X * X)
    np.testing.assert_allclose(g.initial["x"], expected, rtol=1e-14)


TIED = np.array([0.0, 0.5, 0.5, -0.25])
KINKS = {
    "max": lambda x: jnp.maximum(x, 0.5) + x,
    "min": lambda x: jnp.minimum(x, x[::-1]) * 2,
    "abs": lambda x: jnp.abs(x) + 0.5 * x,
    "clip": lambda x: jnp.clip(x, -0.25, 0.5) + x * x,
    "largest": lambda x: x * jnp.max(x) + jnp.max(jnp.outer(x, x), axis=(0, 1)),
    "smallest of rows": lambda x: jnp.min(jnp.stack([x, x * 0, x * x]), axis=0) + x,
    "in a loop": lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.maximum(y * 0.5, x * 0.5**i) + x, x),
    "in a while": lambda x: lax.while_loop(
        lambda c: (c[0] < 4) & (jnp.max(c[1]) < 9.0), lambda c: (c[0] + 1, jnp.abs(c[1]) + jnp.maximum(c[1], 0.5)), (0, x)
    )[1],
    "in a branch": lambda x: lax.cond(x[1] > 0.2, lambda y: jnp.maximum(y, 0.5), lambda y: y, x),
}


@pytest.mark.parametrize("name", KINKS)
def test_ties_have_the_derivatives_of_jax_where_they_are_asked_for(client, name):
    step = lambda s: {"x": KINKS[name](s["x"])}
    weights = np.array([1.0, 2.0, -3.0, 5.0])
    objective = {"sum": lambda s: jnp.sum(weights * jnp.maximum(s["x"], s["x"]))}
    run = dict(steps=1, initial={"x": TIED}, objective="sum", policy="f64")
    plain, tied = (
        client.gradient(simgrad.jax.world(step, state={"x": TIED}, objective=objective, kinks=kinks), **run)
        for kinks in ("simgrad", "jax")
    )
    loss = lambda x: objective["sum"](step({"x": x}))
    try:
        expected = jax.grad(loss)(TIED)
    except ValueError:  # a while_loop
        expected = jax.jacfwd(loss)(TIED)
    np.testing.assert_allclose(np.ravel(tied.initial["x"]), expected, rtol=1e-14, atol=1e-15)
    assert tied.state["x"].tobytes() == plain.state["x"].tobytes()
    assert list(tied.sites) == list(plain.sites) and list(tied.events) == list(plain.events)
    assert np.abs(np.ravel(plain.initial["x"]) - expected).max() > 0.1, "nothing was tied"


def test_what_is_state_is_found(client):
    def step(state):
        x, v = state["x"], state["v"]
        v = v - 0.01 * state["stiffness"] * x
        return {**state, "x": x + 0.01 * v, "v": v, "energy": jnp.sum(v * v), "time": state["time"] + 1}

    state = {"x": X, "v": X, "stiffness": jnp.asarray(2.0), "energy": jnp.zeros(()), "time": 0}
    world = simgrad.jax.world(step, state=state, observe=["energy"])
    assert world.state == ("time", "v", "x")
    assert world.constants == ("stiffness",)
    assert world.observables == world.exports == ("energy",)
    r = client.rollout(world, steps=4, initial=state, record=["energy"], policy="f64")
    assert r.state["energy"][0] == r.trajectory["energy"][0, -1] > 0
    assert float(r.state["stiffness"][0]) == 2.0 and int(r.state["time"][0]) == 4
    with pytest.raises(ValueError, match="state stiffness is part of the world"):
        client.rollout(world, steps=1, initial={**state, "stiffness": jnp.asarray(3.0)})
    with pytest.raises(TypeError, match="a pytree like the example"):
        client.rollout(world, steps=1, initial=[X, X])


def test_a_leaf_that_is_not_observed_is_told_to_be_where_it_is_recorded(client):
    def step(state):
        return {"n": state["n"] + 1.0, "hit": state["n"] > 2.0, "late": state["n"] > 3.0}

    state = {"n": 0.0, "hit": False, "late": False}
    world = simgrad.jax.world(step, state=state, observe=["late"])
    told = str(world.report()).splitlines()
    assert "observables: late" in told and "observables that cannot be recorded without observe=: hit" in told
    run = dict(steps=4, initial=state)
    with pytest.raises(ValueError, match=r"record 'hit': no step reads .* observe=\['hit'\]"):
        client.rollout(world, record=["n", "hit"], **run)
    with pytest.raises(ValueError, match=r"observe=\['hit'\]"):
        simgrad.jax.function(client, world, record=["hit"])(state, steps=4)
    assert client.rollout(world, record=["late"], **run).trajectory["late"].sum() == 0
    observed = simgrad.jax.world(step, state=state, observe=["late", "hit"])
    assert client.rollout(observed, record=["hit"], **run).trajectory["hit"][0].tolist() == [False, False, False, True]


def test_roles_follow_the_written_rule():
    def step(state):
        x = state["x"]
        y = lax.while_loop(
            lambda v: jnp.sum((v * v - x) ** 2) > 1e-12, lambda v: 0.5 * (v + x / v), x
        )
        alarm = jnp.mean(x) > 2.0
        return {"x": y + jnp.where(alarm, 0.0, 1.0)}

    world = simgrad.jax.world(
        step,
        state={"x": jnp.array([2.0, 3.0])},
        max_iter={"step": 40},
        objective={"square": lambda s: jnp.sum(s["x"] ** 2)},
    )
    ops = {}

    def walk(region):
        for op in region.ops:
            ops.setdefault((op.code, op.role), []).append(op)
            for nested in op.regions:
                walk(nested)

    walk(world.program.step)
    assert {role for code, role in ops if code == "sum"} == {"termination", "event"}
    assert {role for code, role in ops if code == "gt"} == {"termination", "event"}
    assert ("div", "solver") in ops and ("while", "solver") in ops
    [objective] = world.program.objectives
    assert {op.role for op in objective.terminal.ops} == {"objective"}


def drag(v):
    return 0.1 * v * jnp.abs(v)


def gated(state):
    with jax.named_scope("wheel"):
        v = state["v"] - drag(state["v"])
    y = lax.while_loop(lambda y: jnp.sum(y * y) > 1e-3, lambda y: 0.25 * y, state["x"] + v)
    return {"x": jnp.where(v > 0.2, v, y), "v": v * 0.99}


GATED = {"x": X, "v": X[::-1]}


def at(function, offset):
    return f"step_test.py:{function.__code__.co_firstlineno + offset}"


def test_an_author_gives_functions_and_scopes_roles_and_lines_names(client):
    wide = simgrad.jax.world(gated, state=GATED, max_iter={"gated": 30})
    world = simgrad.jax.world(
        gated,
        state=GATED,
        max_iter={at(gated, 3): 30},
        roles={"drag": "network", "wheel": "objective"},
        sites={at(gated, 4): "gate", at(gated, 3): "settle"},
    )
    functions = world.report().roles
    assert functions["network"] == {"drag": 3} and functions["objective"] == {"gated": 1}
    assert "network" not in wide.report().roles and functions["solver"] == wide.report().roles["solver"]
    assert "  network 3: drag 3" in str(world.report()).splitlines()
    run = dict(steps=2, initial=GATED, policy="f64")
    answer, plain = client.rollout(world, **run), client.rollout(wide, **run)
    assert list(answer.sites) == ["settle"] and "gate" in answer.events
    assert [s.name for s in world.sites if s.line == at(gated, 4)] == ["gate"]
    assert answer.state["x"].tobytes() == plain.state["x"].tobytes()
    coarse = sg.Policy("f64").role("network", format="bf16")
    rounded = client.rollout(world, **{**run, "policy": coarse})
    assert (rounded.state["v"] != answer.state["v"]).any()
    assert (client.rollout(wide, **{**run, "policy": coarse}).state["v"] == plain.state["v"]).all()


def test_functions_of_the_next_state_are_observed(client):
    observe = {"centre": lambda s: jnp.mean(s["x"]), "pair": lambda s: {"low": s["v"][0], "high": s["v"][-1]}}
    world = simgrad.jax.world(gated, state=GATED, max_iter={"gated": 30}, observe=observe)
    assert sorted(world.exports) == ["centre", "pair.high", "pair.low"]
    record = [*world.exports, "x", "v"]
    r = client.rollout(world, steps=3, initial=GATED, policy="f64", record=record)
    x, v = r.trajectory["x"][0, 1:], r.trajectory["v"][0, 1:]
    np.testing.assert_allclose(r.trajectory["centre"][0], x.mean(axis=1), rtol=1e-15)
    assert (r.trajectory["pair.low"][0] == v[:, 0]).all() and (r.trajectory["pair.high"][0] == v[:, -1]).all()


@pytest.mark.parametrize("exponent, codes", [(2.0, {"mul"}), (-1.0, {"div"}), (1.0, set()), (0.5, {"pow"}), ([2.0, 3.0], {"pow"})])
def test_powers_that_xla_knows_as_products_are_products(exponent, codes):
    y = np.broadcast_to(exponent, 2)
    world = simgrad.jax.world(lambda state: {"x": lax.pow(state["x"], jnp.asarray(y))}, state={"x": np.ones(2)})
    assert {op.code for op in world.program.step.ops} & {"pow", "mul", "div"} == codes


def test_the_level_says_which_tests_are_told(client):
    def step(state):
        made = gated(state)
        return {**made, "v": made["v"] / jnp.where(state["x"] > 1e-9, 1.0, 2.0)}

    told = {}
    for level in ("loops", "decisions", "all"):
        world = simgrad.jax.world(step, state=GATED, max_iter={"gated": 30}, tests=level)
        r = client.rollout(world, steps=2, initial=GATED, policy="f64")
        told[level] = (set(r.sites), {name.partition("#")[0] for name in r.events})
    loop, deciding = {"step_test.gated.1"}, {"step_test.gated.2", "step_test.gated.lambda.1"}
    [guard] = [s.name for s in world.sites if s.kind == "guard"]
    assert told["loops"] == (loop, set())
    assert told["decisions"] == (loop, deciding) and told["all"] == (loop, {*deciding, guard})


def test_the_report_tells_what_was_inlined_and_all_constants_of_a_format():
    @jax.custom_vjp
    def halved(x):
        return 0.5 * x

    halved.defvjp(lambda x: (halved(x), x), lambda x, g: (g,))
    eps = float(np.finfo(np.float64).eps)

    def step(state):
        x = halved(state["x"])
        return {"x": jnp.where(x > 8 * eps, x, jnp.minimum(x, float(np.finfo(np.float64).max)) + 2 * eps)}

    report = simgrad.jax.world(step, state={"x": X}, custom="inline").report()
    assert "lowered in another form: custom_vjp_call: inlined 1" in str(report).splitlines()
    assert report.format_constants == {at(step, 2): "8 eps, the largest number, 2 eps"}
    assert f"  {at(step, 2)}: 8 eps, the largest number, 2 eps" in str(report).splitlines()


def test_stage_costs_and_terminal_costs_read_what_they_name(client):
    def step(state, control, params):
        v = state["v"] + 0.1 * (control["push"] - params["k"] * state["x"])
        return {"x": state["x"] + 0.1 * v, "v": v, "power": jnp.sum(v * control["push"])}

    state = {"x": X, "v": X * 0, "power": jnp.zeros(())}
    control, params = {"push": X}, {"k": jnp.asarray(2.0)}
    world = simgrad.jax.world(
        step,
        state=state,
        control=control,
        params=params,
        objective={
            "effort": {
                "stage": lambda s, u, p: jnp.sum(s["x"] ** 2) + p["k"] * jnp.sum(u["push"] ** 2),
                "terminal": lambda s: s["power"],
            }
        },
    )
    pushes = jnp.stack([X, 2 * X, -X])

    def loss(state, pushes, params):
        total = 0.0
        for push in pushes:
            total += jnp.sum(state["x"] ** 2) + params["k"] * jnp.sum(push**2)
            state = step(state, {"push": push}, params)
        return total + state["power"]

    expected = jax.grad(loss, (0, 1, 2))(state, pushes, params)
    g = client.gradient(
        world,
        steps=3,
        initial=state,
        controls={"push": np.asarray(pushes)[None]},
        params=params,
        objective="effort",
        policy="f64",
    )
    assert g.value == pytest.approx(float(loss(state, pushes, params)), rel=1e-15)
    np.testing.assert_allclose(g.initial["x"], expected[0]["x"], rtol=1e-13)
    np.testing.assert_allclose(g.controls["push"][0], expected[1], rtol=1e-13)
    np.testing.assert_allclose(g.params["k"], expected[2]["k"], rtol=1e-13)


def test_kinds_of_sites_are_those_that_the_server_finds(client):
    def step(state):
        x = state["x"]
        near = jnp.where(jnp.abs(x) < 1e-9, 1.0, x)  # a guard
        low = x < 0.35  # decides
        heavy = (x > 0.8) * x  # weighs
        y = lax.while_loop(lambda v: jnp.sum(v) > 0.1, lambda v: 0.5 * v, near)
        return {"x": jnp.where(low, 1.1 * x, heavy) + y}

    world = simgrad.jax.world(step, state={"x": X}, max_iter={"step": 60}, tests="all")
    r = client.rollout(world, steps=1, initial={"x": X}, policy="f64")
    found = {site.name: site.kind for site in world.sites if site.what == "test"}
    assert sorted(found.values()) == ["event", "guard", "termination", "weight"]
    assert {name: event.kind for name, event in r.events.items()} == found


def chose(state):
    x = state["x"]
    best = x[jnp.argmax(x)]
    order = jnp.argsort(-x)
    lower = jnp.linalg.cholesky(positive(x))
    solved = jnp.linalg.solve(general(x), x)
    place = x[jnp.floor(3 * jnp.abs(x[0])).astype(int) % 4]
    weight = (10 * x).astype(int).astype(float)  # reaches nothing that is chosen
    return {"x": 0.1 * (x[order] + best + lower.sum(1) + solved + place) + 0.01 * weight, "n": (state["n"] + x[1]).astype(int)}


CHOSE = {"x": X, "n": 0}


def test_choices_are_sites_with_their_lines(client):
    def told(**options):
        world = simgrad.jax.world(chose, state=CHOSE, **options)
        r = client.rollout(world, steps=2, initial=CHOSE, policy="f64")
        events = {(name.partition("#")[0], e.line) for name, e in r.events.items()}
        return world, events, {(s.name, s.line) for s in world.sites if s.what == "choice"}

    world, events, sites = told()
    assert sites == {
        ("argmax", at(chose, 2)),
        ("argsort", at(chose, 3)),
        ("cholesky", at(chose, 4)),
        ("lu", at(chose, 5)),
        ("convert", at(chose, 6)),
        ("convert", at(chose, 8)),
    }
    assert events == {(s.name, s.line) for s in world.sites}
    assert f"  argmax  {at(chose, 2)} (1 x choice, 1 elements): best = x[jnp.argmax(x)]" in str(world.report()).splitlines()
    _, events, sites = told(sites={at(chose, 2): "winner"})
    assert ("winner", at(chose, 2)) in events & sites and ("argmax", at(chose, 2)) not in events | sites
    assert not told(tests="loops")[2]


@pytest.mark.parametrize("narrow", ["float32", "bfloat16", "float16"])
def test_formats_that_a_step_names_are_kept(client, narrow):
    third, large = jnp.asarray(1 / 3, narrow), jnp.asarray(60000.0, narrow)  # rounded while tracing

    def step(state):
        x = state["x"].astype(narrow)
        y = jnp.sqrt(jnp.abs(x * third + x)) / (1 + x * x) + jnp.exp2(x) * large * (x * 1e-7)
        bits = (8, 23) if narrow == "float32" else (8, 7) if narrow == "bfloat16" else (5, 10)
        return {"x": y.astype(jnp.float64) + 0.1 * lax.reduce_precision(state["x"], *bits)}

    state = {"x": jnp.asarray([*X, 1e-6, 3e-8])}
    kept = simgrad.jax.world(step, state=state, formats="keep")
    assert simgrad.jax.check(kept, client, steps=4).worst == 0.0
    assert not kept.report().erased
    erased = simgrad.jax.world(step, state=state)
    assert simgrad.jax.check(erased, client, steps=4).worst > 1e-9 and erased.report().erased


def test_cotangents_of_a_format_that_is_kept_are_not_rounded(client):
    def step(state):
        x = state["x"].astype(jnp.bfloat16)
        return {"x": jnp.sin(x * x).astype(jnp.float64)}

    world = simgrad.jax.world(step, state={"x": X}, formats="keep", objective={"sum": lambda s: jnp.sum(s["x"])})
    g = client.gradient(world, steps=1, initial={"x": X}, objective="sum", policy="f64")
    x = jnp.asarray(X, jnp.bfloat16)
    product = (x * x).astype(jnp.float64)
    np.testing.assert_allclose(g.initial["x"], jnp.cos(product) * 2 * x.astype(jnp.float64), rtol=1e-15)
    in_jax = jax.grad(lambda x: jnp.sum(step({"x": x})["x"]))(X)
    assert 0 < np.max(np.abs(g.initial["x"] - in_jax) / np.abs(in_jax)) < 0.02


UPDATES = {
    "known places": lambda x, k, third: x.at[jnp.array([0, 2])].multiply(third),
    "computed places": lambda x, k, third: x.at[k].multiply(third),
    "subtracted": lambda x, k, third: x.at[k].subtract(third),
    "next": lambda x, k, third: x * jnp.nextafter(third, jnp.ones_like(third)),
}


@pytest.mark.parametrize("narrow", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", UPDATES)
def test_formats_that_a_step_names_are_kept_by_updates_of_elements(client, name, narrow):
    third = jnp.asarray(1 / 3, narrow)

    def step(state):
        x = UPDATES[name](state["x"].astype(narrow), state["k"], third)
        return {"x": x.astype(jnp.float64), "k": (state["k"] + 1) % 4}

    world = simgrad.jax.world(step, state={"x": X, "k": PLACES}, formats="keep")
    assert simgrad.jax.check(world, client, steps=3).worst == 0.0


def squared_and_multiplied(x, n):
    made = {1: x, 2: x * x, 3: x * (x * x), 4: (x * x) * (x * x), 7: (x * (x * x)) * ((x * x) * (x * x))}[abs(n)]
    return made if n > 0 else np.float32(1) / made


# By the word of a product: the step's, and NumPy's in f32.
PRODUCTS = {
    **{f"power {n}": (lambda x, n=n: x**n, lambda x, n=n: squared_and_multiplied(x, n)) for n in (2, 3, 4, 7, -1, -2, -3, -7)},
    "power by an array": (lambda x: jnp.power(x, jnp.full(x.shape, 3.0, x.dtype)), lambda x: squared_and_multiplied(x, 3)),
    "product": (lambda x: x * jnp.prod(x), lambda x: x * np.prod(x)),
    "product of rows": (lambda x: x * jnp.prod(x, 0), lambda x: x * np.prod(x, 0)),
    "products so far": (lambda x: jnp.cumprod(x, 1), lambda x: np.cumprod(x, 1)),
    "reciprocal root": (lambda x: lax.rsqrt(jnp.abs(x)), lambda x: np.float32(1) / np.sqrt(np.abs(x))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_each_product_is_rounded_to_a_format_that_is_kept(client, name):
    ours, numpys = PRODUCTS[name]
    x = np.random.default_rng(0).normal(size=(50, 3, 5))
    made = lambda y: ours(y.astype(jnp.float32)).astype(float)
    world = simgrad.jax.world(lambda s: {"x": made(s["x"])}, state={"x": x[0]}, formats="keep", objective={"o": lambda s: jnp.sum(s["x"])})
    g = client.gradient(world, steps=1, initial={"x": x}, objective="o", policy="f64")
    np.testing.assert_array_equal(g.state["x"], [numpys(y.astype(np.float32)) for y in x])
    expected = jax.vmap(jax.grad(lambda y: jnp.sum(ours(y))))(x)
    np.testing.assert_allclose(g.initial["x"], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("bits", [(8, 23), (8, 7), (5, 10)])
def test_reduced_precision_has_no_subnormal_numbers(client, bits):
    smallest = 2.0 ** (2 - 2 ** (bits[0] - 1))
    kept = smallest * (1 - 2.0 ** -(bits[1] + 2))  # XLA rounds it up to the smallest normal number
    near = np.array([0.5, 1 - 2.0**-bits[1], 1 - 2.0**-50, 1.0, 1 + 2.0 ** -(bits[1] + 2), 1.5, 3.0])
    x = np.concatenate([smallest * near, [kept, np.nextafter(kept, 0), 0.0, np.inf, 0.3, 1e5]])
    step = lambda state: {"x": state["x"] * 1.0, "y": 0 * state["y"] + lax.reduce_precision(state["x"], *bits)}
    state = {"x": np.concatenate([x, -x]), "y": np.zeros(2 * x.size)}
    world = simgrad.jax.world(step, state=state, formats="keep")
    found = client.rollout(world, steps=1, initial=state, policy="f64").state["y"][0]
    np.testing.assert_array_equal(found, step(state)["y"])
    assert not world.sites
    for policy in ("f32", "f16_unsafe"):
        r = client.rollout(world, steps=1, initial={**state, "x": np.full(x.size * 2, 8.0)}, policy=policy)
        assert r.ok.all() and (np.asarray(r.state["y"], float) == 8.0).all()


def test_the_next_number_of_a_format_that_is_kept_is_refused(client):
    step = lambda s: {"x": jnp.nextafter(s["x"].astype(jnp.float32), jnp.float32(2.0)).astype(float)}
    with pytest.raises(simgrad.jax.JaxWorldError, match=r'step_test.py:\d+: nextafter of float32 with formats="keep"'):
        simgrad.jax.world(step, state={"x": X}, formats="keep")
    simgrad.jax.world(step, state={"x": X})
    own = simgrad.jax.world(lambda s: {"x": jnp.nextafter(s["x"], 2.0)}, state={"x": X}, formats="keep")
    assert simgrad.jax.check(own, client, steps=1).worst == 0.0


def test_known_numbers_are_rounded_as_the_server_rounds_them():
    import ml_dtypes

    halves = np.ldexp(1 + np.arange(1, 4096, 2) / 2**11, np.arange(2048) % 40 - 20)
    given = np.concatenate([halves, -halves, [0.0, -0.0, np.inf, -np.inf, 65519.9, 65520.0, 6e-8, 2.9e-8, 3.4e38, 3.5e38, 1e-45]])
    for name, dtype in (("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        with np.errstate(over="ignore"):
            expected = given.astype(dtype).astype(np.float64)
        assert fold.cast(given, name).tobytes() == expected.tobytes(), name
    assert np.isnan(fold.cast(np.asarray(np.nan), "bf16"))


def test_an_error_of_equinox_ends_the_run_with_an_error(client):
    equinox = pytest.importorskip("equinox")

    def checked(state):
        x = state["x"] * 2.0

        def turn(carried, _):
            return equinox.error_if(carried + 0.1, carried > 1e6, "in a loop"), None

        warmed, _ = lax.scan(turn, x, None, length=2)
        return {"x": equinox.error_if(warmed, jnp.sum(x) > 10.0, "too warm"), "heat": jnp.sum(x)}

    state = {"x": jnp.asarray([0.5, 1.0]), "heat": jnp.zeros(())}
    options = dict(state=state, objective={"far": lambda s: jnp.sum(s["x"])})
    world = simgrad.jax.world(checked, **options)
    assert [*world.report().halts.values()] == [at(checked, 7)]
    world = simgrad.jax.world(checked, sites={at(checked, 7): "too_warm"}, **options)
    assert world.report().halts == {"too_warm": at(checked, 7)}
    assert world.report().dropped == {at(checked, 4): "error_if"}
    assert world.report().messages == {"too_warm": "too warm"}
    told = str(world.report()).splitlines()
    assert "callbacks dropped:" not in told
    for title, line in (
        ("error_if dropped, its condition is not tested:", f"  {at(checked, 4)}: error_if"),
        ("error_if that ends a run with an error:", f"  too_warm: {at(checked, 7)}: too warm"),
    ):
        assert told[told.index(title) + 1] == line
    initial = {"x": np.asarray([[0.5, 1.0], [0.1, 0.2], [50.0, 50.0]]), "heat": np.zeros(3)}
    run = dict(steps=3, initial=initial, policy="f64")
    r = client.rollout(world, objective="far", **run)
    assert [(h.instance, h.halt, h.step, h.error) for h in r.halted] == [
        (0, "too_warm", 2, True),
        (2, "too_warm", 0, True),
    ]
    assert {(h.line, h.message) for h in r.halted} == {(at(checked, 7), "too warm")}
    said = f"2 instances by too_warm ({at(checked, 7)}), first at step 0, with an error: too warm"
    assert said in " ".join(repr(r).split())
    expected = {"x": jnp.asarray(initial["x"][1])}
    for _ in range(3):
        expected = checked(expected)
    np.testing.assert_allclose(r.state["x"][1], expected["x"], rtol=1e-15)
    # A halt would leave 0 of what is observed for a cost to read.
    costly = simgrad.jax.world(checked, **{**options, "objective": {"heat": lambda s: s["heat"]}})
    assert not costly.report().halts and at(checked, 7) in costly.report().dropped
    assert np.isfinite(client.rollout(costly, objective="heat", **run).values).all()


def squared(s):
    v = s["v"] - 0.01 * s["x"]
    return {"x": s["x"] + 0.01 * v, "v": v, "e": v * v}  # e is written, and never read


SUBSTEPS = {
    "scan": lambda s: lax.scan(lambda c, _: (squared(c), None), s, None, length=4)[0],
    "fori_loop": lambda s: lax.fori_loop(0, 4, lambda _, c: squared(c), s),
    "in a scan": lambda s: lax.scan(lambda c, _: (lax.fori_loop(0, 2, lambda _, d: squared(d), c), None), s, None, length=2)[0],
    "while": lambda s: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, squared(c[1])), (0, s))[1],
}


@pytest.mark.parametrize("name", SUBSTEPS)
def test_a_leaf_that_no_turn_of_substeps_reads_is_no_state(client, name):
    step = SUBSTEPS[name]
    world = simgrad.jax.world(step, state={"x": 1.0, "v": 0.0, "e": 0.0}, objective={"end": lambda s: s["x"] ** 2})
    assert set(world.state) == {"x", "v"} and world.observables == ("e",)
    assert simgrad.jax.check(world, client, steps=3).worst <= 1e-15
    g = client.gradient(world, steps=1, initial={"x": [1.0], "v": [0.5]}, objective="end", policy="f64")
    expected = jax.grad(lambda s: SUBSTEPS["scan"](s)["x"] ** 2)({"x": 1.0, "v": 0.5, "e": 0.0})
    np.testing.assert_allclose([g.initial["x"][0], g.initial["v"][0]], [expected["x"], expected["v"]], rtol=1e-13)


def test_a_leaf_that_a_loop_may_not_write_is_state(client):
    turns = lambda s: lax.while_loop(lambda c: c["x"] > 0.5, lambda c: {**squared(c), "x": c["x"] * 0.5}, s)
    world = simgrad.jax.world(turns, state={"x": 1.0, "v": 0.0, "e": 0.0}, max_iter={"<lambda>": 10})
    assert set(world.state) == {"x", "v", "e"}
