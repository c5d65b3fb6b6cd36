"""Requests that differ in a few parts, as one request of Compare, and what is said of its fields."""

import numpy as np
import pytest

import simgrad as sg
from simgrad import errors, named_programs, request, uploads
from simgrad.program import ProgramBuilder
from simgrad.program_lines import add_line
from simgrad.v1 import simgrad_pb2
from simgrad.variants import compare_request

BALL = sg.World("bouncing_ball", contact="toi")
WORK = dict(steps=5, initial={"y": [0.5], "v": [0.0]}, params={"restitution": 0.8}, policy="f64", path=True)


def named(name, label="world.py:1"):
    b = ProgramBuilder(name)
    b.next(x=b.state("x") * 0.7)
    program = b.build()
    for op in program.step.ops:
        op.label = label
    return sg.World(program=program)


def asked(world=BALL, gradient=True, **changes):
    arguments = {**WORK, **({"objective": "final_height"} if gradient else {}), **changes}
    return request.request_of(world, dict, gradient, arguments)


def applied(message, variant):
    """The request of one variant, as the comments of the messages say it."""
    work = getattr(message, message.WhichOneof("work"))
    made = type(work)()
    made.CopyFrom(work)
    for field in ("policy", "world", "steps", "seed"):
        if variant.HasField(field):
            made.spec.ClearField(field)
            made.spec.MergeFrom(simgrad_pb2.RolloutSpec(**{field: getattr(variant, field)}))
    for group in ("initial", "params", "controls", "data"):
        sent = {t.name: t for t in (*getattr(made.spec, group), *getattr(variant, group))}
        kept = list(sent.values())
        made.spec.ClearField(group)
        getattr(made.spec, group).extend(kept)
    return made


@pytest.mark.parametrize("gradient", [False, True])
def test_a_request_of_compare_says_what_its_requests_ask(gradient):
    changes = [
        {},
        dict(policy="f32"),
        dict(world=sg.World("bouncing_ball", contact="penalty"), steps=7),
        dict(seed=3, params={"restitution": np.array([0.8, 0.9])}),
        dict(controls={"push": [1.0]}, data={"wind": sg.PerStep([1.0] * 5)}, initial={"y": [0.5], "v": [-0.0]}),
        dict(seed=0, policy="f64"),
    ]
    message = compare_request((asked(gradient=gradient, **c) for c in changes), sends_paths=True)
    assert message.WhichOneof("work") == ("gradient" if gradient else "rollout") and not message.without_paths
    for change, variant in zip(changes[1:], message.variants):
        assert applied(message, variant) == asked(gradient=gradient, **change), change
    sizes = [[len(getattr(v, g)) for g in ("initial", "params", "controls", "data")] for v in message.variants]
    assert sizes == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0]]
    assert message.variants[4] == simgrad_pb2.Variant()


def test_a_number_that_becomes_zero_is_set():
    message = compare_request([asked(seed=4), asked(seed=0), asked(steps=0, seed=4)], sends_paths=False)
    first, second = message.variants
    assert first.HasField("seed") and first.seed == 0 and not first.HasField("steps")
    assert second.HasField("steps") and second.steps == 0


def test_paths_are_recorded_as_asked_and_sent_where_they_are_wanted():
    for path, sends, without, record in ((True, True, False, True), (True, False, False, False), (False, False, True, False)):
        message = compare_request([asked(path=path), asked(path=path, seed=1)], sends_paths=sends)
        assert (message.without_paths, message.gradient.spec.path.record) == (without, record)
        assert message.gradient.spec.HasField("path") == record


@pytest.mark.parametrize(
    "change",
    [
        dict(params={}),  # the variant would have the input of the reference
        dict(wrt=["y"]),
        dict(objective=""),
        dict(instances=3),
        dict(diagnostics="off"),
        dict(path=False),
        dict(weights=[1.0]),
        dict(record=["y"]),
    ],
)
def test_what_no_variant_can_say_is_no_request_of_compare(change):
    assert compare_request([asked(), asked(seed=1), asked(**change)], sends_paths=False) is None


def test_a_request_that_is_too_large_names_the_largest_field_of_any_variant():
    large = {"y": np.zeros((4000, 1)), "v": [0.0]}
    message = compare_request([asked(), asked(seed=1), asked(initial=large)], sends_paths=False)
    with pytest.raises(sg.ResourceExhausted, match=r"variants\[1\].initial\[0\].tensor: the request has"):
        request.check_size(message, message.ByteSize(), 1000)
    with pytest.raises(sg.ResourceExhausted, match=r"spec.initial\[0\].tensor: the request has"):
        message = compare_request([asked(initial=large), asked()], sends_paths=False)
        request.check_size(message, message.ByteSize(), 1000)
    weighed = asked(weights=np.ones(4000))
    message = compare_request([weighed, asked(weights=np.ones(4000), seed=1)], sends_paths=False)
    with pytest.raises(sg.ResourceExhausted, match="weights: the request has"):
        request.check_size(message, message.ByteSize(), 1000)


def test_an_error_about_the_program_of_a_variant_has_its_line():
    work = dict(steps=1, initial={"x": 0.5})
    requests = [request.request_of(w, dict, False, work) for w in (named("a", "a.py:1"), named("b", "b.py:2"))]
    message = compare_request(requests, sends_paths=False)
    for field, line in (("variants[0].world.program.step.ops[0]", "b.py:2"), ("spec.world.program.step.ops[0]", "a.py:1")):
        error = errors.InvalidArgument("wrong", violations=(errors.FieldViolation(field, "wrong"),))
        add_line(error, message)
        assert error.line == line and str(error) == f"{line}: wrong"


def test_large_content_of_each_variant_may_be_named(monkeypatch):
    monkeypatch.setattr(named_programs, "LEAST", 50)
    worlds = [named("a"), named("b" * 100)]
    requests = [
        request.request_of(worlds[k], dict, False, dict(steps=1, initial={"x": np.full(200, value)}))
        for k, value in ((0, 0.0), (1, 1.0), (0, 2.0))
    ]
    message = compare_request(requests, sends_paths=False)
    copy = type(message)()
    copy.CopyFrom(message)
    parts = list(uploads._parts(message, uploads.Least(50, 50), 1 << 20))
    names = ["program", "initial x", "variants[0].program", "variants[0].initial x", "variants[1].initial x"]
    assert [part.name for part in parts] == names
    for part in parts:
        part.refer(copy, part.name.encode())
    assert copy.rollout.spec.initial[0].tensor.ref == b"initial x"
    assert copy.variants[1].initial[0].tensor.ref == b"variants[1].initial x"
    programs = [part.sha256 for part in parts if part.sha256]
    assert programs == [message.rollout.spec.world.program_ref, message.variants[0].world.program_ref]
    named_programs.put_whole(copy, programs[:1])
    assert copy.rollout.spec.world.program_ref == programs[0] and copy.variants[0].world.program == worlds[1].program
    # A message that is read for its parts stays as it was: an empty world or path is none.
    assert not message.variants[1].HasField("world") and not message.rollout.spec.HasField("path")
