"""A server in the process of the test that answers and fails as it is told, and clients of it whose
waits take no time."""

import concurrent.futures

import grpc
import numpy as np
import pytest
from google.protobuf import any_pb2, duration_pb2

import simgrad as sg
from simgrad.program import ProgramBuilder
from simgrad.repeating import Repeating
from simgrad.retry import Retry
from simgrad.v1 import diagnostics_pb2, error_details_pb2, simgrad_pb2, simgrad_pb2_grpc

STEPS = 8
INSTANCES = 2


class FakeClock:
    """Time that passes in waits alone."""

    def __init__(self):
        self.time = 0.0
        self.waits = []

    def now(self):
        return self.time

    def pause(self, seconds, is_over):
        self.waits.append(seconds)
        self.time += seconds

    def wake(self):
        pass


def client_of(target, *, uniform=lambda low, high: high, **options):
    """A client whose waits take no time; by default each is as long as it can be."""
    client = sg.Client(target, **options)
    policy = client.retry or Retry()
    client._calls.repeating = Repeating(target, client._calls.error_of, policy.extra, FakeClock(), uniform)
    return client


def refuse(context, code, reason="", message="not now", retry_after=None, field=""):
    """Ends a call with a status as the server writes them."""
    status = error_details_pb2.ErrorStatus(code=code.value[0], message=message)
    details = []
    if reason:
        details.append(("ErrorInfo", error_details_pb2.ErrorInfo(reason=reason, domain="simgrad")))
    if retry_after is not None:
        delay = duration_pb2.Duration(
            seconds=int(retry_after), nanos=round(1e9 * (retry_after % 1))
        )
        details.append(("RetryInfo", error_details_pb2.RetryInfo(retry_delay=delay)))
    if field:
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=field, description=message)
        details.append(("BadRequest", bad))
    for kind, detail in details:
        url = f"type.googleapis.com/google.rpc.{kind}"
        status.details.append(any_pb2.Any(type_url=url, value=detail.SerializeToString()))
    if details:
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)


class FakeServer(simgrad_pb2_grpc.SimgradServicer):
    """Counts its calls and gives call n (from 1) to `unary` or `stream`: functions of (n, context)
    that refuse, return (unary: what it returns is no matter), or yield parts."""

    def __init__(self):
        self.calls = 0
        self.unary = lambda n, context: None
        self.stream = lambda n, context: answer()
        self.metadata = []
        # One thread: calls are answered, and counted, one after the other.
        self._grpc = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        simgrad_pb2_grpc.add_SimgradServicer_to_server(self, self._grpc)
        self.target = f"localhost:{self._grpc.add_insecure_port('localhost:0')}"
        self._grpc.start()

    def stop(self):
        self._grpc.stop(None).wait()

    def GetServerInfo(self, request, context):
        self.unary(self._count(context), context)
        return simgrad_pb2.ServerInfo(version="1")

    def ListWorlds(self, request, context):
        self.unary(self._count(context), context)
        return simgrad_pb2.ListWorldsResponse(worlds=[simgrad_pb2.WorldSchema(name="still")])

    def DescribeProgram(self, request, context):
        self.unary(self._count(context), context)
        return simgrad_pb2.DescribeProgramResponse(
            program=simgrad_pb2.ProgramInfo(fingerprint="f1")
        )

    def Rollout(self, request, context):
        for part in self.stream(self._count(context), context):
            yield simgrad_pb2.RolloutResponse(parts=[part])

    def Gradient(self, request, context):
        for part in self.stream(self._count(context), context):
            data = part.SerializeToString()
            yield simgrad_pb2.GradientResponse(parts=[simgrad_pb2.GradientPart.FromString(data)])

    def _count(self, context):
        self.calls += 1
        self.metadata.append(dict(context.invocation_metadata()))
        return self.calls


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.stop()


# ---- An answer ----


def header(revision="r1", fingerprint="f1", version="0.1.0"):
    return simgrad_pb2.RolloutPart(
        header=simgrad_pb2.StreamHeader(
            program=simgrad_pb2.ProgramInfo(fingerprint=fingerprint),
            server_version=version,
            revision=revision,
            instances=INSTANCES,
            steps=STEPS,
        )
    )


def progress(done, phase="forward"):
    return simgrad_pb2.RolloutPart(
        progress=simgrad_pb2.Progress(phase=phase, steps_done=done, steps_total=STEPS)
    )


def block(first, end):
    """Steps [first, end): every number in a column tells its step; two underflows a step."""
    t = np.arange(first, end)
    columns = diagnostics_pb2.TerminationColumns(
        site="projection",
        runs=t,
        iterations_mean=t + 0.5,
        iterations_min=t,
        iterations_max=t + 1,
        reasons=np.repeat(t, 4),
        tested_min=0.0 * t,
        tested_max=1.0 * t,
        margin=-1.0 * t,
        margin_instance=t,
        margin_ulps=-2.0 * t,
        margin_ulps_instance=t,
        iterations=np.repeat(t, 16).astype("<u4").tobytes(),
        histogram=np.repeat(t, 64).astype("<u4").tobytes(),
        nan_margins=t,
        checks=t,
        near_stopped=t,
        near_continued=t,
    )
    counts = np.tile(t[:, None] % 3, (1, INSTANCES))
    values = [10.0 * s + j for _ in range(INSTANCES) for s in t for j in range(s % 3)]
    instances = diagnostics_pb2.InstanceColumns(
        site="projection",
        instances=INSTANCES,
        iterations=np.repeat(t, INSTANCES).astype("<u4").tobytes(),
        reasons=np.zeros(counts.shape, "u1").tobytes(),
        value_counts=counts.astype("<u4").tobytes(),
        values=np.array(values, "<f8").tobytes(),
    )
    event = diagnostics_pb2.EventColumns(
        site="contact",
        kind="event",
        **{name: t for name in ("checks", "count", "changes", "margin_instance")},
        margin=1.0 * t,
        margin_ulps=1.0 * t,
        margin_ulps_instance=t,
        nan_margins=t,
        histogram=np.repeat(t[t % 2 == 0], 64).astype("<u4").tobytes(),
    )
    sampled = t[t % 2 == 0]
    state = diagnostics_pb2.StateColumns(
        state="x",
        min=1.0 * sampled,
        max=2.0 * sampled,
        smallest=1.0 * sampled,
        **{name: sampled for name in ("subnormals", "zeros", "nans", "infinities")},
    )
    message = diagnostics_pb2.DiagnosticsBlock(
        first_step=first,
        steps=end - first,
        terminations=[columns],
        events=[event],
        sampled_steps=sampled,
        states=[state],
        instances=[instances],
    )
    message.ranges.add(role="state", underflows=2 * (end - first), overflows=0)
    steps = end - first
    message.absorption.add(
        state="x", role="dynamics", label="step.py:7", additions=3 * steps, absorbed=steps
    )
    return simgrad_pb2.RolloutPart(diagnostics=message)


def blocks(ends):
    """Blocks that end at these steps, each followed by its progress."""
    first, parts = 0, []
    for end in ends:
        parts += [block(first, end), progress(end)]
        first = end
    return parts


def result(value=1.0):
    return simgrad_pb2.RolloutPart(
        result=simgrad_pb2.RolloutResult(
            value=value,
            values=np.full(INSTANCES, value).tobytes(),
            health=simgrad_pb2.InstanceHealth(ok=bytes([1] * INSTANCES)),
        )
    )


def answer(ends=(2, 4, 6, 8), value=1.0, **identity):
    return [header(**identity), *blocks(ends), result(value)]


# ---- A request ----


def world():
    b = ProgramBuilder("still")
    b.next(x=b.state("x", (1,)))
    return sg.World(program=b.build())


def work():
    return dict(steps=STEPS, initial={"x": [0.5]})
