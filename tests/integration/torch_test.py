"""simgrad.torch, under whichever Python here has PyTorch."""

import functools
import importlib.util
import json
import os
import pathlib
import site
import subprocess
import sys
import tempfile

import pytest

SYSTEM_PYTHON = "/usr/bin/python3"


def torch_command():
    """This Python if it has torch, else Debian's, with our packages behind its own."""
    if importlib.util.find_spec("torch"):
        return [sys.executable]
    probe = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import torch, sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
    )
    if probe.returncode or probe.stdout.split() != [str(n) for n in sys.version_info[:2]]:
        return None
    return [SYSTEM_PYTHON]


COMMAND = torch_command()
pytestmark = pytest.mark.skipif(COMMAND is None, reason="no Python here has PyTorch")


@functools.cache
def scripts(root):
    """A Python that has imported PyTorch, for all tests; it ends with its input."""
    # Behind Debian's own packages, so that torch finds the NumPy it was built for.
    behind = [*site.getsitepackages(), str(root / "client/python")]
    program = root / "tests/integration/torch_scripts.py"
    start = f"import runpy, sys; sys.path.extend({behind!r}); runpy.run_path({str(program)!r})"
    return subprocess.Popen(
        [*COMMAND, "-c", start],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run(root, script, *arguments):
    """What a script prints, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        asked = {"script": script, "arguments": arguments, "out": str(out), "err": str(err)}
        process = scripts(root)
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        code = process.stdout.readline()
        assert code == "0\n", err.read_text() if err.exists() else code
        return out.read_text()


COMMON = """
import numpy as np, torch, simgrad as sg, simgrad.torch
torch.set_num_threads(1)
client = sg.Client(sys.argv[1])
ball = sg.World("bouncing_ball", contact="toi", elements=2)
generator = np.random.default_rng(0)
y0 = torch.tensor(generator.uniform(0.1, 0.5, (3, 2)), requires_grad=True)
v0 = torch.zeros(2, dtype=torch.float64, requires_grad=True)
e = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
u = torch.tensor(generator.normal(size=(3, 40, 2)), requires_grad=True)
def roll(y0, v0, e, u, **options):
    return simgrad.torch.rollout(client, ball, steps=40, initial={"y": y0, "v": v0},
                                 params={"k": 1.0, "restitution": e}, controls={"u": u},
                                 policy="f64", record=["y", "penetration"], **options)
"""


def test_gradients_agree_with_those_of_the_objective(root, server):
    run(
        root,
        COMMON + """
observed = torch.tensor(generator.uniform(0, 0.3, (3, 40, 2)))
out = roll(y0, v0, e, u)
assert out.trajectory["y"].shape == (3, 41, 2) and out.trajectory["penetration"].shape == (3, 40, 2)
loss = ((out.trajectory["y"][:, 1:] - observed) ** 2).mean(dim=2).sum()
loss.backward()
g = client.gradient(ball, steps=40, initial={"y": y0.detach().numpy(), "v": v0.detach().numpy()},
                    params={"k": 1.0, "restitution": 0.8}, controls={"u": u.detach().numpy()},
                    data={"y": observed.numpy()}, objective="tracking", policy="f64")
assert abs(loss.item() - g.value) < 1e-12 * abs(g.value)
pairs = ((y0, g.initial["y"]), (v0, g.initial["v"]), (e, g.params["restitution"]),
         (u, g.controls["u"]))
for mine, theirs in pairs:
    assert mine.grad.shape == theirs.shape
    np.testing.assert_allclose(mine.grad.numpy(), theirs, rtol=1e-10, atol=1e-12)
assert out.calls[0].connected["restitution"] == 3 and out.info.path_signature
""",
        server.target,
    )


def test_gradcheck_accepts_it(root, server):
    run(
        root,
        COMMON + """
def final(y0, v0, e, u):
    out = roll(y0, v0, e, u)
    return out.state["y"], out.state["v"], out.trajectory["y"].sum(dim=1)
fixed = u.detach()
assert torch.autograd.gradcheck(lambda a, b, c: final(a, b, c, fixed), (y0, v0, e), eps=1e-6,
                                atol=1e-6, rtol=1e-5)
""",
        server.target,
    )


def test_a_second_derivative_is_refused_and_a_first_one_is_not(root, server):
    run(
        root,
        COMMON + """
out = roll(y0, v0, e, u.detach())
(first,) = torch.autograd.grad(out.state["y"].sum() + (y0**3).sum(), y0, create_graph=True)
(alone,) = torch.autograd.grad(out.state["y"].sum() + (y0**3).sum(), y0)
assert first.detach().equal(alone)
try:
    torch.autograd.grad(first.sum(), y0)
except RuntimeError as refused:
    assert "hessian_vector" in str(refused), refused
else:
    raise AssertionError("the world's second derivative was taken for 0")
""",
        server.target,
    )


def test_only_what_needs_a_gradient_is_asked_for(root, server):
    run(
        root,
        COMMON + """
out = roll(y0.detach(), v0.detach(), e, u.detach())
out.state["v"].sum().backward()
assert e.grad is not None and not out.calls[0].initial
assert out.calls[0].params.keys() == {"restitution"}
with torch.no_grad():
    assert not roll(y0, v0, e, u).state["y"].requires_grad
""",
        server.target,
    )


def test_low_precision_tensors_keep_their_dtype(root, server):
    run(
        root,
        COMMON + """
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    y = torch.full((3, 2), 0.25, dtype=dtype, requires_grad=True)
    still = torch.zeros(2, dtype=dtype)
    out = simgrad.torch.rollout(client, ball, steps=5, initial={"y": y, "v": still},
                                params={"k": 1.0})
    assert out.state["y"].dtype == torch.float32
    out.state["y"].sum().backward()
    assert y.grad.dtype == dtype and y.grad.shape == (3, 2) and bool((y.grad == 1).all())
""",
        server.target,
    )


def test_a_series_that_all_instances_share_gets_its_gradient(root, server):
    run(
        root,
        COMMON + """
series = torch.tensor(generator.normal(size=(40, 2)), requires_grad=True)
roll(y0, v0, e, sg.PerStep(series)).state["y"].sum().backward()
each = series.detach().expand(3, 40, 2).clone().requires_grad_()
roll(y0, v0, e, each).state["y"].sum().backward()
assert series.grad.shape == (40, 2) and float(series.grad.abs().max()) > 0
np.testing.assert_allclose(series.grad.numpy(), each.grad.sum(dim=0).numpy(), rtol=1e-12)
""",
        server.target,
    )


COUNTED = """
import numpy as np, torch, simgrad as sg, simgrad.torch
client = sg.Client(sys.argv[1])
@sg.world
def counted(x: sg.State, n: sg.State(dtype="i32") = 0, k: sg.Param = 0.5):
    sg.observe("far", x > 1.0)
    return {"x": x + 0.1 * k * (2.0 - x), "n": n + 1}

@counted.objective
def height(x):
    return x * x

def roll(x, k, **options):
    return simgrad.torch.rollout(client, counted, steps=8, initial={"x": x}, params={"k": k}, policy="f64", **options)
x = torch.tensor([0.0, 3.0], dtype=torch.float64)
k = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
"""


def test_what_is_no_real_is_recorded_beside_gradients(root, server):
    run(
        root,
        COUNTED + """
out = roll(x, k, record=["x", "n", "far"])
assert out.trajectory["n"].dtype == torch.int32 and out.trajectory["far"].dtype == torch.bool
assert out.trajectory["n"][0].tolist() == list(range(9)) and bool(out.trajectory["far"][1].any())
out.trajectory["x"].sum().backward()
slope, k.grad = k.grad, None
roll(x, k, record="x").trajectory["x"].sum().backward()
assert out.calls[0].reused and slope == k.grad != 0
""",
        server.target,
    )


def test_margins_weights_and_tensors_of_inference_mode_go_with_a_gradient(root, server):
    run(
        root,
        COUNTED + """
with torch.inference_mode():
    made = torch.tensor([0.0, 3.0], dtype=torch.float64)
    assert not roll(made, k).state["x"].requires_grad
out = roll(made, k, objective="height", weights=torch.tensor([1.0, 0.5], dtype=torch.bfloat16))
out.value.backward()
slope, k.grad = k.grad, None
(roll(made, k, objective="height").values * torch.tensor([1.0, 0.5])).sum().backward()
assert slope == k.grad != 0, (slope, k.grad)
k.grad = None
site = client.rollout(counted, steps=1, initial={"x": [0.0]}).program.event_sites[0]
out = roll(x, k, margins=[site])
assert out.info.margins[site].shape == (2, 8)
out.state["x"].sum().backward()
assert not out.calls[0].reused and k.grad != 0
""",
        server.target,
    )


def test_loops_and_reduction_are_those_of_the_gradient(root, server):
    run(
        root,
        COUNTED + """
@sg.world
def rooted(x: sg.State, k: sg.Param = 0.5):
    return {"x": sg.fixed_point(lambda y: np.cos(k * y) + 0.1 * x, 0.0, tol=0.05, max_iter=50, site="solve")}

def slope(**options):
    k = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    out = simgrad.torch.rollout(client, rooted, steps=1, initial={"x": x}, params={"k": k}, **options)
    out.state["x"][0].backward()
    return k.grad.item()

implicit = {"solve": sg.Implicit()}
expected = client.gradient(rooted, steps=1, initial={"x": x.numpy()}, params={"k": 0.5}, policy="f64", loops=implicit,
                           cotangents={"state": {"x": [1.0, 0.0]}})
assert slope(loops=implicit) == expected.params["k"] != slope()

bad = torch.tensor([0.0, float("nan")], dtype=torch.float64)
for reduction in ("all", "finite_only"):
    k.grad = None
    out = roll(bad, k, reduction=reduction)
    out.state["x"].sum().backward()
    assert bool(k.grad.isfinite()) == (reduction == "finite_only")
""",
        server.target,
    )


def test_what_a_rollout_does_not_take_is_refused_by_name(root, server):
    run(
        root,
        COUNTED + """
for error, said, call in (
    (ValueError, "raw", lambda: roll(x, k, raw=True)),
    (ValueError, "keep: a rollout is kept where", lambda: roll(x, k, keep=True)),
    (TypeError, "initial are arrays by name, a dict, not Tensor", lambda: simgrad.torch.rollout(client, counted, steps=1, initial=x)),
):
    try:
        call()
    except error as failed:
        assert said in str(failed), failed
    else:
        raise AssertionError(said)
for keep in (False, None):
    assert roll(x, k, keep=keep).state["x"].shape == (2,)
""",
        server.target,
    )


def test_unsigned_numbers_are_tensors_of_i64(root, server):
    run(
        root,
        COMMON + """
@sg.world
def counts(x: sg.State, n: sg.State(dtype="u32"), k: sg.Param = 0.5):
    return {"x": k * x, "n": n + np.uint32(1)}
k = torch.tensor(0.5, requires_grad=True)
largest = np.array([2**32 - 2], np.uint32)
out = simgrad.torch.rollout(client, counts, steps=1, initial={"x": [1.0], "n": largest}, params={"k": k}, record=["n"])
assert out.state["n"].dtype == torch.int64 and out.trajectory["n"].tolist() == [[2**32 - 2, 2**32 - 1]]
out.state["x"].sum().backward()
assert k.grad == 1.0
""",
        server.target,
    )


def test_a_list_of_tensors_that_need_gradients_is_refused_by_name(root, server):
    run(
        root,
        COMMON + """
for options in (dict(initial={"y": [y0[0], 3 * y0[0]], "v": v0}), dict(initial={"y": y0, "v": v0}, weights=[e, e, e])):
    try:
        simgrad.torch.rollout(client, ball, steps=4, params={"k": 1.0}, objective="final_height", **options)
    except TypeError as error:
        assert str(error).startswith(("y: ", "weights: ")) and "torch.stack" in str(error)
    else:
        raise AssertionError("a list was taken")
with torch.no_grad():
    simgrad.torch.rollout(client, ball, steps=4, params={"k": 1.0}, objective="final_height",
                          initial={"y": y0, "v": v0}, weights=[e, e, e])
""",
        server.target,
    )


def test_collections_of_parameters_are_refused_as_lists_are(root, server):
    run(
        root,
        COMMON + """
import collections
k = torch.tensor(1.0, requires_grad=True)
two = [torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.tensor(3.0))]
for y in (torch.nn.ParameterList(two), collections.deque(two), collections.UserList(two), sg.PerStep(torch.nn.ParameterList(two))):
    try:
        simgrad.torch.rollout(client, ball, steps=4, params={"k": k}, objective="final_height", initial={"y": y, "v": v0})
    except TypeError as error:
        assert str(error).startswith("y: ") and "torch.stack" in str(error), error
    else:
        raise AssertionError(f"{type(y)} was taken")
plain = simgrad.torch.rollout(client, ball, steps=4, params={"k": k}, objective="final_height",
                              initial={"y": collections.deque([1.0, 3.0]), "v": [0.0, 0.0]})
plain.value.backward()
assert k.grad is not None
""",
        server.target,
    )


def test_a_world_that_closes_over_a_tensor_that_needs_a_gradient_is_refused_with_its_line(root, server):
    """Also where its first call needs none: it would stay the number of that call."""
    run(
        root,
        """
import torch, simgrad as sg, simgrad.torch
client = sg.Client(sys.argv[1])
K = torch.nn.Parameter(torch.tensor(0.5))

def closed(x: sg.State):
    return K * x

def listed(x: sg.State[2]):
    return x * [K, 2.0]

def default(x: sg.State, k: sg.Param = K):
    return k * x

for step, shape in ((closed, 2), (listed, (3, 2)), (default, 2)):
    for has_gradient in (True, False):
        with torch.set_grad_enabled(has_gradient):
            try:
                simgrad.torch.rollout(client, sg.world(step), steps=3, initial={"x": torch.ones(shape)})
            except TypeError as error:
                assert "tensor that needs a gradient" in str(error) and "sg.Param" in str(error), error
                assert step is default or "<string>:" in str(error), error
            else:
                raise AssertionError(f"{step.__name__} was taken")

@sg.world
def detached(x: sg.State):
    return K.detach() * x

assert simgrad.torch.rollout(client, detached, steps=1, initial={"x": torch.ones(2)}).state["x"].tolist() == [0.5, 0.5]
""",
        server.target,
    )


def test_the_torch_example_learns(root, server):
    out = run(
        root,
        f"""
import runpy
main = runpy.run_path({str(root / 'client/python/examples/train_with_torch.py')!r})["main"]
assert main(sys.argv[1]) < 0.02
""",
        server.target,
    )
    assert "final loss" in out


def test_a_server_may_be_restarted_before_the_backward_pass(root, start):
    """The server that is back keeps nothing of the forward pass: the client asks until it is there, and it simulates again."""
    first = start()
    script = COMMON + """
import socket, subprocess, threading
from live_server import LiveServer, eventually

def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

expected = roll(y0, v0, e, u)
expected.state["y"].sum().backward()
reference, e.grad = e.grad, None
out = roll(y0, v0, e, u)
os.kill(int(sys.argv[2]), signal.SIGKILL)
# A process that was killed holds its port until all its threads have ended.
eventually(lambda: is_free(int(sys.argv[3])))
again = []
starter = threading.Thread(target=lambda: again.append(LiveServer("--port=" + sys.argv[3])))
starter.start()
out.state["y"].sum().backward()
starter.join()
assert again[0].stop() == 0
assert bool(e.grad == reference) and client.retries > 0
"""
    path = repr(str(root / "tests/integration"))
    run(
        root,
        f"import os, signal; sys.path.append({path})\n" + script,
        first.target,
        str(first.process.pid),
        str(first.port),
    )


def test_the_backward_pass_does_not_simulate_again(root, server):
    run(
        root,
        COMMON + """
loss = lambda out: out.state["y"].sum() + sum(x.square().sum() for x in out.trajectory.values())
out = roll(y0, v0, e, u)
loss(out).backward(retain_graph=True)
first, e.grad = e.grad, None
assert out.calls[0].reused and not out.calls[0].replayed
out.info.kept.handle += "lost"
loss(out).backward()
assert out.calls[1].replayed and not out.calls[1].reused
assert bool(e.grad == first)
scored = roll(y0, v0, e, u, objective="final_height")
(2.0 * scored.values.sum()).backward(retain_graph=True)
assert scored.calls[0].reused
scored.state["y"].sum().backward()  # without the objective: another program
assert not scored.calls[1].reused
with torch.no_grad():
    assert roll(y0, v0, e, u).info.kept is None
assert roll(y0.detach(), v0.detach(), e.detach(), u.detach()).info.kept is None
""",
        server.target,
    )


def test_a_path_fits_whether_or_not_data_need_a_gradient(root, server):
    """Data that need one are controls of the program that runs, which decides what it decided without."""
    out = run(
        root,
        """
import numpy as np, torch, simgrad as sg, simgrad.torch
client = sg.Client(sys.argv[1])

@sg.world(level="all")
def bounded(x: sg.State[2], d: sg.Data[2] = 0.0):
    return {"x": sg.where(x > d, x - 0.3 * d, x + 0.25)}

x0 = torch.tensor([[0.1, 0.4], [0.2, 0.9]], dtype=torch.float64)
d = torch.tensor([0.5, 0.7], dtype=torch.float64)
def roll(d, path):
    return simgrad.torch.rollout(client, bounded, steps=6, initial={"x": x0}, data={"d": d}, policy="f64", path=path)

plain = roll(d, True)
path = plain.info.path
[site] = path.columns
assert path[site].any() and not path[site].all()
d = (d + 0.01).requires_grad_()  # another threshold, along the path of the first
out = roll(d, path)
out.state["x"].sum().backward()
held = path[site].sum(axis=(0, 1))
assert np.allclose(d.grad.numpy(), -0.3 * held), (d.grad, held)
""",
        server.target,
    )
    assert out == ""
