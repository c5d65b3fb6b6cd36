"""Lines of sites that share a name: the server counts the tests that its level reports, and so does the client."""

import numpy as np
import pytest

import simgrad as sg
from simgrad.program import ProgramBuilder
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_I32, ELEMENT_TYPE_REAL


class OneName(ProgramBuilder):
    """All comparisons are called "test"; the line of each says its margin at x = 1."""

    def _test_name(self, x):
        return {"decision_site": "test"} if x.element == ELEMENT_TYPE_REAL else {}

    def _label(self):
        return getattr(self, "line", "")

    def test_of(self, x, bound=0.0, margin=None):
        """x * number > bound, with a number that no other test has."""
        self.count = getattr(self, "count", 0) + 1
        self.line = f"margin {self.count + 1 - bound:g}" if margin is None else margin
        held = self.gt(x * float(self.count + 1), bound)
        self.line = "elsewhere"
        return held


def world(level):
    b = OneName("lines", level=level)
    x, kept = b.state("x"), b.state("kept", element=ELEMENT_TYPE_BOOL)
    one, none = b.literal(1.0), b.literal(0.0)
    y = b.select(b.test_of(x), one, none)
    y = y + b.select(b.test_of(x, 0.5), one, none)
    y = y + b.convert(b.test_of(x), ELEMENT_TYPE_REAL)
    y = y + b.select(b.and_(b.test_of(x), kept), one, none)
    y = y + b.select(b.test_of(x, 1e-6), one, none)
    y = y + b.select(b.test_of(x, float("-inf")), one, none)
    y = y + b.select(b.test_of(x, 1e-4), one, none)
    following = b.test_of(x)
    y = y + b.select(following, one, none)

    def turn(index, carried):
        ready, sum_so_far = carried
        return [b.test_of(x), sum_so_far + b.select(ready, b.select(b.test_of(x), one, none), none)]

    ready, total = b.for_loop(2, [b.value(kept), none], turn)

    def stops(n, ended):
        guarded = b.select(b.test_of(x), one, none)
        return b.or_(ended, b.and_(b.test_of(x), b.gt(n, guarded * 0.0 + 7.5)))

    b.line = "the loop"
    loop = b.while_loop(
        "turns", [none, b.not_(b.test_of(x))], stops,
        lambda carried, exports: [carried[0] + 1.0, b.select(b.test_of(x), b.ge(carried[0], 2.5), carried[1])], max_iter=20)  # fmt: skip
    branches = b.switch(ready, [lambda: [b.select(b.test_of(x), one, none)], lambda: [b.select(b.test_of(x, 2.0), one, none)]])
    b.next(x=x + 0.0 * (y + total + loop[0][0] + branches[0]), kept=following)
    return sg.World(program=b.build())


@pytest.mark.parametrize("level", ["decisions", "all"])
def test_a_site_has_the_line_of_the_comparison_that_the_server_calls_so(client, level):
    answer = client.rollout(world(level), steps=1, initial={"x": 1.0, "kept": True}, policy="f64")
    told = {name: event for name, event in answer.events.items() if event.line.startswith("margin ") and event.checks[0]}
    assert len(told) == {"decisions": 9, "all": 15}[level]
    assert {name: f"margin {event.margin[0]:g}" for name, event in told.items()} == {n: e.line for n, e in told.items()}


def test_a_level_reports_fewer_comparisons_under_a_name_than_another():
    lines = {level: world(level).lines_of_sites() for level in ("loops", "decisions", "all")}
    counts = {level: sum(name.startswith("test") for name in found) for level, found in lines.items()}
    assert counts["loops"] == 1 < counts["decisions"] < counts["all"]
    assert lines["all"]["test"] == "margin 2" and lines["decisions"]["test"] == "margin 2.5"


class Conversions(ProgramBuilder):
    """The line of each conversion says its margin at x = 1."""

    def _label(self):
        return getattr(self, "line", "")

    def whole(self, x, element=ELEMENT_TYPE_I32):
        """2 and some hundredths that no other conversion has, as an integer, or as a bool, which compares with 0."""
        self.count = getattr(self, "count", 0) + 1
        number = 2 + 0.01 * self.count
        made = x * number
        self.line = f"margin {number - 2 if element == ELEMENT_TYPE_I32 else number:g}"
        made = self.convert(made, element)
        self.line = "elsewhere"
        return made


def world_of_conversions(level):
    b = Conversions("conversions", level=level)
    x, kept = b.state("x"), b.state("kept", element=ELEMENT_TYPE_I32)
    table, one, none = b.literal([1.0, 2.0, 3.0, 4.0]), b.literal(1.0), b.literal(0.0)
    y = table[b.whole(x)]
    y = y + b.convert(b.whole(x), ELEMENT_TYPE_REAL)  # it becomes a real again
    b.whole(x)  # nothing reads it
    y = y + table[b.whole(x) + 1]
    y = y + b.select(b.whole(x, ELEMENT_TYPE_BOOL), one, none)
    y = y + b.select(b.gt(b.whole(x), 1), one, none)
    following = b.whole(x)
    total = b.for_loop(2, [none], lambda index, carried: [carried[0] + table[b.whole(x)]])[0]
    loop = b.while_loop(
        "turns", [b.literal(0, element=ELEMENT_TYPE_I32)], lambda n: b.ge(n, b.whole(x)), lambda carried, exports: [carried[0] + 1], max_iter=9)  # fmt: skip
    b.observe("seen", b.whole(x))  # no number hangs on it
    b.next(x=x + 0.0 * (y + total + b.convert(loop[0][0], ELEMENT_TYPE_REAL)), kept=following + 0 * kept)
    return sg.World(program=b.build())


@pytest.mark.parametrize("level", ["decisions", "all"])
def test_a_conversion_that_the_server_calls_a_choice_has_its_line(client, level):
    made = world_of_conversions(level)
    answer = client.rollout(made, steps=1, initial={"x": 1.0, "kept": 0}, policy="f64")
    told = answer.events
    assert len(told) == 7 and all(event.checks[0] for event in told.values())
    assert {name: f"margin {event.margin[0]:g}" for name, event in told.items()} == {n: e.line for n, e in told.items()}
    assert {name: line for name, line in made.lines_of_sites().items() if line != "elsewhere"}.keys() == told.keys()


def test_no_conversion_is_a_site_where_loops_alone_are():
    assert not any(name.startswith("convert") for name in world_of_conversions("loops").lines_of_sites())
