"""simgrad.world makes a program of a function."""

import math

import numpy as np
import pytest

import simgrad as sg
from simgrad import arrays, request
from simgrad.v1 import program_pb2


@sg.world
def pendulum(
    angle: sg.State,
    speed: sg.State,
    gravity: sg.Param = 9.81,
    torque: sg.Control = 0.0,
    h: sg.Config = 0.01,
):
    """A pendulum."""
    speed = speed + h * (torque - gravity * np.sin(angle))
    sg.observe("swing", abs(angle))
    return {"angle": angle + h * speed, "speed": speed}


@pendulum.objective
def final_energy(speed, gravity):
    return 0.5 * speed * speed - gravity


@pendulum.stage_cost
def effort(torque, swing):
    return torque * torque + swing


def inputs(world):
    return {i.name: (i.kind, i.default_value) for i in world.program.inputs}


def test_arguments_are_inputs_by_annotation_and_default():
    assert inputs(pendulum) == {
        "angle": (program_pb2.INPUT_KIND_STATE, 0.0),
        "speed": (program_pb2.INPUT_KIND_STATE, 0.0),
        "gravity": (program_pb2.INPUT_KIND_PARAM, 9.81),
        "torque": (program_pb2.INPUT_KIND_CONTROL, 0.0),
        "h": (program_pb2.INPUT_KIND_CONFIG, 0.01),
    }
    assert not pendulum.program.inputs[0].HasField("default_value")
    assert (pendulum.name, pendulum.__doc__) == ("pendulum", "A pendulum.")
    assert [o.name for o in pendulum.program.objectives] == ["final_energy", "effort"]
    assert pendulum.program.level == "decisions"


def test_arguments_are_inputs_by_the_decorator():
    @sg.world(
        name="other", level="all", x=sg.State(3), n=sg.State(dtype=int), f=sg.Data(2), t=sg.Step()
    )
    def steps(x, n, f, t):
        return x + f.sum(), n + t

    world = steps.program
    shapes = {i.name: tuple(world.values[i.value].shape) for i in world.inputs}
    assert shapes == {"x": (3,), "n": (), "f": (2,), "step": ()}
    assert (world.name, world.level, world.inputs[2].kind) == (
        "other",
        "all",
        program_pb2.INPUT_KIND_DATA,
    )


def test_annotations_may_be_text_with_names_of_the_function_around():
    size = 5

    @sg.world
    def steps(x: "sg.State[size, 2]", k: "sg.Param(size)" = 1.0):
        return x * k[:, None]

    assert [tuple(steps.program.values[i.value].shape) for i in steps.program.inputs] == [
        (5, 2),
        (5,),
    ]


def test_a_call_gives_the_world_with_other_config():
    other = pendulum(h=0.5)
    assert (
        inputs(other)["h"] == (program_pb2.INPUT_KIND_CONFIG, 0.5)
        and inputs(pendulum)["h"][1] == 0.01
    )
    assert [o.name for o in other.program.objectives] == ["final_energy", "effort"]
    with pytest.raises(TypeError, match="no config g; it has h"):
        pendulum(g=1.0)


def test_an_array_as_default_is_sent_where_the_caller_sends_none():
    @sg.world
    def spin(x: sg.State[3] = (1.0, 2.0, 3.0), k: sg.Param[2] = np.array([4.0, 5.0])):
        return x * k[0]

    assert not any(i.HasField("default_value") for i in spin.program.inputs)
    state, param = program_pb2.INPUT_KIND_STATE, program_pb2.INPUT_KIND_PARAM
    real = program_pb2.ELEMENT_TYPE_REAL
    declared = {(state, "x"): request.Declaration(1, real), (param, "k"): request.Declaration(1, real)}
    sent = request.rollout_spec(spin, lambda: declared, steps=1, params={"k": [6.0, 7.0]})
    assert [t.name for t in sent.initial] == ["x"] and [t.name for t in sent.params] == ["k"]
    np.testing.assert_array_equal(arrays.from_tensor(sent.initial[0].tensor), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(arrays.from_tensor(sent.params[0].tensor), [6.0, 7.0])
    with pytest.raises(ValueError, match=r"default of shape \(2,\) for an input of shape \(3,\)"):
        sg.State(3, default=[1.0, 2.0])


def test_weights_are_params_that_all_instances_share():
    @sg.world
    def layer(x: sg.State[2], w: sg.Weights[2, 2] = np.eye(2), b: sg.Weights[2] = 0.0, k: sg.Param = 1.0):
        return k * np.tanh(x @ w + b)

    program = layer.program
    assert [i.name for i in program.inputs if i.weights] == ["w", "b"]
    assert {i.kind for i in program.inputs if i.weights} == {program_pb2.INPUT_KIND_PARAM}
    assert layer.array_defaults[program_pb2.INPUT_KIND_PARAM]["w"].tolist() == [[1, 0], [0, 1]]
    declared = request.declarations_of(program)
    assert declared[program_pb2.INPUT_KIND_PARAM, "w"] == (2, program_pb2.ELEMENT_TYPE_REAL, True)
    assert not declared[program_pb2.INPUT_KIND_PARAM, "k"].is_weights


def test_a_state_that_is_not_returned_stays():
    @sg.world
    def steps(x: sg.State, v: sg.State):
        return {"x": x + v}

    program = steps.program
    assert program.step.yields[1] == program.inputs[1].value


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: sg.world(lambda x: x), "what is x"),
        (lambda: sg.world(y=sg.State())(lambda x: x), "what is x"),
        (lambda: sg.world(x=sg.State(), y=sg.State())(lambda x: x), "no argument y"),
        (lambda: sg.world(x=sg.State())(lambda x: None).program, "returns the next value of x"),
        (
            lambda: sg.world(x=sg.State(), h=sg.Config())(lambda x, h: x).program,
            "config h needs its number",
        ),
        (lambda: sg.world(x=sg.State())(lambda x: x if x > 0 else -x).program, "Instead of `if`"),
        (lambda: sg.where(True, 1.0, 2.0), "no world is being written"),
    ],
)
def test_what_is_missing_is_told(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_a_cost_asks_for_what_there_is():
    @sg.world
    def steps(x: sg.State):
        return x

    @steps.objective
    def end(y):
        return y

    with pytest.raises(TypeError, match=r"^world_function_test.py:\d+: end asks for y; there are x"):
        steps.program


def test_a_builder_is_a_program():
    b = sg.program.ProgramBuilder("w")
    b.next(x=b.state("x"))
    assert sg.World(program=b).program.name == "w"


def test_costs_of_one_name_are_one_objective():
    @sg.world
    def falls(z: sg.State, push: sg.Control = 0.0):
        return z - 1.0 + push

    @falls.objective
    def cost(z):
        return z * z

    @falls.stage_cost
    def cost(push):  # noqa: F811
        return 0.1 * push * push

    [objective] = falls.program.objectives
    assert objective.name == "cost"
    assert len(objective.stage.yields) == len(objective.terminal.yields) == 1
    assert [op.code for op in objective.stage.ops] == ["literal", "mul", "mul"]
    assert [op.code for op in objective.terminal.ops] == ["mul"]
    for again, kind in ((falls.objective, "terminal"), (falls.stage_cost, "stage")):
        with pytest.raises(
            ValueError, match=f"world_function_test.py:.*falls has a {kind} cost cost already"
        ):
            again(cost)
    assert len(falls.program.objectives) == 1


@pytest.mark.parametrize("shape", ["i32", 2.5, (3, "x")])
def test_a_shape_that_is_none_says_how_a_dtype_is_written(shape):
    with pytest.raises(TypeError, match=r'whole numbers; a dtype is State\(3, dtype="i32"\)'):
        sg.State[shape]


def test_what_the_function_returns_is_told_by_the_line_of_its_def():
    @sg.world(
        x=sg.State(),
        c=sg.State(dtype="i32"),
    )
    def counts(x, c):
        return {"x": x, "c": c + 0.5}

    line = counts._function.__code__.co_firstlineno + 4
    with pytest.raises(ValueError, match=rf"^world_function_test.py:{line}: state c is i32\[\], and becomes real\[\]"):
        counts.program


def test_a_bool_for_each_element_stops_no_loop_and_halts_nothing():
    @sg.world
    def halves(x: sg.State[3]):
        return sg.while_loop(lambda y: 0.5 * y, x, until=lambda y: y < 0.1, max_iter=5)

    @sg.world
    def falls(x: sg.State[3]):
        sg.halt("fell", x < 0)
        return x

    either = r"not bool\[3\]: np.any\(...\) or np.all\(...\) of them$"
    with pytest.raises(TypeError, match=rf"^world_function_test.py:\d+: a loop stops by one bool, {either}"):
        halves.program
    with pytest.raises(TypeError, match=rf"^world_function_test.py:\d+: halt fell takes one bool, {either}"):
        falls.program

    @sg.world
    def number(x: sg.State):
        sg.halt("fell", x)
        return x

    with pytest.raises(TypeError, match=r"halt fell takes one bool, not real\[\]$"):
        number.program


def test_what_an_argument_declares_is_told_by_the_line_of_the_def():
    @sg.world
    def counts(x: sg.State, t: sg.Step = 3):
        return x

    line = counts._function.__code__.co_firstlineno + 1
    with pytest.raises(TypeError, match=f"^world_function_test.py:{line}: t: a Step is counted"):
        counts.program


def test_a_start_is_told_by_the_line_of_its_def():
    @sg.world
    def starts(x: sg.State[2]):
        return x

    @starts.initial
    def start(x):
        return {"y": x}

    line = start.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"^world_function_test.py:{line}: initial\(\) knows no state y"):
        starts.program


@pytest.mark.parametrize(
    "cost, said",
    [
        (lambda x, n: x, r"real\[3\]"),
        (lambda x, n: x[:1], r"real\[1\]"),
        (lambda x, n: x[0] < 1.0, r"bool\[\]"),
        (lambda x, n: n, r"i32\[\]"),
        (lambda x, n: None, "None"),
    ],
)
@pytest.mark.parametrize("kind", ["objective", "stage_cost"])
def test_a_cost_that_is_no_real_scalar_is_refused_with_its_function_line_and_type(cost, said, kind):
    @sg.world
    def still(x: sg.State[3], n: sg.State(dtype=int)):
        return x, n

    def height(x, n):
        return cost(x, n)

    getattr(still, kind)(height)
    line = height.__code__.co_firstlineno
    said = rf"^world_function_test.py:{line}: objective `height` returns {said}; a cost is one real scalar$"
    with pytest.raises(TypeError, match=said):
        still.program


def test_the_end_of_an_objective_in_two_parts_is_told_by_its_own_line():
    @sg.world
    def still(x: sg.State[3]):
        return x

    @still.stage_cost
    def height(x):
        return x[0]

    @still.objective
    def height(x):  # noqa: F811
        return x

    line = height.__code__.co_firstlineno + 1
    with pytest.raises(TypeError, match=rf"^world_function_test.py:{line}: objective `height` returns real"):
        still.program


def _into_an_array(x):
    y = np.zeros(3)
    y[0] = x[0]
    return y


def _into_an_array_of_bools(x):
    y = np.zeros(3, bool)
    y[0] = x[0]
    return y


@pytest.mark.parametrize(
    "step, said",
    [
        (_into_an_array, r".*np.stack\(\[x, y\]\) makes an array of values, x.at\[i\].set\(y\)"),
        (_into_an_array_of_bools, r"Python cannot look at a value of the world"),
        (lambda x: math.sin(x[0]), r"float\(\) and the functions of `math` need a number: write np.sin for math.sin"),
    ],
)
@pytest.mark.parametrize("place", ["step", "initial", "objective", "stage_cost"])
def test_a_value_where_a_number_is_needed_is_told_with_its_line_and_what_to_write(step, said, place):
    """NumPy puts an error of its own in front of ours."""
    if place == "step":
        world = sg.world(x=sg.State(3))(lambda x: step(x))
    else:
        world = sg.world(x=sg.State(3))(lambda x: x)

        def other(x):
            return step(x)

        getattr(world, place)(other)
    line = step.__code__.co_firstlineno + (0 if step.__name__ == "<lambda>" else 2)
    with pytest.raises(TypeError, match=rf"^world_function_test.py:{line}: {said}"):
        world.program


def test_an_error_of_the_function_itself_stays_as_it_is():
    def broken(x):
        raise ValueError("mine") from KeyError("theirs")

    with pytest.raises(ValueError, match="^mine$") as raised:
        sg.world(x=sg.State)(broken).program
    assert isinstance(raised.value.__cause__, KeyError)

    def explained(x):
        try:
            return float(x)
        except TypeError as error:
            raise ValueError("a mass is a plain number") from error

    with pytest.raises(ValueError, match="^a mass is a plain number$"):
        sg.world(x=sg.State)(explained).program
