"""The client under Debian's own grpcio and protobuf; every other test has the current ones."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from google import protobuf
from grpc import __version__ as our_grpc

pytestmark = pytest.mark.waits

SYSTEM_PYTHON = "/usr/bin/python3"
VERSIONS = "import google.protobuf, grpc; print(grpc.__version__, google.protobuf.__version__)"


def debian(root, *arguments):
    """Debian's Python with its own packages and the client's sources, and nothing else."""
    return subprocess.run(
        [SYSTEM_PYTHON, "-s", *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "client/python")},
    )


@pytest.fixture(scope="module", autouse=True)
def versions(root):
    found = debian(root, "-c", VERSIONS)
    if found.returncode:
        pytest.skip("Debian's grpcio and protobuf are not installed: scripts/setup --with-debian-client")
    return found.stdout.split()


def test_the_two_sets_of_packages_differ(versions):
    """Else the tests here would say nothing new."""
    assert versions != [our_grpc, protobuf.__version__]


def test_the_tests_of_the_client_pass(root):
    done = debian(
        root, "-m", "pytest", "-q", "tests/client", "--ignore", "tests/client/types_test.py"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_servers_that_go_away_lose_no_call(root):
    """gRPC 1.51 tells what happened in other words than the current one. Orderly ends are tested beside those of ours."""
    wanted = "(lose or loses or called) and not orderly"
    done = debian(root, "-m", "pytest", "-q", "tests/integration/survival_test.py", "-k", wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


SCRIPT = """
import json, sys
import numpy as np
import simgrad as sg

with sg.Client(sys.argv[1], timeout=120) as client:
    ball = sg.World("bouncing_ball", contact="projection", elements=2, tol=1e-4, max_iter=25)
    height = np.linspace(0.1, 1, 200).reshape(100, 2)
    work = dict(steps=300, initial={"y": height, "v": 0 * height}, params={"k": 0.5})
    r = client.rollout(ball, record=["y"], diagnostics="instances", **work)
    g = client.gradient(ball, objective="final_penetration", policy="f16_safe", **work)
    compared = client.compare(ball, policies=["f64", "bf16_unsafe"], objective="final_penetration", **work)
    blocks = sum(1 for _ in client.rollout_stream(ball, **work))
    try:
        client.rollout(ball, **{**work, "steps": -1})
    except sg.errors.InvalidArgument as error:
        field = error.field
    print(json.dumps({
        "state": r.state["y"].tobytes().hex(), "trajectory": r.trajectory["y"].tobytes().hex(),
        "iterations": r.sites["projection"].iterations.tolist(), "path": r.path_signature,
        "fingerprint": r.program.fingerprint, "k": g.params["k"].tobytes().hex(),
        "y": g.initial["y"].tobytes().hex(), "connected": g.connected, "field": field,
        "blocks": blocks > 0, "why": compared.why, "calls": compared.calls,
    }))
"""


def test_a_rollout_and_a_gradient_have_the_same_bits(root, server):
    theirs = debian(root, "-c", SCRIPT, server.target)
    ours = subprocess.run(
        [sys.executable, "-c", SCRIPT, server.target], capture_output=True, text=True
    )
    assert theirs.returncode == 0, theirs.stderr
    assert ours.returncode == 0, ours.stderr
    answer = json.loads(theirs.stdout)
    assert answer == json.loads(ours.stdout)
    assert answer["field"] == "spec.steps" and answer["blocks"]
    assert np.isfinite(np.frombuffer(bytes.fromhex(answer["k"]), np.float32)).all()
