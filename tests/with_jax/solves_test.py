"""Linear solves of JAX, lineax and jaxopt: their gradients are those of the solution, however it was found."""

import jax
import jax.numpy as jnp
import jaxopt
import lineax as lx
import numpy as np
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


SOLVES = {
    "jnp": lambda p: jnp.linalg.solve(matrix(p), p["b"]),
    "cg, relative": lambda p: jax.scipy.sparse.linalg.cg(diagonal(p), p["b"], tol=1e-12, maxiter=40)[0],
    "cg, absolute": lambda p: jax.scipy.sparse.linalg.cg(diagonal(p), p["b"], tol=0.0, atol=1e-10, maxiter=40)[0],
    "bicgstab": lambda p: stabilised(p),
    "jaxopt": lambda p: jaxopt.linear_solve.solve_cg(diagonal(p), p["b"], tol=1e-12, maxiter=30),
    "lineax LU": of_lineax(lx.LU()),
    "lineax QR": of_lineax(lx.QR()),
    "lineax Cholesky": of_lineax(lx.Cholesky(), positive=True),
    "lineax auto": of_lineax(lx.AutoLinearSolver(well_posed=True)),
    "lineax CG": of_lineax(lx.CG(**STEPS), positive=True),
    "lineax BiCGStab": of_lineax(lx.BiCGStab(**STEPS)),
}


@pytest.mark.parametrize("name", SOLVES)
def test_the_gradient_of_a_solve_is_that_of_the_solution(client, name):
    solve = SOLVES[name]
    world = simgrad.jax.world(
        lambda state, params: {"y": solve(params)}, state={"y": np.zeros(N)}, params=GIVEN,
        objective={"sum": lambda state: jnp.sum(WEIGHT * state["y"])},
        max_iter={"stabilised": 40} if name == "bicgstab" else {},  # its test sees an early exit, too
    )  # fmt: skip
    g = client.gradient(world, steps=1, params=GIVEN, objective="sum", policy="f64")
    expected = jax.grad(lambda p: jnp.sum(WEIGHT * solve(p)))({n: jnp.asarray(x) for n, x in GIVEN.items()})
    for group in GIVEN:
        np.testing.assert_allclose(g.params[group], expected[group], rtol=1e-7, atol=1e-9, err_msg=group)


def test_implicit_steps_of_heat_carry_their_gradient_through_an_absolute_tolerance(client):
    start = np.sin(np.linspace(0, 5, 16))

    def heat(state, params):
        turned = lambda u: u - params["k"] * 0.1 * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u)
        return jax.scipy.sparse.linalg.cg(turned, state, tol=0.0, atol=1e-8, maxiter=50)[0]

    def loss(k):
        u = jnp.asarray(start)
        for _ in range(10):
            u = heat(u, {"k": k})
        return jnp.sum(u**2)

    world = simgrad.jax.world(heat, state=start, params={"k": 3.0}, objective={"c": lambda u: jnp.sum(u**2)})
    g = client.gradient(world, steps=10, initial=start, params={"k": 3.0}, objective="c", policy="f64")
    np.testing.assert_allclose(g.params["k"], jax.grad(loss)(3.0), rtol=1e-5)
    assert "the derivative of the iterations that ran" in str(world.report())
