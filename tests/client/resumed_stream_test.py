"""A stream that breaks in its middle goes on with the step where it broke, or fails; it never joins
the runs of two programs."""

import grpc
import numpy as np
import pytest
from fake_server import (  # noqa: F401
    STEPS,
    answer,
    block,
    blocks,
    client_of,
    fake,
    header,
    progress,
    refuse,
    result,
    work,
    world,
)

import simgrad as sg
from simgrad.v1 import diagnostics_pb2, simgrad_pb2

Code = grpc.StatusCode
CUTS = [
    (Code.UNAVAILABLE, "Socket closed"),
    (Code.UNAVAILABLE, "Stream removed (Socket closed)"),
    (Code.UNAVAILABLE, "GOAWAY received"),
    (Code.UNKNOWN, "Stream removed"),
    (Code.INTERNAL, "Received RST_STREAM with error code 2"),
    (Code.CANCELLED, "CANCELLED"),
]


def runs(*scripts, code=Code.UNAVAILABLE, message="Socket closed"):
    """Each run sends its parts; all but the last break then."""

    def stream(n, context):
        yield from scripts[n - 1]
        if n < len(scripts):
            refuse(context, code, message=message)

    return stream


def gradient_of(parts):
    rollout = parts[-1].result
    return [
        *parts[:-1],
        simgrad_pb2.GradientPart(result=simgrad_pb2.GradientResult(rollout=rollout)),
    ]


def column(traces, of):
    return np.concatenate([of(t) for t in traces]).tolist()


def everything(traces):
    """What the blocks tell together, however they are cut."""
    told = {"steps": column(traces, lambda t: np.arange(t.first_step, t.first_step + t.steps))}
    for group in ("sites", "events", "states_range"):
        for name in getattr(traces[0], group):
            for field, array in vars(getattr(traces[0], group)[name]).items():
                if isinstance(array, np.ndarray):
                    told[field, name] = column(
                        traces, lambda t: getattr(getattr(t, group)[name], field)
                    )
    told["values"] = [
        values.tolist() for t in traces for step in t.sites["projection"].values for values in step
    ]
    told["underflows"] = sum(t.ranges["state"].underflows for t in traces if t.ranges)
    for t in traces:
        assert {of.begins for of in (*t.sites.values(), *t.events.values())} == {t.first_step}
    absorption = [t.absorption["x"] for t in traces if t.absorption]
    told["absorption"] = [sum(a.additions for a in absorption), sum(a.absorbed for a in absorption)]
    return told


def uncut(fake):
    with client_of(fake.target) as client:
        return everything(list(client.rollout_stream(world(), **work())))


@pytest.mark.parametrize("code, message", CUTS)
def test_a_stream_that_is_cut_is_run_again_however_the_cut_is_told(fake, code, message):
    fake.stream = runs(answer()[:4], answer(), code=code, message=message)
    with client_of(fake.target) as client:
        r = client.rollout(world(), **work())
    assert (r.tries, fake.calls, r.value) == (2, 2, 1.0)


@pytest.mark.parametrize("parts", range(len(answer())))
@pytest.mark.parametrize("ends", [(2, 4, 6, 8), (8,), (3, 8), (1, 5, 7, 8), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_no_step_comes_twice_and_none_is_missing(fake, parts, ends):
    """The first run breaks after any number of its parts; the second cuts its blocks elsewhere."""
    expected = uncut(fake)
    fake.calls = 0
    fake.stream = runs(answer()[:parts], answer(ends))
    with client_of(fake.target) as client:
        stream = client.rollout_stream(world(), **work())
        assert everything(list(stream)) == expected
    assert (stream.result.tries, fake.calls) == (2, 2)
    assert stream.result.sites["projection"].runs.tolist() == list(range(STEPS))
    assert stream.result.ranges["state"].underflows == 2 * STEPS
    assert stream.result.absorption["x"].additions == 3 * STEPS


def test_a_stream_may_break_again_and_again(fake):
    expected = uncut(fake)
    fake.calls = 0
    fake.stream = runs(
        answer((3, 8))[:3], answer((2, 5, 8))[:5], [], answer((1, 8))[:3], answer((4, 7, 8))
    )
    with client_of(fake.target) as client:
        stream = client.rollout_stream(world(), **work())
        assert everything(list(stream)) == expected
    assert stream.result.tries == 5


def test_counts_that_come_late_are_given_once(fake):
    """Counts come with some blocks only, and which may differ from run to run."""

    def late(ends):
        parts = answer(ends)
        total = 0
        for part in parts:
            if part.WhichOneof("part") == "diagnostics":
                total += part.diagnostics.ranges[0].underflows
                last = part.diagnostics
                del last.ranges[:]
        last.ranges.add(role="state", underflows=total)
        return parts

    for first, second in ((answer()[:5], late((4, 8))), (late((2, 8))[:3], answer())):
        fake.calls, fake.stream = 0, runs(first, second)
        with client_of(fake.target) as client:
            told = everything(list(client.rollout_stream(world(), **work())))
        assert told["underflows"] == 2 * STEPS and told["steps"] == list(range(STEPS))


def backward(first, end):
    t = np.arange(first, end)
    return simgrad_pb2.GradientPart(
        backward=diagnostics_pb2.BackwardBlock(
            first_step=first,
            steps=end - first,
            largest=1.0 * t,
            nonfinite=t,
            exponents=np.repeat(t, 34).astype("<u8").tobytes(),
        )
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_gradient_goes_on_in_its_reverse_pass(fake, order):
    def script(cuts):
        reverse = [backward(a, b) for a, b in zip((0, *cuts), cuts)][::order]
        parts = gradient_of(answer())
        return [*parts[:-1], *reverse, parts[-1]]

    first = script((3, 8))
    fake.stream = runs(first[: first.index(backward(*((0, 3), (3, 8))[::order][0])) + 1], script((2, 5, 8)))
    with client_of(fake.target) as client:
        stream = client.gradient_stream(world(), **work(), cotangents={"state": {"x": [1.0]}})
        traces = list(stream)
    for phase in ("forward", "adjoint"):
        steps = [
            s for t in traces if t.phase == phase for s in range(t.first_step, t.first_step + t.steps)
        ]
        assert sorted(steps) == list(range(STEPS))
    for trace in traces:
        if trace.phase == "adjoint":
            assert trace.largest.tolist() == list(
                range(trace.first_step, trace.first_step + trace.steps)
            )
            assert trace.exponents.shape == (trace.steps, 34)
    assert stream.result.backward.largest.tolist() == list(range(STEPS))


CHANGES = [{"revision": "r2"}, {"fingerprint": "f2"}, {"version": "0.2.0"}]


@pytest.mark.parametrize("change", CHANGES)
def test_another_server_does_not_go_on_with_what_was_given(fake, change):
    fake.stream = runs(answer()[:4], answer(**change))
    given = []
    with client_of(fake.target) as client:
        with pytest.raises(sg.FailedPrecondition, match="another one") as failed:
            for trace in client.rollout_stream(world(), **work()):
                given.append(trace.first_step)
    assert given == [0, 2]
    assert failed.value.reason == "SERVER_CHANGED" and failed.value.tries == 2
    (new,) = change.values()
    assert f"is now {new}" in str(failed.value)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("parts", [0, 1])
def test_another_server_starts_anew_where_nothing_was_given(fake, change, parts):
    fake.stream = runs(answer()[:parts], answer(value=2.0, **change)[:4], answer(value=2.0, **change))
    with client_of(fake.target) as client:
        stream = client.rollout_stream(world(), **work())
        assert [t.first_step for t in stream] == [0, 2, 4, 6]
    assert stream.result.value == 2.0 and stream.result.tries == 3


@pytest.mark.parametrize("change", CHANGES)
def test_a_result_is_of_one_run_alone(fake, change):
    """Who reads no blocks has been given nothing: the other server's answer is as good."""
    fake.stream = runs(answer(value=1.0)[:-1], answer(value=2.0, **change))
    with client_of(fake.target) as client:
        r = client.rollout(world(), **work())
    assert r.value == 2.0 and r.sites["projection"].runs.tolist() == list(range(STEPS))
    assert r.program.fingerprint == change.get("fingerprint", "f1")


def test_progress_never_goes_back(fake):
    fake.stream = runs(answer()[:6], answer((1, 3, 5, 7, 8)))
    told = []
    with client_of(fake.target) as client:
        client.rollout(world(), **work(), progress=lambda *of: told.append(of))
    done = [d for _, d, _ in told]
    assert done == sorted(done) and told[-1] == ("forward", STEPS, STEPS)
    assert 2 in done and 7 in done and 1 not in done


def test_progress_of_a_gradient_never_goes_back_to_its_forward_pass(fake):
    parts = gradient_of(answer())
    reverse = [*parts[:-1], progress(4, "adjoint")]
    fake.stream = runs(reverse, [*parts[:-1], progress(3, "adjoint"), progress(6, "adjoint"), parts[-1]])
    told = []
    with client_of(fake.target) as client:
        client.gradient(
            world(),
            **work(),
            cotangents={"state": {"x": [1.0]}},
            progress=lambda phase, done, total: told.append((phase, done)),
        )
    assert [d for p, d in told if p == "adjoint"] == [4, 6, 8]
    assert [p for p, _ in told] == sorted((p for p, _ in told), key=["forward", "adjoint"].index)


def test_an_answer_without_steps_is_shown_once(fake):
    empty = [header(), simgrad_pb2.RolloutPart(diagnostics=diagnostics_pb2.DiagnosticsBlock())]
    fake.stream = runs(empty, [*empty, result()])
    with client_of(fake.target) as client:
        stream = client.rollout_stream(world(), steps=0, initial={"x": [0.5]})
        assert [t.steps for t in stream] == [0]
    assert stream.result.tries == 2


def test_a_stream_that_its_caller_left_is_not_asked_for_again(fake):
    fake.stream = runs(answer()[:4], answer())
    with client_of(fake.target) as client:
        for _ in client.rollout_stream(world(), **work()):
            break
        stream = client.rollout_stream(world(), **work())
        with pytest.raises(sg.Cancelled):
            for _ in stream:
                stream.cancel()
        client.info()  # calls are answered in their order
    assert fake.calls == 3 and client.retries == 0


def test_a_stream_that_is_left_while_it_waits_ends(fake):
    fake.stream = runs(answer()[:4], answer())
    with client_of(fake.target) as client:
        stream = client.rollout_stream(world(), **work())
        client._calls.repeating.clock.pause = lambda seconds, is_over: stream.cancel()
        with pytest.raises(sg.Cancelled, match="by this client"):
            stream.result
    assert fake.calls == 1


def test_a_caller_that_was_cut_off_for_reading_slowly_is_told_so(fake):
    fake.stream = runs(answer()[:4], answer(), code=Code.CANCELLED, message="CANCELLED")
    with client_of(fake.target) as client:
        with pytest.raises(sg.Cancelled, match="did not read it for 60 s"):
            for _ in client.rollout_stream(world(), **work()):
                client._calls.repeating.clock.time += 60
    assert fake.calls == 1


def test_parts_of_an_answer_prove_that_the_server_lives(fake):
    """Failures count in a row: an hour of cuts is borne where each run came further than a header."""
    fake.stream = runs(*[answer()[:4]] * 4, answer())
    with client_of(fake.target, timeout=1e6) as client:
        stream = client.rollout_stream(world(), **work())
        clock = client._calls.repeating.clock
        waited = clock.pause
        clock.pause = lambda seconds, is_over: waited(900.0, is_over)
        assert stream.result.tries == 5


def test_blocks_of_the_test_tell_their_steps():
    assert [p.diagnostics.first_step for p in blocks((3, 8))[::2]] == [0, 3]
    assert block(3, 8).diagnostics.steps == 5
