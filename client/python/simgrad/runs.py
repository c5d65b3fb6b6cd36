"""Rollouts and gradients, from their messages to their results."""

from __future__ import annotations

import collections
import threading
from dataclasses import replace
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence, cast

from simgrad import arithmetic, errors, named_programs, request, results
from simgrad.assembly import Ask, Assembly
from simgrad.calls import Terms
from simgrad.compared import CompareAssembly, Compared
from simgrad.kept import KeptRun
from simgrad.on_read import unread
from simgrad.path import path_use
from simgrad.policy import policy_message
from simgrad.program_text import unreadable
from simgrad.progress import ProgressCallback, observer_of
from simgrad.repeating import Call
from simgrad.service import Service
from simgrad.stream import Finish, Start, Stream
from simgrad.v1 import policy_pb2, simgrad_pb2
from simgrad.variants import Request, compare_request, reference_of
from simgrad.world import World

_MOST_DECLARED = 256  # configurations of built-in worlds whose declarations are remembered


class Together(NamedTuple):
    """Several runs as one request.

    Attributes:
      message: the request. has_paths: whether its answer has the paths of the runs.
      worlds, asks: by run, its world, and as for Assembly.
    """

    message: simgrad_pb2.CompareRequest
    has_paths: bool
    worlds: Sequence[World]
    asks: Sequence[Ask]


class Runs:
    """Starts the runs of one client, and gives their results the form that their world and caller want.

    Threads: safe.
    """

    def __init__(self, service: Service):
        self._service = service
        self.calls = service.calls
        self._declarations: collections.OrderedDict[bytes, request.Declared] = collections.OrderedDict()
        self._lock = threading.Lock()

    def declared(self, world: World, terms: Terms) -> request.Declared:
        """The declarations of the inputs of a world, asked once for each of the configurations used last."""
        if world.has_program:
            return request.declarations_of(world.to_proto().program)
        key = world.to_proto().SerializeToString(deterministic=True)
        with self._lock:
            declared = self._declarations.get(key)
            if declared is not None:
                self._declarations.move_to_end(key)
                return declared
        message = request.description(world, policy_message(None), "")
        answer = self._service.unary("DescribeProgram", message, terms)
        declared = request.declarations_of(answer.source)
        with self._lock:
            self._declarations[key] = declared
            if len(self._declarations) > _MOST_DECLARED:
                self._declarations.popitem(last=False)
        return declared

    def can_keep(self, terms: Terms) -> bool:
        """Whether the server keeps runs: an older one refuses fields that it does not know."""
        return self._service.limits(terms).max_kept_bytes > 0

    def stream(
        self,
        method: str,
        world: World,
        message: Any,
        terms: Terms,
        *,
        on_nonfinite: str = "report",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        keep: bool = False,
    ) -> Stream:
        """The answer to a rollout or a gradient while it arrives.

        Args:
          keep: whether the result has a KeptRun.
          others: as for Client.rollout.
        """
        results.check_on_nonfinite(on_nonfinite)
        self._check_arithmetic(message, terms)

        def finish(result: results.Rollout, kept: simgrad_pb2.KeptRun) -> None:
            if keep:
                result.kept = KeptRun(self, world, message, kept, raw)
            _finish(result, world)
            if on_nonfinite == "raise":
                results.raise_if_nonfinite(result)

        call = self.calls.new(message, terms)
        declared = lambda: self.declared(world, terms)
        start = self._service.start(method, message, call, terms, declared)
        return self._read(world, message, call, start, finish, progress, raw)

    def together(
        self, gradient: bool, asked: Sequence[tuple[World, Mapping[str, Any]]], terms: Terms, sends_paths: bool
    ) -> Together | None:
        """Several runs as one request of Compare, the first of which is the reference.

        Args:
          gradient: whether they are gradients.
          asked: of each run, its world and the other arguments of Client.gradient or Client.rollout. `path`: whether
            it is recorded, which is that of all.
          sends_paths: whether the answer has the paths.
        Returns: None where the server takes no such request: it has no Compare, or of fewer variants, or it is too
          large; and where no such request says what differs.
        Errors: Unimplemented where the server is older than what is asked of it.
        """
        if not 0 < len(asked) - 1 <= self._service.most_variants(terms):
            return None
        asks = []

        def requests() -> Iterator[Request]:
            for world, arguments in asked:
                declared = lambda: self.declared(world, terms)
                request_of_run = request.request_of(world, declared, gradient, arguments)
                asks.append(self._asking(world, request_of_run))
                yield request_of_run

        message = compare_request(requests(), sends_paths)
        limit = self._service.limits(terms).max_request_bytes
        if message is None or 0 < limit < named_programs.size_of(message):
            return None
        self._check_arithmetic(message, terms)
        return Together(message, sends_paths, [world for world, _ in asked], asks)

    def compare(
        self,
        together: Together,
        terms: Terms,
        observer: ProgressCallback,
        begun: Callable[[int], None],
        on_nonfinite: str = "report",
    ) -> Compared:
        """Asks for several runs. `observer`: of the run of which `begun` was told last. Errors: those of a gradient."""
        results.check_on_nonfinite(on_nonfinite)
        worlds = iter(together.worlds)
        made: list[CompareAssembly] = []

        def assembly() -> Assembly:
            made[:] = [CompareAssembly(together.asks, together.has_paths, begun)]
            return made[0]

        def finish(result: results.Rollout, kept: simgrad_pb2.KeptRun) -> None:
            _finish(result, next(worlds))
            if on_nonfinite == "raise":
                results.raise_if_nonfinite(result)

        call = self.calls.new(together.message, terms)
        start = self._service.start("Compare", together.message, call, terms, lambda: {})
        stream = Stream(call, start, assembly, observer, finish, self.calls.repeating.clock)
        return Compared(stream.results, made[0].differs)

    def vjp(
        self,
        world: World,
        kept: KeptRun,
        asked: Sequence[simgrad_pb2.GradientRequest],
        terms: Terms,
    ) -> list[results.Gradient]:
        """The gradients of a kept run that `asked` asks for; their specs have no tensors."""

        def read(
            message: simgrad_pb2.GradientRequest, call: Call, start: Start
        ) -> list[results.Gradient]:
            finish = lambda result, kept: _finish(result, world)
            stream = self._read(world, message, call, start, finish)
            return cast("list[results.Gradient]", stream.results)

        declared = lambda: self.declared(world, terms)
        return self._service.vjp(kept, asked, terms, declared, read)

    def _read(
        self,
        world: World,
        message: Any,
        call: Call,
        start: Start,
        finish: Finish,
        progress: bool | ProgressCallback = False,
        raw: bool = False,
    ) -> Stream:
        ask = self._asking(world, message)
        return Stream(
            call,
            start,
            lambda: Assembly(raw, ask),
            observer_of(progress),
            finish,
            self.calls.repeating.clock,
        )

    def _check_arithmetic(self, message: Any, terms: Terms) -> None:
        """Raises Unimplemented, before anything runs, where operations are asked for that the server does not look at."""
        instances = reference_of(message).spec.diagnostics.arithmetic_instances
        if instances:
            arithmetic.check_known(self._service.limits(terms), instances)

    def _asking(self, world: World, message: Any) -> Ask:
        """Asks for the program of a request, later: keeps what shapes it, and none of its tensors."""
        policy = policy_pb2.Policy()
        policy.CopyFrom(message.spec.policy)
        objective = message.spec.objective
        adjoint = isinstance(message, simgrad_pb2.GradientRequest)
        loops = list(message.loops) if adjoint else []
        use = path_use(message.spec.path)
        names: dict[str, list[str]] = {"state": [], "trajectory": []}
        for sent in message.cotangents if adjoint else ():
            names["state"] += [t.name for t in sent.final_state]
            names["trajectory"] += [t.name for t in sent.trajectory]

        def ask(wrt: Sequence[simgrad_pb2.InputName]) -> simgrad_pb2.ProgramInfo:
            if self.calls.repeating.closed:
                raise unreadable("CLIENT_CLOSED", "and this client is closed")
            description = request.description(
                world,
                policy,
                objective,
                adjoint=adjoint,
                wrt=wrt,
                cotangents=names,
                loops=loops,
                path=use,
            )
            try:
                answer = self._service.unary("DescribeProgram", description, self.calls.terms())
            except errors.SimgradError as error:
                if error.reason == "LIMIT_EXCEEDED":
                    error.args = (f'{error}; program="text" brings the text with the answer, in pieces',)
                raise
            program: simgrad_pb2.ProgramInfo = answer.program
            return program

        return ask


def _finish(result: results.Rollout, world: World) -> None:
    _name_lines(result, world)
    world.shaped(result)


def _name_lines(result: results.Rollout, world: World) -> None:
    """Tells the sites and halts of a program of one's own which line they are."""
    if not world.has_program:
        return
    ran = world.to_proto()

    def name(told: Mapping[str, Any]) -> None:
        lines = world.lines_of_sites(ran)
        for group in ("sites", "events"):
            for site, trace in told[group].items():
                trace.line = lines.get(site, "")

    unread(result, "sites").afterwards(name)
    if result.halted:
        lines, said = world.lines_of_sites(ran), world.halt_messages
        result.halted = [
            replace(h, line=lines.get(h.halt, ""), message=said.get(h.halt, "")) for h in result.halted
        ]
