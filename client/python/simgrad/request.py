"""Requests, made from what a caller writes."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, cast

import numpy as np

from simgrad import arrays, errors, named_programs
from simgrad.arithmetic import instances_of
from simgrad.constants import LARGEST_WHOLE, dtype_of, element_name, holds, range_of
from simgrad.loop_derivative import Implicit, Truncated
from simgrad.path import Path, options_of
from simgrad.policy import Policy, policy_message
from simgrad.v1 import policy_pb2, program_pb2, simgrad_pb2
from simgrad.variants import Request, parts_with_world, reference_of
from simgrad.world import World

Arrays = Mapping[str, Any]


class Declaration(NamedTuple):
    """The rank and the element type of an input, and whether it is declared weights."""

    rank: int
    element: int = program_pb2.ELEMENT_TYPE_REAL
    is_weights: bool = False


Declared = Mapping[tuple[int, str], Declaration]  # by kind and name
# Asked for only where an input leaves its declaration open.
Declarations = Callable[[], Declared]

_LEVELS = {
    "off": simgrad_pb2.DIAGNOSTICS_LEVEL_OFF,
    "summary": simgrad_pb2.DIAGNOSTICS_LEVEL_SUMMARY,
    "instances": simgrad_pb2.DIAGNOSTICS_LEVEL_INSTANCES,
}
_DETAILS = {
    # As a client that does not say: any server takes the request.
    "fingerprint": simgrad_pb2.PROGRAM_DETAIL_UNSPECIFIED,
    "text": simgrad_pb2.PROGRAM_DETAIL_TEXT,
}
# The options of a rollout beside those that Client.rollout names.
_OPTIONS = (
    *("instances", "first_instance", "instance_ids", "seed", "stride", "arithmetic", "chunk_steps"),
    "checkpoint_interval",
)
# The arguments of a gradient that are not its rollout's.
_OF_GRADIENT = ("cotangents", "wrt", "reduction", "loops", "return_tree", "clip_norm")
_REDUCTIONS = {
    "all": simgrad_pb2.INSTANCE_REDUCTION_ALL,
    "finite_only": simgrad_pb2.INSTANCE_REDUCTION_FINITE_ONLY,
}
_MAPPINGS = {
    "thread_per_instance": simgrad_pb2.CUDA_MAPPING_THREAD_PER_INSTANCE,
    "block_per_instance": simgrad_pb2.CUDA_MAPPING_BLOCK_PER_INSTANCE,
}
_KIND_WORDS = {
    "state": program_pb2.INPUT_KIND_STATE,
    "param": program_pb2.INPUT_KIND_PARAM,
    "control": program_pb2.INPUT_KIND_CONTROL,
}


@dataclass
class Cotangents:
    """Cotangents in place of an objective: the derivative of the caller's loss by the answer.

    Attributes:
      state: by state, of the final state, [instance, field shape].
      trajectory: by recorded name, [instance, time, field shape]; time as in the rollout's
        trajectory.
    """

    state: Arrays = field(default_factory=dict)
    trajectory: Arrays = field(default_factory=dict)


def rollout_spec(
    world: World,
    declarations: Declarations,
    *,
    steps: int,
    initial: Arrays | None = None,
    params: Arrays | None = None,
    controls: Arrays | None = None,
    data: Arrays | None = None,
    policy: Policy | str | None = None,
    record: Sequence[str] = (),
    diagnostics: str = "summary",
    margins: Sequence[str] = (),
    stride: int = 0,
    arithmetic: int = 0,
    objective: str = "",
    instances: int = 0,
    first_instance: int = 0,
    instance_ids: Iterable[int] = (),
    seed: int = 0,
    chunk_steps: int = 0,
    checkpoint_interval: int = 0,
    program: str = "fingerprint",
    path: bool | Path = False,
    **unknown: Any,
) -> simgrad_pb2.RolloutSpec:
    """The message of a rollout; the arguments are those of Client.rollout."""
    if not isinstance(world, World):
        raise TypeError(f"world is a simgrad.World, not {world!r}")
    if unknown:
        raise TypeError(f"no option {', '.join(sorted(unknown))}: {', '.join(_OPTIONS)} are the others")
    if not isinstance(objective, str):
        raise TypeError(f"objective is one name, not {objective!r}; Client.gradient alone takes a list")
    if not hasattr(steps, "__index__"):
        raise TypeError(f"steps is a whole number, not {steps!r}")
    [seed], ids = unsigned("seed", [seed]), unsigned("instance_ids", instance_ids)
    [first_instance] = unsigned("first_instance", [first_instance])
    record = names_of("record", "states and observables", record)
    world.check_record(record)
    margins = names_of("margins", "sites", margins)
    spec = simgrad_pb2.RolloutSpec(
        world=world.to_request(),
        steps=steps,
        policy=policy_message(policy),
        first_instance=first_instance,
        instance_ids=ids,
        seed=seed,
        record=record,
        diagnostics=simgrad_pb2.DiagnosticsOptions(
            level=_word(_LEVELS, "diagnostics", diagnostics),
            stride=stride,
            margins=margins,
            arithmetic_instances=instances_of(arithmetic),
        ),
        objective=objective or "",
        chunk_steps=chunk_steps,
        checkpoint_interval=checkpoint_interval,
        program=_word(_DETAILS, "program", program),
        path=options_of(path),
    )
    groups = (
        (spec.initial, initial, program_pb2.INPUT_KIND_STATE),
        (spec.params, params, program_pb2.INPUT_KIND_PARAM),
        (spec.controls, controls, program_pb2.INPUT_KIND_CONTROL),
        (spec.data, data, program_pb2.INPUT_KIND_DATA),
    )
    spec.instances = instances or unsent_instances(world, {kind: inputs for _, inputs, kind in groups})
    for target, inputs, kind in groups:
        for name, value in with_defaults(world, kind, inputs).items():
            target.append(_named_tensor(name, value, kind, declarations))
    return spec


def with_defaults(world: World, kind: int, inputs: Any) -> Arrays:
    """The inputs of one kind that are sent, by name: the caller's, and the world's own defaults."""
    return {**world.array_defaults.get(kind, {}), **world.named(kind, inputs)}


def unsent_instances(world: World, given: Mapping[int, Any]) -> int:
    """How many instances arrays have that the world does not send, 0 where there are none; `given` by kind.
    Raises ValueError where they have different numbers."""
    counts = {n for kind, arrays in given.items() for n in world.unsent_instances(kind, arrays)}
    if len(counts) > 1:
        raise ValueError(f"inputs of {' and of '.join(map(str, sorted(counts)))} instances")
    return next(iter(counts), 0)


def distinct(objectives: Sequence[str]) -> Sequence[str]:
    """Names of objectives of one call. Raises ValueError where there is none, or one is there twice."""
    if not objectives or len(set(objectives)) < len(objectives):
        raise ValueError(f"objective is a name, or a list of different names, not {list(objectives)!r}")
    return objectives


def weights_of(weights: Any) -> np.ndarray | None:
    """The weights of instances, [N] in f64. TypeError and ValueError where they are none."""
    if weights is None:
        return None
    try:
        array = np.asarray(weights)
    except ValueError as error:
        raise ValueError(f"weights: {error}") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"weights: numbers, not an array of dtype {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"weights: one number for each instance, not an array of shape {array.shape}")
    return array.astype(np.float64)


def rollout_request(
    spec: simgrad_pb2.RolloutSpec,
    *,
    weights: Any = None,
    keep: simgrad_pb2.KeepOptions | None = None,
) -> simgrad_pb2.RolloutRequest:
    """The message of a rollout; the arguments are those of Client.rollout."""
    return simgrad_pb2.RolloutRequest(spec=spec, weights=weights_of(weights), keep=keep)


def vjp_request(
    handle: str, asked: Sequence[simgrad_pb2.GradientRequest]
) -> simgrad_pb2.VjpRequest:
    """The message of the gradients of one rollout that differ in their cotangents alone."""
    first = asked[0]
    return simgrad_pb2.VjpRequest(
        handle=handle,
        cotangents=[cotangent for message in asked for cotangent in message.cotangents],
        weights=first.weights,
        reduction=first.reduction,
        wrt=first.wrt,
        return_tree=first.return_tree,
        loops=first.loops,
        clip_norm=first.clip_norm if first.HasField("clip_norm") else None,
    )


def gradient_request(
    spec: simgrad_pb2.RolloutSpec,
    declarations: Declarations,
    *,
    cotangents: Cotangents | Mapping[str, Arrays] | None = None,
    weights: Any = None,
    wrt: Iterable[str] | None = None,
    reduction: str = "all",
    loops: Mapping[str, Truncated | Implicit] | None = None,
    return_tree: bool = False,
    clip_norm: float | None = None,
) -> simgrad_pb2.GradientRequest:
    """The message of a gradient; the arguments are those of Client.gradient."""
    request = simgrad_pb2.GradientRequest(
        spec=spec,
        reduction=_word(_REDUCTIONS, "reduction", reduction),
        weights=weights_of(weights),
        loops=loop_derivatives(loops),
        return_tree=return_tree,
        clip_norm=clip_norm,
    )
    if cotangents is not None:
        given = _cotangents_of(cotangents)
        message = request.cotangents.add()
        for target, group in ((message.final_state, given.state), (message.trajectory, given.trajectory)):
            for name, value in group.items():
                target.add(name=name, tensor=arrays.to_tensor(_as_real(value)))
    asked = None if wrt is None else names_of("wrt", "inputs", wrt)
    if asked is not None and not asked:
        raise ValueError("wrt names no input: name one, or leave it out for all that have a gradient")
    for name in asked or ():
        request.wrt.append(input_name(name, spec, declarations))
    return request


def request_of(
    world: World, declarations: Declarations, gradient: bool, arguments: Mapping[str, Any]
) -> Request:
    """The message of a gradient, or of a rollout that is not kept; the arguments are those of Client.gradient and
    Client.rollout."""
    given = dict(arguments)
    of_gradient = {name: given.pop(name) for name in _OF_GRADIENT if gradient and name in given}
    weights = given.pop("weights", None)
    spec = rollout_spec(world, declarations, **given)
    if gradient:
        return gradient_request(spec, declarations, weights=weights, **of_gradient)
    return rollout_request(spec, weights=weights)


def _cotangents_of(given: Any) -> Cotangents:
    """Raises TypeError for what are no cotangents by group and name."""
    example = "cotangents: by group and name, as {'state': {'x': array}} or {'trajectory': {'x': array}}"
    if not isinstance(given, (Cotangents, Mapping)):
        raise TypeError(f"{example}, not {given!r}")
    groups = {"state": given.state, "trajectory": given.trajectory} if isinstance(given, Cotangents) else dict(given)
    if unknown := [repr(group) for group in groups if group not in ("state", "trajectory")]:
        raise TypeError(f"{example}; {', '.join(unknown)} is no group")
    for group, by_name in groups.items():
        if not isinstance(by_name, Mapping):
            raise TypeError(f"{example}; cotangents[{group!r}] is {by_name!r}")
    return Cotangents(**groups)


def names_of(argument: str, what: str, given: Any) -> tuple[str, ...]:
    """The names that an argument gives: one, or several in an iterable. Raises TypeError for anything else."""
    if isinstance(given, str):
        return (given,)
    try:
        names = tuple(given)
    except TypeError:
        raise TypeError(f"{argument}: names of {what}, not {given!r}") from None
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{argument}: names of {what}, not {name!r}")
    return names


def unsigned(option: str, numbers: Iterable[Any]) -> list[int]:
    """The numbers as ints. Raises ValueError, with the name of the option, for what is no u64."""
    if isinstance(numbers, np.ndarray) and numbers.ndim == 1 and numbers.dtype.kind == "u":
        return cast(list[int], numbers.tolist())
    known: list[int] = []
    for number in numbers:
        try:
            known.append(int(operator.index(number)))  # first: a tensor of PyTorch compares with i64 alone
        except TypeError:
            known.append(-1)
        if not 0 <= known[-1] < 2**64:
            raise ValueError(f"{option}: whole numbers from 0 to 2^64 - 1, not {number!r}")
    return known


def loop_derivatives(
    loops: Mapping[str, Truncated | Implicit] | None,
) -> list[simgrad_pb2.LoopDerivative]:
    """The messages of a `loops` argument. Raises TypeError for what says no way through a loop."""
    if loops is not None and not isinstance(loops, Mapping):
        raise TypeError(f"loops: ways through loops by site, as {{'newton': sg.Truncated(3)}}, not {loops!r}")
    for site, how in (loops or {}).items():
        if not isinstance(how, (Truncated, Implicit)):
            raise TypeError(f"loops[{site!r}] is a simgrad.Truncated or a simgrad.Implicit, not {how!r}")
    return [how.to_proto(site) for site, how in (loops or {}).items()]


def description(
    world: World,
    policy: policy_pb2.Policy | None,
    objective: str,
    *,
    adjoint: bool = False,
    wrt: Iterable[simgrad_pb2.InputName] = (),
    cotangents: Cotangents | Mapping[str, Iterable[str]] | None = None,
    loops: Iterable[simgrad_pb2.LoopDerivative] = (),
    path: int = simgrad_pb2.PATH_USE_UNSPECIFIED,
    cuda: simgrad_pb2.CudaTextOptions | None = None,
) -> simgrad_pb2.DescribeProgramRequest:
    """The message that asks for a program; of cotangents the names alone count."""
    if not isinstance(cotangents, Cotangents):
        names = {group: dict.fromkeys(given) for group, given in (cotangents or {}).items()}
        cotangents = Cotangents(**names)
    return simgrad_pb2.DescribeProgramRequest(
        world=world.to_request(),
        policy=policy,
        objective=objective,
        adjoint=adjoint,
        wrt=wrt,
        cotangent_final_state=list(cotangents.state),
        cotangent_trajectory=list(cotangents.trajectory),
        loops=loops,
        path=simgrad_pb2.PathUse.Name(path),
        cuda=cuda,
    )


def cuda_text_options(
    cuda: bool | str, per_step: Iterable[str]
) -> simgrad_pb2.CudaTextOptions | None:
    """The options of the text of kernels for Client.program; None if it is not asked for."""
    per_step = tuple(per_step)
    if not cuda:
        if per_step:
            raise ValueError("per_step shapes the CUDA text alone: ask for it with cuda=True")
        return None
    mapping = None if cuda is True else _word(_MAPPINGS, "cuda", str(cuda))
    return simgrad_pb2.CudaTextOptions(mapping=mapping, per_step=per_step)


_SMALLER = "a narrower dtype, or one value for all instances"


def check_size(
    message: Any,
    size: int,
    limit: int,
    what: str = "the request",
    remedy: str = "send fewer instances at a time (first_instance), ",
) -> None:
    """Raises ResourceExhausted, naming the largest field, where a request is above `limit`.

    Args:
      size, limit: bytes.
      what: names the request.
      remedy: what else may be done than to send fewer bytes for each instance.
    """
    if size <= limit:
        return
    field, bytes_of_field = max(_parts(message), key=lambda part: part[1])
    raise errors.ResourceExhausted(
        f"{field}: {what} has {size} bytes, of which this field takes {bytes_of_field}; the "
        f"server takes {limit} (--max_request_bytes): {remedy}{_SMALLER}",
        reason="LIMIT_EXCEEDED",
        violations=(
            errors.FieldViolation(field, f"{bytes_of_field} bytes of a request of {size}"),
        ),
    )


def _parts(message: Any) -> list[tuple[str, int]]:
    """The parts that make a request large: paths and sizes of its tensors, lists and program."""
    parts = [("handle", len(getattr(message, "handle", "")))]

    def add(path: str, tensors: Any) -> None:
        parts.extend((f"{path}[{i}].tensor", len(t.tensor.inline)) for i, t in enumerate(tensors))

    for prefix, part in parts_with_world(message):
        parts.append((prefix + "world.program", named_programs.program_of(part.world).ByteSize()))
        for name in ("initial", "params", "controls", "data") if prefix else ():
            add(prefix + name, getattr(part, name))
        if isinstance(part, simgrad_pb2.RolloutSpec):
            parts.append((prefix + "instance_ids", 8 * len(part.instance_ids)))
            parts.append((prefix + "path.forced.decisions", len(part.path.forced.decisions.inline)))
    work = reference_of(message)
    for i, sent in enumerate(getattr(work, "cotangents", ())):
        add(f"cotangents[{i}].final_state", sent.final_state)
        add(f"cotangents[{i}].trajectory", sent.trajectory)
    parts.append(("weights", 8 * len(getattr(work, "weights", ()))))
    return parts


def declarations_of(program: program_pb2.Program | None) -> Declared:
    """The declarations of the inputs of a program; none where there is none."""
    if program is None:
        return {}
    return {
        (i.kind, i.name): Declaration(
            len(program.values[i.value].shape), program.values[i.value].element, i.weights
        )
        for i in program.inputs
    }


def bare(value: Any) -> Any:
    """The array of an input, without its marks."""
    value = value.array if isinstance(value, arrays.PerStep) else value
    return value.bits if isinstance(value, arrays.Bits) else np.asarray(value)


def has_rows(value: Any, rank: int) -> bool:
    """Whether an input, declared with this rank, has a row for each instance."""
    return np.ndim(bare(value)) > rank + isinstance(value, arrays.PerStep)


def _named_tensor(
    name: str, value: Any, kind: int, declarations: Declarations
) -> simgrad_pb2.NamedTensor:
    per_step = isinstance(value, arrays.PerStep)
    if per_step:
        value = value.array
    if not isinstance(value, arrays.Bits):
        if np.ma.is_masked(value):
            raise TypeError(f"{name}: a masked array lacks numbers; say which by value.filled(...)")
        is_array = isinstance(value, (np.ndarray, np.generic))
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if value.dtype.kind in "iu":
            # Whole numbers sent to a real input are reals, where none is too large for that; and a
            # Python number has no dtype of its own.
            element = declarations().get((kind, name), Declaration(0)).element
            is_real = element == program_pb2.ELEMENT_TYPE_REAL
            if is_real and ((value > LARGEST_WHOLE) | (value < -LARGEST_WHOLE)).any():
                raise ValueError(f"{name}: whole numbers beyond 2^53 are not exact as reals; send floats")
            if is_real or not is_array or not arrays.travels(value.dtype):
                if not holds(element, value):
                    raise ValueError(f"{name}: an input of {element_name(element)} takes {range_of(element)}")
                value = value.astype(dtype_of(element))
        elif not arrays.travels(value.dtype):
            raise TypeError(f"{name}: numbers or an array of them, not an array of dtype {value.dtype}")
    stepped = kind in (program_pb2.INPUT_KIND_CONTROL, program_pb2.INPUT_KIND_DATA)
    if stepped and not per_step and len(value.shape) >= 2:
        declared = declarations().get((kind, name), Declaration(len(value.shape)))
        per_step = len(value.shape) == declared.rank + 2
    return simgrad_pb2.NamedTensor(name=name, tensor=arrays.to_tensor(value), per_step=per_step)


def _as_real(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind in "iub" else array


def input_name(
    name: str, spec: simgrad_pb2.RolloutSpec, declarations: Declarations
) -> simgrad_pb2.InputName:
    """The input that a word of `wrt` names: "k" or "param.k", looked for first among inputs that were sent, then
    among those that the world declares."""
    word, dot, rest = name.partition(".")
    if dot and word in _KIND_WORDS:
        return simgrad_pb2.InputName(kind=_KIND_WORDS[word], name=rest)
    sent = ((spec.initial, "state"), (spec.params, "param"), (spec.controls, "control"))
    kinds = [_KIND_WORDS[kind] for group, kind in sent if any(t.name == name for t in group)]
    kinds = kinds or [kind for kind in _KIND_WORDS.values() if (kind, name) in declarations()]
    if len(kinds) > 1:
        raise ValueError(
            f'wrt {name!r} is ambiguous: write "state.{name}", "param.{name}" or "control.{name}"'
        )
    # An unknown name goes to the server as it is; its answer names the field.
    return simgrad_pb2.InputName(
        kind=kinds[0] if kinds else program_pb2.INPUT_KIND_PARAM, name=name
    )


def _word(words: Mapping[str, Any], what: str, word: str) -> Any:
    if word not in words:
        raise ValueError(f"{what} {word!r}: one of {', '.join(words)}")
    return words[word]
