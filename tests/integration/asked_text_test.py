"""What an answer says of its program: the fingerprint always, the text where it is asked for."""

import hashlib
import json

import numpy as np
import pytest

import simgrad as sg
from simgrad import command_line, errors
from simgrad.program import ProgramBuilder
from simgrad.v1 import simgrad_pb2

BALL = dict(
    steps=3, initial={"y": np.ones((2, 1)), "v": np.zeros((2, 1))}, params={"k": 1.0}
)


def chain(operations):
    b = ProgramBuilder("chain")
    x = b.state("x", ())
    k = b.param("k", (), default=0.5)
    total = x
    for _ in range(operations):
        total = total * k
    b.next(x=total)
    return sg.World(program=b.build())


def messages(client, request):
    return list(client._service.stub.Rollout(request, timeout=60))


def test_the_header_of_five_thousand_operations_is_small_unless_its_text_is_asked_for(client):
    world = chain(5000)
    spec = simgrad_pb2.RolloutSpec(world=world.to_proto(), steps=1)
    spec.initial.add(name="x").tensor.CopyFrom(sg.arrays.to_tensor(np.float32(1.0)))
    plain = messages(client, simgrad_pb2.RolloutRequest(spec=spec))
    spec.program = simgrad_pb2.PROGRAM_DETAIL_FINGERPRINT
    named = messages(client, simgrad_pb2.RolloutRequest(spec=spec))
    spec.program = simgrad_pb2.PROGRAM_DETAIL_TEXT
    whole = messages(client, simgrad_pb2.RolloutRequest(spec=spec))
    size, same, with_text = (sum(m.ByteSize() for m in answer) for answer in (plain, named, whole))
    described = client.program(world)
    assert size < 4096 and abs(same - size) < 64
    assert with_text - size >= len(described.text.encode()) > 100_000
    headers = [answer[0].parts[0].header.program for answer in (plain, whole)]
    assert [h.fingerprint for h in headers] == [described.fingerprint] * 2
    assert [h.text for h in headers] == ["", described.text]
    assert headers[0].policy == headers[1].policy


def test_a_text_that_is_read_is_that_of_the_program_that_ran(client):
    world = sg.World("bouncing_ball", elements=1)
    plain = client.rollout(world, **BALL, policy="bf16_safe", objective="final_height")
    whole = client.rollout(
        world, **BALL, policy="bf16_safe", objective="final_height", program="text"
    )
    assert plain.program.text == whole.program.text
    assert plain.program == whole.program
    digest = hashlib.sha256(plain.program.text.encode()).hexdigest()
    assert digest == plain.program.fingerprint


@pytest.mark.parametrize(
    "arguments",
    [
        {"objective": "final_height"},
        {"objective": "final_height", "wrt": ["k"]},
        {"objective": "final_height", "wrt": ["state.v", "param.k"]},
        {"cotangents": {"state": {"y": np.ones((2, 1))}}},
        {
            "objective": "final_penetration",
            "record": ["penetration"],
            "cotangents": {
                "state": {"v": np.ones((2, 1))},
                "trajectory": {"y": np.ones((2, 4, 1)), "penetration": np.ones((2, 3, 1))},
            },
        },
    ],
)
def test_the_text_of_a_gradient_is_that_of_the_adjoint_it_asked_for(client, arguments):
    world = sg.World("bouncing_ball", elements=1)
    plain = client.gradient(world, **BALL, **arguments)
    whole = client.gradient(world, **BALL, **arguments, program="text")
    assert plain.program.text == whole.program.text
    with client.gradient_stream(world, **BALL, **arguments, program="text") as stream:
        assert stream.result.program.text == whole.program.text
    wrt = [f"{kind}.{name}" for kind, names in zip(
        ("state", "param", "control"), (whole.initial, whole.params, whole.controls)
    ) for name in names]
    described = client.program(
        world,
        objective=arguments.get("objective", ""),
        adjoint=True,
        wrt=wrt,
        cotangents=arguments.get("cotangents"),
    )
    assert described.fingerprint == plain.program.fingerprint


def test_a_text_beyond_one_message_comes_with_the_answer_and_not_later(serve):
    client = serve("--max_message_bytes=65536")
    world = chain(3000)
    sent = dict(steps=1, initial={"x": 1.0})
    whole = client.rollout(world, **sent, program="text").program
    assert len(whole.text) > 65536
    assert hashlib.sha256(whole.text.encode()).hexdigest() == whole.fingerprint
    later = client.rollout(world, **sent).program
    assert later.fingerprint == whole.fingerprint
    with pytest.raises(errors.InvalidArgument, match='program="text"') as refused:
        later.text
    assert (refused.value.field, refused.value.reason) == ("world", "LIMIT_EXCEEDED")


def test_an_adjoint_that_is_described_names_what_is_wrong(client):
    world = sg.World("bouncing_ball", elements=1)
    for arguments, field in (
        ({"adjoint": True}, "objective"),
        ({"adjoint": True, "cotangents": {"state": ["z"]}}, "cotangent_final_state[0]"),
        ({"adjoint": True, "cotangents": {"trajectory": ["z"]}}, "cotangent_trajectory[0]"),
        ({"wrt": ["param.k"]}, "wrt"),
    ):
        with pytest.raises(errors.InvalidArgument) as raised:
            client.program(world, **arguments)
        assert raised.value.field == field


def test_the_command_line_shows_the_text_where_it_is_asked_to(capsys, server, client):
    arguments = ["rollout", "--world", "bouncing_ball", "--config", "elements=1", "--steps", "1"]
    arguments += ["--initial", "y=1", "--initial", "v=0", "--param", "k=1"]
    arguments += ["--target", server.target]
    text = client.program(sg.World("bouncing_ball", elements=1)).text
    assert command_line.main([*arguments, "--program"]) == 0
    assert text.rstrip("\n") in capsys.readouterr().out
    assert command_line.main([*arguments, "--program", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["program"] == text
    assert command_line.main([*arguments, "--json"]) == 0
    assert "program" not in json.loads(capsys.readouterr().out)
