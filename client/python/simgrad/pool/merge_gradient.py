"""The gradients of several servers, as of one."""

from __future__ import annotations

import math
import re
from typing import Callable, Iterable, Sequence

import numpy as np

from simgrad import arrays
from simgrad.pool.aligned_sum import Node, cover, merged, multiply, round_to, whole_blocks
from simgrad.pool.loss_scaler import next_state
from simgrad.pool.merge_arithmetic import merged_arithmetic
from simgrad.pool.merge_result import Part, in_rows, setting_of
from simgrad.v1 import policy_pb2, program_pb2, simgrad_pb2, tensor_pb2

_KINDS = {
    program_pb2.INPUT_KIND_STATE: "state",
    program_pb2.INPUT_KIND_PARAM: "param",
    program_pb2.INPUT_KIND_CONTROL: "control",
}
_COUNTED = re.compile(
    r"(\d+)( (?:cotangents overflowed|instances are left out|runs of loop|solves at) .*)", re.DOTALL
)
_SKIPPED = "the gradient is skipped: "
_LEFT_OUT = "instances are left out whose cotangents"
# The words of a server's warnings, in its order: server/conversion/result.cc.
_OF_LOSS_SCALE = ("the loss scale ", " cotangents overflowed ", _LEFT_OUT)
_OF_RESULT = "a scaled gradient"
_IN_ORDER = (*_OF_LOSS_SCALE, _OF_RESULT, " runs of loop ", " solves at ", _SKIPPED)
_INSTANCE = re.compile(r" of instance (\d+) gave ")
OfInput = Callable[[int, str], bool]  # by kind and name


def merged_gradient(
    parts: Sequence[Part],
    policy: policy_pb2.ResolvedPolicy,
    is_per_instance: OfInput,
    is_weights: OfInput,
    request: simgrad_pb2.GradientRequest,
) -> simgrad_pb2.GradientResult:
    """All of the result but `rollout`.

    Args:
      parts: of each shard, in the order of their ids; each with the nodes of its sums.
      request: the whole.
    """
    answers: list[simgrad_pb2.GradientResult] = [part.result for part in parts]
    result = simgrad_pb2.GradientResult(
        loss_scale=answers[0].loss_scale,
        left_out=sum(a.left_out for a in answers),
        reused=all(a.reused for a in answers),
    )
    sums_overflowed = False  # over all shards
    rows_overflowed = False
    for k, entry in enumerate(answers[0].gradients):
        entries = [a.gradients[k] for a in answers]
        target = result.gradients.add(kind=entry.kind, name=entry.name)
        _merge_counts(entries, target)
        target.gradient.dtype = entry.gradient.dtype
        name = f"{_KINDS[entry.kind]}.{entry.name}"
        if is_per_instance(entry.kind, entry.name):
            contents = [
                p.pieces.content(f"gradient.{name}", e.gradient.inline) for p, e in zip(parts, entries)
            ]
            instances = sum(part.shard.instances for part in parts)
            target.gradient.shape.extend([instances, *entry.gradient.shape[1:]])
            target.gradient.inline = in_rows(parts, contents)
            rows = arrays.from_tensor(target.gradient)
            rows_overflowed = rows_overflowed or not np.isfinite(rows).all()
        else:
            nodes = [n for p, e in zip(parts, entries) for n in _nodes(p, e, name)]
            target.gradient.shape.extend(entry.gradient.shape)
            is_finite = _write_sum(nodes, policy, result.loss_scale, target.gradient)
            sums_overflowed = sums_overflowed or not is_finite
            if request.return_tree:
                ids = _ids_of(parts)
                if is_weights(entry.kind, entry.name):
                    ids = whole_blocks(*ids)
                _write_tree(nodes, ids, policy, target)
    # A server's own sum may overflow where the sum over all does not, so `skipped` of a server counts
    # only for rows that are not finite.
    left_out = any(_LEFT_OUT in warning for a in answers for warning in a.warnings)
    result.skipped = sums_overflowed or left_out or (rows_overflowed and any(a.skipped for a in answers))
    if request.HasField("clip_norm"):
        result.norm = _clip(result, request.clip_norm, setting_of(policy, "gradient").format)
    scaler = request.spec.policy.loss_scale
    if scaler.HasField("dynamic"):
        state = answers[0].loss_scale_state
        is_clean = not result.skipped and (state.mode == "torch" or _are_finite(result))
        result.skipped = not is_clean
        result.loss_scale_state.CopyFrom(next_state(scaler.dynamic, state, is_clean))
    _merge_solves(answers, result)
    result.arithmetic.extend(merged_arithmetic((a.arithmetic for a in answers), policy))
    result.warnings.extend(_merged_warnings(parts, result, scaler.HasField("dynamic")))
    return result


def _are_finite(result: simgrad_pb2.GradientResult) -> bool:
    return all(bool(np.isfinite(arrays.from_tensor(g.gradient)).all()) for g in result.gradients)


def _clip(result: simgrad_pb2.GradientResult, most: float, format: str) -> float:
    """Clips all gradients to a norm, as sim/engine/clip.h does; returns the norm before."""
    gradients = [arrays.from_tensor(g.gradient).astype(np.float64).ravel() for g in result.gradients]
    numbers = np.concatenate([np.zeros(0), *gradients])
    largest = float(np.abs(numbers).max(initial=0.0))
    if largest == 0.0:
        return 0.0
    exponent = math.frexp(largest)[1] - 1 if math.isfinite(largest) else 0
    with np.errstate(all="ignore"):
        near_one = np.ldexp(numbers, -exponent)
        # The sum of finite numbers is exact, and rounded once.
        squares = near_one * near_one
        total = math.fsum(squares.tolist()) if math.isfinite(largest) else float(squares.sum())
        norm = float(np.ldexp(np.sqrt(total), exponent))
    if math.isfinite(norm) and most / (norm + 1e-6) < 1.0:
        factor = np.array(most / (norm + 1e-6))
        for entry, values in zip(result.gradients, gradients):
            entry.gradient.inline = encoded(format, multiply(format, values, factor))
    return norm


def _merge_counts(
    entries: Sequence[simgrad_pb2.InputGradient], target: simgrad_pb2.InputGradient
) -> None:
    target.connected = sum(e.connected for e in entries)
    target.zero = sum(e.zero for e in entries)
    target.smallest = min(e.smallest for e in entries)
    target.largest = max(e.largest for e in entries)
    if target.connected == 0:
        target.gated_by = ", ".join(dict.fromkeys(e.gated_by for e in entries if e.gated_by))


def _merge_solves(
    answers: Iterable[simgrad_pb2.GradientResult], target: simgrad_pb2.GradientResult
) -> None:
    merged_solves: dict[str, simgrad_pb2.AdjointSolves] = {}
    for solves in (s for answer in answers for s in answer.adjoint_solves):
        known = merged_solves.get(solves.site)
        if known is None:
            merged_solves[solves.site] = target.adjoint_solves.add()
            merged_solves[solves.site].CopyFrom(solves)
            continue
        known.solves += solves.solves
        known.turns += solves.turns
        known.capped += solves.capped
        known.most_turns = max(known.most_turns, solves.most_turns)
        known.residual = float(np.maximum(known.residual, solves.residual))


def _nodes(part: Part, entry: simgrad_pb2.InputGradient, name: str) -> Iterable[Node]:
    for i, node in enumerate(entry.tree):
        data = part.pieces.content(f"tree.{name}.{i}", node.value)
        values = arrays.from_bytes(node.dtype, (-1,), data).astype(np.float64)
        yield Node(node.level, node.index, values)


def _write_sum(
    nodes: Sequence[Node],
    policy: policy_pb2.ResolvedPolicy,
    loss_scale: float,
    target: tensor_pb2.Tensor,
) -> bool:
    """Writes the sum without the loss scale; returns whether it was finite with it."""
    setting = setting_of(policy, "gradient")
    count = int(np.prod(target.shape, dtype=np.int64))
    scaled = round_to(setting.format, merged(nodes, setting.accumulator, count))
    with np.errstate(all="ignore"):
        inverse = round_to("f32", 1.0 / np.array(loss_scale, np.float64))
    unscaled = multiply(setting.format, scaled, inverse)
    target.inline = encoded(setting.format, unscaled)
    return bool(np.isfinite(scaled).all())


def _ids_of(parts: Sequence[Part]) -> tuple[int, int]:
    """The first and the last id of all."""
    ids = [part.shard.ids for part in parts]
    return min(int(i.min()) for i in ids), max(int(i.max()) for i in ids)


def _write_tree(
    nodes: Sequence[Node],
    ids: tuple[int, int],
    policy: policy_pb2.ResolvedPolicy,
    target: simgrad_pb2.InputGradient,
) -> None:
    """Joins the nodes to the largest aligned blocks between the first and the last of `ids`."""
    setting = setting_of(policy, "gradient")
    format = _holding(setting.format, setting.accumulator)
    for node in cover(nodes, *ids, setting.accumulator):
        target.tree.add(
            level=node.level,
            index=node.index,
            dtype=tensor_pb2.DType.Value(f"DTYPE_{format.upper()}"),
            value=encoded(format, node.values),
        )


def _holding(format: str, accumulator: str) -> str:
    """The format of nodes, as server/conversion/result.cc has it: a node of one instance is in `format`."""
    if format == accumulator:
        return format
    return "f64" if "f64" in (format, accumulator) else "f32"


def encoded(format: str, values: np.ndarray) -> bytes:
    """Numbers of a format, given as f64, as they travel."""
    with np.errstate(all="ignore"):
        if format == "bf16":
            return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        return values.astype({"f64": "<f8", "f32": "<f4", "f16": "<f2"}[format]).tobytes()


def _merged_warnings(parts: Sequence[Part], result: simgrad_pb2.GradientResult, is_dynamic: bool) -> list[str]:
    """Each warning once, in the order of one server; those that count, with the sum of their counts; one reason of a
    skipped gradient, that of the first instance of the request that has one, or the sum over all servers, which may
    be not finite where each of theirs is. `is_dynamic`: of the loss scale."""
    skipped = result.skipped
    counts: dict[str, int | None] = {}
    reason = _reason(parts)
    for warning in (w for part in parts for w in part.result.warnings):
        counted = _COUNTED.fullmatch(warning)
        if counted:
            counts[counted[2]] = (counts.get(counted[2]) or 0) + int(counted[1])
        elif warning.startswith(_SKIPPED) and warning != reason:
            continue
        elif skipped:  # of a loss scale that does not fit, where that did harm
            counts[warning] = None
    if any(words in text for text in counts for words in _OF_LOSS_SCALE):
        counts = {text: n for text, n in counts.items() if not text.startswith(_OF_RESULT)}
    elif skipped and result.loss_scale != 1.0 and not any(text.startswith(_OF_RESULT) for text in counts):
        counts[_of_result(result)] = None
    if skipped and is_dynamic and not reason:
        counts[_SKIPPED + "its sum over instances, or what was unscaled, is not finite"] = None
    merged = [text if count is None else f"{count}{text}" for text, count in counts.items()]
    return sorted(merged, key=lambda w: next((k for k, words in enumerate(_IN_ORDER) if words in w), len(_IN_ORDER)))


def _of_result(result: simgrad_pb2.GradientResult) -> str:
    """The warning of scaled gradients that are not finite although every cotangent is."""
    names = [g.name for g in result.gradients if not np.isfinite(arrays.from_tensor(g.gradient)).all()]
    of = f" of {', '.join(names)}" if names else ""
    return (
        f"{_OF_RESULT}{of} was not finite at loss scale {result.loss_scale:g}; "
        "certificates say where that was born"
    )


def _reason(parts: Sequence[Part]) -> str:
    """Why one server would say that the gradient is skipped. An instance counts for it where it was finite before the
    reverse pass, if such ones are left out."""
    told = [(part, w) for part in parts for w in part.result.warnings if w.startswith(_SKIPPED)]
    left_out = [(part, w) for part, w in told if any(_LEFT_OUT in other for other in part.result.warnings)]
    return min(left_out or told, key=lambda of: _row_of(*of), default=(None, ""))[1]


def _row_of(part: Part, reason: str) -> float:
    """The row in the request of the instance that a reason names; infinity where it names none."""
    named = _INSTANCE.search(reason)
    if named is None:
        return math.inf
    rows = part.shard.rows[part.shard.ids == np.uint64(int(named[1]))]
    return float(rows[0]) if len(rows) else math.inf
