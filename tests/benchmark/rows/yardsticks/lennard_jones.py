"""Lennard-Jones particles with a cutoff in a periodic box, velocity Verlet: all pairs, or a list.

All pairs are a square of distances, which needs no scatter. The list has places for `width` neighbours of each
particle; all instances make it anew when a particle of any of them has moved skin / 2.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import steps as all_steps


def forces(d: Any, tested: Any, params: Any, cutoff: float) -> Any:
    """On particles from vectors d to others, where `tested`; shape [particles, others, 3]."""
    q = jnp.where(tested, jnp.sum(d * d, axis=-1), 1.0)
    within = tested & (q < cutoff**2)
    s6 = params["sigma"] ** 6 / q**3
    push = jnp.where(within, 24 * params["epsilon"] * (2 * s6 * s6 - s6) / q, 0.0)
    return jnp.sum(push[..., None] * d, axis=-2)


def of_all_pairs(x: Any, params: Any, cutoff: float, box: float) -> Any:
    d = nearest(x[:, None] - x[None], box)
    return forces(d, ~jnp.eye(len(x), dtype=bool), params, cutoff)


def nearest(d: Any, box: float) -> Any:
    return d - box * jnp.round(d / box)


def rollout(states: Any, params: Any, steps: int, skin: float | None = None, **settings: Any) -> Any:
    if skin is None:
        start, one = all_pairs(states, params, **settings)
        end = jax.lax.scan(lambda z, _: (one(z), None), start, None, length=steps)[0]
    else:
        end = with_list(states, params, steps, skin, **settings)
    return {"x": end["x"], "v": end["v"]}


def gradient(states: Any, params: Any, steps: int, **settings: Any) -> Any:
    def total(states: Any, params: Any) -> Any:
        start, one = all_pairs(states, params, **settings)
        return jnp.sum(all_steps.unrolled(one, start, steps)["x"] ** 2) / settings["particles"]

    return all_steps.named(jax.value_and_grad(total, argnums=(0, 1))(states, params))


def all_pairs(states: Any, params: Any, particles: int, cutoff: float, h: float) -> Any:
    box = 1.2 * round(particles ** (1 / 3))
    force = jax.vmap(lambda x: of_all_pairs(x, params, cutoff, box))

    def step(z: Any) -> Any:
        half = z["v"] + 0.5 * h * z["force"]
        x = z["x"] + h * half
        after = force(x)
        return {"x": x, "v": half + 0.5 * h * after, "force": after}

    return {**states, "force": force(states["x"])}, step


def with_list(
    states: Any, params: Any, steps: int, skin: float,
    particles: int, cutoff: float, h: float, width: int, capacity: int,
) -> Any:  # fmt: skip
    box = 1.2 * round(particles ** (1 / 3))

    def near(x: Any) -> Any:
        q = jnp.sum(nearest(x[:, None] - x[None], box) ** 2, axis=-1)
        is_near = (q < (cutoff + skin) ** 2) & ~jnp.eye(particles, dtype=bool)
        numbers = jnp.where(is_near, jnp.arange(particles), particles)
        return jnp.sort(numbers, axis=1)[:, :width]

    def force(x: Any, listed: Any) -> Any:
        d = nearest(x[:, None] - x.at[listed].get(mode="clip"), box)
        return forces(d, listed < particles, params, cutoff)

    def step(z: Any, _: Any) -> Any:
        half = z["v"] + 0.5 * h * z["force"]
        x = z["x"] + h * half
        moved = jnp.max(jnp.sum((x - z["built"]) ** 2, axis=-1))
        listed, built = jax.lax.cond(
            moved > (skin / 2) ** 2,
            lambda: (jax.vmap(near)(x), x),
            lambda: (z["listed"], z["built"]),
        )
        after = jax.vmap(force)(x, listed)
        v = half + 0.5 * h * after
        return {"x": x, "v": v, "force": after, "listed": listed, "built": built}, None

    x = states["x"]
    listed = jax.vmap(near)(x)
    start = {**states, "force": jax.vmap(force)(x, listed), "listed": listed, "built": x}
    return jax.lax.scan(step, start, None, length=steps)[0]
