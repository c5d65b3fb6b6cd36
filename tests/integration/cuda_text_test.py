"""The CUDA text of programs, from a server that needs no GPU for it."""

import json

import pytest

import simgrad as sg
from simgrad import command_line

# One program each per world, configuration and policy.
WORLDS = [
    (sg.World("bouncing_ball", contact="projection", elements=9), "final_penetration"),
    (sg.World("bouncing_ball", contact="toi", elements=3), "final_height"),
    (sg.World("boundary_projection", elements=9), "final_penetration"),
]


def command(capsys, server, *arguments):
    assert command_line.main(["program", *arguments, "--target", server.target]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("mapping", ["thread_per_instance", "block_per_instance"])
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("policy", ["f32", "bf16_safe"])
@pytest.mark.parametrize("world, objective", WORLDS)
def test_every_kernel_of_a_world_and_of_its_inline_program_is_there(
    client, world, objective, policy, adjoint, mapping
):
    ask = dict(policy=policy, objective=objective, adjoint=adjoint, cuda=mapping)
    program = client.program(world, **ask)
    assert program.cuda.mapping == mapping
    kernels = {"start", "forward", "merge", "finish"}
    if adjoint:
        kernels |= {"start_adjoint", "adjoint", "finish_adjoint"}
    for kernel in kernels:
        assert program.cuda.text.count(f"void simgrad_{kernel}(") == 1
    assert ("simgrad_adjoint(" in program.cuda.text) == adjoint
    assert ("_bf16(" in program.cuda.text) == (policy == "bf16_safe")
    inline = client.program(sg.World(program=program.source), **ask)
    assert inline.cuda == program.cuda


def test_a_step_axis_shapes_the_text(client):
    world, objective = WORLDS[0]
    ask = dict(objective=objective, adjoint=True, cuda=True)
    shared = client.program(world, **ask).cuda
    assert client.program(world, per_step=["u"], **ask).cuda.text != shared.text
    with pytest.raises(sg.InvalidArgument) as refused:
        client.program(world, per_step=["k"], **ask)
    assert refused.value.field == "cuda.per_step[0]"


def test_without_asking_there_is_no_text(client):
    assert client.program(WORLDS[0][0]).cuda is None


def test_the_command_prints_the_text_and_its_numbers(capsys, server, client):
    world = ["--world", "bouncing_ball", "--config", "elements=9", "--config", "tol=0x1p-7"]
    of_client = client.program(sg.World("bouncing_ball", elements=9, tol=2**-7), cuda=True).cuda
    text = command(capsys, server, *world, "--cuda")
    assert text.startswith(of_client.text)
    assert f"// args.number[{of_client.numbers.index(2**-7)}] is 0.0078125\n" in text
    answer = json.loads(command(capsys, server, *world, "--cuda", "--json"))
    assert answer["cuda"] == {
        "mapping": "thread_per_instance",
        "text": of_client.text,
        "numbers": list(of_client.numbers),
        "integers": list(of_client.integers),
    }
    block = command(capsys, server, *world, "--cuda", "block_per_instance", "--policy", "f16_safe")
    assert block.startswith("// bouncing_ball: block_per_instance")
