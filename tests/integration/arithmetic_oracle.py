"""Counts of arithmetic by an interpreter of a program's text: forward, and in reverse from the recorded scopes.

Nothing here is read from the server but the text, and each number is rounded from an exact one (arithmetic_rounding.py).
docs/semantics.md, "Arithmetic", defines the counts.
"""

import collections
import math

import numpy as np
from arithmetic_counts import Counts, Tally, are_finite
from arithmetic_operations import Execution, evaluate
from arithmetic_rounding import FORMATS, add, narrows, rounded
from program_values import Scope, Value, move_of

ABSENT = (None, None)  # a cotangent and its mask: None and a number, where all of it is present


class Table(collections.defaultdict):
    """Counts by (role, operation, site)."""

    def __init__(self):
        super().__init__(Counts)

    def merge(self, other):
        for key, counts in other.items():
            self[key].merge(counts)

    def rows(self):
        return {key: counts for key, counts in self.items() if counts}

    def roles(self):
        roles = Table()
        for (role, _, _), counts in self.items():
            roles[role].merge(counts)
        return roles.rows()


def executed(op, scope, size):
    """By element of the result: whether the mask of the operation holds."""
    if op.where is None:
        return [True] * size
    mask = scope[op.where].array.ravel() != 0
    return mask.tolist() if mask.size == size else [bool(mask.any())] * size


def site_of(op, scope):
    """Its own, or that of the loop around it."""
    return op.site or scope.site


class Runner:
    """Runs regions; counts in `table` as long as that is not None."""

    def __init__(self):
        self.table = None
        self.others = {"while": self.run_while, "for": self.run_for}

    def counts(self, *key):
        return Counts() if self.table is None else self.table[key]

    def run(self, region, scope):
        for op in region.operations:
            if op.code in self.others:
                self.others[op.code](op, scope)
            else:
                self.run_one(op, scope)

    def run_one(self, op, scope):
        [definition] = op.results
        operands = [scope[name] for name in op.operands]
        is_real = definition.element in FORMATS
        if move := move_of(op, is_real):
            result = move(op, definition.shape, *[x.array for x in operands])
        else:
            counts = self.counts(op.role, op.code, site_of(op, scope))
            tally = Tally(counts, executed(op, scope, math.prod(definition.shape)))
            result = evaluate(Execution(op, operands, definition.element, definition.shape, tally))
        scope[definition.name] = Value(np.asarray(result).reshape(definition.shape), definition.element)

    def yields(self, region, scope):
        return [None if name == "_" else scope[name] for name in region.yields]

    # ---- Loops ----

    def run_while(self, op, scope):
        """Keeps the scopes of all tests and turns. A branch of a `cond` is a loop of at most one turn."""
        op.check("site", "max_iter", "carried", "cap_first", "predicate", "branch")
        if not op.words & {"predicate", "branch"}:
            raise ValueError("a while that is neither a predicate's nor a branch")
        test, body = op.regions
        most, carried = int(op.options["max_iter"]), int(op.options["carried"])
        site = op.options.get("site", "")
        values, tests, turns = [scope[name] for name in op.operands[:carried]], [], []
        while not ("cap_first" in op.words and len(turns) == most):
            tests.append(self.inside(test, values, scope, site))
            is_over, *exports = self.yields(test, tests[-1])
            if is_over.array.all() or len(turns) == most:
                break
            turns.append(self.inside(body, values + exports, scope, site))
            values = self.yields(body, turns[-1])
        exports = self.yields(test, tests[-1])[1:]
        record = (carried, len(exports), tests, turns)
        self.end_loop(op, scope, record, values + exports + [Value(np.array([len(turns)]), "i32")])

    def inside(self, region, values, scope, site=""):
        inner = Scope(scope, site=site)
        inner.bind(region.arguments, values)
        self.run(region, inner)
        return inner

    def run_for(self, op, scope):
        op.check("count", "scanned", "reverse")
        [body] = op.regions
        count, scanned = int(op.options["count"]), int(op.options.get("scanned", 0))
        carried = len(op.operands) - scanned
        order = range(count)[::-1] if "reverse" in op.words else range(count)
        values, lines, turns = [scope[name] for name in op.operands[:carried]], [scope[name] for name in op.operands[carried:]], []
        stacks = [[None] * count for _ in body.yields[carried:]]
        for i in order:
            elements = [Value(line.array[i], line.element) for line in lines]
            turns.append((i, self.inside(body, [Value(np.array(i), "i32"), *values, *elements], scope)))
            yielded = self.yields(body, turns[-1][1])
            values = yielded[:carried]
            for stack, element in zip(stacks, yielded[carried:], strict=True):
                stack[i] = element
        stacked = [Value(np.stack([x.array for x in stack]), stack[0].element) for stack in stacks]
        self.end_loop(op, scope, (carried, len(stacks), scanned, turns), values + stacked)

    def end_loop(self, op, scope, record, values):
        for definition, value in zip(op.results, values, strict=True):
            if definition:
                scope.loops[definition.name] = record
                scope[definition.name] = value


class Reverser(Runner):
    """Runs the reverse regions as well. Cotangents are pairs of a value and a mask."""

    def __init__(self, gradient_format, sums):
        super().__init__()
        self.gradient_format = gradient_format
        self.sums = sums  # by input: what adds up its gradient
        self.others |= {"while_vjp": self.reverse_while, "for_vjp": self.reverse_for, "accumulate": self.accumulate}

    def cotangents(self, names, scope):
        """Values stand in the first half of the names, their masks in the second."""
        half = len(names) // 2
        pairs = zip(names[:half], names[half:], strict=True)
        return [(None if x == "_" else scope[x], None if "_" in (x, mask) else scope[mask]) for x, mask in pairs]

    def bind_cotangents(self, definitions, cotangents, scope):
        half = len(definitions) // 2
        for definition, mask, given in zip(definitions[:half], definitions[half:], cotangents, strict=True):
            if definition:
                scope[definition.name] = in_format(definition, given[0])
            if mask:
                scope[mask.name] = presence(mask, given)

    def reverse(self, region, around, primal, lead, cotangents):
        """The cotangents that a reverse region yields; `lead` are arguments before those."""
        scope = Scope(around, primal, primal.site)
        scope.bind(region.arguments[: len(lead)], lead)
        self.bind_cotangents(region.arguments[len(lead) :], cotangents, scope)
        self.run(region, scope)
        return self.cotangents(region.yields, scope)

    def reverse_while(self, op, scope):
        op.check()
        body, test, test_last, test_both = op.regions
        carried, exports, tests, turns = scope.loop(op.of)
        given = self.cotangents(op.operands, scope)
        values, outer, captured = given[:carried], given[carried : carried + exports], given[carried + exports :]
        for i in reversed(range(max(len(tests), len(turns)))):
            inner = []
            if i < len(turns):
                found = self.reverse(body, scope, turns[i], [], values + captured)
                values, inner, captured = split(found, carried, exports)
            if i < len(tests):
                # The last test that ran gave what the loop exports.
                is_last, gives = i == len(tests) - 1, i < len(turns)
                region = (test_both if gives else test_last) if is_last else test
                found = self.reverse(region, scope, tests[i], [], values + (outer if is_last else []) + inner + captured)
                values, _, captured = split(found, carried, 0)
        self.bind_cotangents(op.results, values + captured, scope)

    def reverse_for(self, op, scope):
        op.check()
        [body] = op.regions
        carried, stacks, scanned, turns = scope.loop(op.of)
        values, stacked, captured = split(self.cotangents(op.operands, scope), carried, stacks)
        captured = captured[: len(captured) - scanned]
        lines = [[ABSENT] * len(turns) for _ in range(scanned)]
        for i, turn in reversed(turns):
            given = values + [element(x, i) for x in stacked] + captured + [ABSENT] * scanned
            found = self.reverse(body, scope, turn, [Value(np.array(i), "i32")], given)
            values, _, rest = split(found, carried, stacks)
            captured = rest[: len(captured)]
            for line, x in zip(lines, rest[len(captured) :], strict=True):
                line[i] = x
        first = carried + stacks + len(captured)
        definitions = op.results[first : first + scanned]
        found = [joined(line, definition) for line, definition in zip(lines, definitions, strict=True)]
        self.bind_cotangents(op.results, values + [ABSENT] * stacks + captured + found, scope)

    def accumulate(self, op, scope):
        op.check()
        name = op.into.partition(".")[2]
        numbers = scope[op.operands[0]].numbers
        masks = [executed(op, scope, len(numbers))]
        masks += [scope[mask].array.ravel().tolist() for mask in op.operands[1:]]
        sums, counts = self.sums[name], self.counts("gradient", "accumulate", "")
        for i, x in enumerate(numbers):
            if all(mask[i if len(mask) == len(numbers) else 0] for mask in masks):
                sums[i] = added(counts, self.gradient_format, sums[i], x)


def added(counts, form, before, x):
    """A step of a sum over steps, and its counts."""
    total = add(form, before, x)
    tally = Tally(counts, [True])
    tally.at(0)
    tally.gave()
    tally.added(before, x, total)
    if not math.isfinite(total) and are_finite([before, x]):
        tally.overflowed()
    return total


def split(cotangents, first, second):
    return cotangents[:first], cotangents[first : first + second], cotangents[first + second :]


def in_format(definition, value):
    """A cotangent as an argument or result holds it: zeros where it is absent."""
    numbers = np.zeros(definition.shape)
    if value is not None:
        numbers = np.array([rounded(definition.element, x) for x in value.numbers]).reshape(definition.shape)
    return Value(numbers, definition.element)


def presence(definition, cotangent):
    value, mask = cotangent
    if value is not None and mask is not None:
        return mask
    return Value(np.full(definition.shape, value is not None), "bool")


def element(cotangent, i):
    """That of one turn, out of a stacked one."""
    return tuple(None if x is None else Value(x.array[i], x.element) for x in cotangent)


def joined(line, definition):
    """The cotangent of a line that a loop scanned; ABSENT where nobody wants it."""
    if definition is None:
        return ABSENT
    shape = definition.shape[1:]
    numbers = [np.zeros(shape) if x is None else x.array for x, _ in line]
    masks = [np.full(shape, x is not None) if mask is None else mask.array for x, mask in line]
    return Value(np.stack(numbers), definition.element), Value(np.stack(masks), "bool")


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
        self.states = [in_format(i.definition, Value(np.asarray(initial[i.name], float), "f64")) for i in program.states]

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
