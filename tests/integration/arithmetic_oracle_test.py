"""Counts of arithmetic of random worlds, forward and in reverse, against an interpreter of the program's text.

A failure names its seed, and `differences(ask(client, seed))` tells all that differs in that world.
"""

import collections
from dataclasses import astuple
from typing import NamedTuple

import numpy as np
import pytest
from arithmetic_misreadings import MISREADINGS
from arithmetic_oracle import Instance
from arithmetic_rounding import rounded
from arithmetic_worlds import FORMATS, ORDERS, case
from program_passes import Table
from program_text import read

import simgrad as sg

MOST_ROWS = 256  # that an answer tells of a pass


LOSSES = ("underflows", "overflows", "absorbed")
# By pass: operations with arithmetic that the worlds of a run must meet.
OPERATIONS = {
    "forward": "abs add cast cost cumsum div exp exp2 fma matmul max min mul neg prod scatter sigmoid sign sin sub sum "
    "tanh",
    "adjoint": "accumulate add cast cos cumsum div exclusive_prod matmul merge merge2 mul neg scatter sub sum tape",
}
# Parts of a program's text that they must meet.
TEXTS = {
    "mask": " where %",
    "while": " predicate ",
    "cond": " branch ",
    "for": " count=",
    "scan": " scanned=",
    "reversed while": " while_vjp ",
    "reversed for": " for_vjp ",
    "terminal cost": "terminal cost of ",
    "stage cost": "stage cost ",
    "ordered products": " products=",
    **{f"order {order}": f" order={order} " for order in ORDERS},
    **{f"accumulator {form}": f" accumulator={form} " for form in FORMATS},
}


def met(text, counts):
    """Kinds of losses, operations and parts of the text that one world has."""
    found = {name for name, part in TEXTS.items() if part in text}
    for phase, table in counts.items():
        for (_, operation, _), row in table.rows().items():
            found.add((phase, operation))
            found |= {(phase, loss) for loss in LOSSES if getattr(row, loss)}
    return found


def too_rare(seen, least):
    """How often a series of worlds met things, where that is less than `least`."""
    operations = [(phase, name) for phase, names in OPERATIONS.items() for name in names.split()]
    losses = [(phase, loss) for phase in OPERATIONS for loss in LOSSES]
    return {name: seen[name] for name in [*operations, *losses, *TEXTS] if seen[name] < least}


class Asked(NamedTuple):
    """An answer, and what it answers."""

    answer: sg.Gradient
    text: str
    arguments: dict
    counted: int


def ask(client, seed):
    arguments, counted = case(seed)
    answer = client.gradient(**arguments, program="text", diagnostics="off", arithmetic=counted)
    return Asked(answer, answer.program.text, arguments, counted)


def expected(asked):
    """The instances that are counted, and by pass the counts of all."""
    counts, instances, program = {"forward": Table(), "adjoint": Table()}, [], read(asked.text)
    for i in range(asked.counted):
        initial, params = [{name: x[i] for name, x in asked.arguments[kind].items()} for kind in ("initial", "params")]
        instances.append(Instance(program, asked.arguments["steps"], initial, params, asked.arguments["stride"]).run())
        counts["forward"].merge(instances[-1].forward)
        counts["adjoint"].merge(instances[-1].adjoint)
    return instances, counts


def counts_of(row):
    return row.results, row.underflows, row.overflows, row.additions, row.absorbed


def told_rows(arithmetic, phase):
    """Counts by role, operation and site; an operation has a row for each of its lines."""
    rows = [row for row in arithmetic.operations if row.phase == phase]
    assert len(rows) < MOST_ROWS, "rows may be left out: make the worlds smaller"
    told = collections.defaultdict(lambda: np.zeros(5, int))
    for row in rows:
        told[row.role, row.operation, row.site] += counts_of(row)
    return {key: tuple(counts.tolist()) for key, counts in told.items()}


def unequal(told, wanted):
    """By key: both, where they differ."""
    return {key: (told.get(key), wanted.get(key)) for key in told | wanted if told.get(key) != wanted.get(key)}


def bits(numbers):
    """NaNs are one."""
    return [number.hex() if number == number else "nan" for number in np.asarray(numbers, float).ravel().tolist()]


def differences(asked, seen=None):
    """Compares an answer with the interpreter's, and tells what differs; `seen` counts what its world met."""
    (instances, counts), answer, found = expected(asked), asked.answer, {}
    for phase, table in counts.items():
        roles = {row.role: counts_of(row) for row in answer.arithmetic.roles if row.phase == phase}
        found[phase, "roles"] = unequal(roles, as_tuples(table.roles()))
        found[phase, "operations"] = unequal(told_rows(answer.arithmetic, phase), as_tuples(table.rows()))
    for i, instance in enumerate(instances):
        found["instance", i] = unequal(told_numbers(answer, i), wanted_numbers(instance))
    if seen is not None:
        seen.update(met(asked.text, counts))
    return {key: difference for key, difference in found.items() if difference}


def told_numbers(answer, i):
    """Numbers of one instance, in bits."""
    numbers = {"value": answer.values[i]}
    numbers |= {f"state {name}": state[i] for name, state in answer.state.items()}
    numbers |= {f"gradient {name}": gradient[i] for name, gradient in (answer.initial | answer.params).items()}
    return {name: bits(x) for name, x in numbers.items()}


def wanted_numbers(instance):
    numbers = {"value": instance.value}
    numbers |= {f"state {i.name}": x.array for i, x in zip(instance.program.states, instance.states)}
    form, scale = instance.program.gradient_format, 1 / instance.program.loss_scale
    for name, gradient in instance.gradients.items():
        numbers[f"gradient {name}"] = [rounded(form, x * scale) for x in gradient]
    return {name: bits(x) for name, x in numbers.items()}


def as_tuples(rows):
    return {key: astuple(counts) for key, counts in rows.items()}


def too_rare_of(series, least):
    """Holds each of a series of (seed, what was asked), and what all of them met rarely."""
    seen = collections.Counter()
    for seed, asked in series:
        assert not (found := differences(asked, seen)), f"seed {seed}: {found}"
    return too_rare(seen, least)


@pytest.fixture(scope="module")
def few(client):
    return {seed: ask(client, seed) for seed in range(60)}


def test_counts_are_those_of_the_interpreter(few):
    assert not too_rare_of(few.items(), 2)


@pytest.mark.parametrize("name", MISREADINGS)
def test_a_misread_definition_is_noticed(few, monkeypatch, name):
    monkeypatch.setattr(*MISREADINGS[name])
    assert any(differences(asked) for asked in few.values())


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("nonfinite report", "nonfinite stop"),
        ("step:", "prologue:"),
        ("param %2", "step %2"),
        (" = mul ", " = mulled "),
        (" = reshape ", " = reshaped "),
        (" = sum ", " = sum upward "),
        (" predicate ", " foreseen "),
        (" order=", " order=random"),
    ],
)
def test_an_unknown_text_is_an_error(few, known, unknown):
    asked = next(each for each in few.values() if known in each.text and each.arguments["steps"] > 0)
    with pytest.raises(ValueError):
        expected(asked._replace(text=asked.text.replace(known, unknown)))


@pytest.mark.long
def test_counts_of_many_worlds_are_those_of_the_interpreter(client):
    assert not too_rare_of(((seed, ask(client, seed)) for seed in range(60, 1060)), 40)
