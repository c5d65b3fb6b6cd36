"""A report on what was found in a step, for people and for tests."""

from __future__ import annotations

import collections
import dataclasses
from typing import Container, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from simgrad.jax.errors import told
from simgrad.jax.lowering import ERROR_IF, Options
from simgrad.jax.node import Node
from simgrad.jax.sites import Site
from simgrad.jax.trace import Step
from simgrad.jax.trees import Group

_NO_OPERATIONS = ("literal", "input", "argument", "result")


class Beside(NamedTuple):
    """The leaves of control, params and data by path: inputs with their types, constants, and the others."""

    inputs: Mapping[str, str]
    constants: Sequence[str]
    unread: Sequence[str]

    @classmethod
    def of(
        cls, groups: Mapping[str, Group], inputs: Container[tuple[str, str]], constants: Container[tuple[str, str]]
    ) -> "Beside":
        leaves = [
            (group.path(name), (kind, name), "key" if random is not None else _type_of(example))
            for kind, group in groups.items()
            if kind != "state"
            for name, example, random in zip(group.names, group.examples, group.keys)
        ]
        return cls(
            {path: kind for path, key, kind in leaves if key in inputs},
            tuple(path for path, key, _ in leaves if key in constants),
            tuple(path for path, key, _ in leaves if key not in inputs and key not in constants),
        )


def _type_of(example: np.ndarray) -> str:
    return "real" if example.dtype.kind == "f" else example.dtype.name


@dataclasses.dataclass(frozen=True)
class Report:
    """A summary of what a world of JAX is made of; str() gives it as text.

    Attributes:
      operations: of the step, by code. state, constants, observables: leaves of the state, by name.
      inputs: leaves of control, params and data that a request sends, by path, "params.k", with their types.
      given_constants: the paths of those that are constants. unread: of those that nothing reads.
      exports: what can be recorded. initial: states that init= gives. sites: the lines that decide.
      erased: lines where the step names a format of reals, which the policy's takes the place of.
      dropped: callbacks that are left out, by line; "error_if" are those whose condition is not tested.
      without_x64: where numbers of two widths would meet under x64: that line, and what follows from tracing the step by
        the widths of JAX without x64. Empty for all other steps.
      wide_integers: lines whose integers may exceed 32 bits, which they have in JAX as it is set, without x64.
      halts: lines whose error_if ends a run with an error, by name. messages: what each of them says.
      format_constants: literals that look like ones of the format of the trace (8 eps), by line.
      notes: what was lowered in another form, counted.
      roles: how many operations each role has, by function of the source.
    """

    operations: Mapping[str, int]
    state: Sequence[str]
    constants: Sequence[str]
    observables: Sequence[str]
    inputs: Mapping[str, str]
    given_constants: Sequence[str]
    unread: Sequence[str]
    exports: Sequence[str]
    initial: Sequence[str]
    sites: Sequence[Site]
    erased: Mapping[str, str]
    dropped: Mapping[str, str]
    without_x64: Mapping[str, str]
    wide_integers: Mapping[str, str]
    halts: Mapping[str, str]
    messages: Mapping[str, str]
    format_constants: Mapping[str, str]
    notes: Mapping[str, int]
    roles: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(
        cls,
        found: Step,
        beside: "Beside",
        sites: Sequence[Site],
        initial: Sequence[str],
        roles: Mapping[Node, str],
        halts: Mapping[Node, str],
    ) -> "Report":
        computing = [x for x in found.live.nodes if x.op not in _NO_OPERATIONS]
        lowering = found.lowered.lowering
        return cls(
            operations=collections.Counter(x.op for x in computing),
            state=found.state,
            constants=found.constants,
            observables=found.observables,
            inputs=beside.inputs,
            given_constants=beside.constants,
            unread=beside.unread,
            exports=tuple(found.exports),
            initial=tuple(initial),
            sites=tuple(sites),
            erased=dict(lowering.erased),
            dropped=dict(lowering.dropped),
            without_x64=_widths(lowering.options),
            wide_integers={} if jax.dtypes.canonicalize_dtype(np.int64) == np.int64 else dict(lowering.wide),
            halts={name: told(x.line.text, x.attributes["asked"]) for x, name in halts.items()},
            messages={name: x.attributes["message"] for x, name in halts.items()},
            format_constants=format_constants(found.live.nodes),
            notes=dict(found.lowered.graph.notes),
            roles=_by_role(computing, roles),
        )

    @property
    def operation_count(self) -> int:
        return sum(self.operations.values())

    def __str__(self) -> str:
        lines = [f"{self.operation_count} operations: {_counts(self.operations)}"]
        lines += ["roles:"]
        for role, functions in self.roles.items():
            lines.append(f"  {role} {sum(functions.values())}: {_counts(functions)}")
        unasked = [name for name in self.observables if name not in self.exports]
        for title, names in (
            *(("state", self.state), ("initial", self.initial), ("constants", self.constants)),
            ("inputs", [name if kind == "real" else f"{name} ({kind})" for name, kind in self.inputs.items()]),
            ("constants beside the state", self.given_constants),
            ("read by nothing", self.unread),
            ("observables", [name for name in self.observables if name in self.exports]),
            ("observables that cannot be recorded without observe=", unasked),
            ("exports", self.exports),
        ):
            if names:
                lines.append(f"{title}: {', '.join(names)}")
        lines += [f"{len(self.sites)} sites:"] if self.sites else []
        for site in self.sites:
            what = f"{site.kind} {site.what}".strip()
            size = f"{site.operations} x {what}, {site.elements} elements"
            lines.append(f"  {site.name}  {site.line} ({size}): {site.text}")
        for title, found in (
            ("widths of JAX without x64, where those of x64 clash", self.without_x64),
            ("formats erased", self.erased),
            ("integers of 64 bits that JAX without x64 has with 32", self.wide_integers),
            ("callbacks dropped", self._dropped(is_error=False)),
            ("error_if dropped, its condition is not tested", self._dropped(is_error=True)),
            ("error_if that ends a run with an error", self._halts_told()),
            ("constants of the traced format", self.format_constants),
        ):
            lines += [f"{title}:"] if found else []
            lines += [f"  {line}: {what}" for line, what in found.items()]
        if self.notes:
            lines.append(f"lowered in another form: {_counts(self.notes)}")
        return "\n".join(lines)

    def _dropped(self, is_error: bool) -> dict[str, str]:
        return {line: what for line, what in self.dropped.items() if (what == ERROR_IF) == is_error}

    def _halts_told(self) -> dict[str, str]:
        """The line of each halt, and its message on one line."""
        messages = {name: " ".join(self.messages[name].split()) for name in self.halts}
        return {
            name: f"{line}: {messages[name]}" if messages[name] else line
            for name, line in self.halts.items()
        }


def _widths(options: Options) -> dict[str, str]:
    if not options.without_x64:
        return {}
    erased = ", and float32 is a real like any other" if options.formats == "erase" else ""
    return {options.without_x64: f"integers have 32 bits, and wrap{erased}"}


def _by_role(nodes: Sequence[Node], roles: Mapping[Node, str]) -> dict[str, dict[str, int]]:
    """The number of operations by role and function of the source, roles with most operations first."""
    found: dict[str, dict[str, int]] = collections.defaultdict(collections.Counter)
    for x in nodes:
        found[roles.get(x) or "dynamics"][x.line.function or "(unknown)"] += 1
    return dict(sorted(found.items(), key=lambda entry: (-sum(entry[1].values()), entry[0])))


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {n}" for name, n in ordered)


# Multiples of these come from finfo of f64, in which a step is traced.
_EPSILON = 2.0**-52
_LARGEST = float.fromhex("0x1.fffffffffffffp+1023")
_SMALLEST = 2.0**-1022


def format_constants(nodes: Sequence[Node]) -> dict[str, str]:
    """Literals of a few eps, of the largest or of the smallest f64, by the line that uses them."""
    users: dict[Node, Node] = {}
    for x in nodes:
        for y in x.operands:
            if y.op == "literal" and y.dtype.kind == "f" and y.size:
                users.setdefault(y, x)
    found: dict[str, list[str]] = {}
    for literal, user in users.items():
        for number in sorted(set(abs(literal.attributes["value"].reshape(-1)[:64]).tolist())):
            what = _format_constant(number)
            if what and what not in found.setdefault(user.line.text, []):
                found[user.line.text].append(what)
    return {line: ", ".join(told) for line, told in found.items() if told}


def _format_constant(x: float) -> str:
    multiple = x / _EPSILON
    if 0.5 <= multiple <= 1024 and multiple == int(multiple * 2) / 2:
        return f"{multiple:g} eps"
    if x == _LARGEST:
        return "the largest number"
    return "the smallest number" if x == _SMALLEST else ""
