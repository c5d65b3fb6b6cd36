"""Client and server of different releases: what a release said is still understood, to the same bits.

Old requests are sent to this server, old answers are given to this client. Each release is a tape
(release_tape.py).
"""

import base64
import collections.abc
import functools
import json
import types

import grpc
import pytest
import release_tape
from release_tape import CALLS, FOLDER, STREAMS, Upstream, between, bits

import simgrad as sg
from simgrad.v1 import simgrad_pb2

RELEASES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
CASES = [
    pytest.param(tape[name], name, id=f"{release}: {name}")
    for release, tape in RELEASES.items()
    for name in tape
]
INVALID = grpc.StatusCode.INVALID_ARGUMENT
METHODS = simgrad_pb2.DESCRIPTOR.services_by_name["Simgrad"].methods_by_name


def exchange_of(recorded, method):
    (found,) = [e for e in recorded["exchanges"] if e["method"] == method]
    return found


def work_of(recorded):
    return [e for e in recorded["exchanges"] if e["method"] in STREAMS]


def request_of(method, encoded):
    return getattr(simgrad_pb2, METHODS[method].input_type.name).FromString(encoded)


def fields_of(message):
    """Fields that a message and those in it set, each as MESSAGE.field."""
    found = set()
    for field, value in message.ListFields():
        found.add(f"{message.DESCRIPTOR.name}.{field.name}")
        if field.message_type is None:
            continue
        many = value.values() if isinstance(value, collections.abc.Mapping) else value
        for each in [value] if hasattr(value, "ListFields") else many:
            found |= fields_of(each) if hasattr(each, "ListFields") else set()
    return found


def asks(recorded, method, request):
    """What a client of the release asks for, of a run that this server keeps."""
    asked = base64.b64decode(exchange_of(recorded, method)["request"])
    if method != "Vjp":
        return asked
    of_release = request_of(method, asked)
    of_release.handle = request_of(method, request).handle
    return of_release.SerializeToString()


def answers_of_old_server(recorded, call):
    """The result of this client's call, and the fields of its requests that the release did not send in this call.

    A server refuses fields that it does not know.
    """
    unknown = set()

    def answer(method, request):
        exchange = exchange_of(recorded, method)
        sent = base64.b64decode(exchange["request"])
        unknown.update(fields_of(request_of(method, request)) - fields_of(request_of(method, sent)))
        for message in exchange["answer"]:
            yield base64.b64decode(message)

    with between(answer) as standing, sg.Client(standing.target, timeout=120) as client:
        return call(client), unknown


def test_there_is_a_tape_and_it_holds_every_call():
    assert RELEASES
    assert all(tape.keys() == CALLS.keys() for tape in RELEASES.values())


@pytest.mark.parametrize(("recorded", "name"), CASES)
def test_this_server_answers_an_old_client_with_the_same_bits(server, recorded, name):
    """This client puts the parts of the answer together, nothing else."""
    upstream = Upstream(server.target)

    def answer(method, request):
        yield from upstream(method, asks(recorded, method, request))

    with between(answer) as standing, sg.Client(standing.target, timeout=120) as client:
        assert bits(CALLS[name](client)) == recorded["bits"]
    upstream.close()


@pytest.mark.parametrize(("recorded", "name"), CASES)
def test_this_client_asks_an_old_server_for_what_it_knows_and_reads_its_answers(recorded, name):
    made, unknown = answers_of_old_server(recorded, CALLS[name])
    assert not unknown
    assert bits(made) == recorded["bits"]


def test_a_field_that_the_release_did_not_send_would_be_seen():
    recorded = RELEASES[max(RELEASES)]["bf16"]
    newer = lambda client: types.SimpleNamespace(gradient=functools.partial(client.gradient, return_tree=True))
    _, unknown = answers_of_old_server(recorded, lambda client: CALLS["bf16"](newer(client)))
    assert unknown == {"GradientRequest.return_tree"}


@pytest.mark.parametrize(("recorded", "name"), CASES)
def test_a_newer_clients_field_is_refused_by_name_and_never_ignored(server, recorded, name):
    upstream = Upstream(server.target)
    field = bytes([0b1111_1000, 0x3E, 1])  # number 1007, a varint
    for work in work_of(recorded):
        with pytest.raises(grpc.RpcError) as refused:
            list(upstream(work["method"], base64.b64decode(work["request"]) + field))
        assert refused.value.code() == INVALID and "1007" in refused.value.details()
    upstream.close()


def test_a_tape_is_of_the_calls_as_they_are_made_today(server):
    """Else the newest tape would test calls that nobody makes."""
    newest = RELEASES[max(RELEASES)]
    made = release_tape.record(server.target)
    assert {n: made[n]["bits"] for n in made} == {n: newest[n]["bits"] for n in newest}
