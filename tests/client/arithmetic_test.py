"""Rows of arithmetic: how they come from messages, merge, read, and what is asked of which server."""

import json

import numpy as np
import pytest
from fake_server import FakeServer, header, result, work, world

import simgrad as sg
from simgrad import command_line, report, request
from simgrad.arithmetic import Arithmetic, OperationArithmetic
from simgrad.assembly import Assembly
from simgrad.kept import _with_rollout
from simgrad.pool.cut import Cutter, Shard
from simgrad.pool.merge import Merge
from simgrad.pool.merge_arithmetic import MOST_OPERATIONS, merged_arithmetic
from simgrad.v1 import diagnostics_pb2, policy_pb2, simgrad_pb2
from simgrad.why.work import Calls, Variant, work_of

POLICY = policy_pb2.ResolvedPolicy(
    roles=[
        {"role": name, "setting": {"format": "f32", "accumulator": "f32"}, "guarantee": "bitwise"}
        for name in ("state", "dynamics", "objective", "adjoint", "gradient")
    ]
)


def row(role, operation="", label="", site="", counts=(1, 0, 0, 0, 0)):
    results, underflows, overflows, additions, absorbed = counts
    return diagnostics_pb2.Arithmetic(
        role=role,
        operation=operation,
        label=label,
        site=site,
        results=results,
        underflows=underflows,
        overflows=overflows,
        additions=additions,
        absorbed=absorbed,
    )


FORWARD = [row("dynamics", counts=(9, 1, 2, 3, 2)), row("dynamics", "mul", "w.py:3", "newton", (7, 1, 2, 3, 2))]
REVERSE = [row("adjoint", counts=(8, 4, 0, 0, 0)), row("adjoint", "mul", "w.py:4", counts=(6, 4, 0, 0, 0))]
SUM = row("gradient", "accumulate", "k", counts=(4, 0, 0, 4, 1))


def told(forward=FORWARD, reverse=None):
    """The result of one server's answer: a Gradient where it has a reverse pass."""
    assembly = Assembly()
    assembly.add(header())
    part = result()
    part.result.arithmetic.extend(forward)
    if reverse is None:
        assembly.add(part)
        return assembly.result
    gradient = simgrad_pb2.GradientResult(rollout=part.result, arithmetic=reverse)
    assembly.add(simgrad_pb2.GradientPart(result=gradient))
    return assembly.result


# ---- Results ----


def test_rows_of_messages_are_roles_and_operations():
    found = told().arithmetic
    assert found.roles == [OperationArithmetic("forward", "dynamics", "", "", "", 9, 1, 2, 3, 2)]
    assert found.operations == [OperationArithmetic("forward", "dynamics", "mul", "w.py:3", "newton", 7, 1, 2, 3, 2)]
    assert [r.operation for r in found] == ["", "mul"] and len(found) == 2


def test_a_gradient_has_the_rows_of_both_passes():
    found = told(reverse=[*REVERSE, SUM]).arithmetic
    assert [(r.phase, r.role) for r in found.roles] == [("forward", "dynamics"), ("adjoint", "adjoint")]
    assert [(r.phase, r.line) for r in found.operations] == [("forward", "w.py:3"), ("adjoint", "w.py:4"), ("adjoint", "k")]
    assert found.of_phase("forward") == told().arithmetic
    assert [r.line for r in found.of_phase("adjoint").operations] == ["w.py:4", "k"]


def test_a_result_that_did_not_ask_has_none():
    found = told(forward=[]).arithmetic
    assert found == Arithmetic() and not found and len(found) == 0
    assert told().arithmetic


def test_shares_are_parts_of_results_and_additions():
    [of_role] = told(forward=[row("state", counts=(8, 2, 1, 4, 3))]).arithmetic.roles
    assert (of_role.underflow_share, of_role.overflow_share, of_role.absorbed_share) == (0.25, 0.125, 0.75)
    assert of_role.lost == 6
    none = OperationArithmetic("forward", "state")
    assert (none.underflow_share, none.overflow_share, none.absorbed_share) == (0.0, 0.0, 0.0)


def test_it_reads_as_sentences():
    assert str(told(reverse=[*REVERSE, row("gradient", counts=(4, 0, 0, 4, 1)), SUM]).arithmetic).splitlines() == [
        "forward, role dynamics: underflow in 11.1% of 9 results, overflow in 22.2% of 9 results, absorption in 66.7% of 3 additions",
        "  mul (w.py:3), site newton: underflow in 14.3% of 7 results, overflow in 28.6% of 7 results, absorption in 66.7% of "
        "3 additions",
        "adjoint, role adjoint: underflow in 50.0% of 8 results",
        "  mul (w.py:4): underflow in 66.7% of 6 results",
        "adjoint, role gradient: absorption in 25.0% of 4 additions",
        "  accumulate (k): absorption in 25.0% of 4 additions",
    ]
    [operation] = told().arithmetic.operations
    assert str(operation).startswith("forward, role dynamics: mul (w.py:3), site newton: underflow in 14.3% of 7 results")
    assert "arithmetic=N" in repr(Arithmetic())


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((120_000, 3_720, 0, 0, 0), "underflow in 3.1% of 120,000 results"),
        ((1, 1, 0, 0, 0), "underflow in 100% of 1 result"),
        ((10**6, 0, 10**6 - 1, 0, 0), "overflow in 99.9% of 1,000,000 results"),
        ((10**6, 0, 0, 10**6, 1), "absorption in less than 0.1% of 1,000,000 additions"),
        ((2000, 0, 0, 1, 0), "nothing lost in 2,000 results, 1 addition"),
        ((4, 1_200, 0, 0, 0), "underflow in 4 results, 1,200 times"),
    ],
)
def test_shares_are_never_rounded_to_all_or_nothing(counts, said):
    assert repr(told(forward=[row("state", counts=counts)]).arithmetic) == f"forward, role state: {said}"


def test_operations_of_a_role_stand_under_their_own_pass():
    in_both = [row("objective", counts=(2, 1, 0, 0, 0)), row("objective", "exp", "w.py:9", counts=(2, 1, 0, 0, 0))]
    lines = repr(told(forward=in_both, reverse=in_both).arithmetic).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        *("forward, role objective", "  exp (w.py", "adjoint, role objective", "  exp (w.py")
    ]


def test_a_result_names_the_roles_that_lost_something():
    shown = repr(told(forward=[*FORWARD, row("state", counts=(5, 0, 0, 0, 0))], reverse=REVERSE))
    [at] = [k for k, line in enumerate(shown.splitlines()) if line.startswith("  arithmetic  forward, role dynamics")]
    assert at > 0 and "role state" not in shown and "adjoint, role adjoint: underflow in 50.0%" in shown
    assert max(map(len, shown.splitlines())) <= 79
    assert "arithmetic" not in repr(told(forward=[]))


def test_a_role_names_the_operations_that_lost_most():
    many = [row("dynamics", "mul", f"w.py:{k}", counts=(9, 9 - k, 0, 0, 0)) for k in range(8)]
    lines = repr(told(forward=[FORWARD[0], *many]).arithmetic).splitlines()
    assert [line.split()[1] for line in lines[1:-1]] == [f"(w.py:{k}):" for k in range(5)]
    assert lines[-1] == "  and 3 operations more"


def test_json_and_text_have_the_rows():
    found = told(reverse=REVERSE)
    fields = json.loads(json.dumps(report.result_dict(found)))["arithmetic"]
    assert [OperationArithmetic(**r) for r in fields["roles"]] == found.arithmetic.roles
    assert [OperationArithmetic(**r) for r in fields["operations"]] == found.arithmetic.operations
    assert "  mul (w.py:4): underflow in 66.7% of 6 results" in report.result_text(found).splitlines()
    assert "arithmetic" not in report.result_text(told(forward=[]))


def test_a_reversal_has_the_forward_rows_of_its_rollout_once():
    """Also of a server that simulated again, and tells them with the reversal."""
    rollout, whole = told(), told(reverse=REVERSE)
    for reversal in (told(forward=[], reverse=REVERSE), whole):
        assert _with_rollout(reversal, rollout).arithmetic == whole.arithmetic


# ---- Requests ----


def spec(**options):
    return request.rollout_spec(sg.World("w"), dict, steps=3, **options)


def test_a_call_asks_for_so_many_instances():
    assert spec().diagnostics.arithmetic_instances == 0
    assert spec(arithmetic=7).diagnostics.arithmetic_instances == 7
    assert spec(arithmetic=np.int64(7)).diagnostics.arithmetic_instances == 7
    assert spec(arithmetic=-1).diagnostics.arithmetic_instances == -1  # which the server refuses by its field


@pytest.mark.parametrize("given, error", [(True, TypeError), (1.5, TypeError), ("all", TypeError), (2**31, ValueError)])
def test_what_is_no_number_of_instances_is_told(given, error):
    with pytest.raises(error, match="^arithmetic: how many instances are looked at"):
        spec(arithmetic=given)


class Listener(FakeServer):
    """A server of `limit` instances that notes what it is asked."""

    def __init__(self, limit):
        super().__init__()
        self.info = simgrad_pb2.ServerInfo(version="0.1.0", revision="r1", default_device="cpu")
        self.info.devices.add(kind="cpu", threads=1)
        self.info.limits.max_variants = 64
        self.info.limits.max_arithmetic_instances = limit
        self.specs = []

    def GetServerInfo(self, request, context):
        return self.info

    def Rollout(self, request, context):
        self.specs.append(request.spec)
        yield from super().Rollout(request, context)

    def Gradient(self, request, context):
        self.specs.append(request.spec)
        yield from super().Gradient(request, context)

    def Compare(self, request, context):
        self.specs.append(request.gradient.spec)
        yield simgrad_pb2.CompareResponse()


@pytest.fixture
def listen():
    running = []

    def start(limit):
        running.append(Listener(limit))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def asks_of(client):
    return [
        lambda **options: client.rollout(world(), **work(), **options),
        lambda **options: client.gradient(world(), **work(), **options),
        lambda **options: client.compare(world(), policies=("f64", "f32"), **work(), **options),
    ]


def test_an_older_server_is_told_from_its_limits_before_anything_runs(listen):
    old = listen(0)
    for connected in (sg.Client(old.target), sg.Pool([old.target])):
        with connected as client:
            for ask in asks_of(client):
                with pytest.raises(sg.Unimplemented, match="^arithmetic=3: the server is older") as told:
                    ask(arithmetic=3)
                assert told.value.reason == "NO_ARITHMETIC" and told.value.field.endswith("arithmetic_instances")
    assert old.specs == []
    with sg.Client(old.target) as client:
        assert not client.rollout(world(), **work()).arithmetic
    assert len(old.specs) == 1


def test_a_server_that_looks_at_operations_is_asked(listen):
    server = listen(1024)
    with sg.Client(server.target) as client:
        for ask in asks_of(client)[:2]:
            ask(arithmetic=3)
    assert [s.diagnostics.arithmetic_instances for s in server.specs] == [3, 3]


def test_runs_of_a_comparison_that_nobody_sees_do_not_ask():
    calls = Calls("compare", 9.0, None, False)
    _, asked = work_of(None, world(), calls, initial={"x": [[0.5], [0.25]]}, arithmetic=2)
    variant = Variant("f32", world(), sg.Policy("f32"), 4)
    given = lambda steps, level: asked._arguments(variant, True, steps, {"diagnostics": level}).get("arithmetic")
    assert [given(None, "summary"), given(None, "instances")] == [2, 2]
    assert [given(3, "summary"), given(None, "off")] == [None, None]


@pytest.mark.parametrize("command", ["rollout", "gradient"])
def test_the_command_line_asks_too(command, capsys):
    parse = command_line.parser().parse_args
    assert parse([command, "w", "--steps", "1"]).arithmetic == 0
    assert parse([command, "w", "--steps", "1", "--arithmetic", "5"]).arithmetic == 5
    for wrong in ("2.5", "2147483648"):
        with pytest.raises(SystemExit):
            parse([command, "w", "--steps", "1", "--arithmetic", wrong])
        assert "argument --arithmetic: " in capsys.readouterr().err


# ---- Pools ----


def asked_of(instances, ids, arithmetic):
    """How many of its instances each of three parts looks at, and the rows of these."""
    message = simgrad_pb2.RolloutRequest(spec=simgrad_pb2.RolloutSpec(instances=instances, instance_ids=ids))
    message.spec.diagnostics.arithmetic_instances = arithmetic
    cutter = Cutter(message, {})
    shards = cutter.cut((1, 1, 1), instances)
    assert len(shards) == 3
    counts = [cutter.message(shard).spec.diagnostics.arithmetic_instances for shard in shards]
    return counts, [shard.rows[:count].tolist() for shard, count in zip(shards, counts)]


def test_a_part_looks_at_those_of_the_first_rows_that_are_its_own():
    assert asked_of(768, [], 300) == ([256, 44, 0], [[*range(256)], [*range(256, 300)], []])
    assert asked_of(768, [], 5000)[0] == [256, 256, 256]
    assert asked_of(768, [], 0)[0] == [0, 0, 0]
    assert asked_of(768, [], -1)[0] == [-1, -1, -1]


def test_the_first_rows_are_meant_whatever_their_ids():
    ids = np.random.default_rng(1).permutation(768).tolist()
    counts, rows = asked_of(768, ids, 100)
    assert min(counts) > 0 and sorted(sum(rows, [])) == list(range(100))
    backwards, _ = asked_of(768, list(range(768))[::-1], 300)
    assert backwards == [0, 44, 256]


def test_rows_of_servers_add_and_stand_in_the_order_of_one():
    one = [
        row("adjoint", counts=(4, 2, 0, 0, 0)),
        row("adjoint", "mul", "b", counts=(4, 2, 0, 0, 0)),
        row("adjoint", "add", "c", counts=(1, 1, 0, 0, 0)),
    ]
    two = [
        row("dynamics", counts=(9, 3, 1, 5, 2)),
        row("adjoint", counts=(4, 1, 1, 0, 0)),
        row("dynamics", "mul", "z", counts=(2, 3, 0, 0, 0)),
        row("dynamics", "fma", "z", counts=(2, 1, 1, 5, 1)),
        row("adjoint", "mul", "b", counts=(2, 0, 1, 0, 0)),
        row("adjoint", "mul", "b", "loop", counts=(1, 1, 0, 0, 0)),
        row("adjoint", "mul", "a", counts=(1, 1, 0, 0, 0)),
    ]
    found = merged_arithmetic([one, two], POLICY)
    assert found == [
        row("dynamics", counts=(9, 3, 1, 5, 2)),
        row("adjoint", counts=(8, 3, 1, 0, 0)),
        row("dynamics", "fma", "z", counts=(2, 1, 1, 5, 1)),
        row("dynamics", "mul", "z", counts=(2, 3, 0, 0, 0)),
        row("adjoint", "mul", "b", counts=(6, 2, 1, 0, 0)),
        row("adjoint", "add", "c", counts=(1, 1, 0, 0, 0)),
        row("adjoint", "mul", "a", counts=(1, 1, 0, 0, 0)),
        row("adjoint", "mul", "b", "loop", counts=(1, 1, 0, 0, 0)),
    ]
    assert one[0].results == 4  # the messages of a server stay as they are
    assert merged_arithmetic([two, one], POLICY) == found


def test_a_pool_tells_as_many_operations_as_one_server():
    of_server = lambda least: [row("state", "mul", f"{k:03}", counts=(9, k + 1, 0, 0, 0)) for k in range(least, least + 200)]
    found = merged_arithmetic([of_server(0), of_server(150)], POLICY)
    assert len(found) == MOST_OPERATIONS == 256
    assert [r.label for r in found[:2]] == ["199", "198"]  # 200 and 200, 199 and 199
    assert found[-1].underflows == min(r.underflows for r in found)


def halves():
    return [Shard(np.array(rows), np.array(rows, np.uint64)) for rows in ([0, 1], [2, 3])]


def merged(answers, is_reversal=False):
    """The result of gradients of two servers, given their rows forward and in reverse."""
    merge = Merge(halves(), simgrad_pb2.GradientRequest(), lambda *_: False, lambda *_: False, is_reversal=is_reversal)
    assembly, begun = Assembly(), simgrad_pb2.GradientPart(header=header().header)
    begun.header.program.policy.CopyFrom(POLICY)
    for shard in (0, 1):
        merge.begin(shard, "ab"[shard])
        [assembly.add(part) for part in merge.add(shard, begun)]
    for shard, (forward, reverse) in enumerate(answers):
        made = simgrad_pb2.GradientResult(arithmetic=reverse)
        made.rollout.arithmetic.extend(forward)
        made.rollout.health.ok = bytes([1, 1])
        [assembly.add(part) for part in merge.add(shard, simgrad_pb2.GradientPart(result=made))]
    return assembly.result


def test_a_pool_adds_both_passes():
    found = merged([(FORWARD, REVERSE), (FORWARD, [SUM])]).arithmetic
    assert found.roles[0] == OperationArithmetic("forward", "dynamics", "", "", "", 18, 2, 4, 6, 4)
    assert [(r.phase, r.operation, r.lost) for r in found.operations] == [
        ("forward", "mul", 10), ("adjoint", "mul", 4), ("adjoint", "accumulate", 1),
    ]  # fmt: skip


def test_a_reversal_adds_the_reverse_pass_alone():
    """The second server had lost its shard, and tells the forward pass again."""
    found = merged([([], REVERSE), (FORWARD, REVERSE)], is_reversal=True).arithmetic
    assert [r.phase for r in found] == ["adjoint"] * 2 and found.roles[0].results == 16


def test_a_pool_refuses_as_one_server_does_although_parts_would_be_taken(listen):
    servers = [listen(300), listen(300)]
    rows = dict(work(), initial={"x": np.full((512, 1), 0.5)})
    asked = lambda: sorted(s.diagnostics.arithmetic_instances for server in servers for s in server.specs)
    with sg.Pool([s.target for s in servers]) as pool:
        pool.rollout(world(), **rows, arithmetic=301)
        assert asked() == [301]  # one server has the whole, and would refuse it
        for server in servers:
            server.specs.clear()
            server.stream = lambda n, context: parts_of(256)
        pool.rollout(world(), **rows, arithmetic=300)
        assert asked() == [44, 256]


def parts_of(instances):
    """The answer of a server to a shard."""
    first, last = header(), result()
    first.header.instances = instances
    first.header.program.policy.CopyFrom(POLICY)
    last.result.ClearField("value")
    last.result.values = b""
    last.result.health.ok = bytes([1] * instances)
    return [first, last]
