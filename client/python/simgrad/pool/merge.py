"""The parts of several answers, as the parts of one.

Everything is merged on messages, before anything is assembled: so a pooled answer becomes a result in the
same way as that of one server.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Sequence

import numpy as np

from simgrad import errors
from simgrad.assembly import Part as Message
from simgrad.delivery import identity
from simgrad.pieces import Pieces
from simgrad.pool.cut import Shard
from simgrad.pool.kept_shards import KeptShard, KeptShards
from simgrad.pool.merge_gradient import OfInput, merged_gradient
from simgrad.pool.merge_result import Part, merged_rollout
from simgrad.pool.merge_steps import ForwardMerge, merged_backward
from simgrad.v1 import diagnostics_pb2, simgrad_pb2

_PHASES = ("forward", "adjoint", "arithmetic")
# Fields that a rollout told and that its reversal does not tell again.
_OF_THE_ROLLOUT = ("final_state", "path_signatures", "first_events", "arithmetic")


class _Answer:
    """The part of one shard's answer that has come."""

    def __init__(self, shard: Shard):
        self.shard = shard
        self.server = ""
        self.header: simgrad_pb2.StreamHeader | None = None
        self.pieces = Pieces()
        self.instances: list[diagnostics_pb2.DiagnosticsBlock] = []
        self.backward: list[diagnostics_pb2.BackwardBlock] = []
        self.result: Any = None
        self.phase = 0
        self.done = 0  # steps of the phase


class Merge:
    """Takes parts of each shard's answer and gives parts of the whole as soon as they are complete.

    Args:
      shards: in the order of their ids.
      request: the whole request, a RolloutRequest or a GradientRequest.
      is_per_instance: of the inputs that were sent. is_weights: of those that are declared.
      is_reversal: whether the answer is that of a Vjp. A server that simulates its shard again tells more; that is
        left out.
    Errors: FailedPrecondition (reason MIXED_SERVERS) where two servers are of different revisions, or made
      different programs of the request.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        request: Any,
        is_per_instance: OfInput,
        is_weights: OfInput,
        is_reversal: bool = False,
    ):
        self._request = request
        self._is_reversal = is_reversal
        self._is_per_instance = is_per_instance
        self._is_weights = is_weights
        self._is_gradient = isinstance(request, simgrad_pb2.GradientRequest)
        self._message = simgrad_pb2.GradientPart if self._is_gradient else simgrad_pb2.RolloutPart
        self._answers = [_Answer(shard) for shard in shards]
        self._instances = sum(shard.instances for shard in shards)
        self._forward = ForwardMerge(len(shards))
        self._header: simgrad_pb2.StreamHeader | None = None
        self._early: list[Message] = []  # trajectories that came before all headers had
        self._is_over = False

    def begin(self, shard: int, server: str) -> None:
        """A server begins to answer for a shard; what another one said of it before counts no more."""
        self._answers[shard] = _Answer(self._answers[shard].shard)
        self._answers[shard].server = server
        self._forward.restart(shard)

    def add(self, shard: int, part: Message) -> Iterator[Message]:
        """Takes one part; gives what is complete by it."""
        answer = self._answers[shard]
        kind = part.WhichOneof("part")
        message: Any = getattr(part, kind) if kind else None
        if self._is_reversal and not _is_of_reversal(kind, message):
            return
        if kind == "header":
            answer.header = message
            self._check(answer)
            yield from self._merged_header()
        elif kind == "trajectory":
            yield from self._trajectory(answer.shard, message)
        elif kind == "diagnostics":
            yield from self._diagnostics(shard, message)
        elif kind == "backward":
            answer.backward.append(message)
        elif kind == "progress":
            if message.phase in _PHASES:
                answer.phase, answer.done = _PHASES.index(message.phase), message.steps_done
                yield self._progress(message.steps_total)
        elif kind == "piece":
            answer.pieces.take(message)
        elif kind == "result":
            answer.pieces.check_complete()
            answer.result = message
            answer.phase = len(_PHASES)
            if self._is_reversal:
                for field in _OF_THE_ROLLOUT:
                    message.rollout.ClearField(field)
            if all(a.result is not None for a in self._answers):
                yield from self._end()

    def _part(self, **content: Any) -> Message:
        made: Message = self._message(**content)
        return made

    # ---- The header ----

    def _check(self, answer: _Answer) -> None:
        assert answer.header is not None
        for other in self._answers:
            if other.header is not None and other is not answer:
                refuse_mixed({other.server: identity(other.header), answer.server: identity(answer.header)})

    def _merged_header(self) -> Iterator[Message]:
        headers = [a.header for a in self._answers if a.header is not None]
        if self._header is not None or len(headers) < len(self._answers):
            return
        self._header = simgrad_pb2.StreamHeader()
        self._header.CopyFrom(headers[0])
        self._header.instances = self._instances
        if self._is_reversal:
            del self._header.trajectory[:]
            self._header.ClearField("path")
        self._header.device = _joined(h.device for h in headers)
        self._header.request_id = _joined(h.request_id for h in headers)
        for k, role in enumerate(self._header.program.policy.roles):
            role.execution = _joined(h.program.policy.roles[k].execution for h in headers)
        self._forward.begin(self._header.steps)
        yield self._part(header=self._header)
        yield from self._early
        self._early = []
        yield from self._merged_forward()

    # ---- While it runs ----

    def _trajectory(self, shard: Shard, chunk: simgrad_pb2.TrajectoryChunk) -> Iterator[Message]:
        row_bytes = len(chunk.data) // max(chunk.instances, 1)
        for begin, place, length in shard.runs():
            first = max(begin, chunk.first_instance_index)
            end = min(begin + length, chunk.first_instance_index + chunk.instances)
            if first >= end:
                continue
            offset = first - chunk.first_instance_index
            part = self._part(
                trajectory=simgrad_pb2.TrajectoryChunk(
                    name=chunk.name,
                    first_instance_index=place + first - begin,
                    instances=end - first,
                    first_time=chunk.first_time,
                    times=chunk.times,
                    data=chunk.data[offset * row_bytes : (offset + end - first) * row_bytes],
                )
            )
            if self._header is None:
                self._early.append(part)
            else:
                yield part

    def _diagnostics(
        self, shard: int, block: diagnostics_pb2.DiagnosticsBlock
    ) -> Iterator[Message]:
        if block.instances:
            # A repeated run sends them again, so they wait for the end of the run that counts.
            self._answers[shard].instances.append(block)
        if block.terminations or not block.instances:
            self._forward.add(shard, block)
            yield from self._merged_forward()

    def _merged_forward(self) -> Iterator[Message]:
        block = self._forward.take() if self._header is not None else None
        if block is not None:
            yield self._part(diagnostics=block)

    def _progress(self, total: int) -> Message:
        """How far all are, by instances; the phase is that of the slowest."""
        phase = min(a.phase for a in self._answers)
        done = sum(
            a.shard.instances * (total if a.phase > phase else a.done) for a in self._answers
        )
        progress = simgrad_pb2.Progress(
            phase=_PHASES[phase], steps_done=done // self._instances, steps_total=total
        )
        return self._part(progress=progress)

    # ---- The end ----

    def _end(self) -> Iterator[Message]:
        if self._is_over:
            return
        self._is_over = True
        for answer in self._answers:
            for block in answer.instances:
                yield from self._instance_columns(answer.shard, block)
        backward = merged_backward([a.backward for a in self._answers])
        if backward is not None:
            yield self._part(backward=backward)
        text = self._answers[0].pieces.content("program.text", b"")
        if text:
            yield self._part(
                piece=simgrad_pb2.TensorPiece(field="program.text", data=text, last=True)
            )
        assert self._header is not None  # every answer had one
        policy = self._header.program.policy
        parts = [Part(a.shard, a.result, a.pieces) for a in self._answers]
        request = self._request
        finite_only = (
            self._is_gradient and request.reduction == simgrad_pb2.INSTANCE_REDUCTION_FINITE_ONLY
        )
        rollout = merged_rollout(
            parts, policy, np.array(request.weights, np.float64), finite_only, self._seconds()
        )
        if not self._is_gradient:
            _merge_kept(self._answers, rollout)
            yield self._part(result=rollout)
            return
        gradient = merged_gradient(
            parts, policy, self._is_per_instance, self._is_weights, request
        )
        gradient.rollout.CopyFrom(rollout)
        yield self._part(result=gradient)

    def _seconds(self) -> dict[str, float]:
        """By phase: of the server that spent most in it. Servers run side by side."""
        spent: dict[str, dict[str, float]] = {}
        for answer in self._answers:
            part = Part(answer.shard, answer.result, answer.pieces)
            for phase, seconds in part.rollout.phase_seconds.items():
                of_phase = spent.setdefault(phase, {})
                of_phase[answer.server] = of_phase.get(answer.server, 0.0) + seconds
        return {phase: max(of_phase.values()) for phase, of_phase in spent.items()}

    def _instance_columns(
        self, shard: Shard, block: diagnostics_pb2.DiagnosticsBlock
    ) -> Iterator[Message]:
        for columns in block.instances:
            for begin, place, length in shard.runs():
                first = max(begin, block.instance_offset)
                end = min(begin + length, block.instance_offset + columns.instances)
                if first >= end:
                    continue
                lanes = slice(first - block.instance_offset, end - block.instance_offset)
                moved = diagnostics_pb2.DiagnosticsBlock(
                    first_step=block.first_step,
                    steps=block.steps,
                    instance_offset=place + first - begin,
                    instances=[_lanes_of(columns, block.steps, lanes)],
                )
                yield self._part(diagnostics=moved)


def refuse_mixed(identities: dict[str, dict[str, str]]) -> None:
    """Raises FailedPrecondition where servers, by target, are not what gives the same bits."""
    first, *others = identities.items()
    for target, other in others:
        different = [
            f"{name} {value} at {first[0]}, {other.get(name, 'unknown')} at {target}"
            for name, value in first[1].items()
            if other.get(name) != value
        ]
        if different:
            raise errors.FailedPrecondition(
                f"the servers of this pool differ ({'; '.join(different)}), so their bits may differ: "
                "give a pool servers of one revision",
                reason="MIXED_SERVERS",
            )


def _is_of_reversal(kind: str | None, message: Any) -> bool:
    if kind == "piece":
        return message.field.split(".", 1)[0] not in _OF_THE_ROLLOUT
    return kind not in ("trajectory", "diagnostics")


def _merge_kept(answers: Sequence[_Answer], rollout: simgrad_pb2.RolloutResult) -> None:
    """Puts what the servers keep under one handle, which lives as long as the first of theirs ends."""
    kept = KeptShards(
        KeptShard(a.server, a.shard.instances, a.result.kept.handle) for a in answers
    )
    if kept.handle:
        rollout.kept.handle = kept.handle
        rollout.kept.seconds = min(a.result.kept.seconds for a in answers if a.result.kept.handle)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, words)))


def _lanes_of(
    columns: diagnostics_pb2.InstanceColumns, steps: int, lanes: slice
) -> diagnostics_pb2.InstanceColumns:
    """Some of the instances of a block."""
    shape = (steps, columns.instances)
    counts = np.frombuffer(columns.value_counts, "<u4").reshape(shape)
    ends = np.concatenate([[0], np.cumsum(counts.sum(axis=0, dtype=np.int64))])
    values = np.frombuffer(columns.values, "<f8")[ends[lanes.start] : ends[lanes.stop]]
    return diagnostics_pb2.InstanceColumns(
        site=columns.site,
        instances=lanes.stop - lanes.start,
        iterations=np.frombuffer(columns.iterations, "<u4").reshape(shape)[:, lanes].tobytes(),
        reasons=np.frombuffer(columns.reasons, "u1").reshape(shape)[:, lanes].tobytes(),
        value_counts=counts[:, lanes].tobytes(),
        values=values.tobytes(),
    )
