"""Goes on with a program that is already written: operations in its step that compute its controls."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from simgrad.expression import Expression
from simgrad.program import ProgramBuilder
from simgrad.program_edit import first_reader, needed_for, operations, replace_value
from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import INPUT_KIND_CONTROL, INPUT_KIND_STATE

_HIDDEN = -1  # the scope of values inside regions, which nothing new may use


class ContinuedBuilder(ProgramBuilder):
    """Inputs and values of the step can be used, those inside loops, branches and costs cannot.

    Operations are written by themselves; `place` puts them into the step, then `connect` has the step
    read what they compute. The program that is given stays as it is.
    """

    def __init__(self, program: program_pb2.Program):
        super().__init__(program.name, program.level)
        self.program.CopyFrom(program)
        self._written = program_pb2.Region()
        self._regions = [self._written]
        self._exports_before = len(program.exports)
        self._lines = [""] * len(program.values)
        self._scope_of = [_HIDDEN] * len(program.values)
        for i in program.inputs:
            self._scope_of[i.value] = self._scopes[0]
        for op in program.step.ops:
            for value in op.results:
                self._scope_of[value] = self._scopes[-1]
        for op in operations(program.step):
            scope, _, ordinal = op.decision_site.rpartition(".")
            if ordinal.isdigit():
                self._ordinals[scope] = max(self._ordinals.get(scope, 0), int(ordinal))

    def declared(self, kind: int) -> dict[str, Expression]:
        """The inputs of a kind, by name."""
        return self._declared(kind)

    def fitted(self, given: Any, like: Expression) -> Expression:
        """The value in place of a control. Raises ValueError for another shape; a scalar fits all."""
        is_scalar = isinstance(given, Expression) and given.shape == ()
        return self._as_before(self.broadcast_to(given, like.shape) if is_scalar else given, like, "control")

    def place(self, taken: Iterable[str], reached: set[int]) -> None:
        """Puts what was written before the first operation that needs a control, and before it what
        the observables `taken` are computed from.

        Args:
          reached: values that depend on a control.
        """
        ops = list(self.program.step.ops)
        names = set(taken)
        wanted = [e.value for e in self.program.exports if e.name in names]
        first = first_reader(ops, reached)
        needed = set(needed_for(ops, wanted))
        early = [op for place, op in enumerate(ops) if place < first or place in needed]
        late = [op for place, op in enumerate(ops) if place >= first and place not in needed]
        whole = program_pb2.Region(ops=[*early, *self._written.ops, *late])
        del self.program.step.ops[:]
        self.program.step.ops.extend(whole.ops)

    def connect(self, computed: Mapping[str, Expression]) -> None:
        """Replaces controls by what was computed, in the step, in costs and among the inputs; it is
        observed under their names. Raises ValueError where a name is taken."""
        controls = {n: x.value for n, x in self._declared(INPUT_KIND_CONTROL).items() if n in computed}
        for name, control in controls.items():
            self._replace(control, computed[name].value)
            self._observe(name, computed[name])
        for objective in self.program.objectives:
            if objective.terminal.yields:
                self._read_at_the_end(objective.terminal, controls)
        inputs = [i for i in self.program.inputs if i.value not in controls.values()]
        del self.program.inputs[:]
        self.program.inputs.extend(inputs)

    def _replace(self, control: int, computed: int) -> None:
        replace_value(self.program.step, control, computed)
        for objective in self.program.objectives:
            replace_value(objective.stage, control, computed)
        for e in self.program.exports:
            if e.value == control:
                e.value = computed

    def _observe(self, name: str, computed: Expression) -> None:
        known = {e.name: e.value for e in self.program.exports}
        known.update({n: x.value for n, x in self._declared(INPUT_KIND_STATE).items()})
        if name not in known:
            self.observe(name, computed)
        elif known[name] != computed.value:
            raise ValueError(
                f"control {name} would be observed under its name, which a state or observable has"
            )

    def _read_at_the_end(self, terminal: program_pb2.Region, controls: Mapping[str, int]) -> None:
        """Arguments for the new exports; a cost that read a control reads that of the last step."""
        for e in self.program.exports[self._exports_before :]:
            self._argument(terminal, Expression(self, e.value))
        states = len(self._declared(INPUT_KIND_STATE))
        places = {e.name: states + place for place, e in enumerate(self.program.exports)}
        for name, control in controls.items():
            replace_value(terminal, control, terminal.args[places[name]])
