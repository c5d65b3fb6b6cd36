"""A rollout as a function of JAX: under jit, grad and vmap, as if the steps were JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import simgrad.jax

STEPS = 20
STATE = {
    "x": np.array([1.0, 0.0, -0.4]),
    "v": np.zeros(3),
    "n": np.int32(0),
    "mass": np.float64(2.0),
    "energy": np.float64(0.0),
}
PARAMS = {"k": np.float64(3.0)}
PUSH = np.full(3, 0.1)
PUSHES = np.random.default_rng(0).normal(size=(STEPS, 3))


def step(state, control, params):
    v = state["v"] + 0.01 * (-params["k"] * state["x"] + control) / state["mass"]
    energy = jnp.sum(v * v)
    return {**state, "x": state["x"] + 0.01 * v, "v": v, "n": state["n"] + 1, "energy": energy}


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def world():
    return simgrad.jax.world(step, state=STATE, control=PUSH, params=PARAMS, observe=["energy"])


@pytest.fixture
def run(client, world):
    return simgrad.jax.function(client, world, steps=STEPS, policy="f64", record=["energy", "x"])


def unrolled(state, control, params, steps=STEPS):
    energies = []
    for t in range(steps):
        state = step(state, control[t] if control.ndim == 2 else control, params)
        energies.append(state["energy"])
    return state, jnp.stack(energies)


def ours(run):
    def loss(params, state, control):
        out = run(state, control=control, params=params)
        recorded = 2 * out.trajectory["energy"].sum() + out.trajectory["x"][3].sum()
        return jnp.sum(out.state["x"] ** 3) + recorded + out.state["energy"]

    return loss


def theirs(params, state, control):
    last, energies = unrolled(state, control, params)
    third, _ = unrolled(state, control, params, 3)
    return jnp.sum(last["x"] ** 3) + 2 * energies.sum() + third["x"].sum() + last["energy"]


class Counted:
    """A client's methods, with how often each is called."""

    def __init__(self, client, monkeypatch):
        self.calls = []
        stub = client._service.stub
        for name in ("Rollout", "Gradient", "Vjp"):
            monkeypatch.setattr(stub, name, self._counting(name, getattr(stub, name)))

    def _counting(self, name, method):
        def called(*arguments, **options):
            self.calls.append(name)
            return method(*arguments, **options)

        return called


@pytest.mark.parametrize("control", [PUSH, PUSHES], ids=["one control", "a control per step"])
@pytest.mark.parametrize("compiled", [False, True], ids=["as it is", "jit"])
def test_value_and_gradients_are_those_of_the_unrolled_steps(run, control, compiled):
    function = jax.value_and_grad(ours(run), (0, 2))
    value, gradients = (jax.jit(function) if compiled else function)(PARAMS, STATE, control)
    expected, wanted = jax.value_and_grad(theirs, (0, 2))(PARAMS, STATE, jnp.asarray(control))
    np.testing.assert_allclose(value, expected, rtol=1e-14)
    for a, b in zip(jax.tree_util.tree_leaves(gradients), jax.tree_util.tree_leaves(wanted)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_a_batch_is_one_call(run, client, monkeypatch):
    counted = Counted(client, monkeypatch)
    xs = STATE["x"] * jnp.arange(1.0, 6.0)[:, None]

    def loss(x, params, roll):
        state = {**{k: jnp.asarray(v) for k, v in STATE.items()}, "x": x}
        if roll is run:
            return jnp.sum(run(state, control=PUSHES, params=params).state["x"] ** 2)
        return jnp.sum(unrolled(state, jnp.asarray(PUSHES), params)[0]["x"] ** 2)

    batched = lambda roll: jax.vmap(
        jax.grad(lambda x, p: loss(x, p, roll), argnums=(0, 1)), in_axes=(0, None)
    )(xs, PARAMS)
    found = batched(run)
    assert counted.calls == ["Rollout", "Vjp"]
    expected = batched(None)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1]["k"], expected[1]["k"], rtol=1e-12)


def of_one(function):
    """The function under vmap, for a batch of one."""
    return lambda state: jax.vmap(function)(jax.tree_util.tree_map(lambda x: x[None], state))


@pytest.mark.parametrize("transformed", [lambda function: function, jax.jit, of_one])
def test_after_no_steps_all_leaves_are_those_that_were_given(client, world, transformed):
    run = simgrad.jax.function(client, world, steps=0, policy="f64", record=["energy", "x"])
    state = {name: jnp.asarray(x) for name, x in {**STATE, "energy": np.float64(7.5)}.items()}
    out = transformed(run)(state)
    for name, given in state.items():
        assert out.state[name].dtype == given.dtype
        np.testing.assert_array_equal(np.reshape(out.state[name], given.shape), given)
    assert out.trajectory["energy"].shape[-1] == 0 and out.trajectory["x"].shape[-2:] == (1, 3)
    loss = lambda s: jnp.sum(transformed(run)(s).state["energy"] ** 2)
    assert jax.grad(loss, allow_int=True)(state)["energy"] == 2 * 7.5


def test_constants_have_no_gradient_and_what_is_not_read_has_none(run):
    def loss(mass, energy):
        state = {**STATE, "mass": mass, "energy": energy}
        return jnp.sum(run(state, control=PUSH, params=PARAMS).state["x"])

    by_mass, by_energy = jax.grad(loss, (0, 1))(jnp.asarray(2.0), jnp.asarray(0.0))
    assert np.isnan(by_mass), "mass is part of the world: pass it in params"
    assert by_energy == 0


def test_errors_can_be_read(run):
    with pytest.raises(TypeError, match=r"state x has shape \(4,\), not \(3,\); .*jax.vmap"):
        run({**STATE, "x": np.zeros(4)})
    with pytest.raises(TypeError, match="a pytree like the example"):
        run([1.0])
    with pytest.raises(Exception, match="state mass is part of the world"):
        jax.jit(run)({**STATE, "mass": np.float64(3.0)})


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        ({"n": 1.5}, "n: an input of int32 does not hold 1.5"),
        ({"n": 2**40}, "n: an input of int32 does not hold 1099511627776"),
        ({"n": 2**70}, "state.n: Python int 1180591620717411303424 too large"),
        ({"mass": 3.0}, "state mass is part of the world, and has another number here"),
    ],
)
def test_numbers_that_are_not_the_worlds_are_a_plain_error(run, leaf, said):
    with pytest.raises(ValueError, match=said):
        run({**STATE, **leaf}, control=PUSH, params=PARAMS)
    with pytest.raises(ValueError, match=said):
        jax.jit(lambda x: run({**STATE, **leaf, "x": x}, control=PUSH, params=PARAMS).state["x"])(STATE["x"])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("group, wrong", [("state", STATE["x"] > 0), ("state", 1j * STATE["x"]), ("control", 1j * PUSH), ("params", True)])
def test_bools_and_complex_numbers_in_place_of_reals_are_refused_at_once(run, group, wrong, compiled):
    def call(leaf):
        given = {"state": STATE, "control": PUSH, "params": PARAMS}
        given[group] = {"state": {**STATE, "x": leaf}, "control": leaf, "params": {"k": leaf}}[group]
        return run(given.pop("state"), **given).state["x"]

    with pytest.raises(TypeError, match=rf"{group} \w+ is a real, not (bool|complex128)"):
        (jax.jit(call) if compiled else call)(wrong)


@pytest.mark.parametrize("compiled", [False, True])
def test_negative_steps_are_refused_at_once(client, world, run, compiled):
    with pytest.raises(ValueError, match="steps is 0 or more, not -3"):
        simgrad.jax.function(client, world, steps=-3)
    call = lambda x: run({**STATE, "x": x}, control=PUSH, params=PARAMS, steps=-1).state["x"]
    with pytest.raises(ValueError, match="steps is 0 or more, not -1"):
        (jax.jit(call) if compiled else call)(STATE["x"])


def test_reals_in_place_of_integers_are_refused_while_tracing(run):
    with pytest.raises(TypeError, match="state n is traced as float64, and is int32"):
        jax.jit(lambda n: run({**STATE, "n": n}, control=PUSH, params=PARAMS).state["x"])(0.0)
    assert run({**STATE, "n": 0.0}, control=PUSH, params=PARAMS).state["n"] == STEPS


@pytest.mark.parametrize("batch", [(), (4,)], ids=["one", "vmap"])
def test_the_backward_pass_does_not_simulate_again(run, client, monkeypatch, batch):
    loss = ours(run)
    x = np.broadcast_to(STATE["x"], (*batch, 3)) * np.arange(1.0, 1.0 + int(np.prod(batch))).reshape(
        (*batch, 1)
    )
    whole = lambda x: loss(PARAMS, {**STATE, "x": x}, PUSH)
    gradient = jax.jit(jax.vmap(jax.grad(whole)) if batch else jax.grad(whole))
    counted = Counted(client, monkeypatch)
    found = np.asarray(gradient(x))
    assert counted.calls == ["Rollout", "Vjp"]
    for kept in run._kept._rollouts.values():
        kept.kept.handle += "lost"
    monkeypatch.setattr(run._kept, "put", lambda key, rollout: None)
    assert np.asarray(gradient(x)).tobytes() == found.tobytes()
    assert counted.calls == ["Rollout", "Vjp", "Rollout", "Vjp", "Gradient"]


def test_a_call_that_is_not_differentiated_keeps_nothing(run, client, monkeypatch):
    counted = Counted(client, monkeypatch)
    jax.jit(lambda x: run({**STATE, "x": x}, control=PUSH, params=PARAMS).state["x"])(STATE["x"])
    assert counted.calls == ["Rollout"] and not run._kept._rollouts


TARGET = {"place": np.array([0.2, 0.5, -0.3]), "rate": np.float64(0.7)}
TARGETS = np.random.default_rng(1).normal(size=(STEPS, 3))


def driven(state, control, data):
    x = state["x"] + 0.1 * data["rate"] * jnp.tanh(data["place"] - state["x"]) + 0.01 * control
    return {"x": x, "m": state["m"] + x * data["place"]}


@pytest.fixture(scope="module")
def driven_world():
    start = {"x": STATE["x"], "m": np.zeros(3)}
    return simgrad.jax.world(driven, state=start, control=PUSH, data=TARGET)


@pytest.mark.parametrize("place", [TARGET["place"], TARGETS], ids=["one", "one per step"])
@pytest.mark.parametrize("lost", [False, True], ids=["kept", "simulated again"])
def test_the_gradient_by_data_is_that_of_the_unrolled_steps(client, driven_world, monkeypatch, place, lost):
    run = simgrad.jax.function(client, driven_world, policy="f64")
    if lost:
        monkeypatch.setattr(run._kept, "put", lambda key, rollout: None)
    state = {"x": STATE["x"], "m": np.zeros(3)}

    def loss(place, rate, control):
        data = {"place": place, "rate": rate}
        last = run(state, control=control, data=data, steps=STEPS).state
        return jnp.sum(last["x"] * last["m"])

    def expected(place, rate, control):
        last = state
        for t in range(STEPS):
            data = {"place": place[t] if place.ndim == 2 else place, "rate": rate}
            last = driven(last, control, data)
        return jnp.sum(last["x"] * last["m"])

    at = (jnp.asarray(place), jnp.asarray(TARGET["rate"]), jnp.asarray(PUSH))
    found = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*at)
    wanted = jax.value_and_grad(expected, (0, 1, 2))(*at)
    for a, b in zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(wanted)):
        assert np.abs(b).max() > 0.01
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    undifferentiated = run(state, control=PUSH, data={**TARGET, "place": place}, steps=STEPS)
    assert float(jnp.sum(undifferentiated.state["x"] * undifferentiated.state["m"])) == found[0]


def test_a_batch_of_data_is_one_call(client, driven_world, monkeypatch):
    run = simgrad.jax.function(client, driven_world, steps=STEPS, policy="f64")
    counted = Counted(client, monkeypatch)
    state = {"x": STATE["x"], "m": np.zeros(3)}
    loss = lambda rate: jnp.sum(run(state, control=PUSH, data={**TARGET, "rate": rate}).state["x"] ** 2)
    rates = jnp.arange(1.0, 5.0)
    together = jax.vmap(jax.grad(loss))(rates)
    assert counted.calls == ["Rollout", "Vjp"]
    assert together.tolist() == [float(jax.grad(loss)(r)) for r in rates] and len(set(together.tolist())) == 4


def test_steps_are_of_the_call_or_of_what_has_a_value_per_step(client, world):
    run = simgrad.jax.function(client, world, policy="f64", record=["x"])
    fixed = simgrad.jax.function(client, world, steps=7, policy="f64", record=["x"])
    at = dict(params=PARAMS)
    seven = fixed(STATE, control=PUSHES[:7], **at)
    assert seven.trajectory["x"].shape == (8, 3)
    inferred = run(STATE, control=PUSHES[:7], **at)
    given = jax.jit(lambda x: run({**STATE, "x": x}, control=PUSHES[:7], steps=7, **at))(STATE["x"])
    for other in (inferred, given):
        assert np.asarray(other.trajectory["x"]).tobytes() == np.asarray(seven.trajectory["x"]).tobytes()
    assert run(STATE, control=PUSH, steps=3, **at).trajectory["x"].shape == (4, 3)
    assert fixed(STATE, control=PUSH, steps=3, **at).trajectory["x"].shape == (4, 3)
    with pytest.raises(TypeError, match="steps: give it here or to simgrad.jax.function"):
        run(STATE, control=PUSH, **at)
    with pytest.raises(TypeError, match=r"control control has shape \(20, 3\), not \(3,\), or \(5, 3\)"):
        run(STATE, control=PUSHES, steps=5, **at)
    with pytest.raises(TypeError, match="static_argnames"):
        jax.jit(lambda n: run(STATE, control=PUSH, steps=n, **at))(3)


def test_controls_of_different_lengths_say_so(client, driven_world):
    run = simgrad.jax.function(client, driven_world)
    with pytest.raises(TypeError, match="for as many steps: control 4, place 20"):
        run(
            {"x": STATE["x"], "m": np.zeros(3)},
            control=PUSHES[:4],
            data={**TARGET, "place": TARGETS},
        )


def test_second_derivatives_are_refused_by_name(run, world):
    loss = ours(run)
    state = {n: jnp.asarray(x) for n, x in STATE.items()}
    with pytest.raises(NotImplementedError, match="first derivatives only; Client.hessian_vector"):
        jax.hessian(lambda p: loss(p, state, jnp.asarray(PUSH)))(PARAMS)


@pytest.mark.parametrize("option", ["polcy", "keep", "raw", "weights"])
def test_an_option_that_it_has_not_is_refused_before_any_run(client, world, option):
    with pytest.raises(TypeError, match=f"no option {option}: diagnostics, on_nonfinite, path"):
        simgrad.jax.function(client, world, **{option: True})


def test_loops_say_how_its_gradient_goes_through_them(client):
    def solve(state, params):
        def body(carried):
            _, y = carried
            return y, jnp.cos(params["k"] * y) + 0.1 * state["x"]

        changes = lambda carried: jnp.abs(carried[1] - carried[0]) > 0.05
        _, y = jax.lax.while_loop(changes, body, body((0.0, jnp.zeros(()))))
        return {"x": y}

    state, params = {"x": jnp.asarray(0.3)}, {"k": jnp.asarray(0.5)}
    line = solve.__code__.co_firstlineno + 6
    cap = {f"function_test.py:{line}": 50}
    rooted = simgrad.jax.world(solve, state=state, params=params, max_iter=cap)
    (site,) = (s.name for s in rooted.sites if s.what == "loop")
    loops = {site: simgrad.Truncated(1)}

    def slope(**how):
        run = simgrad.jax.function(client, rooted, steps=1, policy="f64", **how)
        return jax.grad(lambda k: run(state, params={"k": k}).state["x"])(params["k"])

    expected = client.gradient(
        rooted, steps=1, initial=state, params=params, policy="f64", wrt=["k"], loops=loops,
        cotangents={"state": {"x": np.ones(1)}},
    )
    assert slope(loops=loops) == expected.params["k"] != slope()


def test_integers_of_64_bits_need_x64(client):
    tripled = simgrad.jax.world(lambda state: {"n": state["n"] * 3}, state={"n": np.int64(5)})
    run = simgrad.jax.function(client, tripled, policy="f64")
    wide = np.int64(2**40)
    assert run({"n": wide}, steps=1).state["n"] == 3 * 2**40
    with jax.enable_x64(False):
        assert run({"n": np.int64(5)}, steps=2).state["n"] == 45
        with pytest.raises(ValueError, match=r"state.n: 1099511627776 is no int32; JAX holds integers of 64 bits"):
            run({"n": wide}, steps=1)
        with pytest.raises(Exception, match="n: 4236443047215 is no int32"):
            run({"n": np.int64(5)}, steps=25)


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f, x: jax.jit(f)(x),
        lambda f, x: jax.jit(jax.value_and_grad(f))(x)[0],
        lambda f, x: jax.vmap(f)(x[None])[0],
        lambda f, x: jax.jit(jax.vmap(f))(x[None])[0],
    ],
    ids=["jit", "grad", "vmap", "both"],
)
def test_a_random_key_that_a_function_closes_over_is_known(client, transformed):
    def drawn(state):
        key, used = jax.random.split(state["key"])
        return {"key": key, "x": 0.9 * state["x"] + jax.random.uniform(used), "table": state["table"]}

    start = {"key": jax.random.key(1), "x": 0.0, "table": jax.random.key(2)}
    run = simgrad.jax.function(client, simgrad.jax.world(drawn, state=start), steps=3, policy="f64")
    given = lambda x: run({**start, "x": x}).state["x"]
    x = jnp.ones(())
    expected = {**start, "x": x}
    for _ in range(3):
        expected = drawn(expected)
    np.testing.assert_allclose(transformed(given, x), expected["x"], rtol=1e-15)
    np.testing.assert_array_equal(jax.jit(lambda key: run({**start, "key": key, "x": x}).state["x"])(start["key"]), given(x))
