"""A rollout that its server keeps, so that it can be reversed, as a rule without simulating again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Mapping, Sequence, cast

import numpy as np

from simgrad import errors, named_programs, request, results
from simgrad.loop_derivative import Implicit, Truncated
from simgrad.on_read import unread
from simgrad.v1 import simgrad_pb2

if TYPE_CHECKING:
    from simgrad.calls import Terms
    from simgrad.request import Arrays, Cotangents
    from simgrad.runs import Runs
    from simgrad.world import World

    OneCotangent = Cotangents | Mapping[str, Arrays] | None


def is_gone(error: errors.SimgradError) -> bool:
    """Whether it says that a server keeps a run no more."""
    return isinstance(error, errors.NotFound) and error.reason == "TAPE_GONE"


_KEPT_NAMES = {"wrt": "inputs", "state": "states", "trajectory": "states and observables"}


@dataclass(frozen=True)
class Keep:
    """The reversals that a rollout is kept for. Another `vjp` gives the same bits, but may simulate again.

    Attributes:
      wrt: names of inputs, as for Client.gradient; none: every differentiable input that was sent.
      state: names of final states that cotangents will be sent for; none: every real state.
      trajectory: names of states and observables that cotangents of their trajectories will be sent for.
      loops: as for Client.gradient.
    One name may stand alone, as text.
    Errors, of the rollout: TypeError, with the field, for what are no names.
    """

    wrt: str | Sequence[str] = ()
    state: str | Sequence[str] = ()
    trajectory: str | Sequence[str] = ()
    loops: Mapping[str, Truncated | Implicit] | None = None
    is_of_server: ClassVar[bool] = True  # whether the server is asked to keep the run

    def to_proto(
        self, spec: simgrad_pb2.RolloutSpec, declared: request.Declarations
    ) -> simgrad_pb2.KeepOptions:
        names = {
            field: request.names_of(f"Keep.{field}", what, getattr(self, field)) for field, what in _KEPT_NAMES.items()
        }
        return simgrad_pb2.KeepOptions(
            wrt=[request.input_name(name, spec, declared) for name in names["wrt"]],
            cotangent_final_state=names["state"],
            cotangent_trajectory=names["trajectory"],
            loops=request.loop_derivatives(self.loops),
        )


class Sent(Keep):
    """The client alone keeps what it sent, as for a run with margins, which a server does not keep."""

    is_of_server = False


def kept_as(keep: bool | Keep | None) -> Keep | None:
    """Reads the `keep` argument of a rollout. Gives None where nothing is to be kept."""
    if isinstance(keep, (bool, np.bool_)):
        return Keep() if keep else None
    if keep is None or isinstance(keep, Keep):
        return keep
    raise TypeError(f"keep is True or a simgrad.Keep, not {keep!r}")


class KeptRun:
    """A rollout under the handle of its server, and what asks for its gradient where that is lost.

    Attributes:
      handle: what the server knows it by; empty where it keeps nothing (no memory was left, or it is of
        an older version). It is good for the caller that kept the run, alone. That of a Pool names the
        server of each shard.
      seconds: how long after its last use the server keeps it, at most.
      spec: the work, with its tensors: a replay sends it again.
      weights: of the rollout, [N]; None: ones.
    """

    def __init__(
        self,
        runs: Runs,
        world: World,
        sent: simgrad_pb2.RolloutRequest,
        answer: simgrad_pb2.KeptRun,
        raw: bool,
    ):
        self.handle = answer.handle
        self.seconds = answer.seconds
        self._runs = runs
        self._world = world
        self.spec = sent.spec
        self._programs = named_programs.held(sent)
        self.weights = np.array(sent.weights) if sent.weights else None
        self._raw = raw
        self._names = _without_tensors(sent.spec)

    def __repr__(self) -> str:
        return f"KeptRun(handle={self.handle!r}, seconds={self.seconds:g})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A rollout that is pickled is kept no more where it arrives."""
        return type(None), ()

    def __copy__(self) -> KeptRun:
        return self

    def __deepcopy__(self, memo: Any) -> KeptRun:
        return self

    def vjp(
        self,
        rollout: results.Rollout,
        cotangents: Sequence[OneCotangent],
        *,
        weights: Any = "rollout",
        wrt: Iterable[str] | None = None,
        reduction: str = "all",
        loops: Mapping[str, Truncated | Implicit] | None = None,
        return_tree: bool = False,
        clip_norm: float | None = None,
        on_nonfinite: str = "report",
        timeout: float | None = None,
        retry: Any = None,
    ) -> list[results.Gradient]:
        """One gradient for each cotangent; see results.Rollout.vjp."""
        results.check_on_nonfinite(on_nonfinite)
        if isinstance(weights, str) and weights == "rollout":
            weights = self.weights
        terms = self._runs.calls.terms_together(timeout, retry)
        declared = lambda: self._runs.declared(self._world, terms)
        asked = [
            request.gradient_request(
                self._names,
                declared,
                cotangents=cotangent,
                weights=weights,
                wrt=wrt,
                reduction=reduction,
                loops=loops,
                return_tree=return_tree,
                clip_norm=clip_norm,
            )
            for cotangent in cotangents
        ]
        # One call has cotangents of the same names.
        calls: dict[Any, list[int]] = {}
        for i, message in enumerate(asked):
            calls.setdefault(_names_in(message), []).append(i)
        found: dict[int, results.Gradient] = {}
        for names, places in calls.items():
            together = [asked[i] for i in places]
            if not any(names):  # the objective alone, which is one gradient however often it is asked for
                together = together[:1]
            gradients = self._found(together, terms)
            if gradients is not None and not any(names):
                gradients *= len(places)
            for k, i in enumerate(places):
                if gradients is None:
                    found[i] = self._replayed(asked[i], terms)
                else:
                    found[i] = _with_rollout(gradients[k], rollout)
                if on_nonfinite == "raise":
                    results.raise_if_nonfinite(found[i])
        return [found[i] for i in range(len(asked))]

    def gradient(
        self,
        *,
        objective: str,
        on_nonfinite: str = "report",
        timeout: float | None = None,
        retry: Any = None,
        **asked: Any,
    ) -> results.Gradient:
        """The gradient of the same work by another loss: it runs again from what was sent, and records nothing.

        Args:
          asked: cotangents, weights, wrt, reduction and loops, as for Client.gradient.
        """
        terms = self._runs.calls.terms(timeout, retry)
        declared = lambda: self._runs.declared(self._world, terms)
        message = request.gradient_request(self._names, declared, **asked)
        message.spec.CopyFrom(self.spec)
        message.spec.objective = objective
        message.spec.ClearField("record")
        message.spec.diagnostics.ClearField("margins")
        stream = self._runs.stream("Gradient", self._world, message, terms, on_nonfinite=on_nonfinite, raw=self._raw)
        return cast(results.Gradient, stream.result)

    def _found(
        self, asked: Sequence[simgrad_pb2.GradientRequest], terms: Terms
    ) -> list[results.Gradient] | None:
        """The gradients of the run that the server keeps; None where it keeps it no more."""
        if not self.handle:
            return None
        try:
            return self._runs.vjp(self._world, self, asked, terms)
        except errors.NotFound as error:
            if not is_gone(error):
                raise
            self.handle = ""  # it does not come back
            return None

    def _replayed(self, message: simgrad_pb2.GradientRequest, terms: Terms) -> results.Gradient:
        message.spec.CopyFrom(self.spec)
        stream = self._runs.stream("Gradient", self._world, message, terms, raw=self._raw)
        gradient = cast(results.Gradient, stream.result)
        gradient.replayed = True
        return gradient


def _names_in(message: simgrad_pb2.GradientRequest) -> tuple[frozenset[str], frozenset[str]]:
    """The states and observables that the cotangents of a request name."""
    sent = message.cotangents
    return (
        frozenset(t.name for c in sent for t in c.final_state),
        frozenset(t.name for c in sent for t in c.trajectory),
    )


def _without_tensors(spec: simgrad_pb2.RolloutSpec) -> simgrad_pb2.RolloutSpec:
    """The part of a spec that names the inputs that were sent, and shapes the program."""
    names = simgrad_pb2.RolloutSpec(world=spec.world, policy=spec.policy, objective=spec.objective)
    names.path.record = spec.path.record
    names.path.forced.structure = spec.path.forced.structure
    if not spec.path.HasField("forced"):
        names.path.ClearField("forced")
    for group in ("initial", "params", "controls"):
        getattr(names, group).extend(
            simgrad_pb2.NamedTensor(name=sent.name) for sent in getattr(spec, group)
        )
    return names


def _with_rollout(gradient: results.Gradient, rollout: results.Rollout) -> results.Gradient:
    """With what the rollout told, which a Vjp does not tell again."""
    return replace(
        gradient,
        state=rollout.state,
        trajectory=rollout.trajectory,
        path_signatures=rollout.path_signatures,
        arithmetic=rollout.arithmetic + gradient.arithmetic.of_phase("adjoint"),
        path=rollout.path,
        **{name: unread(rollout, name) for name in results.TOLD},
    )
