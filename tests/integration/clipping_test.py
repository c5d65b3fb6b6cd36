"""A gradient clipped to a norm, beside the rule of torch.nn.utils.clip_grad_norm_."""

import json

import numpy as np
import pytest
import torch_test

import simgrad as sg

ROWS = 5


@sg.world
def pulled(x: sg.State[3], k: sg.Param = 1.0, force: sg.Param[3] = 0.0):
    return {"x": x + 0.5 * k * np.tanh(x) + force}


@pulled.objective
def far(x):
    return (x * x * x).sum()


def ask(client, policy="f64", **options):
    rng = np.random.default_rng(4)
    return client.gradient(
        pulled,
        steps=3,
        initial={"x": rng.normal(size=(ROWS, 3))},
        params={"k": 0.75, "force": rng.normal(size=3)},
        objective="far",
        policy=policy,
        **options,
    )


def arrays_of(g):
    return [np.asarray(a, np.float64) for group in (g.initial, g.params) for a in group.values()]


def torch_rule(gradients, most):
    """clip_grad_norm_ with norm_type 2: (norm, the gradients)."""
    norm = np.sqrt(sum((g**2).sum() for g in gradients))
    factor = min(1.0, most / (norm + 1e-6))
    return norm, [g * factor for g in gradients]


@pytest.mark.parametrize("share", (0.01, 0.5, 0.999999, 2.0))
def test_it_is_that_of_torch(client, share):
    free = ask(client)
    assert free.norm is None
    most = share * torch_rule(arrays_of(free), 1.0)[0]
    norm, right = torch_rule(arrays_of(free), most)
    clipped = ask(client, clip_norm=most)
    assert clipped.norm == pytest.approx(norm, rel=1e-14)
    for given, wanted in zip(arrays_of(clipped), right):
        np.testing.assert_allclose(given, wanted, rtol=1e-14)
    if share > 1:
        for given, wanted in zip(arrays_of(clipped), arrays_of(free)):
            np.testing.assert_array_equal(given, wanted)


CLIPPED_BY_TORCH = """
import json, torch
gradients = json.loads(sys.argv[1])
parameters = [torch.nn.Parameter(torch.zeros_like(torch.tensor(g, dtype=torch.float64))) for g in gradients]
for parameter, gradient in zip(parameters, gradients):
    parameter.grad = torch.tensor(gradient, dtype=torch.float64)
norm = torch.nn.utils.clip_grad_norm_(parameters, 2.5)
print(json.dumps([float(norm), [p.grad.tolist() for p in parameters]]))
"""


@pytest.mark.skipif(torch_test.COMMAND is None, reason="no Python here has PyTorch")
def test_it_is_that_of_torch_itself(client, root):
    free = [a.tolist() for a in arrays_of(ask(client))]
    norm, right = json.loads(torch_test.run(root, CLIPPED_BY_TORCH, json.dumps(free)))
    clipped = ask(client, clip_norm=2.5)
    assert clipped.norm == pytest.approx(norm, rel=1e-14)
    for given, wanted in zip(arrays_of(clipped), right):
        np.testing.assert_allclose(given, wanted, rtol=1e-14)


def test_it_acts_on_unscaled_gradients(client):
    """In f32 a loss scale that is a power of two changes no bit; clipping before unscaling would."""
    plain = ask(client, sg.Policy("f32"), clip_norm=1.0)
    scaled = ask(client, sg.Policy("f32").loss_scale(4096.0), clip_norm=1.0)
    assert plain.norm == scaled.norm > 1.0
    for given, wanted in zip(arrays_of(scaled), arrays_of(plain)):
        np.testing.assert_array_equal(given, wanted)


def test_the_order_of_a_request_changes_no_bit(client):
    rng = np.random.default_rng(4)
    x, force = rng.normal(size=(ROWS, 3)), rng.normal(size=3)
    order = rng.permutation(ROWS)
    options = dict(steps=3, objective="far", policy="f32", clip_norm=0.3)
    params = {"k": 0.75, "force": force}
    g = client.gradient(
        pulled, initial={"x": x}, params=params, instance_ids=list(range(ROWS)), **options
    )
    turned = client.gradient(
        pulled, initial={"x": x[order]}, params=params, instance_ids=order.tolist(), **options
    )
    assert g.norm == turned.norm
    np.testing.assert_array_equal(g.initial["x"][order], turned.initial["x"])
    np.testing.assert_array_equal(g.params["force"], turned.params["force"])


def test_a_kept_rollout_is_clipped_alike(client):
    rng = np.random.default_rng(4)
    kept = client.rollout(
        pulled,
        steps=3,
        initial={"x": rng.normal(size=(ROWS, 3))},
        params={"k": 0.75, "force": rng.normal(size=3)},
        objective="far",
        policy="f64",
        keep=True,
    )
    again, once = kept.vjp(clip_norm=0.5), ask(client, clip_norm=0.5)
    assert again.reused and again.norm == once.norm
    for given, wanted in zip(arrays_of(again), arrays_of(once)):
        np.testing.assert_array_equal(given, wanted)


def test_a_gradient_that_is_not_finite_is_not_clipped(client):
    g = ask(client, sg.Policy("f32").loss_scale(2.0**120), clip_norm=1e-3)
    assert g.skipped and not np.isfinite(g.norm)
    assert any(np.isfinite(a).any() and (np.abs(a[np.isfinite(a)]) > 1e-3).any() for a in arrays_of(g))


@pytest.mark.parametrize("most", (0.0, -1.0, float("nan")))
def test_a_norm_that_is_not_positive_is_refused(client, most):
    with pytest.raises(sg.InvalidArgument, match="must be positive") as caught:
        ask(client, clip_norm=most)
    assert caught.value.field == "clip_norm"
