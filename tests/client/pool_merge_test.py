"""Messages of several servers merge to those of one, in the corners that runs seldom reach."""

import numpy as np
import pytest
from fake_server import block, header, progress, result

import simgrad as sg
from simgrad import diagnostics
from simgrad.assembly import Assembly
from simgrad.diagnostics import AdditionSite
from simgrad.pool import merge_gradient
from simgrad.pool.aligned_sum import Node
from simgrad.pool.cut import Shard
from simgrad.pool.merge import Merge
from simgrad.pool.merge_steps import ForwardMerge, larger, merged_backward, smaller
from simgrad.v1 import diagnostics_pb2, policy_pb2, program_pb2, simgrad_pb2, tensor_pb2

INF = np.inf


def shards(*rows):
    return [Shard(np.array(r), np.array(r, np.uint64)) for r in rows]


def termination(margins, ids, checks=1, tests=(), mean=0.0, runs=1, least=0):
    """One step for each margin."""
    n = len(margins)
    names = list(dict.fromkeys(filter(None, tests)))
    return diagnostics_pb2.TerminationColumns(
        site="s",
        runs=[runs] * n,
        iterations_mean=[mean] * n,
        iterations_min=[least] * n,
        iterations_max=[5] * n,
        reasons=[1, 0, 0, 0] * n,
        tested_min=[0.0] * n,
        tested_max=[-0.0] * n,
        margin=margins,
        margin_instance=ids,
        margin_ulps=margins,
        margin_ulps_instance=ids,
        iterations=bytes(64 * n),
        histogram=bytes(256 * n),
        nan_margins=[0] * n,
        checks=[checks] * n,
        near_stopped=[1] * n,
        near_continued=[0] * n,
        margin_test=[names.index(t) + 1 if t else 0 for t in tests],
        tests=names,
    )


def merged(*columns):
    """The trace of one block of each server."""
    merge = ForwardMerge(len(columns))
    merge.begin(len(columns[0].runs))
    for shard, column in enumerate(columns):
        steps = len(column.runs)
        merge.add(shard, diagnostics_pb2.DiagnosticsBlock(steps=steps, terminations=[column]))
    return diagnostics.forward_trace([merge.take()], 4).sites["s"]


def test_the_smaller_margin_wins_and_of_equal_ones_the_smaller_instance():
    one = termination([-1.0, 2.0, 0.5, INF, INF], [7, 7, 7, 7, 7], tests=["a", "a", "", "a", "a"])
    two = termination([0.5, -2.0, -0.5, 3.0, INF], [9, 3, 8, 9, 2], tests=["b", "b", "c", "b", "c"])
    trace = merged(one, two)
    assert trace.margin.tolist() == [0.5, -2.0, 0.5, 3.0, INF]
    assert trace.margin_instance.tolist() == [9, 3, 7, 9, 2]
    assert trace.margin_ulps_instance.tolist() == [9, 3, 7, 9, 2]
    assert trace.margin_test.tolist() == ["b", "b", "", "b", "c"]


def test_margins_of_events_add_up_at_sampled_steps_however_the_steps_are_cut():
    def block(first, steps, counts):
        column = {
            name: [0] * steps
            for name in "checks count changes margin_instance margin_ulps_instance nan_margins".split()
        }
        sampled = [t for t in range(first, first + steps) if t % 2]
        event = diagnostics_pb2.EventColumns(
            site="e",
            kind="event",
            margin=[0.0] * steps,
            margin_ulps=[0.0] * steps,
            histogram=np.array([[counts + t] * 64 for t in sampled], "<u4").tobytes(),
            **column,
        )
        return diagnostics_pb2.DiagnosticsBlock(
            first_step=first, steps=steps, sampled_steps=sampled, events=[event]
        )

    merge = ForwardMerge(2)
    merge.begin(6)
    merge.add(0, block(0, 6, 100))
    blocks = []
    for first, steps in ((0, 1), (1, 4), (5, 1)):
        merge.add(1, block(first, steps, 1000))
        blocks.append(merge.take())
    event = diagnostics.forward_trace(blocks, 4).events["e"]
    assert event.histogram_steps.tolist() == [1, 3, 5]
    assert event.histogram.tolist() == [[1100 + 2 * t] * 64 for t in (1, 3, 5)]


def test_an_infinite_margin_of_a_test_is_not_that_of_no_test():
    for order in (1, -1):
        columns = [termination([INF], [7]), termination([INF], [0], checks=0)][::order]
        assert merged(*columns).margin_instance.tolist() == [7]


def test_means_are_quotients_of_whole_sums():
    """7/3 over 3 runs and 5 over 1 run are 12 / 4; a server without runs has no least."""
    trace = merged(
        termination([1.0], [1], mean=7 / 3, runs=3, least=2),
        termination([1.0], [2], mean=5.0, runs=1, least=5),
        termination([1.0], [3], mean=0.0, runs=0, least=0),
    )
    assert trace.iterations_mean.tolist() == [3.0] and trace.iterations_min.tolist() == [2]
    random = np.random.default_rng(0)
    for _ in range(200):
        runs = random.integers(1, 2**24, 2)
        sums = random.integers(0, 2**49, 2)
        means = [float(s) / float(r) for s, r in zip(sums, runs)]
        columns = [termination([1.0], [1], mean=m, runs=r) for m, r in zip(means, runs)]
        assert merged(*columns).iterations_mean[0] == float(sums.sum()) / float(runs.sum())


def test_minus_zero_is_below_zero():
    zeros = np.array([0.0, -0.0])
    assert np.signbit(smaller(zeros, zeros[::-1])).all()
    assert not np.signbit(larger(zeros, zeros[::-1])).any()


def test_blocks_that_end_elsewhere_merge_to_the_steps_that_all_have_done():
    merge = ForwardMerge(2)
    merge.begin(8)
    taken = []

    def add(shard, first, end):
        merge.add(shard, block(first, end).diagnostics)
        got = merge.take()
        taken.append(None if got is None else (got.first_step, got.first_step + got.steps))
        return got

    add(0, 0, 3), add(1, 0, 2), add(1, 2, 5), add(1, 5, 8)
    last = add(0, 3, 8)
    assert taken == [None, (0, 2), (2, 3), None, (3, 8)]
    (underflows,) = (r.underflows for r in last.ranges)
    assert underflows == 2 * 2 * 8  # all of them, with the last block
    (absorption,) = last.absorption
    assert (absorption.state, absorption.role, absorption.label) == ("x", "dynamics", "step.py:7")
    assert (absorption.additions, absorption.absorbed) == (2 * 3 * 8, 2 * 8)
    assert last.terminations[0].runs == [2 * t for t in range(3, 8)]
    assert last.sampled_steps == [4, 6] and last.states[0].zeros == [8, 12]


def test_a_rollout_of_no_steps_has_its_sites():
    merge = ForwardMerge(2)
    merge.begin(0)
    empty = diagnostics_pb2.DiagnosticsBlock(terminations=[{"site": "s"}], states=[{"state": "x"}])
    merge.add(0, empty)
    assert merge.take() is None
    merge.add(1, empty)
    trace = diagnostics.forward_trace([merge.take()], 2)
    assert trace.sites["s"].runs.shape == (0,) and merge.take() is None


def test_the_reverse_pass_adds_its_counts():
    of_server = lambda largest: diagnostics_pb2.BackwardBlock(
        steps=2,
        largest=[largest, 1.0],
        nonfinite=[1, 2],
        exponents=np.arange(68, dtype="<u8").tobytes(),
        ranges=[{"role": "adjoint", "underflows": 3}],
    )
    merged_block = merged_backward([[of_server(2.0)], [of_server(5.0)]])
    assert merged_block.largest == [5.0, 1.0] and merged_block.nonfinite == [2, 4]
    assert (np.frombuffer(merged_block.exponents, "<u8") == 2 * np.arange(68)).all()
    assert merged_block.ranges[0].underflows == 6
    assert merged_backward([[], []]) is None


# ---- Whole answers ----


def never(kind, name):
    return False


def request(gradient=False, **fields):
    kind = simgrad_pb2.GradientRequest if gradient else simgrad_pb2.RolloutRequest
    return kind(**fields)


def assembled(merge, *events):
    """The result of (shard, part) and (shard, server name) events."""
    assembly, given = Assembly(), []
    for shard, event in events:
        if isinstance(event, str):
            merge.begin(shard, event)
            continue
        for part in merge.add(shard, event):
            given.append(part)
            assembly.add(part)
    return assembly.result, given


def policy_of(**formats):
    return policy_pb2.ResolvedPolicy(
        roles=[
            {"role": role, "setting": {"format": f, "accumulator": f}, "guarantee": "bitwise"}
            for role, f in formats.items()
        ]
    )


def answer(ends, value=1.0, **identity):
    first = header(**identity)
    first.header.program.policy.CopyFrom(policy_of(objective="f64", gradient="f32"))
    steps = [p for begin, end in zip((0, *ends), ends) for p in (block(begin, end), progress(end))]
    return [first, *steps, result(value)]


def test_a_repeated_shard_is_counted_once():
    merge = Merge(shards([0, 1], [2, 3]), request(), never, never)
    first, second = answer((3, 8), value=1.0), answer((4, 8), value=2.0)
    events = [(0, "a"), (1, "b"), (0, first[0]), (1, second[0])]
    events += [(0, part) for part in first[1:5]]  # all but the result, and then it is lost
    events += [(1, part) for part in second[1:]]
    events += [(0, "b"), *((0, part) for part in answer((8,), value=1.0))]
    found, given = assembled(merge, *events)
    assert found.value == 6.0 and found.values.tolist() == [1, 1, 2, 2]
    assert found.sites["projection"].runs.tolist() == [2 * t for t in range(8)]
    assert found.sites["projection"].iterations.shape == (8, 4)
    assert found.ranges["state"].underflows == 2 * 2 * 8
    assert found.absorption["x"].share == 1 / 3
    assert found.absorption["x"].sites == [AdditionSite("dynamics", "step.py:7", 48, 16)]
    kinds = [part.WhichOneof("part") for part in given]
    assert kinds.count("header") == kinds.count("result") == 1 and kinds[0] == "header"


def test_what_each_instance_did_stands_in_its_row():
    """Rows of the shards alternate; instance l of a shard tests 10 step + its number of the test."""
    merge = Merge(shards([0, 3], [1, 2]), request(), never, never)
    events = [(s, p) for s in (0, 1) for p in (f"server {s}", *answer((4, 8)))]
    found, _ = assembled(merge, *events)
    trace = found.sites["projection"]
    assert trace.iterations.tolist() == [[t] * 4 for t in range(8)]
    assert trace.values[5][3].tolist() == [50.0, 51.0] and len(trace.values) == 8
    assert found.values.tolist() == [1.0] * 4


def test_progress_is_that_of_all_instances():
    merge = Merge(shards([0, 1, 2], [3]), request(gradient=True), never, never)
    told = [p.progress for event in [(0, progress(4)), (1, progress(8)), (1, progress(2, "adjoint")),
            (0, progress(8)), (0, progress(2, "adjoint"))] for p in merge.add(*event)]
    assert [(p.phase, p.steps_done) for p in told] == [
        ("forward", 3), ("forward", 5), ("forward", 5), ("forward", 8), ("adjoint", 2),
    ]


@pytest.mark.parametrize(
    "other, named",
    [
        ({"revision": "r2"}, "revision r1 at a, r2 at b"),
        ({"fingerprint": "f2"}, "program f1 at a, f2 at b"),
        ({"version": "0.2.0"}, "version 0.1.0 at a, 0.2.0 at b"),
    ],
)
def test_servers_that_differ_are_refused(other, named):
    merge = Merge(shards([0, 1], [2, 3]), request(), never, never)
    with pytest.raises(sg.FailedPrecondition, match=named) as failed:
        assembled(merge, (0, "a"), (1, "b"), (0, header()), (1, header(**other)))
    assert failed.value.reason == "MIXED_SERVERS"


# ---- Gradients ----

PARAM = program_pb2.INPUT_KIND_PARAM


def gradient(nodes, *, skipped=False, warnings=(), connected=1, gate="", rows=None):
    """One input of role f16: nodes are (level, index, value); `rows`: an input for each instance too."""
    entry = simgrad_pb2.InputGradient(
        kind=PARAM, name="k", connected=connected, gated_by=gate, zero=1, smallest=1.0, largest=2.0
    )
    entry.gradient.dtype = tensor_pb2.DTYPE_F16
    for level, index, value in nodes:
        entry.tree.add(
            level=level, index=index, dtype=tensor_pb2.DTYPE_F16, value=np.float16(value).tobytes()
        )
    out = simgrad_pb2.GradientResult(
        gradients=[entry], loss_scale=2.0, skipped=skipped, warnings=warnings, left_out=1
    )
    if rows is not None:
        each = out.gradients.add(kind=PARAM, name="r", connected=2)
        each.gradient.dtype = tensor_pb2.DTYPE_F16
        each.gradient.shape.append(len(rows))
        each.gradient.inline = np.float16(rows).tobytes()
    out.rollout.health.ok = bytes([1, 1])
    return simgrad_pb2.GradientPart(result=out)


def head():
    part = simgrad_pb2.GradientPart(header=header().header)
    part.header.program.policy.CopyFrom(policy_of(objective="f32", gradient="f16"))
    return part


def of_two(one, two):
    merge = Merge(shards([0, 1], [2, 3]), request(gradient=True), lambda kind, name: name == "r", never)
    return assembled(merge, (0, "a"), (1, "b"), (0, head()), (1, head()), (0, one), (1, two))[0]


def test_a_sum_that_overflows_in_one_server_alone_is_not_skipped():
    """Nodes of 40000 at ids 1 and 2: the server that has both overflows, but 1 joins -40000 at 0 first."""
    warning = "the loss scale 2 is beyond f16"
    one = gradient([(0, 0, -40000.0)])
    two = gradient([(0, 1, 40000.0), (0, 2, 40000.0)], skipped=True, warnings=[warning])
    found = of_two(one, two)
    assert not found.skipped and found.params["k"] == 20000.0 and found.warnings == []


def test_warnings_stand_in_the_order_of_one_server_and_name_its_first_instance():
    """Rows 1 and 3 of the request are ids 0 and 1, rows 0 and 2 are ids 2 and 3: row 0 is in the second shard."""
    rows = [Shard(np.array(r), np.array(i, np.uint64)) for r, i in (([1, 3], [0, 1]), ([0, 2], [2, 3]))]
    gave = lambda instance: f"the gradient is skipped: multiply in step 0 of instance {instance} gave inf"
    counted = lambda n: f"{n} cotangents overflowed f16, the format of role adjoint, or were not finite, at loss scale 2"
    beyond, loop = "the loss scale 2 is beyond f16", "{} runs of loop 'fp' are unconverged: at its cap"
    of_result = "a scaled gradient of k was not finite at loss scale 2; certificates say where that was born"
    one = ["the gradient is skipped: its sum over instances, or what was unscaled, is not finite"]
    two = [counted(2), loop.format(1), gave(2)]

    def warnings(first, second, nodes=((0, 0, np.inf),)):
        merge = Merge(rows, request(gradient=True), never, never)
        parts = [gradient(nodes, skipped=True, warnings=first), gradient([(0, 1, 1.0)], skipped=True, warnings=second)]
        return assembled(merge, (0, "a"), (1, "b"), (0, head()), (1, head()), (0, parts[0]), (1, parts[1]))[0].warnings

    assert warnings([beyond, loop.format(2), gave(0)], two) == [beyond, counted(2), loop.format(3), gave(2)]
    assert warnings([of_result, *one], two) == [counted(2), loop.format(1), gave(2)]
    assert warnings([of_result, *one], [loop.format(1)]) == [of_result, loop.format(1), *one]
    # Instances that were finite before the reverse pass count, where such ones are left out.
    left_out = "1 instances are left out whose cotangents are not finite at loss scale 2"
    assert warnings([left_out, gave(1)], two) == [counted(2), left_out, loop.format(1), gave(1)]


def test_a_sum_that_overflows_over_all_servers_is_skipped():
    """Each server's own is finite, and none of them says why."""
    found = of_two(gradient([(0, 0, 40000.0)]), gradient([(0, 1, 40000.0)]))
    assert found.skipped and found.params["k"] == np.inf
    of_result = "a scaled gradient of k was not finite at loss scale 2; certificates say where that was born"
    assert found.warnings == [of_result]


def test_a_skipped_sum_has_a_reason_beside_a_dynamic_scale():
    asked = request(gradient=True)
    asked.spec.policy.loss_scale.dynamic.scale = 2.0
    merge = Merge(shards([0, 1], [2, 3]), asked, never, never)
    parts = [gradient([(0, 0, 40000.0)]), gradient([(0, 1, 40000.0)])]
    events = [(0, "a"), (1, "b"), (0, head()), (1, head()), (0, parts[0]), (1, parts[1])]
    found = assembled(merge, *events)[0]
    reason = "the gradient is skipped: its sum over instances, or what was unscaled, is not finite"
    assert found.skipped and found.warnings[-1] == reason


def test_sums_over_blocks_merge_as_nodes_above_them():
    """Ids 300 to 1000, of which 768 to 1000 are left out: the nodes are over whole blocks of 256 ids,
    and 2048 + (1 + 1) is 2050 where (2048 + 1) + 1 is 2048 in f16."""
    ids = [np.array(i, np.uint64) for i in ([300, 511], [512, 1000])]
    halves = [Shard(np.array(rows), i) for rows, i in zip(([0, 1], [2, 3]), ids)]
    ones, whole = gradient([(9, 1, 2.0)]), request(gradient=True, return_tree=True)
    merge = Merge(halves, whole, never, lambda kind, name: (kind, name) == (PARAM, "k"))
    events = [(0, "a"), (1, "b"), (0, head()), (1, head()), (0, gradient([(8, 1, 2048.0)])), (1, ones)]
    found = assembled(merge, *events)[0]
    assert found.params["k"] == 2050 / 2  # without the loss scale
    assert [(n.level, n.index, float(n.value)) for n in found.tree["k"]] == [(8, 1, 2048.0), (9, 1, 2.0)]


def test_a_row_that_is_not_finite_is_skipped():
    one, two = gradient([(0, 0, 1.0)], rows=[1.0, 2.0]), gradient([], rows=[3.0, np.nan], skipped=True)
    found = of_two(one, two)
    assert found.skipped and found.params["k"] == 0.5
    assert found.params["r"].tolist()[:3] == [1.0, 2.0, 3.0]


def test_solves_of_an_adjoint_add_and_the_larger_counts():
    one, two = gradient([]), gradient([])
    one.result.adjoint_solves.add(
        site="a.adjoint", solves=2, turns=9, most_turns=5, capped=1, residual=0.5
    )
    two.result.adjoint_solves.add(site="a.adjoint", solves=3, turns=9, most_turns=4, residual=0.75)
    two.result.adjoint_solves.add(site="b.adjoint", solves=1, turns=1, most_turns=1)
    found = of_two(one, two).adjoint_solves
    assert found["a.adjoint"] == sg.AdjointSolves(5, 18, 5, 1, 0.75)
    assert found["b.adjoint"] == sg.AdjointSolves(1, 1, 1, 0, 0.0)


def test_counts_of_gradients_add_and_gates_are_named():
    text = " cotangents overflowed f16, the format of role adjoint"
    one = gradient([], connected=0, gate="contact", warnings=[f"3{text}"])
    two = gradient([], connected=0, gate="projection", warnings=[f"4{text}"])
    found = of_two(one, two)
    assert found.warnings == [f"7{text}"] and found.left_out == 2
    assert found.gated_by["k"] == "contact, projection" and found.connected["k"] == 0
    assert found.zero_share["k"] == 1.0 and found.magnitudes["k"] == (1.0, 2.0)
    assert of_two(one, gradient([], connected=1)).gated_by["k"] == ""


@pytest.mark.parametrize("scale", [64.0, 1.1, 0.3])
def test_a_loss_scale_is_taken_away_as_a_server_does(scale):
    """1 / scale rounded once to f32: a scale need not be a number of f32 (precision/loss_scale.h)."""
    policy = policy_pb2.ResolvedPolicy(
        roles=[
            policy_pb2.ResolvedRole(
                role="gradient", setting=policy_pb2.RoleSetting(format="f64", accumulator="f32")
            )
        ]
    )
    target = tensor_pb2.Tensor()
    assert merge_gradient._write_sum([Node(0, 0, np.array([1.0]))], policy, scale, target)
    assert np.frombuffer(target.inline) == [float(np.float32(1.0 / scale))]


def test_a_node_of_one_instance_keeps_the_bits_of_the_format():
    """0.1 was added to nothing: in f64 with sums in f32 it is no number of f32."""
    policy = policy_pb2.ResolvedPolicy(
        roles=[
            policy_pb2.ResolvedRole(
                role="gradient", setting=policy_pb2.RoleSetting(format="f64", accumulator="f32")
            )
        ]
    )
    target = simgrad_pb2.InputGradient()
    merge_gradient._write_tree([Node(0, 4, np.array([0.1]))], (4, 4), policy, target)
    (node,) = target.tree
    assert node.dtype == tensor_pb2.DTYPE_F64 and np.frombuffer(node.value) == [0.1]
