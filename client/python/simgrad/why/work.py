"""One piece of work that runs several times, in calls of one client: of Compare, or of Rollout and Gradient.

The calls share a deadline and an observer of progress. They run one after the other, so that what ends
one (a deadline, a closed client, an observer that raises) ends the whole.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from simgrad import errors
from simgrad.arrays import Bits, PerStep
from simgrad.clock import Clock
from simgrad.compared import Compared
from simgrad.path import Path
from simgrad.policy import Policy
from simgrad.progress import ProgressCallback, observer_of
from simgrad.request import (
    Arrays,
    Cotangents,
    Declaration,
    bare,
    declarations_of,
    has_rows,
    unsent_instances,
    unsigned,
    weights_of,
    with_defaults,
)
from simgrad.results import Gradient, Program, Rollout
from simgrad.v1 import program_pb2
from simgrad.world import WithDefaults, World

if TYPE_CHECKING:
    from simgrad.client import Client

_KINDS = {
    "initial": program_pb2.INPUT_KIND_STATE,
    "params": program_pb2.INPUT_KIND_PARAM,
    "controls": program_pb2.INPUT_KIND_CONTROL,
    "data": program_pb2.INPUT_KIND_DATA,
}
DIFFERENTIABLE = ("initial", "params", "controls")
# Options of a gradient that a rollout does not take.
_OF_GRADIENTS = ("cotangents", "wrt", "reduction", "loops", "return_tree", "clip_norm")
# Options that a rollout takes where it is kept alone.
_OF_REVERSALS = ("checkpoint_interval",)
_SET_HERE = ("policy", "path", "diagnostics", "raw")
_VARIANT = re.compile(r"^variants\[(\d+)\]|in variants\[(\d+)\]: ")


@dataclass(frozen=True)
class Variant:
    """One way to do the work.

    Attributes:
      name: what results and sentences call it; a policy's name, and "tol=0.001" and the like after it.
      world, policy, steps: what runs.
      seed: of random draws; None: that of the work.
    """

    name: str
    world: World
    policy: Policy
    steps: int
    seed: int | None = None


class Following:
    """The observer of the runs of one call, which follow each other.

    Args:
      tell: told the steps that are done, over all runs, forward and adjoint.
      steps: by run. gradient: whether each has its steps twice, forward and adjoint.

    Attributes:
      run: the number of the run that is under way.
    """

    def __init__(self, tell: Callable[[int], None], steps: Sequence[int], gradient: bool):
        self.run = 0
        self._tell = tell
        self._steps = steps
        self._passes = 2 if gradient else 1
        self._told = 0

    def begin(self, run: int) -> None:
        """Goes on with a run; a call that is repeated begins with the first one again."""
        self.run = run
        self("forward", 0, 0)

    def __call__(self, phase: str, done: int, total: int) -> None:
        before = self._passes * sum(self._steps[: self.run])
        steps = self._steps[self.run]
        if phase == "arithmetic":  # after all steps
            done = self._passes * steps
        done += before + (steps if phase == "adjoint" else 0)
        if done > self._told:
            self._told = done
            self._tell(done)


class Calls:
    """Deadline and progress of a series of calls.

    Args:
      phase: what the observer is told; steps are counted over all runs, forward and adjoint.
      timeout: seconds for all calls together.
    """

    def __init__(
        self, phase: str, timeout: float, retry: Any, progress: bool | ProgressCallback
    ) -> None:
        self._phase = phase
        self._clock = Clock()
        self._timeout = timeout
        self._end = self._clock.now() + timeout
        self._observer = observer_of(progress)
        self._finished = 0  # steps of runs that are over
        self._total = 0
        self.retry = retry
        self.count = 0  # calls that were made
        self._last: Following | None = None  # of the last of them

    @property
    def begun(self) -> int:
        """Steps of all runs that were begun."""
        return self._finished

    def expect(self, steps: int) -> None:
        """Adds steps to what the observer is told as the total."""
        self._total += steps

    def left(self) -> float:
        """Seconds until the deadline. Raises DeadlineExceeded where there are none."""
        left = self._end - self._clock.now()
        if left <= 0:
            raise errors.DeadlineExceeded(
                f"{self._phase}: the deadline of {self._timeout:g} s passed after {self.count} calls"
            )
        return left

    @contextlib.contextmanager
    def named(self, *variants: str) -> Iterator[None]:
        """Says of a call that ends at the deadline which one it was, in the run of which variant, and what the deadline
        of all is."""
        before = self.count
        try:
            yield
        except errors.DeadlineExceeded as error:
            if self.count > before and self._last is not None:
                error.args = (
                    f"{self._phase}: the deadline of {self._timeout:g} s passed in call {self.count}, of "
                    f"{variants[self._last.run]}, which had the rest of it: {error}",
                )
            raise

    def program(self, client: Client, world: World, **options: Any) -> Program:
        """Client.program, within the deadline of all calls."""
        left = self.left()
        with self.asking("the program"):
            return client.program(world, timeout=left, retry=self.retry, **options)

    @contextlib.contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Says of the deadline that it passed while something was asked for."""
        try:
            yield
        except errors.DeadlineExceeded as error:
            error.args = (
                f"{self._phase}: the deadline of {self._timeout:g} s passed while {what} was asked for: {error}",
            )
            raise

    def begin(self, steps: Sequence[int], gradient: bool) -> Following:
        """The observer of one more call, of runs with so many steps each, which must have been expected."""
        self.count += 1
        before = self._finished
        self._finished += sum(steps) * (2 if gradient else 1)
        tell = lambda done: self._observer(self._phase, before + done, self._total)
        self._last = Following(tell, steps, gradient)
        return self._last

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Tells the total, unless an error ends the series, and ends the caller's bar."""
        if kind is None:
            self._observer(self._phase, self._total, self._total)
        getattr(self._observer, "close", lambda: None)()


@dataclass(frozen=True)
class Work:
    """The work of a run without its policy: inputs by name as they are sent, and the options of a call.

    Attributes:
      inputs: arrays by group (initial, params, controls, data) and name; not those that a world sends by itself.
      each_own: whether what is differentiated is sent once for each instance.
      own: of these and of the defaults of the reference's world, the names of arrays with a leading instance axis, by group; stepped: with a time axis;
        real: of real numbers.
      instances: N. ids: [N] instance ids. weights: [N] or None.
      options: further arguments of Client.gradient.
    """

    client: Client
    calls: Calls
    inputs: Mapping[str, Mapping[str, Any]]
    own: Mapping[str, frozenset[str]]
    stepped: Mapping[str, frozenset[str]]
    real: Mapping[str, frozenset[str]]
    instances: int
    ids: np.ndarray
    weights: np.ndarray | None
    options: Mapping[str, Any] = field(default_factory=dict)
    each_own: bool = False

    def run(
        self, variant: Variant, *, gradient: bool, steps: int | None = None, **more: Any
    ) -> Rollout:
        """One call; a Gradient where that is asked for. `steps`: of a prefix, else all. `more` are arguments
        of the call."""
        arguments = self._arguments(variant, gradient, steps, more)
        method: Any = self.client.gradient if gradient else self.client.rollout
        with self.calls.named(variant.name):
            result: Rollout = method(
                variant.world,
                timeout=self.calls.left(),
                retry=self.calls.retry,
                progress=self.calls.begin([arguments["steps"]], gradient),
                **arguments,
            )
        return result

    def run_together(
        self,
        variants: Sequence[Variant],
        *,
        gradient: bool,
        steps: int | None = None,
        sends_paths: bool = False,
        **more: Any,
    ) -> Compared | None:
        """Runs of several variants in one call, of which the first is the reference: the answers that `run` gives, and
        how the paths of the others differ. `path` says whether they are recorded, and sends_paths whether results
        have them. None where one call cannot do it, or the server has none for it."""
        asked = [(v.world, self._arguments(v, gradient, steps, more)) for v in variants]
        on_nonfinite = [arguments.pop("on_nonfinite", "report") for _, arguments in asked][0]
        if not gradient and any([arguments.pop("keep", False) for _, arguments in asked]):
            return None
        runs, calls = self.client._runs, self.calls
        terms = runs.calls.terms(calls.left(), calls.retry)
        with calls.asking("what the server takes"):
            together = runs.together(gradient, asked, terms, sends_paths)
        if together is None:
            return None
        before = calls.begun
        try:
            with calls.named(*(v.name for v in variants)):
                terms = runs.calls.terms(calls.left(), calls.retry)
                following = calls.begin([arguments["steps"] for _, arguments in asked], gradient)
                return runs.compare(together, terms, following, following.begin, on_nonfinite)
        except errors.Unimplemented as error:
            if error.reason:
                raise
            calls.expect(calls.begun - before)  # an older server, in the place of the one that told its limits
            return None
        except errors.SimgradError as error:
            if at := _VARIANT.search(error.field) or _VARIANT.search(str(error)):
                error.args = (f"{variants[int(at[1] or at[2]) + 1].name}: {error}",)
            raise

    def run_all(self, variants: Sequence[Variant], *, sends_paths: bool = False, **more: Any) -> list[Rollout]:
        """The answers of `run_together`, in calls of their own where there is none for all."""
        found = self.run_together(variants, sends_paths=sends_paths, **more)
        return [self.run(v, **more) for v in variants] if found is None else found.results

    def _arguments(
        self, variant: Variant, gradient: bool, steps: int | None, more: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments of a call, but for the world and the terms."""
        arguments: dict[str, Any] = {**self.options, **self._sent(variant.world, steps), **more}
        if variant.seed is not None:
            arguments["seed"] = variant.seed
        if steps is not None or isinstance(arguments.get("path"), Path):
            arguments.pop("keep", None)  # it answers a question about a run that is kept itself
        if steps is not None or arguments.get("diagnostics") == "off":
            arguments.pop("arithmetic", None)  # nobody sees the rows of such a run
        if not gradient:
            of_gradients = _OF_GRADIENTS if arguments.get("keep") else (*_OF_GRADIENTS, *_OF_REVERSALS)
            arguments = {name: given for name, given in arguments.items() if name not in of_gradients}
        return {
            **dict(steps=variant.steps if steps is None else steps, policy=variant.policy),
            **dict(instances=self.instances, **self._named(), weights=self.weights),
            **arguments,
        }

    def _named(self) -> dict[str, Any]:
        """The ids as arguments of a call: the first of consecutive ones, else each of them."""
        first, last = int(self.ids[0]), int(self.ids[-1])
        if last - first == len(self.ids) - 1 and (np.diff(self.ids) == 1).all():
            return {"first_instance": first}
        return {"instance_ids": self.ids}

    def gradient(self, variant: Variant, **more: Any) -> Gradient:
        """As `run`."""
        result = self.run(variant, gradient=True, **more)
        assert isinstance(result, Gradient)
        return result

    def take(self, rows: Sequence[int] | np.ndarray) -> Work:
        """The same work for some of the instances, under their ids."""
        chosen = np.asarray(rows, np.int64)
        inputs = {
            group: {n: _rows(x, chosen) if n in self.own[group] else x for n, x in arrays.items()}
            for group, arrays in self.inputs.items()
        }
        options = dict(self.options)
        sent: Cotangents | None = options.get("cotangents")
        if sent is not None:
            options["cotangents"] = Cotangents(
                state={n: _rows(x, chosen) for n, x in sent.state.items()},
                trajectory={n: _rows(x, chosen) for n, x in sent.trajectory.items()},
            )
        return replace(
            self,
            inputs=inputs,
            instances=len(chosen),
            ids=self.ids[chosen],
            weights=None if self.weights is None else self.weights[chosen],
            options=options,
        )

    def _sent(self, world: World, steps: int | None) -> dict[str, dict[str, Any]]:
        """The inputs of a run in a world, of the first steps: the caller's, and the world's own defaults where
        these differ from what the world sends by itself."""
        sent = {group: dict(arrays) for group, arrays in self.inputs.items()}
        declared = declarations_of(world.to_proto().program) if world.has_program else {}
        for group, kind in _KINDS.items():
            for name, value in world.array_defaults.get(kind, {}).items():
                if name in sent[group]:
                    continue
                element = declared[kind, name].element
                if self.each_own and group in DIFFERENTIABLE and element == program_pb2.ELEMENT_TYPE_REAL:
                    value = _repeated(value, self.instances)
                sent[group][name] = value
        if steps is None:
            return sent
        return {
            group: {
                n: _times(x, steps, int(n in self.own[group]))
                if n in self.stepped[group] or isinstance(x, PerStep)
                else x
                for n, x in arrays.items()
            }
            for group, arrays in sent.items()
        }

    def each(self) -> Work:
        """The same work with every differentiable input sent once for each instance, so that each gradient
        is one instance's. Variants of it must be `without_weights`."""
        inputs = {group: dict(arrays) for group, arrays in self.inputs.items()}
        own = dict(self.own)
        for group in DIFFERENTIABLE:
            for name in (self.real[group] - self.own[group]) & inputs[group].keys():
                inputs[group][name] = _repeated(inputs[group][name], self.instances)
            own[group] = self.own[group] | self.real[group]
        return replace(self, inputs=inputs, own=own, each_own=True)


def check_arguments(arguments: Mapping[str, Any], gradient: bool) -> None:
    """Raises TypeError for arguments of calls that would have no effect, and for several objectives."""
    for name in _SET_HERE:
        if name in arguments:
            raise TypeError(f"{name} differs between the runs, and cannot be given")
    for name in (*_OF_GRADIENTS, *(() if arguments.get("keep") else _OF_REVERSALS)):
        given = arguments.get(name)
        if not gradient and given is not None and given is not False:
            raise TypeError(f"{name} is of gradients: leave it or gradient=False out")
    objective = arguments.get("objective")
    if not isinstance(objective or "", str):
        raise TypeError(f"objective is one name, not {objective!r}; call it for each")


def work_of(
    client: Client,
    world: World,
    calls: Calls,
    *,
    initial: Arrays | None = None,
    params: Arrays | None = None,
    controls: Arrays | None = None,
    data: Arrays | None = None,
    instances: int = 0,
    first_instance: int = 0,
    instance_ids: Iterable[int] = (),
    weights: Any = None,
    cotangents: Any = None,
    **options: Any,
) -> tuple[World, Work]:
    """The work of a call's arguments, and the world without pytrees: its answers are by name."""
    given = {"initial": initial, "params": params, "controls": controls, "data": data}
    inputs = {group: dict(with_defaults(world, kind, given[group])) for group, kind in _KINDS.items()}
    plain = plain_of(world)
    source = plain.program
    if source is None:
        source = calls.program(client, plain).source
    declared = declarations_of(source)
    own, stepped, real, counts = {}, {}, {}, set()
    for group, kind in _KINDS.items():
        of = {
            n: declared.get((kind, n), Declaration(np.ndim(bare(x)))) for n, x in inputs[group].items()
        }
        real[group] = frozenset(
            n for n, d in of.items() if d.element == program_pb2.ELEMENT_TYPE_REAL
        )
        own[group] = frozenset(n for n, x in inputs[group].items() if has_rows(x, of[n].rank))
        stepped[group] = frozenset(
            n
            for n, x in inputs[group].items()
            if isinstance(x, PerStep) or np.ndim(bare(x)) == of[n].rank + 2
        )
        counts |= {len(bare(inputs[group][n])) for n in own[group]}
    if unsent := unsent_instances(world, {kind: given[group] for group, kind in _KINDS.items()}):
        counts.add(unsent)
    ids = np.array(unsigned("instance_ids", instance_ids), np.uint64)
    [first_instance] = unsigned("first_instance", [first_instance])
    weighed = weights_of(weights)
    if len(counts) > 1:
        raise ValueError(f"inputs of {' and of '.join(map(str, sorted(counts)))} instances")
    if 0 in counts:
        raise ValueError("inputs of 0 instances: a batch has at least one instance")
    if instances and counts and instances not in counts:
        raise ValueError(f"instances: {instances}, where inputs are of {max(counts)} instances")
    [number] = unsigned("instances", [instances or (max(counts) if counts else len(ids) or 1)])
    if ids.size == 0:
        if first_instance + number > 2**64:
            raise ValueError(f"first_instance: {first_instance} and {number - 1} more ids are beyond 2^64 - 1")
        ids = np.uint64(first_instance) + np.arange(number, dtype=np.uint64)
    elif first_instance:
        raise ValueError("first_instance: instance_ids names every instance already; give one of the two")
    for argument, by_instance in (("instance_ids", ids), ("weights", weighed)):
        if by_instance is not None and len(by_instance) != number:
            raise ValueError(f"{argument}: {len(by_instance)} of them for {number} instances")
    if cotangents is not None:
        sent = cotangents if isinstance(cotangents, Cotangents) else Cotangents(**cotangents)
        options["cotangents"] = sent
    inputs = {group: dict(world.named(kind, given[group])) for group, kind in _KINDS.items()}
    return plain, Work(client, calls, inputs, own, stepped, real, number, ids, weighed, options)


def plain_of(world: World) -> World:
    """The world without pytrees, with the arrays that it sends by itself: its answers are by name."""
    if not world.has_program:
        return world
    return WithDefaults(world.to_proto(), world.array_defaults)


def _rows(value: Any, chosen: np.ndarray) -> Any:
    if isinstance(value, PerStep):
        return PerStep(_rows(value.array, chosen))
    if isinstance(value, Bits):
        return Bits(value.bits[chosen], value.format)
    return np.asarray(value)[chosen]


def _times(value: Any, steps: int, axis: int) -> Any:
    if isinstance(value, PerStep):
        return PerStep(_times(value.array, steps, axis))
    if isinstance(value, Bits):
        return Bits(value.bits[(slice(None),) * axis + (slice(steps),)], value.format)
    return np.asarray(value)[(slice(None),) * axis + (slice(steps),)]


def _repeated(value: Any, count: int) -> Any:
    if isinstance(value, PerStep):
        return PerStep(_repeated(value.array, count))
    if isinstance(value, Bits):
        return Bits(np.repeat(value.bits[None], count, axis=0), value.format)
    return np.repeat(np.asarray(value)[None], count, axis=0)
