"""simgrad.torch.controller: modules of PyTorch inside worlds, under whichever Python here has PyTorch."""

import re

from torch_test import pytestmark, run  # noqa: F401  the mark skips this file as well

COMMON = """
import numpy as np, torch, simgrad as sg, simgrad.torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(4)
torch.set_default_dtype(torch.float64)
client = sg.Client(sys.argv[1])

@sg.world
def pendulum(angle: sg.State[2], speed: sg.State, gravity: sg.Param = 9.81, torque: sg.Control[2] = 0.0, drift: sg.Control = 0.0):
    speed = speed + 0.02 * (torque[0] - gravity * np.sin(angle[0]) + drift)
    return {"angle": angle + 0.02 * speed * (1.0 + torque[1] ** 2) * np.array([1.0, 0.5]), "speed": speed}

@pendulum.stage_cost
def effort(torque, angle):
    return torque @ torque + angle @ angle

START = {"angle": torch.tensor([[0.3, -0.1], [1.0, 0.4], [-0.6, 0.9]]), "speed": torch.tensor([0.0, 0.5, -0.2])}
STEPS = 25

def network():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6, bias=False)), nn.SiLU(), nn.Linear(6, 2))

def in_torch(module, angle, speed, gravity=9.81):
    angles, costs = [angle], 0.0
    for _ in range(STEPS):
        torque = module(torch.cat([angle, speed[:, None]], 1))
        costs = costs + (torque**2).sum(1) + (angle**2).sum(1)
        speed = speed + 0.02 * (torque[:, 0] - gravity * angle[:, 0].sin())
        angle = angle + 0.02 * (speed * (1 + torque[:, 1] ** 2))[:, None] * torch.tensor([1.0, 0.5])
        angles.append(angle)
    return torch.stack(angles, 1), costs

def near(mine, theirs, rtol=1e-12):
    mine, theirs = mine.detach().numpy(), theirs.detach().numpy()
    assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, (mine.shape, theirs.shape)
    np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max())

def closed_gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in module.parameters()]

def refused(kind, words, make):
    try:
        make()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"taken, for all of {words!r}")
"""


def test_a_module_moves_a_world_and_gets_its_gradients_as_in_torch(root, server):
    run(
        root,
        COMMON + """
module = network()
closed = sg.compose(pendulum, simgrad.torch.controller(module), control="torque")
assert set(closed.controllers[0].weights) == {"policy." + n for n, _ in module.named_parameters()}
gravity = torch.tensor(9.81, requires_grad=True)
start = {n: x.clone().requires_grad_() for n, x in START.items()}
out = simgrad.torch.rollout(client, closed, steps=STEPS, initial=start, params={"gravity": gravity},
                            record=["angle", "torque"], objective="effort")
angles, costs = in_torch(module, start["angle"], start["speed"], gravity)
near(out.trajectory["angle"], angles)
near(out.values, costs)
weight = torch.linspace(-1, 1, angles.numel()).reshape(angles.shape)
others = [gravity, *start.values()]
mine = [closed_gradients(module, (weight * out.trajectory["angle"]).sum() + (out.values * torch.tensor([1.0, -2.0, 0.5])).sum()), [x.grad for x in others]]
for x in others: x.grad = None
theirs = [closed_gradients(module, (weight * angles).sum() + (costs * torch.tensor([1.0, -2.0, 0.5])).sum()), [x.grad for x in others]]
assert len(mine[0]) == 7
for a, b in zip(sum(mine, []), sum(theirs, [])):
    near(a, b)

# And as central differences of the server's own costs.
direction = [torch.randn_like(p) for p in module.parameters()]
def value(by):
    with torch.no_grad():
        for p, d in zip(module.parameters(), direction): p += by * d
        found = simgrad.torch.rollout(client, closed, steps=STEPS, initial=START, objective="effort").value.item()
        for p, d in zip(module.parameters(), direction): p -= by * d
    return found
out = simgrad.torch.rollout(client, closed, steps=STEPS, initial=START, objective="effort")
slope = sum((g * d).sum() for g, d in zip(closed_gradients(module, out.value), direction)).item()
assert abs(slope - (value(1e-5) - value(-1e-5)) / 2e-5) < 1e-7 * abs(slope)
""",
        server.target,
    )


def test_every_layer_is_that_of_torch_with_its_derivative_also_at_kinks(root, server):
    run(
        root,
        COMMON + """
@sg.world
def held(x: sg.State[8], u: sg.Control[8] = 0.0):
    return u

layers = [nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 2.0), nn.LeakyReLU(0.1), nn.ELU(1.5), nn.Tanh(),
          nn.Sigmoid(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.Softplus(), nn.Softplus(beta=2.0), nn.Softplus(threshold=0.5), nn.Softsign(),
          nn.CELU(0.5), nn.SELU(), nn.PReLU(), nn.PReLU(8), nn.Mish(), nn.LogSigmoid(), nn.Hardsigmoid(), nn.Softmax(dim=-1),
          nn.Dropout().eval(), nn.Dropout(0.0),
          nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 8), nn.Sequential()]
assert {type(m) for m in layers} == {*simgrad.torch_layers._LAYERS, nn.Sequential}, "each layer has its row"
points = torch.tensor([[0.0, 1.0, -1.0, 0.3, 6.0, -0.5, 2.0, 7.0], [-3.0, -0.0, 0.01, -8.0, 5.0, -0.2, 2.5, 0.7]])
weight = torch.randn(2, 8)
for layer in layers:
    mine, theirs = points.clone().requires_grad_(), points.clone().requires_grad_()
    closed = sg.compose(held, simgrad.torch.controller(nn.Sequential(layer)))
    out = simgrad.torch.rollout(client, closed, steps=1, initial={"x": mine}).state["x"]
    expected = layer(theirs)
    try:
        near(out, expected)
        made = closed_gradients(layer, (weight * out).sum())
        for a, b in zip(made, closed_gradients(layer, (weight * expected).sum())):
            near(a, b)
        # PyTorch's derivative of Hardsigmoid multiplies by 1/6 in f32.
        near(mine.grad, theirs.grad, 1e-7 if type(layer) is nn.Hardsigmoid else 1e-12)
    except AssertionError as error:
        raise AssertionError(f"{layer}: {error}")
""",
        server.target,
    )


def test_exponential_layers_keep_their_derivative_far_below_0_in_narrow_formats(root, server):
    run(
        root,
        COMMON + """
@sg.world
def held(x: sg.State, u: sg.Control = 0.0):
    return u

points = torch.tensor([-0.5, -3.0, -6.0, -7.0, -12.0, -18.0])
for layer in (nn.ELU(1.5), nn.CELU(0.75), nn.SELU()):
    exact = points.clone().requires_grad_()
    layer(exact[:, None]).sum().backward()
    for policy, error in ((sg.Policy("f32"), 1e-6), (sg.Policy("f32").role("network", format="bf16"), 1e-2)):
        mine = points.clone().requires_grad_()
        closed = sg.compose(held, simgrad.torch.controller(layer))
        simgrad.torch.rollout(client, closed, steps=1, initial={"x": mine}, policy=policy).state["x"].sum().backward()
        near(mine.grad, exact.grad, error)
""",
        server.target,
    )


def test_a_torch_optimizer_learns_and_the_world_follows(root, server):
    run(
        root,
        COMMON + """
module = network()
closed = sg.compose(pendulum, simgrad.torch.controller(module), control="torque")
optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
losses = []
for _ in range(15):
    out = simgrad.torch.rollout(client, closed, steps=STEPS, initial=START, record=["torque"])
    loss = ((out.trajectory["torque"] - torch.tensor([1.0, -0.5])) ** 2).mean()
    losses.append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert losses[-1] < 0.3 * losses[0], losses
# A client without torch sends what the module has now.
plain = client.rollout(closed, steps=STEPS, initial={n: x.numpy() for n, x in START.items()}, objective="effort", policy="f64")
near(torch.tensor(plain.values), in_torch(module, **START)[1])
""",
        server.target,
    )


def test_shared_frozen_replaced_and_narrow_parameters(root, server):
    run(
        root,
        COMMON + """
shared = nn.Linear(3, 3)
tied = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(3, 2))
tied[3].bias.requires_grad_(False)
closed = sg.compose(pendulum, simgrad.torch.controller(tied, name="", per_instance="3.bias"), control="torque")
assert {i.name for i in closed.program.inputs if i.weights} == {"0.weight", "0.bias", "3.weight"}
refused(ValueError, "no parameter 3.bies; there are 0.weight", lambda: simgrad.torch.controller(tied, name="", per_instance=["3.bies"]))
assert set(closed.controllers[0].weights) == {"0.weight", "0.bias", "3.weight", "3.bias"}
out = simgrad.torch.rollout(client, closed, steps=STEPS, initial=START, objective="effort")
out.value.backward()
mine = {n: p.grad for n, p in tied.named_parameters()}
assert mine["3.bias"] is None and "3.bias" not in out.calls[0].params
tied.zero_grad(set_to_none=True)
in_torch(tied, **START)[1].sum().backward()
for n in ("0.weight", "0.bias", "3.weight"):
    near(mine[n], dict(tied.named_parameters())[n].grad)

# One bias for each instance, in place of the module's.
each = torch.randn(3, 2, requires_grad=True)
out = simgrad.torch.rollout(client, closed, steps=STEPS, initial=START, params={"3.bias": each}, objective="effort")
out.value.backward()
assert each.grad.shape == (3, 2) and bool((each.grad != 0).all())

narrow = network().to(torch.bfloat16)
closed = sg.compose(pendulum, simgrad.torch.controller(narrow), control="torque")
policy = sg.Policy("f32").role("network", format="bf16")
out = simgrad.torch.rollout(client, closed, steps=STEPS, initial=START, policy=policy, objective="effort")
out.value.backward()
assert all(p.grad.dtype == torch.bfloat16 and bool(p.grad.isfinite().all()) for p in narrow.parameters())
same = client.rollout(closed, steps=STEPS, initial={n: x.numpy() for n, x in START.items()}, policy=policy, objective="effort")
assert same.value == out.value.item()
""",
        server.target,
    )


def test_parameters_that_a_module_replaces_are_told_by_name_at_each_call(root, server):
    """The world would go on with the old ones, and an optimizer over the new ones would train nothing."""
    run(
        root,
        COMMON + """
numbers = {n: x.numpy() for n, x in START.items()}
def calls(closed):
    return (lambda: simgrad.torch.rollout(client, closed, steps=2, initial=START, objective="effort"),
            lambda: client.rollout(closed, steps=2, initial=numbers),
            lambda: client.gradient(closed, steps=2, initial=numbers, objective="effort"))
def assigned(module): module[0].weight = nn.Parameter(2 * module[0].weight.detach())
def normed(module): nn.utils.weight_norm(module[0])
def longer(module): module.append(nn.Linear(2, 2))
def tied(module): module[1].bias = module[0].bias
def without(module): module[0].bias = None
for change, names in ((assigned, "policy.0.weight"), (normed, "policy.0.weight, policy.0.weight_g, policy.0.weight_v"),
                      (longer, "policy.2.weight, policy.2.bias"), (tied, "policy.1.bias"), (without, "policy.0.bias")):
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    made = simgrad.torch.controller(module)
    closed = sg.compose(pendulum, made, control="torque")
    for call in calls(closed): call()
    change(module)
    for call in (*calls(closed), lambda: sg.compose(pendulum, made, control="torque")):
        refused(RuntimeError, names + ": the module of this controller has other parameters", call)

# Numbers that change in place are what requests send.
module = nn.Sequential(nn.Linear(3, 2))
closed = sg.compose(pendulum, simgrad.torch.controller(module), control="torque")
before = calls(closed)[0]().value
module.load_state_dict({n: 2 * x for n, x in module.state_dict().items()})
assert calls(closed)[0]().value != before
""",
        server.target,
    )


def test_what_a_module_observes_is_chosen_and_two_modules_work_side_by_side(root, server):
    run(
        root,
        COMMON + """
@sg.world
def carts(x: sg.State[2], v: sg.State[2], goal: sg.Data = 0.0, left: sg.Control = 0.0, right: sg.Control = 0.0):
    sg.observe("gap", x[1] - x[0])
    v = v + 0.1 * np.stack([left, right])
    return {"x": x + 0.1 * v, "v": v}

a, b = nn.Linear(2, 1), nn.Sequential(nn.Linear(3, 1), nn.Softsign())
one = sg.compose(carts, simgrad.torch.controller(a, observe=["gap", "goal"], name="a"), control="left")
both = sg.compose(one, simgrad.torch.controller(b, observe=["left", "v"], name="b"))
x, v, goal = torch.randn(3, 2), torch.randn(3, 2), torch.randn(3, requires_grad=True)
out = simgrad.torch.rollout(client, both, steps=10, initial={"x": x, "v": v}, data={"goal": goal})
final = out.state["x"]
modules = nn.ModuleList([a, b])
mine = closed_gradients(modules, (final**2).sum())
mine_goal, goal.grad = goal.grad, None
for _ in range(10):
    left = a(torch.stack([x[:, 1] - x[:, 0], goal], 1))
    right = b(torch.cat([left, v], 1))
    v = v + 0.1 * torch.cat([left, right], 1)
    x = x + 0.1 * v
near(final, x)
for p, q in zip(mine, closed_gradients(modules, (x**2).sum())):
    near(p, q)
near(mine_goal, goal.grad)
""",
        server.target,
    )


def test_what_has_no_translation_or_no_fit_is_told(root, server):
    run(
        root,
        COMMON + """
controller = simgrad.torch.controller
class Own(nn.Linear):
    def forward(self, x):
        return 2 * x
hooked = nn.Sequential(nn.Linear(3, 2))
hooked[0].register_forward_hook(lambda *_: None)
refused(TypeError, "module 1.0 (Dropout(p=0.5", lambda: controller(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout()))))
refused(TypeError, "there is one of CELU, Dropout, ELU, GELU,", lambda: controller(nn.Conv1d(1, 1, 1)))
frozen = nn.Linear(3, 2)
weight = frozen.weight.detach()
del frozen.weight
frozen.register_buffer("weight", weight)
refused(TypeError, "its weight is no nn.Parameter", lambda: controller(nn.Sequential(frozen)))
refused(TypeError, "module 0 (Own(", lambda: controller(nn.Sequential(Own(3, 2))))
refused(TypeError, "has hooks", lambda: controller(hooked))
pulled = nn.Linear(2, 2)
pulled.register_full_backward_hook(lambda *_: None)
refused(TypeError, "has hooks", lambda: controller(pulled))
patched = nn.Linear(2, 2)
patched.forward = lambda x: 2 * x
refused(TypeError, "has a forward of its own", lambda: controller(patched))
refused(TypeError, "a torch.nn.Module", lambda: controller(lambda x: x))
compose = lambda module, **how: sg.compose(pendulum, controller(module, **how), control="torque")
refused(ValueError, "takes 4 numbers, and gets 3", lambda: compose(nn.Sequential(nn.Linear(4, 2))))
refused(ValueError, "gives 1 numbers; torque takes 2", lambda: compose(nn.Linear(3, 1)))
refused(ValueError, "takes (4,) numbers, and gets 3", lambda: compose(nn.LayerNorm(4)))
refused(ValueError, "takes 4 numbers, and gets 3", lambda: compose(nn.PReLU(4)))
refused(TypeError, "is along dim=-1 of what a world has for one instance", lambda: compose(nn.Softmax(dim=1)))
refused(ValueError, "has no height to read", lambda: compose(nn.Linear(3, 2), observe="height"))
refused(ValueError, "observes nothing", lambda: compose(nn.Linear(3, 2), observe=[]))
@sg.world
def counted(x: sg.State, n: sg.Control(dtype="i32") = 0, on: sg.Control(dtype="bool") = False, u: sg.Control = 0.0):
    return {"x": x + n + u + np.where(on, 1.0, 0.0)}
refused(ValueError, "control n is i32[], on is bool[]: policy gives reals, and can compute controls of reals alone",
        lambda: sg.compose(counted, controller(nn.Linear(1, 3))))
sg.compose(counted, controller(nn.Linear(1, 1)), control="u")
once = sg.compose(pendulum, controller(nn.Linear(3, 1)), control="drift")
refused(ValueError, "has weights policy.weight, policy.bias", lambda: sg.compose(once, controller(nn.Linear(3, 2))))
""",
        server.target,
    )


def test_the_example_learns_and_the_page_runs(root, server):
    """The drone hovers off its goal by metres at first."""
    [page] = re.findall(r"```py\n(.*?)```", (root / "docs/python.md").read_text(), re.DOTALL)
    run(
        root,
        f"""
import runpy
main = runpy.run_path({str(root / 'client/python/examples/train_policy.py')!r})["main"]
losses = main(sys.argv[1], "25")
assert losses[-1] < 0.6 * losses[0], losses
""",
        server.target,
    )
    # Without a push the carts stay where they are, and cost 50 (1 + 0.25).
    seeded = "import torch\ntorch.manual_seed(0)\n" + page.replace("localhost:8001", server.target)
    run(root, seeded + "\nassert out.value < 60\n", server.target)
