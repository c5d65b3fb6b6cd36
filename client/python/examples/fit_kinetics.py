"""Fits the rates of Robertson's stiff reaction to data, through diffrax's own implicit solver.

usage: fit_kinetics.py [TARGET]      (default localhost:8001; JAX and diffrax: scripts/setup-jax)
"""

import sys

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import simgrad as sg
import simgrad.jax

TRUTH = {"log_k": np.log([0.04, 3e7, 1e4])}
START = {"y": np.array([1.0, 0.0, 0.0]), "t": 0.0, "end": 0.1}


def rates(t, y, k):
    made, used, back = k[0] * y[0], k[1] * y[1] ** 2, k[2] * y[1] * y[2]
    return jnp.stack([back - made, made - used - back, used])


def step(state, params):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(rates),
        diffrax.Kvaerno5(),
        *(state["t"], state["end"], 1e-6, state["y"]),  # from, to, first step, start
        args=jnp.exp(params["log_k"]),
        stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-10),
    )
    return {"y": solution.ys[-1], "t": state["end"], "end": 10 * state["end"]}


def main(target: str = "localhost:8001") -> np.ndarray:
    jax.config.update("jax_enable_x64", True)
    world = simgrad.jax.world(step, state=START, params=TRUTH)
    work = dict(steps=5, policy="f64", record=["y"])  # solves until 0.1, 1, 10, 100 and 1000
    with sg.Client(target) as client:
        true = client.rollout(world, initial=START, params=TRUTH, **work)
        observed = true.trajectory["y"][0, 1:]
        for name, site in true.sites.items():
            print(f"{name} ({site.line}) turns {site.iterations_max.tolist()} times at most")
        run = simgrad.jax.function(client, world, **work)

        def loss(log_k):
            y = run(START, params={"log_k": log_k}).trajectory["y"][1:]
            return jnp.sum(jnp.log(y / observed) ** 2)

        found = minimize(jax.value_and_grad(loss), np.log([0.06, 1.5e7, 2e4]), jac=True, method="BFGS")
    for k, true_k in zip(np.exp(found.x), np.exp(TRUTH["log_k"])):
        print(f"estimate {k:.6g}, truth {true_k:.6g}, error {abs(k / true_k - 1):.0e}")
    return np.exp(found.x)


if __name__ == "__main__":
    main(*sys.argv[1:])
