"""Loops, branches and accepted steps of a program being written."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_I32, ELEMENT_TYPE_REAL

from .expression import Expression
from .operation_writer import holds_values, type_text
from .operations import Operations


class ControlFlow(Operations):
    """The operations that have regions, each with its regions written by functions."""

    def while_loop(
        self,
        site: str,
        carried: Sequence[Any],
        test: Callable[..., Any],
        body: Callable[..., Any],
        *,
        max_iter: int,
        comparison: str | None = None,
        cap_first: bool = False,
        has_entry: bool = False,
        mapped: Sequence[Expression] | None = None,
    ) -> tuple[list[Expression], list[Expression], Expression]:
        """A loop that stops when its test holds, or at `max_iter`; it decides for the instance as
        one, or with `mapped` for each element of the leading axis by itself.

        Args:
          site: its name.
          carried: values that the loop changes.
          test: of the carried and then the mapped values; returns (lhs, rhs, exports...). The loop
            stops when lhs comparison rhs. Or it returns a bool, stop, or (stop, exports...), and
            the loop stops where it holds.
          comparison: lt, le, gt, ge, eq or ne; None: lt. There is none beside a bool.
          body: of (carried, exports as last evaluated), with `mapped` of (carried, exports, mapped);
            returns the next carried values.
          cap_first: at the cap the test is not evaluated again.
          has_entry: the test returns (lhs, rhs, entry, exports...), and a loop whose first lhs is
            not at least `entry` is not entered. Not beside a bool, which says that itself.
          mapped: values that the regions read element by element. They and the carried values have
            the same leading axis, which the regions do not see; the results have it again.
        Returns: carried values at the stop, exports as last evaluated, iterations (i32).
        """
        carried = self._side_by_side(carried)
        mapped = None if mapped is None else [self.value(x) for x in mapped]
        elements = 0 if mapped is None else self._leading([*carried, *mapped])
        inputs = [*carried, *(mapped or ())]
        op = self._control(
            "while",
            decision_site=site,
            max_iter=self._turns(max_iter),
            cap_first=cap_first,
            has_entry=has_entry,
            elements=elements,
            carried=len(carried),
            operands=[x.value for x in inputs],
        )
        inside = slice(0 if mapped is None else 1, None)
        outside = () if mapped is None else (elements,)
        tested = op.regions.add()
        with self._region(tested), self.role("termination", site):
            made = test(*[self._argument(tested, x, inside) for x in inputs])
            yields = self._side_by_side(made)
            tested.yields.extend(x.value for x in yields)
        op.predicate = yields[0].element == ELEMENT_TYPE_BOOL
        if op.predicate and yields[0].shape:
            raise TypeError(f"{self.here()}a loop stops by one bool, not {_one_of(yields[0])}")
        if op.predicate and (comparison is not None or has_entry):
            said = "has_entry" if comparison is None else f"comparison={comparison!r}"
            raise ValueError(f"{self.here()}the test of `{site}` is a bool, which stops the loop by itself: no {said}")
        if not op.predicate:
            op.comparison = "lt" if comparison is None else comparison
        exports = yields[1 if op.predicate else 3 if has_entry else 2 :]
        corrected = op.regions.add()
        with self._region(corrected):
            following = body(
                [self._argument(corrected, x, inside) for x in carried],
                [self._argument(corrected, x) for x in exports],
                *(
                    []
                    if mapped is None
                    else [[self._argument(corrected, x, inside) for x in mapped]]
                ),
            )
            inner = [self._expression(value) for value in corrected.args[: len(carried)]]
            corrected.yields.extend(x.value for x in self._following(following, inner))
        results = [self._new(x.shape, x.element, self._name(x)) for x in carried]
        results += [self._new(outside + x.shape, x.element, self._name(x)) for x in exports]
        iterations = self._new(outside, ELEMENT_TYPE_I32, f"{site}_iterations")
        op.results.extend(x.value for x in (*results, iterations))
        self._regions[-1].ops.append(op)
        return results[: len(carried)], results[len(carried) :], iterations

    def for_loop(
        self,
        count: int,
        carried: Sequence[Any],
        body: Callable[[Expression, list[Expression]], Any],
    ) -> list[Expression]:
        """`count` repetitions of body(index (i32), carried)."""
        carried = self._side_by_side(carried)
        op = self._control(
            "for",
            max_iter=self._turns(count),
            carried=len(carried),
            operands=[x.value for x in carried],
        )
        region = op.regions.add()
        with self._region(region):
            index = self._new((), ELEMENT_TYPE_I32, "index")
            region.args.append(index.value)
            inner = [self._argument(region, x) for x in carried]
            region.yields.extend(x.value for x in self._following(body(index, list(inner)), inner))
        results = [self._new(x.shape, x.element, self._name(x)) for x in carried]
        op.results.extend(x.value for x in results)
        self._regions[-1].ops.append(op)
        return results

    def scan(
        self,
        body: Callable[[list[Expression], list[Expression]], tuple[Any, Any]],
        carried: Sequence[Any],
        scanned: Sequence[Any] = (),
        *,
        length: int | None = None,
        reverse: bool = False,
    ) -> tuple[list[Expression], list[Expression]]:
        """A for over the leading axis of `scanned`, with `reverse` from its last element.

        Args:
          body: of (carried, one element of each scanned value); returns (next carried values, values
            to stack).
          length: how many turns, where nothing is scanned.
          reverse: what is stacked stands from its last place on, too.
        Returns: carried values at the end, and what was stacked, along a leading axis.
        """
        carried = self._side_by_side(carried)
        scanned = self._side_by_side(scanned)
        count = self._leading(scanned) if scanned else length
        if count is None:
            raise ValueError(f"{self.here()}scan needs something to scan, or a length")
        if length is not None and length != count:
            raise ValueError(f"{self.here()}scan of {count} elements has {count} turns, not length={length}")
        count = self._turns(count)
        op = self._control(
            "for",
            max_iter=count,
            carried=len(carried),
            scanned=len(scanned),
            reverse=reverse,
            operands=[x.value for x in (*carried, *scanned)],
        )
        region = op.regions.add()
        with self._region(region):
            region.args.append(self._new((), ELEMENT_TYPE_I32, "index").value)
            inner = [self._argument(region, x) for x in carried]
            elements = [self._argument(region, x, slice(1, None)) for x in scanned]
            following, stacked = body(list(inner), elements)
            given = self._side_by_side(stacked)
            region.yields.extend(x.value for x in (*self._following(following, inner), *given))
        if reverse and not scanned and not given:
            raise ValueError(f"{self.here()}scan with reverse, of nothing scanned and nothing stacked: no reverse")
        results = [self._new(x.shape, x.element, self._name(x)) for x in carried]
        results += [self._new((count, *x.shape), x.element, self._name(x)) for x in given]
        op.results.extend(x.value for x in results)
        self._regions[-1].ops.append(op)
        return results[: len(carried)], results[len(carried) :]

    def accept(
        self, site: str, a: Any, comparison: str, b: Any, trial: Any, current: Any
    ) -> Expression:
        """`trial` where (a comparison b), else `current`: a named site of kind acceptance."""
        compared, values = self.matched([a, b]), self.matched([trial, current])
        return self._emit(
            "accept",
            [*compared, *values],
            values[0].shape,
            values[0].element,
            decision_site=site,
            comparison=comparison,
        )

    def cond(
        self,
        condition: Any,
        then: Callable[..., Any],
        otherwise: Callable[..., Any],
        args: Sequence[Any] = (),
    ) -> list[Expression]:
        """then(*args) where the condition holds, else otherwise(*args): only one of them runs.

        Both return one value or a sequence of values, of the same types. A cotangent passes through
        the one that ran. Without a level the condition comes from events, or from integers.
        """
        holds = self.value(condition)
        if holds.element != ELEMENT_TYPE_BOOL:
            raise TypeError(f"{self.here()}cond takes one bool, not {type_text(holds)}: n != 0 is one")
        if holds.shape:
            raise TypeError(f"{self.here()}cond takes one bool, not {_one_of(holds)}, or where for each element")
        return self._cond(holds, [otherwise, then], args)

    def switch(
        self, index: Any, regions: Sequence[Callable[..., Any]], args: Sequence[Any] = ()
    ) -> list[Expression]:
        """regions[index](*args), for an i32, or for a bool where they are two; the first or the last where
        there is none of that number. As `cond` otherwise."""
        if len(regions) < 2:
            raise ValueError(f"{self.here()}switch needs branches to choose from: two at least, not {len(regions)}")
        choice = self.value(index if isinstance(index, Expression) else np.asarray(index))
        chooses = choice.element == ELEMENT_TYPE_I32 or choice.element == ELEMENT_TYPE_BOOL and len(regions) == 2
        if choice.shape or not chooses:
            raise TypeError(f'{self.here()}switch takes one i32, not {type_text(choice)}: n.astype("i32") converts it')
        return self._cond(choice, regions, args)

    def _cond(
        self, choice: Expression, regions: Sequence[Callable[..., Any]], args: Sequence[Any]
    ) -> list[Expression]:
        args = self._side_by_side(args)
        op = self._control("cond", operands=[x.value for x in (choice, *args)])
        types: list[tuple[tuple[int, ...], int]] = []
        for write in regions:
            region = op.regions.add()
            with self._region(region):
                made = write(*[self._argument(region, x) for x in args])
                given = self._side_by_side(made)
                region.yields.extend(x.value for x in given)
            types = types or [(x.shape, x.element) for x in given]
            if types != [(x.shape, x.element) for x in given]:
                raise ValueError(
                    f"{self.here()}the regions of a cond return values of the same types; one returns "
                    f"{', '.join(map(type_text, given)) or 'none'}"
                )
        results = [self._new(shape, element) for shape, element in types]
        op.results.extend(x.value for x in results)
        self._regions[-1].ops.append(op)
        return results

    def call(
        self,
        body: Callable[..., Any],
        args: Sequence[Any],
        vjp: Callable[[list[Expression], list[Expression], list[Expression]], Any] | None = None,
    ) -> list[Expression]:
        """Calls a body once. Returns what body(*args) returns, as a list.

        With `vjp`, of (args, results, cotangents of the real results), the cotangents of the real args that it
        returns take the place of the derivative of the body. Neither function may then use values
        around it, but numbers, configs and the step; what the vjp decides is not recorded.
        """
        args = self._side_by_side(args)
        op = self._control("call", operands=[x.value for x in args])
        region = op.regions.add()
        seen_from = -1 if vjp is None else self._scope_count + 1
        with self._region(region, seen_from):
            given = self._side_by_side(body(*self._arguments(region, args)))
            region.yields.extend(x.value for x in given)
        results = [self._new(x.shape, x.element, self._name(x)) for x in given]
        op.results.extend(x.value for x in results)
        if vjp is not None:
            region = op.regions.add()
            with self._region(region, seen_from):
                operands = self._arguments(region, args)
                values = self._arguments(region, results)
                real = [x for x in results if x.element == ELEMENT_TYPE_REAL]
                made = vjp(operands, values, self._arguments(region, real))
                before = [x for x in operands if x.element == ELEMENT_TYPE_REAL]
                cotangents = self._following(made, before, "real argument")
                region.yields.extend(x.value for x in cotangents)
        self._regions[-1].ops.append(op)
        return results

    def halt(self, name: str, condition: Expression, *, error: bool = False) -> None:
        """Ends the run of an instance where the condition, a bool, holds: this step completes, later ones
        do not run, its states stand still.

        With `error` this step does not count either, and the instance has no gradient. An answer's
        `halted` says which halt ended which instance, in which step.
        """
        op = self._control("halt", decision_site=name, error=error)
        holds = self.value(condition)
        if holds.element != ELEMENT_TYPE_BOOL or holds.shape:
            raise TypeError(f"{self.here()}halt {name} takes one bool, not {_one_of(holds)}")
        op.operands.append(holds.value)
        self._regions[-1].ops.append(op)

    # ---- Internal ----

    def _arguments(
        self, region: program_pb2.Region, values: Sequence[Expression]
    ) -> list[Expression]:
        return [self._argument(region, x) for x in values]

    def _control(self, code: str, **attributes: Any) -> program_pb2.Op:
        return program_pb2.Op(
            code=code, role=self._role, site=self._site, label=self._label(), **attributes
        )

    def _argument(
        self, region: program_pb2.Region, like: Expression, axes: slice = slice(None)
    ) -> Expression:
        argument = self._new(like.shape[axes], like.element, self._name(like))
        region.args.append(argument.value)
        return argument

    def _side_by_side(self, given: Any) -> list[Expression]:
        """The values of a tuple or a list, or one alone. Raises TypeError for a tuple of values among them, which has no
        place of its own: as an array its values would have one type."""
        for x in _listed(given):
            if isinstance(x, tuple) and holds_values(x):
                raise TypeError(
                    f"{self.here()}a tuple within what loops, branches and calls take and give: write its values side by side, or np.stack(...) "
                    "of those that are one array"
                )
        return [self.value(x) for x in _listed(given)]

    def _following(
        self, given: Any, before: Sequence[Expression], what: str = "carried value"
    ) -> list[Expression]:
        """The values that a body returns in place of `before`: as many, of the same types; a number stands for all
        elements."""
        values = _listed(given)
        if len(values) != len(before):
            raise ValueError(
                f"{self.here()}{len(before)} {what}s are carried, {len(values)} returned"
            )
        return [self._as_before(x, y, what) for x, y in zip(values, before)]

    def _as_before(self, given: Any, before: Expression, what: str) -> Expression:
        value = self.value(given, None if isinstance(given, Expression) else before.element)
        if not isinstance(given, Expression) and value.shape == ():
            value = self.broadcast_to(value, before.shape)
        if (value.shape, value.element) != (before.shape, before.element):
            name = self._name(before)
            becomes = "its cotangent" if what == "real argument" else "becomes"
            raise ValueError(
                f"{self.here()}{what} {name or ''} is {type_text(before)}, and {becomes} {type_text(value)}"
                f"{_made_as(value, before)}"
            )
        return value

    def _turns(self, n: Any) -> int:
        """How often a loop turns. Raises TypeError or ValueError for what is no number of turns."""
        try:
            turns = operator.index(n)
        except TypeError:
            raise TypeError(f"{self.here()}a loop of {n!r} turns: a whole number that is known") from None
        if turns < 0:
            raise ValueError(f"{self.here()}a loop of {n!r} turns: at least 0")
        return turns

    def _leading(self, values: Sequence[Expression]) -> int:
        """The length of the leading axis that all of them have."""
        lengths = {x.shape[:1] for x in values}
        if len(lengths) != 1 or () in lengths:
            shapes = ", ".join(str(x.shape) for x in values)
            raise ValueError(
                f"{self.here()}carried and mapped values need one leading axis, have {shapes}"
            )
        return int(values[0].shape[0])

    @contextlib.contextmanager
    def _region(self, region: program_pb2.Region, seen_from: int = -1) -> Iterator[None]:
        """Writes a region, which uses no values of scopes before `seen_from`."""
        before, self._seen_from = self._seen_from, max(self._seen_from, seen_from)
        self._regions.append(region)
        self._scope_count += 1
        self._scopes.append(self._scope_count)
        try:
            yield
        finally:
            self._scopes.pop()
            self._regions.pop()
            self._seen_from = before


def _one_of(condition: Expression) -> str:
    """The type of a condition that is no single bool, and how one is made of bools."""
    hint = ": np.any(...) or np.all(...) of them" if condition.element == ELEMENT_TYPE_BOOL else ""
    return f"{type_text(condition)}{hint}"


def _made_as(value: Expression, before: Expression) -> str:
    """How a value comes to the type of another one, where one operation does that."""
    if value.element == before.element:
        return "" if value.shape else ": np.broadcast_to(x, shape) repeats a scalar"
    if value.shape != before.shape:
        return ""
    if before.element == ELEMENT_TYPE_BOOL:
        return ": a comparison makes bools, as x > 0"
    element = type_text(before).partition("[")[0]
    return f': x.astype("{element}") converts it'


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (list, tuple)) else [made]
