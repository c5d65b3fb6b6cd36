"""The programs of arrays_bench in JAX, jitted, f32, one thread: best of five, in milliseconds.

usage: taskset -c 0 python arrays_jax.py    (with jax[cpu] from PyPI)
"""

import os
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def grid_step(state, _):
    u, v = state
    force = jnp.zeros_like(u)
    for axis in (0, 1):
        edge = [[0, 0], [0, 0]]
        edge[axis] = [0, 1]
        d = jnp.diff(u, axis=axis)
        force = force + jnp.pad(d, edge)
        edge[axis] = [1, 0]
        force = force - jnp.pad(d, edge)
    v = v + 0.01 * (0.5 * force - 0.1 * (u * u * u))
    return (u + 0.01 * v, v), None


SELF = jnp.ones((16, 16)) + jnp.eye(16) * (1e6 - 1)


def particles_step(state, _):
    x, v = state
    d = x[:, None, :] - x[None, :, :]
    inverse = 1.0 / (jnp.sum(d * d, axis=2) + SELF)
    s6 = inverse * inverse * inverse
    f = 24.0 * (inverse * (2.0 * (s6 * s6) - s6))
    v = v + 0.0001 * jnp.sum(f[:, :, None] * d, axis=1)
    return (x + 0.0001 * v, v), None


def map_step(function):
    def step(x, _):
        y = function(x)
        return 0.5 + 0.1 * (y * y) / (1.0 + y * y), None

    return step


def best(function, *args):
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def rollout(step, steps):
    return lambda state: jax.lax.scan(step, state, None, length=steps)[0]


def cost(step, steps):
    return lambda state: jnp.sum(jnp.square(rollout(step, steps)(state)[0]))


def main():
    key = jax.random.PRNGKey(3)
    u = jax.random.uniform(key, (64, 64), minval=0.1, maxval=1.0)
    print("grid forward", best(jax.jit(rollout(grid_step, 500)), (u, u)))
    print("grid gradient", best(jax.jit(jax.grad(cost(grid_step, 500))), (u, u)))
    x = jax.random.uniform(key, (256, 16, 3), minval=-2.0, maxval=2.0)
    print("particles forward", best(jax.jit(jax.vmap(rollout(particles_step, 200))), (x, x)))
    gradient = jax.jit(jax.vmap(jax.grad(cost(particles_step, 200))))
    print("particles gradient", best(gradient, (x, x)))
    z = jax.random.uniform(key, (4096,), minval=0.1, maxval=1.0)
    for function in (jnp.exp, jnp.log, jnp.tanh, jnp.sin):
        print(function.__name__, best(jax.jit(rollout(map_step(function), 1000)), z))


if __name__ == "__main__":
    main()
