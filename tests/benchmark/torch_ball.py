"""The ball of the benchmark as a PyTorch user would write it: one eager loop over steps.

Run by the interpreter that has torch (Debian: /usr/bin/python3), in a process of its own, one thread.
Prints one JSON line: seconds per repetition, mean iterations per step and instance.
"""

import argparse
import json
import time

import torch


def rollout(y, v, steps, k=1.0, g=9.81, h=0.01, restitution=0.8, alpha=0.5, tol=1e-4, max_iter=25):
    """Projection contact, one element per instance, every instance with its own stop."""
    iterations = torch.zeros((), dtype=torch.int64)
    for _ in range(steps):
        v_free = v + h * (0.0 - g)
        y_free = y + h * v_free
        contact = y_free < 0
        y = y_free
        active = torch.ones_like(contact)
        for _ in range(max_iter):
            p = torch.relu(-y)
            active = active & ~(p < tol)
            if not active.any():
                break
            y = torch.where(active, y + (alpha * k) * p, y)
            iterations += active.sum()
        v = torch.where(contact, -restitution * torch.clamp(v_free, max=0.0), v_free)
    return y, v, iterations


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--y0", required=True, help="file of little-endian f32 heights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with open(arguments.y0, "rb") as file:
        y0 = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)[: arguments.instances]
    seconds = []
    with torch.no_grad():
        rollout(y0, torch.zeros_like(y0), 20)
        for _ in range(arguments.repetitions):
            start = time.perf_counter()
            y, _, iterations = rollout(y0, torch.zeros_like(y0), arguments.steps)
            seconds.append(time.perf_counter() - start)
    mean = int(iterations) / (arguments.steps * arguments.instances)
    print(json.dumps({"seconds": seconds, "iterations_per_step": mean, "torch": torch.__version__,
                      "y_sum": float(y.double().sum())}))


if __name__ == "__main__":
    main()
