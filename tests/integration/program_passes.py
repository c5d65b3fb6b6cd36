"""Runs the regions of a program forward, and in reverse from the scopes that the forward pass recorded."""

import collections
import math

import numpy as np
from arithmetic_counts import Counts, Tally, are_finite
from arithmetic_operations import Execution, evaluate
from arithmetic_rounding import FORMATS, add, rounded
from program_values import Scope, Value, move_of

ABSENT = (None, None)  # a cotangent and its mask; one without a mask is present everywhere


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
    """The operation's own, or that of the loop around it."""
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
        operands, turns = [scope[name] for name in op.operands], []
        values, lines = operands[:carried], operands[carried:]
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
                given = values + (outer if is_last else []) + inner + captured
                found = self.reverse(region, scope, tests[i], [], given)
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
    """The cotangent of one turn, out of a stacked one."""
    return tuple(None if x is None else Value(x.array[i], x.element) for x in cotangent)


def joined(line, definition):
    """The cotangent of a line that a loop scanned; ABSENT where nobody wants it."""
    if definition is None:
        return ABSENT
    shape = definition.shape[1:]
    numbers = [np.zeros(shape) if x is None else x.array for x, _ in line]
    masks = [np.full(shape, x is not None) if mask is None else mask.array for x, mask in line]
    return Value(np.stack(numbers), definition.element), Value(np.stack(masks), "bool")
