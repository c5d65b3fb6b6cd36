"""Values, gradients and counts of arithmetic by an interpreter of a program's text.

Nothing here comes from the server but the text, and each number is rounded from an exact one (arithmetic_rounding.py).
docs/semantics.md, "Arithmetic", defines the counts.
"""

import math

import numpy as np
from arithmetic_counts import Tally
from arithmetic_rounding import narrows, rounded
from program_passes import ABSENT, Reverser, Table, added, in_format
from program_values import Scope, Value


class Instance:
    """One instance of a gradient: its value, its gradients and the counts of both passes."""

    def __init__(self, program, steps, initial, params, stride):
        self.program, self.steps, self.stride = program, steps, stride
        self.params = params
        self.forward, self.adjoint = Table(), Table()
        self.value, self.gradients, self.scopes = 0.0, {}, []
        self.cost_format = None  # that of the costs so far
        sums = {i.name: [0.0] * math.prod(i.definition.shape) for i in program.inputs if i.kind == "param"}
        self.runner = Reverser(program.gradient_format, sums)
        self.states = [in_format(i.definition, Value(initial[i.name], "f64")) for i in program.states]

    def run(self):
        self.run_forward()
        self.run_reverse()
        return self

    def is_sampled(self, t):
        return t == self.steps - 1 or (t + 1) % self.stride == 0

    def inputs(self):
        """A scope with all inputs; parameters are exact."""
        scope, states = Scope(), iter(self.states)
        for i in self.program.inputs:
            scope[i.definition.name] = next(states) if i.kind == "state" else Value(self.params[i.name], "f64")
        return scope

    def add_cost(self, cost):
        self.cost_format = cost.element
        counts = self.runner.counts("objective", "cost", "")
        self.value = added(counts, cost.element, self.value, float(cost.array))

    def run_forward(self):
        step = self.program.regions["step"]
        for t in range(self.steps):
            self.runner.table = self.forward if self.is_sampled(t) else None
            scope = Scope(self.inputs())
            self.runner.run(step, scope)
            self.scopes.append(scope)
            if self.program.stage_cost:
                self.add_cost(scope[self.program.stage_cost])
            self.states = self.runner.yields(step, scope)
        self.runner.table = self.forward
        self.end = self.inputs()
        if terminal := self.program.regions.get("terminal"):
            self.end = self.runner.inside(terminal, self.states, self.end)
            [cost] = self.runner.yields(terminal, self.end)
            self.add_cost(cost)

    def run_reverse(self):
        regions, count = self.program.regions, len(self.states)
        form = self.cost_format or "f32"  # without a cost nothing reads the scale
        scale = Value(np.array(rounded(form, self.program.loss_scale)), form)
        lead = [scale] if self.program.stage_cost else []
        absent = [ABSENT] * count
        cotangents = absent
        self.runner.table = self.adjoint
        if terminal := regions.get("adjoint terminal"):
            seeds = [scale] if "terminal" in regions else []
            cotangents = self.runner.reverse(terminal, None, self.end, seeds, absent + absent)[:count]
        for t in reversed(range(self.steps)):
            self.runner.table = self.adjoint if self.is_sampled(t) else None
            region = regions["adjoint last" if t == self.steps - 1 else "adjoint step"]
            cotangents = self.runner.reverse(region, None, self.scopes[t], lead, cotangents + absent)[:count]
        self.runner.table = self.adjoint
        self.gradients = dict(self.runner.sums)
        for i, cotangent in zip(self.program.states, cotangents, strict=True):
            self.gradients[i.name] = self.cast_gradient(i.definition, *cotangent)

    def cast_gradient(self, definition, value, mask):
        """The gradient of an initial state; zeros where no cotangent is present."""
        size = math.prod(definition.shape)
        if value is None:
            return [0.0] * size
        present = [True] * size if mask is None else mask.array.ravel().tolist()
        tally = Tally(self.runner.counts("gradient", "cast", ""), present)
        form, results = self.program.gradient_format, []
        for i, x in enumerate(value.numbers):
            results.append(rounded(form, x) if present[i] else 0.0)
            tally.at(i)
            tally.gave()
            if present[i] and math.isfinite(x) and narrows(value.element, form):
                tally.rounded(form, x, results[-1])
                if math.isinf(results[-1]):
                    tally.overflowed()
        return results
