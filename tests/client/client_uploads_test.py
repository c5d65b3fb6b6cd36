"""What a client uploads, names and sends whole, at a server that is told how to answer."""

import copy
import functools
import gc
import hashlib
import pickle
import threading
import weakref

import grpc
import numpy as np
import pytest
from fake_server import FakeClock, FakeServer, answer, client_of, refuse
from google.protobuf import text_format

import simgrad as sg
from simgrad import named_programs, uploads
from simgrad.named_programs import LEAST
from simgrad.program import ProgramBuilder
from simgrad.uploads import least_of
from simgrad.v1 import program_pb2, simgrad_pb2

Code = grpc.StatusCode
WORLD = sg.World("still")
BIG = np.arange(200_000, dtype=np.float64)[:, None]  # 1.6 MB


class Keeper(FakeServer):
    """Keeps what is uploaded, and what it was asked."""

    def __init__(self, max_upload_bytes=64 << 20):
        self.limits = simgrad_pb2.Limits(
            max_request_bytes=64 << 20, max_upload_bytes=max_upload_bytes
        )
        self.kept = {}
        self.uploads = 0
        self.asked = []
        self.wrong = lambda request, context: None
        self.upload = lambda context: None
        super().__init__()

    def GetServerInfo(self, request, context):
        return simgrad_pb2.ServerInfo(version="1", limits=self.limits)

    def Upload(self, requests, context):
        self.uploads += 1
        self.upload(context)
        pieces = list(requests)
        content = b"".join(piece.data for piece in pieces)
        assert len(content) == pieces[0].size and all(p.data for p in pieces)
        assert hashlib.sha256(content).digest() == pieces[0].sha256
        self.kept[pieces[0].sha256] = content
        return simgrad_pb2.UploadResponse(ref=pieces[0].sha256, seconds=600)

    def Rollout(self, request, context):
        self.asked.append(request)
        self.wrong(request, context)
        for ref in (request.spec.initial[0].tensor.ref, request.spec.world.program_ref):
            if ref and ref not in self.kept:
                refuse(context, Code.FAILED_PRECONDITION, "TENSOR_GONE")
        for part in answer():
            yield simgrad_pb2.RolloutResponse(parts=[part])

    @property
    def named(self):
        """Of each request, whether it named its initial state."""
        return [bool(r.spec.initial[0].tensor.ref) for r in self.asked]


@pytest.fixture
def keeper():
    server = Keeper()
    yield server
    server.stop()


def rollout(client, y=BIG):
    return client.rollout(WORLD, steps=8, initial={"y": y})


def test_what_is_sent_again_and_again_travels_once(keeper):
    with client_of(keeper.target) as client:
        for _ in range(3):
            rollout(client)
        assert client.retries == 0
    assert (keeper.uploads, keeper.named) == (1, [True] * 3)
    assert list(keeper.kept.values()) == [BIG.tobytes()]
    sent = keeper.asked[0].spec.initial[0]
    assert list(sent.tensor.shape) == [200_000, 1] and sent.name == "y"


def test_an_input_that_is_another_one_each_time_is_sent_whole_until_it_comes_again(keeper):
    with client_of(keeper.target) as client:
        for shift in range(4):
            rollout(client, BIG + shift)
        assert (keeper.uploads, keeper.named) == (1, [True, False, False, False])
        for _ in range(3):
            rollout(client, BIG + 2)
    assert keeper.named[4:] == [False, True, True]
    assert keeper.uploads == 2
    whole = keeper.asked[1].spec.initial[0].tensor.inline
    assert whole == (BIG + 1).tobytes()


def test_content_that_differs_in_its_middle_alone_is_not_mixed_up(keeper):
    other = BIG.copy()
    other[100_000] = -1
    with client_of(keeper.target) as client:
        for y in (BIG, other, BIG, other, other):
            rollout(client, y)
    sent = [
        keeper.kept.get(r.spec.initial[0].tensor.ref) or r.spec.initial[0].tensor.inline
        for r in keeper.asked
    ]
    assert sent == [y.tobytes() for y in (BIG, other, BIG, other, other)]
    assert keeper.named == [True, False, True, True, True]


def test_what_a_server_lost_is_given_it_again(keeper):
    with client_of(keeper.target) as client:
        rollout(client)
        keeper.kept.clear()
        result = rollout(client)
        assert client.retries == 0
    assert result.tries == 2
    assert (keeper.uploads, keeper.named) == (2, [True, True, True])


def test_a_server_that_loses_everything_at_once_is_sent_the_whole(keeper):
    keeper.wrong = lambda request, context: keeper.kept.clear()
    with client_of(keeper.target) as client:
        rollout(client)
    assert keeper.named == [True, True, False]


def test_an_error_of_the_callers_own_forgets_no_content(keeper):
    with client_of(keeper.target) as client:
        rollout(client)
        keeper.wrong = lambda request, context: refuse(
            context, Code.INVALID_ARGUMENT, "INVALID_FIELD"
        )
        with pytest.raises(sg.InvalidArgument):
            rollout(client)
        keeper.wrong = lambda request, context: None
        rollout(client)
    assert (keeper.uploads, keeper.named) == (1, [True, True, False, True])


def test_the_time_for_all_tries_is_the_calls(keeper):
    left = []

    with client_of(keeper.target, timeout=100) as client:

        def lose(request, context):
            left.append(context.time_remaining())
            client._calls.repeating.clock.time += 30
            keeper.kept.clear()

        keeper.wrong = lose
        rollout(client)
    assert left == pytest.approx([100, 70, 40], abs=9)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_server_that_takes_no_such_content_is_sent_the_whole(limit):
    server = Keeper(max_upload_bytes=limit)
    with client_of(server.target) as client:
        for _ in range(2):
            rollout(client)
    server.stop()
    assert (server.uploads, server.named) == (0, [False, False])


@pytest.mark.parametrize(
    "options", [{"upload": False}, {"upload": 2_000_000}, {"load_balancing": "round_robin"}]
)
def test_nothing_is_uploaded_unless_it_is_wanted(keeper, options):
    with client_of(keeper.target, **options) as client:
        for _ in range(2):
            rollout(client)
    assert (keeper.uploads, keeper.named) == (0, [False, False])


def test_less_may_be_uploaded(keeper):
    with client_of(keeper.target, upload=100) as client:
        for _ in range(2):
            rollout(client, BIG[:20])
        rollout(client, BIG[:10])
    assert (keeper.uploads, keeper.named) == (1, [True, True, False])


@pytest.mark.parametrize("code", [Code.UNIMPLEMENTED, Code.INVALID_ARGUMENT])
def test_what_a_server_would_not_keep_is_sent_whole_from_then_on(keeper, code):
    keeper.upload = lambda context: refuse(context, code, "NOT_SUPPORTED")
    with client_of(keeper.target) as client:
        for _ in range(3):
            rollout(client)
    assert (keeper.uploads, keeper.named) == (1, [False] * 3)


def test_what_a_server_has_no_memory_for_is_uploaded_some_time_later(keeper):
    def full(context):
        refuse(context, Code.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY")

    keeper.upload = full
    with client_of(keeper.target) as client:
        clock = client._service.uploads._clock = client._calls.repeating.clock

        def uploads_after(seconds):
            before = keeper.uploads
            clock.time += seconds
            rollout(client)
            return keeper.uploads - before

        first, longest = uploads._FIRST_PAUSE, uploads._LONGEST_PAUSE
        assert [uploads_after(t) for t in (0, 0, 0.9 * first)] == [1, 0, 0]
        # Each refusal doubles the pause, up to the longest.
        assert [uploads_after(t) for t in (0.1 * first, first, first)] == [1, 0, 1]
        assert [uploads_after(longest) for _ in range(9)] == [1] * 9
        assert keeper.named == [False] * len(keeper.named)
        keeper.upload = lambda context: None
        assert [uploads_after(t) for t in (0.9 * longest, 0.1 * longest, 0)] == [0, 1, 0]
    assert keeper.named[-3:] == [False, True, True]


# ---- When, and until when ----


@pytest.fixture
def slow():
    """A keeper that finishes no upload before `go` is set; `began`: it has one."""
    server = Keeper()
    server.began, server.go = threading.Event(), threading.Event()
    server.gone = []

    def upload(context):
        context.add_callback(lambda: server.gone.append(True))
        server.began.set()
        while context.is_active() and not server.go.wait(0.02):
            pass

    server.upload = upload
    yield server
    server.go.set()
    server.stop()


def stream_of(client):
    return client.rollout_stream(WORLD, steps=8, initial={"y": BIG})


def test_a_stream_uploads_when_it_is_read(slow):
    with client_of(slow.target) as client:
        stream = stream_of(client)  # returns, though no upload has ended
        assert slow.uploads == 0
        slow.go.set()
        assert stream.result.value == 1.0
        assert (slow.uploads, slow.named) == (1, [True])
        again = stream_of(client)
        assert again._rpc is not None  # what the server has already is named at once
        assert again.result.value == 1.0


@pytest.mark.parametrize("method", ["rollout_stream", "gradient_stream"])
def test_a_stream_that_uploads_when_it_is_read_tells_of_its_token_at_once(keeper, method):
    token = "good"
    with client_of(keeper.target, token=lambda: token) as client:
        client.rollout(WORLD, steps=8, initial={"other": BIG + 1})  # asks for the server's limits
        before = keeper.uploads
        token = b"good"
        with pytest.raises(TypeError, match="token, as its function gives it: a str, not bytes"):
            getattr(client, method)(WORLD, steps=8, initial={"y": BIG})
        assert keeper.uploads == before
        token = "good"
        stream = stream_of(client)
        assert stream._rpc is None and stream.result.value == 1.0  # it does wait for its upload


def test_cancelling_a_stream_ends_its_upload(slow):
    with client_of(slow.target) as client:
        stream = stream_of(client)
        reader = threading.Thread(target=lambda: slow.began.wait(60) and stream.cancel())
        reader.start()
        with pytest.raises(sg.Cancelled):
            stream.result
        reader.join()
    slow.stop()  # its only thread is free, so the upload has ended
    assert (slow.asked, len(slow.gone)) == ([], 1)


def test_a_stream_that_was_cancelled_before_it_was_read_sends_nothing(slow):
    with client_of(slow.target) as client:
        with stream_of(client) as stream:
            pass
        with pytest.raises(sg.Cancelled):
            stream.result
    assert (slow.uploads, slow.asked) == (0, [])


def test_what_is_wrong_with_a_request_is_said_of_the_whole(keeper):
    def wrong(request, context):
        refuse(context, Code.INVALID_ARGUMENT, "INVALID_FIELD", "no such input")

    keeper.wrong = wrong
    with client_of(keeper.target) as client:
        with pytest.raises(sg.InvalidArgument, match="no such input"):
            rollout(client)
    assert keeper.named == [True, False]


def world_of(operations, name="many"):
    """A world of so many operations, each some 60 bytes."""
    b = ProgramBuilder(name)
    x = b.state("x")
    y = x
    for k in range(operations):
        y = y * (1.0 - k * 1e-6)
    b.next(x=y)
    return sg.World(program=b.build())


MANY, FEW = 800, 50  # of 32 KB and more, and of less than 6 KiB
assert world_of(FEW).program.ByteSize() < LEAST < 2 * LEAST < world_of(MANY).program.ByteSize()


def roll(client, world):
    return client.rollout(world, steps=8, initial={"x": 0.5})


def how_sent(keeper):
    """Of each request, "ref", or the number of operations that it has."""
    return [r.spec.world.WhichOneof("source") == "program_ref" and "ref" or len(r.spec.world.program.step.ops) for r in keeper.asked]


def whole(world):
    return len(world.program.step.ops)


def test_a_program_that_comes_again_travels_twice_and_a_small_one_with_each_request(keeper):
    many, few = world_of(MANY), world_of(FEW)
    with client_of(keeper.target) as client:
        for _ in range(4):
            roll(client, many)
            roll(client, few)
        assert client.retries == 0
    assert how_sent(keeper)[::2] == [whole(many), "ref", "ref", "ref"]
    assert how_sent(keeper)[1::2] == [whole(few)] * 4
    assert keeper.uploads == 1
    [content] = keeper.kept.values()
    assert program_pb2.Program.FromString(content) == keeper.asked[0].spec.world.program == many.program


def test_equal_programs_are_one(keeper):
    with client_of(keeper.target) as client:
        for _ in range(3):
            roll(client, world_of(MANY))
    assert how_sent(keeper)[1:] == ["ref", "ref"] and keeper.uploads == 1


def test_a_program_travels_with_each_request_where_nothing_is_uploaded(keeper):
    many = world_of(MANY)
    for upload in (False, 1 << 20):
        with client_of(keeper.target, upload=upload) as client:
            for _ in range(2):
                roll(client, many)
    keeper.limits.max_upload_bytes = 0  # an older server
    with client_of(keeper.target) as client:
        for _ in range(2):
            roll(client, many)
    assert how_sent(keeper) == [whole(many)] * 6 and keeper.uploads == 0


def test_a_program_that_a_server_lost_is_given_it_again_or_sent_whole(keeper):
    many = world_of(MANY)
    with client_of(keeper.target) as client:
        for _ in range(2):
            roll(client, many)
        keeper.kept.clear()
        assert roll(client, many).tries == 2
        keeper.wrong = lambda request, context: keeper.kept.clear()
        keeper.asked.clear()
        roll(client, many)
    assert how_sent(keeper) == ["ref", whole(many)]
    assert keeper.uploads == 2


def test_content_that_is_lost_again_and_again_is_sent_whole_for_a_while(keeper):
    many = world_of(MANY)
    keeper.wrong = lambda request, context: keeper.kept.clear()
    with client_of(keeper.target) as client:
        clock = client._service.uploads._clock = FakeClock()
        tries = [roll(client, many).tries for _ in range(6)]
        assert tries == [1, 3, 1, 1, 1, 1] and keeper.uploads == 2
        clock.time += 6.0
        assert [roll(client, many).tries for _ in range(2)] == [2, 1] and keeper.uploads == 3
        clock.time += 6.0  # the pause is twice as long each time
        assert roll(client, many).tries == 1 and keeper.uploads == 3
        clock.time += 6.0
        assert roll(client, many).tries == 2 and keeper.uploads == 4
        keeper.wrong = lambda request, context: None
        clock.time += 700.0
        keeper.asked.clear()
        for _ in range(3):
            assert roll(client, many).tries == 1
    assert how_sent(keeper) == ["ref"] * 3


class Asked(Keeper):
    """Counts how often it was asked for its limits."""

    infos = 0

    def GetServerInfo(self, request, context):
        self.infos += 1
        return super().GetServerInfo(request, context)


def test_what_a_server_takes_is_asked_when_a_program_comes_again():
    keeper = Asked()
    many = world_of(MANY // 2)
    assert LEAST < many.program.ByteSize() < 1 << 16
    with client_of(keeper.target) as client:
        roll(client, many)
        assert keeper.infos == 0
        stream = client.rollout_stream(many, steps=8, initial={"x": 0.5})
        assert keeper.infos == 0 and len(keeper.asked) == 1
        assert stream.result.steps is not None and keeper.infos == 1
        roll(client, many)
    assert keeper.infos == 1 and how_sent(keeper)[1:] == ["ref", "ref"]
    keeper.stop()


def test_a_kept_run_and_a_copy_have_their_program(keeper):
    many = world_of(MANY)
    twin = copy.deepcopy(many)
    with client_of(keeper.target) as client:
        stream = client.rollout_stream(many, steps=8, initial={"x": 0.5})
        del many
        gc.collect()
        assert stream.result.steps is not None
        roll(client, twin)
        kept = client.rollout(twin, steps=8, initial={"x": 0.5}, keep=True).kept
        [program] = named_programs.held(simgrad_pb2.RolloutRequest(spec=kept.spec))
        name, found = program.sha256, weakref.ref(program)
        del program, twin, stream
        gc.collect()
        assert found() is not None and named_programs._named[name] is found()
        del kept
    gc.collect()
    assert found() is None


def test_a_program_and_a_tensor_of_one_request_are_named_together(keeper):
    b = ProgramBuilder("both")
    y = b.state("y", (200_000, 1))
    z = y
    for k in range(MANY):
        z = z * (1.0 - k * 1e-6)
    b.next(y=z)
    world = sg.World(program=b.build())
    with client_of(keeper.target) as client:
        for _ in range(3):
            client.rollout(world, steps=8, initial={"y": BIG[None]})
    assert keeper.named == [True] * 3
    assert how_sent(keeper) == [whole(world), "ref", "ref"]


def test_an_error_about_a_named_program_has_its_line(keeper):
    many = world_of(MANY)
    field = "spec.world.program.step.ops[5].operands[0]"
    with client_of(keeper.target) as client:
        roll(client, many)
        keeper.wrong = lambda request, context: refuse(
            context, Code.INVALID_ARGUMENT, "INVALID_FIELD", "wrong", field=field
        )
        with pytest.raises(sg.InvalidArgument, match=r"client_uploads_test.py:\d+: .*: wrong"):
            roll(client, many)
    assert how_sent(keeper)[1:] == ["ref", whole(many)]  # what is wrong is said of the whole


def test_a_request_that_is_too_large_with_its_program_is_refused_before_it_is_sent(keeper):
    many = world_of(MANY)
    keeper.limits.max_request_bytes = 20_000
    with client_of(keeper.target) as client:
        with pytest.raises(sg.ResourceExhausted, match=r"spec.world.program: .* has \d{5} bytes") as refused:
            roll(client, many)
    size = many.program.ByteSize()
    assert refused.value.violations[0].description.startswith(f"{size} bytes of a request of ")
    assert keeper.asked == []


def test_a_world_does_not_change(keeper):
    many = world_of(MANY)
    with client_of(keeper.target) as client:
        roll(client, many)
        del many.program.step.ops[:]
        roll(client, many)
        roll(client, pickle.loads(pickle.dumps(many)))
    [content] = keeper.kept.values()
    assert program_pb2.Program.FromString(content) == many.program
    assert how_sent(keeper) == [whole(many), "ref", "ref"]


def test_a_world_that_gets_another_cost_is_another_program(keeper):
    @sg.world
    def many(x: sg.State):
        return {"x": functools.reduce(lambda y, k: y * (1.0 - k * 1e-6), range(MANY), x)}

    with client_of(keeper.target) as client:
        for name in ("first", "second"):
            cost = eval("lambda x: x * x")
            cost.__name__ = name
            many.objective(cost)
            for _ in range(2):
                roll(client, many)
            assert [o.name for o in many.program.objectives][-1] == name
    assert how_sent(keeper)[::2] == [whole(many), whole(many)] and how_sent(keeper)[1::2] == ["ref", "ref"]
    programs = [program_pb2.Program.FromString(content) for content in keeper.kept.values()]
    assert [[o.name for o in p.objectives] for p in programs] == [["first"], ["first", "second"]]


def test_a_name_that_the_server_alone_knows_is_sent_as_it_stands(keeper, tmp_path):
    many = world_of(MANY)
    with client_of(keeper.target) as client:
        for _ in range(2):
            roll(client, many)
    [digest] = keeper.kept
    message = simgrad_pb2.RolloutRequest()
    message.spec.world.program_ref = bytes(32)
    assert not named_programs.has_any(message) and named_programs.size_of(message) == message.ByteSize()
    named_programs.put_whole(message, [digest])
    assert message.spec.world.program_ref == bytes(32)
    path = tmp_path / "world.txt"
    path.write_text(text_format.MessageToString(message.spec))
    with pytest.raises(ValueError, match="names a program that was uploaded, and does not hold it"):
        sg.World.load(path)


def test_programs_are_forgotten_with_their_worlds():
    def count():
        return sum(found.program.name == "forgotten" for found in named_programs._named.values())

    world = world_of(MANY, "forgotten")
    assert world.to_request().program_ref and count() == 1
    assert world_of(MANY, "forgotten").to_request() == world.to_request() and count() == 1
    del world
    gc.collect()
    assert count() == 0


def test_the_argument_is_checked():
    assert least_of("auto") == least_of(True) == (1 << 20, LEAST)
    assert least_of(False) is least_of(None) is None and least_of(5) == (5, 5)
    for number in (np.int64(7), np.uint8(7)):
        assert least_of(number) == (7, 7) and {type(bytes_) for bytes_ in least_of(number)} == {int}
    for wrong in ("always", 0, -1, 1.5, np.int64(0), np.array([1, 2])):
        with pytest.raises(ValueError, match=r"upload .*: .* whole number of bytes, at least 1"):
            least_of(wrong)
    with pytest.raises(ValueError, match="upload"):
        sg.Client("localhost:1", upload="always")


def test_what_is_remembered_is_bounded():
    some = uploads._Recent()
    for i in range(3 * uploads._MOST_KNOWN):
        assert some.add(i)
        assert 0 in some  # asked for, it stays
    assert len(some._items) == uploads._MOST_KNOWN
    assert 1 not in some
