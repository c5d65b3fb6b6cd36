"""Steps that JAX takes without x64 alone: their integers meet i32 of their own, or their reals f32."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simgrad.jax
from jax import lax
from jax._src import config, dtypes

from simgrad.jax.without_x64 import has_widths_without_x64, widths_without_x64

N, X = np.int32(0), np.float32(1)
TABLE = np.array([0.1, 0.2, 0.3])
OWN_F32 = jnp.asarray(np.array([0.1, 0.7], np.float32))


@pytest.fixture(autouse=True)
def in_f32():
    with jax.enable_x64(False):
        yield


def clashes(n):
    """An i32, of integers that are i64 under x64; JAX refuses it there."""
    return lax.select(n > 3, jnp.argmax(jnp.ones(3)), n)


def counted(s):
    def turn(carry, _):
        return {"x": 0.5 * carry["x"] + 0.1, "k": carry["k"] + jnp.sum(jnp.ones(2, int))}, None

    made = lax.scan(turn, {"x": s["x"], "k": s["n"]}, length=3)[0]
    return {"n": made["k"], "x": made["x"]}


def drawn(s):
    key = jax.random.fold_in(jax.random.key(1), s["n"])
    draw = jax.random.randint(key, (), 0, 1000) + jax.random.permutation(key, 5)[0]
    return {"n": lax.cond(s["n"] > 5000, lambda: s["n"], lambda: draw), "x": 0.5 * s["x"]}


def wrapped(s):
    product = lax.fori_loop(0, 3, lambda _, n: n * jnp.prod(jnp.array([65536, 3])), s["n"] + 1)
    return {"n": product, "x": 0.5 * s["x"]}


def table(s):
    places = np.arange(3)
    n = lax.while_loop(lambda n: n % 7 != 0, lambda n: n + jnp.asarray(places)[jnp.searchsorted(TABLE, s["x"])] + 1, s["n"] + 1)
    return {"n": n, "x": 0.5 * s["x"]}


INTEGERS = {
    "select": lambda s: {"n": clashes(s["n"]) + 1, "x": 0.5 * s["x"]},
    "cond": lambda s: {"n": lax.cond(s["n"] > 3, lambda: jnp.argmax(jnp.ones(3)), lambda: s["n"] + 1), "x": 0.5 * s["x"]},
    "fori_loop": lambda s: {"n": lax.fori_loop(0, 3, lambda k, n: n + k + jnp.sum(jnp.ones(2, int)), s["n"]), "x": 0.5 * s["x"]},
    "switch": lambda s: {
        "n": lax.switch((jnp.sum(jnp.arange(3)) + s["n"]) % 2, [lambda: s["n"] + 1, lambda: jnp.argmin(jnp.ones(3)) + 2]),
        "x": 0.5 * s["x"],
    },
    "a number that is chosen": lambda s: {
        "n": lax.switch(lax.select(s["n"] > 1, 1, 0), [lambda: clashes(s["n"]) + 1, lambda: lax.select(s["n"] > 5, 0, s["n"] + 2)]),
        "x": 0.5 * s["x"],
    },
    "numbers of two branches": lambda s: {"n": lax.cond(s["n"] > 3, lambda: -1, lambda: clashes(s["n"]) + 1), "x": 0.5 * s["x"]},
    "an array": lambda s: {"n": lax.cond(s["n"] > 3, lambda: jnp.zeros(2, int), lambda: jnp.stack([s["n"] + 1] * 2))[1], "x": 0.5 * s["x"]},
    "of u32": lambda s: {"n": lax.select(s["n"] > 3, s["n"] + jnp.uint32(2), s["n"] + 1), "x": 0.5 * s["x"]},
    "scan": counted,
    "draws of integers": drawn,
    "a product that wraps": wrapped,
    "a table of NumPy": table,
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_those_of_jax_without_x64(client, name):
    step, s, expected = INTEGERS[name], {"n": jnp.asarray(N), "x": jnp.asarray(X)}, []
    with jax.enable_x64(True), pytest.raises(simgrad.jax.JaxWorldError, match="int64, which an integer without a dtype"):
        simgrad.jax.world(step, state={"n": N, "x": X}, max_iter={"table": 50})
    world = simgrad.jax.world(step, state={"n": N, "x": X}, max_iter={"table": 50} if name == "a table of NumPy" else None)
    assert "without_x64_test.py:" in str([*world.report().without_x64])
    for _ in range(5):
        s = jax.jit(step)(s)
        expected.append(int(s["n"]))
    start = {"n": np.array([N]), "x": np.array([1.0])}
    r = client.rollout(world, steps=5, initial=start, policy="f64", record=["n"])
    assert r.trajectory["n"][0, -5:].tolist() == expected
    assert simgrad.jax.check(world, client=client).worst <= 1e-15


REALS = {
    "a carry": lambda s: {"x": lax.fori_loop(0, 3, lambda i, y: y + 0.1 * s["x"], jnp.zeros((), jnp.float32))},
    "a branch": lambda s: {"x": lax.cond(s["x"] > 0, lambda: 0.1 * s["x"], lambda: jnp.float32(0))},
    "an array of ones own": lambda s: {"x": lax.scan(lambda y, _: (y * s["x"], None), OWN_F32, length=2)[0][1]},
    "a branch that is one": lambda s: {"x": lax.cond(s["x"] > 0.5, lambda: OWN_F32, lambda: OWN_F32 * s["x"])[1]},
    "a compiled function of one": lambda s: {"x": lax.cond(s["x"] > 2, lambda: 0.1 * s["x"], lambda: jax.jit(jnp.sum)(OWN_F32))},
    "a cast": lambda s: {"x": lax.select(s["x"] > 0.5, (0.1 * s["x"]).astype(jnp.float32), s["x"])},
    "a shape": lambda s: {"x": lax.cond(s["x"] > 2, lambda: s["x"], lambda: jnp.ones((), OWN_F32.dtype) / 3)},
}


@pytest.mark.parametrize("name", REALS)
def test_f32_that_a_step_fixes_is_a_real_like_any_other(client, name):
    step = REALS[name]
    world = simgrad.jax.world(step, state={"x": X}, objective={"x": lambda s: s["x"]})
    assert "without_x64_test.py:" in str([*world.report().without_x64])
    assert simgrad.jax.check(world, client=client).worst <= 1e-15
    g = client.gradient(world, steps=1, initial={"x": np.array([1.0])}, objective="x", policy="f64")
    np.testing.assert_allclose(g.values[0], jax.jit(step)({"x": X})["x"], rtol=1e-6)
    np.testing.assert_allclose(g.initial["x"][0], jax.grad(lambda x: step({"x": x})["x"])(X), rtol=1e-6, atol=1e-7)


# Each with its number to the last bit: none goes through f32.
CONSTANTS = {
    "a number": (lambda: 0.1, 0.1),
    "a list": (lambda: jnp.array([0.1, 0.3])[1], 0.3),
    "a number as an array": (lambda: jnp.asarray(0.1), 0.1),
    "a table of NumPy": (lambda: jnp.asarray(TABLE)[2], 0.3),
    "a number of NumPy": (lambda: np.float64(0.1), 0.1),
    "filled": (lambda: jnp.full(2, 0.1)[1], 0.1),
    "f32 by name": (lambda: jnp.full(2, 0.1, jnp.float32)[1], 0.1),
    "of integers": (lambda: (jnp.arange(3) / 3)[1], 1 / 3),
    "linspace": (lambda: jnp.linspace(0, 1, 4)[1], 1 / 3),
    "a root": (lambda: jnp.sqrt(2), np.sqrt(2)),
    "a mean": (lambda: jnp.mean(jnp.array([1, 1, 0])), 2 / 3),
    "known while tracing": (lambda: known(), 1 / 3),
    "pi": (lambda: jnp.pi / 3, np.pi / 3),
    "a solution": (lambda: jnp.linalg.solve(jnp.asarray(np.diag(1 / TABLE)), jnp.ones(3))[0], 1 / (1 / 0.1)),
    "f32 of ones own": (lambda: OWN_F32[0], float(np.float32(0.1))),
    "f32 of NumPy": (lambda: jnp.asarray(np.float32(0.1)), float(np.float32(0.1))),
    "eps": (lambda: jnp.finfo(jnp.ones(1).dtype).eps, 2.0**-52),
}  # fmt: skip


def known():
    with jax.ensure_compile_time_eval():
        return jnp.ones(()) / 3


@pytest.mark.parametrize("ran_before", [False, True])
@pytest.mark.parametrize("name", CONSTANTS)
def test_no_constant_is_rounded_to_f32(client, name, ran_before):
    made, expected = CONSTANTS[name]
    step = lambda s: {"n": clashes(s["n"]), "x": s["x"] * made()}
    if ran_before:  # JAX then keeps arrays of NumPy that it rounded
        jax.jit(step)({"n": jnp.asarray(N), "x": jnp.asarray(X)})
    world = simgrad.jax.world(step, state={"n": N, "x": X})
    assert world.report().without_x64
    found = client.rollout(world, steps=1, initial={"n": np.array([N]), "x": np.array([1.0])}, policy="f64").state["x"]
    assert found[0] == expected


def test_a_step_that_needs_none_of_it_is_the_world_that_it_was():
    step = lambda s: {"n": s["n"] + jnp.sum(jnp.arange(3)), "x": s["x"] * TABLE[0]}
    with jax.enable_x64(True):
        expected = simgrad.jax.world(step, state={"n": N, "x": X})
    world = simgrad.jax.world(step, state={"n": N, "x": X})
    assert world.program == expected.program and world.report().without_x64 == {}


def test_the_report_tells_the_line_and_what_follows():
    step = lambda s: {"n": clashes(s["n"]), "x": 0.5 * s["x"]}
    line = f"without_x64_test.py:{clashes.__code__.co_firstlineno + 2}"
    for formats, said in (("erase", ", and float32 is a real like any other"), ("keep", "")):
        report = simgrad.jax.world(step, state={"n": N, "x": X}, formats=formats).report()
        assert report.without_x64 == {line: f"integers have 32 bits, and wrap{said}"} and not report.wide_integers
        told = str(report).splitlines()
        at = told.index("widths of JAX without x64, where those of x64 clash:")
        assert told[at + 1] == f"  {line}: integers have 32 bits, and wrap{said}"


def test_costs_and_init_have_the_widths_of_the_step(client):
    step = lambda s: {"n": s["n"] + 1, "x": 0.5 * s["x"]}
    world = simgrad.jax.world(
        step, state={"n": N, "x": X}, params={"k": 1.0}, init=lambda params: {"n": clashes(jnp.int32(2)), "x": params["k"] / 3},
        objective={"o": lambda s: clashes(s["n"]) + s["x"]})  # fmt: skip
    g = client.gradient(world, steps=1, params={"k": 1.0}, objective="o", policy="f64")
    assert g.values.tolist() == [3 + 0.5 * (1 / 3)]


def test_formats_that_are_kept_round_where_the_step_says_so(client):
    step = lambda s: {"n": clashes(s["n"]), "x": s["x"].astype(jnp.float32) * np.float32(0.1) + 0.0 * s["x"]}
    start = {"n": np.array([N]), "x": np.array([0.3])}
    worlds = [simgrad.jax.world(step, state={"n": N, "x": X}, formats=formats) for formats in ("erase", "keep", "erase", "keep")]
    found = [client.rollout(w, steps=1, initial=start, policy="f64").state["x"][0] for w in worlds]
    wide, narrow = 0.3 * float(np.float32(0.1)), float(np.float32(0.3) * np.float32(0.1))
    assert found == [wide, narrow, wide, narrow]


def test_formats_that_are_kept_and_clash_are_told():
    with pytest.raises(simgrad.jax.JaxWorldError, match='float64, in which .*run jax.config.update."jax_enable_x64", True'):
        simgrad.jax.world(REALS["a carry"], state={"x": X}, formats="keep")


def test_a_problem_behind_the_clash_is_told_alone():
    step = lambda s: {"n": clashes(s["n"]), "x": s["x"] + jnp.linalg.eigvalsh(jnp.eye(2) * s["x"])[0]}
    with pytest.raises(simgrad.jax.JaxWorldError) as caught:
        simgrad.jax.world(step, state={"n": N, "x": X})
    assert "eigh" in str(caught.value) and "int64" not in str(caught.value)


def test_integers_that_are_asked_for_or_need_64_bits_have_them(client):
    wide = np.array([2**40, 3])

    def step(s):
        m = s["m"] + wide[0] + jnp.asarray(wide)[s["n"] * 0] + jax.jit(lambda m: m[0] + 0)(wide)
        return {"n": clashes(s["n"]), "m": m + jnp.sum(s["n"], dtype=jnp.int64)}

    world = simgrad.jax.world(step, state={"n": N, "m": np.int64(0)})
    r = client.rollout(world, steps=1, initial={"n": np.array([N]), "m": np.array([1])}, policy="f64")
    assert r.state["m"].tolist() == [3 * 2**40 + 1]


@jax.jit
def compiled(n):
    return n + jnp.sum(jnp.arange(3)), jnp.ones(2, jnp.float32), jnp.zeros(2)


def test_jax_is_as_before():
    types = lambda: [x.dtype.name for x in (*compiled(np.int32(1)), jnp.arange(2), jnp.zeros(1), jnp.asarray(TABLE), jnp.arange(2) / 2)]
    narrow = types()
    with jax.enable_x64(True):
        wide = types()
    assert wide == ["int64", "float32", "float64", "int64", "float64", "float64", "float64"] and "64" not in "".join(narrow)
    before = {name: getattr(dtypes, name) for name in vars(dtypes)}

    def step(s):
        n, narrow, y = compiled(s["n"])
        return {"n": clashes(s["n"]) + n, "x": s["x"] * y[0] + narrow[0]}

    for mode in (config.ExplicitX64Mode.WARN, config.ExplicitX64Mode.ALLOW, config.ExplicitX64Mode.ERROR):
        with config.explicit_x64_dtypes(mode):
            assert simgrad.jax.world(step, state={"n": N, "x": X}).report().without_x64
            assert types() == narrow
            with jax.enable_x64(True):
                assert types() == wide
    assert before == {name: getattr(dtypes, name) for name in vars(dtypes)}


def test_other_threads_keep_their_widths():
    found = []

    def other():
        with jax.enable_x64(True):
            found.append([x.dtype.name for x in (jnp.arange(2), jnp.zeros(2, jnp.float32), jnp.int32(3) + jnp.uint32(2))])

    with widths_without_x64(), jax.enable_x64(True):
        assert jnp.arange(2).dtype == jnp.int32
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == [["int64", "float32", "int64"]]


@pytest.mark.parametrize("name", ["default_int_dtype", "_least_upper_bound", "canonicalize_value"])
def test_a_jax_whose_insides_are_others_has_the_error_that_there_was(monkeypatch, name):
    assert has_widths_without_x64()
    monkeypatch.setattr(dtypes, name, getattr(dtypes, name))  # it is put back at the end
    renamed = {key: value for key, value in vars(dtypes).items() if key == name}
    monkeypatch.setattr("simgrad.jax.without_x64.dtypes", Without(name))
    assert renamed and not has_widths_without_x64()
    with pytest.raises(simgrad.jax.JaxWorldError, match='int64, which .*"jax_enable_x64"'):
        simgrad.jax.world(INTEGERS["select"], state={"n": N, "x": X})
    assert jnp.arange(2).dtype == jnp.int32


class Without:
    """JAX's module of types, less one name."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name == self._name:
            raise AttributeError(name)
        return getattr(dtypes, name)
