"""Learns a control with PyTorch: simgrad.torch.rollout is a differentiable function.

usage: train_with_torch.py [TARGET]      (default localhost:8001)
"""

import sys

import torch

import simgrad as sg
import simgrad.torch

STEPS = 50


def main(target: str = "localhost:8001") -> float:
    ball = sg.World("bouncing_ball", contact="penalty")
    y0 = torch.full((8, 1), 0.6, dtype=torch.float64)
    y0 += 0.05 * torch.arange(8, dtype=torch.float64).reshape(8, 1)
    # [instance, time, element]
    thrust = torch.zeros(8, STEPS, 1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([thrust], lr=0.5)
    with sg.Client(target) as client:
        for iteration in range(60):
            out = simgrad.torch.rollout(
                client,
                ball,
                steps=STEPS,
                policy="f64",
                record=["y"],
                initial={"y": y0, "v": torch.zeros_like(y0)},
                params={"k": 1000.0},
                controls={"u": thrust},
            )
            loss = ((out.trajectory["y"][:, -1] - 1.0) ** 2).mean() + 1e-5 * (thrust**2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if iteration % 20 == 0:
                print(f"iteration {iteration:2d}: loss {loss.item():.3e}")
    print(f"final loss {loss.item():.3e}")
    return loss.item()


if __name__ == "__main__":
    main(*sys.argv[1:])
