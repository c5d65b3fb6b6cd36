"""Bad input is refused with the field at fault, and the server lives on."""

import time
import urllib.request

import grpc
import numpy as np
import pytest

import simgrad as sg
from simgrad import errors
from simgrad.program import ProgramBuilder
from simgrad.v1 import program_pb2, simgrad_pb2

BALL = sg.World("bouncing_ball")
GOOD = dict(steps=3, initial={"y": [0.5], "v": [0.0]}, params={"k": 1.0})


@pytest.fixture(autouse=True)
def server_lives_on(client):
    yield
    assert client.rollout(BALL, **GOOD).ok.all()


def wrong(**changes):
    return {**GOOD, **changes}


REQUESTS = {
    "unknown world": (sg.World("bouncing_bal"), GOOD, "spec.world.name"),
    "unknown config": (sg.World("bouncing_ball", colour="red"), GOOD, "spec.world.config[colour]"),
    "unknown word": (sg.World("bouncing_ball", contact="glue"), GOOD, "spec.world.config[contact]"),
    "word for number": (sg.World("bouncing_ball", tol="small"), GOOD, "spec.world.config[tol]"),
    "tol 0": (sg.World("bouncing_ball", tol=0.0), GOOD, "spec.world.config[tol]"),
    "tol negative": (sg.World("bouncing_ball", tol=-1e-4), GOOD, "spec.world.config[tol]"),
    "tol NaN": (sg.World("bouncing_ball", tol=float("nan")), GOOD, "spec.world.config[tol]"),
    "tol infinite": (sg.World("bouncing_ball", tol=float("inf")), GOOD, "spec.world.config[tol]"),
    "tol_enter below tol": (
        sg.World("bouncing_ball", tol_enter=1e-9),
        GOOD,
        "spec.world.config[tol_enter]",
    ),
    "max_iter 0": (sg.World("bouncing_ball", max_iter=0), GOOD, "spec.world.config[max_iter]"),
    "max_iter over the limit": (
        sg.World("bouncing_ball", max_iter=10**9),
        GOOD,
        "spec.world.config[max_iter]",
    ),
    "max_iter not whole": (
        sg.World("bouncing_ball", max_iter=2.5),
        GOOD,
        "spec.world.config[max_iter]",
    ),
    "elements 0": (sg.World("bouncing_ball", elements=0), GOOD, "spec.world.config[elements]"),
    "elements huge": (
        sg.World("bouncing_ball", elements=1e15),
        GOOD,
        "spec.world.config[elements]",
    ),
    "unknown state": (
        BALL,
        wrong(initial={"y": [0.5], "v": [0.0], "w": [0.0]}),
        "spec.initial[2].name",
    ),
    "missing state": (BALL, wrong(initial={"y": [0.5]}), "spec.initial"),
    "unknown param": (BALL, wrong(params={"k": 1.0, "K": 1.0}), "spec.params[1].name"),
    "rank too low": (BALL, wrong(initial={"y": 0.5, "v": [0.0]}), "spec.initial[0].tensor.shape"),
    "rank too high": (
        BALL,
        wrong(initial={"y": [[[0.5]]], "v": [0.0]}),
        "spec.initial[0].tensor.shape",
    ),
    "wrong shape": (
        BALL,
        wrong(initial={"y": [0.5, 0.6], "v": [0.0]}),
        "spec.initial[0].tensor.shape",
    ),
    "instances disagree": (
        BALL,
        wrong(initial={"y": [[0.5]] * 2, "v": [[0.0]] * 3}),
        "spec.initial[1].tensor.shape",
    ),
    "bools for reals": (BALL, wrong(params={"k": np.bool_(True)}), "spec.params[0].tensor.dtype"),
    "series of wrong length": (
        BALL,
        wrong(controls={"u": sg.PerStep(np.zeros((2, 1)))}),
        "spec.controls[0].tensor.shape",
    ),
    "steps negative": (BALL, wrong(steps=-1), "spec.steps"),
    "steps 0 for a cost of the last step": (
        BALL,
        wrong(steps=0, objective="final_penetration"),
        "spec.steps",
    ),
    "steps huge": (BALL, wrong(steps=2**62), "spec.steps"),
    "instances negative": (BALL, wrong(instances=-5), "spec.instances"),
    "instances huge": (BALL, wrong(instances=2**50), "spec.instances"),
    "ids twice": (BALL, wrong(instance_ids=[4, 4], instances=2), "spec.instance_ids[1]"),
    "ids overflow": (BALL, wrong(first_instance=2**64 - 1, instances=2), "spec.first_instance"),
    "unknown preset": (BALL, wrong(policy="f8"), "spec.policy.preset"),
    "unknown role": (
        BALL,
        wrong(policy=sg.Policy().role("soul", format="f32")),
        "spec.policy.roles[0].role",
    ),
    "unknown format": (
        BALL,
        wrong(policy=sg.Policy().role("state", format="f31")),
        "spec.policy.roles[0].setting.format",
    ),
    "unknown order": (
        BALL,
        wrong(policy=sg.Policy().role("state", order="random")),
        "spec.policy.roles[0].setting.order",
    ),
    "unknown site": (
        BALL,
        wrong(policy=sg.Policy().site("moon", format="f32")),
        "spec.policy.sites[0].site",
    ),
    "loss scale 0": (BALL, wrong(policy=sg.Policy().loss_scale(0)), "spec.policy.loss_scale"),
    "loss scale NaN": (
        BALL,
        wrong(policy=sg.Policy().loss_scale(float("nan"))),
        "spec.policy.loss_scale",
    ),
    "unknown record": (BALL, wrong(record=["z"]), "spec.record[0]"),
    "record twice": (BALL, wrong(record=["y", "y"]), "spec.record[1]"),
    "unknown objective": (BALL, wrong(objective="fame"), "spec.objective"),
    "weights of wrong length": (
        BALL,
        wrong(objective="final_height", weights=[1, 2, 3]),
        "weights",
    ),
    "weights not finite": (
        BALL,
        wrong(objective="final_height", weights=[float("inf")]),
        "weights[0]",
    ),
    "weights of nothing": (BALL, wrong(weights=[1.0]), "weights"),
    "chunk negative": (BALL, wrong(chunk_steps=-1), "spec.chunk_steps"),
    "interval negative": (BALL, wrong(checkpoint_interval=-1), "spec.checkpoint_interval"),
    "stride negative": (BALL, wrong(stride=-1), "spec.diagnostics.stride"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_wrong_rollout_names_the_field(client, case):
    world, arguments, field = REQUESTS[case]
    with pytest.raises(sg.InvalidArgument) as caught:
        client.rollout(world, **arguments)
    assert caught.value.field.startswith(field), (caught.value.field, str(caught.value))
    assert caught.value.reason in ("INVALID_FIELD", "LIMIT_EXCEEDED", "INVALID_PROGRAM")
    assert len(str(caught.value)) > len(field) + 10  # it also says what would be right


GRADIENTS = {
    "nothing to differentiate": (dict(), "spec.objective"),
    "weights of wrong length": (dict(objective="final_height", weights=[1, 2]), "weights"),
    "weights not finite": (dict(objective="final_height", weights=[float("nan")]), "weights[0]"),
    "tolerance of lu": (
        dict(objective="final_height", loops={"projection": sg.Implicit("lu", tol=1e-3)}),
        "loops[0].implicit.tol",
    ),
    "turns of lu": (
        dict(objective="final_height", loops={"projection": sg.Implicit("lu", max_iter=5)}),
        "loops[0].implicit.max_iter",
    ),
    "unknown wrt": (dict(objective="final_height", wrt=["mass"]), "wrt[0]"),
    "wrt twice": (dict(objective="final_height", wrt=["k", "k"]), "wrt[1]"),
    "wrt data": (dict(objective="final_height", wrt=["target"]), "wrt[0]"),
    "cotangent of nobody": (
        dict(cotangents={"state": {"z": [[1.0]]}}),
        "cotangents[0].final_state[0].name",
    ),
    "cotangent of wrong shape": (
        dict(cotangents={"state": {"y": [1.0]}}),
        "cotangents[0].final_state[0].tensor.shape",
    ),
    "trajectory too short": (
        dict(cotangents={"trajectory": {"y": np.zeros((1, 3, 1))}}),
        "cotangents[0].trajectory[0].tensor.shape",
    ),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_a_wrong_gradient_names_the_field(client, case):
    arguments, field = GRADIENTS[case]
    with pytest.raises(sg.InvalidArgument) as caught:
        client.gradient(BALL, **GOOD, **arguments)
    assert caught.value.field.startswith(field), (caught.value.field, str(caught.value))


def inline(change):
    program = program_pb2.Program()
    program.name = "w"
    program.values.add(name="x")
    program.inputs.add(kind=program_pb2.INPUT_KIND_STATE, name="x", value=0)
    program.values.add()
    program.step.ops.add(code="add", operands=[0, 0], results=[1])
    program.step.yields.append(1)
    change(program)
    return sg.World(program=program)


def endless(program):
    op = program.step.ops.add(code="for", max_iter=2**60, carried=1, operands=[1], results=[2])
    program.values.add()
    index, carried = len(program.values), len(program.values) + 1
    program.values.add(element=program_pb2.ELEMENT_TYPE_I32)
    program.values.add()
    op.regions.add(args=[index, carried], yields=[carried])


PROGRAMS = {
    "empty": (lambda p: p.Clear(), "spec.world.program"),
    "unknown operation": (
        lambda p: setattr(p.step.ops[0], "code", "teleport"),
        "spec.world.program.step.ops[0].code",
    ),
    "operand missing": (
        lambda p: p.step.ops[0].operands.pop(),
        "spec.world.program.step.ops[0].operands",
    ),
    "value out of range": (
        lambda p: p.step.ops[0].operands.__setitem__(0, 99),
        "spec.world.program.step.ops[0].operands",
    ),
    "value negative": (
        lambda p: p.step.ops[0].operands.__setitem__(0, -2),
        "spec.world.program.step.ops[0].operands",
    ),
    "types differ": (
        lambda p: setattr(p.values[0], "element", program_pb2.ELEMENT_TYPE_BOOL),
        "spec.world.program",
    ),
    "shapes differ": (lambda p: p.values[0].shape.append(3), "spec.world.program"),
    "shape huge": (
        lambda p: [v.shape.append(2**40) for v in p.values],
        "spec.world.program.values[0]",
    ),
    "shape negative": (
        lambda p: [v.shape.append(-1) for v in p.values],
        "spec.world.program.values[0]",
    ),
    "unknown role": (
        lambda p: setattr(p.step.ops[0], "role", "soul"),
        "spec.world.program.step.ops[0].role",
    ),
    "no next state": (lambda p: p.step.ClearField("yields"), "spec.world.program.step.yields"),
    "endless": (endless, "spec.world.program.step.ops[1]"),
    "too large": (lambda p: p.step.ops.extend([p.step.ops[0]] * 30000), "spec.world.program"),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_a_wrong_program_names_the_place(client, case):
    change, field = PROGRAMS[case]
    with pytest.raises(sg.InvalidArgument) as caught:
        client.rollout(inline(change), steps=3, initial={"x": np.float64(1)})
    assert caught.value.field.startswith(field), (caught.value.field, str(caught.value))


def outcome(call, data):
    """Status code and error of a raw call; OK and None where it is answered."""
    try:
        list(call(data, timeout=60))
        return "OK", None
    except grpc.RpcError as error:
        return error.code().name, errors.from_rpc_error(error)


def test_random_and_truncated_protobuf_never_harms(client):
    """Bytes that are no message, and messages cut or bent anywhere: refused or run, never a lost
    server."""
    good = simgrad_pb2.RolloutRequest()
    good.spec.world.program.CopyFrom(client.program(BALL).source)
    good.spec.steps = 2
    good.spec.policy.preset = "f32"
    original, generator = good.SerializeToString(), np.random.default_rng(23)
    send = client._service.channel.unary_stream("/simgrad.v1.Simgrad/Rollout")
    codes = set()
    for case in range(300):
        bent = bytearray(original if case % 3 else generator.bytes(int(generator.integers(0, 400))))
        if case % 3 == 1:
            del bent[int(generator.integers(0, len(bent))) :]
        elif case % 3 == 2:
            for _ in range(int(generator.integers(1, 8))):
                bent[int(generator.integers(0, len(bent)))] = int(generator.integers(0, 256))
        code, error = outcome(send, bytes(bent))
        codes.add(code)
        assert code != "INVALID_ARGUMENT" or (error.field and error.reason), str(error)
    assert codes <= {"OK", "INVALID_ARGUMENT"}
    assert "INVALID_ARGUMENT" in codes


METHODS = ("GetServerInfo", "ListWorlds", "DescribeProgram", "Rollout", "Gradient")


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_refused_by_name_and_counted(client, server, method):
    def handled():
        page = urllib.request.urlopen(f"http://localhost:{server.metrics_port}/metrics").read()
        series = f'grpc_code="InvalidArgument",grpc_method="{method}"'
        return next(float(x.split()[-1]) for x in page.decode().splitlines() if series in x)

    channel, path = client._service.channel, f"/simgrad.v1.Simgrad/{method}"
    unary = channel.unary_unary(path)
    streams = method in ("Rollout", "Gradient")
    call = channel.unary_stream(path) if streams else lambda x, timeout: [unary(x, timeout=timeout)]
    before = handled()
    # A field that is longer than the message.
    code, error = outcome(call, b"\x0a\x7f")
    assert code == "INVALID_ARGUMENT" and error.field == "request"
    assert error.reason == "INVALID_FIELD" and "2 bytes are no simgrad.v1." in str(error)
    # A call is counted when the server is done with it, a moment after its caller has the answer.
    end = time.monotonic() + 60
    while handled() == before and time.monotonic() < end:
        pass
    assert handled() == before + 1


def test_non_finite_inputs_are_data_and_come_with_certificates(client):
    y = np.array([[0.5], [np.nan], [np.inf]])
    r = client.rollout(BALL, **wrong(initial={"y": y, "v": np.zeros_like(y)}))
    assert r.ok.tolist() == [True, False, False]
    assert [(h.instance, h.phase, h.step) for h in r.health] == [(1, "input", 0), (2, "input", 0)]
    assert {c.instance_id for c in r.certificates} == {1, 2}
    assert all(c.phase == "input" and c.non_finite_class == "input" for c in r.certificates)


def test_raise_carries_result_and_certificates(client):
    with pytest.raises(sg.NonFiniteError, match="1 of 2 instances") as caught:
        client.rollout(
            BALL, **wrong(initial={"y": [[0.5], [np.inf]], "v": [0.0]}), on_nonfinite="raise"
        )
    assert caught.value.result.ok.tolist() == [True, False]
    assert caught.value.certificates[0].instance_id == 1


def test_finite_only_leaves_non_finite_instances_out(client):
    y = np.array([[0.5], [np.nan], [0.7]])
    sent = wrong(initial={"y": y, "v": np.zeros_like(y)})
    g = client.gradient(BALL, **sent, objective="final_height", reduction="finite_only")
    assert g.left_out == 1 and np.isfinite(g.params["k"]) and g.ok.tolist() == [True, False, True]


@pytest.mark.parametrize(
    "world, changes, words",
    [
        (sg.World("bouncing_ball", elements=1e9), {}, "1 to 1048576"),
        (BALL, {"policy": sg.Policy().loss_scale(-1e-9)}, "not -1e-09"),
        (BALL, {"wrt": ["q"]}, "no differentiable param is called 'q'"),
    ],
)
def test_messages_show_numbers_and_kinds_as_a_person_writes_them(client, world, changes, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        client.gradient(world, **wrong(objective="final_height", **changes))


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\U0001f600"])
def test_a_refusal_that_quotes_a_long_name_still_names_the_field(client, letter):
    # gRPC takes 8 KiB of trailing metadata; what is larger would lose the status.
    name = 100_000 * letter
    for world, changes, field in (
        (sg.World(name), {}, "spec.world.name"),
        (sg.World("bouncing_ball", **{name: 1}), {}, "spec.world.config["),
        (BALL, {"policy": name}, "spec.policy.preset"),
        (BALL, {"params": {name: 1.0}}, "spec.params[0].name"),
    ):
        with pytest.raises(errors.InvalidArgument, match=" ... ") as refused:
            client.rollout(world, **wrong(**changes))
        assert refused.value.field.startswith(field) and len(str(refused.value)) <= 1400


def test_all_that_is_missing_is_told_at_once(client):
    with pytest.raises(errors.InvalidArgument) as refused:
        client.rollout(BALL, steps=3, initial={"y": [0.5]})
    assert refused.value.field == "spec.initial"
    assert "state 'v', param 'k' (spec.params) have no default and must be sent" in str(refused.value)
    with pytest.raises(errors.InvalidArgument, match="param 'k' has no default and must be sent"):
        client.rollout(BALL, **wrong(params={}))


def test_of_many_that_are_missing_some_are_named(client):
    b = ProgramBuilder("many")
    states = [b.state(f"s{i}", ()) for i in range(12)]
    b.next(**{f"s{i}": x for i, x in enumerate(states)})
    with pytest.raises(errors.InvalidArgument, match="state 's7', 4 others have no default"):
        client.rollout(sg.World(program=b), steps=1, initial={})


@pytest.mark.parametrize("rows, is_told", [(3, True), (4, False)])
def test_a_control_with_as_many_rows_as_steps_is_told_how_a_value_for_each_is_sent(client, rows, is_told):
    work = dict(steps=3, initial={"y": [[0.5]] * 2, "v": [0.0]}, params={"k": 1.0})
    with pytest.raises(sg.InvalidArgument, match=f"has {rows} instances, but spec.initial.0.*has 2") as refused:
        client.rollout(BALL, controls={"u": np.zeros((rows, 1))}, **work)
    assert ("sent with per_step (simgrad.PerStep)" in str(refused.value)) == is_told
    assert client.rollout(BALL, controls={"u": sg.PerStep(np.zeros((3, 1)))}, **work).ok.all()
    with pytest.raises(sg.InvalidArgument) as refused:  # a state has no value per step
        client.rollout(BALL, **{**work, "initial": {"y": [[0.5]] * 2, "v": [[0.0]] * 3}})
    assert "per_step" not in str(refused.value)
