"""Puts the parts of one answer together into a result."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Sequence, TypeAlias

import numpy as np

from simgrad import arrays, diagnostics, path, results
from simgrad.arithmetic import Arithmetic
from simgrad.on_read import OnRead
from simgrad.pieces import Pieces
from simgrad.policy import LossScaleState
from simgrad.program_text import ProgramText
from simgrad.v1 import diagnostics_pb2, program_pb2, simgrad_pb2

_KINDS = {
    program_pb2.INPUT_KIND_STATE: ("initial", "state"),
    program_pb2.INPUT_KIND_PARAM: ("params", "param"),
    program_pb2.INPUT_KIND_CONTROL: ("controls", "control"),
}

Ask = Callable[[Sequence[simgrad_pb2.InputName]], simgrad_pb2.ProgramInfo]
Part: TypeAlias = "simgrad_pb2.RolloutPart | simgrad_pb2.GradientPart | simgrad_pb2.ComparePart"


class Assembly:
    """Takes the parts of a Rollout or Gradient stream in order; complete once `result` is set.

    Args:
      ask: gives the program with its text, where the answer leaves it on the server; it is told the
        inputs that the answer is differentiated for.
    """

    def __init__(self, raw: bool = False, ask: Ask | None = None):
        self._raw = raw
        self._ask = ask
        self._header = simgrad_pb2.StreamHeader()  # comes before everything else
        self._forward: list[Any] = []
        self._backward: list[Any] = []
        self._trajectory: dict[str, np.ndarray] = {}
        self._pieces = Pieces()
        self.result: results.Rollout | None = None
        self.results: list[results.Rollout] = []  # more than one of a Vjp or a Compare; `result` is the last
        self.kept = simgrad_pb2.KeptRun()  # empty where the answer has none

    @staticmethod
    def is_viewable(part: Part) -> bool:
        """Whether it is a block of diagnostics to show; per-instance columns of steps whose other
        columns have been shown are not."""
        kind = part.WhichOneof("part")
        if kind != "diagnostics":
            return bool(kind == "backward")
        return bool(part.diagnostics.terminations or not part.diagnostics.instances)

    def view(self, part: Part) -> diagnostics.ForwardTrace | diagnostics.BackwardTrace:
        """A viewable part by itself."""
        if not isinstance(part, simgrad_pb2.RolloutPart) and part.HasField("backward"):
            return diagnostics.backward_trace([part.backward])
        return diagnostics.forward_trace([part.diagnostics], self._header.instances)

    def add(self, part: Part) -> None:
        """Takes one part."""
        kind = part.WhichOneof("part")
        message: Any = getattr(part, kind) if kind else None
        if kind == "header":
            self._take_header(message)
        elif kind == "diagnostics":
            self._forward.append(diagnostics_pb2.DiagnosticsBlock.FromString(message.SerializeToString()))
        elif kind == "backward":
            self._backward.append(message)
        elif kind == "trajectory":
            self._take_trajectory(message)
        elif kind == "piece":
            self._pieces.take(message)
        elif kind in ("result", "rollout", "gradient"):
            self._pieces.check_complete()
            is_gradient = isinstance(message, simgrad_pb2.GradientResult)
            self.result = (
                self._gradient(message)
                if is_gradient
                else results.Rollout(**self._rollout(message))
            )
            self.results.append(self.result)
            if not is_gradient:
                self.kept = message.kept
            # Later messages belong to the next result.
            self._backward, self._pieces = [], Pieces()

    def _take_header(self, header: simgrad_pb2.StreamHeader) -> None:
        self._header = header
        self._forward, self._trajectory = [], {}
        for info in header.trajectory:
            shape = (header.instances, info.times, *info.shape)
            self._trajectory[info.name] = np.zeros(shape, arrays.numpy_dtype(info.dtype))

    def _take_trajectory(self, chunk: simgrad_pb2.TrajectoryChunk) -> None:
        whole = self._trajectory[chunk.name]
        part = np.frombuffer(chunk.data, whole.dtype)
        part = part.reshape((chunk.instances, chunk.times, *whole.shape[2:]))
        first, time = chunk.first_instance_index, chunk.first_time
        whole[first : first + chunk.instances, time : time + chunk.times] = part

    def _text(self, wrt: list[simgrad_pb2.InputName]) -> ProgramText:
        text = self._pieces.content("program.text", self._header.program.text.encode()).decode()
        ask = self._ask
        return ProgramText(text or None, None if ask is None else lambda: ask(wrt))

    def _tensor(self, name: str, tensor: Any) -> np.ndarray:
        data = self._pieces.content(name, tensor.inline)
        return arrays.from_bytes(tensor.dtype, tensor.shape, data, self._raw)

    def _tree(self, name: str, entry: simgrad_pb2.InputGradient) -> list[results.TreeNode]:
        shape = entry.gradient.shape
        return [
            results.TreeNode(
                node.level,
                node.index,
                arrays.from_bytes(
                    node.dtype, shape, self._pieces.content(f"{name}.{i}", node.value), self._raw
                ),
            )
            for i, node in enumerate(entry.tree)
        ]

    def _path(self) -> path.Path | None:
        header = self._header
        if not header.HasField("path"):
            return None
        # A world that decides nothing has a path of no bytes, and no trajectory of it.
        taken = self._trajectory.get(path.TAKEN)
        if taken is None and header.path.bytes > 0:
            return None
        empty = np.zeros((header.instances, header.steps, 0), np.uint8)
        return path.Path.of(header.path, empty if taken is None else taken)

    def _trajectories(self) -> dict[str, np.ndarray]:
        dtypes = {info.name: info.dtype for info in self._header.trajectory}
        return {
            name: arrays.from_bytes(dtypes[name], whole.shape, whole.tobytes(), self._raw)
            for name, whole in self._trajectory.items()
            if name != path.TAKEN and not name.startswith(path.MARGIN)
        }

    def _margins(self) -> dict[str, np.ndarray]:
        return {
            name.removeprefix(path.MARGIN): whole
            for name, whole in self._trajectory.items()
            if name.startswith(path.MARGIN)
        }

    def _told(self, message: simgrad_pb2.RolloutResult) -> OnRead:
        """The attributes results.TOLD, which say what the steps did."""
        # Nothing of a message is kept: it holds all parts that came with it.
        instances, blocks = self._header.instances, self._forward
        layout = simgrad_pb2.PathLayout()
        if self._header.HasField("path"):
            layout.CopyFrom(self._header.path)
        first_steps = {
            first.site: self._pieces.content(f"first_events.{first.site}", first.steps)
            for first in message.first_events
        }

        def read() -> dict[str, Any]:
            trace = diagnostics.forward_trace(blocks, instances)
            for site, steps in first_steps.items():
                if site in trace.events:
                    trace.events[site].first_step = np.frombuffer(steps, "<i8").copy()
            made = {name: getattr(trace, name) for name in results.TOLD if name != "forced"}
            return {**made, "forced": path.take_forced(trace.events, layout)}

        return OnRead(read)

    def _rollout(
        self, message: simgrad_pb2.RolloutResult, wrt: Iterable[simgrad_pb2.InputName] = ()
    ) -> dict[str, Any]:
        header = self._header
        told = self._told(message)
        has_value = message.HasField("value")
        health = self._pieces.health(message.health)
        signatures = self._pieces.content("path_signatures", message.path_signatures)
        values = self._pieces.content("values", message.values)
        return dict(
            state={
                s.name: self._tensor(f"final_state.{s.name}", s.tensor) for s in message.final_state
            },
            trajectory=self._trajectories(),
            path=self._path(),
            forced=told,
            margins=self._margins(),
            ok=np.frombuffer(health.ok, "u1") != 0,
            health=[
                results.NonFinite(*row)
                for row in zip(health.index, health.phase, health.step, health.stopped)
            ],
            halted=[
                results.Halted(index, health.halts[by], step, error)
                for index, by, step, error in zip(
                    health.halted_index,
                    health.halted_by,
                    health.halted_step,
                    health.halted_error,
                )
            ],
            certificates=[diagnostics.certificate(c) for c in message.certificates],
            path_signature=message.batch_path_signature,
            path_signatures=np.frombuffer(signatures, "<u8").copy(),
            value=message.value if has_value else None,
            values=np.frombuffer(values, "<f8").copy() if has_value else None,
            sites=told,
            events=told,
            states_range=told,
            ranges=told,
            absorption=told,
            arithmetic=Arithmetic.of(message.arithmetic, "forward"),
            program=results.Program.of(header.program, text=self._text(list(wrt))),
            device=header.device,
            server_version=header.server_version,
            request_id=header.request_id,
            instances=header.instances,
            steps=header.steps,
            seconds=dict(message.phase_seconds),
        )

    def _gradient(self, message: simgrad_pb2.GradientResult) -> results.Gradient:
        gradient = results.Gradient(
            **self._rollout(
                message.rollout,
                [simgrad_pb2.InputName(kind=g.kind, name=g.name) for g in message.gradients],
            ),
            loss_scale=message.loss_scale,
            loss_scale_state=(
                LossScaleState.of(message.loss_scale_state)
                if message.HasField("loss_scale_state")
                else None
            ),
            skipped=message.skipped,
            left_out=message.left_out,
            warnings=list(message.warnings),
            adjoint_solves={
                s.site: results.AdjointSolves(s.solves, s.turns, s.most_turns, s.capped, s.residual)
                for s in message.adjoint_solves
            },
            norm=message.norm if message.HasField("norm") else None,
            backward=diagnostics.backward_trace(self._backward) if self._backward else None,
            reused=message.reused,
        )
        gradient.arithmetic += Arithmetic.of(message.arithmetic, "adjoint")
        names = [g.name for g in message.gradients]
        counted = gradient.counted
        for entry in message.gradients:
            attribute, kind = _KINDS[entry.kind]
            tensor = self._tensor(f"gradient.{kind}.{entry.name}", entry.gradient)
            getattr(gradient, attribute)[entry.name] = tensor
            key = entry.name if names.count(entry.name) == 1 else f"{kind}.{entry.name}"
            gradient.connected[key] = entry.connected
            gradient.zero_share[key] = entry.zero / counted if counted else 0.0
            gradient.magnitudes[key] = (entry.smallest, entry.largest)
            gradient.gated_by[key] = entry.gated_by
            if entry.tree:
                gradient.tree[key] = self._tree(f"tree.{kind}.{entry.name}", entry)
        return gradient
