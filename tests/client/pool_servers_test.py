"""Which server gets what, who is asked again, and which servers do not go together."""

import concurrent.futures
import hashlib
import re
import socket
import threading
import time

import grpc
import numpy as np
import pytest
from fake_server import FakeClock, FakeServer, answer, refuse, work, world

import simgrad as sg
from simgrad.clock import Clock
from simgrad.failure import Reached
from simgrad.pool import servers as servers_of_pool
from simgrad.pool.balance import Balance, shares
from simgrad.pool.servers import Address, Server, Servers
from simgrad.v1 import simgrad_pb2


class Server2(FakeServer):
    """A FakeServer of a revision of its own, with a CPU of some threads."""

    def __init__(self, revision="r1", threads=1):
        super().__init__()
        self.info = simgrad_pb2.ServerInfo(version="0.1.0", revision=revision, default_device="cpu")
        self.info.devices.add(kind="cpu", threads=threads)
        self.infos = 0

    def GetServerInfo(self, request, context):
        self.infos += 1
        self.metadata.append(dict(context.invocation_metadata()))
        return self.info


@pytest.fixture
def fakes():
    running = []

    def make(*args):
        running.append(Server2(*args))
        return running[-1]

    yield make
    for server in running:
        server.stop()


def rows():
    """A request of 512 instances: 256 for each of two servers."""
    return dict(work(), initial={"x": np.full((512, 1), 0.5)})


def parts_of(instances, revision="r1", value=1.0):
    """The answer of a server to a shard."""
    header, *rest = answer((8,), revision=revision)
    header.header.instances = instances
    rest[-1].result.ClearField("value")
    rest[-1].result.values = b""
    rest[-1].result.health.ok = bytes([1] * instances)
    for part in rest:
        part.diagnostics.ClearField("instances") if part.HasField("diagnostics") else None
    return [header, *rest]


@pytest.mark.parametrize("given", [None, 5, [None], ["a:1", ""], ""])
def test_a_function_that_gives_no_names_of_servers_is_told(given):
    with sg.Pool(lambda: given) as pool, pytest.raises(TypeError, match="targets: the function gives .*, and not one name, or several"):
        pool.info()


@pytest.mark.parametrize(("most", "kind"), [("3", TypeError), (1.5, TypeError), (0, ValueError), (-1, ValueError)])
def test_a_shard_has_a_whole_number_of_instances(most, kind):
    with pytest.raises(kind, match="^most_instances"):
        sg.Pool("localhost:1", most_instances=most)
    with sg.Pool("localhost:1", most_instances=np.int64(3)):
        pass


def test_servers_of_two_revisions_are_refused_before_any_work(fakes):
    one, two = fakes("r1"), fakes("r2")
    with sg.Pool([one.target, two.target]) as pool:
        for call in (lambda: pool.rollout(world(), **rows()), pool.info, pool.infos):
            with pytest.raises(sg.FailedPrecondition, match="revision r1 at .*, r2 at ") as failed:
                call()
            assert failed.value.reason == "MIXED_SERVERS"
    assert one.calls == two.calls == 0


def test_a_server_that_changed_since_it_was_asked_is_refused_by_its_answer(fakes):
    one, two = fakes(), fakes()
    one.stream = lambda n, context: parts_of(256)
    two.stream = lambda n, context: parts_of(256, revision="r2")
    with sg.Pool([one.target, two.target]) as pool:
        with pytest.raises(sg.FailedPrecondition, match="MIXED|differ"):
            pool.rollout(world(), **rows())
        asked = two.infos
        two.info.revision = "r2"
        with pytest.raises(sg.FailedPrecondition, match="revision r1 at .*, r2 at "):
            pool.rollout(world(), **rows())
        assert two.infos == asked + 1  # it was asked anew


def test_a_pool_works_again_once_all_its_servers_are_of_one_revision(fakes):
    one, two = fakes("r1"), fakes("r2")
    one.stream = two.stream = lambda n, context: parts_of(256, revision="r2")
    with sg.Pool([one.target, two.target]) as pool:
        with pytest.raises(sg.FailedPrecondition, match="revision r1 at"):
            pool.rollout(world(), **rows())
        one.info.revision = "r2"
        assert pool.rollout(world(), **rows()).ok.all()


def test_a_small_batch_notices_a_server_that_changed(fakes):
    """Which one answers is by turns, so bits would change from call to call."""
    one, two = fakes(), fakes()
    with sg.Pool([one.target, two.target]) as pool:
        pool.infos()
        one.stream = two.stream = lambda n, context: parts_of(1, revision="r2")
        one.info.revision = "r2"
        with pytest.raises(sg.FailedPrecondition, match="MIXED|differ"):
            pool.rollout(world(), **work())
        two.info.revision = "r2"
        assert pool.rollout(world(), **work()).ok.shape == (1,)


@pytest.mark.parametrize(
    "code, reason", [(grpc.StatusCode.UNAVAILABLE, "DRAINING"), (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")]
)
def test_a_shard_that_one_server_refuses_is_done_by_the_other(fakes, code, reason):
    one, two = fakes(), fakes()
    one.stream = lambda n, context: refuse(context, code, reason)
    two.stream = lambda n, context: parts_of(256)
    with sg.Pool([one.target, two.target]) as pool:
        r = pool.rollout(world(), **rows())
        assert (r.tries, pool.retries, one.calls, two.calls) == (2, 1, 1, 2)
        assert r.ok.shape == (512,) and r.ok.all()


def test_a_shard_is_not_repeated_where_repeats_are_off(fakes):
    one, two = fakes(), fakes()
    one.stream = lambda n, context: refuse(context, grpc.StatusCode.UNAVAILABLE, "DRAINING")
    two.stream = lambda n, context: parts_of(256)
    with sg.Pool([one.target, two.target], retry=False) as pool:
        with pytest.raises(sg.Unavailable, match="not now"):
            pool.rollout(world(), **rows())
    assert one.calls == 1


def test_an_answer_without_a_result_is_an_error(fakes):
    one, two = fakes(), fakes()
    one.stream = lambda n, context: parts_of(256)[:-1]
    two.stream = lambda n, context: parts_of(256)
    with sg.Pool([one.target, two.target]) as pool:
        with pytest.raises(sg.Internal, match=f"{one.target} ended the stream without a result"):
            pool.rollout(world(), **rows())


def test_each_shard_is_asked_for_with_the_token(fakes):
    one, two = fakes(), fakes()
    for server in (one, two):
        server.stream = lambda n, context: parts_of(256)
    with sg.Pool([one.target, two.target], token="secret") as pool:
        pool.rollout(world(), **rows())
    for server in (one, two):
        assert [m["authorization"] for m in server.metadata] == ["Bearer secret"] * 2


def test_a_shard_that_is_too_large_for_its_server_is_cut_further(fakes):
    """512 instances of 8 bytes do not fit 3000 bytes twice, but 256 do."""
    one = fakes()
    one.info.limits.max_request_bytes = 3000
    one.stream = lambda n, context: parts_of(256)
    with sg.Pool(one.target) as pool:
        pool.rollout(world(), **rows())
        assert one.calls == 2


def test_a_block_that_is_too_large_for_every_server_is_named(fakes):
    one = fakes()
    one.info.limits.max_request_bytes = 1000
    with sg.Pool(one.target) as pool:
        words = (
            r"^spec.initial\[0\].tensor: the request for ids (0 to 255|256 to 511), which a pool does not cut, has 2\d\d\d "
            r"bytes, of which this field takes 2048; the server takes 1000 \(--max_request_bytes\): start servers with "
            r"--max_request_bytes=65536, or send at most 1\d\d instances at a time \(first_instance\), a narrower dtype"
        )
        with pytest.raises(sg.ResourceExhausted, match=words) as failed:
            pool.rollout(world(), **rows())
        at_most = int(re.search(r"at most (\d+)", str(failed.value))[1])
        assert one.calls == 0
        one.stream = lambda n, context: parts_of(at_most)
        pool.rollout(world(), **dict(rows(), initial={"x": np.full((at_most, 1), 0.5)}))
        with pytest.raises(sg.ResourceExhausted):
            pool.rollout(world(), **dict(rows(), initial={"x": np.full((at_most + 20, 1), 0.5)}))
    assert one.calls == 1


def test_a_block_goes_to_a_server_that_takes_it(fakes):
    small, large = fakes(), fakes()
    small.info.limits.max_request_bytes = 1000
    large.info.limits.max_request_bytes = 3000
    large.stream = lambda n, context: parts_of(256)
    with sg.Pool([small.target, large.target]) as pool:
        pool.rollout(world(), **rows())
    assert (small.calls, large.calls) == (0, 2)


def test_a_request_of_which_all_servers_take_no_block_is_told_with_the_largest_limit(fakes):
    small, large = fakes(), fakes()
    small.info.limits.max_request_bytes = 1000
    large.info.limits.max_request_bytes = 1500
    with sg.Pool([small.target, large.target]) as pool:
        with pytest.raises(sg.ResourceExhausted, match="the server takes 1500"):
            pool.rollout(world(), **rows())
    assert small.calls == large.calls == 0


# ---- Names, and servers that say nothing ----


def eventually(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.01)


class Silent(Server2):
    """Says what it is once it is told to."""

    def __init__(self):
        super().__init__()
        self.speaks = threading.Event()
        self.context = None

    def GetServerInfo(self, request, context):
        self.infos, self.context = self.infos + 1, context
        while context.is_active() and not self.speaks.wait(0.01):
            pass
        return self.info


def test_a_server_that_says_nothing_is_waited_for_once(fakes, monkeypatch):
    monkeypatch.setattr(servers_of_pool, "_DOWN_SECONDS", 0.0)
    monkeypatch.setattr(servers_of_pool, "_INFO_SECONDS", 0.2)
    one, silent = fakes(), Silent()
    try:
        with sg.Pool([one.target, silent.target], timeout=60) as pool:
            assert pool.infos().keys() == {one.target}
            eventually(lambda: not silent.context.is_active())  # its time was over
            monkeypatch.setattr(servers_of_pool, "_INFO_SECONDS", 10.0)
            for _ in range(2):
                assert pool.infos().keys() == {one.target}
            eventually(lambda: silent.infos == 2)
            assert silent.context.is_active()  # nobody waited for it, and nobody asks twice
            silent.speaks.set()
            eventually(lambda: pool.infos().keys() == {one.target, silent.target})
            assert silent.infos == 2
    finally:
        silent.stop()


def test_a_server_that_says_nothing_is_waited_for_where_there_is_no_other(monkeypatch):
    monkeypatch.setattr(servers_of_pool, "_DOWN_SECONDS", 0.0)
    monkeypatch.setattr(servers_of_pool, "_INFO_SECONDS", 0.2)
    silent = Silent()
    try:
        with sg.Pool(silent.target, timeout=60, retry=False) as pool:
            with pytest.raises(sg.DeadlineExceeded):
                pool.infos()
            monkeypatch.setattr(servers_of_pool, "_INFO_SECONDS", 10.0)
            silent.speaks.set()
            assert pool.infos().keys() == {silent.target}
    finally:
        silent.stop()


class Channel:
    """Of a server that nobody calls."""

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True

    def unary_unary(self, *args, **options):
        return None

    unary_stream = stream_unary = unary_unary


@pytest.fixture
def named(monkeypatch):
    """(addresses of a name, servers of that name, their clock, (target, host, channel) of what was connected)."""
    addresses, clock, connected = ["10.0.0.1", "::1"], FakeClock(), []

    def look_up(host, port, type):
        assert (host, port) == ("sim.lab", 7)
        if not addresses:
            raise OSError("no such name")
        family = lambda ip: socket.AF_INET6 if ":" in ip else socket.AF_INET
        return [(family(ip), type, 6, "", (ip, port)) for ip in addresses]

    def connect(target, host):
        connected.append((target, host, Channel()))
        return connected[-1][2]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return addresses, Servers("dns:///sim.lab:7", connect, clock), clock, connected


def targets(servers):
    return [server.target for server in servers.known()]


def test_a_name_is_looked_up_every_five_seconds_and_its_addresses_come_and_go(named):
    addresses, servers, clock, connected = named
    assert targets(servers) == ["ipv4:10.0.0.1:7", "ipv6:[::1]:7"]
    assert {host for _, host, _ in connected} == {"sim.lab"}  # the name in their certificates
    addresses[:] = ["10.0.0.2", "::1"]
    clock.time = 4.9
    assert targets(servers) == ["ipv4:10.0.0.1:7", "ipv6:[::1]:7"]
    clock.time = 5.0
    assert targets(servers) == ["ipv6:[::1]:7", "ipv4:10.0.0.2:7"]
    assert [channel.closed for *_, channel in connected] == [True, False, False]


def test_an_address_that_is_gone_is_kept_while_it_works(named):
    addresses, servers, clock, connected = named
    busy = servers.known()[0]
    assert servers.claim(lambda known: known[0]) is busy
    addresses.remove("10.0.0.1")
    clock.time = 5.0
    assert busy in servers.known() and not connected[0][2].closed
    servers.ended(busy)
    clock.time = 10.0
    assert busy not in servers.known() and connected[0][2].closed


def test_an_address_that_is_gone_gets_no_new_work_while_it_ends_its_calls(named):
    addresses, servers, clock, connected = named
    offered = lambda **keepers: [s.target for s in claimed(servers, **keepers)]
    gone, stays = servers.known()
    assert offered() == [gone.target, stays.target] == ["ipv4:10.0.0.1:7", "ipv6:[::1]:7"]
    for _ in range(3):
        servers.claim(lambda known: stays)  # so it has more to do
    servers.claim(lambda known: gone)
    addresses.remove("10.0.0.1")
    clock.time = 5.0
    assert gone in servers.known() and offered() == [stays.target]
    assert servers.for_whole([]) is stays
    # What it keeps is asked of it.
    assert set(offered(keepers=[gone.target])) == {stays.target, gone.target}
    assert offered(keepers=["ipv4:10.0.0.9:7"]) == [stays.target]
    # It is named again.
    addresses.append("10.0.0.1")
    clock.time = 10.0
    assert set(offered()) == {stays.target, gone.target} and not any(channel.closed for *_, channel in connected)


def claimed(servers, **keepers):
    """Those that a call may choose among; it chooses none."""
    found = []
    servers.claim(lambda known: found.extend(known), **keepers)
    return found


def test_where_all_are_gone_a_new_call_finds_no_server(monkeypatch):
    listed, clock = ["a:1"], FakeClock()
    servers = Servers(lambda: list(listed), lambda target, host: Channel(), clock)
    busy = servers.claim(lambda known: known[0])
    listed.clear()
    clock.time = 5.0
    with pytest.raises(servers_of_pool.NoServer):
        servers.for_whole([])
    assert servers.known() == [busy] == claimed(servers, keepers=["a:1"])
    servers.ended(busy)


@pytest.mark.parametrize("instances", [1, 512])  # a batch that goes to one server, and one that is cut
def test_new_calls_go_to_the_servers_that_are_named(fakes, monkeypatch, instances):
    """One ends a call, and is of an older revision, as where a fleet is updated; no other joins it."""
    monkeypatch.setattr(servers_of_pool, "_FRESH_SECONDS", 0.0)
    one, two = fakes("r0"), fakes()
    may_end = threading.Event()

    def slow(n, context):
        eventually(may_end.is_set)
        return parts_of(1, revision="r0")

    one.stream = slow
    two.stream = lambda n, context: parts_of(instances)
    listed = [one.target]
    with sg.Pool(lambda: list(listed), timeout=60) as pool:
        pool.infos()
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            try:
                answer = threads.submit(lambda: pool.rollout(world(), **work()))
                eventually(lambda: one.calls == 1)
                listed[:] = [two.target]
                run = lambda: pool.rollout(world(), **dict(work(), initial={"x": np.zeros((instances, 1))}))
                assert pool.infos().keys() == {two.target}
                asked = one.infos
                # The other one has more to do.
                busy = [pool._service.servers.claim(lambda known: known[0]) for _ in range(3)]
                assert run().ok.shape == (instances,)
                assert (one.calls, one.infos, two.calls) == (1, asked, 1)
                for server in busy:
                    pool._service.servers.ended(server)
            finally:
                may_end.set()
            assert answer.result().ok.all() and answer.result().tries == 1


@pytest.mark.parametrize("revision, reverses", [("r1", True), ("r0", False)])
def test_a_server_that_is_named_no_more_reverses_what_it_keeps_for_servers_of_its_revision(fakes, revision, reverses):
    gone, stays = fakes(revision), fakes("r1")
    listed, clock = [gone.target], FakeClock()
    servers = Servers(lambda: list(listed), grpc.insecure_channel, clock)
    try:
        assert [s.target for s in servers.ready(5.0, ())] == [gone.target]
        busy = servers.claim(lambda known: known[0])
        listed[:] = [stays.target]
        clock.time = 5.0
        expected = {stays.target} | ({gone.target} if reverses else set())
        for _ in range(2):  # the second time they are known
            assert {s.target for s in servers.ready(5.0, (), [gone.target])} == expected
            assert {s.target for s in claimed(servers, keepers=[gone.target])} == expected
        # It is named again, and the other one is not.
        listed[:] = [gone.target]
        clock.time = 10.0
        assert [s.target for s in servers.ready(5.0, ())] == [s.target for s in claimed(servers)] == [gone.target]
        servers.ended(busy)
    finally:
        servers.close()


def test_an_address_that_is_gone_is_not_asked_what_it_is(named):
    addresses, servers, clock, connected = named
    gone = servers.known()[0]
    addresses.remove("10.0.0.1")
    clock.time = 5.0
    assert gone not in servers.known() and connected[0][2].closed
    assert "10.0.0.1:7 left this pool" in servers._ask_one(gone, 1.0, []).details()


class Uploaded(Server2):
    """Takes content once it is told to."""

    def __init__(self):
        super().__init__()
        self.info.limits.max_request_bytes = self.info.limits.max_upload_bytes = 1 << 20
        self.began, self.may_end = threading.Event(), threading.Event()

    def Upload(self, requests, context):
        self.began.set()
        eventually(self.may_end.is_set)
        content = b"".join(piece.data for piece in requests)
        return simgrad_pb2.UploadResponse(ref=hashlib.sha256(content).digest(), seconds=600)


@pytest.mark.parametrize("instances", [1, 512])  # a batch that goes to one server, and one that is cut
def test_a_server_that_leaves_while_content_is_uploaded_to_it_ends_its_calls(fakes, monkeypatch, instances):
    monkeypatch.setattr(servers_of_pool, "_FRESH_SECONDS", 0.0)
    one, two = Uploaded(), fakes()
    one.stream = two.stream = lambda n, context: parts_of(min(instances, 256))
    listed = [one.target, two.target]
    with sg.Pool(lambda: list(listed), upload=1, timeout=60) as pool:
        pool.infos()
        run = lambda: pool.rollout(world(), **dict(work(), initial={"x": np.zeros((instances, 1))}))
        idle = lambda: {s.target for s in pool._service.servers.known() if not s.running}
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            try:
                answer = threads.submit(run)
                eventually(one.began.is_set)
                # The other part of a batch that is cut has ended.
                eventually(lambda: two.calls == (instances > 1) and idle() == {two.target})
                listed.remove(one.target)
                for _ in range(3):
                    assert pool.rollout(world(), **work()).ok.all()  # at the other one, which has less to do
            finally:
                one.may_end.set()
            assert answer.result().ok.shape == (instances,) and answer.result().tries == 1
        eventually(lambda: pool.infos().keys() == {two.target})
    one.stop()


def test_a_name_is_looked_up_at_once_after_a_server_was_lost(named):
    addresses, servers, _, _ = named
    lost = servers.known()[0]
    addresses.append("10.0.0.2")
    servers.failed(lost, sg.Unavailable("failed to connect to all addresses"), Reached(), [])
    assert "ipv4:10.0.0.2:7" in targets(servers)


def test_while_names_cannot_be_looked_up_what_was_known_stays(named):
    addresses, servers, clock, _ = named
    before = targets(servers)
    addresses.clear()
    clock.time = 5.0
    assert targets(servers) == before


def test_a_name_server_of_ones_own_is_refused():
    with pytest.raises(ValueError, match="would be one server to a pool; dns:///host:port is all addresses"):
        sg.Pool("dns://10.0.0.53/sim.lab:7")


# ---- Servers that freeze ----


def hangs_until(over):
    """The stream of a server that sends nothing until `over(context)`, and answers nobody else meanwhile."""

    def stream(n, context):
        while not over(context):
            time.sleep(0.01)
        return parts_of(256)

    return stream


def lost(pool):
    return {server.target for server in pool._service.servers.known() if server.info is None}


def test_a_server_that_froze_between_two_calls_costs_one_of_them(fakes):
    one, two = fakes(), fakes()
    one.stream = two.stream = lambda n, context: parts_of(256)
    thawed = threading.Event()
    with sg.Pool([one.target, two.target], most_instances=256, timeout=60) as pool:
        pool.rollout(world(), **rows())
        two.stream = hangs_until(lambda context: thawed.is_set())
        try:
            with pytest.raises(sg.DeadlineExceeded, match=f"before the answer began .at {two.target}"):
                pool.rollout(world(), **rows(), timeout=1)
            asked = one.calls
            assert pool.rollout(world(), **rows()).ok.all() and one.calls == asked + 2
            assert pool.rollout(world(), **work()).tries == 1  # a batch that is not cut
        finally:
            thawed.set()
        eventually(lambda: pool.infos().keys() == {one.target, two.target})


def test_a_server_that_is_only_slow_comes_back_by_itself(fakes, monkeypatch):
    monkeypatch.setattr(servers_of_pool, "_DOWN_SECONDS", 1000.0)
    one, two = fakes(), fakes()
    one.stream = lambda n, context: parts_of(256)
    two.stream = hangs_until(lambda context: not context.is_active())
    with sg.Pool([one.target, two.target]) as pool:
        pool.infos()
        asked = two.infos
        with pytest.raises(sg.DeadlineExceeded):
            pool.rollout(world(), **rows(), timeout=1)
        eventually(lambda: two.infos == asked + 1 and not lost(pool))


def test_all_servers_that_froze_are_noticed_by_one_call(fakes):
    one, two, three = fakes(), fakes(), fakes()
    one.stream = lambda n, context: parts_of(256)
    thawed = threading.Event()
    two.stream = three.stream = hangs_until(lambda context: thawed.is_set())
    with sg.Pool([one.target, two.target, three.target]) as pool:
        try:
            with pytest.raises(sg.DeadlineExceeded):
                pool.rollout(world(), **dict(work(), initial={"x": np.zeros((768, 1))}), timeout=1)
            eventually(lambda: lost(pool) == {two.target, three.target})
        finally:
            thawed.set()


def test_a_call_that_is_not_cut_notices_a_frozen_server(fakes):
    one, two = fakes(), fakes()
    one.stream = two.stream = lambda n, context: parts_of(1)
    thawed = threading.Event()
    with sg.Pool([one.target, two.target], timeout=60) as pool:
        pool.infos()
        two.stream = hangs_until(lambda context: thawed.is_set())
        try:
            with pytest.raises(sg.DeadlineExceeded, match=f"at {two.target}"):
                for _ in range(2):
                    pool.rollout(world(), **work(), timeout=1)
            for _ in range(3):
                assert pool.rollout(world(), **work()).ok.shape == (1,)
        finally:
            thawed.set()


# ---- Limits, errors and targets ----


@pytest.mark.parametrize("targets", [5, None])
def test_targets_are_names(targets):
    with pytest.raises(TypeError, match=f"targets: a name of a server, several, or a function that gives them, not {targets}"):
        sg.Pool(targets)


@pytest.mark.parametrize("limit", ["max_instances", "max_request_bytes"])
@pytest.mark.parametrize("largest", [100, 100_000])  # less than the request has, and more
def test_a_request_that_is_not_cut_goes_where_limits_allow_the_most(fakes, limit, largest):
    one, two = fakes(), fakes()
    setattr(one.info.limits, limit, 50)
    setattr(two.info.limits, limit, largest)
    two.stream = lambda n, context: refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "at two")
    with sg.Pool([one.target, two.target]) as pool:
        for _ in range(3):
            with pytest.raises((sg.InvalidArgument, sg.ResourceExhausted), match=f"at two|takes {largest}"):
                pool.rollout(world(), **rows(), weights=np.ones(511))
    assert one.calls == 0


def test_an_error_tells_its_server_and_all_tries_of_the_call(fakes):
    one = fakes()
    one.stream = lambda n, context: refuse(context, grpc.StatusCode.UNAVAILABLE, "DRAINING")
    with sg.Pool(one.target, most_instances=256, retry=sg.Retry(tries=3, first_wait=0.001)) as pool:
        with pytest.raises(sg.Unavailable) as failed:
            pool.rollout(world(), **rows())
        assert str(failed.value).startswith(f"not now ({failed.value.tries} tries; at {one.target}; ")
        assert failed.value.tries >= 3


def test_an_error_of_a_shard_names_one_server(fakes):
    one, two = fakes(), fakes()
    one.stream = lambda n, context: parts_of(256)
    two.stream = lambda n, context: context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    with sg.Pool([one.target, two.target], retry=False) as pool:
        with pytest.raises(sg.Unavailable, match=f"^the connection to {two.target} broke"):
            pool.rollout(world(), **rows())


def test_a_function_may_give_one_target(fakes):
    one = fakes()
    with sg.Pool(lambda: one.target) as pool:
        assert pool.infos().keys() == {one.target}


# ---- Shares ----


def server(threads=1, kind="cpu"):
    made = Server(Address("localhost:1", ""), grpc.insecure_channel("localhost:1"), Clock())
    made.info = simgrad_pb2.ServerInfo(default_device=kind)
    made.info.devices.add(kind="cpu", threads=threads)
    if kind == "cuda":
        made.info.devices.add(kind="cuda")
    return made


def test_shares_are_those_of_threads_until_answers_tell_the_speed():
    servers = [server(2), server(6)]
    assert shares(servers, b"work") == [2, 6]
    servers[0].measured(b"work", 4000.0, 2.0)
    assert shares(servers, b"work") == [2000.0, 6000.0]  # the other one by its threads
    servers[1].measured(b"work", 1000.0, 1.0)
    assert shares(servers, b"work") == [2000.0, 1000.0]
    servers[1].measured(b"work", 3000.0, 1.0)
    assert shares(servers, b"work") == [2000.0, 2000.0]
    assert shares(servers, b"other work") == [2, 6]


def test_a_gpu_gets_more_than_a_cpu_before_either_is_measured():
    cpu, gpu = shares([server(16), server(kind="cuda")], b"work")
    assert gpu > cpu


def test_an_answer_that_took_no_time_tells_no_speed():
    one = server()
    one.measured(b"work", 100.0, 0.0)
    one.measured(b"work", 0.0, 1.0)
    assert one.rate(b"work") is None


def named_server(target, speed):
    made = Server(Address(target, ""), grpc.insecure_channel(target), Clock())
    made.info = simgrad_pb2.ServerInfo()
    made.measured(b"work", speed, 1.0)
    return made


def dealt(balance, servers, kind=b"work", instances=1000):
    return [(share.server.target, share.part) for share in balance.of(servers, kind, instances)]


def test_the_cut_of_the_same_work_stays_until_another_is_faster_by_a_fifth():
    balance = Balance()
    a, b = named_server("localhost:1", 100.0), named_server("localhost:2", 100.0)
    first = dealt(balance, [a, b])
    assert first == [("localhost:1", 100.0), ("localhost:2", 100.0)]
    b.measured(b"work", 160.0, 1.0)  # 130 in the mean: even parts take 1.15 times as long as the best
    assert dealt(balance, [a, b]) == dealt(balance, [b, a]) == first
    assert dealt(balance, [a, b], instances=999) == [("localhost:1", 100.0), ("localhost:2", 130.0)]
    b.measured(b"work", 170.0, 1.0)  # 150: 1.25 times
    assert dealt(balance, [b, a]) == [("localhost:1", 100.0), ("localhost:2", 150.0)]
    assert dealt(balance, [a]) == [("localhost:1", 100.0)]


class Timed(Server2):
    """Answers shards of any size, with its speed in instance-steps per second; notes their sizes."""

    def __init__(self, speed):
        super().__init__()
        self.speed, self.sizes = speed, []

    def Rollout(self, request, context):
        self.sizes.append(request.spec.instances)
        for part in parts_of(request.spec.instances):
            if part.HasField("result"):
                part.result.phase_seconds["forward"] = request.spec.instances * 8 / self.speed
            yield simgrad_pb2.RolloutResponse(parts=[part])


def test_constant_arrays_of_instances_are_cut_at_the_same_places_in_each_call():
    """The second server seems faster by 15 percent, which would move the cut by a block of ids."""
    one, two = Timed(1000.0), Timed(1150.0)
    try:
        with sg.Pool([one.target, two.target]) as pool:
            call = lambda: pool.rollout(world(), **dict(work(), initial={"x": np.zeros((8192, 1))}))
            for _ in range(3):
                call()
            assert one.sizes == two.sizes == [4096] * 3
            two.speed = 4000.0
            eventually(lambda: call().ok.all() and one.sizes[-1] < 3000)
    finally:
        one.stop()
        two.stop()
