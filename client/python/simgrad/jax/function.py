"""A rollout as a function of JAX: inside jit, differentiated by grad, one call per batch under vmap.

    run = simgrad.jax.function(client, world, policy="f64", record=["energy"])

    def loss(params, state):
        out = run(state, params=params, steps=100)
        return jnp.sum(out.state["x"] ** 2) + out.trajectory["energy"].mean()

    jax.jit(jax.grad(loss))(params, state)
    jax.vmap(lambda s: run(s, steps=100))(states)  # one request of len(states) instances

Of a call that is differentiated the server keeps the forward pass, and the backward pass reverses it,
as a rule without simulating again. What the server does not keep any more it runs again, to the same bits. The
answers of the last 16 such calls stay in memory here as long as the function. Second derivatives and
forward mode (jax.jvp, jax.jacfwd) are not available.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import operator
import threading
from typing import Any, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from simgrad.client import Client
from simgrad.data_as_controls import data_as_controls
from simgrad.kept import Keep
from simgrad.loop_derivative import Implicit, Truncated
from simgrad.jax.jax_world import KINDS, JaxWorld
from simgrad.jax.node import Shape, size_of
from simgrad.jax.trees import GROUPS, Group, is_key, wrapped
from simgrad.policy import Policy
from simgrad.request import Cotangents, names_of
from simgrad.results import Halted, Rollout
from simgrad.world import World

_ARGUMENTS = {"state": "initial", "control": "controls", "params": "params", "data": "data"}
_OF_VJP = ("on_nonfinite", "timeout", "retry")  # of the options of a rollout, those that a vjp takes
# Options of Client.rollout that bear on what a function gives.
_OPTIONS = (
    *("diagnostics", "on_nonfinite", "path", "program", "progress", "timeout", "retry", "seed"),
    *("instances", "first_instance", "instance_ids", "stride", "chunk_steps", "checkpoint_interval"),
)
_WRT = {"state": "state", "control": "control", "params": "param", "data": "control"}
_PER_STEP = ("control", "data")  # what may have a value per step


class HaltedWithError(RuntimeError):
    """An instance of a function's run was ended by an error of its author, as Equinox's error_if is."""

    def __init__(self, halted: Halted):
        said = halted.message or f"halt {halted.halt!r}"
        at = f" ({halted.line})" if halted.line else ""
        super().__init__(f"{said}{at}, in step {halted.step} of instance {halted.instance}")
        self.halted = halted


@dataclasses.dataclass
class FunctionResult:
    """The answer for one instance.

    Attributes:
      state: the final state, a pytree like the example; None for leaves that are neither state nor
        constant nor recorded. After no steps it is the one that was given. trajectory: the recorded values by name,
        [time, shape].
    """

    state: Any
    trajectory: dict[str, Any]


jax.tree_util.register_dataclass(FunctionResult, ["state", "trajectory"], [])


@dataclasses.dataclass(frozen=True)
class _Input:
    """One leaf as it goes to the server: its shape here, with a value per step or without."""

    kind: str
    name: str
    shape: Shape
    is_real: bool


@dataclasses.dataclass(frozen=True)
class _Output:
    """One array of the answer: a final state, or a trajectory."""

    name: str
    final: bool
    shape: Shape
    dtype: Any


@dataclasses.dataclass(frozen=True)
class _Call:
    """The arrays that go into and come out of a call, and its number of steps."""

    inputs: tuple[_Input, ...]
    outputs: tuple[_Output, ...]
    steps: int

    @property
    def reals(self) -> list[_Output]:
        """Outputs that have cotangents."""
        return [o for o in self.outputs if np.dtype(o.dtype).kind == "f"]


@dataclasses.dataclass(frozen=True)
class _Residuals:
    """The data for a backward pass: the inputs, and the places of those that are differentiated."""

    leaves: tuple[Any, ...]
    wanted: tuple[int, ...]


jax.tree_util.register_dataclass(_Residuals, ["leaves"], ["wanted"])


class _KeptRollouts:
    """Rollouts that are kept, by a digest of what they were made from: a call is pure, so whichever
    call has the inputs of a backward pass, its forward pass is the one to reverse. Threads: safe."""

    def __init__(self, most: int):
        self._most = most
        self._rollouts: collections.OrderedDict[bytes, Rollout] = collections.OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def key(call: _Call, wanted: Sequence[int], arrays: Sequence[Any]) -> bytes:
        digest = hashlib.blake2b(f"{call.steps} {wanted};".encode(), digest_size=16)
        for i, array in zip(call.inputs, arrays):
            whole = np.ascontiguousarray(array)
            digest.update(f"{i.kind} {i.name} {whole.dtype.str} {whole.shape};".encode())
            digest.update(whole.tobytes())
        return digest.digest()

    def put(self, key: bytes, rollout: Rollout) -> None:
        with self._lock:
            self._rollouts[key] = rollout
            self._rollouts.move_to_end(key)
            while len(self._rollouts) > self._most:
                self._rollouts.popitem(last=False)

    def find(self, key: bytes) -> Rollout | None:
        with self._lock:
            return self._rollouts.get(key)


_MOST_KEPT = 16  # of one function: backward passes follow soon, and a rollout here has its arrays


class RolloutFunction:
    """The result of `simgrad.jax.function`: run(state, control=, params=, data=, steps=) -> FunctionResult.

    A leaf of control and data has the example's shape, or [steps, shape] for a value per step; a group
    that is left out has the numbers of the example. `steps` is a Python number, and may be left out where
    the function has one, or a leaf of control or data has a value per step.
    """

    def __init__(
        self,
        client: Client,
        world: JaxWorld,
        steps: int | None,
        policy: Policy | str | None,
        record: Sequence[str],
        loops: Mapping[str, Truncated | Implicit] | None,
        options: dict[str, Any],
    ):
        if unknown := sorted(set(options) - set(_OPTIONS)):
            raise TypeError(f"simgrad.jax.function has no option {', '.join(unknown)}: {', '.join(_OPTIONS)} are the others")
        self.client = client
        self.world = world
        self.steps = None if steps is None else _count_of(steps)
        self._fixed: dict[str, Any] = dict(policy=policy, **options)
        self._record = names_of("record", "states and observables", record)
        self._loops = loops
        self._kept = _KeptRollouts(_MOST_KEPT)
        self._made: dict[_Call, Any] = {}
        self._worlds: dict[tuple[str, ...], World] = {}

    def __call__(
        self,
        state: Any,
        *,
        control: Any = None,
        params: Any = None,
        data: Any = None,
        steps: int | None = None,
    ) -> FunctionResult:
        given = {"state": state, "control": control, "params": params, "data": data}
        found = []
        for kind in GROUPS:
            if given[kind] is None:
                continue
            group = self._group(kind)
            for name, example, leaf in zip(group.names, group.examples, group.flat(given[kind])):
                array = jax.random.key_data(leaf) if is_key(leaf) else _as_array(leaf, f"{kind}.{name}")
                is_real = jnp.issubdtype(array.dtype, jnp.floating)
                if example.dtype.kind == "f" and not is_real and not jnp.issubdtype(array.dtype, jnp.integer):
                    raise TypeError(f"{kind} {name} is a real, not {array.dtype}")
                i = _Input(kind, name, tuple(array.shape), bool(is_real))
                found.append((i, example, leaf, array))
        count = self._steps([(i, example.shape) for i, example, _, _ in found], steps)
        for i, example, leaf, _ in found:
            _check_shape(i, example.shape, count)
            self._check_numbers(i, example, leaf)
        call = _Call(tuple(i for i, *_ in found), self._outputs(count), count)
        made = self._differentiable(call)(*(array for *_, array in found))
        return self._result(state, made, call)

    def _check_numbers(self, i: _Input, example: np.ndarray, leaf: Any) -> None:
        """Raises ValueError for numbers that are not the world's, and TypeError for reals in place of integers where
        JAX traces and knows no number."""
        if not isinstance(leaf, jax.core.Tracer):
            self.world.named(KINDS[i.kind], {i.name: leaf})
        elif i.is_real and example.dtype.kind != "f":
            raise TypeError(f"{i.kind} {i.name} is traced as {leaf.dtype}, and is {example.dtype}")

    # ---- Shapes ----

    def _group(self, kind: str) -> Group:
        if kind not in self.world.groups:
            raise TypeError(f"this world has no {kind}")
        return self.world.groups[kind]

    def _steps(self, inputs: Sequence[tuple[_Input, Shape]], given: int | None) -> int:
        """The number of steps: of the call, else of the function, else the number of values per step."""
        steps = self.steps if given is None else given
        if steps is not None:
            return _count_of(steps)
        lengths = {
            i.name: i.shape[0]
            for i, declared in inputs
            if i.kind in _PER_STEP and len(i.shape) == len(declared) + 1
        }
        if not lengths:
            raise TypeError(
                "steps: give it here or to simgrad.jax.function, as no control or data has a value per step"
            )
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {n}" for name, n in lengths.items())
            raise TypeError(f"controls and data have values for as many steps: {told}")
        return next(iter(lengths.values()))

    def _outputs(self, steps: int) -> tuple[_Output, ...]:
        group = self.world.groups["state"]
        examples = dict(zip(group.names, group.examples))
        real = jnp.zeros(()).dtype
        values = self.world.export_types()
        outputs = []
        for name in self.world.state:
            outputs.append(_Output(name, True, examples[name].shape, _dtype(examples[name].dtype, real)))
        for name in self._record:
            if name in self.world.state:
                shape = (steps + 1, *examples[name].shape)
                outputs.append(_Output(name, False, shape, _dtype(examples[name].dtype, real)))
            elif name in values:
                shape, dtype = values[name]
                outputs.append(_Output(name, False, (steps, *shape), _dtype(dtype, real)))
            else:
                self.world.check_record([name])
                raise ValueError(f"record {name!r}: one of {', '.join((*self.world.state, *values))}")
        return tuple(outputs)

    def _result(self, state: Any, made: Sequence[Any], call: _Call) -> FunctionResult:
        group = self.world.groups["state"]
        final = {o.name: x for o, x in zip(call.outputs, made) if o.final}
        trajectory = {o.name: x for o, x in zip(call.outputs, made) if not o.final}
        for name, leaf in zip(group.names, group.flat(state)):
            if name in self.world.constants:
                final[name] = leaf
            elif name in trajectory and name not in final and call.steps:
                final[name] = trajectory[name][-1]
            elif name in trajectory and name not in final:  # no step has made another one
                final[name] = leaf if is_key(leaf) else jnp.asarray(leaf, trajectory[name].dtype)
        leaves = [final.get(n) for n in group.names]
        # Keys travel as their words.
        keyed = [
            wrapped(x, key) if key is not None and x is not None and not is_key(x) else x
            for x, key in zip(leaves, group.keys)
        ]
        return FunctionResult(group.filled(keyed), trajectory)

    # ---- Calls ----

    def _differentiable(self, call: _Call) -> Any:
        found = self._made.get(call)
        if found is not None:
            return found
        shapes = tuple(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in call.outputs)

        def forward(wanted: tuple[int, ...], leaves: Sequence[Any]) -> tuple[Any, ...]:
            run = lambda *arrays: self._forward(call, wanted, arrays)
            return tuple(_called(run, shapes, leaves))

        def keeping(*primals: Any) -> tuple[tuple[Any, ...], _Residuals]:
            leaves = tuple(p.value for p in primals)
            wanted = tuple(
                k for k, (i, p) in enumerate(zip(call.inputs, primals)) if i.is_real and p.perturbed
            )
            return forward(wanted, leaves), _Residuals(leaves, wanted)

        def backward(saved: _Residuals, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
            leaves, wanted = saved.leaves, saved.wanted
            sent = [_whole(c) for o, c in zip(call.outputs, cotangents) if o in call.reals]
            like = tuple(jax.ShapeDtypeStruct(leaves[k].shape, leaves[k].dtype) for k in wanted)
            run = lambda *arrays: self._backward(call, wanted, arrays)
            made = _called(run, like, [*leaves, *sent])
            by_place = dict(zip(wanted, made))
            return tuple(by_place.get(k) for k in range(len(call.inputs)))

        function = jax.custom_vjp(lambda *leaves: forward((), leaves))
        function.defvjp(keeping, backward, symbolic_zeros=True)
        self._made[call] = function
        return function

    def _request(
        self, call: _Call, wanted: Sequence[int], arrays: Sequence[Any]
    ) -> tuple[Shape, World, dict[str, Any]]:
        """The axes of vmap, the world, and the arguments of a rollout with one axis of instances. Data that
        are wanted are controls, as a gradient is by controls."""
        first = np.asarray(arrays[0])
        batch = first.shape[: first.ndim - len(call.inputs[0].shape)]
        by_kind: dict[str, dict[str, Any]] = {}
        for i, array in zip(call.inputs, arrays):
            flat = np.asarray(array).reshape((size_of(batch), *i.shape))
            by_kind.setdefault(i.kind, {})[i.name] = flat
        sent = {kind: dict(self.world.named(KINDS[kind], by_kind[kind])) for kind in by_kind}
        declared = self.world.differentiable()
        moved = tuple(
            i.name
            for i in (call.inputs[k] for k in wanted)
            if i.kind == "data" and ("data", i.name) in declared
        )
        for name in moved:
            sent.setdefault("control", {})[name] = sent["data"].pop(name)
        if moved not in self._worlds:
            self._worlds[moved] = data_as_controls(self.client, self.world, moved)
        groups: dict[str, Any] = {_ARGUMENTS[kind]: found for kind, found in sent.items()}
        return batch, self._worlds[moved], dict(steps=call.steps, **groups, **self._fixed)

    def _forward(
        self, call: _Call, wanted: tuple[int, ...], arrays: Sequence[Any]
    ) -> tuple[np.ndarray, ...]:
        batch, world, arguments = self._request(call, wanted, arrays)
        wrt = self._wrt(call, wanted)
        how = Keep(
            wrt=wrt,
            state=[o.name for o in call.reals if o.final],
            trajectory=[o.name for o in call.reals if not o.final],
            loops=self._loops,
        )
        made = self.client.rollout(world, **arguments, record=self._record, keep=how if wrt else False)
        for one in made.halted:
            if one.error:
                message = self.world.halt_messages.get(one.halt, "")
                raise HaltedWithError(dataclasses.replace(one, message=message))
        if wrt:
            self._kept.put(self._kept.key(call, wanted, arrays), made)
        found = [made.state[o.name] if o.final else made.trajectory[o.name] for o in call.outputs]
        return tuple(
            _held(x, o.dtype, o.name).reshape((*batch, *o.shape)) for x, o in zip(found, call.outputs)
        )

    def _backward(
        self, call: _Call, wanted: tuple[int, ...], arrays: Sequence[Any]
    ) -> tuple[np.ndarray, ...]:
        leaves, given = arrays[: len(call.inputs)], arrays[len(call.inputs) :]
        batch, world, arguments = self._request(call, wanted, leaves)
        cotangents = Cotangents({}, {})
        for o, array in zip(call.reals, given):
            target: Any = cotangents.state if o.final else cotangents.trajectory
            target[o.name] = np.asarray(array).reshape((size_of(batch), *o.shape))
        wrt = self._wrt(call, wanted)
        found: dict[str, dict[str, Any]] = {}
        if wrt:
            kept = self._kept.find(self._kept.key(call, wanted, leaves))
            if kept is None:
                made = self.client.gradient(world, **arguments, wrt=wrt, cotangents=cotangents, loops=self._loops)
            else:
                how = {name: value for name, value in self._fixed.items() if name in _OF_VJP}
                made = kept.vjp(cotangents, wrt=wrt, loops=self._loops, **how)
            found = {"state": made.initial, "params": made.params}
            found["control"] = found["data"] = made.controls
        return tuple(
            self._gradient(call.inputs[k], found, batch, np.asarray(leaves[k])) for k in wanted
        )

    def _wrt(self, call: _Call, wanted: Sequence[int]) -> list[str]:
        declared = self.world.differentiable()
        inputs = [call.inputs[k] for k in wanted]
        return [f"{_WRT[i.kind]}.{i.name}" for i in inputs if (i.kind, i.name) in declared]

    def _gradient(
        self, i: _Input, found: dict[str, dict[str, Any]], batch: Shape, like: np.ndarray
    ) -> np.ndarray:
        """Zero for what no step reads; NaN for a constant, by which the world has no derivative."""
        if (i.kind, i.name) in self.world.differentiable():
            return np.asarray(found[i.kind][i.name], like.dtype).reshape((*batch, *i.shape))
        is_constant = i.kind == "state" and i.name in self.world.constants
        return np.full(like.shape, np.nan if is_constant else 0.0, like.dtype)


def _called(run: Any, shapes: Any, arrays: Sequence[Any]) -> Any:
    """The arrays that `run` gives, one call for a batch; they cannot be differentiated again."""
    once = jax.custom_jvp(lambda *given: jax.pure_callback(run, shapes, *given, vmap_method="broadcast_all"))
    once.defjvp(_refuse_second_derivative)
    return once(*arrays)


def _refuse_second_derivative(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "simgrad.jax.function has first derivatives only; Client.hessian_vector gives products with second ones"
    )


def _count_of(steps: Any) -> int:
    """A number of steps. Raises TypeError where it is no number of Python, ValueError where it is negative."""
    try:
        count = operator.index(steps)
    except TypeError as error:
        raise TypeError(
            f"steps is a whole number of Python, not {steps!r}; under jax.jit close over it, or name it in static_argnames"
        ) from error
    if count < 0:
        raise ValueError(f"steps is 0 or more, not {count}")
    return count


def _check_shape(i: _Input, declared: Shape, steps: int) -> None:
    wanted = f"{declared}, or {(steps, *declared)}" if i.kind in _PER_STEP else f"{declared}"
    if i.shape != declared and not (i.kind in _PER_STEP and i.shape == (steps, *declared)):
        raise TypeError(
            f"{i.kind} {i.name} has shape {i.shape}, not {wanted}; for many instances use jax.vmap"
        )


def _as_array(leaf: Any, name: str) -> Any:
    """A leaf for JAX, which makes integers of 64 bits ones of 32 unless x64 is enabled."""
    try:
        array = jnp.asarray(leaf)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from None
    if isinstance(leaf, (np.ndarray, np.generic)):
        _held(leaf, array.dtype, name)
    return array


def _held(x: Any, dtype: Any, name: str) -> np.ndarray:
    """An array in a format of JAX. Errors: ValueError for integers that the format does not hold."""
    given = np.asarray(x)
    made = given.astype(dtype)
    if given.dtype.kind in "iu" and np.dtype(dtype).kind in "iu" and (made != given).any():
        one = given[made != given].flat[0]
        raise ValueError(
            f"{name}: {one} is no {np.dtype(dtype)}; JAX holds integers of 64 bits with jax_enable_x64 alone"
        )
    return made


def _whole(cotangent: Any) -> Any:
    """A cotangent as an array: JAX says of what a loss does not read that it is zero."""
    is_zero = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return jnp.zeros(cotangent.shape, cotangent.dtype) if is_zero else cotangent


def _dtype(dtype: Any, real: Any) -> Any:
    kept = np.dtype(dtype)
    return real if kept.kind == "f" else jax.dtypes.canonicalize_dtype(kept)


def function(
    client: Client,
    world: JaxWorld,
    *,
    steps: int | None = None,
    policy: Policy | str | None = None,
    record: Sequence[str] = (),
    loops: Mapping[str, Truncated | Implicit] | None = None,
    **options: Any,
) -> RolloutFunction:
    """A rollout as a function of JAX; arguments as Client.rollout.

    Every real leaf is differentiable: of state, control, params and data. Data that are differentiated are
    sent as controls.

    Args:
      steps: of every call; None: each call says how many, or has a control or data with a value per step.
      loops: of gradients, as for Client.gradient.
      options: those of Client.rollout that say how it runs (an error lists them).
    Errors, while tracing: TypeError for another option; for pytrees, shapes, reals in place of integers, bools and complex
      numbers in place of reals; where steps are not told. ValueError for negative steps, and for numbers of integers and
      constants that are not the world's, the latter where it runs if JAX does not know them before.
    Errors where it runs: those of Client.rollout; ValueError for data that are differentiated and have the name of a
      control, and for integers of 64 bits that JAX does not hold without x64.
    """
    return RolloutFunction(client, world, steps, policy, record, loops, {"diagnostics": "off", **options})
