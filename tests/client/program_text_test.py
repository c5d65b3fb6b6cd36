"""The text of a program is read from the server once, where it did not come with the answer."""

import copy
import pickle
import threading

import grpc
import pytest
from fake_server import answer, client_of, fake, header  # noqa: F401

import simgrad as sg
from simgrad import errors, request
from simgrad.assembly import Assembly
from simgrad.program_text import ProgramText
from simgrad.v1 import program_pb2, simgrad_pb2


class Server:
    """Gives one program, and counts how often it is asked."""

    def __init__(self, text="a = b\n", fingerprint="f1"):
        self.program = simgrad_pb2.ProgramInfo(text=text, fingerprint=fingerprint)
        self.asked = 0

    def ask(self):
        self.asked += 1
        return self.program


def test_a_text_that_came_is_read_without_asking():
    assert ProgramText("x = 1\n").read("f1") == "x = 1\n"


def test_threads_that_read_at_once_ask_once():
    server = Server()
    text = ProgramText(None, server.ask)
    read = []
    threads = [threading.Thread(target=lambda: read.append(text.read("f1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == ["a = b\n"] * 8 and server.asked == 1


def test_a_text_of_another_program_is_refused_and_asked_for_again():
    server = Server(fingerprint="f2")
    text = ProgramText(None, server.ask)
    with pytest.raises(errors.FailedPrecondition, match='program="text"') as raised:
        text.read("f1")
    assert raised.value.reason == "SERVER_CHANGED"
    server.program.fingerprint = "f1"
    assert text.read("f1") == "a = b\n"


def test_copies_share_the_text_and_pickles_take_along_what_was_read():
    server = Server()
    text = ProgramText(None, server.ask)
    unread = pickle.loads(pickle.dumps(text))
    with pytest.raises(errors.FailedPrecondition) as raised:
        unread.read("f1")
    assert raised.value.reason == "CLIENT_CLOSED"
    assert copy.deepcopy(text).read("f1") == "a = b\n"
    assert pickle.loads(pickle.dumps(text)).read("f1") == "a = b\n"
    assert server.asked == 1


def test_the_inputs_of_a_gradient_are_told_to_who_is_asked():
    told = []

    def ask(wrt):
        told.extend((name.kind, name.name) for name in wrt)
        return Server().program

    assembly = Assembly(ask=ask)
    assembly.add(header())
    gradients = [
        simgrad_pb2.InputGradient(kind=kind, name="k")
        for kind in (program_pb2.INPUT_KIND_STATE, program_pb2.INPUT_KIND_PARAM)
    ]
    result = simgrad_pb2.GradientResult(gradients=gradients)
    for gradient in result.gradients:
        gradient.gradient.dtype = 2
        gradient.gradient.shape.append(0)
    assembly.add(simgrad_pb2.GradientPart(result=result))
    assert told == []
    assert assembly.result.program.text == "a = b\n"
    assert told == [(program_pb2.INPUT_KIND_STATE, "k"), (program_pb2.INPUT_KIND_PARAM, "k")]


def test_a_request_says_nothing_of_the_program_unless_its_text_is_asked_for():
    def spec(**arguments):
        return request.rollout_spec(sg.World("w"), dict, steps=1, **arguments)

    assert spec() == spec(program="fingerprint")
    assert "program" not in {field.name for field, _ in spec().ListFields()}
    assert spec(program="text").program == simgrad_pb2.PROGRAM_DETAIL_TEXT
    with pytest.raises(ValueError, match="program 'all': one of fingerprint, text"):
        spec(program="all")


def test_a_result_of_a_closed_client_says_what_to_do(fake):  # noqa: F811
    with client_of(fake.target) as client:
        result = client.rollout(sg.World("still"), steps=8)
        calls = fake.calls
    with pytest.raises(errors.FailedPrecondition, match="client is closed.*program=\"text\"") as raised:
        result.program.text
    assert raised.value.reason == "CLIENT_CLOSED"
    assert fake.calls == calls and result.program.fingerprint == "f1"


def test_a_result_that_took_two_tries_has_the_text_of_its_program(fake):  # noqa: F811
    def breaks_once(n, context):
        parts = list(answer())
        if n == 1:
            yield parts[0]
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        yield from parts

    fake.stream = breaks_once
    with client_of(fake.target) as client:
        result = client.rollout(sg.World("still"), steps=8)
        assert result.tries == 2 and result.program.text == ""
        assert fake.calls == 3  # two tries, and the text
