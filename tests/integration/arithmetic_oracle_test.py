"""Counts of arithmetic of random worlds, forward and in reverse, against an interpreter of the program's text.

A failure names its seed: `check(client, seed)` runs that one alone.
"""

import collections
from dataclasses import astuple

import numpy as np
import pytest
from arithmetic_oracle import Instance, Table
from arithmetic_worlds import case
from program_text import read

MOST_ROWS = 256  # that an answer tells of a pass


class Seen(collections.Counter):
    """In how many worlds a pass had an operation, a loss, or a form of the text."""

    def row(self, phase, operation, counts):
        self[phase, operation] += 1
        for loss in ("underflows", "overflows", "absorbed"):
            self[phase, loss] += getattr(counts, loss) > 0

    def text(self, text):
        for name, words in (("mask", " where %"), ("while", " while "), ("for", " for "), ("cond", " branch ")):
            self["text", name] += words in text


def ask(client, seed):
    arguments, counted = case(seed)
    return client.gradient(**arguments, program="text", diagnostics="off", arithmetic=counted), arguments, counted


def expected(program, arguments, counted):
    """The instances that are counted, and their counts together."""
    forward, adjoint, instances = Table(), Table(), []
    for i in range(counted):
        initial = {name: numbers[i] for name, numbers in arguments["initial"].items()}
        params = {name: numbers[i] for name, numbers in arguments["params"].items()}
        instances.append(Instance(program, arguments["steps"], initial, params, arguments["stride"]).run())
        forward.merge(instances[-1].forward)
        adjoint.merge(instances[-1].adjoint)
    return instances, {"forward": forward, "adjoint": adjoint}


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


def differences(answer, instances, counts):
    found = {}
    for phase, table in counts.items():
        roles = {row.role: counts_of(row) for row in answer.arithmetic.roles if row.phase == phase}
        found[phase, "roles"] = unequal(roles, as_tuples(table.roles()))
        found[phase, "operations"] = unequal(told_rows(answer.arithmetic, phase), as_tuples(table.rows()))
    for i, instance in enumerate(instances):
        told = {"value": bits(answer.values[i])}
        wanted = {"value": bits(instance.value)}
        found["instance", i] = unequal(told, wanted)
    return {key: difference for key, difference in found.items() if difference}


def as_tuples(rows):
    return {key: astuple(counts) for key, counts in rows.items()}


def check(client, seed, seen=None):
    """What differs between an answer and the interpreter's."""
    answer, arguments, counted = ask(client, seed)
    instances, counts = expected(read(answer.program.text), arguments, counted)
    if seen is not None:
        seen.text(answer.program.text)
        for phase, table in counts.items():
            for (_, operation, _), row in table.rows().items():
                seen.row(phase, operation, row)
    return differences(answer, instances, counts)


def hold(client, seeds):
    seen = Seen()
    for seed in seeds:
        assert not (found := check(client, seed, seen)), f"seed {seed}: {found}"
    return seen


def test_counts_are_those_of_the_interpreter(client):
    seen = hold(client, range(60))
    print(seen)


@pytest.mark.long
def test_counts_of_many_worlds_are_those_of_the_interpreter(client):
    hold(client, range(60, 1060))
