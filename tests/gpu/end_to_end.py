"""The whole way on a GPU: starts the server with --device=cuda, asks it through the client, compares with --device=cpu.

usage: end_to_end.py SIMGRAD_SERVER
"""

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


def answers(address):
    """A rollout and a gradient of the ball, as arrays by name."""
    generator = np.random.default_rng(1)
    y0 = generator.uniform(0.1, 1.0, (256, 9)).astype(np.float32)
    with sg.Client(address) as client:
        ball = sg.World("bouncing_ball", contact="projection", elements=9, tol=1e-4, max_iter=25)
        common = dict(steps=100, initial={"y": y0, "v": np.zeros_like(y0)}, params={"k": 0.5})
        r = client.rollout(ball, record=["y"], diagnostics="summary", **common)
        g = client.gradient(ball, objective="final_penetration", **common)
        return {"y": r.state["y"], "trajectory": r.trajectory["y"], "paths": r.path_signature,
                "iterations": r.sites["projection"].iterations, "value": g.value, "k": g.params["k"],
                "initial": g.initial["y"]}


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
                 if not (np.array_equal(on_cpu[name], on_gpu[name]) and np.array_equal(on_cpu[name], from_cache[name]))]
    if different:
        raise SystemExit(f"cuda and cpu differ in {', '.join(different)}")
    print(f"{len(on_cpu)} results are the same to the bit on cuda, cuda from cached kernels, and cpu")


if __name__ == "__main__":
    main()
