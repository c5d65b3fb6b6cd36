"""Results: the classes that the client returns.

N is the number of instances, T the number of steps. Axis order: [instance, time, field shape].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

import numpy as np

from simgrad import errors, request, summary
from simgrad.arithmetic import Arithmetic
from simgrad.diagnostics import Absorption, BackwardTrace, BirthCertificate, EventTrace, RangeCounts
from simgrad.diagnostics import StateRange, TerminationTrace
from simgrad.on_read import made_on_read
from simgrad.path import Forced, Path
from simgrad.policy import LossScaleState
from simgrad.program_text import ProgramText
from simgrad.v1 import policy_pb2, program_pb2, simgrad_pb2

if TYPE_CHECKING:
    from simgrad.kept import KeptRun, OneCotangent
    from simgrad.loop_derivative import Implicit, Truncated
    from simgrad.retry import Retry


@dataclass(frozen=True)
class RoleSetting:
    """The setting that one role ran with."""

    format: str
    overflow: str
    order: str
    accumulator: str
    execution: str  # native or emulated
    guarantee: str  # bitwise, or device where hardware decides
    rounding: str = "nearest_even"  # of casts into the role; in tf32 of what matmul reads
    products: str = "fma_chain"  # how matmul adds its products
    scale: str = "none"  # amax: each array by its largest magnitude


@dataclass(frozen=True, repr=False)
class ResolvedPolicy:
    """The policy with everything filled in, as the server ran it."""

    preset: str
    roles: Mapping[str, RoleSetting]
    sites: Mapping[str, Mapping[str, str]]  # overrides: by site, the settings that were given
    loss_scale: float
    nonfinite: str

    def __repr__(self) -> str:
        return summary.of_policy(self)

    @property
    def rounds_by_chance(self) -> bool:
        """Whether casts into a role or at a site round stochastically. Such a run follows no path."""
        roundings = [role.rounding for role in self.roles.values()]
        roundings += [setting.get("rounding", "") for setting in self.sites.values()]
        return "stochastic" in roundings

    @classmethod
    def of(cls, message: policy_pb2.ResolvedPolicy) -> "ResolvedPolicy":
        roles = {
            r.role: RoleSetting(
                r.setting.format,
                r.setting.overflow,
                r.setting.order,
                r.setting.accumulator,
                r.execution,
                r.guarantee,
                r.setting.rounding,
                r.setting.products or "fma_chain",
                r.setting.scale or "none",
            )
            for r in message.roles
        }
        sites = {s.site: {d.name: v for d, v in s.setting.ListFields()} for s in message.sites}
        stop = message.non_finite == policy_pb2.NON_FINITE_POLICY_STOP
        return cls(message.preset, roles, sites, message.loss_scale, "stop" if stop else "report")


@dataclass(frozen=True)
class CudaText:
    """The CUDA C++ of a program's kernels, as NVRTC compiles it on a GPU.

    The text holds no numbers: it reads them from `numbers` (args.number) and `integers`
    (args.integer), so that programs which differ in numbers alone share their kernels.
    """

    text: str = field(repr=False)
    mapping: str  # thread_per_instance, block_per_instance
    numbers: tuple[float, ...]
    integers: tuple[int, ...]

    @classmethod
    def of(cls, message: simgrad_pb2.CudaText) -> "CudaText":
        mapping = simgrad_pb2.CudaMapping.Name(message.mapping)
        return cls(
            message.text,
            mapping.removeprefix("CUDA_MAPPING_").lower(),
            tuple(message.numbers),
            tuple(message.integers),
        )


@dataclass(frozen=True, repr=False)
class Program:
    """The numerical program that ran: text for people, fingerprint, and policy.

    `source` (a simgrad.v1.Program) and `inputs` are set by Client.program only, `cuda` where it was
    asked for. Programs with one fingerprint have one text.
    """

    fingerprint: str
    policy: ResolvedPolicy
    termination_sites: tuple[str, ...]
    event_sites: tuple[str, ...]
    source: program_pb2.Program | None = None
    inputs: tuple[simgrad_pb2.InputSchema, ...] = ()
    cuda: CudaText | None = None
    _text: ProgramText = field(default_factory=ProgramText, compare=False)

    def __repr__(self) -> str:
        return summary.of_program(self)

    @property
    def text(self) -> str:
        """The text. Where it did not come with an answer (program="text" of the call), reading it
        asks the server, once.

        Errors: those of Client.program; FailedPrecondition once the client is closed (reason
          CLIENT_CLOSED), or where the server has changed meanwhile (SERVER_CHANGED).
        """
        return self._text.read(self.fingerprint)

    @classmethod
    def of(
        cls,
        info: simgrad_pb2.ProgramInfo,
        source: program_pb2.Program | None = None,
        inputs: Any = (),
        text: ProgramText | None = None,
        cuda: CudaText | None = None,
    ) -> "Program":
        """`text`: where it did not come with `info`."""
        return cls(
            info.fingerprint,
            ResolvedPolicy.of(info.policy),
            tuple(info.termination_sites),
            tuple(info.event_sites),
            source,
            tuple(inputs),
            cuda,
            ProgramText(info.text) if text is None else text,
        )


@dataclass(frozen=True)
class NonFinite:
    """An instance that is not ok: where it first had a non-finite value."""

    instance: int  # index in the request
    phase: str  # input, forward, adjoint
    step: int
    stopped: bool


@dataclass(frozen=True)
class Halted:
    """An instance that a halt of the world ended, after `step`; with an error before it.

    Attributes:
      line: the line of the caller's file that asks for the halt; empty where the program does not say.
      message: what the author of the halt says of it (Equinox's error_if has one); else empty.
    """

    instance: int  # index in the request
    halt: str
    step: int
    error: bool
    line: str = ""
    message: str = ""


@dataclass(repr=False)
class Rollout:
    """A finished rollout.

    Attributes:
      state: final states by name, [N, field shape].
      trajectory: recorded states [N, T + 1, field shape] and observables [N, T, field shape].
      ok: [N] bool. health: one NonFinite per instance that is not ok. certificates: of the first of
        them.
      halted: one Halted per instance that a halt of the world ended.
      margins: of a run with margins=[...], by site, f64 [N, T, loops..., own shape]: a - b of what the test
        compares, for each element and each evaluation; NaN where it was not evaluated. The axes of loops
        are as in Column.shape (path.py), outermost first; a loop has one for its own iterations too.
      path_signature: of the batch (int). path_signatures: [N] uint64.
      value: sum of weight * value over the instances, or None without an objective. values: [N]
        f64.
      sites, events: TerminationTrace and EventTrace by site. states_range, ranges: by state, by
        role. absorption: by state, how many of the additions that it is stored from did nothing.
      arithmetic: of a run with arithmetic=N, what rounding did to each operation in its first N instances; of a
        Gradient both passes.
      program: what ran. device, server_version, request_id: where. seconds: wall time by phase.
      tries: how often the call was tried until it gave this; more than 1: it was repeated.
      path: the decisions of a run with path=True, else None.
      forced: of a run with path=p, by site of the path where the run would have decided otherwise.
      kept: of a run with keep=True, its KeptRun, else None.
    """

    state: dict[str, np.ndarray]
    trajectory: dict[str, np.ndarray]
    ok: np.ndarray
    health: list[NonFinite]
    certificates: list[BirthCertificate]
    path_signature: int
    path_signatures: np.ndarray
    value: float | None
    values: np.ndarray | None
    sites: dict[str, TerminationTrace]
    events: dict[str, EventTrace]
    states_range: dict[str, StateRange]
    ranges: dict[str, RangeCounts]
    program: Program
    device: str
    server_version: str
    request_id: str
    instances: int
    steps: int
    seconds: dict[str, float]
    tries: int = 1
    halted: list[Halted] = field(default_factory=list)
    path: Path | None = None
    forced: dict[str, Forced] = field(default_factory=dict)
    margins: dict[str, np.ndarray] = field(default_factory=dict)
    absorption: dict[str, Absorption] = field(default_factory=dict)
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    kept: KeptRun | None = None

    def __repr__(self) -> str:
        return summary.of_rollout(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **{name: getattr(self, name) for name in TOLD}}

    def vjp(
        self,
        cotangents: OneCotangent = None,
        *,
        weights: Any = "rollout",
        wrt: Iterable[str] | None = None,
        reduction: str = "all",
        loops: Mapping[str, Truncated | Implicit] | None = None,
        return_tree: bool = False,
        clip_norm: float | None = None,
        on_nonfinite: str = "report",
        timeout: float | None = None,
        retry: Retry | bool | None = None,
    ) -> Gradient:
        """The gradient of this rollout, which was kept (keep=True), without simulating it again.

        Args: as for Client.gradient. The objective is the rollout's, where it names one. `weights` are the
          rollout's; others may be given, and None is ones. `timeout` is of all together, a replay and the other
          cotangents of `vjps` included.
        Returns: the bits of Client.gradient for the same work. A handle that is lost (expired, given up,
          or on another server) is replayed: the gradient is asked for as a whole, to the same bits, and
          `replayed` says so.
        Errors: those of Client.gradient; FailedPrecondition (reason NOT_KEPT) for a rollout without keep.
        """
        return self.vjps(
            [cotangents],
            weights=weights,
            wrt=wrt,
            reduction=reduction,
            loops=loops,
            return_tree=return_tree,
            clip_norm=clip_norm,
            on_nonfinite=on_nonfinite,
            timeout=timeout,
            retry=retry,
        )[0]

    def vjps(self, cotangents: Sequence[OneCotangent], **options: Any) -> list[Gradient]:
        """As `vjp`, for several cotangents: a gradient for each, in their order; None is the objective alone.
        Those that name the same states and observables are asked for in one call.

        Errors: those of `vjp`; TypeError where `cotangents` is no sequence of them, as a single one.
        """
        if self.kept is None:
            raise errors.FailedPrecondition(
                "this rollout was not kept: ask for it with keep=True", reason="NOT_KEPT"
            )
        if isinstance(cotangents, (Mapping, request.Cotangents, str)) or not isinstance(cotangents, Iterable):
            raise TypeError(
                f"cotangents: of vjps a list of them, as [{{'state': {{'x': array}}}}], not {cotangents!r}; "
                "vjp takes one"
            )
        return self.kept.vjp(self, list(cotangents), **options)


# The attributes that say what the steps did, read out of the answer where one of them is read.
TOLD = ("sites", "events", "states_range", "ranges", "absorption", "forced")
made_on_read(Rollout, TOLD)


@dataclass(frozen=True)
class TreeNode:
    """The sum of a shared gradient over the instance ids [index << level, (index + 1) << level).

    `value` has the shape of the gradient, in the accumulator of role gradient, with the loss scale.
    A node is round(left + right) of its halves; an absent half passes the other through. Those of an
    input declared weights are over whole blocks of 256 ids: level >= 8.
    """

    level: int
    index: int
    value: np.ndarray


@dataclass(frozen=True)
class AdjointSolves:
    """The linear systems of an implicit derivative, over all instances and steps.

    Attributes:
      solves, turns: how many there were, and their turns together.
      most_turns: of one solve.
      capped: solves that ended at `max_iter` above `tol`.
      residual: the largest at the end of a solve, as it was compared with `tol`; NaN where one was.
    """

    solves: int
    turns: int
    most_turns: int
    capped: int
    residual: float


@dataclass(repr=False)
class Gradient(Rollout):
    """A finished gradient: the rollout, and

    Attributes:
      initial, params, controls: gradients by input name, each with the shape of the input that was
        sent.
      connected: number of instances in which the input received a cotangent, by name. An input
        whose name occurs in two kinds stands there as "param.k", "control.k".
      gated_by: the site that in this run gated a disconnected input (connected == 0), by name; "" where none
        did.
      zero_share: of the instances that count, those whose gradient, without the loss scale, is 0 in
        every element (of an input declared weights: in every step), by name.
      magnitudes: the smallest and the largest finite magnitude that is not 0 of what an instance
        gave (to an input declared weights: in one step), before weights and without the loss scale;
        (inf, 0) where none is.
      loss_scale: the scale that was applied and divided out again. loss_scale_state: what to give
        to `Policy.dynamic_loss_scale` next; None where the scale is fixed.
      skipped: a scaled gradient was not finite, also that of an instance which is left out although its
        rollout is finite. left_out: instances left out by reduction="finite_only". counted: instances that
        count: those not left out, nor ended by an error.
      tree: with return_tree=True, of each shared input its TreeNodes, ascending by id.
      warnings: in words, what the loss scale takes beyond the format of role adjoint, runs of loops
        that did not converge although their derivative is Implicit, and solves of such a derivative
        that ended at their cap.
      adjoint_solves: by "SITE.adjoint", how those solves ended where they are by iteration or gmres.
        Empty where role gradient is narrower than f32.
      norm: with clip_norm, the norm before clipping; where it is not finite nothing was clipped.
        Else None.
      backward: BackwardTrace, or None with diagnostics="off".
      reused: of a `vjp`: the forward pass that was kept was used. False: it ran again, to the same bits.
      replayed: of a `vjp`: the server did not keep the rollout any more, and was asked for the gradient.
    """

    initial: dict[str, np.ndarray] = field(default_factory=dict)
    params: dict[str, np.ndarray] = field(default_factory=dict)
    controls: dict[str, np.ndarray] = field(default_factory=dict)
    connected: dict[str, int] = field(default_factory=dict)
    gated_by: dict[str, str] = field(default_factory=dict)
    zero_share: dict[str, float] = field(default_factory=dict)
    magnitudes: dict[str, tuple[float, float]] = field(default_factory=dict)
    loss_scale: float = 1.0
    loss_scale_state: LossScaleState | None = None
    skipped: bool = False
    left_out: int = 0
    tree: dict[str, list[TreeNode]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    adjoint_solves: dict[str, AdjointSolves] = field(default_factory=dict)
    norm: float | None = None
    backward: BackwardTrace | None = None
    reused: bool = False
    replayed: bool = False

    @property
    def counted(self) -> int:
        ended = [h for h in self.halted if h.error and (self.ok[h.instance] or not self.left_out)]
        return len(self.ok) - self.left_out - len(ended)

    def __repr__(self) -> str:
        return summary.of_gradient(self)


def check_on_nonfinite(on_nonfinite: str) -> None:
    """Raises ValueError for what is no value of the argument `on_nonfinite` of a call."""
    if on_nonfinite not in ("report", "raise"):
        raise ValueError(f"on_nonfinite {on_nonfinite!r}: one of report, raise")


def raise_if_nonfinite(result: Rollout) -> None:
    """Raises NonFiniteError, which has the result, where an instance is not ok."""
    bad = int((~result.ok).sum())
    if bad:
        first = str(result.certificates[0]) if result.certificates else "no certificate"
        raise errors.NonFiniteError(
            f"{bad} of {result.instances} instances became non-finite; {first}",
            result.certificates,
            result,
        )
