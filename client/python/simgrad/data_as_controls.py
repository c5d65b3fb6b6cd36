"""A world whose data are controls: the same numbers, and a gradient by them."""

from __future__ import annotations

from typing import Any, Sequence

from simgrad.client import Client
from simgrad.v1 import program_pb2, simgrad_pb2
from simgrad.v1.program_pb2 import INPUT_KIND_CONTROL, INPUT_KIND_DATA
from simgrad.world import WithDefaults, World


def data_as_controls(client: Client, world: World, names: Sequence[str], **how: Any) -> World:
    """A world with the same steps and costs, in which these data are controls.

    Args:
      how: timeout and retry of the call that asks for the program of a built-in world.
    Errors: ValueError for names that are no data, or name a control as well; those of Client.program.
    """
    source = world.program if world.program is not None else client.program(world, **how).source
    assert source is not None, "Client.program gives the source"
    program = program_pb2.Program()
    program.CopyFrom(source)
    kinds = {(i.kind, i.name) for i in program.inputs}
    for name in names:
        if (INPUT_KIND_DATA, name) not in kinds:
            raise ValueError(f"{world.name} has no data {name}")
        if (INPUT_KIND_CONTROL, name) in kinds:
            raise ValueError(
                f"{world.name} has a control {name} as well: rename one of them, or detach the data"
            )
    for i in program.inputs:
        if i.kind == INPUT_KIND_DATA and i.name in names:
            i.kind = INPUT_KIND_CONTROL
    defaults = {kind: dict(arrays) for kind, arrays in world.array_defaults.items()}
    for name in names:
        defaults.get(INPUT_KIND_DATA, {}).pop(name, None)
    return WithDefaults(simgrad_pb2.World(program=program), defaults)
