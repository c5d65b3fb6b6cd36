"""docs/numerics.md section 5, over the wire: nothing that must not matter changes a bit."""

import numpy as np
import pytest
from result_bits import bits_of, differences

import simgrad as sg

N, T, E = 4096, 150, 3
POLICIES = ["f32", "f64", "f16_unsafe", "bf16_safe"]
CONFIGS = {
    "projection": dict(contact="projection", clamp=False, elements=E, max_iter=30),
    "by element": dict(contact="projection", scope="element", elements=E),
    "penalty": dict(contact="penalty", elements=E),
    "toi": dict(contact="toi", elements=E),
}


def batch(n=N):
    generator = np.random.default_rng(17)
    return {
        "initial": {
            "y": generator.uniform(0.05, 1.0, (N, E))[:n],
            "v": generator.normal(0, 1, (N, E))[:n],
        },
        "params": {"k": generator.uniform(0.5, 1.5, N)[:n], "restitution": 0.8},
        "controls": {"u": generator.normal(0, 1, (N, E))[:n]},
    }


def take(sent, rows):
    return {
        group: {name: (a[rows] if np.ndim(a) else a) for name, a in inputs.items()}
        for group, inputs in sent.items()
    }


def rollout(client, sent, config="projection", policy="f32", **options):
    return client.rollout(
        sg.World("bouncing_ball", **CONFIGS[config]),
        steps=T,
        **sent,
        policy=policy,
        objective="final_height",
        **options,
    )


def gradient(client, sent, config="projection", policy="f32", **options):
    return client.gradient(
        sg.World("bouncing_ball", **CONFIGS[config]),
        steps=T,
        **sent,
        policy=policy,
        objective="final_height",
        **options,
    )


def per_instance(result):
    """What belongs to one instance: everything but shared gradients and sums over the batch."""
    arrays = {
        "ok": result.ok,
        "path": result.path_signatures,
        "values": result.values,
        **{f"state.{k}": a for k, a in result.state.items()},
    }
    for group in ("initial", "params", "controls"):
        arrays.update(
            {
                f"{group}.{k}": a
                for k, a in getattr(result, group, {}).items()
                if np.ndim(a) and len(a) == result.instances
            }
        )
    return arrays


def assert_rows_equal(whole, rows, part):
    full, partial = per_instance(whole), per_instance(part)
    for name in partial:
        assert full[name][rows].tobytes() == partial[name].tobytes(), name


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("config", CONFIGS)
def test_an_instance_is_the_same_alone_and_anywhere_in_4096(client, config, policy):
    sent = batch()
    whole = gradient(client, sent, config, policy)
    assert len(set(whole.path_signatures.tolist())) > 100
    for i in (0, 1, 6, 63, 64, 1000, 4095):
        alone = gradient(client, take(sent, slice(i, i + 1)), config, policy, first_instance=i)
        assert_rows_equal(whole, slice(i, i + 1), alone)


@pytest.mark.parametrize("config", ["projection", "toi"])
def test_the_order_of_the_request_does_not_matter_where_ids_are_kept(client, config):
    sent, order = batch(), np.random.default_rng(3).permutation(N)
    straight = gradient(client, sent, config)
    permuted = gradient(client, take(sent, order), config, instance_ids=order)
    assert_rows_equal(straight, order, permuted)
    # Sums over instances follow the ids: the shared gradient, the value and the batch signature as
    # well.
    assert permuted.params["restitution"].tobytes() == straight.params["restitution"].tobytes()
    # (as bits: -0.0 and a NaN are told apart from what equals them)
    assert np.float64(permuted.value).tobytes() == np.float64(straight.value).tobytes()
    assert permuted.path_signature == straight.path_signature
    assert permuted.connected == straight.connected


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_batch_cut_into_requests_gives_the_same_instances(client, cut):
    n = {1: 40, 7: 300, 1000: N}[cut]
    sent = batch(n)
    whole = gradient(client, sent)
    for first in range(0, n, cut):
        rows = slice(first, min(first + cut, n))
        assert_rows_equal(
            whole, rows, gradient(client, take(sent, rows), first_instance=first, diagnostics="off")
        )


def test_batch_signatures_of_parts_add_up(client):
    sent = batch(100)
    parts = [
        rollout(client, take(sent, slice(a, a + 25)), first_instance=a).path_signature
        for a in range(0, 100, 25)
    ]
    assert sum(parts) % 2**64 == rollout(client, sent).path_signature


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("config", CONFIGS)
def test_chunks_of_steps_do_not_matter(client, config, policy):
    sent = batch(97)
    reference = gradient(client, sent, config, policy, chunk_steps=T, record=["y", "penetration"])
    for chunk in (1, 7, 64):
        assert (
            differences(
                reference,
                gradient(
                    client, sent, config, policy, chunk_steps=chunk, record=["y", "penetration"]
                ),
            )
            == []
        )


@pytest.mark.parametrize("policy", ["f32", "f16_safe"])
@pytest.mark.parametrize("interval", [1, 2, 13, 64, T, 10 * T])
def test_the_checkpoint_interval_does_not_matter(client, policy, interval):
    sent = batch(97)
    assert (
        differences(
            gradient(client, sent, policy=policy),
            gradient(client, sent, policy=policy, checkpoint_interval=interval),
        )
        == []
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_diagnostics_do_not_matter(client, policy):
    sent = batch(97)
    summary = gradient(client, sent, policy=policy)
    for level in ("off", "instances"):
        other = gradient(client, sent, policy=policy, diagnostics=level, stride=5)
        assert differences(summary, other, diagnostics=False) == []


def test_threads_of_the_server_do_not_matter(serve):
    one, two = serve("--threads=1"), serve("--threads=2")
    sent = batch()
    for config in CONFIGS:
        for policy in ("f32", "bf16_safe"):
            assert (
                differences(
                    gradient(one, sent, config, policy), gradient(two, sent, config, policy)
                )
                == []
            )


def test_a_request_is_the_same_beside_others(client):
    from concurrent.futures import ThreadPoolExecutor

    sent = batch(200)
    reference = bits_of(gradient(client, sent))
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda i: gradient(client, sent, policy="f32"), range(8)):
            assert bits_of(result) == reference


BUILT_IN = [("bouncing_ball", config) for config in CONFIGS.values()]
BUILT_IN += [
    (
        "bouncing_ball",
        dict(contact="penalty", smoothing="softplus", integrator="explicit", elements=E),
    ),
    ("bouncing_ball", dict(tol_enter=1e-3, elements=E)),
    ("boundary_projection", dict(elements=E)),
    ("boundary_projection", dict(elements=E, scope="element")),
]


@pytest.mark.parametrize("policy", ["f32", "bf16_unsafe", "f64"])
@pytest.mark.parametrize("name, config", BUILT_IN)
def test_feeding_back_a_built_in_gives_the_same_bits(client, name, config, policy):
    world, sent = sg.World(name, **config), batch(33)
    if name == "boundary_projection":
        sent = {
            "initial": {"y": -0.01 * sent["initial"]["y"]},
            "params": {"k": sent["params"]["k"]},
        }
    described = client.program(world, policy=policy, objective="final_height", adjoint=True)
    again = sg.World(program=described.source)
    results = [
        client.gradient(
            w, steps=T, **sent, objective="final_height", policy=policy, record=["y", "penetration"]
        )
        for w in (world, again)
    ]
    assert differences(*results) == []
    assert results[0].program.fingerprint == results[1].program.fingerprint
    assert (
        client.program(again, policy=policy, objective="final_height", adjoint=True).text
        == described.text
    )


def test_the_fingerprint_is_that_of_the_text(client):
    import hashlib

    program = client.program(sg.World("bouncing_ball"), policy="f16_safe")
    assert program.fingerprint == hashlib.sha256(program.text.encode()).hexdigest()
    assert (
        client.program(sg.World("bouncing_ball", tol=2e-4), policy="f16_safe").fingerprint
        != program.fingerprint
    )
