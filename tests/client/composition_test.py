"""sg.compose makes one program of a world and a controller."""

import numpy as np
import pytest

import simgrad as sg
from simgrad import request
from simgrad.v1 import program_pb2

CONTROL, PARAM = program_pb2.INPUT_KIND_CONTROL, program_pb2.INPUT_KIND_PARAM


@sg.world
def pendulum(angle: sg.State, speed: sg.State, gravity: sg.Param = 9.81, torque: sg.Control = 0.0, wind: sg.Control = 0.0):
    pull = -gravity * np.sin(angle) + wind
    speed = speed + 0.01 * (torque + pull)
    sg.observe("height", 1.0 - np.cos(angle))
    sg.observe("work", torque * speed)
    return {"angle": angle + 0.01 * speed, "speed": speed}


@pendulum.objective
def end(speed, torque):
    return speed * speed + torque


@pendulum.stage_cost
def effort(torque, work):
    return torque * torque + work


@sg.controller
def feedback(angle, height, gain: sg.Param[2] = 0.0):
    return gain[0] * angle + gain[1] * height


def inputs(world, kind):
    return [i.name for i in world.program.inputs if i.kind == kind]


def test_a_control_becomes_an_observable_and_weights_become_params():
    closed = sg.compose(pendulum, feedback, control="torque")
    assert inputs(closed, CONTROL) == ["wind"] and inputs(closed, PARAM) == ["gravity", "gain"]
    assert [e.name for e in closed.program.exports] == ["height", "work", "torque"]
    assert inputs(pendulum, CONTROL) == ["torque", "wind"], "the world itself stays as it is"
    assert closed.base is pendulum and closed.controllers == (feedback,) and closed.name == "pendulum"
    assert sg.compose(pendulum, feedback, control="torque", name="closed").name == "closed"


def test_the_network_has_its_role_and_nothing_else_has():
    closed = sg.compose(pendulum, feedback, control="torque")
    roles = [op.role for op in closed.program.step.ops]
    before, after = len(pendulum.program.step.ops), roles.count("network")
    assert after > 0 and len(roles) == before + after
    assert "network" not in [op.role for op in sg.compose(pendulum, feedback, control="torque", role="").program.step.ops]


def test_what_the_controller_reads_is_computed_before_it_and_the_rest_stays_in_order():
    """`height` is written behind the first use of the torque."""
    ops = sg.compose(pendulum, feedback, control="torque").program.step.ops
    codes = [op.code for op in ops]
    assert codes.index("cos") < [op.role for op in ops].index("network")
    defined = {i.value for i in sg.compose(pendulum, feedback, control="torque").program.inputs}
    for op in ops:
        assert defined.issuperset(op.operands), op
        defined.update(op.results)
    line = ops[codes.index("cos")].label
    rest = [(op.label, op.code) for op in ops if op.role != "network"]
    plain = [(op.label, op.code) for op in pendulum.program.step.ops]
    assert sorted(rest) == sorted(plain)
    assert [x for x in rest if x[0] != line] == [x for x in plain if x[0] != line]


def test_a_controller_reads_the_step_of_a_world_that_does_not():
    @sg.controller
    def timed(angle, step, gain: sg.Param = 1.0):
        return gain * angle * step

    kinds = lambda world: [i.kind for i in world.program.inputs]
    closed = sg.compose(pendulum, timed, control="torque")
    assert kinds(closed).count(program_pb2.INPUT_KIND_STEP) == 1 and inputs(closed, program_pb2.INPUT_KIND_STEP) == ["step"]
    assert kinds(sg.compose(closed, timed_wind)).count(program_pb2.INPUT_KIND_STEP) == 1
    assert program_pb2.INPUT_KIND_STEP not in kinds(sg.compose(pendulum, feedback, control="torque"))


@sg.controller
def timed_wind(step):
    return 0.1 * step


def test_a_control_inside_loops_and_branches_is_replaced():
    @sg.world
    def looped(x: sg.State, u: sg.Control = 0.0):
        y = sg.for_loop(3, lambda i, y: 0.5 * y + u, x)
        return sg.cond(y > 1.0, lambda: y - u, lambda: u)

    before = next(i.value for i in looped.program.inputs if i.name == "u")
    closed = sg.compose(looped, lambda x: 2.0 * x).program
    text = str(closed.step)
    assert f"operands: {before}\n" not in text and f"yields: {before}\n" not in text


def test_controllers_come_one_after_the_other():
    @sg.controller(push=sg.Param())
    def against(torque, push):
        return push * torque

    once = sg.compose(pendulum, feedback, control="torque")
    twice = sg.compose(once, against)
    assert inputs(twice, CONTROL) == [] and inputs(twice, PARAM) == ["gravity", "gain", "push"]
    assert twice.controllers == (feedback, against)
    assert [e.name for e in twice.program.exports] == ["height", "work", "torque", "wind"]


def test_one_controller_computes_several_controls():
    both = sg.compose(pendulum, lambda angle: (angle, -angle))
    assert inputs(both, CONTROL) == []
    named = sg.compose(pendulum, lambda angle: {"wind": -angle, "torque": angle})
    exports = {e.name: e.value for e in named.program.exports}
    codes = {op.results[0]: op.code for op in named.program.step.ops}
    assert codes[exports["wind"]] == "neg" and "neg" != codes.get(exports["torque"])


def test_sites_of_a_controller_have_names_of_their_own():
    def step(x):
        return np.where(x > 1.0, 0.5, -0.5)

    def world_step():
        @sg.world(name="sites", x=sg.State(), u=sg.Control())
        def step(x, u):
            return np.where(x > 2.0, x + u, x - u)

        return step

    closed = sg.compose(world_step(), step)
    sites = [op.decision_site for op in closed.program.step.ops if op.decision_site]
    assert sorted(sites) == ["step.1", "step.2"]


def test_array_defaults_go_along():
    @sg.world
    def spin(x: sg.State[2] = (1.0, 2.0), u: sg.Control[2] = np.array([3.0, 4.0])):
        return x + u

    @sg.controller
    def turn(x, m: sg.Param[2, 2] = np.eye(2), k: sg.Param = 2.0):
        return k * (m @ x)

    closed = sg.compose(spin, turn)
    sent = request.rollout_spec(closed, dict, steps=1)
    assert [t.name for t in sent.initial] == ["x"] and [t.name for t in sent.params] == ["m"]
    assert not sent.controls


def test_a_controller_says_which_of_its_inputs_are_weights():
    @sg.controller
    def network(angle, speed, w: sg.Weights[2] = np.ones(2), gain: sg.Param = 1.0, b: sg.Weights = 0.0):
        return gain * (w @ np.stack([angle, speed]) + b)

    closed = sg.compose(pendulum, network, control="torque")
    assert inputs(closed, PARAM) == ["gravity", "w", "gain", "b"]
    assert [i.name for i in closed.program.inputs if i.weights] == ["w", "b"]
    twice = sg.compose(closed, lambda angle: angle)
    assert [i.name for i in twice.program.inputs if i.weights] == ["w", "b"]


def test_annotations_may_be_text():
    size = 3

    @sg.controller
    def linear(angle, row: "sg.Param[size]" = 0.0):
        return row[0] * angle

    assert linear.weights["row"].shape == (3,)
    assert inputs(sg.compose(pendulum, linear, control="torque"), PARAM) == ["gravity", "row"]


def test_a_composed_world_is_saved_and_loaded(tmp_path):
    closed = sg.compose(pendulum, feedback, control="torque")
    closed.save(tmp_path / "closed.txtpb")
    assert sg.World.load(tmp_path / "closed.txtpb").program == closed.program


@sg.world
def starting(x: sg.State, u: sg.Control = 0.0):
    return x + u


@starting.initial
def begin(x, u):
    return {"x": x + u}


@sg.world
def named_twice(x: sg.State, k: sg.Param = 1.0, u: sg.Control = 0.0):
    sg.observe("k", 2.0 * k)
    return x + u


@sg.world
def observed_otherwise(x: sg.State, u: sg.Control = 0.0):
    sg.observe("u", 2.0 * u)
    return x + u


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: sg.compose(sg.World("bouncing_ball"), feedback), r"client.program\(world\).source"),
        (lambda: sg.compose(pendulum, feedback, control="push"), "has no control push; it has torque, wind"),
        (lambda: sg.compose(sg.compose(pendulum, lambda angle: (angle, angle)), feedback), "no control that a controller could compute"),
        (lambda: sg.compose(pendulum, lambda mass: mass, control="torque"), "has no mass to read; it has angle, gravity"),
        (lambda: sg.compose(pendulum, lambda torque: torque, control="torque"), "torque: it is what a controller computes"),
        (lambda: sg.compose(pendulum, lambda work: work, control="torque"), "cannot read work: it depends on torque"),
        (lambda: sg.compose(pendulum, lambda angle: np.stack([angle, angle]), control="torque"), r"control torque is real\[\], and becomes real\[2\]"),
        (lambda: sg.compose(pendulum, lambda angle: {"force": angle}, control="torque"), "computes force, and is asked for torque"),
        (lambda: sg.compose(named_twice, lambda k: k), "cannot read k: two inputs or observables have this name"),
        (lambda: sg.compose(observed_otherwise, lambda x: x), "control u would be observed under its name"),
        (lambda: sg.compose(starting, lambda x: x), "its initial state from control u"),
        (lambda: sg.compose(named_twice, sg.controller(k=sg.Param())(lambda x, k: k * x)), "has params of these names"),
    ],
)
def test_what_does_not_fit_is_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_control_of_another_element_type_is_told_with_its_conversion():
    @sg.world
    def counted(x: sg.State, n: sg.Control(dtype="i32") = 0, on: sg.Control(dtype="bool") = False):
        return {"x": x + n + np.where(on, 1.0, 0.0)}

    told = lambda words: pytest.raises(ValueError, match=words)
    with told(r'control n is i32\[\], and becomes real\[\]: x.astype\("i32"\) converts it$'):
        sg.compose(counted, lambda x: 2.0 * x, control="n")
    with told(r"control on is bool\[\], and becomes real\[\]: a comparison makes bools, as x > 0$"):
        sg.compose(counted, lambda x: x, control="on")
    sg.compose(counted, lambda x: ((2.0 * x).astype("i32"), x > 0))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: sg.compose(pendulum, lambda angle: angle), "returns torque, wind, in this order"),
        (lambda: sg.compose("pendulum", feedback), "world is a simgrad.World"),
        (lambda: sg.compose(pendulum, 3.0), "controller: sg.controller"),
        (lambda: sg.controller(x=sg.State())(lambda x: x), "x is read from the world"),
        (lambda: sg.controller(k=sg.Param())(lambda x: x), "has no argument k"),
    ],
)
def test_what_is_no_controller_is_told(make, words):
    with pytest.raises(TypeError, match=words):
        make()
