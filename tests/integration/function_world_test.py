"""Worlds made of functions run: branches, loops, scans, names and lines, against plain Python."""

import numpy as np
import pytest

import simgrad as sg

START = np.array([0.3, 2.5, -1.2, 0.9])


def value_of(world, client, x, **options):
    return client.rollout(world, steps=1, policy="f64", initial={"x": x}, **options)


def test_control_flow_is_that_of_python(client):
    @sg.world
    def steps(x: sg.State, k: sg.Param = 0.9):
        small = sg.while_loop(lambda y: 0.5 * y, x, until=lambda y: abs(y) < 0.2, max_iter=30)
        power, index = sg.for_loop(3, lambda i, p, n: (p * x, n + i), (1.0, np.int32(0)))
        last, sums = sg.scan(lambda c, e: (c + e * x, c), 0.0, np.array([1.0, 2.0, 3.0]))
        branch = sg.cond(x > 0.5, lambda y: y * y, lambda y: k * y, x)
        chosen = sg.switch(
            sg.where(x > 1, np.int32(2), np.int32(0)), [lambda: x, lambda: 0 * x, lambda: -x]
        )
        root = sg.fixed_point(lambda y: 0.5 * (y + (x * x + 1) / y), 1.0, tol=1e-14, max_iter=60)
        for name, y in dict(
            small=small,
            power=power,
            index=index.astype(float),
            last=last,
            sums=sums,
            branch=branch,
            chosen=chosen,
            root=root,
        ).items():
            sg.observe(name, y)
        return sg.accept("step", abs(branch) <= 5.0, branch, x)

    names = ["small", "power", "index", "last", "sums", "branch", "chosen", "root"]
    r = value_of(steps, client, START, record=names)
    for n, x in enumerate(START):
        small = x
        while not abs(small) < 0.2:
            small *= 0.5
        branch = x * x if x > 0.5 else 0.9 * x
        expected = dict(
            small=small,
            power=x**3,
            index=3,
            last=6 * x,
            sums=[0, x, 3 * x],
            branch=branch,
            chosen=-x if x > 1 else x,
            root=np.sqrt(x * x + 1),
        )
        for name, y in expected.items():
            np.testing.assert_allclose(r.trajectory[name][n, 0], y, rtol=1e-14, err_msg=name)
        assert r.state["x"][n] == pytest.approx(branch if abs(branch) <= 5 else x, rel=1e-15)


def test_loops_in_pairs_and_reverse_scans_keep_the_form_of_their_values(client):
    @sg.world(x=sg.State(4))
    def steps(x):
        (a, b), (firsts, seconds) = sg.scan(
            lambda c, e: ((c[0] + e[0], c[1] * e[1]), [e[0] - e[1], c[0]]),
            (0.0, 1.0),
            (x, 2 * x),
            reverse=True,
        )
        _, turns = sg.scan(lambda c, _: (c + 1, c), 0.0, length=4)
        return a * x + b + firsts - seconds + turns

    given = np.array([0.5, 1.5, -1.0, 2.0])
    later = np.array([given[i + 1 :].sum() for i in range(4)])
    expected = given.sum() * given + np.prod(2 * given) - given - later + np.arange(4)
    np.testing.assert_allclose(
        value_of(steps, client, given[None]).state["x"][0], expected, rtol=1e-14
    )


def test_initial_and_config_and_the_step_count(client):
    @sg.world
    def steps(x: sg.State, t: sg.Step, scale: sg.Param = 3.0, h: sg.Config = 0.5):
        return x + h * t

    @steps.initial
    def doubled(x, scale):
        return {"x": scale * x}

    r = client.rollout(
        steps(h=2.0), steps=4, policy="f64", initial={"x": 1.0}, params={"scale": 5.0}
    )
    assert float(r.state["x"][0]) == 5 + 2 * (0 + 1 + 2 + 3)


def test_sites_tell_their_line(client):
    @sg.world
    def bounce(x: sg.State, v: sg.State):
        y = x + v
        v = sg.where(y < 0.25, -v, v)
        y = sg.where(sg.test("high", y > 2.0), 2.0, y)
        y = sg.while_loop(lambda z: 0.5 * z, y, until=lambda z: z < 1.5, max_iter=9, site="halve")
        return y, v

    r = client.rollout(bounce, steps=3, initial={"x": 1.0, "v": 0.75}, policy="f64")
    first = bounce._function.__code__.co_firstlineno
    lines = {name: site.line for name, site in (*r.events.items(), *r.sites.items())}
    assert lines == {
        "bounce.1": f"function_world_test.py:{first + 3}",
        "high": f"function_world_test.py:{first + 4}",
        "halve": f"function_world_test.py:{first + 5}",
        "halve.1": f"function_world_test.py:{first + 5}",
    }
    assert {name: event.kind for name, event in r.events.items()} == {
        "bounce.1": "event",
        "high": "event",
        "halve.1": "termination",
    }


def test_lines_are_no_part_of_the_program(client):
    """The same function further down in its file is the same program, with the same paths."""
    source = "\n".join(
        [
            "import simgrad as sg",
            "@sg.world",
            "def step(x: sg.State):",
            "    return sg.where(x < 0.7, x + 0.5, x - 0.5)",
        ]
    )
    worlds = []
    for text in (source, "\n\n# a comment above\n" + source):
        names = {}
        exec(compile(text, "a_file.py", "exec"), names)
        worlds.append(names["step"])
    a, b = (client.rollout(w, steps=5, initial={"x": START}) for w in worlds)
    assert (a.events["step.1"].line, b.events["step.1"].line) == ("a_file.py:4", "a_file.py:7")
    assert a.program.fingerprint == b.program.fingerprint
    assert a.path_signature == b.path_signature
    assert "a_file.py" not in a.program.text


def test_errors_of_the_server_name_the_line(client):
    @sg.world
    def steps(x: sg.State[3], n: sg.State(dtype="i32")):
        inner = sg.for_loop(2, lambda i, y: sg.builder(y).sqrt(y + n) + x[0], n.astype(float))
        return inner * x, np.sin(n)

    first = steps._function.__code__.co_firstlineno
    with pytest.raises(sg.InvalidArgument, match="sin is not defined on i32") as raised:
        client.rollout(steps, steps=1, initial={"x": np.ones((1, 3)), "n": np.ones(1, np.int32)})
    assert raised.value.line == f"function_world_test.py:{first + 3}"
    assert str(raised.value).startswith(raised.value.line)
    assert raised.value.field.startswith("spec.world.program.step.ops[")
    with pytest.raises(sg.InvalidArgument) as described:
        client.program(steps)
    assert described.value.line == raised.value.line


def test_certificates_name_the_line(client):
    @sg.world
    def steps(x: sg.State):
        return x + np.log(x)

    r = client.rollout(steps, steps=1, initial={"x": [-1.0]}, policy="f64")
    [certificate] = r.certificates
    line = f"function_world_test.py:{steps._function.__code__.co_firstlineno + 2}"
    assert certificate.label == line and str(certificate).endswith(f"invalid ({line})")


def test_a_loop_per_element_may_stop_by_a_formula(client):
    b = sg.program.ProgramBuilder("halving")
    x, k = b.state("x", (4,)), b.param("k", (4,))
    (y,), _, _ = b.while_loop(
        "shrink",
        [x],
        lambda y, k: (abs(y) < 0.3) | (y < -100.0),
        lambda carried, exports, mapped: carried[0] * mapped[0],
        max_iter=40,
        mapped=[k],
    )
    b.next(x=y)
    b.objective("squares", terminal=lambda states, exports: b.sum(states["x"] ** 2))
    start, factors = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 0.5, 0.6, 0.7])
    g = client.gradient(
        sg.World(program=b),
        steps=1,
        policy="f64",
        initial={"x": start},
        params={"k": factors},
        objective="squares",
    )
    turns = np.ceil(np.log(0.3 / start) / np.log(factors))
    ends = start * factors**turns
    np.testing.assert_allclose(g.value, np.sum(ends**2), rtol=1e-14)
    np.testing.assert_allclose(g.params["k"], 2 * ends * turns * ends / factors, rtol=1e-13)


def test_branches_inside_scans_differentiate(client):
    @sg.world
    def steps(x: sg.State[3]):
        def turn(total, e):
            square = sg.cond(e > 0.5, lambda z: sg.where(z < 2, z * z, z), lambda z: -z, e)
            return total + square, sg.where(square > total, square, total)

        total, larger = sg.scan(turn, 0.0, x)
        return larger * total

    @steps.objective
    def total(x):
        return np.sum(x)

    def value(x):
        running, larger = 0.0, []
        for e in x:
            square = (e * e if e < 2 else e) if e > 0.5 else -e
            larger.append(max(square, running))
            running += square
        return sum(larger) * running

    start = np.array([0.9, 0.1, 2.5])
    g = client.gradient(steps, steps=1, policy="f64", initial={"x": start}, objective="total")
    slopes = [(value(start + d) - value(start - d)) / 2e-6 for d in 1e-6 * np.eye(3)]
    assert g.value == pytest.approx(value(start), rel=1e-14)
    np.testing.assert_allclose(g.initial["x"], slopes, rtol=1e-8)
