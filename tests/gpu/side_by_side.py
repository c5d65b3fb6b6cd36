"""The ball of docs/gpu.md as a user would write it on a GPU: PyTorch eager and captured, JAX, NVIDIA Warp.

Prints a Markdown table of nanoseconds per instance and step; what is not installed is told, not guessed.
f32, one element, projection contact with max_iter 25; an instance stops for itself, by a mask where the
framework runs all in step.
"""

import argparse
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1 << 20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--eager_steps", type=int, default=100, help="the slow ones run fewer")
    arguments = parser.parse_args()
    print("\n| written with | ns per instance and step |\n|---|---|")
    rows = [("PyTorch, eager", torch_eager, arguments.eager_steps), ("PyTorch, CUDA graph per step", torch_graph,
            arguments.eager_steps), ("JAX, scan, jit, vmap", jax_scan, arguments.steps),
            ("NVIDIA Warp, a kernel per step", warp_kernel, arguments.steps)]
    for name, measure, steps in rows:
        try:
            seconds = measure(arguments.instances, steps)
            print(f"| {name} | {1e9 * seconds / arguments.instances / steps:.4g} |")
        except Exception as error:  # a framework that is missing or broken is a row of its own
            print(f"| {name} | not run: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''} |")


if __name__ == "__main__":
    main()
