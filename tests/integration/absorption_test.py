"""A state that stands still although its gradient says that it moves: told by answers and metrics."""

import re
import urllib.request

import numpy as np
import pytest

import simgrad as sg
from simgrad.program import ProgramBuilder

STEPS, N = 40, 3
SAMPLED = 2  # of 40 steps with a stride of 32: step 31 and the last


def drift():
    b = ProgramBuilder("drift")
    x = b.state("x", [])
    k = b.param("k", [], default=0.01)
    b.next(x=x + k)
    b.objective("end", terminal=lambda states, exports: states["x"])
    return sg.World(program=b.build())


def counters(server, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        text = page.read().decode()
    found = re.findall(rf'^{name}{{role="(\w+)"}} (\S+)$', text, re.MULTILINE)
    return {role: float(count) for role, count in found}


def gradient(client, policy, **options):
    work = dict(steps=STEPS, initial={"x": np.full(N, 4.0)}, objective="end", wrt=["k"])
    return client.gradient(drift(), policy=policy, **work, **options)


@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_bf16_stands_still_and_says_so(client, chunk):
    options = {} if chunk is None else {"chunk_steps": chunk}
    narrow = gradient(client, "bf16_unsafe", **options)
    assert (narrow.state["x"] == 4.0).all()
    assert narrow.params["k"].sum() != 0
    absorption = narrow.absorption["x"]
    assert absorption.additions == absorption.absorbed == N * SAMPLED
    assert absorption.share == 1.0
    assert [site.role for site in absorption.sites] == ["dynamics"]
    assert "absorption_test.py" in absorption.sites[0].line
    assert "x in 100% of 6 additions at sampled steps" in repr(narrow)
    wide = gradient(client, "f32", **options)
    assert (wide.absorption["x"].additions, wide.absorption["x"].absorbed) == (N * SAMPLED, 0)


def test_a_stream_tells_the_same_as_the_result(client):
    work = dict(steps=STEPS, initial={"x": np.full(N, 4.0)}, policy="bf16_unsafe", chunk_steps=5)
    stream = client.rollout_stream(drift(), **work)
    told = [trace.absorption for trace in stream]
    additions = sum(a["x"].additions for a in told if "x" in a)
    assert additions == stream.result.absorption["x"].additions == N * SAMPLED


def test_metrics_count_what_answers_tell(serve):
    client = serve()
    before = counters(client.server, "simgrad_absorbed_total")
    assert set(before) >= {"state", "dynamics", "solver"} and not any(before.values())
    gradient(client, "bf16_unsafe")
    gradient(client, "f32")
    client.rollout(drift(), policy="bf16_unsafe", steps=STEPS, initial={"x": np.full(N, 4.0)}, diagnostics="off")
    absorbed = counters(client.server, "simgrad_absorbed_total")
    additions = counters(client.server, "simgrad_additions_total")
    assert absorbed["dynamics"] == 2 * N * SAMPLED
    assert additions["dynamics"] == 3 * N * SAMPLED


def test_a_cotangent_that_underflows_on_its_way_is_counted(client):
    b = ProgramBuilder("halves")
    x = b.state("x", [])
    b.next(x=x * 0.5)
    b.objective("end", terminal=lambda states, exports: states["x"])
    result = client.gradient(
        sg.World(program=b.build()), policy="f16_unsafe", steps=STEPS, initial={"x": 1.0}, objective="end", wrt=["x"]
    )
    assert result.initial["x"] == 0.0
    # 2^-15 to 2^-24; the next one is zero.
    assert result.backward.ranges["adjoint"].underflows == 10


def test_the_cast_of_a_terminal_cost_is_counted(client):
    policy = sg.Policy("f16_unsafe").loss_scale(1e-8)
    result = gradient(client, policy)
    assert result.backward.ranges["adjoint"].underflows == N
