"""A world the server has never seen, written against the protobuf alone."""

import numpy as np
import pytest

import simgrad as sg
from simgrad.v1 import program_pb2 as pb

STEPS = 60


class Writer:
    """Just enough to write operations by hand; the package's own builder is not used here."""

    def __init__(self):
        self.program = pb.Program(name="damped_pendulum")

    def value(self, name="", element=pb.ELEMENT_TYPE_REAL):
        self.program.values.add(name=name, element=element)
        return len(self.program.values) - 1

    def input(self, kind, name, default=None):
        value = self.value(name)
        self.program.inputs.add(kind=kind, name=name, value=value, default_value=default)
        return value

    def op(self, region, code, *operands, element=pb.ELEMENT_TYPE_REAL, **attributes):
        result = self.value(element=element)
        region.ops.add(code=code, operands=operands, results=[result], **attributes)
        return result

    def argument(self, region, name=""):
        value = self.value(name)
        region.args.append(value)
        return value


def add_loop(w, step, angle, speed, gravity, damping, torque, h, tol):
    """repeat: stop if |change| < tol; w' = speed + h (torque - gravity sin(angle + h w / 2) -
    damping (speed + w) / 2)."""
    start_change = w.op(step, "literal", literal=[1.0])
    loop = pb.Op(
        code="while",
        role="solver",
        decision_site="implicit",
        comparison="lt",
        max_iter=40,
        carried=2,
        operands=[speed, start_change],
    )
    test = loop.regions.add()
    w.argument(test)
    size = w.op(test, "abs", w.argument(test), role="termination", site="implicit")
    test.yields.extend([size, tol])
    body = loop.regions.add()
    guess = w.argument(body)
    w.argument(body)
    half = w.op(body, "literal", literal=[0.5], role="solver")

    def solver(code, *operands):
        return w.op(body, code, *operands, role="solver")

    middle_angle = solver("add", angle, solver("mul", solver("mul", half, h), guess))
    middle_speed = solver("mul", half, solver("add", speed, guess))
    pull = solver("mul", gravity, solver("sin", middle_angle))
    acceleration = solver("sub", solver("sub", torque, pull), solver("mul", damping, middle_speed))
    following = solver("add", speed, solver("mul", h, acceleration))
    body.yields.extend([following, solver("sub", following, guess)])
    results = [w.value("speed_next"), w.value("change"), w.value("iterations", pb.ELEMENT_TYPE_I32)]
    loop.results.extend(results)
    step.ops.append(loop)
    return results[0]


def damped_pendulum():
    """Angle and speed; a stop at angle 0 reflects the speed by the factor `bounce`."""
    w = Writer()
    angle, speed = (w.input(pb.INPUT_KIND_STATE, name) for name in ("angle", "speed"))
    gravity, damping, bounce = (
        w.input(pb.INPUT_KIND_PARAM, name, default)
        for name, default in (("gravity", 9.81), ("damping", 0.1), ("bounce", 0.9))
    )
    torque = w.input(pb.INPUT_KIND_CONTROL, "torque", 0.0)
    wanted = w.input(pb.INPUT_KIND_DATA, "wanted", 0.0)
    h, tol = (
        w.input(pb.INPUT_KIND_CONFIG, name, value) for name, value in (("h", 0.02), ("tol", 1e-13))
    )
    step = w.program.step
    next_speed = add_loop(w, step, angle, speed, gravity, damping, torque, h, tol)
    moved = w.op(step, "add", angle, w.op(step, "mul", h, next_speed))
    zero = w.op(step, "literal", literal=[0.0])
    hit = w.op(
        step,
        "event",
        moved,
        zero,
        element=pb.ELEMENT_TYPE_BOOL,
        role="event",
        site="stop",
        decision_site="stop",
        comparison="lt",
    )
    reflected = w.op(step, "neg", w.op(step, "mul", bounce, next_speed))
    final_angle = w.op(step, "select", hit, w.op(step, "neg", moved), moved)
    final_speed = w.op(step, "select", hit, reflected, next_speed)
    step.yields.extend([final_angle, final_speed])
    energy = w.op(step, "mul", final_speed, final_speed)
    w.program.exports.add(name="energy", value=energy, observable=True)
    objective = w.program.objectives.add(name="effort")
    stage = objective.stage
    gap = w.op(stage, "sub", energy, wanted, role="objective")
    stage.yields.append(w.op(stage, "mul", gap, gap, role="objective"))
    terminal = objective.terminal
    end = w.argument(terminal)
    w.argument(terminal), w.argument(terminal)
    terminal.yields.append(w.op(terminal, "mul", end, end, role="objective"))
    return w.program


INPUTS = {
    "initial": {"angle": np.array([0.9, 0.5]), "speed": np.array([0.0, 0.4])},
    "params": {"gravity": 9.81, "damping": np.array([0.1, 0.4]), "bounce": 0.9},
    "controls": {"torque": np.random.default_rng(4).uniform(-1, 1, (2, STEPS))},
}


def run(client, inputs=INPUTS, gradient=True, **options):
    call = client.gradient if gradient else client.rollout
    return call(
        sg.World(program=damped_pendulum()),
        steps=STEPS,
        **inputs,
        data={"wanted": 0.25},
        objective="effort",
        **{"policy": "f64", **options}
    )


def simulate(angle, speed, gravity, damping, bounce, torque):
    """The same world in plain Python; returns final angle, final speed, effort."""
    h, effort = 0.02, 0.0
    for t in range(STEPS):
        guess, change = speed, 1.0
        for _ in range(40):
            if abs(change) < 1e-13:
                break
            pull = gravity * np.sin(angle + 0.5 * h * guess)
            following = speed + h * (torque[t] - pull - damping * (0.5 * (speed + guess)))
            guess, change = following, following - guess
        angle, speed = angle + h * guess, guess
        if angle < 0:
            angle, speed = -angle, -(bounce * speed)
        effort += (speed * speed - 0.25) ** 2
    return angle, speed, effort + angle * angle


def test_it_runs_and_agrees_with_plain_python(client):
    r = run(client, gradient=False, record=["angle", "energy"])
    for i in range(2):
        expected = simulate(
            INPUTS["initial"]["angle"][i],
            INPUTS["initial"]["speed"][i],
            9.81,
            INPUTS["params"]["damping"][i],
            0.9,
            INPUTS["controls"]["torque"][i],
        )
        got = (r.state["angle"][i], r.state["speed"][i], r.values[i])
        # sin differs by an ulp between libraries; 60 steps of a stable pendulum amplify it by less
        # than 1e3.
        np.testing.assert_allclose(got, expected, rtol=1e-11)
    assert r.trajectory["angle"].shape == (2, STEPS + 1) and r.trajectory["energy"].shape == (
        2,
        STEPS,
    )


def test_its_sites_stream_and_report(client):
    stream = client.rollout_stream(
        sg.World(program=damped_pendulum()),
        steps=STEPS,
        **INPUTS,
        policy="f64",
        chunk_steps=16,
        diagnostics="instances"
    )
    covered = [
        t for block in stream for t in range(block.first_step, block.first_step + block.steps)
    ]
    assert covered == list(range(STEPS))
    site, event = stream.result.sites["implicit"], stream.result.events["stop"]
    assert (site.iterations >= 3).all() and (site.iterations < 40).all()
    assert site.reasons[:, 0].tolist() == [2] * STEPS  # both instances converged at every step
    assert event.count.sum() >= 2 and (event.first_step >= 0).all()


@pytest.mark.parametrize(
    "group, name, index",
    [
        ("initial", "angle", (0,)),
        ("initial", "speed", (1,)),
        ("params", "gravity", ()),
        ("params", "damping", (1,)),
        ("params", "bounce", ()),
        ("controls", "torque", (0, 0)),
        ("controls", "torque", (1, STEPS - 1)),
    ],
)
def test_its_gradients_agree_with_central_differences(client, group, name, index):
    g, step = run(client), 1e-6
    ends = []
    for delta in (step, -step):
        array = np.array(INPUTS[group][name], np.float64)
        array[index] += delta
        ends.append(run(client, {**INPUTS, group: {**INPUTS[group], name: array}}, gradient=False))
        events = [event.count.tolist() for event in (ends[-1].events["stop"], g.events["stop"])]
        assert events[0] == events[1]
    expected = (ends[0].value - ends[1].value) / (2 * step)
    got = getattr(g, group)[name]
    assert got.shape == np.shape(INPUTS[group][name])
    # Truncation step^2 f''' / 6 and rounding 2^-52 f / step are about 1e-10; an iteration more or
    # less of the loop, converged to 1e-13, moves the value by about 1e-13 and the quotient by 1e-7
    # of f.
    assert float(got[index]) == pytest.approx(expected, rel=1e-6, abs=1e-6 * abs(g.value))


def test_the_builder_of_the_package_writes_a_world_that_runs(client):
    from simgrad.program import ProgramBuilder

    b = ProgramBuilder("decay")
    x, k, h = b.state("x", (3,)), b.param("k", default=1.5), b.config("h", 0.01)
    b.next(x=x - h * k * x)
    b.objective("sum", terminal=lambda z, exports: b.sum(z["x"]))
    g = client.gradient(
        sg.World(program=b.build()),
        steps=10,
        initial={"x": [1, 2, 3]},
        params={"k": 1.5},
        objective="sum",
        policy="f64",
    )
    assert g.value == pytest.approx(6 * (1 - 0.015) ** 10, rel=1e-14)
    assert float(g.params["k"]) == pytest.approx(6 * 10 * (1 - 0.015) ** 9 * -0.01, rel=1e-13)
    np.testing.assert_allclose(g.initial["x"], (1 - 0.015) ** 10, rtol=1e-14)


def test_every_operation_of_the_builder_is_verified_and_runs(client):
    import inspect

    from simgrad.operation_writer import BOOL, I32
    from simgrad.operations import Operations
    from simgrad.program import ProgramBuilder

    b = ProgramBuilder("all")
    x = b.state("x", (2, 3))
    chosen = b.event("side", x, "gt", 0.5)
    given = {"axes": 0, "start": (0, 1), "shape": (2, 2), "dims": (0, 1), "element": I32}
    shapes = {"reshape": (6,), "broadcast": (2, 3)}
    places = b.iota(I32, (2,), axes=0)
    square = b.slice(x, (0, 0), (2, 2)) + b.literal([1.0, 0.0, 0.0, 1.0], (2, 2))
    column, factors = b.slice(x, (0, 0), (2, 1)), b.lu(square)
    special = {
        "pad": dict(a=x, start=(1, 0), shape=(4, 3), fill=0.5),
        "transpose": dict(a=x, dims=(1, 0)),
        "take": dict(a=x, shape=(2,), indices=(5, -1), fill=0.25),
        "iota": dict(element=I32, shape=(2, 3), axes=1),
        "gather": dict(a=x, indices=places, axes=1),
        "scatter": dict(a=x, indices=places, updates=square, axes=1),
        "dynamic_slice": dict(a=x, starts=places, shape=(1, 2)),
        "update": dict(a=x, part=column, starts=places),
        "matmul": dict(a=square, b=x),
        "cholesky": dict(a=square),
        "triangular_solve": dict(t=square, b=column),
        "lu": dict(a=square),
        "lu_permutation": dict(a=square),
        "lu_solve": dict(a=square, factors=factors, permutation=b.lu_permutation(square), b=column),
        "solve": dict(a=square, b=column),
        "fake_quantize": dict(a=x, format="e5m2", axes=1, scale=[0.5, 2.0]),
        "shl": dict(a=places, b=places),
        "shr": dict(a=places, b=places),
    }
    seen = x
    for name, method in vars(Operations).items():
        if name.startswith("_"):
            continue
        parameters = inspect.signature(method).parameters.values()
        operands = [p.name for p in parameters if p.annotation == "Any"]
        logical = name in ("and_", "or_", "not_", "xor", "any", "all")
        values = [chosen if logical or operand == "condition" else x for operand in operands]
        attributes = {p.name: given[p.name] for p in parameters if p.name in given}
        if name in shapes:
            attributes["shape"] = shapes[name]
        if name in special:
            values, attributes = [], special[name]
        result = getattr(b, name)(*values, **attributes)
        if result.element in (BOOL, I32):
            # A comparison of reals must decide nothing; its negation is read by nobody.
            result = b.convert(result, 0)
        seen = seen + 0.0 * b.sum(result)
    b.next(x=seen)
    rollout = client.rollout(
        sg.World(program=b.build()), steps=1, initial={"x": np.full((2, 3), 0.75)}
    )
    assert np.array_equal(rollout.state["x"][0], np.full((2, 3), 0.75))


def test_the_builder_writes_a_loop_per_element_with_an_entry_threshold(client):
    from simgrad.program import ProgramBuilder

    b = ProgramBuilder("halving")
    x, low = b.state("x", (4,)), b.param("low", (4,))
    (y,), _, iterations = b.while_loop(
        "halve",
        [x],
        lambda x, low: (x, low, low * 2.0),
        lambda carried, exports, mapped: [0.5 * carried[0] + 0.0 * mapped[0]],
        max_iter=20,
        has_entry=True,
        mapped=[low],
    )
    b.next(x=y)
    b.observe("iterations", b.convert(iterations, 0))
    rollout = client.rollout(
        sg.World(program=b.build()),
        steps=1,
        initial={"x": [1.0, 8.0, 1.5, 64.0]},
        params={"low": [1.0, 1.0, 1.0, 1.0]},
        policy="f64",
        record=["iterations"],
    )
    # 1 and 1.5 are below the entry threshold of 2 and stay; 8 and 64 are halved to below 1.
    np.testing.assert_array_equal(rollout.state["x"][0], [1.0, 0.5, 1.5, 0.5])
    np.testing.assert_array_equal(rollout.trajectory["iterations"][0, 0], [0, 4, 0, 7])


def test_the_builder_writes_the_number_of_the_step(client):
    from simgrad.program import ProgramBuilder

    b = ProgramBuilder("counting")
    x = b.state("x")
    b.next(x=x + b.convert(b.step(), 0))
    rollout = client.rollout(sg.World(program=b.build()), steps=5, initial={"x": 0.0})
    assert float(rollout.state["x"][0]) == 0 + 1 + 2 + 3 + 4

