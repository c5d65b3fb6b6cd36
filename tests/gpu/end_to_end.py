"""The whole way on a GPU: starts the server with --device=cuda, asks it through the client, compares with --device=cpu.

usage: end_to_end.py SIMGRAD_SERVER
"""

import concurrent.futures
import dataclasses
import subprocess
import sys
import tempfile

import numpy as np

import simgrad as sg


class Server:
    """A server on free ports, ended with its owner."""

    def __init__(self, program, device, *flags):
        self.process = subprocess.Popen([program, "--port=0", "--metrics_port=0", f"--device={device}", *flags],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "listening on " not in line:
            raise SystemExit(f"the server did not start: {line}")
        self.address = line.split("listening on ")[1].split(",")[0]
        print(line.strip())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(timeout=60)


def arrays_of(name, trace):
    """All arrays of a trace: counts, margins, histograms."""
    found = {f"{name}: {field.name}": getattr(trace, field.name) for field in dataclasses.fields(trace)}
    return {key: value for key, value in found.items() if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"}


def ball(client, seed):
    """A rollout and a gradient of the ball, as arrays by name; each test of each instance too."""
    y0 = np.random.default_rng(seed).uniform(0.1, 1.0, (256, 9)).astype(np.float32)
    world = sg.World("bouncing_ball", contact="projection", elements=9, tol=1e-4, max_iter=25)
    common = dict(steps=100, initial={"y": y0, "v": np.zeros_like(y0)}, params={"k": 0.5})
    r = client.rollout(world, record=["y"], diagnostics="summary", **common)
    each = client.rollout(world, diagnostics="instances", **common)
    g = client.gradient(world, objective="final_penetration", **common)
    site = each.sites["projection"]
    return {**arrays_of("loop", r.sites["projection"]), **arrays_of("event", r.events["contact"]),
            "y": r.state["y"], "trajectory": r.trajectory["y"], "paths": r.path_signature,
            "value": g.value, "k": g.params["k"],
            "initial": g.initial["y"], "of each instance": site.instance_iterations,
            "reasons": site.instance_reasons}


def cart(client, policy):
    """A network that drives a cart: products of matrices, and gradients for all its weights."""
    generator = np.random.default_rng(3)
    sizes = (4, 16, 16, 1)
    weights = {}
    for k, (n, m) in enumerate(zip(sizes, sizes[1:]), start=1):
        weights[f"w{k}"] = generator.normal(0, 0.5, (n, m)).astype(np.float32)
        weights[f"b{k}"] = generator.normal(0, 0.5, m).astype(np.float32)
    world = sg.worlds.cartpole(sizes)
    common = dict(steps=60, policy=policy, params=weights,
                  initial={"angle": np.linspace(-0.3, 0.3, 128), "x": 0.0, "speed": 0.0, "spin": 0.0})
    r = client.rollout(world, **common)
    g = client.gradient(world, cotangents=sg.Cotangents(state={"angle": np.ones(128)}), **common)
    return {**{f"state {name}": x for name, x in r.state.items()},
            **{f"gradient {name}": x for name, x in g.params.items()}}


def answers(address):
    """What the server answers, by name; eight balls are asked for at the same time."""
    with sg.Client(address) as client, concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = {}
        for seed, arrays in enumerate(threads.map(lambda seed: ball(client, seed), range(8))):
            found.update({f"ball {seed}: {name}": x for name, x in arrays.items()})
        for policy in ("f64", "f32", "bf16_safe"):
            found.update({f"cart in {policy}: {name}": x for name, x in cart(client, policy).items()})
        return found


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "fiub":
        raise SystemExit(f"an array of {a.dtype} has no bits to compare")
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as cache:
        with Server(program, "cuda", f"--kernel_cache={cache}", "--warm=true") as server:
            on_gpu = answers(server.address)
        with Server(program, "cuda", f"--kernel_cache={cache}") as server:
            from_cache = answers(server.address)
    with Server(program, "cpu") as server:
        on_cpu = answers(server.address)
    different = [name for name in on_cpu
                 if not same_bits(on_cpu[name], on_gpu[name]) or not same_bits(on_cpu[name], from_cache[name])]
    if different:
        raise SystemExit(f"cuda and cpu differ in {', '.join(different)}")
    print(f"{len(on_cpu)} results are the same to the bit on cuda, cuda from cached kernels, and cpu")


if __name__ == "__main__":
    main()
