"""The ball of docs/gpu.md as a user would write it on a GPU: PyTorch eager and captured, JAX, NVIDIA Warp.

Nanoseconds per instance and step, beside the generated kernel's where --ours has it. Each is measured in a process
of its own with a time limit; what is not installed, breaks or takes too long is told, not guessed.
f32, one element, projection contact with max_iter 25; an instance stops for itself, by a mask where the
framework runs all in step.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

H, G, GAIN, TOL, RESTITUTION, MAX_ITER = 0.01, 9.81, 0.5, 1e-4, 0.8, 25


def best(run, repetitions=3):
    run()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def torch_step(torch, y, v):
    v_free = v - H * G
    y = y + H * v_free
    contact = y < 0
    active = torch.ones_like(contact)
    for _ in range(MAX_ITER):
        p = torch.relu(-y)
        active = active & ~(p < TOL)
        y = torch.where(active, y + GAIN * p, y)
    return y, torch.where(contact, -RESTITUTION * torch.clamp(v_free, max=0.0), v_free)


def torch_eager(instances, steps):
    import torch

    y0 = torch.linspace(0.1, 1.0, instances, device="cuda")

    def run():
        y, v = y0, torch.zeros_like(y0)
        for _ in range(steps):
            y, v = torch_step(torch, y, v)
        torch.cuda.synchronize()

    return best(run)


def torch_graph(instances, steps):
    import torch

    y = torch.linspace(0.1, 1.0, instances, device="cuda")
    v = torch.zeros_like(y)
    torch_step(torch, y, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y_next, v_next = torch_step(torch, y, v)
        y.copy_(y_next)
        v.copy_(v_next)

    def run():
        for _ in range(steps):
            graph.replay()
        torch.cuda.synchronize()

    return best(run)


def jax_scan(instances, steps):
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        raise ImportError("jax has no GPU")

    def step(state, _):
        y, v = state
        v_free = v - H * G
        y = y + H * v_free
        contact = y < 0

        def goes_on(carry):
            y, it = carry
            return (jax.nn.relu(-y) >= TOL) & (it < MAX_ITER)

        y, _ = jax.lax.while_loop(goes_on, lambda c: (c[0] + GAIN * jax.nn.relu(-c[0]), c[1] + 1), (y, 0))
        return (y, jnp.where(contact, -RESTITUTION * jnp.minimum(v_free, 0.0), v_free)), None

    def one(y):
        return jax.lax.scan(step, (y, jnp.float32(0)), None, length=steps)[0]

    rollout = jax.jit(jax.vmap(one))
    y0 = jnp.linspace(0.1, 1.0, instances, dtype=jnp.float32)
    return best(lambda: jax.block_until_ready(rollout(y0)))


def warp_kernel(instances, steps):
    import warp as wp

    wp.init()
    if not wp.is_cuda_available():
        raise ImportError("warp has no GPU")

    @wp.kernel
    def step(y: wp.array(dtype=float), v: wp.array(dtype=float)):
        i = wp.tid()
        v_free = v[i] - float(H) * float(G)
        height = y[i] + float(H) * v_free
        contact = height < 0.0
        for _ in range(MAX_ITER):
            p = wp.max(-height, 0.0)
            if p < float(TOL):
                break
            height = height + float(GAIN) * p
        y[i] = height
        if contact:
            v[i] = -float(RESTITUTION) * wp.min(v_free, 0.0)
        else:
            v[i] = v_free

    y = wp.array([0.1 + 0.9 * i / instances for i in range(instances)], dtype=float, device="cuda")
    v = wp.zeros(instances, dtype=float, device="cuda")

    def run():
        for _ in range(steps):
            wp.launch(step, dim=instances, inputs=[y, v])
        wp.synchronize()

    return best(run)


MEASURES = {"PyTorch, eager": torch_eager, "PyTorch, CUDA graph per step": torch_graph, "JAX, scan, jit, vmap": jax_scan,
            "NVIDIA Warp, a kernel per step": warp_kernel}
SLOW = ("PyTorch, eager", "PyTorch, CUDA graph per step")


def measured(name, instances, steps, seconds):
    """Nanoseconds per instance and step, or why there are none."""
    command = [sys.executable, __file__, f"--one={name}", f"--instances={instances}", f"--steps={steps}"]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"not run: took longer than {seconds} s"
    last = (child.stdout.strip().splitlines() or [""])[-1]
    if child.returncode == 0 and last.startswith("seconds "):
        return 1e9 * float(last.split()[1]) / instances / steps
    reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    return f"not run: {reason[:80]}"


def ours(path):
    """Of the ball by the generated kernel, from the report of gpu_check; None where it was not measured."""
    try:
        sections = json.loads(pathlib.Path(path).read_text())["sections"]
    except (OSError, ValueError, KeyError):
        return None
    for section in sections:
        for row in section.get("rows", []):
            if row["name"] == "ball, 2^20 x 1000, kernels":
                return 1e6 * row["value"] / (1 << 20) / 1000
    return None


def written(rows, own):
    """The rows as a Markdown table and as a JSON document."""
    table = ["", "**side by side**", "", "| written with | ns per instance and step | times the generated kernel |",
             "|---|---|---|"]
    if own is not None:
        table.append(f"| simgrad, generated kernel | {own:.4g} | 1 |")
    entries = []
    for name, value in rows:
        number = isinstance(value, float)
        ratio = f"{value / own:.3g}" if number and own else ""
        table.append(f"| {name} | {f'{value:.4g}' if number else value} | {ratio} |")
        entries.append({"name": name, "value": value if number else None, "unit": "ns per instance and step",
                        "times_ours": value / own if number and own else None, "reason": None if number else value})
    return "\n".join(table) + "\n", json.dumps({"section": "side by side", "rows": entries})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1 << 20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--slow_steps", type=int, default=100, help="the slow ones run fewer")
    parser.add_argument("--seconds", type=float, default=25, help="for each")
    parser.add_argument("--one", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--ours", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--markdown", default="")
    arguments = parser.parse_args()
    if arguments.one:
        print("seconds", MEASURES[arguments.one](arguments.instances, arguments.steps))
        return
    own = ours(arguments.ours) if arguments.ours else None
    rows = []
    for name in MEASURES:
        steps = arguments.slow_steps if name in SLOW else arguments.steps
        rows.append((name, measured(name, arguments.instances, steps, arguments.seconds)))
        table, document = written(rows, own)  # after each: a run that is cut off leaves what it had
        for path, text in ((arguments.markdown, table), (arguments.json, document)):
            if path:
                pathlib.Path(path).write_text(text)
    print(table)


if __name__ == "__main__":
    main()
