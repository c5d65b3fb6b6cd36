"""Linear solves of JAX, lineax and jaxopt: their gradients are those of the solution, however it was found."""

import jax
import jax.numpy as jnp
import jaxopt
import lineax as lx
import numpy as np
import optimistix
import pytest
import simgrad.jax

N = 6
GIVEN = {"d": np.linspace(1.0, 3.0, N), "b": np.linspace(-3.0, 4.0, N)}
WEIGHT = np.random.default_rng(0).standard_normal(N)
STEPS = dict(rtol=1e-11, atol=1e-11, max_steps=40)


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


def matrix(p):
    return jnp.diag(p["d"]) + 0.1 * jnp.ones((N, N))


def diagonal(p):
    return lambda x: p["d"] * x


def of_lineax(solver, positive=False):
    def solve(p):
        operator = lx.MatrixLinearOperator(matrix(p))
        if positive:
            operator = lx.TaggedLinearOperator(operator, lx.positive_semidefinite_tag)
        return lx.linear_solve(operator, p["b"], solver).value

    return solve


def stabilised(p):
    return jax.scipy.sparse.linalg.bicgstab(diagonal(p), p["b"], tol=1e-12, maxiter=40)[0]


def minimised(p, method):
    return jax.scipy.sparse.linalg.gmres(diagonal(p), p["b"], tol=1e-12, maxiter=10, solve_method=method)[0]


SOLVES = {
    "jnp": lambda p: jnp.linalg.solve(matrix(p), p["b"]),
    "cg, relative": lambda p: jax.scipy.sparse.linalg.cg(diagonal(p), p["b"], tol=1e-12, maxiter=40)[0],
    "cg, absolute": lambda p: jax.scipy.sparse.linalg.cg(diagonal(p), p["b"], tol=0.0, atol=1e-10, maxiter=40)[0],
    "bicgstab": lambda p: stabilised(p),
    "gmres, batched": lambda p: minimised(p, "batched"),
    "gmres, incremental": lambda p: minimised(p, "incremental"),
    "jaxopt": lambda p: jaxopt.linear_solve.solve_cg(diagonal(p), p["b"], tol=1e-12, maxiter=30),
    "lineax LU": of_lineax(lx.LU()),
    "lineax QR": of_lineax(lx.QR()),
    "lineax Cholesky": of_lineax(lx.Cholesky(), positive=True),
    "lineax auto": of_lineax(lx.AutoLinearSolver(well_posed=True)),
    "lineax CG": of_lineax(lx.CG(**STEPS), positive=True),
    "lineax BiCGStab": of_lineax(lx.BiCGStab(**STEPS)),
    "lineax GMRES": of_lineax(lx.GMRES(**STEPS)),  # which solves a small system by QR at each restart
}
# Their tests see an early exit, too.
CAPS = {"bicgstab": {"stabilised": 40}}
CAPS |= dict.fromkeys(("gmres, batched", "gmres, incremental"), {"minimised": 40})


@pytest.mark.parametrize("name", SOLVES)
def test_the_gradient_of_a_solve_is_that_of_the_solution(client, name):
    solve = SOLVES[name]
    world = simgrad.jax.world(
        lambda state, params: {"y": solve(params)}, state={"y": np.zeros(N)}, params=GIVEN,
        objective={"sum": lambda state: jnp.sum(WEIGHT * state["y"])},
        max_iter=CAPS.get(name, {}),
    )  # fmt: skip
    g = client.gradient(world, steps=1, params=GIVEN, objective="sum", policy="f64")
    expected = jax.grad(lambda p: jnp.sum(WEIGHT * solve(p)))({n: jnp.asarray(x) for n, x in GIVEN.items()})
    for group in GIVEN:
        np.testing.assert_allclose(g.params[group], expected[group], rtol=1e-7, atol=1e-9, err_msg=group)


# Conjugate gradients make no turn of a start of nothing, and one of a uniform start, which the matrix maps to itself.
STARTS = {"waves": np.sin(np.linspace(0, 5, 16)), "uniform": np.ones(16), "nothing": np.zeros(16)}
FORCE = np.random.default_rng(1).standard_normal(16)


def heat(state, params):
    turned = lambda u: u - params["k"] * 0.1 * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u)
    return jax.scipy.sparse.linalg.cg(turned, state, tol=0.0, atol=1e-8, maxiter=50)[0]


@pytest.mark.parametrize("start", STARTS)
def test_implicit_steps_of_heat_carry_their_gradient_whatever_they_start_from(client, start):
    def loss(u, k):
        for _ in range(5):
            u = heat(u, {"k": k})
        return jnp.sum(FORCE * u)

    u = STARTS[start]
    world = simgrad.jax.world(heat, state=u, params={"k": 3.0}, objective={"c": lambda u: jnp.sum(FORCE * u)})
    g = client.gradient(world, steps=5, initial=u, params={"k": 3.0}, objective="c", policy="f64")
    by_u, by_k = jax.grad(loss, argnums=(0, 1))(jnp.asarray(u), 3.0)
    np.testing.assert_allclose(np.asarray(g.initial).reshape(-1), by_u, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(g.params["k"], by_k, rtol=1e-5, atol=1e-7)
    assert "by a second solve, of random numbers, as its solver stops by a test" in str(world.report())


def test_the_iterations_are_differentiated_where_custom_derivatives_are_not_kept(client):
    u = STARTS["waves"]
    world = simgrad.jax.world(
        heat, state=u, params={"k": 3.0}, objective={"c": lambda u: jnp.sum(FORCE * u)}, custom="inline"
    )
    slope = client.gradient(world, steps=5, initial=u, params={"k": 3.0}, objective="c", policy="f64").params["k"]
    value = lambda k: client.gradient(world, steps=5, initial=u, params={"k": k}, objective="c", policy="f64").value
    np.testing.assert_allclose(slope, (value(3 + 1e-5) - value(3 - 1e-5)) / 2e-5, rtol=1e-4)
    assert "random numbers" not in str(world.report())


@pytest.mark.parametrize("linear", [lx.AutoLinearSolver(well_posed=True), lx.BiCGStab(**STEPS)])
def test_an_implicit_derivative_of_a_root_solves_for_its_tangents(client, linear):
    given = {"k": np.array([1.0, 2.0, 3.0]), "b": np.array([2.0, 1.0, 4.0])}
    adjoint = optimistix.ImplicitAdjoint(linear_solver=linear)

    def root(p):
        newton = optimistix.Newton(rtol=1e-10, atol=1e-10)
        function = lambda y, a: a["k"] * y + y**3 - a["b"]
        return optimistix.root_find(function, newton, jnp.ones(3), p, max_steps=40, adjoint=adjoint, throw=False).value

    weight = np.array([1.0, 2.0, -1.0])
    world = simgrad.jax.world(
        lambda state, params: {"y": root(params)}, state={"y": np.zeros(3)}, params=given,
        objective={"sum": lambda state: jnp.sum(weight * state["y"])},
    )  # fmt: skip
    g = client.gradient(world, steps=1, params=given, objective="sum", policy="f64")
    expected = jax.grad(lambda p: jnp.sum(weight * root(p)))({n: jnp.asarray(x) for n, x in given.items()})
    assert g.ok.all()
    for name in given:
        np.testing.assert_allclose(g.params[name], expected[name], rtol=1e-8, err_msg=name)


def bisected(a):
    root = lambda x, a: x**3 + x - a
    bisection = jaxopt.Bisection(root, lower=-3.0, upper=3.0, maxiter=60, tol=1e-12, check_bracket=False, jit=True)
    return bisection.run(None, a).params


def test_a_bisection_has_the_derivative_of_its_authors_rule(client):
    """Its operations have none: it compares, and halves. Rule and loop over the cotangent are jaxopt's."""
    world = simgrad.jax.world(
        lambda state, params: {"y": bisected(params["a"]) * params["b"] + 0.5 * state["y"]}, state={"y": 0.0},
        params={"a": 2.0, "b": 3.0}, objective={"end": lambda state: state["y"]},
    )  # fmt: skip
    for a, root in ((2.0, 1.0), (10.0, 2.0)):
        g = client.gradient(
            world, steps=1, initial={"y": [0.0]}, params={"a": a, "b": 3.0}, objective="end", policy="f64"
        )
        assert g.ok.all()
        np.testing.assert_allclose(g.params["a"], 3.0 / (3 * root**2 + 1), rtol=1e-9)
        np.testing.assert_allclose(g.params["b"], root, rtol=1e-9)
    assert "its author's derivative, row by row" in str(world.report())


def fixed_point(function):
    """As in JAX's tutorial of custom derivatives: it does not end where the function has no fixed point."""

    @jax.custom_vjp
    def solve(a, guess):
        turn = lambda c: (c[1], function(a, c[1]))
        return jax.lax.while_loop(lambda c: jnp.abs(c[0] - c[1]) > 1e-9, turn, (guess, function(a, guess)))[1]

    def forward(a, guess):
        found = solve(a, guess)
        return found, (a, found)

    def backward(kept, cotangent):
        a, found = kept
        _, of_a = jax.vjp(lambda a: function(a, found), a)
        _, of_x = jax.vjp(lambda x: function(a, x), found)
        turn = lambda c: (c[1], cotangent + of_x(c[1])[0])
        w = jax.lax.while_loop(lambda c: jnp.abs(c[0] - c[1]) > 1e-9, turn, (cotangent, cotangent + of_x(cotangent)[0]))[1]
        return of_a(w)[0], jnp.zeros_like(found)

    solve.defvjp(forward, backward)
    return solve


def test_a_solver_that_need_not_end_is_traced_and_never_run(client):
    """Newton's square root of a number below 0 goes on for ever."""
    root = fixed_point(lambda a, x: 0.5 * (x + a / x))
    with pytest.warns(UserWarning, match="has the derivative of its operations, as JAX cannot transpose its rule"):
        world = simgrad.jax.world(
            lambda state, params: {"y": root(params["a"], 1.0) + 0.5 * state["y"]}, state={"y": 0.0}, params={"a": 2.0},
            objective={"end": lambda state: state["y"]}, max_iter={"solve": 50},
        )  # fmt: skip
    g = client.gradient(world, steps=1, initial={"y": [0.0]}, params={"a": 2.0}, objective="end", policy="f64")
    np.testing.assert_allclose(g.params["a"], 0.5 / np.sqrt(2.0), rtol=1e-6)
