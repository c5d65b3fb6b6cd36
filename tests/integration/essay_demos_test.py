"""Every case of tests/data/essay_demos.json, through the Python client."""

import json
import pathlib

import numpy as np
import pytest

import simgrad as sg

DATA = json.loads((pathlib.Path(__file__).parent.parent / "data/essay_demos.json").read_text())
CASES = [pytest.param(case, id=case["name"]) for case in DATA["cases"]]
# Roles not named compute in the low format (or f32); objective and gradient in f32, adjoint sums in
# f32. The presets L_unsafe and f32 are that, and the orders of their sums are:
PRESET_ORDER = {"f16": "sequential", "bf16": "sequential", "f32": "pairwise"}


def number(text):
    return float.fromhex(text)


def numbers(texts):
    return [number(text) for text in texts]


def policy_of(case):
    low, termination = case["policy"]["all_other_roles"], case["policy"]["termination"]
    policy = sg.Policy("f32" if low == "f32" else f"{low}_unsafe")
    return policy.role("termination", format=termination["format"], order=termination["order"])


def run(client, case, policy, diagnostics="instances"):
    world = sg.World(
        case["world"], elements=case["elements"], tol=number(case["tol"]), max_iter=case["max_iter"]
    )
    return client.gradient(
        world,
        steps=case["steps"],
        initial={"y": np.array(numbers(case["y0"]))},
        params={"k": case["k"], "alpha": case["alpha"]},
        objective="final_penetration",
        record=["penetration"],
        policy=policy,
        diagnostics=diagnostics,
    )


@pytest.mark.parametrize("case", CASES)
def test_iterations_reasons_and_tested_values_are_those_of_exact_arithmetic(client, case):
    expect, site = case["expect"], run(client, case, policy_of(case)).sites["projection"]
    assert site.iterations[:, 0].tolist() == expect["iterations"]
    assert [step[0].tolist() for step in site.values] == [numbers(step) for step in expect["sums"]]
    reasons = expect.get("reasons", ["converged"] * case["steps"])
    assert [sg.REASONS[r] for r in site.instance_reasons[:, 0]] == reasons
    assert [sg.REASONS[row.argmax()] for row in site.reasons] == reasons


@pytest.mark.parametrize("case", CASES)
def test_final_state_and_last_penetration_are_exact(client, case):
    g = run(client, case, policy_of(case))
    assert g.state["y"][0].tolist() == numbers(case["expect"]["y_final"])
    assert g.trajectory["penetration"][0, -1].tolist() == numbers(case["expect"]["p_last"])


@pytest.mark.parametrize("case", CASES)
def test_value_is_exact_in_both_orders(client, case):
    for order, value in case["expect"].get("value", {}).items():
        g = run(client, case, policy_of(case).role("objective", order=order))
        assert g.value == number(value) and g.values.tolist() == [number(value)], order


@pytest.mark.parametrize("case", CASES)
def test_connection_of_k_is_that_of_the_executed_path(client, case):
    g = run(client, case, policy_of(case))
    assert g.connected["k"] == int(case["expect"]["k_connected"])
    assert g.gated_by["k"] == ("" if case["expect"]["k_connected"] else "projection")


@pytest.mark.parametrize("case", [c for c in CASES if "gradient_k" in c.values[0]["expect"]])
def test_gradient_of_k_is_exact(client, case):
    expected = number(case["expect"]["gradient_k"])
    orders = (
        ("sequential", "pairwise")
        if case["policy"]["all_other_roles"] == "f32"
        else ("sequential",)
    )
    for order in orders:
        policy = policy_of(case)
        for role in ("adjoint", "gradient", "objective"):
            policy = policy.role(role, order=order)
        gradient = run(client, case, policy).params["k"]
        assert gradient.dtype == np.float32 and gradient.shape == ()
        # "exact with order sequential; within 2 ulp of f32 otherwise"
        ulps = 0 if order == "sequential" else 2
        assert abs(float(gradient) - expected) <= ulps * np.spacing(
            np.float32(abs(expected))
        ), order


def test_loss_scale_lifts_the_f16_gradient(client, essay):
    case = next(c for c in essay["cases"] if c["name"] == "depressurization_f16_safe")
    g = run(client, case, policy_of(case).loss_scale(65536))
    assert float(g.params["k"]) == number("-0x1.6580000000000p-24")
    assert g.loss_scale == 65536 and not g.skipped


def test_the_presets_alone_tell_the_same_story(client, essay):
    for low in ("bf16", "f16"):
        case = next(c for c in essay["cases"] if c["name"] == f"depressurization_{low}_f32")
        iterations = {
            p: run(client, case, p).sites["projection"].iterations[:, 0].tolist()
            for p in ("f32", f"{low}_unsafe", f"{low}_safe")
        }
        assert iterations == {
            "f32": [1, 0, 0, 0],
            f"{low}_unsafe": [0, 0, 0, 0],
            f"{low}_safe": [1, 0, 0, 0],
        }


def test_path_signatures_are_the_published_ones(client, essay):
    vectors = essay["path_signature_vectors"]
    cases = {c["name"]: c for c in essay["cases"]}
    f32, unsafe = (
        run(
            client,
            cases[f"depressurization_bf16_{p}"],
            policy_of(cases[f"depressurization_bf16_{p}"]),
        )
        for p in ("f32", "unsafe")
    )
    assert f"{int(f32.path_signatures[0]):016x}" == vectors["depressurization_f32_instance"]
    assert f"{f32.path_signature:016x}" == vectors["depressurization_f32_batch_of_one_id_0"]
    assert f"{int(unsafe.path_signatures[0]):016x}" == vectors["depressurization_unsafe_instance"]


def test_summary_tells_what_instances_tell(client, essay):
    for case in essay["cases"]:
        full, summary = (
            run(client, case, policy_of(case), level) for level in ("instances", "summary")
        )
        a, b = full.sites["projection"], summary.sites["projection"]
        np.testing.assert_array_equal(b.iterations, np.repeat(a.iterations, 3, axis=1))
        tolerance = number(case["tol"])  # exact in every termination format used here
        for step, tested in enumerate(a.values):
            margins = tested[0] - tolerance
            assert b.margin[step] == margins[np.argmin(np.abs(margins))]
            assert b.checks[step] == len(tested[0]) and b.runs[step] == 1
            assert b.tested_min[step] == b.tested_max[step] == tested[0][-1]
