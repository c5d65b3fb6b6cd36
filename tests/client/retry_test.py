"""A call that fails for a reason that passes is repeated, and no other; waits and their limits."""

import random
import socket

import grpc
import pytest
from fake_server import answer, client_of, fake, refuse, work, world  # noqa: F401

import simgrad as sg

Code = grpc.StatusCode
PASSING = [
    (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", 0.25),
    (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", None),
    (Code.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY", 0.5),
    (Code.UNAVAILABLE, "DRAINING", 1.0),
    (Code.UNAVAILABLE, "", None),
    (Code.CANCELLED, "", None),  # not by us: a server that stops cuts calls off with it
]
LASTING = [
    (Code.INVALID_ARGUMENT, "INVALID_FIELD", None),
    (Code.INVALID_ARGUMENT, "INVALID_FIELD", 1.0),
    (Code.UNAUTHENTICATED, "UNAUTHENTICATED", None),
    (Code.UNIMPLEMENTED, "NOT_SUPPORTED", None),
    (Code.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY", None),
    (Code.RESOURCE_EXHAUSTED, "SLOW_READER", 1.0),
    (Code.RESOURCE_EXHAUSTED, "", None),
    (Code.DEADLINE_EXCEEDED, "DEADLINE", None),
    (Code.FAILED_PRECONDITION, "", None),
    (Code.INTERNAL, "INTERNAL", None),
    (Code.NOT_FOUND, "", None),
]


def first_refused(times, code, reason, retry_after):
    def info(n, context):
        if n <= times:
            refuse(context, code, reason, retry_after=retry_after)

    return info


def a_port_that_nobody_listens_on():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("code, reason, retry_after", PASSING)
def test_a_refusal_that_passes_is_repeated_until_it_has(fake, code, reason, retry_after):
    fake.unary = first_refused(3, code, reason, retry_after)
    with client_of(fake.target) as client:
        assert client.info().version == "1"
        assert (fake.calls, client.retries) == (4, 3)
        waits = [w - (retry_after or 0) for w in client._calls.repeating.clock.waits]
    assert waits == pytest.approx([0.1, 0.2, 0.4])


@pytest.mark.parametrize("code, reason, retry_after", LASTING)
def test_an_error_about_the_request_is_never_repeated(fake, code, reason, retry_after):
    fake.unary = first_refused(1, code, reason, retry_after)
    with client_of(fake.target) as client, pytest.raises(sg.SimgradError) as failed:
        client.info()
    assert (fake.calls, failed.value.code, failed.value.tries) == (1, code.name, 1)


@pytest.mark.parametrize("where", ["client", "call"])
def test_retry_false_turns_it_off(fake, where):
    fake.unary = first_refused(1, Code.UNAVAILABLE, "DRAINING", 0.1)
    off = {"retry": False}
    with client_of(fake.target, **(off if where == "client" else {})) as client:
        with pytest.raises(sg.Unavailable, match="not now"):
            client.info(**(off if where == "call" else {}))
        assert (fake.calls, client.retries) == (1, 0)


def test_every_rpc_is_repeated(fake):
    def refused_once(n, context):
        if n % 2:
            refuse(context, Code.UNAVAILABLE)
        return answer()

    fake.unary = fake.stream = refused_once
    with client_of(fake.target) as client:
        assert client.info().version == "1"
        assert [w.name for w in client.worlds()] == ["still"]
        assert client.program(world()).fingerprint == "f1"
        assert client.rollout(world(), **work()).tries == 2
        assert client.gradient(world(), **work(), cotangents={"state": {"x": [1.0]}}).tries == 2
    assert fake.calls == 10


def test_waits_are_drawn_from_the_whole_interval_up_to_a_bound_that_doubles(fake):
    drawn = []

    def uniform(low, high):
        drawn.append((low, high))
        return random.Random(len(drawn)).uniform(low, high)

    fake.unary = first_refused(8, Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", 0.5)
    with client_of(fake.target, uniform=uniform) as client:
        client.info()
        waits = client._calls.repeating.clock.waits
    assert drawn == [(0.0, high) for high in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0)]
    # What the server asks for is waited in full, and the jitter comes after it.
    assert all(0.5 <= wait <= 0.5 + high for wait, (_, high) in zip(waits, drawn))


def test_the_deadline_bounds_all_tries_together(fake):
    fake.unary = first_refused(99, Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", 1.0)
    with client_of(fake.target) as client:
        with pytest.raises(sg.ResourceExhausted, match="deadline of 5 s") as failed:
            client.info(timeout=5)
        assert client._calls.repeating.clock.time < 5
    assert fake.calls == failed.value.tries == 5  # after 1.1, 2.3 and 3.7 s, and the last at 4.9
    assert "not now" in str(failed.value) and "5 tries" in str(failed.value)


def test_a_hint_beyond_the_deadline_is_not_waited_for(fake):
    fake.unary = first_refused(99, Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", 20.0)
    with client_of(fake.target) as client, pytest.raises(sg.ResourceExhausted):
        client.info(timeout=5)
    assert fake.calls == 1 and client._calls.repeating.clock.waits == []


@pytest.mark.parametrize(
    "terms, timeout, waits, said",
    [
        (sg.Retry(patience=2), 60, [0.1, 0.2, 0.4, 0.8, 0.5], "borne for 2 s"),
        (sg.Retry(), 3, [0.1, 0.2, 0.4, 0.8, 1.4], "deadline of 3 s"),  # 0.1 s is kept for the last try
        (sg.Retry(patience=0), 60, [], "borne for 0 s"),
        (sg.Retry(patience=2, first_wait=10, longest_wait=10), 60, [2], "borne for 2 s"),
    ],
)
def test_a_wait_is_shortened_to_what_patience_and_deadline_leave(fake, terms, timeout, waits, said):
    fake.unary = first_refused(99, Code.UNAVAILABLE, "", None)
    with client_of(fake.target, retry=terms) as client:
        client._calls.repeating.answered = True
        with pytest.raises(sg.Unavailable, match=said):
            client.info(timeout=timeout)
        assert client._calls.repeating.clock.waits == pytest.approx(waits)
    assert fake.calls == len(waits) + 1


def test_a_wait_by_a_clock_that_runs_is_shortened_too(fake):
    """A clock that moves on between two looks at it, as a real one does."""
    fake.unary = first_refused(99, Code.UNAVAILABLE, "", None)
    with client_of(fake.target, retry=sg.Retry(patience=2)) as client:
        repeating = client._calls.repeating
        repeating.answered, clock = True, repeating.clock

        def now():
            clock.time += 0.001
            return clock.time

        clock.now = now
        with pytest.raises(sg.Unavailable, match="borne for 2 s"):
            client.info()
        assert sum(clock.waits) > 1.9


def test_a_call_is_sent_ten_times_at_most(fake):
    fake.unary = first_refused(99, Code.UNAVAILABLE, "", None)
    with client_of(fake.target, retry=sg.Retry(patience=1000, extra=5)) as client:
        with pytest.raises(sg.Unavailable, match="10 tries"):
            client.info()
    assert fake.calls == 10


def test_a_client_without_a_first_answer_gives_up_sooner(fake):
    with client_of(a_port_that_nobody_listens_on()) as client:
        with pytest.raises(sg.Unavailable, match="connection refused; is the server running"):
            client.info()
        assert client._calls.repeating.clock.time == pytest.approx(10)
    with client_of(fake.target) as client:
        client.info()
        fake.stop()
        with pytest.raises(sg.Unavailable):
            client.info()
        assert client._calls.repeating.clock.time == pytest.approx(30)


def test_attempts_to_connect_cost_nothing_of_the_budget():
    with client_of(a_port_that_nobody_listens_on()) as client:
        for _ in range(5):
            with pytest.raises(sg.Unavailable):
                client.info()
        assert client.retries > 20


def test_repeats_are_a_tenth_of_the_calls_and_a_floor(fake):
    """1000 calls of which every second try fails, in no order that repeats."""
    chance = random.Random(1)

    def refused_by_chance(n, context):
        if chance.random() < 0.5:
            refuse(context, Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after=0.01)

    fake.unary = refused_by_chance
    good = 0
    with client_of(fake.target) as client:
        for _ in range(1000):
            try:
                client.info()
                good += 1
            except sg.ResourceExhausted as error:
                assert "retry budget" in str(error)
        seconds = client._calls.repeating.clock.time
    extra = fake.calls - 1000
    assert extra == client.retries
    assert 100 <= extra <= 100 + 10 + seconds / 10
    assert good > 500


def test_a_token_is_asked_for_at_every_try(fake):
    tokens = iter(["old", "new"])
    fake.unary = first_refused(1, Code.UNAVAILABLE, "", None)
    with client_of(fake.target, token=lambda: next(tokens)) as client:
        client.info()
    assert [m["authorization"] for m in fake.metadata] == ["Bearer old", "Bearer new"]


def test_closing_the_client_ends_a_call_that_waits(fake):
    fake.unary = first_refused(99, Code.UNAVAILABLE, "", None)
    client = client_of(fake.target)
    client._calls.repeating.clock.pause = lambda seconds, is_over: client.close()
    with pytest.raises(sg.Cancelled):
        client.info()
    assert fake.calls == 1


@pytest.mark.parametrize("field", ["patience", "connect", "extra", "first_wait", "longest_wait"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_a_policy_that_makes_no_sense_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        sg.Retry(**{field: value})


def test_what_is_no_policy_is_refused():
    with pytest.raises(ValueError, match="tries"):
        sg.Retry(tries=0)
    with pytest.raises(TypeError, match="retry"):
        sg.Client("localhost:1", retry=3)


def test_terms_of_a_client_may_be_set_later(fake):
    fake.unary = first_refused(1, Code.UNAVAILABLE, "", None)
    with client_of(fake.target) as client:
        client.timeout, client.retry = 7.0, None
        with pytest.raises(sg.Unavailable):
            client.info()
        assert client.timeout == 7.0 and client.retries == 0
        with pytest.raises(ValueError, match="timeout 0: a positive, finite number of seconds"):
            client.timeout = 0
    assert fake.calls == 1
