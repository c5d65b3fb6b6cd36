"""Steps that draw: with random="threefry" what JAX draws, with "philox" what the language draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import simgrad.jax

# By the word of a draw: a step's number of shape (4,) or () of a key, a bound of the difference from JAX.
DRAWS = {
    "uniform": (lambda key, n: jax.random.uniform(key, (4,)), 0),
    "uniform between": (lambda key, n: jax.random.uniform(key, (4,), minval=-2.0, maxval=3.0), 0),
    "uniform of f32": (lambda key, n: jax.random.uniform(key, (4,), jnp.float32).astype(float), 0),
    "normal": (lambda key, n: jax.random.normal(key, (4,)), 2e-15),
    "normal of f32": (lambda key, n: jax.random.normal(key, (4,), jnp.float32).astype(float), 1e-5),
    "bernoulli": (lambda key, n: jax.random.bernoulli(key, 0.3, (4,)) * 1.0, 0),
    "exponential": (lambda key, n: jax.random.exponential(key, (4,)), 1e-15),
    "gumbel": (lambda key, n: jax.random.gumbel(key, (4,)), 1e-15),
    "categorical": (lambda key, n: jax.random.categorical(key, jnp.arange(5.0), shape=(4,)) * 1.0, 0),
    "truncated normal": (lambda key, n: jax.random.truncated_normal(key, -1.0, 2.0, (4,)), 2e-15),
    "integers": (lambda key, n: jax.random.randint(key, (4,), -3, 12) * 1.0, 0),
    "integers of 32 bits": (lambda key, n: jax.random.randint(key, (4,), 0, 1000, jnp.int32) * 1.0, 0),
    "bits": (lambda key, n: jax.random.bits(key, (4,), jnp.uint32) * 2.0**-32, 0),
    "bits of 64": (lambda key, n: (jax.random.bits(key, (4,)) >> 3) * 2.0**-61, 0),
    "permutation": (lambda key, n: jax.random.permutation(key, jnp.arange(4.0)), 0),
    "choice": (lambda key, n: jax.random.choice(key, jnp.asarray([0.1, 0.4, 0.9]), (4,)), 0),
    "a key and a count": (lambda key, n: jax.random.uniform(jax.random.fold_in(key, n), (4,)), 0),
    "a seed": (lambda key, n: jax.random.uniform(jax.random.key(n), (4,)), 0),
    "vmap of keys": (lambda key, n: jax.vmap(jax.random.normal)(jax.random.split(key, 4)), 2e-15),
    "scan of keys": (
        lambda key, n: lax.scan(lambda c, k: (c + jax.random.uniform(k), c), 0.0, jax.random.split(key, 4))[1],
        1e-15,
    ),
    "keys in a row": (lambda key, n: jax.random.uniform(jnp.stack(list(jax.random.split(key, 3)))[n % 3], (4,)), 0),
}


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "name, make", [*((name, jax.random.key) for name in DRAWS), ("normal", jax.random.PRNGKey)]
)
def test_a_step_draws_what_jax_draws(client, name, make):
    draw, near = DRAWS[name]

    def step(state):
        key, mine = jax.random.split(state["key"])
        return {"x": draw(mine, state["n"]), "key": key, "n": state["n"] + 1}

    state = {"x": jnp.zeros(4), "key": make(7), "n": 0}
    world = simgrad.jax.world(step, state=state, observe=["x"])
    assert world.state == ("key", "n")
    found = simgrad.jax.check(world, client, steps=3)
    assert found.worst <= near, found


def walk(state):
    key, mine = jax.random.split(state["key"])
    return {"x": state["x"] + jax.random.normal(mine, (2,)), "key": key}


def test_each_instance_draws_by_its_own_key(client):
    state = {"x": jnp.zeros(2), "key": jax.random.key(0)}
    world = simgrad.jax.world(walk, state=state)
    keys = jax.random.split(jax.random.key(5), 3)
    r = client.rollout(world, steps=4, initial={"x": np.zeros((3, 2)), "key": keys}, policy="f64")
    for k in range(3):
        here = {"x": jnp.zeros(2), "key": keys[k]}
        for _ in range(4):
            here = walk(here)
        np.testing.assert_allclose(r.state["x"][k], here["x"], atol=4e-15, rtol=0)
        assert (r.state["key"][k] == jax.random.key_data(here["key"])).all()


def test_what_a_draw_decides_is_a_site_and_what_makes_it_is_none(client):
    def step(state):
        key, mine, other = jax.random.split(state["key"], 3)
        kicked = jax.random.bernoulli(mine, 0.5)
        return {"x": jnp.where(kicked, state["x"] + jax.random.normal(other), 0.5 * state["x"]), "key": key}

    world = simgrad.jax.world(step, state={"x": jnp.ones(()), "key": jax.random.key(0)})
    r = client.rollout(world, steps=8, policy="f64")
    [name] = r.events
    line = step.__code__.co_firstlineno + 2
    assert [s.line for s in world.sites if s.name == name] == [f"draws_test.py:{line}"]


def test_philox_draws_are_those_of_the_language(client):
    def step(state):
        key, mine, other, third = jax.random.split(state["key"], 4)
        u, v = jax.random.uniform(mine, (3,)), jax.random.uniform(other, (3,), minval=1.0, maxval=3.0)
        n = jax.vmap(jax.random.normal)(jax.random.split(third, 3))
        return {"u": u, "v": v, "n": n, "t": state["t"] + 1.0, "key": key}

    state = {"u": jnp.zeros(3), "v": jnp.zeros(3), "n": jnp.zeros(3), "t": 0.0, "key": jax.random.key(0)}
    record = ["u", "v", "n"]
    world = simgrad.jax.world(step, state=state, observe=record, random="philox")
    assert world.state == ("t",), "a key is no state: nothing reads it"
    assert world.report().notes["draws of the language"] == 3
    run = dict(steps=200, instances=8, record=record, policy="f64", initial={"t": np.zeros(8)})
    r, again, other = (client.rollout(world, seed=s, **run) for s in (1, 1, 2))
    u, v, n = (np.asarray(r.trajectory[name]) for name in record)
    assert (u == again.trajectory["u"]).all() and (u != other.trajectory["u"]).all()
    assert len(np.unique(u)) == u.size and len(np.unique(n)) == n.size, "each place, step and instance by itself"
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.02
    assert v.min() >= 1 and v.max() < 3 and abs(v.mean() - 2) < 0.04
    assert abs(n.mean()) < 0.06 and abs(n.std() - 1) < 0.05
    assert not np.isclose(u, (v - 1) / 2).any()


@pytest.mark.parametrize(
    "name",
    ["categorical", "truncated normal", "integers", "bits of 64", "permutation", "vmap of keys", "scan of keys", "keys in a row"],
)
def test_philox_draws_all_that_jax_draws_in_its_range(client, name):
    draw, _ = DRAWS[name]

    def step(state):
        key, mine = jax.random.split(state["key"])
        return {"x": draw(mine, state["n"]), "key": key, "n": state["n"] + 1}

    def drawn(key, n):
        return jax.vmap(lambda k: draw(k, n))(jax.random.split(key, 500))

    state = {"x": jnp.zeros(4), "key": jax.random.PRNGKey(7), "n": 0}
    world = simgrad.jax.world(step, state=state, observe=["x"], random="philox")
    r = client.rollout(world, steps=30, instances=16, initial={"n": np.zeros(16, int)}, record=["x"], policy="f64")
    ours, theirs = np.asarray(r.trajectory["x"]).reshape(-1, 4), np.asarray(drawn(jax.random.key(1), 2))
    assert abs(np.median(ours) - np.median(theirs)) <= 0.15 * max(1.0, np.std(theirs))
    assert 0.85 * np.std(theirs) <= np.std(ours) <= 1.15 * np.std(theirs)
    assert len(np.unique(ours)) > 0.9 * min(len(ours), len(np.unique(theirs)))


def test_a_loop_draws_anew_at_each_turn_and_a_constant_key_once(client):
    fixed = jax.random.key(3)

    def step(state):
        def turn(carried, _):
            key, total = carried
            key, mine = jax.random.split(key)
            x = jax.random.uniform(mine)
            return (key, total + x), x

        (key, _), drawn = lax.scan(turn, (state["key"], 0.0), None, length=5)
        return {"drawn": drawn, "same": jax.random.uniform(fixed) + 0.0 * state["t"], "t": state["t"] + 1, "key": key}

    state = {"drawn": jnp.zeros(5), "same": jnp.zeros(()), "t": 0.0, "key": jax.random.key(0)}
    world = simgrad.jax.world(step, state=state, observe=["drawn", "same"], random="philox")
    r = client.rollout(world, steps=6, initial={"t": np.zeros(2)}, record=["drawn", "same"], policy="f64")
    drawn = np.asarray(r.trajectory["drawn"])
    assert len(np.unique(drawn)) == drawn.size == 60
    assert (np.asarray(r.trajectory["same"]) == float(jax.random.uniform(fixed))).all()


def test_a_gradient_goes_past_draws_and_through_what_is_done_with_them(client):
    def step(state, params):
        key, mine = jax.random.split(state["key"])
        noise = params["sigma"] * jax.random.normal(mine, (2,))
        return {"x": 0.9 * state["x"] + noise * jnp.sin(state["x"]), "key": key}

    state = {"x": jnp.asarray([0.4, 1.2]), "key": jax.random.key(11)}
    params = {"sigma": jnp.asarray(0.3)}
    world = simgrad.jax.world(step, state=state, params=params, objective={"far": lambda s: jnp.sum(s["x"] ** 2)})
    g = client.gradient(world, steps=5, initial=state, params=params, objective="far", policy="f64")

    def loss(x, params):
        here = {**state, "x": x}
        for _ in range(5):
            here = step(here, params)
        return jnp.sum(here["x"] ** 2)

    by_x, by_params = jax.grad(loss, (0, 1))(state["x"], params)
    np.testing.assert_allclose(g.initial["x"], by_x, rtol=1e-12)
    np.testing.assert_allclose(g.params["sigma"], by_params["sigma"], rtol=1e-12)


def test_the_inverse_of_erf_has_its_derivative(client):
    def step(state):
        return {"x": 0.9 * jax.scipy.special.erfinv(state["x"])}

    state = {"x": jnp.asarray([-0.9999999, -0.99, -0.3, 1e-12, 0.5, 0.9985, 1 - 1e-12])}
    world = simgrad.jax.world(step, state=state, objective={"sum": lambda s: jnp.sum(s["x"])})
    assert simgrad.jax.check(world, client, steps=1).worst <= 2e-15
    g = client.gradient(world, steps=1, initial=state, objective="sum", policy="f64")
    expected = jax.grad(lambda x: jnp.sum(step({"x": x})["x"]))(state["x"])
    np.testing.assert_allclose(g.initial["x"], expected, rtol=1e-11)


@pytest.mark.parametrize("random", ["threefry", "philox"])
def test_draws_run_in_narrow_formats(client, random):
    world = simgrad.jax.world(
        walk, state={"x": jnp.zeros(2), "key": jax.random.key(0)}, observe=["x"], random=random
    )
    keys = jax.random.split(jax.random.key(5), 64)
    for policy in ("f32", "bf16_safe"):
        r = client.rollout(world, steps=5, initial={"x": np.zeros((64, 2)), "key": keys}, policy=policy)
        x = np.asarray(r.state["x"], float)
        assert np.isfinite(x).all() and 1.5 < x.std() < 3


def test_a_draw_of_the_language_in_a_cost_is_refused_with_its_line():
    def cost(state):
        return jax.random.uniform(state["key"]) * state["x"][0]

    state = {"x": jnp.zeros(2), "key": jax.random.key(0)}
    with pytest.raises(simgrad.jax.JaxWorldError, match="a draw of the language in init or in a cost") as found:
        simgrad.jax.world(walk, state=state, objective={"c": cost}, random="philox")
    assert [p.line for p in found.value.problems] == [f"draws_test.py:{cost.__code__.co_firstlineno + 1}"]
    simgrad.jax.world(walk, state=state, objective={"c": cost})


def test_a_key_beside_the_state_means_nothing_to_philox(client):
    def step(state, control):
        return {"x": state["x"] + jax.random.uniform(control["key"], (2,))}

    control = {"key": jax.random.key(0)}
    world = simgrad.jax.world(step, state={"x": jnp.zeros(2)}, control=control, random="philox")
    run = dict(steps=1, initial={"x": np.zeros((3, 2))}, policy="f64", seed=4)
    first = client.rollout(world, controls=control, **run)
    other = client.rollout(world, controls={"key": jax.random.key(9)}, **run)
    assert len(np.unique(first.state["x"])) == 6 and (first.state["x"] == other.state["x"]).all()


def test_keys_of_a_generator_without_a_rule_are_refused_by_name():
    def step(state):
        key, mine = jax.random.split(state["key"])
        return {"x": state["x"] + jax.random.uniform(mine, (2,)), "key": key}

    state = {"x": jnp.zeros(2), "key": jax.random.key(0, impl="rbg")}
    with pytest.raises(simgrad.jax.JaxWorldError) as found:
        simgrad.jax.world(step, state=state)
    assert 'a draw with a key of rbg or unsafe_rbg; make it with jax.random.key(seed, impl="threefry2x32")' in str(found.value)
    assert [p.line for p in found.value.problems][0].startswith("draws_test.py:")
    simgrad.jax.world(step, state=state, random="philox")


def test_a_function_gives_keys_back_as_keys(client):
    def step(state):
        key, own = jax.random.split(state["key"])
        return {"key": key, "x": state["x"] + jax.random.normal(own)}

    start = {"key": jax.random.key(3), "x": jnp.asarray(0.0)}
    run = simgrad.jax.function(client, simgrad.jax.world(step, state=start), policy="f64", steps=2)
    once = run(run(start).state).state
    expected, _ = jax.lax.scan(lambda s, _: (step(s), None), start, None, length=4)
    assert once["key"].dtype == start["key"].dtype
    assert (jax.random.key_data(once["key"]) == jax.random.key_data(expected["key"])).all()
    np.testing.assert_allclose(once["x"], expected["x"], rtol=1e-14)
    scanned, _ = jax.lax.scan(lambda s, _: (run(s).state, None), start, None, length=2)
    np.testing.assert_array_equal(scanned["x"], once["x"])


# What JAX keeps above 0 or -1 by numbers that narrower formats round to these, and what it keeps below 1.
OPEN = {
    "uniform": jax.random.uniform,
    "gumbel": jax.random.gumbel,
    "categorical": lambda key: jax.random.categorical(key, jnp.zeros(3)) * 1.0,
    "logistic": jax.random.logistic,
    "laplace": jax.random.laplace,
    "truncated normal": lambda key: jax.random.truncated_normal(key, -6.0, 6.0),
    "exponential": jax.random.exponential,
}


@pytest.mark.parametrize("random", ["threefry", "philox"])
@pytest.mark.parametrize("name", OPEN)
def test_draws_are_finite_in_every_format(client, name, random):
    def step(state):
        key, own = jax.random.split(state["key"])
        return {"key": key, "x": OPEN[name](own)}

    world = simgrad.jax.world(step, state={"key": jax.random.key(0), "x": 0.0}, random=random, observe=["x"])
    keys = jax.random.split(jax.random.key(1), 2000)
    for policy in ("f32", "bf16_unsafe", "f16_unsafe"):
        r = client.rollout(world, steps=2, initial={"key": keys, "x": 0.0}, policy=policy, record=["x"])
        assert r.instances == 2000 and r.ok.all(), r
        assert np.unique(np.asarray(r.trajectory["x"], float)).size > (2 if name == "categorical" else 100)


def test_keys_that_philox_does_not_read_say_how_many_instances_there_are(client):
    def step(state):
        key, own = jax.random.split(state["key"])
        return {"key": key, "x": state["x"] + jax.random.normal(own), "m": state["m"]}

    state = {"key": jax.random.key(0), "x": 0.0, "m": 2.0}
    world = simgrad.jax.world(step, state=state, random="philox")
    keys = jax.random.split(jax.random.key(1), 8)
    r = client.rollout(world, steps=3, initial={**state, "key": keys})
    assert r.instances == 8 and np.unique(r.state["x"]).size == 8
    assert client.rollout(world, steps=3, initial={**state, "m": np.full(5, 2.0)}).instances == 5
    with pytest.raises(ValueError, match="inputs of 5 and of 8 instances"):
        client.rollout(world, steps=3, initial={**state, "key": keys, "m": np.full(5, 2.0)})
    with pytest.raises(simgrad.InvalidArgument, match="instances"):
        client.rollout(world, steps=3, initial={**state, "key": keys, "x": np.zeros(4)})


# By the word of a draw: the draw of a key and of three shapes.
OF_SHAPES = {
    "gamma": lambda key, a: jax.random.gamma(key, a),
    "loggamma": lambda key, a: jax.random.loggamma(key, a),
    "beta": lambda key, a: jax.random.beta(key, a, 2.0),
    "dirichlet": lambda key, a: jax.random.dirichlet(key, a),
    "t": lambda key, a: jax.random.t(key, a, (3,)),
}


@pytest.mark.parametrize("name", OF_SHAPES)
def test_a_draw_has_jaxs_derivative_by_its_shape(client, name):
    drawn, weights = OF_SHAPES[name], jnp.array([1.0, -2.0, 0.5])

    def step(state, params):
        return {"x": 0.0 * state["x"] + drawn(state["key"], params), "key": jax.random.split(state["key"])[0]}

    keys, shapes = jax.random.split(jax.random.key(1), 50), np.array([0.1, 1.0, 30.0])
    world = simgrad.jax.world(step, state={"x": np.zeros(3), "key": keys[0]}, params=shapes, max_iter={"<lambda>": 60},
                              objective={"o": lambda state: jnp.dot(weights, state["x"])})  # fmt: skip
    start = {"x": np.zeros((50, 3)), "key": keys}
    g = client.gradient(world, steps=1, initial=start, params=np.tile(shapes, (50, 1)), objective="o", policy="f64")
    assert g.ok.all()
    expected = jax.vmap(jax.grad(lambda a, key: jnp.dot(weights, drawn(key, a))), (None, 0))(shapes, keys)
    np.testing.assert_allclose(g.params, expected, rtol=1e-10, atol=1e-12)
