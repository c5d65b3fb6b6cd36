"""Client and server of different releases: what a release said is still understood, to the same bits.

Old requests are sent to this server, old answers are given to this client. Each release is a tape
(release_tape.py).
"""

import base64
import json

import grpc
import pytest
import release_tape
from release_tape import CALLS, FOLDER, STREAMS, Upstream, between, bits

import simgrad as sg

RELEASES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
CASES = [
    pytest.param(tape[name], name, id=f"{release}: {name}")
    for release, tape in RELEASES.items()
    for name in tape
]
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def exchange_of(recorded, method):
    (found,) = [e for e in recorded["exchanges"] if e["method"] == method]
    return found


def work_of(recorded):
    (found,) = [e for e in recorded["exchanges"] if e["method"] in STREAMS]
    return found


def test_there_is_a_tape_and_it_holds_every_call():
    assert RELEASES
    assert all(tape.keys() == CALLS.keys() for tape in RELEASES.values())


@pytest.mark.parametrize(("recorded", "name"), CASES)
def test_this_server_answers_an_old_client_with_the_same_bits(server, recorded, name):
    """This client puts the parts of the answer together, nothing else."""
    upstream = Upstream(server.target)

    def answer(method, request):
        yield from upstream(method, base64.b64decode(exchange_of(recorded, method)["request"]))

    with between(answer) as standing, sg.Client(standing.target, timeout=120) as client:
        assert bits(CALLS[name](client)) == recorded["bits"]
    upstream.close()


@pytest.mark.parametrize(("recorded", "name"), CASES)
def test_this_client_reads_the_answers_of_an_old_server(recorded, name):
    def answer(method, request):
        for message in exchange_of(recorded, method)["answer"]:
            yield base64.b64decode(message)

    with between(answer) as standing, sg.Client(standing.target, timeout=120) as client:
        assert bits(CALLS[name](client)) == recorded["bits"]


@pytest.mark.parametrize(("recorded", "name"), CASES)
def test_a_newer_clients_field_is_refused_by_name_and_never_ignored(server, recorded, name):
    work, upstream = work_of(recorded), Upstream(server.target)
    field = bytes([0b1111_1000, 0x3E, 1])  # number 1007, a varint
    with pytest.raises(grpc.RpcError) as refused:
        list(upstream(work["method"], base64.b64decode(work["request"]) + field))
    assert refused.value.code() == INVALID and "1007" in refused.value.details()
    upstream.close()


def test_a_tape_is_of_the_calls_as_they_are_made_today(server):
    """Else the newest tape would test calls that nobody makes."""
    newest = RELEASES[max(RELEASES)]
    made = release_tape.record(server.target)
    assert {n: made[n]["bits"] for n in made} == {n: newest[n]["bits"] for n in newest}
