"""Trains a policy of PyTorch inside a world of one's own: the network runs on the server, in bf16.

usage: train_policy.py [TARGET [ITERATIONS]]      (default localhost:8001 60)
"""

import sys

import numpy as np
import torch
from torch import nn

import simgrad as sg
import simgrad.torch

STEPS = 80


@sg.world
def drone(height: sg.State, speed: sg.State, goal: sg.State, thrust: sg.Control = 0.0, h: sg.Config = 0.05):
    """A drone of 1 kg that drags on the air, with at most twice its weight of thrust, above a floor."""
    force = 9.81 * np.tanh(thrust) - 0.3 * speed * abs(speed)
    speed = speed + h * force
    height = height + h * speed
    landed = sg.test("floor", height < 0.0)
    return {"height": np.where(landed, 0.0, height), "speed": np.where(landed, 0.0, speed)}


@drone.stage_cost
def distance(height, speed, goal, thrust):
    return (height - goal) ** 2 + 0.1 * speed**2 + 0.001 * thrust**2


def main(target: str = "localhost:8001", iterations: str = "60") -> list[float]:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    flown = sg.compose(drone, simgrad.torch.controller(policy))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.03)
    start = {"height": torch.linspace(0.5, 3.0, 16), "speed": 0.0, "goal": torch.linspace(2.5, 1.0, 16)}
    formats = sg.Policy("f32").role("network", format="bf16")
    losses = []
    with sg.Client(target) as client:
        for iteration in range(int(iterations)):
            out = simgrad.torch.rollout(
                client, flown, steps=STEPS, initial=start, objective="distance", policy=formats
            )
            loss = out.values.mean() / STEPS
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if iteration % 20 == 0:
                miss = (out.state["height"] - out.state["goal"]).abs().max().item()
                print(f"iteration {iteration:2d}: loss {losses[-1]:.4f}, at most {miss:.2f} m off")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
