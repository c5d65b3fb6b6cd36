"""A pole that a cart balances, pushed by a network of tanh layers (Barto, Sutton and Anderson 1983).

The network reads (x, speed, angle, spin), angle 0 upright, and its one output y pushes with
limit tanh(y). It is written in role `network`: Policy("f32").role("network", format="bf16") keeps
weights and layers in bf16 and the cart in f32; format="tf32" rounds what the layers multiply. Sums
of a layer are chains of fma in the role's accumulator, f32 at least. Steps are semi-implicit Euler's, speeds first.

Units: SI; `length` is half of the pole. Cost: a product of the state with each matrix per step.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import Config, FunctionWorld, Param, State, Weights, world
from simgrad.worlds.arguments import whole


def cartpole(sizes: Sequence[int] = (4, 64, 64, 1), *, h: float = 0.02) -> FunctionWorld:
    """States x, speed, angle, spin; weights w1 [sizes[0], sizes[1]], b1 [sizes[1]], w2, b2 and so on,
    which all instances share, sent as params; params gravity, cart, pole (masses), length, limit.

    Args:
      sizes: of the network's input, 4, its layers, and its output, 1.
    Observables: push (a force). Objectives: balance (1 - cos(angle) + x^2/100 + push^2/10000, summed
    over steps).
    """
    _check(sizes)
    layers = range(1, len(sizes))
    weights: dict[str, Any] = {f"w{i}": Weights(sizes[i - 1], sizes[i]) for i in layers}
    biases: dict[str, Any] = {f"b{i}": Weights(sizes[i], default=0.0) for i in layers}

    @world(
        name="cartpole",
        x=State(),
        speed=State(),
        angle=State(),
        spin=State(),
        gravity=Param(default=9.8),
        cart=Param(default=1.0),
        pole=Param(default=0.1),
        length=Param(default=0.5),
        limit=Param(default=10.0),
        h=Config(default=h),
        **weights,
        **biases,
    )
    def step(
        x: Any, speed: Any, angle: Any, spin: Any, limit: Any, h: Any, **params: Any
    ) -> dict[str, Any]:
        gravity, cart, pole, length = (params[n] for n in ("gravity", "cart", "pole", "length"))
        with sgf.role("network"):
            layer = np.stack([x, speed, angle, spin])
            for i in layers:
                layer = np.tanh(layer @ params[f"w{i}"] + params[f"b{i}"])
        push = limit * layer[0]
        sine, cosine, both = np.sin(angle), np.cos(angle), cart + pole
        rest = (push + pole * length * spin**2 * sine) / both
        turn = (gravity * sine - cosine * rest) / (length * (4 / 3 - pole * cosine**2 / both))
        speed = speed + h * (rest - pole * length * turn * cosine / both)
        spin = spin + h * turn
        sgf.observe("push", push)
        return {"x": x + h * speed, "speed": speed, "angle": angle + h * spin, "spin": spin}

    @step.stage_cost
    def balance(x: Any, angle: Any, push: Any) -> Any:
        return 1 - np.cos(angle) + x**2 / 100 + push**2 / 10000

    return step


def _check(sizes: Sequence[int]) -> None:
    if len(sizes) < 2 or sizes[0] != 4 or sizes[-1] != 1:
        raise ValueError(f"sizes {tuple(sizes)}: from 4 numbers of the state to 1 push")
    whole(1, **{f"sizes[{i}]": size for i, size in enumerate(sizes)})


def cartpole_weights(sizes: Sequence[int] = (4, 64, 64, 1), seed: int = 0) -> dict[str, np.ndarray]:
    """Random matrices for weights of `cartpole`: normal, of variance 1 / inputs, the last a tenth."""
    _check(sizes)
    random = np.random.default_rng(seed)
    scale = [1.0] * (len(sizes) - 2) + [0.1]
    return {
        f"w{i + 1}": s * random.normal(0, n**-0.5, (n, m))
        for i, (n, m, s) in enumerate(zip(sizes, sizes[1:], scale))
    }
