"""One line of JSON for each request: where its time went, how it ended, whose trace it is of."""

import json
import re
import time

import grpc
import numpy as np
import pytest

import simgrad as sg

BALL = sg.World("bouncing_ball")
FALL = dict(steps=5, initial={"y": [0.5], "v": [0.0]}, params={"k": 1.0})


def lines_of(server):
    """What a server logged until it ended."""
    server.process.terminate()
    server.process.wait(timeout=30)
    server.log.seek(0)
    return [json.loads(line) for line in server.log.read().splitlines()]


def test_every_request_is_one_line_of_json_whose_stages_add_up(start):
    server = start()
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with sg.Client(server.target) as client:
        client.gradient(BALL, objective="final_height", **FALL)
        # Compiled once, so that the second beside other work is not one of compiling.
        client.rollout(BALL, **{**FALL, "steps": 1000, "instances": 4096})
        with pytest.raises(sg.DeadlineExceeded):
            client.rollout(BALL, **{**FALL, "steps": 10_000_000, "instances": 4096}, timeout=1)
        with pytest.raises(sg.InvalidArgument):
            client.rollout(BALL, steps=-1, initial=FALL["initial"])
    with grpc.insecure_channel(server.target) as channel:
        channel.unary_unary("/simgrad.v1.Simgrad/GetServerInfo")(
            b"", metadata=[("traceparent", f"00-{trace}-{span}-01")]
        )
    requests = [line for line in lines_of(server) if line["event"] == "request"]
    by_method = {line["method"]: line for line in requests}
    done = by_method["Gradient"]
    assert (done["world"], done["instances"], done["steps"]) == ("bouncing_ball", 1, 5)
    for line in requests:
        stages = [v for k, v in line.items() if k.endswith("_ms") and k != "total_ms"]
        # Each is rounded to a microsecond.
        assert sum(stages) == pytest.approx(line["total_ms"], abs=0.001 * (len(stages) + 1))
        assert line["other_ms"] >= -0.001
    assert {"queue_ms", "forward_ms", "adjoint_ms", "encode_ms", "send_ms"} <= done.keys()
    (expired,) = [line for line in requests if line["code"] == "DeadlineExceeded"]
    # Most of its time was computing, which is known of work that came to no end too.
    assert expired["forward_ms"] + expired["encode_ms"] + expired["send_ms"] > expired["other_ms"]
    assert by_method["GetServerInfo"]["trace_id"] == trace
    assert by_method["GetServerInfo"]["parent_span_id"] == span
    refused = [line for line in requests if line["code"] == "InvalidArgument"]
    assert len(refused) == 1 and "steps" in refused[0]["message"]
    assert np.unique([line["request_id"] for line in requests]).size == len(requests)


def test_the_least_level_is_that_of_the_flag(start):
    server = start("--log_level=warning")
    with sg.Client(server.target) as client:
        client.rollout(BALL, **FALL)
        with pytest.raises(sg.DeadlineExceeded):
            client.rollout(BALL, **{**FALL, "steps": 10_000_000, "instances": 4096}, timeout=1)
    requests = [line for line in lines_of(server) if line["event"] == "request"]
    assert [(line["code"], line["level"]) for line in requests] == [("DeadlineExceeded", "warning")]


def test_of_calls_that_end_alike_so_many_lines_a_second_are_written_and_the_others_counted(start):
    server = start("--log_lines_per_second=1")
    begin = time.monotonic()
    with sg.Client(server.target) as client:
        for _ in range(300):
            client.worlds()
    seconds = time.monotonic() - begin
    lines = lines_of(server)
    written = sum(line["event"] == "request" for line in lines)
    told = [re.match(r"(\d+) more calls ended with OK", line.get("message", "")) for line in lines]
    assert 0 < written <= seconds + 2  # the first second and the last are parts of one
    assert written + sum(int(found[1]) for found in told if found) == 300


def test_a_trace_id_is_logged_only_where_it_is_one(start):
    trace, span, server = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", start()
    good = [f"00-{trace}-{span}-00", f"cc-{trace}-{span}-01-of-a-later-version"]
    bad = [
        f"00-{trace}-{span}-01-more",
        f"ff-{trace}-{span}-01",
        f"00-{trace.upper()}-{span}-01",
        f"00-{'0' * 32}-{span}-01",
        f"00-{trace}-{'0' * 16}-01",
        f"00-{trace[1:]}-{span}-01",
        '","code":"OK',
    ]
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary("/simgrad.v1.Simgrad/GetServerInfo")
        for value in bad + good:
            call(b"", metadata=[("traceparent", value)])
    traced = [line.get("trace_id") for line in lines_of(server) if line["event"] == "request"]
    assert traced == [None] * len(bad) + [trace] * len(good)


def test_a_call_without_a_token_is_of_its_address(start, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    server = start(f"--token_file={tokens}")
    with sg.Client(server.target, token="guessed", retry=False) as client:
        for call in (client.info, lambda: client.rollout(BALL, **FALL)):
            with pytest.raises(sg.Unauthenticated):
                call()
    refused = [line for line in lines_of(server) if line["event"] == "request"]
    assert len(refused) >= 2
    assert {(line["code"], line["caller"]) for line in refused} <= {("Unauthenticated", "127.0.0.1"), ("Unauthenticated", "::1")}
