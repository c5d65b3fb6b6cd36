"""Integers and bools as inputs: actions, bonds, tokens, switches and counts, per instance and per step, as JAX has them."""

import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import simgrad as sg
import simgrad.jax

STEPS, COUNT = 5, 3
STATE = {"x": np.arange(4.0)}
CONTROL = {"action": np.int32(1)}
PARAMS = {"stiff": True, "k": 1.5, "table": np.arange(5.0) / 7}
DATA = {"bonds": np.array([[0, 1], [1, 2]], np.int32), "tokens": np.array([0, 3])}
RANDOM = np.random.default_rng(0)
ACTIONS = RANDOM.integers(0, 3, (COUNT, STEPS))
STIFF = np.array([True, False, True])
BONDS = RANDOM.integers(0, 4, (COUNT, 2, 2))
TOKENS = RANDOM.integers(0, 5, (COUNT, STEPS, 2))


def step(state, control, params, data):
    x, k = state["x"], jnp.where(params["stiff"], params["k"], 0.5 * params["k"])
    i, j = data["bonds"].T
    pull = jnp.zeros_like(x).at[i].add(x[j] - x[i]).at[j].add(x[i] - x[j])
    push = lax.switch(control["action"], [lambda: -1.0, lambda: 0.0, lambda: 2.0])
    return {"x": x + 0.1 * (k * pull + push) + 0.01 * jnp.sum(params["table"][data["tokens"]] * x[:2])}


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def world():
    cost = {"stage": lambda state, control, params, data: control["action"] * state["x"][data["tokens"][0] % 4],
            "terminal": lambda state, params, data: jnp.sum(state["x"] ** 2) + params["stiff"] * state["x"][data["tokens"][1] % 4]}  # fmt: skip
    given = dict(state=STATE, control=CONTROL, params=PARAMS, data=DATA, objective={"o": cost})
    return simgrad.jax.world(step, varying=["params.stiff", "data"], **given)


SENT = dict(
    steps=STEPS,
    initial={"x": np.tile(STATE["x"], (COUNT, 1))},
    controls={"action": ACTIONS},
    params={"stiff": STIFF, "k": np.full(COUNT, 1.5), "table": np.tile(PARAMS["table"], (COUNT, 1))},
    data={"bonds": BONDS, "tokens": TOKENS},
    objective="o",
)


def cost_of(reals, n):
    state, params = {"x": reals["x"]}, {"k": reals["k"], "table": reals["table"], "stiff": jnp.asarray(STIFF[n])}
    total = 0.0
    for t in range(STEPS):
        action, tokens = jnp.asarray(ACTIONS[n, t]), jnp.asarray(TOKENS[n, t])
        total += action * state["x"][tokens[0] % 4]
        state = step(state, {"action": action}, params, {"bonds": jnp.asarray(BONDS[n]), "tokens": tokens})
    return total + jnp.sum(state["x"] ** 2) + params["stiff"] * state["x"][tokens[1] % 4]


def test_values_and_gradients_are_those_of_jax_per_instance_and_per_step(client, world):
    g = client.gradient(world, policy="f64", **SENT)
    for n in range(COUNT):
        value, slopes = jax.value_and_grad(cost_of)({"x": STATE["x"], "k": 1.5, "table": PARAMS["table"]}, n)
        np.testing.assert_allclose(g.values[n], value, rtol=1e-14)
        for name, found in (("x", g.initial["x"]), ("k", g.params["k"]), ("table", g.params["table"])):
            np.testing.assert_allclose(found[n], slopes[name], rtol=1e-12, atol=1e-14)
    assert g.params["stiff"] is None and g.controls == {"action": None}


def test_in_bf16_choices_are_those_of_f64_and_a_batch_has_the_bits_of_its_instances(client, world):
    exact, rounded = (client.gradient(world, policy=policy, **SENT) for policy in ("f64", "bf16_safe"))
    np.testing.assert_allclose(rounded.initial["x"], exact.initial["x"], rtol=0.03, atol=0.03)
    assert not np.array_equal(rounded.initial["x"], exact.initial["x"])
    for n in range(COUNT):
        mine = {group: {name: x[n : n + 1] for name, x in SENT[group].items()} for group in ("initial", "controls", "params", "data")}
        alone = client.gradient(world, policy="bf16_safe", first_instance=n, **{**SENT, **mine})
        assert alone.initial["x"][0].tobytes() == rounded.initial["x"][n].tobytes()
        assert alone.params["table"][0].tobytes() == rounded.params["table"][n].tobytes()


def test_what_is_not_sent_is_the_example_and_check_agrees(client, world):
    assert simgrad.jax.check(world, client).worst < 1e-14
    other = {"bonds": np.array([[3, 1], [1, 0]]), "tokens": np.array([4, 4])}
    assert simgrad.jax.check(world, client, control={"action": 2}, data=other).worst < 1e-14
    again = pickle.loads(pickle.dumps(world))
    run = dict(steps=2, initial=STATE, policy="f64")
    default, same, another = (client.rollout(again, controls=c, **run).state["x"] for c in (None, {"action": 1}, {"action": 0}))
    assert np.array_equal(default, same) and not np.array_equal(default, another)


def test_the_report_tells_inputs_and_constants_by_path():
    def other(state, control, params, data):
        return {"x": state["x"] + control + params["n"] * params["k"] + data["a"]}

    given = dict(state={"x": 1.0}, control=True, params={"n": 3, "k": 1.0}, data={"a": np.uint8(1), "b": 2.0})
    report = simgrad.jax.world(other, varying=["data"], **given).report()
    assert report.inputs == {"control": "bool", "params.k": "real", "data.a": "uint8"}
    assert report.given_constants == ("params.n",) and report.unread == ("data.b",)
    lines = str(report).splitlines()
    assert "inputs: control (bool), params.k, data.a (uint8)" in lines
    assert "constants beside the state: params.n" in lines and "read by nothing: data.b" in lines


TYPES = {
    "bool": [True, False, True],
    "uint8": [0, 200, 255],
    "int32": [-(2**31), 7, 2**31 - 1],
    "uint32": [0, 2**31, 2**32 - 1],
    "int64": [-(2**63), 2**53 + 1, 2**63 - 1],
}


@pytest.mark.parametrize("group", ["control", "params", "data"])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_keeps_all_its_numbers(client, group, dtype):
    numbers = np.array(TYPES[dtype], dtype)
    last_digits = lambda n: (n.astype(jnp.int64) % 1009).astype(float) if dtype != "bool" else jnp.where(n, 3.0, 5.0)
    steps = {
        "control": lambda state, control: {"x": state["x"] + last_digits(control)},
        "params": lambda state, params: {"x": state["x"] + last_digits(params)},
        "data": lambda state, data: {"x": state["x"] + last_digits(data)},
    }
    world = simgrad.jax.world(steps[group], state={"x": 0.0}, varying=group, **{group: numbers[1]})
    expected = np.asarray(last_digits(jnp.asarray(numbers)))
    run = lambda sent, count: client.rollout(
        world, steps=count, policy="f64", **{"controls" if group == "control" else group: sent}
    ).state["x"]
    assert run(None, 1).tolist() == expected[1:2].tolist()
    assert run(numbers, 2).tolist() == (2 * expected).tolist()
    if group != "params":
        assert run(sg.PerStep(numbers), 3).tolist() == [expected.sum()]
    if dtype != "bool":  # in another type, where that holds them
        assert run(numbers[1:2].astype(np.uint64), 1).tolist() == expected[1:2].tolist()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"controls": {"action": 1.5}}, "control action: an input of int32 does not hold 1.5; it takes a whole number from -2147483648"),
        ({"controls": {"action": [1, 2**31]}}, "control action: an input of int32 does not hold 2147483648"),
        ({"controls": {"action": sg.PerStep([0.0, 0.5])}}, "control action: an input of int32 does not hold 0.5"),
        ({"controls": sg.PerStep({"action": [0, 2**40]})}, "control action: an input of int32 does not hold 1099511627776"),
        ({"params": {"stiff": 2}}, "params stiff: an input of bool does not hold 2; it takes 0 or 1"),
        ({"data": {"tokens": [0, np.nan]}}, "data tokens: an input of int64 does not hold nan"),
        ({"data": {"tokens": ["a", "b"]}}, r"data tokens: an input of int64 does not hold \['a' 'b'\]"),
    ],
)
def test_numbers_that_an_input_does_not_hold_are_refused_with_its_name(client, world, sent, said):
    with pytest.raises(ValueError, match=said):
        client.rollout(world, steps=2, **sent)


def test_whole_reals_and_bools_are_taken_for_integers(client, world):
    run = lambda **sent: client.rollout(world, steps=2, policy="f64", initial=STATE, **sent).state["x"]
    assert np.array_equal(run(controls={"action": 2.0}), run(controls={"action": 2}))
    assert np.array_equal(run(controls={"action": True}), run(controls={"action": 1}))
    assert np.array_equal(run(params={"stiff": 0}), run(params={"stiff": False}))


@pytest.mark.parametrize("mark", [lambda x: x, sg.PerStep], ids=["one", "per step"])
def test_bits_are_reals_and_a_masked_array_is_refused(client, mark):
    step = lambda state, control: {"x": state["x"] + control["u"] * control["n"], "m": state["m"]}
    world = simgrad.jax.world(step, state={"x": 0.0, "m": 1.5}, control={"u": 1.0, "n": 2})
    run = lambda **sent: client.rollout(world, steps=2, policy="f64", initial={"m": sg.Bits(np.array([0x3FC0], np.uint16), "bf16")}, controls=sent)
    assert run(u=mark(sg.Bits(np.array([0x3F80, 0x4000], np.uint16), "bf16"))).state["x"].tolist() == ([6.0] if mark is sg.PerStep else [4.0, 8.0])
    for name in ("u", "n"):
        with pytest.raises(TypeError, match=f"control {name}: a masked array lacks numbers"):
            run(**{name: mark(np.ma.masked_array([1, 2], [False, True]))})
    with pytest.raises(ValueError, match="state m is part of the world"):
        client.rollout(world, steps=2, initial={"m": sg.Bits(np.array([0x3F80], np.uint16), "bf16")})


def test_names_that_stand_for_nothing_are_told_together():
    given = dict(state={"x": 1.0}, params={"n": 3, "m": 4, "k": 0.5}, max_iter={"f.py:3": 4})
    with pytest.raises(simgrad.jax.JaxWorldError, match="these names stand for nothing") as found:
        simgrad.jax.world(
            lambda state, params: {"x": state["x"] * params["n"] * params["k"]}, varying=["params.nn", "data", "params.m"], **given
        )
    cap, near, far, unread = (p.what for p in found.value.problems)
    assert cap.startswith("max_iter 'f.py:3'") and near == "varying 'params.nn': no leaf has this name"
    assert "params.n" in found.value.problems[1].hint and far == "varying 'data': no leaf has this name"
    assert unread == "varying 'params.m': nothing depends on it"
    with pytest.raises(TypeError, match="varying: names of leaves, not 3"):
        simgrad.jax.world(lambda state: {"x": state["x"] * 0.5}, state={"x": 1.0}, varying=3)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16"])
def test_integers_that_no_world_has_are_refused_as_inputs_and_taken_as_constants(dtype):
    by_params = lambda state, params: {"x": state["x"] * params}
    example = np.asarray(3, dtype)
    assert simgrad.jax.world(by_params, state={"x": 1.0}, params=example).report().given_constants == ("params",)
    for given in ({"params": example, "varying": "params"}, {"control": example}):
        with pytest.raises(simgrad.jax.JaxWorldError, match=f"(params|control) is {dtype}; give an example of int32"):
            simgrad.jax.world(by_params if "params" in given else lambda s, u: {"x": s["x"] * u}, state={"x": 1.0}, **given)


# ---- Loops ----


def summed(state, count):
    return {"x": lax.fori_loop(0, count, lambda i, x: 0.5 * x + i, state["x"])}


LOOP = f"integer_inputs_test.py:{summed.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    ("given", "leaf", "fix"),
    [
        ({"control": {"n": 3}}, "control n", "to make control n a constant, pass it in params or data"),
        ({"control": 3}, "control", "to make control a constant, pass it in params or data"),
        ({"params": {"n": 3}, "varying": "params.n"}, "params n", "to make params n a constant, leave it out of varying"),
    ],
)
def test_a_loop_that_an_input_bounds_is_told_with_it_and_the_line_and_what_to_write(given, leaf, fix):
    number = lambda given: given["n"] if isinstance(given, dict) else given
    step = (lambda s, params: summed(s, number(params))) if "params" in given else (lambda s, control: summed(s, number(control)))
    with pytest.raises(simgrad.jax.JaxWorldError) as found:
        simgrad.jax.world(step, state={"x": 1.0}, **given)
    [problem] = found.value.problems
    assert problem.line == LOOP and problem.what == f"a while_loop without a bound, whose test reads {leaf}"
    assert problem.hint == f'say how often it may turn: max_iter={{"{LOOP}": 50}}; {fix}'


def test_a_constant_bounds_a_loop():
    world = simgrad.jax.world(lambda s, params: summed(s, params["n"]), state={"x": 1.0}, params={"n": 3})
    assert [op.code for op in world.program.step.ops if op.regions] == ["for"]


def turned(k, counts):
    x = 1.0
    for count in counts:
        for i in range(max(count, 0)):
            x = k * x + i
    return x**2


@pytest.mark.parametrize("capped", ["by max_iter", "by a minimum", "by its type"])
def test_a_loop_turns_as_often_as_an_input_says(client, capped):
    bound = {"by max_iter": lambda n: n, "by a minimum": lambda n: jnp.minimum(n, 6), "by its type": lambda n: n.astype(jnp.int32)}[capped]

    def step(state, control, params):
        return {"x": lax.fori_loop(0, bound(control), lambda i, x: params * x + i, state["x"])}

    example = np.uint8(2) if capped == "by its type" else np.int32(2)
    caps = {"step": 6} if capped == "by max_iter" else None
    world = simgrad.jax.world(step, state={"x": 1.0}, control=example, params=0.5, max_iter=caps, objective={"o": lambda s: s["x"] ** 2})
    [loop] = [op for op in world.program.step.ops if op.code == "while"]
    assert loop.max_iter == {"by max_iter": 6, "by a minimum": 6, "by its type": 255}[capped]
    counts = np.array([[0, 1, 5], [6, 2, 3], [4, 1, 0]])
    g = client.gradient(world, steps=3, controls=counts, params=np.full(3, 0.5), objective="o", policy="f64")
    for n, row in enumerate(counts.tolist()):
        value, slope = jax.value_and_grad(turned)(0.5, row)
        np.testing.assert_allclose([g.values[n], g.params[n]], [value, slope], rtol=1e-13)


def test_a_loop_that_an_input_would_turn_beyond_its_cap_is_told(client):
    world = simgrad.jax.world(summed, state={"x": 1.0}, control=2, max_iter={LOOP: 6})
    r = client.rollout(world, steps=1, controls=np.array([2, 6, 9]), policy="f64")
    [loop] = r.sites.values()
    assert r.state["x"][1] == r.state["x"][2] and loop.runs == 3
    assert "max_iter 1, counter 2" in str(loop) and loop.margin == np.inf


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, n: x if n > 2 else 2 * x, "Python decides on a value of the step (it depends on control n): "),
        (lambda x, n: x + sum(range(n)), "Python takes a value of the step for an index or a count (it depends on control n): "),
        (lambda x, n: x + jnp.zeros(n).sum(), "a shape that depends on a value of the step (it depends on control n): "),
        (lambda x, n: x + jnp.arange(3.0)[:n].sum(), "a shape that depends on a value of the step: "),
        (lambda x, n: x + jnp.arange(n).sum(), "Python needs the number of a value of the step (it depends on control n): "),
        (lambda x, n: x + np.sin(n), "NumPy is given a value of the step (it depends on control n): "),
        (lambda x, n: x * lax.population_count(n), "; to make control n a constant, pass it in params or data"),
    ],
)
def test_what_python_or_a_shape_needs_to_know_is_told_with_the_leaf(function, said):
    with pytest.raises(simgrad.jax.JaxWorldError, match=r"  integer_inputs_test.py:\d+: ") as found:
        simgrad.jax.world(lambda state, control: {"x": function(state["x"], control["n"])}, state={"x": 1.0}, control={"m": 0.5, "n": 3})
    assert said in str(found.value)
    assert "close over it" in str(found.value) or "jax.numpy" in str(found.value) or "params" in str(found.value)


# ---- Places, branches and keys ----

LINE = np.array([0.5, -1.0, 2.0, 0.25])
PLACED = {
    "an element": lambda x, i: x[i[0]] * x,
    "several": lambda x, i: jnp.zeros(4).at[:3].set(x[i]),
    "filled outside": lambda x, i: jnp.take(x, i, mode="fill", fill_value=3.0).sum() * x,
    "wrapped": lambda x, i: jnp.take(x, i, mode="wrap").sum() * x,
    "added": lambda x, i: jnp.zeros(4).at[i].add(x[:3]),
    "set": lambda x, i: x.at[i[0]].set(2 * x[0]),
    "multiplied": lambda x, i: x.at[i[0]].multiply(x[1]),
    "largest": lambda x, i: x.at[i].max(0.3 * x[:3]),
    "by segments": lambda x, i: jax.ops.segment_sum(x[:3], i, 4),
    "a slice": lambda x, i: jnp.concatenate([lax.dynamic_slice(x, (i[0],), (2,)), x[:2]]),
    "written over": lambda x, i: lax.dynamic_update_slice(x, 3 * x[:2], (i[1],)),
    "rolled": lambda x, i: jnp.roll(x, i[0]) * x,
    "in order": lambda x, i: x[jnp.argsort(jnp.concatenate([i, i[:1]]))] * x,
    "one hot": lambda x, i: jax.nn.one_hot(i, 4).sum(0) * x,
    "a mask": lambda x, i: jnp.where(jnp.arange(4) < i[0], x, 0.1 * x),
    "a branch": lambda x, i: lax.switch(i[0], [jnp.sin, jnp.cos, lambda y: 2 * y], x),
    "a condition": lambda x, i: lax.cond(i[0] > i[1], jnp.sin, lambda y: y * y, x),
    "a power": lambda x, i: (x + 2) ** i[0],
}


@pytest.mark.parametrize("name", PLACED)
def test_places_and_branches_are_those_of_jax_and_no_sites(client, name):
    function = PLACED[name]
    weights = np.cos(np.arange(4.0))
    world = simgrad.jax.world(
        lambda state, data: {"x": function(state["x"], data)}, state={"x": LINE}, data=np.array([0, 1, 2]), varying="data",
        objective={"o": lambda state: jnp.sum(weights * state["x"])},
    )  # fmt: skip
    assert not world.report().sites
    rows = np.array([[0, 1, 2], [3, 0, 3], [-1, 2, 1], [2, 2, 2], [9, -9, 4]])
    rows = rows[:4] if name == "filled outside" else rows
    g = client.gradient(world, steps=1, initial={"x": np.tile(LINE, (len(rows), 1))}, data=rows, objective="o", policy="f64")
    for n, row in enumerate(rows):
        value, slope = jax.value_and_grad(lambda x: jnp.sum(weights * function(x, jnp.asarray(row))))(jnp.asarray(LINE))
        np.testing.assert_allclose(g.values[n], value, rtol=1e-14, atol=1e-15)
        if not (name in ("several", "an element") and n == 4):  # a gather outside clips: its cotangent goes to the end
            np.testing.assert_allclose(g.initial["x"][n], slope, rtol=1e-13, atol=1e-15)


def test_a_test_of_reals_beside_an_input_is_still_a_site(client):
    def step(state, control):
        return {"x": jnp.where((state["x"] > 0.5) & control["on"], 0.5 * state["x"], state["x"] + 0.1)}

    world = simgrad.jax.world(step, state={"x": 1.0}, control={"on": True})
    [site] = world.report().sites
    assert site.line == f"integer_inputs_test.py:{step.__code__.co_firstlineno + 1}"
    r = client.rollout(world, steps=2, initial={"x": np.ones(2)}, controls={"on": np.array([True, False])}, policy="f64")
    assert r.state["x"].tolist() == [0.6, 1.2000000000000002] and list(r.events) == [site.name]


def test_keys_are_inputs_of_each_step_and_instance(client):
    walk = lambda state, control: {"x": state["x"] + jax.random.normal(control["key"], (2,))}
    world = simgrad.jax.world(walk, state={"x": jnp.zeros(2)}, control={"key": jax.random.key(0)})
    assert world.report().inputs == {"control.key": "key"}
    keys = jax.random.split(jax.random.key(4), (COUNT, STEPS))
    expected = np.array([sum(jax.random.normal(key, (2,)) for key in row) for row in keys])
    run = dict(steps=STEPS, policy="f64")
    many = client.rollout(world, controls={"key": keys}, initial={"x": np.zeros((COUNT, 2))}, **run).state["x"]
    one = client.rollout(world, controls={"key": sg.PerStep(keys[1])}, initial={"x": np.zeros(2)}, **run).state["x"]
    np.testing.assert_allclose(many, expected, rtol=1e-14, atol=2e-15)
    assert one[0].tobytes() == many[1].tobytes()


# ---- State that no step changes ----


def test_state_that_is_handed_through_varies_where_it_is_asked_for(client):
    def step(state):
        pull = state["k"] * jnp.sin(state["x"][state["to"]] - state["x"])
        return {**state, "x": state["x"] + 0.1 * pull}

    given = dict(state={"x": LINE, "k": 2.0, "to": np.array([1, 2, 3, 0]), "m": 3.0}, objective={"o": lambda s: jnp.sum(s["x"] ** 2)})
    world = simgrad.jax.world(step, varying=["state.k", "state.to"], **given)
    assert set(world.state) == {"x", "k", "to"} and world.constants == ("m",)
    slopes, to = np.array([2.0, -1.0]), np.array([[1, 2, 3, 0], [0, 0, 1, 1]])
    g = client.gradient(world, steps=3, initial={"x": np.tile(LINE, (2, 1)), "k": slopes, "to": to, "m": 3.0}, objective="o", policy="f64")

    def cost(k, to):
        state = {**given["state"], "x": jnp.asarray(LINE), "k": k, "to": to}
        for _ in range(3):
            state = step(state)
        return jnp.sum(state["x"] ** 2)

    for n in range(2):
        value, slope = jax.value_and_grad(cost)(slopes[n], jnp.asarray(to[n]))
        np.testing.assert_allclose([g.values[n], g.initial["k"][n]], [value, slope], rtol=1e-13)
    assert g.initial["to"] is None and g.state["to"].tolist() == to.tolist()
    with pytest.raises(ValueError, match=r"state m is part of the world.*varying=\['state.m'\]\) makes it state"):
        client.rollout(world, steps=1, initial={**given["state"], "m": 4.0})


def test_an_init_reads_integers_that_vary(client):
    world = simgrad.jax.world(
        lambda state, data: {"x": state["x"] * 0.5}, state={"x": 0.0}, data={"place": 0, "line": LINE}, varying="data.place",
        init=lambda data: {"x": data["line"][data["place"]]},
    )  # fmt: skip
    r = client.rollout(world, steps=1, data={"place": np.array([2, 0, -1])}, policy="f64")
    assert r.state["x"].tolist() == [1.0, 0.25, 0.125]


# ---- Functions of JAX, controllers, explanations ----


def loss_of(run):
    def loss(reals, control, data, stiff):
        x, k, table = (jnp.asarray(reals[name]) for name in ("x", "k", "table"))
        params = {"k": k, "table": table, "stiff": stiff}
        return jnp.sum(run({"x": x}, control=control, params=params, data=data).state["x"] ** 2)

    return loss


def unrolled(state, control, params, data):
    for action in jnp.broadcast_to(control["action"], (STEPS,)):
        state = step(state, {"action": action}, params, data)
    return simgrad.jax.FunctionResult(state, {})


REALS = {"x": STATE["x"], "k": 1.5, "table": PARAMS["table"]}
CALLS = {
    "alone": lambda loss, control, data: loss(REALS, control, data, True),
    "compiled": lambda loss, control, data: jax.jit(jax.grad(loss))(REALS, control, data, jnp.asarray(True)),
    "by integers, too": lambda loss, control, data: jax.grad(loss, (0, 1, 2, 3), allow_int=True)(REALS, control, data, True)[0],
    "batched": lambda loss, control, data: jax.vmap(jax.grad(loss), (None, None, None, 0))(REALS, control, data, jnp.asarray(STIFF)),
    "batched data": lambda loss, control, data: jax.vmap(jax.value_and_grad(loss), (None, None, {"bonds": 0, "tokens": None}, None))(
        REALS, control, {**data, "bonds": jnp.asarray(BONDS)}, True
    ),
}


@pytest.mark.parametrize("action", [2, ACTIONS[0]], ids=["an action", "an action per step"])
@pytest.mark.parametrize("call", CALLS)
def test_a_function_of_jax_takes_integers_in_every_transform(client, world, call, action):
    run = simgrad.jax.function(client, world, policy="f64", steps=STEPS)
    given = ({"action": jnp.asarray(action)}, {name: jnp.asarray(x) for name, x in DATA.items()})
    found, expected = (CALLS[call](loss_of(f), *given) for f in (run, unrolled))
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), found, expected)


def test_a_function_of_jax_refuses_what_an_integer_does_not_hold(client, world):
    run = simgrad.jax.function(client, world, policy="f64", steps=2)
    with pytest.raises(ValueError, match="control action: an input of int32 does not hold 1.5"):
        run(STATE, control={"action": 1.5})
    with pytest.raises(TypeError, match="control action is traced as float64, and is int32"):
        jax.jit(lambda a: run(STATE, control={"action": a}).state["x"])(1.5)
    with pytest.raises(Exception, match="control action: an input of int32 does not hold 1099511627776"):
        jax.block_until_ready(jax.jit(lambda a: run(STATE, control={"action": a}).state["x"])(2**40))


def test_a_function_of_jax_without_x64_takes_integers(client, world):
    expected = simgrad.jax.function(client, world, policy="f64")(STATE, control={"action": ACTIONS[0]}).state["x"]
    with jax.enable_x64(False):
        out = simgrad.jax.function(client, world)(STATE, control={"action": ACTIONS[0]}, data=DATA).state["x"]
        assert out.dtype == np.float32
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@sg.controller
def bang(x):
    return np.where(x[0] > 0.2, np.int32(0), np.int32(2))


def test_a_controller_computes_an_action(client, world):
    closed = sg.compose(world, bang, control="action")
    r = client.rollout(closed, steps=STEPS, initial=STATE, policy="f64", record=["action", "x"])
    actions, before = r.trajectory["action"][0], r.trajectory["x"][0, :-1, 0]
    assert actions.tolist() == np.where(before > 0.2, 0, 2).tolist() and len(set(actions.tolist())) == 2
    assert np.array_equal(r.state["x"], client.rollout(world, steps=STEPS, initial=STATE, policy="f64", controls={"action": actions[None]}).state["x"])


def test_compare_and_sensitivity_run_with_integers(client, world):
    c = client.compare(world, policies=["f64", "f32"], **SENT)
    assert "f32 takes the path of f64 in 3 of 3 instances" in str(c)
    s = client.sensitivity(world, **SENT)
    assert "There is no test in 16 runs" in str(s)


def test_a_product_with_second_derivatives_moves_reals_beside_integers(client, world):
    run = dict(steps=STEPS, initial=STATE, controls={"action": 2}, objective="o", policy="f64")
    product = client.hessian_vector(world, vector={"initial": {"x": np.ones(4)}}, **run)

    def value(x):
        state, total = {"x": x}, 0.0
        for _ in range(STEPS):
            total += 2 * state["x"][0]
            state = step(state, {"action": 2}, PARAMS, {name: jnp.asarray(a) for name, a in DATA.items()})
        return total + jnp.sum(state["x"] ** 2) + state["x"][3]

    np.testing.assert_allclose(product.initial["x"], jax.hessian(value)(jnp.asarray(STATE["x"])) @ np.ones(4), rtol=1e-8)
    with pytest.raises(ValueError, match=r"vector\['controls'\]\['action'\]: an input of i32 cannot be moved"):
        client.hessian_vector(world, vector={"controls": {"action": 1.0}}, **run)


def test_a_saved_world_has_its_integers(client, world, tmp_path):
    path = pathlib.Path(tmp_path, "world.txtpb")
    world.save(path)
    loaded = sg.World.load(path)
    run = dict(steps=2, policy="f64")
    ours = client.rollout(world, controls={"action": 2}, **run).state["x"]
    assert np.array_equal(ours, client.rollout(loaded, controls={"action": 2}, **run).state["x"])
    assert not np.array_equal(ours, client.rollout(loaded, **run).state["x"])
