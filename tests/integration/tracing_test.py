"""Spans of requests, as a collector gets them over OTLP."""

import json
import re
import subprocess
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest
from certificates import Authority
from live_server import BINARY, eventually
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from span_collector import Collector, attributes_of

import simgrad as sg

pytestmark = pytest.mark.waits

BALL = sg.World("bouncing_ball")
FALL = dict(steps=5, initial={"y": [0.5], "v": [0.0]}, params={"k": 1.0})
LONG = {**FALL, "steps": 10_000_000, "instances": 4096}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
SERVER, INTERNAL = trace_pb2.Span.SPAN_KIND_SERVER, trace_pb2.Span.SPAN_KIND_INTERNAL
UNSET, ERROR = trace_pb2.Status.STATUS_CODE_UNSET, trace_pb2.Status.STATUS_CODE_ERROR


class Details(grpc.ClientCallDetails):
    def __init__(self, call, metadata):
        self.method, self.timeout, self.metadata = call.method, call.timeout, metadata
        self.credentials = call.credentials
        self.wait_for_ready, self.compression = call.wait_for_ready, call.compression


class Traced(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Gives each call a trace context, as the instrumentation of a caller does."""

    def __init__(self, trace_parent):
        self.trace_parent = trace_parent

    def _go_on(self, proceed, call, request):
        metadata = [*(call.metadata or ()), ("traceparent", self.trace_parent)]
        return proceed(Details(call, metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = _go_on


@pytest.fixture
def connect(monkeypatch):
    """Makes clients whose calls carry a trace context."""
    plain, clients = grpc.insecure_channel, []

    def connected(server, trace_parent=SAMPLED):
        def channel(*arguments, **options):
            return grpc.intercept_channel(plain(*arguments, **options), Traced(trace_parent))

        monkeypatch.setattr(grpc, "insecure_channel", channel)
        clients.append(sg.Client(server.target, timeout=120))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


def counts(server):
    """simgrad_trace_spans_total by result."""
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    page = urllib.request.urlopen(url, timeout=30).read().decode()
    told = re.findall(r'simgrad_trace_spans_total\{result="(\w+)"\} (\d+)', page)
    assert len(told) == 3
    return {result: int(count) for result, count in told}


def end(server):
    """Drains a server; returns its exit code and what it logged."""
    server.process.terminate()
    code = server.process.wait(timeout=60)
    server.log.seek(0)
    return code, [json.loads(line) for line in server.log.read().splitlines()]


def requests_of(lines):
    return [line for line in lines if line["event"] == "request"]


def of_requests(spans):
    return [span for span in spans if span.kind == SERVER]


def below(parent, spans):
    return {span.name: span for span in spans if span.parent_span_id == parent.span_id}


def has_request(collector, method, times=1):
    """The spans of so many requests of this method, once they have come."""
    name = f"simgrad.v1.Simgrad/{method}"
    found = eventually(
        lambda: (spans := [s for s in collector.spans if s.name == name])[times - 1 :] and spans
    )
    assert len(found) == times
    return found


def test_the_stages_of_a_request_are_spans_under_its_caller(start, connect):
    with Collector() as collector:
        server = start(collector.flag, "--replica=ball-0")
        client = connect(server)
        result = client.gradient(BALL, objective="final_height", **FALL)
        client.rollout(BALL, **{**FALL, "steps": 1000, "instances": 64})
        (gradient,) = has_request(collector, "Gradient")
        (rollout,) = has_request(collector, "Rollout")
        spans = collector.spans
        for resource in collector.resources:
            about = attributes_of(resource)
            assert about["service.name"] == "simgrad"
            assert about["service.instance.id"] == "ball-0"
            assert about["service.version"]
        code, lines = end(server)
    assert code == 0
    by_method = {line["method"]: line for line in requests_of(lines)}
    assert result.request_id == by_method["Gradient"]["request_id"]
    for parent in (gradient, rollout):
        line = by_method[parent.name.rpartition("/")[2]]
        assert parent.trace_id.hex() == TRACE and parent.parent_span_id.hex() == SPAN
        assert parent.span_id.hex() == line["request_id"]
        assert parent.kind == SERVER and parent.status.code == UNSET
        assert parent.flags & 0x301 == 0x301  # sampled; the parent is known to be remote
        about = attributes_of(parent)
        assert about == {
            "rpc.system": "grpc",
            "rpc.service": "simgrad.v1.Simgrad",
            "rpc.method": line["method"],
            "rpc.grpc.status_code": 0,
            "simgrad.request_id": line["request_id"],
            "simgrad.caller": line["caller"],
            "simgrad.world": "bouncing_ball",
            "simgrad.instances": line["instances"],
            "simgrad.steps": line["steps"],
        }
        total = (parent.end_time_unix_nano - parent.start_time_unix_nano) / 1e6
        assert total == pytest.approx(line["total_ms"], abs=0.001)
        stages = below(parent, spans)
        logged = {key[:-3]: ms for key, ms in line.items() if key.endswith("_ms")}
        assert logged.keys() - stages.keys() == {"other", "total"}
        for name, span in stages.items():
            assert span.trace_id == parent.trace_id and span.kind == INTERNAL
            own = attributes_of(span)
            assert own.keys() == {"simgrad.stage_seconds"}
            own_ms = own["simgrad.stage_seconds"] * 1e3
            assert own_ms == pytest.approx(logged[name], abs=0.001), name
            begin, finish = span.start_time_unix_nano, span.end_time_unix_nano
            assert parent.start_time_unix_nano <= begin <= finish <= parent.end_time_unix_nano
            # Times are of whole nanoseconds, seconds of a stage are sums.
            assert own_ms <= (finish - begin) / 1e6 + 0.001, name
    assert {"decode", "compile", "start", "forward", "adjoint", "encode", "send"} <= below(
        gradient, spans
    ).keys()
    assert "adjoint" not in below(rollout, spans)
    ids = [span.span_id for span in spans]
    assert len(set(ids)) == len(ids) and all(len(i) == 8 for i in ids)


def test_stages_come_in_their_order(start, connect):
    with Collector() as collector:
        client = connect(start(collector.flag))
        many = {**FALL, "instances": 64, "steps": 500, "chunk_steps": 10}
        client.gradient(BALL, objective="final_height", **many)
        (gradient,) = has_request(collector, "Gradient")
        stages = below(gradient, collector.spans)
    # The worker asks between chunks whether others wait; nobody did.
    assert stages["queue"].end_time_unix_nano <= stages["forward"].start_time_unix_nano
    order = ("decode", "start", "forward", "adjoint")
    begins = [stages[name].start_time_unix_nano for name in order]
    assert begins == sorted(begins)
    # An answer is sent until its end, and its header is encoded before the engine starts.
    assert stages["send"].end_time_unix_nano >= stages["adjoint"].end_time_unix_nano
    assert stages["encode"].start_time_unix_nano <= stages["start"].start_time_unix_nano


def test_unary_calls_and_refused_ones_have_a_span(start):
    with Collector() as collector:
        server = start(collector.flag)
        with grpc.insecure_channel(server.target) as channel:
            for method in ("GetServerInfo", "ListWorlds", "DescribeProgram"):
                call = channel.unary_unary(f"/simgrad.v1.Simgrad/{method}").future(
                    b"", metadata=[("traceparent", SAMPLED)]
                )
                call.exception()
                (span,) = has_request(collector, method)
                code = call.code().value[0]
                assert attributes_of(span)["rpc.grpc.status_code"] == code
                assert span.parent_span_id.hex() == SPAN and span.status.code == UNSET


def test_reversals_of_a_kept_rollout_and_uploads_have_their_spans(start, connect):
    with Collector() as collector:
        server = start(collector.flag)
        client = connect(server)
        client.rollout(BALL, **FALL)  # after which the limits of uploads are known
        heights = {**FALL, "initial": {"y": np.full((4096, 1), 0.5), "v": [0.0]}}
        kept = client.rollout(BALL, keep=sg.Keep(state=["y"]), **heights)
        kept.vjps([sg.Cotangents({"y": np.full((4096, 1), weight)}) for weight in (1.0, 2.0)])
        with sg.Client(server.target, upload=1 << 10) as uploading:
            for _ in range(2):
                uploading.rollout(BALL, **heights)
        (vjp,) = has_request(collector, "Vjp")
        has_request(collector, "Upload")
        stages = below(vjp, collector.spans)
        code, lines = end(server)
    (line,) = [line for line in requests_of(lines) if line["method"] == "Vjp"]
    logged = {key[:-3]: ms for key, ms in line.items() if key.endswith("_ms")}
    assert code == 0 and "adjoint" in stages and "forward" not in stages
    assert stages.keys() == logged.keys() - {"other", "total"}
    for name, span in stages.items():
        own_ms = attributes_of(span)["simgrad.stage_seconds"] * 1e3
        assert own_ms == pytest.approx(logged[name], abs=0.001), name
        assert own_ms <= (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 + 0.001, name


def test_the_status_is_an_error_where_the_server_failed(start, connect):
    """A caller's own mistake is none of the server's, by the conventions for gRPC."""
    with Collector() as collector:
        client = connect(start(collector.flag))
        with pytest.raises(sg.DeadlineExceeded):
            client.rollout(BALL, timeout=0.5, retry=False, **LONG)
        with pytest.raises(sg.InvalidArgument):
            client.gradient(BALL, objective="final_height", **{**FALL, "steps": -1})
        (expired,) = has_request(collector, "Rollout")
        (wrong,) = has_request(collector, "Gradient")
    assert expired.status.code == ERROR and "deadline" in expired.status.message.lower()
    assert attributes_of(expired)["rpc.grpc.status_code"] == 4
    assert wrong.status.code == UNSET and wrong.status.message == ""
    assert attributes_of(wrong)["rpc.grpc.status_code"] == 3


def test_a_request_without_a_sampled_trace_context_has_no_span(start):
    silent = [
        None,
        "",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-02",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        "nonsense",
    ]
    with Collector() as collector:
        server = start(collector.flag)
        with grpc.insecure_channel(server.target) as channel:
            call = channel.unary_unary("/simgrad.v1.Simgrad/ListWorlds")
            for value in silent:
                call(b"", metadata=[] if value is None else [("traceparent", value)])
            channel.unary_unary("/simgrad.v1.Simgrad/GetServerInfo")(
                b"", metadata=[("traceparent", f"cc-{TRACE}-{SPAN}-03-of-a-later-version")]
            )
        has_request(collector, "GetServerInfo")
        code, lines = end(server)
        assert code == 0 and len(requests_of(lines)) == len(silent) + 1
        # All that waited was sent.
        assert [span.name for span in of_requests(collector.spans)] == [
            "simgrad.v1.Simgrad/GetServerInfo"
        ]


def test_a_stranger_has_no_span(start, tmp_path):
    (tmp_path / "tokens").write_text("alpha\n")
    with Collector() as collector:
        server = start(collector.flag, f"--token_file={tmp_path / 'tokens'}")
        with grpc.insecure_channel(server.target) as channel:
            for token in (None, "beta"):
                known = [] if token is None else [("authorization", f"Bearer {token}")]
                call = channel.unary_unary("/simgrad.v1.Simgrad/ListWorlds")
                with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                    call(b"", metadata=[("traceparent", SAMPLED), *known])
            channel.unary_unary("/simgrad.v1.Simgrad/GetServerInfo")(
                b"", metadata=[("traceparent", SAMPLED), ("authorization", "Bearer alpha")]
            )
        has_request(collector, "GetServerInfo")
        code, lines = end(server)
        assert code == 0 and len(requests_of(lines)) == 3
        assert [span.name for span in of_requests(collector.spans)] == [
            "simgrad.v1.Simgrad/GetServerInfo"
        ]


def test_a_drain_sends_what_waits(start, connect):
    with Collector() as collector:
        server = start(collector.flag)
        client = connect(server)
        for _ in range(20):
            client.worlds()
        code, lines = end(server)
        assert code == 0 and len(of_requests(collector.spans)) == len(requests_of(lines)) >= 20


def unavailable(_collector, _request, context):
    context.abort(grpc.StatusCode.UNAVAILABLE, "later")


def broken(_collector, _request, context):
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not like this")


def in_part(collector, request, _context):
    collector.take(request)
    answer = trace_service_pb2.ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    answer.partial_success.error_message = "one too many"
    return answer


@pytest.mark.parametrize(
    ("answer", "result"), [(unavailable, "dropped"), (broken, "refused"), (in_part, "refused")]
)
def test_spans_that_a_collector_does_not_take_are_counted_and_noted_once(
    start, connect, answer, result
):
    begin = time.monotonic()
    with Collector(answer=answer) as collector:
        server = start(collector.flag)
        client = connect(server)
        for _ in range(3):
            before = counts(server)[result]
            assert client.rollout(BALL, **FALL).ok.all()
            eventually(lambda: counts(server)[result] > before)
        code, lines = end(server)
    assert code == 0
    assert all(line["code"] == "OK" for line in requests_of(lines))
    notes = [line["message"] for line in lines if "--otlp_endpoint" in line.get("message", "")]
    assert 1 <= len(notes) <= 1 + (time.monotonic() - begin) / 60  # one a minute
    assert "simgrad_trace_spans_total" in notes[0]
    assert answer is not in_part or "one too many" in notes[0]


def test_each_span_is_counted_once(start, connect):
    with Collector(answer=in_part) as collector:
        server = start(collector.flag)
        client = connect(server)
        for _ in range(5):
            client.rollout(BALL, **FALL)
        has_request(collector, "Rollout", times=5)
        found = eventually(
            lambda: (found := counts(server)) and sum(found.values()) == len(collector.spans) and found
        )
        # The collector refuses one span of each batch.
        assert found["refused"] == collector.calls and found["dropped"] == 0


def test_a_collector_that_was_away_gets_later_spans(start, connect, free_port):
    server = start(f"--otlp_endpoint=localhost:{free_port}")
    client = connect(server)
    assert client.rollout(BALL, **FALL).ok.all()
    eventually(lambda: counts(server)["dropped"] > 0)
    with Collector(free_port) as collector:
        assert client.gradient(BALL, objective="final_height", **FALL).ok.all()
        has_request(collector, "Gradient")
        eventually(lambda: counts(server)["sent"] > 0)


def test_a_call_that_failed_for_a_moment_is_repeated(start, connect):
    def once(collector, request, context):
        if collector.calls == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "later")
        return collector.take(request)

    with Collector(answer=once) as collector:
        server = start(collector.flag)
        connect(server).rollout(BALL, **FALL)
        has_request(collector, "Rollout")
        found = eventually(lambda: (found := counts(server))["sent"] and found)
        assert found["dropped"] == found["refused"] == 0


def test_a_collector_that_hangs_holds_up_neither_requests_nor_the_end(start, connect):
    goes_on = threading.Event()

    def hang(collector, request, _context):
        goes_on.wait()
        return collector.take(request)

    with Collector(answer=hang) as collector:
        try:
            server = start(collector.flag)
            client = connect(server)
            client.rollout(BALL, **FALL)
            eventually(lambda: collector.calls)
            while not counts(server)["dropped"]:
                for _ in range(50):
                    client.rollout(BALL, **FALL)
            code, lines = end(server)
        finally:
            goes_on.set()
    assert code == 0
    assert all(line["code"] == "OK" for line in requests_of(lines))


def test_over_tls_spans_go_to_a_collector_of_the_ca_alone(start, connect, tmp_path):
    ours = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")

    def credentials(authority):
        certificate, key = authority.sign("collector")
        return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])

    for authority, result in ((ours, "sent"), (other, "dropped")):
        with Collector(credentials=credentials(authority)) as collector:
            server = start(collector.flag, f"--otlp_ca={ours.certificate}")
            connect(server).rollout(BALL, **FALL)
            found = eventually(lambda: (found := counts(server)) and any(found.values()) and found)
            assert [name for name, count in found.items() if count] == [result]
            assert bool(collector.spans) == (result == "sent")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--otlp_endpoint=collector"], "HOST:PORT"),
        (["--otlp_endpoint=http://collector:4317"], "without a scheme"),
        (["--otlp_endpoint=collector:4317", "--otlp_ca=/nowhere"], "--otlp_ca=/nowhere"),
        (["--otlp_ca=ca.pem"], "--otlp_endpoint"),
    ],
)
def test_flags_that_cannot_be_used_are_told_before_serving(flags, told):
    done = subprocess.run(
        [str(BINARY), *flags, "--validate_config"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and told in done.stderr
