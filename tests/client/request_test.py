"""What a caller writes becomes the message that means it."""

import numpy as np
import pytest

import simgrad as sg
from simgrad import request
from simgrad.v1 import policy_pb2, program_pb2, simgrad_pb2

STATE, PARAM, CONTROL, DATA = (
    program_pb2.INPUT_KIND_STATE,
    program_pb2.INPUT_KIND_PARAM,
    program_pb2.INPUT_KIND_CONTROL,
    program_pb2.INPUT_KIND_DATA,
)
REAL, I32 = program_pb2.ELEMENT_TYPE_REAL, program_pb2.ELEMENT_TYPE_I32
DECLARED = {
    (STATE, "y"): request.Declaration(1, REAL),
    (PARAM, "k"): request.Declaration(0, REAL),
    (CONTROL, "u"): request.Declaration(1, REAL),
    (CONTROL, "s"): request.Declaration(0, REAL),
    (DATA, "y"): request.Declaration(1, REAL),
    (STATE, "n"): request.Declaration(0, I32),
}


def spec(**arguments):
    return request.rollout_spec(sg.World("w"), lambda: DECLARED, steps=3, **arguments)


@pytest.mark.parametrize(
    "name, shape, per_step",
    [
        ("u", (2,), False),
        ("u", (5, 2), False),
        ("u", (5, 3, 2), True),
        ("s", (), False),
        ("s", (5,), False),
        ("s", (5, 3), True),
    ],
)
def test_two_axes_more_than_declared_are_instance_and_time(name, shape, per_step):
    (control,) = spec(controls={name: np.zeros(shape)}).controls
    assert control.per_step == per_step
    assert tuple(control.tensor.shape) == shape


def test_per_step_marks_a_series_that_all_instances_share():
    (control,) = spec(controls={"u": sg.PerStep(np.zeros((3, 2)))}).controls
    assert control.per_step and list(control.tensor.shape) == [3, 2]


def test_whole_python_numbers_take_the_declared_type():
    sent = spec(initial={"y": [1, 2], "n": 3}, params={"k": 1})
    assert np.frombuffer(sent.initial[0].tensor.inline, "<f8").tolist() == [1.0, 2.0]
    assert np.frombuffer(sent.initial[1].tensor.inline, "<i4").tolist() == [3]
    assert np.frombuffer(sent.params[0].tensor.inline, "<f8").tolist() == [1.0]


def test_the_server_is_not_asked_for_what_is_clear():
    def nobody():
        raise AssertionError("asked")

    request.rollout_spec(
        sg.World("w"),
        nobody,
        steps=1,
        initial={"y": np.zeros((4, 2), np.float32)},
        params={"k": 0.5},
        controls={"u": sg.PerStep(np.zeros((1, 2)))},
    )


def test_wrt_is_looked_for_among_what_was_sent():
    sent = spec(initial={"y": np.zeros(2)}, params={"k": 0.5})
    message = request.gradient_request(sent, lambda: DECLARED, wrt=["k", "y", "control.u"])
    assert [(w.kind, w.name) for w in message.wrt] == [(PARAM, "k"), (STATE, "y"), (CONTROL, "u")]


def test_an_ambiguous_wrt_is_refused():
    sent = spec(initial={"k": np.zeros(2)}, params={"k": 0.5})
    with pytest.raises(ValueError, match="ambiguous"):
        request.gradient_request(sent, lambda: DECLARED, wrt=["k"])


def test_cotangents_weights_and_reduction_travel():
    message = request.gradient_request(
        spec(),
        lambda: DECLARED,
        weights=[1, 2],
        reduction="finite_only",
        cotangents=sg.Cotangents(
            state={"y": np.ones((2, 2), np.float32)}, trajectory={"y": [[[1, 2]]]}
        ),
    )
    assert list(message.weights) == [1.0, 2.0]
    assert message.reduction == simgrad_pb2.INSTANCE_REDUCTION_FINITE_ONLY
    assert message.cotangents[0].final_state[0].name == "y"
    assert list(message.cotangents[0].trajectory[0].tensor.shape) == [1, 1, 2]


@pytest.mark.parametrize(
    "arguments, words",
    [(dict(diagnostics="all"), "off, summary, instances"), (dict(policy=3), "preset")],
)
def test_a_wrong_word_is_answered_with_the_right_ones(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        spec(**arguments)


def test_a_policy_is_never_changed_by_its_methods():
    first = sg.Policy("f16_unsafe")
    second = first.role("termination", format="f32").site("projection", order="exact").loss_scale(8)
    third = second.nonfinite("stop")
    assert first.to_proto() == policy_pb2.Policy(preset="f16_unsafe")
    assert second.to_proto().roles[0].setting == policy_pb2.RoleSetting(format="f32")
    assert second.to_proto().sites[0].site == "projection"
    assert third.to_proto().loss_scale.fixed == 8.0
    assert third.to_proto().non_finite == policy_pb2.NON_FINITE_POLICY_STOP
    assert second.to_proto().non_finite == policy_pb2.NON_FINITE_POLICY_UNSPECIFIED
    assert (
        second
        == sg.Policy("f16_unsafe")
        .role("termination", format="f32")
        .site("projection", order="exact")
        .loss_scale(8)
        and second != third
    )


def test_overrides_of_one_role_or_site_add_up_and_the_last_word_holds():
    policy = (
        sg.Policy("f16_unsafe")
        .role("termination", format="f32", order="exact")
        .site("projection", accumulator="f64")
        .role("solver", order="reversed")
        .role("termination", order="sequential")
        .site("projection", format="f32")
    )
    assert policy == (
        sg.Policy("f16_unsafe")
        .role("termination", format="f32", order="sequential")
        .site("projection", accumulator="f64", format="f32")
        .role("solver", order="reversed")
    )
    assert [r.role for r in policy.to_proto().roles] == ["termination", "solver"]


def test_configuration_keeps_numbers_words_and_flags_apart():
    config = (
        sg.World("w", tol=np.float32(0.5), elements=9, contact="toi", clamp=False).to_proto().config
    )
    assert config["tol"].number == 0.5 and config["elements"].number == 9.0
    assert config["contact"].word == "toi"
    assert config["clamp"].WhichOneof("value") == "flag" and config["clamp"].flag is False


def test_a_world_has_a_name_or_a_program():
    with pytest.raises(TypeError):
        sg.World()
    with pytest.raises(TypeError):
        sg.World("w", program=program_pb2.Program())
    with pytest.raises(TypeError, match="tol"):
        sg.World(program=program_pb2.Program(), tol=1.0)


def test_a_deadline_is_always_finite():
    for bad in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            sg.Client("localhost:1", timeout=bad)


def test_a_policy_is_written_as_it_would_be_typed():
    policy = (
        sg.Policy("f16_safe")
        .role("state", format="f32")
        .site("projection", order="exact")
        .loss_scale(8.0)
        .nonfinite("stop")
    )
    assert eval(repr(policy), {"Policy": sg.Policy}) == policy
    assert repr(sg.Policy().nonfinite("report")) == "Policy('f32').nonfinite('report')"


def test_a_resolved_policy_keeps_the_overrides_of_sites():
    message = policy_pb2.ResolvedPolicy(preset="f16_safe")
    message.sites.add(site="projection", setting=policy_pb2.RoleSetting(format="f32"))
    resolved = sg.results.ResolvedPolicy.of(message)
    assert resolved.sites == {"projection": {"format": "f32"}}


def test_a_server_that_tells_no_limit_is_sent_what_there_is(monkeypatch):
    client = sg.Client("localhost:1")
    service, calls, terms = client._service, client._calls, client._calls.terms()
    monkeypatch.setattr(service, "info", lambda terms: simgrad_pb2.ServerInfo())
    message = simgrad_pb2.RolloutRequest()
    message.spec.initial.add(name="y").tensor.inline = bytes(1 << 20)
    assert not service.start("Rollout", message, calls.new(message, terms), terms, dict).waits
    client.close()


@pytest.mark.parametrize(
    "cuda, mapping",
    [
        (True, simgrad_pb2.CUDA_MAPPING_UNSPECIFIED),
        ("thread_per_instance", simgrad_pb2.CUDA_MAPPING_THREAD_PER_INSTANCE),
        ("block_per_instance", simgrad_pb2.CUDA_MAPPING_BLOCK_PER_INSTANCE),
    ],
)
def test_the_text_of_kernels_is_asked_for_by_mapping(cuda, mapping):
    options = request.cuda_text_options(cuda, ["u"])
    assert options.mapping == mapping and list(options.per_step) == ["u"]


def test_what_the_text_of_kernels_cannot_be_is_refused_before_it_is_sent():
    assert request.cuda_text_options(False, []) is None
    with pytest.raises(ValueError, match="block_per_instance"):
        request.cuda_text_options("warp_per_instance", [])
    with pytest.raises(ValueError, match="cuda=True"):
        request.cuda_text_options(False, ["u"])


@pytest.mark.parametrize("options, words", [
    ({"recrod": ["y"]}, "no option recrod"),
    ({"objective": ["a", "b"]}, "objective is one name"),
    ({"steps": 3.0}, "steps is a whole number"),
])
def test_options_that_cannot_be_are_named(options, words):
    with pytest.raises(TypeError, match=words):
        request.rollout_spec(sg.World("bouncing_ball"), dict, **{"steps": 1, **options})


def test_one_name_of_an_input_may_stand_alone():
    spec = request.rollout_spec(sg.World("bouncing_ball"), dict, steps=1)
    assert [name.name for name in request.gradient_request(spec, dict, wrt="alpha").wrt] == ["alpha"]


def test_loops_and_the_seed_are_part_of_the_message():
    message = request.gradient_request(
        spec(seed=7),
        lambda: DECLARED,
        loops={"newton": sg.Truncated(3), "rest": sg.Implicit("gmres", tol=1e-6, restart=7)},
    )
    assert message.spec.seed == 7
    newton, rest = message.loops
    assert (newton.site, newton.truncated) == ("newton", 3)
    assert (rest.implicit.solver, rest.implicit.tol, rest.implicit.restart) == ("gmres", 1e-6, 7)
    assert request.description(sg.World("w"), None, "", loops=message.loops).loops[1] == rest


def test_policies_are_equal_whatever_the_order_of_their_roles():
    one = sg.Policy("f32").role("state", format="bf16").role("event", format="f64").site("a", format="f16").site("b", format="f64")
    two = sg.Policy("f32").role("event", format="f64").role("state", format="bf16").site("b", format="f64").site("a", format="f16")
    assert one == two and hash(one) == hash(two) and one != one.site("c", format="f32")


def test_a_setting_that_is_no_name_is_refused_by_name():
    for call, said in (
        (lambda: sg.Policy().role("state", format=np.float32), "format is a name, not"),
        (lambda: sg.Policy().role(3, format="f32"), "a role is a name, not 3"),
        (lambda: sg.Policy().site(None, order="pairwise"), "a site is a name, not None"),
    ):
        with pytest.raises(TypeError, match=said):
            call()
