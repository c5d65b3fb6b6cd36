"""simgrad.torch: objectives and weights as tensors, data with a gradient, formats that follow the tensors."""

from torch_test import pytestmark, run  # noqa: F401  the mark skips this file as well
from torch_controller_test import COMMON

BALL = COMMON + """
ball = sg.World("bouncing_ball", contact="toi", elements=2)
generator = np.random.default_rng(0)
def tensor(x): return torch.tensor(x, requires_grad=True)
y0, e = tensor(generator.uniform(0.1, 0.5, (3, 2))), tensor(0.8)
seen = tensor(generator.uniform(0, 0.3, (3, 40, 2)))
u = tensor(generator.normal(size=(3, 40, 2)))
def roll(**options):
    return simgrad.torch.rollout(client, ball, steps=40, initial={"y": y0, "v": np.zeros(2)},
                                 params={"k": 1.0, "restitution": e}, controls={"u": u},
                                 **{"data": {"y": seen}, "objective": "tracking", "record": ["y"], **options})
def grads(loss, *tensors):
    return torch.autograd.grad(loss, tensors)
def cost(out):
    return ((out.trajectory["y"][:, 1:] - seen) ** 2).mean(dim=2).sum(dim=1)
"""


def test_values_and_value_are_the_objectives_and_differentiable(root, server):
    run(
        root,
        BALL + """
out = roll()
assert out.values.shape == (3,) and out.value.shape == () and out.values.dtype == out.value.dtype == torch.float64
near(out.values, cost(out))
wanted = (y0, e, u, seen)
for loss in (lambda v: v.sum(), lambda v: (v * torch.tensor([2.0, -1.0, 0.0])).sum(), lambda v: v.log().sum() + v[1] ** 2):
    one, other = roll(), roll(objective="")
    assert other.value is None and other.values is None
    for a, b in zip(grads(loss(one.values), *wanted), grads(loss(cost(other)), *wanted)):
        near(a, b, 1e-11)
    assert len(one.calls) == 1
for a, b in zip(grads(roll().value, *wanted), grads(cost(roll()).sum(), *wanted)):
    near(a, b, 1e-11)
""",
        server.target,
    )


def test_a_scale_of_the_loss_reaches_the_reverse_pass_through_states_alone(root, server):
    """The gradient is 0 in f16 unless what begins the reverse pass is larger."""
    run(
        root,
        COMMON + """
@sg.world
def halved(x: sg.State, k: sg.Param = 1.0):
    return {"x": x * 0.5 + 0.001 * k}
@halved.objective
def cost(x):
    return 1e-4 * x * x
def gradient(policy, scale, is_of_values):
    k = tensor(1.0)
    out = simgrad.torch.rollout(client, halved, steps=20, initial={"x": torch.tensor([1.0])}, params={"k": k},
                                objective="cost" if is_of_values else "", policy=policy)
    loss = out.values.sum() if is_of_values else (1e-4 * out.state["x"].double() ** 2).sum()
    (loss * scale).backward()
    return k.grad.item() / scale
def tensor(x): return torch.tensor(x, requires_grad=True)
right = gradient("f32", 1.0, True)
close = lambda found: abs(found / right - 1) < 0.1  # the objective itself is of a few digits in f16
assert [gradient("f16_unsafe", 2.0**e, True) for e in (0, 15)] == [0, 0]
assert gradient("f16_unsafe", 1.0, False) == 0 and close(gradient("f16_unsafe", 2.0**15, False))
assert close(gradient(sg.Policy("f16_unsafe").loss_scale(2.0**15), 1.0, True))
""",
        server.target,
    )


def test_an_objective_beside_trajectories_gives_the_sum_of_both(root, server):
    run(
        root,
        BALL + """
wanted = (y0, e, u, seen)
def last(out): return (out.state["v"] ** 2).sum() + (out.trajectory["y"] ** 3).sum()
for factor, calls in ((1.0, 1), (0.5, 2)):
    out = roll()
    mine = grads(factor * out.value + last(out), *wanted)
    assert len(out.calls) == calls
    free = roll()
    for a, b in zip(mine, grads(factor * cost(free).sum() + last(free), *wanted)):
        near(a, b, 1e-11)
""",
        server.target,
    )


def test_weights_are_differentiable_and_weigh_the_value_alone(root, server):
    run(
        root,
        BALL + """
weights = tensor([0.5, 2.0, -1.0])
out = roll(weights=weights)
near(out.value, (weights * out.values).sum())
made = grads(3 * out.value + out.values[0] + out.state["y"].sum(), weights, y0, e, u)
free = roll()
theirs = grads(3 * (weights * cost(free)).sum() + cost(free)[0] + free.state["y"].sum(), weights, y0, e, u)
for a, b in zip(made, theirs):
    near(a, b, 1e-11)
# The rollout's weights are of `value` alone, also where one reversal has values and states.
out, free = roll(weights=weights), roll()
for a, b in zip(grads(out.values.sum() + out.state["y"].sum(), y0, e, u), grads(cost(free).sum() + free.state["y"].sum(), y0, e, u)):
    near(a, b, 1e-11)
assert len(out.calls) == 1 and out.calls[0].reused
# Where weights alone need a gradient there is nothing to ask the server.
for x in (y0, e, u, seen): x.requires_grad_(False)
out = roll(weights=weights)
near(grads(out.value, weights)[0], out.values)
assert not out.calls
fixed = roll(weights=[0.5, 2.0, -1.0])
assert fixed.value.item() == out.value.item()
""",
        server.target,
    )


def test_data_that_needs_a_gradient_keeps_every_bit_of_the_rollout(root, server):
    run(
        root,
        BALL + """
still = roll(data={"y": seen.detach()})
moving = roll()
assert moving.info.path_signature == still.info.path_signature
assert bool((moving.values == still.values).all()) and bool((moving.trajectory["y"] == still.trajectory["y"]).all())
moving.value.backward()
assert seen.grad.shape == seen.shape and set(moving.calls[0].controls) == {"u", "y"}
near(seen.grad, (still.trajectory["y"][:, 1:].detach() - seen.detach()) * -1.0, 1e-11)
with torch.no_grad():
    assert not roll().values.requires_grad

@sg.world
def both(x: sg.State, y: sg.Data = 0.0, z: sg.Data[2] = (1.0, 2.0), u: sg.Control = 0.0):
    return x * y + u + z[0] * z[1]
y = tensor([2.0, 3.0])
out = simgrad.torch.rollout(client, both, steps=3, initial={"x": 1.0}, data={"y": sg.PerStep(tensor([1.0, 2.0, 3.0]))}, instances=2)
out.state["x"].sum().backward()
simgrad.torch.rollout(client, both, steps=3, initial={"x": 1.0}, data={"y": y}).state["x"].sum().backward()
# x -> y x + 2 three times: y^3 + 2 (y^2 + y + 1)
near(y.grad, 3 * y.detach() ** 2 + 4 * y.detach() + 2)

@sg.world
def twice(x: sg.State, u: sg.Data = 0.0, v: sg.Control = 0.0):
    return x + u + v
program = twice.program
program.inputs[2].name = "u"
refused(ValueError, "has a control u as well", lambda: simgrad.torch.rollout(client, sg.World(program=program), steps=1, initial={"x": 1.0}, data={"u": tensor(1.0)}))
refused(ValueError, "has no data w", lambda: simgrad.torch.rollout(client, twice, steps=1, initial={"x": 1.0}, data={"w": tensor(1.0)}))
""",
        server.target,
    )


def test_doubles_compute_in_double_where_no_policy_says_otherwise(root, server):
    run(
        root,
        BALL + """
def ran(out): return out.info.program.policy.roles["dynamics"].format
doubles = roll()
assert ran(doubles) == "f64" and doubles.state["y"].dtype == doubles.trajectory["y"].dtype == torch.float64
narrow = roll(policy="f32")
assert ran(narrow) == "f32" and narrow.state["y"].dtype == torch.float32 and narrow.values.dtype == torch.float64
assert bool((narrow.state["y"].double() != doubles.state["y"]).any())
narrow.value.backward()
assert y0.grad.dtype == torch.float64 and bool((y0.grad == y0.grad.float().double()).all())
floats = simgrad.torch.rollout(client, ball, steps=5, initial={"y": torch.rand(3, 2, dtype=torch.float32), "v": np.zeros(2)}, params={"k": 1.0})
assert ran(floats) == "f32" and floats.state["y"].dtype == torch.float32
mixed = simgrad.torch.rollout(client, ball, steps=5, initial={"y": torch.rand(3, 2, dtype=torch.float32), "v": np.zeros(2)}, params={"k": torch.tensor(1.0)})
assert ran(mixed) == "f64", "as torch promotes"
""",
        server.target,
    )


def test_an_input_that_changed_in_place_is_told_or_was_copied(root, server):
    run(
        root,
        BALL + """
out = roll()
with torch.no_grad():
    e += 0.1
refused(RuntimeError, "changed in place", lambda: out.value.backward())

# Arrays and data are the caller's: a backward pass that runs again has those of the rollout.
@sg.world
def pulled(x: sg.State[2], k: sg.Param = 1.0, y: sg.Data[2] = (0.5, 0.25)):
    return x + 0.1 * (k * y - x * x)

@pulled.objective
def squares(x):
    return np.sum(x * x)

def slope(spoil):
    k = tensor(0.7)
    given = dict(initial=np.array([[1.0, 2.0], [0.5, 0.25]]), data=torch.tensor([0.3, 0.4], dtype=torch.float64), weights=np.array([2.0, 3.0]))
    out = simgrad.torch.rollout(client, pulled, steps=5, initial={"x": given["initial"]}, data={"y": given["data"]},
                                weights=given["weights"], params={"k": k}, objective="squares", record=["x"])
    loss = out.value + (out.trajectory["x"] ** 3).sum()
    if spoil:
        given[spoil] *= 2
    loss.backward()
    assert not out.calls[0].reused, "it ran again"
    return k.grad.item()

right = slope("")
for name in ("initial", "data", "weights"):
    assert slope(name) == right, name
""",
        server.target,
    )


def test_what_changes_behind_pytorch_changes_no_gradient(root, server):
    """No version tells of memory that NumPy shares, or of `.data`: the gradient is of the numbers that were sent, kept or not."""
    run(
        root,
        COMMON + """
@sg.world
def pulled(x: sg.State, k: sg.Param = 1.0, m: sg.Param = 1.0, u: sg.Control = 0.0):
    sg.observe("far", x > 1.0)
    return x - 0.1 * k * m * x + u

@pulled.objective
def square(x):
    return x * x

[margin] = client.rollout(pulled, steps=1, initial={"x": [1.0]}).program.event_sites
def slopes(how, spoil):
    numbers = {n: np.array(x) for n, x in dict(x=[1.0, 2.0], m=2.0, u=[0.1, 0.2], weights=[2.0, 3.0]).items()}
    given = {n: torch.from_numpy(x) for n, x in numbers.items()}
    k = torch.tensor(0.7, requires_grad=True)
    options = {} if how == "replayed" else {"margins": [margin]} if how == "with margins" else {"record": ["x"]}
    out = simgrad.torch.rollout(client, pulled, steps=5, initial={"x": given["x"]}, params={"k": k, "m": given["m"]}, objective="square",
                                controls={"u": given["u"]}, weights=given["weights"], **options)
    loss = out.value if how != "of states" else (out.trajectory["x"] ** 3).sum()
    if how == "replayed":
        out.info.kept.handle += "lost"
    if spoil == "data":
        given["m"].data *= 2
    elif spoil:
        numbers[spoil] *= 2
    loss.backward()
    assert not out.calls[0].reused and (out.info.kept is None) == (how == "with margins"), "it ran again"
    return k.grad.item()

for how in ("replayed", "with margins", "of states"):
    right = slopes(how, "")
    for spoil in ("x", "m", "u", "weights", "data"):
        assert slopes(how, spoil) == right, (how, spoil)
""",
        server.target,
    )


def test_a_loss_that_is_not_finite_in_an_instance_spoils_what_depends_on_it(root, server):
    run(
        root,
        BALL + """
def slopes(loss, **options):
    out = roll(**options)
    assert not out.calls
    return grads(loss(out), y0, e)
def bad(out): return out.values[0] + float("nan") * out.values[1]
for loss in (bad, lambda out: out.values[0] + float("inf") * out.values[1]):
    by_height, by_bounce = slopes(loss)
    good, _ = slopes(lambda out: out.values[0])
    near(by_height[0], good[0])
    assert bool(by_height[1].isnan().all()) and bool((by_height[2] == 0).all()) and bool(by_bounce.isnan())
# What reduction leaves out spoils nothing shared.
by_height, by_bounce = slopes(bad, reduction="finite_only")
_, alone = slopes(lambda out: out.values[0])
near(by_bounce, alone)
assert bool(by_height[1].isnan().all())
by_height, by_bounce = slopes(lambda out: float("nan") * out.value)
assert bool(by_height.isnan().all()) and bool(by_bounce.isnan())
""",
        server.target,
    )


def test_values_that_change_in_place_leave_the_gradient_of_weights_alone(root, server):
    run(
        root,
        BALL + """
weights = tensor([1.0, 1.0, 1.0])
out = roll(weights=weights)
values = out.values.detach().clone()
out.values.detach().zero_()
near(grads(out.value, weights)[0], values)
near(torch.from_numpy(out.info.values), values)
""",
        server.target,
    )


def test_a_value_that_is_not_finite_leaves_weights_alone_where_the_loss_does_not_read_it(root, server):
    run(
        root,
        COMMON + """
@sg.world
def still(x: sg.State):
    return {"x": x}
@still.objective
def cost(x):
    return np.log(x)
weights = torch.ones(3, requires_grad=True)
def roll():
    return simgrad.torch.rollout(client, still, steps=1, initial={"x": torch.tensor([1.0, 2.0, 0.0], requires_grad=True)},
                                 objective="cost", weights=weights)
out = roll()
assert out.values[2] == -np.inf
for loss in (out.values[:2].sum(), roll().value * 0.0 + roll().values[:2].sum()):
    assert torch.autograd.grad(loss, weights)[0].tolist() == [0.0, 0.0, 0.0]
out = roll()
assert torch.autograd.grad(2 * out.value, weights)[0].equal(2 * out.values.detach())
""",
        server.target,
    )
