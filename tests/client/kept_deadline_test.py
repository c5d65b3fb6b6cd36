"""The timeout of a reversal is one deadline of all the calls that it makes."""

import grpc
import numpy as np
import pytest
from fake_server import FakeClock, FakeServer, answer, client_of, refuse, work, world

import simgrad as sg
from simgrad.v1 import simgrad_pb2

ONES = np.ones((2, 1))
OF_X, OF_ITS_TRAJECTORY = sg.Cotangents({"x": ONES}), sg.Cotangents({}, {"x": np.ones((2, 9, 1))})


class Keeper(FakeServer):
    """Keeps rollouts, if it is told to; each reversal takes 30 s of the clock, and notes the seconds it was given."""

    def __init__(self):
        super().__init__()
        self.handle, self.left, self.clock = "kept", [], None
        self.info = simgrad_pb2.ServerInfo(version="0.1.0", revision="r1")
        self.info.limits.max_kept_bytes = 1 << 20

    def GetServerInfo(self, request, context):
        return self.info

    def Rollout(self, request, context):
        for part in answer():
            if part.HasField("result"):
                part.result.kept.handle = self.handle
            yield simgrad_pb2.RolloutResponse(parts=[part])

    def Gradient(self, request, context):
        self._take(context)
        yield from super().Gradient(request, context)

    def Vjp(self, request, context):
        self._take(context)
        if not self.handle:
            refuse(context, grpc.StatusCode.NOT_FOUND, "TAPE_GONE")
        for _ in request.cotangents:
            yield from super().Gradient(request, context)

    def _take(self, context):
        self.left.append(context.time_remaining())
        self.clock.time += 30


@pytest.fixture
def keeper():
    server = Keeper()
    yield server
    server.stop()


def kept(client, keeper):
    """A rollout at a client whose time passes in reversals alone."""
    keeper.clock = client._calls.repeating.clock = FakeClock()
    return client.rollout(world(), keep=True, **work())


def test_calls_for_cotangents_of_several_names_share_the_time(keeper):
    with client_of(keeper.target) as client:
        assert len(kept(client, keeper).vjps([OF_X, OF_ITS_TRAJECTORY, OF_X], timeout=100)) == 3
    assert keeper.left == pytest.approx([100, 70], abs=9)


@pytest.mark.parametrize("handle", ["", "kept"])  # never kept, and lost
def test_replays_share_the_time(keeper, handle):
    keeper.handle = handle
    with client_of(keeper.target) as client:
        r = kept(client, keeper)
        keeper.handle = ""
        assert all(g.replayed for g in r.vjps([OF_X, OF_X], timeout=100))
    assert keeper.left == pytest.approx([100, 70, 40][: 3 if handle else 2], abs=9)


def test_a_pool_gives_each_gradient_what_the_others_left(keeper):
    with sg.Pool(keeper.target) as pool:
        kept(pool, keeper).vjps([OF_X] * 3, timeout=100)
    assert keeper.left == pytest.approx([100, 70, 40], abs=9)


@pytest.mark.parametrize("is_pool", [False, True])
def test_calls_that_left_no_time_end_as_one_that_ran_out_of_it(keeper, is_pool):
    with sg.Pool(keeper.target) if is_pool else client_of(keeper.target) as client:
        r = kept(client, keeper)
        if not is_pool:
            r.kept.handle = ""
        with pytest.raises(sg.DeadlineExceeded, match="^deadline of 50 s exceeded before the answer began$") as failed:
            r.vjps([OF_X] * 3, timeout=50)
        assert failed.value.code == "DEADLINE_EXCEEDED"
        if is_pool:  # the server is not blamed for it
            assert all(server.info is not None for server in client._service.servers.known())
    assert keeper.left == pytest.approx([50, 20], abs=9)
