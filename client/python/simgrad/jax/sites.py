"""Names of the tests of a step, and the lines that they stand for.

A name is `module.function.n`: the n-th line of the function that decides, counted downward. Lines
themselves are labels, so that a comment above changes neither name nor fingerprint.
"""

from __future__ import annotations

import collections
import dataclasses
import linecache
import re
from typing import Iterable, Mapping

from simgrad.jax.given import Given
from simgrad.jax.node import Line, Node, Place
from simgrad.jax.roles import CHOICES, is_test

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST = 96


@dataclasses.dataclass(frozen=True)
class Site:
    """A line that decides.

    Attributes:
      name: as in answers. line: "solver.py:602". text: of the line. function: around it.
      what: loop, test or choice: of the largest, of an order, of pivots, or of an integer by reals. kind: of a test termination, event, weight or guard, which is not reported at
        the level decisions. operations, elements: how many comparisons it makes.
      scope: JAX's named scopes there.
    """

    name: str
    line: str
    text: str
    function: str
    what: str
    operations: int
    elements: int
    kind: str = ""
    scope: str = ""


def site_names(nodes: Iterable[Node], aliases: Given[str]) -> dict[Place, str]:
    """A name for each line of a function that decides; `aliases` are the user's, by "file.py:line"."""
    by_function: dict[str, set[Place]] = collections.defaultdict(set)
    lines: dict[Place, Line] = {}
    for x in nodes:
        if is_test(x) or x.op == "while":
            place = x.line.place
            lines[place] = x.line
            by_function[_function_name(x.line)].add(place)
    names = {}
    for function, places in by_function.items():
        for ordinal, place in enumerate(sorted(places), start=1):
            alias = aliases.find(lines[place].text)
            names[place] = alias or f"{function}.{ordinal}"
    return names


def choice_names(choosing: Iterable[Node], aliases: Given[str]) -> dict[Node, str]:
    """The author's names for lines that choose integers by reals; the server names the others by what they do."""
    named = ((x, aliases.find(x.line.text)) for x in choosing)
    return {x: alias for x, alias in named if alias is not None}


def named_guards(
    nodes: Iterable[Node], kinds: Mapping[Node, str], choosing: Iterable[Node], aliases: Given[str]
) -> frozenset[Node]:
    """The guards on lines that have a name of the author's and decide nothing else: answers have no other site of it."""
    deciding: dict[str, list[Node]] = collections.defaultdict(list)
    for x in (*(y for y in nodes if is_test(y) or y.op == "while"), *choosing):
        deciding[x.line.text].append(x)
    named = (found for line, found in deciding.items() if aliases.find(line) is not None)
    return frozenset(x for found in named if all(kinds.get(y) == "guard" for y in found) for x in found)


def halt_names(halts: Iterable[Node], aliases: Given[str]) -> dict[Node, str]:
    """A name for each halt, after the function that asks for it; `aliases` are the user's, by "file.py:line"."""
    names: dict[Node, str] = {}
    for x in halts:
        name = aliases.find(x.line.text) or f"{_function_name(x.line)}.error"
        again = sum(y == name or y.startswith(f"{name}.") for y in names.values())
        names[x] = f"{name}.{again + 1}" if again else name
    return names


def sites_of(
    nodes: Iterable[Node],
    names: Mapping[Place, str],
    kinds: Mapping[Node, str],
    choosing: Iterable[Node] = (),
    chosen: Mapping[Node, str] | None = None,
) -> list[Site]:
    """One per name, kind and line, in the order of the program, choices behind the others."""
    found: dict[tuple[str, str, str, str], list[Node]] = collections.defaultdict(list)
    for x in nodes:
        if is_test(x) or x.op == "while":
            what = "loop" if x.op == "while" else "test"
            found[(names[x.line.place], what, kinds.get(x, ""), x.line.text)].append(x)
    for x in choosing:
        name = (chosen or {}).get(x, CHOICES[x.op])
        found[(name, "choice", "", x.line.text)].append(x)
    sites = []
    for (name, what, kind, _), ops in found.items():
        line = ops[0].line
        text = linecache.getline(line.path, line.number).strip()
        elements = sum(x.size for x in ops)
        sites.append(
            Site(name, line.text, text, line.function, what, len(ops), elements, kind, line.scope)
        )
    return sites


def _function_name(line: Line) -> str:
    module = line.file.removesuffix(".py") or "step"
    function = line.function.replace("<locals>.", "").replace("<lambda>", "lambda")
    return _FORBIDDEN.sub("_", f"{module}.{function}").strip("_.")[:_LONGEST] or "step"
