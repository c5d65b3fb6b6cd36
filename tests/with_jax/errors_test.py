"""A step that makes no world says so at once: all of a kind together, each with its line."""

import functools
import importlib.util
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, sparse

import simgrad.jax
from simgrad.jax import JaxWorldError

X = jnp.array([0.3, 0.9])


def refused(step, state=None, **options):
    with pytest.raises(JaxWorldError) as found:
        simgrad.jax.world(step, state={"x": X} if state is None else state, **options)
    return found.value


def line(step, offset):
    return f"errors_test.py:{step.__code__.co_firstlineno + offset}"


def test_python_that_decides_on_a_value_is_told_with_its_line():
    def step(state):
        if state["x"][0] > 0:
            return state
        return {"x": -state["x"]}

    error = refused(step)
    assert line(step, 1) in str(error) and "jax.lax.cond" in str(error)
    assert 'if state["x"][0] > 0' in str(error)


def test_a_shape_that_depends_on_data_is_told_with_its_line():
    def step(state):
        x = state["x"]
        return {"x": x + jnp.nonzero(x)[0].size}

    assert line(step, 2) in str(refused(step))


def test_primitives_without_a_rule_are_listed_together():
    def step(state):
        m = jnp.outer(state["x"], state["x"])
        a = jnp.linalg.eigh(m)[0]
        b = jnp.linalg.svd(m, compute_uv=False)
        return {"x": a + b}

    error = refused(step)
    assert [problem.line for problem in error.problems] == [line(step, 2), line(step, 3)]
    assert "eigh" in str(error) and "svd" in str(error)


SPARSE = sparse.BCOO.fromdense(np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 0.5], [0.0, 0.0, 1.0]]))
POINTS = np.array([0.3, 0.5, 0.7])


def added(matrix, x):
    i, j = matrix.indices.T
    return jnp.zeros(3).at[i].add(matrix.data * x[j])


def solved(x):
    rows = sparse.BCSR.from_bcoo(SPARSE)
    return sparse.linalg.spsolve(rows.data.astype(x.dtype), rows.indices, rows.indptr, x)


def of_groups(x):
    return lax.ragged_dot(jnp.outer(x, x), jnp.ones((2, 3, 3)), jnp.array([1, 2]))[0]


def checked(x):
    checkify.check(x[0] > 0, "not above 0")
    return x


def sharded(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(lambda y: 2 * y, mesh=mesh, in_specs=spec, out_specs=spec)(x)


# By primitive: a function of POINTS that has it, a word of the hint, and what the hint means where it is one expression.
WITHOUT_RULE = {
    "bcoo_dot_general": (lambda x: SPARSE @ x, "a.todense()", lambda x: added(SPARSE, x)),
    "bcsr_dot_general": (lambda x: sparse.BCSR.from_bcoo(SPARSE) @ x, "a.todense()", lambda x: SPARSE.todense() @ x),
    "spsolve": (solved, "jnp.linalg.solve", lambda x: jnp.linalg.solve(SPARSE.todense(), x)),
    "ragged_dot_general": (of_groups, "jnp.where", None),
    "shard_map": (sharded, "jax.vmap", None),
    "check": (checked, "equinox.error_if", lambda x: checkify.checkify(checked)(x)[1]),
    "schur": (lambda x: jax.scipy.linalg.schur(jnp.outer(x, x))[0][0], "hold the matrix constant", None),
    "hessenberg": (lambda x: lax.linalg.hessenberg(jnp.outer(x, x))[0][0], "hold the matrix constant", None),
    "eig": (lambda x: jnp.linalg.eigvals(jnp.outer(x, x)).real, "without eigenvalues", None),
    "regularized_incomplete_beta": (lambda x: jax.scipy.special.betainc(x, 2.0, 0.3), "jnp.interp", None),
    "zeta": (lambda x: jax.scipy.special.zeta(x + 2, 1.0), "jnp.interp", None),
    "lgamma": (jax.scipy.special.gammaln, "Stirling", None),
    "reduce": (lambda x: x * lax.reduce(x, 0.0, lambda a, b: a + b * b, (0,)), "jax.lax.scan", None),
    "reduce_xor": (lambda x: x * lax.reduce_xor(x > 0.4, (0,)), "jnp.sum(x) % 2", lambda x: x * (jnp.sum(x > 0.4) % 2)),
    "reduce_or": (lambda x: x * lax.reduce_or((9 * x).astype(int), (0,)), "jax.lax.scan", None),
    "population_count": (
        lambda x: 1.0 * lax.population_count((9 * x).astype(jnp.uint32)),
        "x >> k & 1",
        lambda x: 1.0 * sum((9 * x).astype(jnp.uint32) >> k & 1 for k in range(32)),
    ),
    "clz": (
        lambda x: 1.0 * lax.clz((9 * x).astype(jnp.uint32)),
        "x >> k == 0",
        lambda x: 1.0 * sum((9 * x).astype(jnp.uint32) >> k == 0 for k in range(32)),
    ),
}


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_what_has_no_rule_says_what_to_write_instead(client, name):
    function, hint, instead = WITHOUT_RULE[name]
    [problem] = refused(lambda s: {"x": function(s["x"])}, {"x": POINTS}).problems
    assert name in problem.what and hint in problem.hint
    if instead is not None:
        world = simgrad.jax.world(lambda s: {"x": instead(s["x"])}, state={"x": POINTS})
        found = client.rollout(world, steps=1, policy="f64").state["x"][0]
        with jax.enable_x64(True):
            np.testing.assert_allclose(found, function(jnp.asarray(POINTS)), rtol=1e-12)


@pytest.mark.parametrize("name", sorted(WITHOUT_RULE.keys() - {"check", "shard_map"}))
def test_what_has_no_rule_is_computed_by_jax_where_all_is_known(client, name):
    function = WITHOUT_RULE[name][0]
    world = simgrad.jax.world(lambda s: {"x": s["x"] + function(jnp.asarray(POINTS))}, state={"x": POINTS})
    found = client.rollout(world, steps=1, policy="f64").state["x"][0]
    with jax.enable_x64(True):
        np.testing.assert_allclose(found, POINTS + function(jnp.asarray(POINTS)), rtol=1e-12)


def test_of_complex_numbers_the_first_is_told():
    [problem] = refused(lambda s: {"x": jnp.abs(jnp.sum(jnp.exp(1j * s["x"]))) * s["x"]}).problems
    assert "of complex numbers" in problem.what


def test_a_callback_is_refused_and_a_print_left_out():
    def step(state):
        jax.debug.print("x {}", state["x"])
        x = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((2,), X.dtype), state["x"])
        return {"x": x}

    assert line(step, 2) in str(refused(step))

    def quiet(state):
        jax.debug.print("x {}", state["x"])
        return {"x": 2 * state["x"]}

    dropped = simgrad.jax.world(quiet, state={"x": X}).report().dropped
    assert list(dropped) == [line(quiet, 1)]


def test_loops_without_a_bound_are_listed_with_what_to_give():
    def step(state):
        a = lax.while_loop(lambda v: v > 1, lambda v: 0.5 * v, state["x"][0])
        b = lax.while_loop(lambda v: v > 2, lambda v: 0.5 * v, state["x"][1])
        return {"x": jnp.stack([a, b])}

    error = refused(step)
    assert [problem.line for problem in error.problems] == [line(step, 1), line(step, 2)]
    assert f'max_iter={{"{line(step, 1)}": 50}}' in str(error)
    caps = {line(step, 1): 20, line(step, 2): 30}
    world = simgrad.jax.world(step, state={"x": X}, max_iter=caps)
    assert [op.max_iter for op in world.program.step.ops if op.code == "while"] == [20, 30]


def test_a_state_that_changes_its_form_is_told_by_leaf():
    error = refused(lambda s: {"x": s["x"][:1], "y": s["y"] > 0}, {"x": X, "y": X})
    assert len(error.problems) == 2
    assert "state x" in str(error) and "state y" in str(error)
    assert "it returns" in str(refused(lambda s: [s["x"]]))


def shortened(state):
    part = state["x"][:1]
    return {"x": part, "n": state["n"] + 0.5}


def test_a_leaf_that_changes_its_form_is_told_with_its_line_and_what_to_write():
    error = refused(shortened, {"x": X, "n": 0})
    assert [p.line for p in error.problems] == [line(shortened, 2), line(shortened, 1)]
    assert [p.what for p in error.problems] == ["state n: int32[] becomes float64[]", "state x: float64[2] becomes float64[1]"]
    hints = ["give a real in the example, 1.0 for 1", "return an array of shape (2,), or give an example of shape (1,)"]
    assert [p.hint for p in error.problems] == hints
    in_jit = refused(functools.partial(jax.jit(shortened)), {"x": X, "n": 0})
    assert {p.line for p in in_jit.problems} == {line(shortened, 0)}
    [bare] = refused(lambda x: x > 0, X).problems
    assert bare.what == "state: float64[2] becomes bool[2]" and bare.hint.startswith('convert it: x.astype("float64")')


@pytest.mark.parametrize(
    "step, hint",
    [
        (lambda state: {"x": state["x"]}, "return n, too"),
        (lambda state: {**state, "y": state["x"]}, "give y in the example of the state, or return (state, outputs)"),
        (lambda state: None, "return the next state"),
        (lambda state: [state["x"]], "return the structure of the example, alone or as (state, outputs)"),
        (lambda state: (state, 1.0, 2.0), "return the structure of the example, alone or as (state, outputs)"),
    ],
)
def test_a_step_that_returns_another_tree_is_told_with_its_line_and_what_to_write(step, hint):
    error = refused(step, {"x": X, "n": 0})
    assert (error.problems[1].line, error.problems[1].hint) == (line(step, 0), hint)


@pytest.mark.parametrize(
    "cost, hint",
    [
        (lambda state: state["x"] ** 2, "jnp.sum(x) adds up its elements, and x[i] is one of them"),
        (lambda state: state["x"][0] > 1, "x.astype(float) makes it a real"),
        (lambda state: (state["x"][0], 1.0), "return one number"),
        (lambda state: None, "return one number"),
    ],
)
def test_a_cost_that_is_no_scalar_is_told_with_its_line_and_what_to_write(cost, hint):
    [problem] = refused(lambda state: {"x": 2 * state["x"]}, objective={"o": cost}).problems
    assert (problem.line, problem.hint) == (line(cost, 0), hint)


def test_params_that_are_one_array_are_told_as_params():
    [problem] = refused(lambda state, params: {"x": 2 * state["x"]}, params=np.ones(2)).problems
    assert problem.what == "params"


THEIRS = """
import jax
from jax import lax

def halved(x):
    return lax.while_loop(lambda y: y > 1, lambda y: 0.5 * y, x)

def decided(x):
    return x if x > 0 else -x

def largest(x):
    return lax.reduce(x * jax.numpy.ones(3), 0.0, lambda a, b: a + b * b, (0,))

@jax.custom_vjp
def clipped(x):
    return x

clipped.defvjp(lambda x: (x, None), lambda _, c: (jax.numpy.clip(c, -1, 1),))

def doubled(x):
    return 2 * clipped(x)

def admitted(x, code, error_if, messages):
    return error_if(x, code != 0, code, messages)
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A module of an installed package."""
    path = tmp_path_factory.mktemp("installed") / "site-packages" / "theirs.py"
    path.parent.mkdir()
    path.write_text(THEIRS)
    spec = importlib.util.spec_from_file_location("theirs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name, theirs_line", [("halved", 6), ("decided", 9), ("largest", 12)])
def test_a_line_of_a_package_is_told_with_the_users_line_that_asks_for_it(theirs, name, theirs_line):
    def step(state):
        y = jax.jit(lambda x: 2 * getattr(theirs, name)(x))(state["x"])
        return {"x": lax.cond(y > 3, lambda: y, lambda: 0.5 * y)}

    error = refused(step, {"x": 1.0})
    assert f"theirs.py:{theirs_line} (asked for by {line(step, 1)}): " in str(error)
    [problem] = error.problems
    assert (problem.line, problem.asked) == (f"theirs.py:{theirs_line}", line(step, 1))


def test_a_warning_about_a_line_of_a_package_has_the_users_line(theirs):
    def step(state):
        return {"x": 0.25 * theirs.doubled(state["x"])}

    with pytest.warns(UserWarning, match=rf"theirs.py:\d+ \(asked for by {line(step, 1)}\): a custom_vjp has"):
        simgrad.jax.world(step, state={"x": X})


def swapped(x):
    return lax.fori_loop(0, 3, lambda k, c: (c[1], jnp.where(x > 2, 3, 0)), (0, 0))[0]


def of_table(x):
    return lax.dynamic_index_in_dim(jnp.array([0, 1, 3, 2]), jnp.where(x > 1, 2, 0), keepdims=False)


# By code: what gives it of 2.5, and the messages that it may have.
MESSAGES = ["", "is nothing", "is too large", "is too small", "is too large"]
CODES = {
    "chosen": (lambda x: jnp.where(x > 1, 2, 0), "is too large"),
    "of a branch": (lambda x: lax.cond(x > 1, lambda y: jnp.where(y > 2, 4, 2), lambda y: 0, x), "is too large"),
    "of a loop": (swapped, "is too small"),
    "of a table": (of_table, "is too small"),
    "from the end": (lambda x: jnp.where(x > 1, -2, 0), "is too small"),
    "of two": (lambda x: jnp.where(x > 1, 3, jnp.where(x > 0.5, 1, 0)), "one of: (1) is nothing (2) is too small"),
    "of a wrapped one": (lambda x: jnp.where(x > 1, 2**32 + 1, 2**32).astype("int32"), None),
    "computed": (lambda x: jnp.floor(x).astype(int), None),
}
OF_ALL = "one of: (1) is nothing (2) is too large (3) is too small"


@pytest.mark.parametrize("name", CODES)
def test_an_error_tells_the_messages_that_it_may_have_and_the_line_that_asks_for_it(client, theirs, name):
    eqx = pytest.importorskip("equinox")
    code, message = CODES[name]

    def step(state):
        x = state["x"]
        return {"x": theirs.admitted(x, code(x), eqx.internal.branched_error_if, MESSAGES)}

    with jax.enable_x64(True), pytest.raises(eqx.EquinoxRuntimeError) as raised:
        eqx.filter_jit(step)({"x": jnp.asarray(2.5)})
    [said] = {m for m in MESSAGES if m and m in str(raised.value).partition("Location")[0]}
    world = simgrad.jax.world(step, state={"x": 0.0})
    [halted] = client.rollout(world, steps=1, initial={"x": np.array([0.0, 2.5])}, policy="f64").halted
    assert halted.instance == 1 and halted.error and said in halted.message
    assert halted.message == (message or OF_ALL)
    assert halted.line == f"theirs.py:24 (asked for by {line(step, 2)})"
    assert f"{halted.line}: {halted.message}" in str(world.report())


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_checkpointed_loop_is_differentiated_without_a_warning(client, is_batched):
    eqx = pytest.importorskip("equinox")

    def step(state, params):
        goes_on = lambda c: jnp.sum(c[1]) > -0.5
        turn = lambda c: (c[0] + 1, jnp.sin(params * c[1]) - 0.1)
        looped = lambda x: eqx.internal.while_loop(goes_on, turn, (0, x), kind="checkpointed", max_steps=8)[1]
        return {"x": (jax.vmap(looped) if is_batched else looped)(state["x"])}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world = simgrad.jax.world(step, state={"x": X}, params=1.0, objective={"o": lambda state: jnp.sum(state["x"] ** 2)})
    g = client.gradient(world, steps=1, initial={"x": X[None]}, params=np.array([1.2]), objective="o", policy="f64")
    with jax.enable_x64(True):
        loss = lambda x, k: jnp.sum(step({"x": x}, k)["x"] ** 2)
        by_x, by_k = jax.grad(loss, (0, 1))(jnp.asarray(X, float), jnp.asarray(1.2))
    np.testing.assert_allclose(g.initial["x"][0], by_x, rtol=1e-12)
    np.testing.assert_allclose(g.params[0], by_k, rtol=1e-12)


@pytest.mark.parametrize("state", [{}, (), None])
def test_a_state_without_leaves_is_refused(state):
    with pytest.raises(JaxWorldError, match="has no leaf; give an example"):
        simgrad.jax.world(lambda state: state, state=state)


def test_params_that_nothing_depends_on_are_an_error():
    error = refused(
        lambda state, params: {"x": state["x"] * params["k"]}, params={"k": 1.0, "m": 2.0}
    )
    assert [p.what for p in error.problems] == ["params m"]


def test_names_that_stand_for_nothing_are_listed_with_what_there_is():
    def step(state):
        x = lax.while_loop(lambda v: v > 1, lambda v: 0.5 * v, state["x"][0])
        return {"x": jnp.where(state["x"] > 0.5, x, state["x"])}

    error = refused(
        step,
        max_iter={"step": 20, "walk": 30},
        sites={line(step, 1): "halving", line(step, 3): "gate"},
        roles={"step": "solver", "nowhere": "solver"},
    )
    told = ["max_iter 'walk'", f"sites '{line(step, 3)}'", "roles 'nowhere'"]
    assert [p.what.split(": ")[0] for p in error.problems] == told
    assert error.problems[0].hint == f"there are {line(step, 1)}"
    assert error.problems[1].hint == f"there are {line(step, 1)}, {line(step, 2)}"
    used = dict(max_iter={"step": 20}, sites={line(step, 1): "halving"}, roles={"step": "solver"})
    simgrad.jax.world(step, state={"x": X}, **used)


def test_a_loop_that_counts_and_one_of_a_cost_take_the_cap_that_names_them():
    def step(state):
        return {"x": lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 2 * c[1]), (0, state["x"]))[1]}

    def cost(state):
        return lax.while_loop(lambda v: v > 1, lambda v: 0.5 * v, state["x"][0])

    world = simgrad.jax.world(step, state={"x": X}, objective={"c": cost}, max_iter={"step": 9, "cost": 5})
    [objective] = world.program.objectives
    assert [op.max_iter for op in objective.terminal.ops if op.code == "while"] == [5]


def test_words_that_are_none_are_refused_with_those_that_are():
    error = refused(lambda s: {"x": 2 * s["x"]}, roles={"step": "solvers", "cost": "tape"})
    assert [p.what for p in error.problems] == ["roles 'step': 'solvers'", "roles 'cost': 'tape'"]
    assert "termination" in error.problems[0].hint
    with pytest.raises(ValueError, match="tests 'most': one of decisions, all, loops"):
        simgrad.jax.world(lambda s: {"x": 2 * s["x"]}, state={"x": X}, tests="most")
    with pytest.raises(ValueError, match="random 'rbg': one of threefry, philox"):
        simgrad.jax.world(lambda s: {"x": 2 * s["x"]}, state={"x": X}, random="rbg")


def test_init_gives_leaves_of_the_state_in_their_types():
    step = lambda s, params: {"x": params["k"] * s["x"], "n": s["n"] + 1}
    given = dict(state={"x": X, "n": 0}, params={"k": 1.0})
    wrong = refused(step, init=lambda params: {"x": jnp.zeros(3), "n": 0.5}, **given)
    assert [p.what for p in wrong.problems] == ["state n: int32[] is float64[]", "state x: float64[2] is float64[3]"]
    assert "leaves are n, x" in str(refused(step, init=lambda params: {"y": X}, **given))
    with pytest.raises(TypeError, match="this world has no data"):
        simgrad.jax.world(step, init=lambda data: {"x": data}, **given)


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_a_cost_that_gives_no_real_is_refused_with_its_dtype(dtype):
    objective = {"count": lambda s: s["x"][0].astype(dtype)}
    assert f"'count' gives {dtype}[]" in str(refused(lambda s: {"x": 2 * s["x"]}, objective=objective))


def test_a_param_that_only_an_unobserved_leaf_reads_is_told_with_the_leaf():
    def step(state, params):
        return {"n": state["n"] + 1.0, "hit": state["n"] > params["limit"]}

    given = dict(state={"n": 0.0, "hit": False}, params={"limit": 2.0, "spare": 1.0})
    limit, spare = map(str, refused(step, **given).problems)
    assert "params limit: nothing depends on it but hit of the state" in limit and "observe=['hit']" in limit
    assert spare == "  params spare; leave it out, or use it in the step"
    given["params"].pop("spare")
    assert simgrad.jax.world(step, observe=["hit"], **given).exports == ("hit",)


def test_what_is_observed_must_be_there():
    assert "no leaf 'y'" in str(refused(lambda s: {"x": 2 * s["x"]}, observe=["y"]))
    assert "no leaf 'dist' of the state; there is 'contact.dist'" in str(
        refused(lambda s: {"x": 2 * s["x"], "contact": {"dist": s["x"]}}, {"x": 0.0, "contact": {"dist": 0.0}}, observe=["dist"])
    )


@pytest.mark.parametrize("group", ["state", "params", "data"])
@pytest.mark.parametrize("example", [True, np.uint8(1), np.int64(1)])
def test_an_integer_that_is_constant_is_told_with_what_makes_it_an_input(client, group, example):
    steps = {
        "state": lambda state: {"x": state["x"] + jnp.where(state["n"] > 0, 1.0, 2.0), "n": state["n"]},
        "params": lambda state, params: {"x": state["x"] + jnp.where(params > 0, 1.0, 2.0)},
        "data": lambda state, data: {"x": state["x"] + jnp.where(data > 0, 1.0, 2.0)},
    }
    path = "state.n" if group == "state" else group
    groups = {"state": {"x": 0.0, "n": example}} if group == "state" else {"state": {"x": 0.0}, group: example}
    world = simgrad.jax.world(steps[group], **groups)
    other = np.zeros((), np.asarray(example).dtype)
    sent = {"initial": {"x": [0.0]}, **({} if group == "state" else {group: other})}
    if group == "state":
        sent["initial"]["n"] = other[None]
    with pytest.raises(ValueError, match=rf"simgrad.jax.world\(..., varying=\['{path}'\]\) makes it (state|an input)"):
        client.rollout(world, steps=1, **sent)
    world = simgrad.jax.world(steps[group], varying=[path], **groups)
    assert client.rollout(world, steps=1, policy="f64", **sent).state["x"].tolist() == [2.0]
