"""Keys, constants, defaults and options that mean nothing are refused where they are written."""

import re

import numpy as np
import pytest

import simgrad as sg
from simgrad import arrays, constants, kept, request, results
from simgrad.program import ProgramBuilder
from simgrad.v1 import program_pb2

STATE = program_pb2.INPUT_KIND_STATE
ELEMENTS = {
    "b": program_pb2.ELEMENT_TYPE_BOOL,
    "i": program_pb2.ELEMENT_TYPE_I32,
    "l": program_pb2.ELEMENT_TYPE_I64,
    "u": program_pb2.ELEMENT_TYPE_U8,
    "r": program_pb2.ELEMENT_TYPE_REAL,
}


def sent(**initial):
    declared = {(STATE, n): request.Declaration(0, e) for n, e in ELEMENTS.items()}
    return request.rollout_spec(sg.World("w"), lambda: declared, steps=0, initial=initial)


@pytest.mark.parametrize(
    "name, number",
    [("b", 2), ("b", -1), ("i", 2**31), ("i", -(2**31) - 1), ("u", -1), ("u", 256), ("l", 2**63)],
)
def test_a_whole_number_that_its_input_does_not_hold_is_refused(name, number):
    with pytest.raises(ValueError, match=f"^{name}: an input of .* takes"):
        sent(**{name: number})


@pytest.mark.parametrize(
    "name, number",
    [("b", 1), ("i", 2**31 - 1), ("i", -(2**31)), ("u", 255), ("l", 2**63 - 1), ("r", 2**53)],
)
def test_a_whole_number_that_its_input_holds_is_sent(name, number):
    (tensor,) = sent(**{name: number}).initial
    assert arrays.from_tensor(tensor.tensor).item() == number


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint16, np.uint64])
@pytest.mark.parametrize("name", ["i", "l", "r"])
def test_whole_numbers_of_any_width_are_sent_where_their_input_holds_them(name, dtype):
    (tensor,) = sent(**{name: np.array(7, dtype)}).initial
    assert arrays.from_tensor(tensor.tensor).item() == 7
    with pytest.raises(ValueError, match="^u: an input of u8 takes"):
        sent(u=np.array(np.iinfo(dtype).max, dtype) if dtype != np.int8 else np.array(-1, dtype))


MASKED = np.ma.array([1.0, 2.0], mask=[True, False])


@pytest.mark.parametrize("value", ["1", None, 1j, [[1.0], [2.0, 3.0]], MASKED, np.longdouble(1)])
def test_what_is_no_array_of_numbers_is_refused_with_its_name(value):
    with pytest.raises((TypeError, ValueError), match="^r: "):
        sent(r=value)


def test_inputs_without_names_are_refused():
    with pytest.raises(TypeError, match="params are arrays by name"):
        request.rollout_spec(sg.World("w"), dict, steps=0, params=[1.0])


@pytest.mark.parametrize(
    "option, value",
    [("seed", -1), ("seed", 2**64), ("seed", "3"), ("instance_ids", [3, -1]), ("instance_ids", [1.5])],
)
def test_seeds_and_ids_that_do_not_fit_are_refused(option, value):
    with pytest.raises(ValueError, match=f"^{option}: whole numbers from 0"):
        request.rollout_spec(sg.World("w"), dict, steps=0, **{option: value})


def test_options_of_a_gradient_that_mean_nothing_are_refused():
    spec = request.rollout_spec(sg.World("w"), dict, steps=0)
    with pytest.raises(ValueError, match="wrt names no input"):
        request.gradient_request(spec, dict, wrt=[])
    with pytest.raises(TypeError, match="wrt: names of inputs, not 1"):
        request.gradient_request(spec, dict, wrt=[1])
    with pytest.raises(TypeError, match="weights: numbers, not an array of dtype complex128"):
        request.gradient_request(spec, dict, weights=[1j])
    for shape in ((2, 3), (6, 1), ()):
        with pytest.raises(ValueError, match=f"weights: one number for each instance, not an array of shape {re.escape(str(shape))}"):
            request.gradient_request(spec, dict, weights=np.ones(shape))
        with pytest.raises(ValueError, match="weights: one number for each instance"):
            request.rollout_request(spec, weights=np.ones(shape))
    with pytest.raises(TypeError, match=r"loops\['fp'\] is a simgrad.Truncated"):
        request.gradient_request(spec, dict, loops={"fp": "implicit"})
    with pytest.raises(TypeError, match="keep is True or a simgrad.Keep"):
        kept.kept_as("yes")
    with pytest.raises(ValueError, match="wrt names no input"):
        request.gradient_request(spec, dict, wrt=iter([]))
    assert kept.kept_as(np.True_) == sg.Keep() and kept.kept_as(np.False_) is None


@pytest.mark.parametrize("given", [5, [5], None, np.float64(2.0), np.array(5)])
def test_names_that_are_none_are_refused_by_their_argument(given):
    told = lambda argument, what: pytest.raises(TypeError, match=f"{argument}: names of {what}, not ")
    with sg.Client("localhost:1") as client:
        for call in (client.rollout, client.gradient):
            with told("record", "states and observables"):
                call(sg.World("w"), steps=0, record=given)
        with told("margins", "sites"):
            client.rollout(sg.World("w"), steps=0, margins=given)
        if given is not None:
            with told("wrt", "inputs"):
                client.gradient(sg.World("w"), steps=0, wrt=given)


def test_a_kept_rollout_is_kept_for_one_name_or_several_and_nothing_else():
    spec = request.rollout_spec(sg.World("w"), dict, steps=0)
    made = lambda **names: sg.Keep(**names).to_proto(spec, dict)
    assert made(wrt="gain", state="position", trajectory="speed") == made(wrt=["gain"], state=["position"], trajectory=["speed"])
    assert [n.name for n in made(wrt="gain").wrt] == ["gain"]
    for field, what in (("wrt", "inputs"), ("state", "states"), ("trajectory", "states and observables")):
        for given in (None, 3, [3]):
            with pytest.raises(TypeError, match=f"Keep.{field}: names of {what}, not "):
                made(**{field: given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": np.ones(2)}, r"cotangents: by group and name, as \{'state': .*; 'x' is no group"),
        ({"state": np.ones(2)}, r"cotangents\['state'\] is array"),
        ({"state": {}, "trajectory": None}, r"cotangents\['trajectory'\] is None"),
        (np.ones(2), "cotangents: by group and name, .*, not array"),
    ],
)
def test_cotangents_stand_by_group_and_name(given, words):
    spec = request.rollout_spec(sg.World("w"), dict, steps=0)
    with pytest.raises(TypeError, match=words):
        request.gradient_request(spec, dict, cotangents=given)


@pytest.mark.parametrize("given", [{"state": {"x": [1.0]}}, sg.Cotangents(), None, 3, "state"])
def test_several_cotangents_are_a_list(given):
    rollout = object.__new__(results.Rollout)
    rollout.kept = object()
    with pytest.raises(TypeError, match="cotangents: of vjps a list of them, .*; vjp takes one"):
        rollout.vjps(given)


@pytest.mark.parametrize("names", [["k", "h"], ("k", "h"), np.array(["k", "h"]), iter(["k", "h"])])
def test_inputs_of_a_gradient_are_named_by_whatever_lists_them(names):
    spec = request.rollout_spec(sg.World("w"), dict, steps=0)
    asked = request.gradient_request(spec, dict, wrt=names)
    assert [name.name for name in asked.wrt] == ["k", "h"]


@pytest.mark.parametrize(
    "dtype, default",
    [
        *[("i32", 2**40), ("u8", -1), ("i32", 1.5), ("bool", 0.5), ("bool", 2), ("i64", 2**60)],
        *[("real", np.nan), ("real", "x")],
    ],
)
def test_a_default_that_its_type_does_not_hold_is_refused(dtype, default):
    world = sg.world(name="w", count=sg.State(dtype=dtype, default=default))(lambda count: count)
    with pytest.raises((TypeError, ValueError), match=r"refusals_test.py:\d+: count: a default"):
        world.to_proto()


@pytest.mark.parametrize("dtype, default", [("i32", -(2**31)), ("u8", 255), ("bool", True), ("i64", 2**53)])
def test_a_default_that_its_type_holds_is_kept(dtype, default):
    world = sg.world(name="w", count=sg.State(dtype=dtype, default=default))(lambda count: count)
    (declared,) = world.to_proto().program.inputs
    assert declared.default_value == default


@pytest.mark.parametrize("kind", [sg.Param, sg.Control, sg.Data])
def test_inputs_have_the_type_that_they_are_declared_with(kind):
    world = sg.world(name="w", x=sg.State, n=kind(2, dtype="i32"))(lambda x, n: x + n.sum())
    program = world.to_proto().program
    assert program.values[program.inputs[1].value].element == program_pb2.ELEMENT_TYPE_I32


@pytest.mark.parametrize(
    "declared, words",
    [
        (sg.Weights(2, dtype="i32"), "a Weights has no dtype"),
        (sg.Config(dtype="i32", default=1), "a Config has no dtype"),
        (sg.Config(2, default=1.0), "a Config is one number"),
        (sg.Step(2), "a Step is one number"),
        (sg.Step(default=5), "a Step is counted"),
        (sg.Param(dtype="bogus"), "dtype 'bogus': one of real"),
        *[
            (sg.State(dtype=dtype), "dtype .*: worlds have no integers of 8 or 16 bits")
            for dtype in (np.int16, "int16", "<i2", "h", "i1", "b", np.dtype(np.int8))
        ],
    ],
)
def test_declarations_that_mean_nothing_are_refused(declared, words):
    world = sg.world(name="w", x=sg.State, n=declared)(lambda x, n: x)
    with pytest.raises(TypeError, match=rf"refusals_test.py:\d+: n: {words}"):
        world.to_proto()


@pytest.mark.parametrize(
    "element, number", [("u8", 300), ("u8", -1), ("i32", 2**31), ("i32", 1.5), ("u32", -1)]
)
def test_a_constant_that_its_type_does_not_hold_is_refused(element, number):
    b = ProgramBuilder("w")
    x = b.state("x", (), constants.element_of(element))
    with pytest.raises(ValueError, match=rf"refusals_test.py:\d+: a constant of {element} is .*, not {number}"):
        b.literal(number, element=x.element)


def test_masks_have_the_shape_of_what_they_choose_from():
    b = ProgramBuilder("w")
    x, i = b.state("x", (3, 4)), b.state("i", (), program_pb2.ELEMENT_TYPE_I32)
    short = np.array([True, False])
    for key in (short, (slice(None), short), np.ones((2, 4), bool), (i, short), (..., short)):
        with pytest.raises(IndexError, match="boolean index did not match"):
            x[key]
        with pytest.raises(IndexError, match="boolean index did not match"):
            x.at[key].set(0.0)
    assert x[:, np.array([True, False, True, True])].shape == (3, 3)
    assert x[i, [True, False, True, True]].shape == (3,)
    assert x[..., np.ones(4, bool)].shape == (3, 4)


def test_a_place_takes_one_key():
    x = ProgramBuilder("w").state("x", (3, 4))
    with pytest.raises(TypeError, match=r"write x.at\[i, j\]"):
        x.at[0][1]


def test_a_number_that_is_no_integer_is_not_written_among_integers():
    b = ProgramBuilder("w")
    x, i = b.state("x", (3,), program_pb2.ELEMENT_TYPE_I32), b.state("i", (1,), program_pb2.ELEMENT_TYPE_I32)
    for key in (0, i):
        with pytest.raises(ValueError, match="a constant of i32 is .*, not 1.5"):
            x.at[key].add(1.5)


def test_a_value_of_a_loop_is_not_observed():
    b = ProgramBuilder("w")
    x = b.state("x")

    def body(index, carried):
        b.observe("q", carried[0] * 2)
        return carried

    with pytest.raises(ValueError, match=r"observe\('q'\): the value was made inside a loop"):
        b.for_loop(3, [x], body)


def test_loops_and_branches_say_how_often_and_which():
    b = ProgramBuilder("w")
    x, i = b.state("x", (3,)), b.state("i", (), program_pb2.ELEMENT_TYPE_I32)
    with pytest.raises(ValueError, match="scan of 3 elements has 3 turns, not length=7"):
        b.scan(lambda carried, elements: (carried, []), [i], [x], length=7)
    for few in ([], [lambda x: x]):
        with pytest.raises(ValueError, match=f"switch needs branches to choose from: two at least, not {len(few)}"):
            b.switch(i, few, [x])



def test_a_name_is_observed_once_and_is_that_of_no_state():
    def of(*names):
        @sg.world
        def step(x: sg.State):
            for name in names:
                sg.observe(name, 2 * x)
            return x

        return step

    assert [e.name for e in of("a", "b").program.exports] == ["a", "b"]
    with pytest.raises(ValueError, match=r"^refusals_test.py:\d+: observe\('a'\): another observable has this name"):
        of("a", "a").program
    with pytest.raises(ValueError, match=r"^refusals_test.py:\d+: observe\('x'\): a state has this name"):
        of("x").program


def test_a_step_that_returns_nothing_is_told_with_its_line():
    @sg.world
    def step(x: sg.State):
        x + 1.0

    with pytest.raises(TypeError, match=r"^refusals_test.py:\d+: step returns the next value of x"):
        step.program


@pytest.mark.parametrize(
    "vector, words",
    [
        (5, "vector: directions by group and name, .* not 5"),
        ({"params": 5}, r"vector\['params'\]: directions by name, .* not 5"),
        ({"params": {"k": "a"}}, r"vector\['params'\]\['k'\]: numbers, not 'a'"),
    ],
)
def test_a_vector_that_is_none_is_refused_by_what_it_lacks(vector, words):
    with sg.Client("localhost:1") as client, pytest.raises(TypeError, match=words):
        client.hessian_vector(sg.World("w"), vector, steps=1, params={"k": 1.0})


def test_runs_are_counted_and_a_target_is_text():
    with sg.Client("localhost:1") as client, pytest.raises(TypeError, match="runs is a whole number, not 2.5"):
        client.sensitivity(sg.World("w"), steps=1, runs=2.5)
    with pytest.raises(TypeError, match='target is text, "host:port", not 8001'):
        sg.Client(8001)


def test_a_function_without_a_name_makes_a_world_with_one_and_no_objective():
    world = sg.world(x=sg.State)(lambda x: x)
    assert world.to_proto().program.name == "world"
    with pytest.raises(ValueError, match=r"refusals_test.py:\d+: an objective has the name"):
        world.objective(lambda x: x)
    with pytest.raises(ValueError, match=r"refusals_test.py:\d+: an objective has the name"):
        world.stage_cost(lambda x: x)


def test_a_computed_number_that_the_array_does_not_hold_is_not_written_into_it():
    b = ProgramBuilder("w")
    i = b.state("i", (3,), program_pb2.ELEMENT_TYPE_I32)
    y, place = b.state("y"), b.state("place", (1,), program_pb2.ELEMENT_TYPE_I32)
    for key in (0, place):
        with pytest.raises(TypeError, match=r'x.at of i32 takes no real: y.astype\("i32"\)'):
            i.at[key].set(y)
        assert i.at[key].set(y.astype("i32")).element == program_pb2.ELEMENT_TYPE_I32


def test_arguments_of_numpy_may_be_named_as_they_are_there():
    b = ProgramBuilder("w")
    a, x = b.state("a", (3, 3)), b.state("x", (3,))
    assert np.linalg.solve(a, b=x).shape == np.dot(a, b=x).shape == x.shape
    assert np.isclose(x, b=x).shape == x.shape and x.dot(b=x).shape == ()
    with pytest.raises(TypeError, match=r"refusals_test.py:\d+: np.linalg.norm of order 'fro'"):
        np.linalg.norm(x, "fro")


def test_ways_through_loops_go_by_site():
    with sg.Client("localhost:1") as client, pytest.raises(TypeError, match="loops: ways through loops by site"):
        client.gradient(sg.World("bouncing_ball"), steps=1, loops=["fp"])


def test_a_test_names_a_comparison_and_a_shape_may_be_of_numpy():
    @sg.world
    def drawn(x: sg.State[2]):
        return {"x": x + sg.normal(np.int64(2))}

    assert drawn.program.step.ops

    @sg.world
    def known(x: sg.State):
        return {"x": sg.where(sg.test("q", True), x, 0.0)}

    with pytest.raises(TypeError, match="names a comparison, such as x < 0.5"):
        known.program


ARGUMENTS_OF_CLIENTS = [
    ({"target": ""}, ValueError, "target '': the name of a server, as \"host:port\""),
    ({"target": " "}, ValueError, "target ' ': the name of a server"),
    ({"target": "localhost: 8001"}, ValueError, "without spaces"),
    ({"target": None}, TypeError, 'target is text, "host:port", not None'),
    ({"target": "https://a.org:8001/"}, ValueError, '"a.org:8001", and TLS by credentials=simgrad.tls'),
    ({"credentials": "x"}, TypeError, "credentials: simgrad.tls.*, or None for plaintext, not str"),
    ({"credentials": False}, TypeError, "credentials: .* not bool"),
    ({"timeout": "5"}, TypeError, "timeout: a number of seconds, not '5'"),
    ({"timeout": None}, TypeError, "timeout: a number of seconds, not None"),
    ({"max_message_bytes": "1"}, TypeError, "max_message_bytes: a whole number of bytes, not '1'"),
    ({"max_message_bytes": None}, TypeError, "max_message_bytes: a whole number of bytes, not None"),
    ({"max_message_bytes": 0}, ValueError, "max_message_bytes 0: 1 to 2147483647"),
    ({"max_message_bytes": 2**31}, ValueError, "max_message_bytes 2147483648: 1 to 2147483647"),
]


@pytest.mark.parametrize("arguments, error, words", ARGUMENTS_OF_CLIENTS)
def test_arguments_of_a_client_that_make_no_sense_are_told_by_name(arguments, error, words):
    with pytest.raises(error, match=words):
        sg.Client(**arguments)
    if isinstance(given := arguments.get("target", "a:1"), str) and given:
        with pytest.raises(error, match=words.replace("target ", "targets: ", 1)):
            sg.Pool(targets=["a:1", given], **{k: x for k, x in arguments.items() if k != "target"})


@pytest.mark.parametrize("target", ["localhost", "dns:///a.org:8001", "unix:/a b/c.socket", "[::1]:8001", "ipv4:1.2.3.4:5"])
def test_names_of_servers_are_taken_as_grpc_writes_them(target):
    with sg.Client(target, max_message_bytes=-1, timeout=np.float32(3)) as client:
        assert client.target == target and client.timeout == 3


@pytest.mark.parametrize(
    "write",
    [
        lambda x: sg.for_loop(3, lambda i, a, pair: (a, pair), (x, (x, x + 1)))[0],
        lambda x: sg.cond(x > 0, lambda a, pair: a, lambda a, pair: a, (x, (x, x))),
        lambda x: sg.cond(x > 0, lambda: (x, (x, x)), lambda: (x, (x, x)))[0],
    ],
)
def test_a_tuple_within_what_is_carried_is_no_array(write):
    @sg.world
    def step(x: sg.State):
        return write(x)

    with pytest.raises(TypeError, match=r"refusals_test.py:\d+: a tuple within what loops, branches and calls take and give"):
        step.to_proto()


def test_a_list_within_what_is_carried_is_an_array():
    @sg.world
    def step(x: sg.State):
        return sg.for_loop(3, lambda i, a, pair: (a + pair[1], pair), (x, [x, x + 1]))[0]

    step.to_proto()


def test_a_matrix_of_numpy_is_refused_for_its_products():
    @sg.world
    def step(x: sg.State[2, 2]):
        return np.matrix([[1.0, 2.0], [3.0, 4.0]]) * x

    with pytest.raises(TypeError, match=r"refusals_test.py:\d+: a np.matrix, of which \* multiplies matrices"):
        step.to_proto()


def test_a_write_without_a_key_is_refused():
    @sg.world
    def step(x: sg.State[3]):
        return x.at.set(1.0)

    with pytest.raises(TypeError, match=r"refusals_test.py:\d+: x.at without a key: x.at\[i\].set"):
        step.to_proto()


def test_arguments_without_names_are_no_inputs():
    with pytest.raises(TypeError, match=r"step: \*a names no inputs"):

        @sg.world
        def step(x: sg.State, *a: sg.Param):
            return x
