"""Programs that requests name by their SHA-256, so that a large one is copied and sent once.

A request for a world of its own has `program_ref` where the program is large. It is sent as it stands to a
server that keeps the program, and with the program in place of the name to any other (uploads.py). A program
stays here as long as its world has it, or a call or a kept run of it lives (`held`).
Threads: safe.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from typing import Any, Collection, Iterator

from simgrad.v1 import program_pb2, simgrad_pb2
from simgrad.variants import parts_with_world

# Bytes. A smaller program travels with each request: a call takes no longer, and leaves nothing with the server.
LEAST = 6 << 10


class NamedProgram:
    """A program, which does not change.

    Attributes:
      program: the message. content: its bytes. sha256: theirs, [32] bytes.
    """

    def __init__(self, program: program_pb2.Program, content: bytes, sha256: bytes):
        self.program = program
        self.content = content
        self.sha256 = sha256

    def __copy__(self) -> NamedProgram:
        return self

    def __deepcopy__(self, memo: Any) -> NamedProgram:
        return self


_named: weakref.WeakValueDictionary[bytes, NamedProgram] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def named(program: program_pb2.Program) -> NamedProgram | None:
    """A program by its name, as long as the result lives; None where it is small. Cost: that of its bytes."""
    if program.ByteSize() <= LEAST:
        return None
    content = program.SerializeToString(deterministic=True)
    sha256 = hashlib.sha256(content).digest()
    with _lock:
        found = _named.get(sha256)
        if found is None:
            found = _named[sha256] = NamedProgram(program, content, sha256)
        return found


def of(world: simgrad_pb2.World) -> NamedProgram | None:
    """The program that the world of a request names; None where it names none, or one that the server alone knows."""
    if world.WhichOneof("source") != "program_ref":
        return None
    with _lock:
        return _named.get(world.program_ref)


def program_of(world: simgrad_pb2.World) -> program_pb2.Program:
    """The program of the world of a request, named or not; an empty one where it has none."""
    found = of(world)
    return world.program if found is None else found.program


def size_of(message: Any) -> int:
    """The bytes of a request with what it names here."""
    return int(message.ByteSize()) + sum(len(found.content) for _, found in _in(message))


def held(message: Any) -> tuple[NamedProgram, ...]:
    """The programs that a request names, for whoever sends it later."""
    return tuple(found for _, found in _in(message))


def has_any(message: Any, but: Collection[bytes] = ()) -> bool:
    """Whether a request names a program, beside those of these SHA-256."""
    return any(found.sha256 not in but for _, found in _in(message))


def put_whole(message: Any, but: Collection[bytes]) -> None:
    """Puts programs in the place of their names, in this request, but for those of these SHA-256."""
    for world, found in list(_in(message)):
        if found.sha256 not in but:
            world.program.CopyFrom(found.program)


def _in(message: Any) -> Iterator[tuple[simgrad_pb2.World, NamedProgram]]:
    for _, part in parts_with_world(message):
        found = of(part.world)
        if found is not None:
            yield part.world, found
