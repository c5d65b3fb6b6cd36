"""A rollout in PyTorch's graph: what backward passes free and refuse, and tensors that no request can hold."""

from torch_test import COMMAND, COMMON, run

import pytest

pytestmark = pytest.mark.skipif(COMMAND is None, reason="no Python here has PyTorch")

TOLD = COMMON + """
import gc, weakref
def told(error, act):
    try:
        made = act()
    except error as refused:
        return str(refused)
    raise AssertionError(f"accepted: {made}")
"""


def test_a_graph_goes_backward_once_unless_it_is_retained(root, server):
    run(
        root,
        TOLD + """
out = roll(y0, v0, e, u)
loss = out.state["y"].sum()
work = weakref.ref(loss.grad_fn.next_functions[0][0].work)
info = weakref.ref(out.info)
loss.backward(retain_graph=True)
first, e.grad = e.grad, None
loss.backward()
assert bool(e.grad == first) and len(out.calls) == 2
assert "second time" in told(RuntimeError, loss.backward) and len(out.calls) == 2
del out
gc.collect()
assert work() is None and info() is None  # the loss, which is at hand, holds neither request nor results
assert np.isfinite(loss.item())
""",
        server.target,
    )


def test_hooks_of_saved_tensors_and_checkpointing_leave_gradients_as_they_are(root, server):
    run(
        root,
        TOLD + """
from torch.utils.checkpoint import checkpoint
grad = torch.autograd.grad
[expected] = grad(roll(y0, v0, e, u).state["y"].sum(), e)
[again] = grad(checkpoint(lambda *inputs: roll(*inputs).state["y"], y0, v0, e, u, use_reentrant=False).sum(), e)
assert bool(again == expected)
with torch.autograd.graph.save_on_cpu():
    loss = roll(y0, v0, e, u).state["y"].sum()
[retained], [again] = grad(loss, e, retain_graph=True), grad(loss, e)
assert bool(retained == expected) and bool(again == expected)
assert "second time" in told(RuntimeError, lambda: grad(loss, e))
""",
        server.target,
    )


def test_transforms_and_tensors_without_numbers_are_refused_by_name(root, server):
    run(
        root,
        TOLD + """
import torch.autograd.forward_ad as forward
def forward_mode():
    with forward.dual_level():
        return roll(y0.detach(), v0.detach(), forward.make_dual(e.detach(), torch.ones_like(e)), u.detach())
assert "no forward mode" in told(RuntimeError, forward_mode)
y = roll(y0, v0, e, u).state["y"]
batched = lambda: torch.autograd.grad(y, e, torch.ones(4, 3, 2, dtype=y.dtype), is_grads_batched=True)
assert told(TypeError, batched).startswith("y: the numbers of this tensor cannot be read")
if hasattr(torch, "func"):
    loss = lambda e: roll(y0.detach(), v0.detach(), e, u.detach()).state["y"].sum()
    for transform in (torch.func.grad, torch.func.jacrev):
        assert "torch.func" in told(TypeError, lambda: transform(loss)(e.detach()))
    assert "torch.func" in told(TypeError, lambda: torch.func.vmap(loss)(torch.ones(2)))
for y, why in ((y0.detach().to_sparse(), "sparse_coo"), (y0.detach().to("meta"), "meta"),
               (torch.quantize_per_tensor(y0.detach().float(), 0.1, 0, torch.quint8), "quint8")):
    message = told(TypeError, lambda: roll(y, v0, e, u))
    assert message.startswith("y: the numbers") and why in message, message
""",
        server.target,
    )


def test_a_list_of_tensors_is_one_tensor(root, server):
    """Its dtype chooses the policy, and formats that NumPy lacks travel from a list too."""
    run(
        root,
        TOLD + """
def last(y, **options):
    return simgrad.torch.rollout(client, ball, steps=3, initial={"y": y, "v": torch.zeros(2)}, **options).state["y"]
rows = list(y0.detach())
assert last(rows).dtype == torch.float64 and bool((last(rows) == last(y0.detach())).all())
assert last([[row[0], row[1]] for row in rows]).dtype == torch.float64
assert last([row.float() for row in rows]).dtype == torch.float32
narrow = [row.bfloat16() for row in rows]
assert bool((last(narrow) == last(torch.stack(narrow).float())).all())
for dtype in ("float8_e4m3fn", "float8_e5m2"):
    if hasattr(torch, dtype):
        small = y0.detach().to(getattr(torch, dtype))
        assert bool((last(small) == last(small.float())).all())
""",
        server.target,
    )


def test_ids_and_seeds_may_be_tensors(root, server):
    run(
        root,
        TOLD + """

@sg.world
def walk(x: sg.State):
    return x + sg.normal()

def last(**options):
    out = simgrad.torch.rollout(client, walk, steps=3, initial={"x": torch.zeros(3)}, **options)
    return out.state["x"].tolist()

here = last(instance_ids=[7, 5, 6], seed=3)
assert last(instance_ids=torch.tensor([7, 5, 6]), seed=torch.tensor(3)) == here != last(seed=3)
assert last(first_instance=torch.tensor(5), seed=torch.tensor(3)) == [*here[1:], here[0]]
for ids in (torch.tensor([1, 2, -3]), torch.tensor([1.0, 2.0, 3.0])):
    assert told(ValueError, lambda: last(instance_ids=ids)).startswith("instance_ids: whole numbers from 0")
""",
        server.target,
    )


def test_infinities_of_either_sign_make_nan_without_a_warning(root, server):
    run(
        root,
        TOLD + """
import warnings
warnings.simplefilter("error")

@sg.world
def grows(x: sg.State[1], k: sg.Param):
    return x * k

@grows.objective
def last(x):
    return -x.sum()

k = torch.tensor(1e200, dtype=torch.float64, requires_grad=True)
out = simgrad.torch.rollout(client, grows, steps=3, initial={"x": torch.ones(1, dtype=torch.float64)},
                            params={"k": k}, objective="last", policy="f64")
(out.state["x"].sum() + 2.0 * out.values.sum()).backward()
assert len(out.calls) == 2 and bool(torch.isnan(k.grad)), (out.calls, k.grad)
""",
        server.target,
    )
