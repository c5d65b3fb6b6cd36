"""Trains a network of PyTorch to balance a pole: the network in bf16, the cart in f32.

usage: train_cartpole.py [TARGET [ITERATIONS]]      (default localhost:8001 100)
"""

import sys

import torch

import simgrad as sg
import simgrad.torch

CARTS = 32
STEPS = 100  # of 0.02 s
SIZES = (4, 16, 16, 1)


def weights(layers: torch.nn.Sequential) -> dict[str, torch.Tensor]:
    """Layer i as `wi` [inputs, outputs], which torch holds transposed, and `bi` [outputs]."""
    params = {}
    for i, layer in enumerate(layers, start=1):
        params[f"w{i}"], params[f"b{i}"] = layer.weight.t(), layer.bias
    return params


def main(target: str = "localhost:8001", iterations: str = "100") -> list[float]:
    torch.manual_seed(1)
    # The world puts a tanh behind each layer.
    layers = torch.nn.Sequential(*[torch.nn.Linear(n, m) for n, m in zip(SIZES, SIZES[1:])])
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.02)
    start = {"angle": torch.linspace(-0.3, 0.3, CARTS), "x": 0.0, "speed": 0.0, "spin": 0.0}
    losses = []
    with sg.Client(target) as client:
        for iteration in range(int(iterations)):
            out = simgrad.torch.rollout(
                client,
                sg.worlds.cartpole(SIZES),
                steps=STEPS,
                policy=sg.Policy("f32").role("network", format="bf16"),
                initial=start,
                params=weights(layers),
                record=["x", "angle", "push"],
            )
            x, angle, push = (out.trajectory[name] for name in ("x", "angle", "push"))
            loss = (1 - angle.cos()).mean() + (x**2).mean() / 100 + (push**2).mean() / 10000
            optimiser.zero_grad()
            loss.backward()
            # While poles fall, gradients are large enough to spoil Adam's averages.
            torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
            optimiser.step()
            losses.append(loss.item())
            if iteration % 10 == 0:
                upright = int((angle[:, -1].abs() < 0.2).sum())
                print(f"iteration {iteration:2d}: loss {losses[-1]:.4f}, {upright}/{CARTS} upright")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
