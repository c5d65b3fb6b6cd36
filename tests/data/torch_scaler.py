"""Writes torch_scaler.txt: 100,000 random updates of a dynamic loss scale as PyTorch makes them.

usage: python tests/data/torch_scaler.py > tests/data/torch_scaler.txt      (torch 2.3 or later, for the CPU's kernel)
Source: torch._amp_update_scale_, which torch.amp.GradScaler.update calls.
A line is one run: scale, growth, backoff, interval and clean steps before it; then a digit per update, 1 where a
gradient was not finite; then index:scale after each update that changed the scale; last the clean steps after it.
Numbers are hexadecimal floats.
"""

import numpy as np
import torch

RUNS, UPDATES = 200, 500
rng = np.random.default_rng(20)


def exact(x):
    mantissa, exponent = float(x).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"


def run():
    # Scales of any size, powers of two or not; near the ends of f32 too, where growth overflows and backoff underflows.
    exponent = rng.choice([rng.uniform(-149, 127.9), 16.0, 127.0, -148.0])
    scale = torch.tensor(2.0**exponent, dtype=torch.float32)
    growth = float(rng.choice([2.0, 1.5, 1.0 + rng.random(), 4.0]))
    backoff = float(rng.choice([0.5, 0.25, rng.uniform(0.1, 0.99)]))
    interval = int(rng.choice([1, 2, 3, 7, 20]))
    clean = torch.tensor(int(rng.integers(interval)), dtype=torch.int32)
    found = (rng.random(UPDATES) < rng.choice([0.0, 0.1, 0.5])).astype(int)
    head = f"{exact(scale)} {exact(growth)} {exact(backoff)} {interval} {clean.item()}"
    changes = []
    for index, one in enumerate(found):
        before = scale.item()
        torch._amp_update_scale_(scale, clean, torch.tensor(float(one)), growth, backoff, interval)
        if scale.item() != before:
            changes.append(f"{index}:{exact(scale)}")
    return " ".join([head, "".join(map(str, found)), *changes, str(clean.item())])


print(f"# torch {torch.__version__}, numpy {np.__version__}")
for _ in range(RUNS):
    print(run())
