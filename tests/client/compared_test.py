"""Compare at a server that is told how to answer: what becomes of its parts, and of calls that break."""

import grpc
import numpy as np
import pytest
from fake_server import (
    INSTANCES,
    STEPS,
    FakeServer,
    answer,
    client_of,
    refuse,
    world,
)

import simgrad as sg
from simgrad.v1 import program_pb2, simgrad_pb2
from simgrad.why import work as why_work

Code = grpc.StatusCode
LAYOUT = simgrad_pb2.PathLayout(
    structure="s",
    bytes=3,
    columns=[
        simgrad_pb2.PathColumn(site="late", kind="PATH_KIND_TEST", element=program_pb2.ELEMENT_TYPE_BOOL, shape=[4, 2], loops=[-1, -1]),
        simgrad_pb2.PathColumn(site="turns", kind="PATH_KIND_COUNT", element=program_pb2.ELEMENT_TYPE_I32, first=1, width=2),
    ],
)


SIGNATURES = bytes(8 * INSTANCES)


def run_of(value=1.0, ends=(2, 4, 6, 8), layout=LAYOUT):
    """The parts of one run."""
    parts = []
    for part in answer(ends, value):
        kind = part.WhichOneof("part")
        made = simgrad_pb2.ComparePart()
        getattr(made, "rollout" if kind == "result" else kind).CopyFrom(getattr(part, kind))
        if kind == "result":
            made.rollout.path_signatures = SIGNATURES
        if kind == "header" and layout is not None:
            made.header.path.CopyFrom(layout)
        parts.append(made)
    return parts


def comparison(steps=(-1, -1), sites=(-1, -1), elements=(-1, -1), pieces=False, **more):
    """A comparison by path, with its arrays inside or before it."""
    told = simgrad_pb2.Comparison(by_path=True, **more)
    before = []
    for field, numbers, dtype in (("steps", steps, "<i8"), ("sites", sites, "<i4"), ("elements", elements, "<i8")):
        data = np.array(numbers, dtype).tobytes()
        if not pieces:
            setattr(told, f"first_{field}", data)
            continue
        for offset, last in ((0, False), (5, True)):
            content = data[offset:] if last else data[offset:5]
            piece = simgrad_pb2.TensorPiece(field=f"comparison.first_{field}", offset=offset, data=content, last=last)
            before.append(simgrad_pb2.ComparePart(piece=piece))
    return [*before, simgrad_pb2.ComparePart(comparison=told)]


def compared(values=(1.0, 2.0, 3.0), **more):
    """The parts of a whole answer, of as many runs as values."""
    first, *others = (run_of(value) for value in values)
    return [*first, *(part for other in others for part in (*other, *comparison(**more)))]


class Comparing(FakeServer):
    """Gives call n to Compare to `compare`, as FakeServer does to `stream`."""

    def __init__(self):
        self.compare = lambda n, context: compared()
        self.limits = simgrad_pb2.Limits(max_variants=2, max_request_bytes=1 << 20)
        self.compares = 0
        self.asked = []
        super().__init__()

    def GetServerInfo(self, request, context):
        self.unary(0, context)
        return simgrad_pb2.ServerInfo(version="1", limits=self.limits)

    def Rollout(self, request, context):
        for response in super().Rollout(request, context):
            if response.parts[0].HasField("result"):
                response.parts[0].result.path_signatures = SIGNATURES
            yield response

    def Compare(self, request, context):
        self.compares += 1
        self.asked.append(request)
        for part in self.compare(self.compares, context):
            yield simgrad_pb2.CompareResponse(parts=[part])


@pytest.fixture
def comparing():
    server = Comparing()
    yield server
    server.stop()


POLICIES = ["f64", "f32", "bf16_unsafe"]
WORK = dict(steps=STEPS, initial={"x": np.full((INSTANCES, 1), 0.5)})


def compare(client, **more):
    return client.compare(world(), **{**WORK, "policies": POLICIES, "gradient": False, **more})


def values(result):
    return [float(r.values[0]) for r in result.results.values()]


def broken(*scripts):
    """Each call sends its parts; all but the last break then."""

    def parts(n, context):
        yield from scripts[n - 1]
        if n < len(scripts):
            refuse(context, Code.UNAVAILABLE, message="Socket closed")

    return parts


def test_the_answers_of_one_call_are_results_and_pairs(comparing):
    with client_of(comparing.target) as client:
        result = compare(client)
    assert values(result) == [1.0, 2.0, 3.0] and list(result.results) == POLICIES
    assert result.calls == comparing.compares == 1 and comparing.calls == 0
    assert [r.sites["projection"].runs.tolist() for r in result.results.values()] == [list(range(STEPS))] * 3
    assert [r.tries for r in result.results.values()] == [1] * 3
    assert all(pair.forks.count == 0 and pair.forks.unrecorded is not None for pair in result.pairs.values())
    [asked] = comparing.asked
    assert [v.policy.preset for v in asked.variants] == POLICIES[1:] and asked.rollout.spec.policy.preset == "f64"


@pytest.mark.parametrize("pieces", [False, True])
def test_forks_are_those_of_the_comparison_whole_or_in_pieces(comparing, pieces, monkeypatch):
    looked = []
    monkeypatch.setattr("simgrad.why.fork.look_closely", lambda *at: looked.append(at[3:]))
    differs = [dict(steps=(3, -1), sites=(0, -1), elements=(5, -1)), dict(steps=(6, 1), sites=(1, 1), elements=(0, 0))]
    runs = [run_of(), run_of(), run_of()]
    told = [comparison(pieces=pieces, **each) for each in differs]
    comparing.compare = lambda n, context: [*runs[0], *runs[1], *told[0], *runs[2], *told[1]]
    with client_of(comparing.target) as client:
        monkeypatch.setattr("simgrad.why.compare.sentences", lambda pair, *_: [])
        first, second = (pair.forks for pair in compare(client).pairs.values())
    assert (first.step.tolist(), first.site, first.parted.tolist()) == ([3, -1], ["late", ""], [True, False])
    assert (second.step.tolist(), second.site) == ([6, 1], ["turns", "turns"])
    assert looked == [(0, 3, "late", (2, 1)), (1, 1, "turns", ())]


@pytest.mark.parametrize("cut", range(len(compared((1.0, 2.0)))))
def test_an_answer_that_breaks_anywhere_is_asked_for_as_a_whole_again(comparing, cut):
    comparing.compare = broken(compared((7.0, 8.0))[:cut], compared((1.0, 2.0)))
    with client_of(comparing.target) as client:
        result = compare(client, policies=POLICIES[:2])
    assert values(result) == [1.0, 2.0] and result.calls == 1 and comparing.compares == 2
    assert [r.tries for r in result.results.values()] == [2, 2]
    assert [r.sites["projection"].runs.tolist() for r in result.results.values()] == [list(range(STEPS))] * 2


def test_progress_is_that_of_all_runs_and_never_goes_back(comparing):
    comparing.compare = broken(compared()[:-4], compared())
    told = []
    with client_of(comparing.target) as client:
        compare(client, progress=lambda *of: told.append(of))
    assert {(phase, total) for phase, _, total in told} == {("compare", 3 * STEPS)}
    done = [d for _, d, _ in told]
    assert done == sorted(done) and done[-1] == 3 * STEPS
    assert {2, STEPS + 2, 2 * STEPS + 6} <= set(done), "each run tells its own"
    assert len(done) == len(set(done)) + 1  # the total is told at the end once more


def test_an_observer_that_raises_ends_the_call(comparing):
    class Enough(Exception):
        pass

    def bar(phase, done, total):
        if done > STEPS:  # of the second run
            raise Enough

    ended = []

    def endless(n, context):
        context.add_callback(lambda: ended.append(True))
        yield from compared()[: len(run_of()) + 3]
        while context.is_active():
            yield run_of()[2]

    comparing.compare = endless
    with client_of(comparing.target) as client:
        with pytest.raises(Enough):
            compare(client, progress=bar)
        client.info()  # calls are answered in their order: it has ended
    assert ended == [True] and comparing.compares == 1


@pytest.mark.parametrize("parts, running", [(0, "f64"), (len(run_of()), "f64"), (len(run_of()) + 1, "f32"), (-1, "bf16_unsafe")])
def test_a_deadline_names_the_variant_that_was_running(comparing, parts, running):
    def late(n, context):
        yield from compared()[:parts]
        refuse(context, Code.DEADLINE_EXCEEDED, "DEADLINE", "late")

    comparing.compare = late
    with client_of(comparing.target) as client:
        words = f"^compare: the deadline of 50 s passed in call 1, of {running}, which had the rest of it: deadline of "
        with pytest.raises(sg.DeadlineExceeded, match=words):
            compare(client, timeout=50)


def test_a_repeated_call_is_in_its_first_run_again(comparing):
    def late(n, context):
        if n == 2:
            refuse(context, Code.DEADLINE_EXCEEDED, "DEADLINE", "late")
        yield from compared()[:-1]
        refuse(context, Code.UNAVAILABLE, message="Socket closed")

    comparing.compare = late
    with client_of(comparing.target) as client:
        with pytest.raises(sg.DeadlineExceeded, match="in call 1, of f64, which"):
            compare(client)


def test_a_deadline_that_passes_before_the_call_is_that_of_all(comparing):
    comparing.unary = lambda n, context: refuse(context, Code.DEADLINE_EXCEEDED, "DEADLINE", "late")
    with client_of(comparing.target) as client:
        with pytest.raises(sg.DeadlineExceeded, match="^compare: the deadline of 50 s passed while what the server takes was asked for"):
            compare(client, timeout=50)


@pytest.mark.parametrize("left_out", [1, 2, len(run_of()) + 1])
def test_an_answer_without_all_runs_and_comparisons_is_none(comparing, left_out):
    comparing.compare = lambda n, context: compared()[:-left_out]
    with client_of(comparing.target) as client:
        with pytest.raises(sg.errors.Internal, match="ended the stream without a result"):
            compare(client)


def test_an_error_of_a_variant_has_its_name(comparing):
    field = "variants[1].policy.preset"
    comparing.compare = lambda n, context: refuse(context, Code.INVALID_ARGUMENT, message="no such preset", field=field)
    with client_of(comparing.target) as client:
        with pytest.raises(sg.InvalidArgument, match=r"^bf16_unsafe: variants\[1\].policy.preset: no such preset") as told:
            compare(client)
    assert told.value.field == field


@pytest.mark.parametrize(
    "limits, more, calls",
    [
        (dict(), {}, [1, 0]),
        (dict(max_variants=0), {}, [0, 3]),  # an older server
        (dict(max_variants=1), {}, [0, 3]),
        (dict(max_request_bytes=10), {}, [0, 3]),
        (dict(), dict(keep=True), [0, 3]),
    ],
)
def test_what_no_call_of_compare_can_ask_is_asked_in_calls_of_their_own(comparing, limits, more, calls):
    for name, value in limits.items():
        setattr(comparing.limits, name, value)
    with client_of(comparing.target) as client:
        result = compare(client, **more)
    assert [comparing.compares, comparing.calls] == calls and result.calls == sum(calls)


def test_a_server_that_lost_the_method_is_asked_for_each_run(comparing):
    """An older one may be in the place of the one that told its limits."""
    comparing.compare = lambda n, context: refuse(context, Code.UNIMPLEMENTED, message="unknown method Compare")
    told = []
    with client_of(comparing.target) as client:
        result = compare(client, progress=lambda *of: told.append(of))
    assert [comparing.compares, comparing.calls] == [1, 3] and values(result) == [1.0] * 3
    done = [d for _, d, _ in told]
    assert done == sorted(done) and all(d <= total for _, d, total in told)


def test_a_path_of_no_bytes_is_given_where_paths_are_asked_for_alone(comparing):
    empty = simgrad_pb2.PathLayout(structure="s")
    runs = [*run_of(layout=empty), *run_of(layout=empty), *comparison()]
    comparing.compare = lambda n, context: runs
    variants = [why_work.Variant(name, world(), sg.Policy(name), STEPS) for name in POLICIES[:2]]
    with client_of(comparing.target) as client, why_work.Calls("compare", 50, None, False) as calls:
        plain, asked = why_work.work_of(client, world(), calls, initial=WORK["initial"])
        for sends in (True, False):
            found = asked.run_together(variants, gradient=False, sends_paths=sends, path=True)
            assert [r.path is not None for r in found.results] == [sends, sends]
            assert found.differs[0].step.tolist() == [-1] * INSTANCES


def test_paths_that_a_server_refuses_are_done_without(comparing):
    def refusing(n, context):
        if n == 1:
            refuse(context, Code.INVALID_ARGUMENT, message="too large", field="spec.path.record")
        first, *others = (run_of(layout=None) for _ in POLICIES)
        blind = simgrad_pb2.ComparePart(comparison=simgrad_pb2.Comparison(unlike="no paths"))
        return [*first, *(part for other in others for part in (*other, blind))]

    comparing.compare = refusing
    told = []
    with client_of(comparing.target) as client:
        result = compare(client, progress=lambda *of: told.append(of))
    assert result.calls == 2 and all(pair.forks.unrecorded is None for pair in result.pairs.values())
    first, again = comparing.asked
    assert (first.without_paths, again.without_paths) == (False, True)
    level = lambda asked: asked.rollout.spec.diagnostics.level
    assert (level(first), level(again)) == (simgrad_pb2.DIAGNOSTICS_LEVEL_SUMMARY, simgrad_pb2.DIAGNOSTICS_LEVEL_INSTANCES)
    assert told[-1][1:] == (6 * STEPS, 6 * STEPS)
