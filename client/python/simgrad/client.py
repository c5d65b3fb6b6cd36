"""The client: one connection to a simgrad server."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Iterable, Mapping, Sequence, cast, overload

import grpc

from simgrad import request, results
from simgrad.calls import Calls, checked_timeout
from simgrad.connection import check_credentials, check_message_bytes, check_target
from simgrad.hessian import HessianVector, hessian_vector
from simgrad.kept import Keep, kept_as
from simgrad.loop_derivative import Implicit, Truncated
from simgrad.path import Path
from simgrad.policy import Policy, policy_message
from simgrad.progress import ProgressCallback
from simgrad.request import Arrays, Cotangents, distinct
from simgrad.retry import Retry
from simgrad.runs import Runs
from simgrad.service import OneServer, Service
from simgrad.stream import Stream
from simgrad.uploads import least_of
from simgrad.v1 import simgrad_pb2
from simgrad.why.compare import Comparison, compare
from simgrad.why.sensitivity import Sensitivity, sensitivity
from simgrad.why.tune import Tuned, tune
from simgrad.world import World

DEFAULT_TIMEOUT = 300.0  # seconds; long enough for the longest rollout a server admits on a CPU
# The largest message that the client accepts; the server cuts its answers below its own limit
# (info().limits.max_message_bytes).
DEFAULT_MAX_MESSAGE_BYTES = 64 << 20


class Client:
    """A connection to one server.

    Args:
      target: host:port, as gRPC writes it.
      timeout: default deadline of a call, in seconds; every call has one.
      load_balancing: "pick_first": one server for all calls; "round_robin": calls go in turn to
        every address of the target, as behind a headless Service.
      max_message_bytes: largest message received; the server cuts its answers below its own
        limit. What may be sent is up to the server (info().limits.max_request_bytes): a larger
        request raises ResourceExhausted with the largest field, before it is sent.
      credentials: grpc.ChannelCredentials for TLS, for example simgrad.tls("ca.pem"); None:
        plaintext.
      token: bearer token that the server asks for, or a function that gives the one of the moment
        (tokens get rotated); None: none is sent. Without TLS it travels in the clear. Printable ASCII on
        one line, else a TypeError or ValueError: here, or for a function at each call and each try.
      upload: "auto" or True: arrays of more than 1 MiB (2**20 bytes) travel once, and programs of more than
        6 KiB: the server keeps them, and requests name them (docs/python.md). A whole number, NumPy's too:
        likewise, both of more than so many bytes, programs of no fewer than 6 KiB. False or None: everything
        travels with each request. Never changes a bit.
        With "round_robin" nothing is uploaded, as each call may go to another server.
      retry: True: a call that fails for a reason that passes (no connection, a connection that
        breaks, a server that drains or is full) is repeated within its deadline, to the same bits:
        see Retry, and RetryBudget for how often. A Retry: likewise, with limits of one's own.
        False: nothing is repeated.

    Errors: TypeError and ValueError for arguments that make no sense, with their names, before there is any connection.

    `retries` counts the repeats that this client has made; a result and an error say in `tries` how
    often their call was tried. Each repeat is logged ("simgrad", level INFO).

    Threads: may be used from many threads at once. Cost: the connection is made at the first call.
    """

    def __init__(
        self,
        target: str = "localhost:8001",
        *,
        timeout: float = DEFAULT_TIMEOUT,
        load_balancing: str = "pick_first",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | Callable[[], str] | None = None,
        upload: str | bool | int = "auto",
        retry: Retry | bool = True,
    ):
        check_target(target)
        check_credentials(credentials)
        check_message_bytes(max_message_bytes)
        if load_balancing not in ("pick_first", "round_robin"):
            raise ValueError(f"load_balancing {load_balancing!r}: one of pick_first, round_robin")
        calls = Calls(
            target,
            timeout=timeout,
            max_message_bytes=max_message_bytes,
            token=token,
            retry=retry,
        )
        least = least_of(upload)
        is_one = load_balancing == "pick_first"
        self._use(OneServer(calls, credentials, load_balancing, least if is_one else None))

    def _use(self, service: Service) -> None:
        """Completes the construction, of a Pool too: `service` is what all calls go to."""
        self._service = service
        self._calls = service.calls
        self._runs = Runs(service)

    @property
    def target(self) -> str:
        return self._calls.target

    @property
    def timeout(self) -> float:
        """Default deadline of a call, in seconds."""
        return self._calls.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._calls.timeout = checked_timeout(seconds)

    @property
    def retry(self) -> Retry | None:
        """When calls are repeated by default; None: never."""
        return self._calls.retry

    @retry.setter
    def retry(self, retry: Retry | None) -> None:
        self._calls.retry = retry

    @property
    def retries(self) -> int:
        """How many repeats all calls of this client have taken so far."""
        return self._calls.repeating.repeats

    def close(self) -> None:
        """Ends calls that are under way, and those that wait for their repeat."""
        self._service.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises TypeError: another process needs a connection of its own."""
        raise TypeError(f"a {type(self).__name__} holds connections, and cannot be pickled: make one in each process")

    # ---- What there is ----

    def info(
        self, *, timeout: float | None = None, retry: Retry | bool | None = None
    ) -> simgrad_pb2.ServerInfo:
        """Version, devices, formats, limits, worlds, presets, orders, ports."""
        return self._service.info(self._calls.terms(timeout, retry))

    def worlds(
        self, *, timeout: float | None = None, retry: Retry | bool | None = None
    ) -> list[simgrad_pb2.WorldSchema]:
        """Schemas of the built-in worlds."""
        terms = self._calls.terms(timeout, retry)
        answer = self._service.unary("ListWorlds", simgrad_pb2.ListWorldsRequest(), terms)
        return list(answer.worlds)

    def program(
        self,
        world: World,
        *,
        policy: Policy | str | None = None,
        objective: str = "",
        adjoint: bool = False,
        wrt: Iterable[str] = (),
        cotangents: Cotangents | Mapping[str, Iterable[str]] | None = None,
        cuda: bool | str = False,
        per_step: Iterable[str] = (),
        timeout: float | None = None,
        retry: Retry | bool | None = None,
    ) -> results.Program:
        """The numerical program of a world under a policy, without running it.

        Args:
          objective: include its cost.
          adjoint: include the adjoint (needs an objective or cotangents).
          wrt: of the adjoint, as for `gradient`; none: every differentiable input.
          cotangents: of the adjoint: names of what a cotangent is sent for, as {"state": ["y"],
            "trajectory": [...]}.
          cuda: include the CUDA C++ text of its kernels (Program.cuda): True for the mapping that
            a GPU would run it with, or "thread_per_instance" or "block_per_instance". Needs no GPU.
          per_step: controls and data that will be sent with a step axis; shapes that text alone.
        Returns: a Program whose `source` is the world as protobuf: World(program=source) gives the
          same bits.
        Errors: InvalidArgument, NotFound.
        """
        terms = self._calls.terms(timeout, retry)
        declared = lambda: self._runs.declared(world, terms)
        message = request.description(
            world,
            policy_message(policy),
            objective,
            adjoint=adjoint,
            wrt=[request.input_name(name, simgrad_pb2.RolloutSpec(), declared) for name in wrt],
            cotangents=cotangents,
            cuda=request.cuda_text_options(cuda, per_step),
        )
        answer = self._service.unary("DescribeProgram", message, terms)
        cuda_text = results.CudaText.of(answer.cuda) if answer.HasField("cuda") else None
        return results.Program.of(answer.program, answer.source, answer.inputs, cuda=cuda_text)

    # ---- What runs ----

    def rollout(
        self,
        world: World,
        *,
        steps: int,
        initial: Arrays | None = None,
        params: Arrays | None = None,
        controls: Arrays | None = None,
        data: Arrays | None = None,
        policy: Policy | str | None = None,
        record: Iterable[str] = (),
        path: bool | Path = False,
        diagnostics: str = "summary",
        margins: Iterable[str] = (),
        objective: str = "",
        weights: Any = None,
        on_nonfinite: str = "report",
        keep: bool | Keep = False,
        program: str = "fingerprint",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
        retry: Retry | bool | None = None,
        **options: Any,
    ) -> results.Rollout:
        """Unrolls a world.

        Args:
          world: what runs.
          steps: T >= 0.
          initial, params: arrays by name, of the declared shape (shared) or with a leading instance
            axis.
          controls, data: the same; or [instance, time, field]; or PerStep(array) for [time, field].
          policy: a Policy, the name of a preset, or None (f32).
          record: states and observables whose trajectory is returned.
          path: True: the result has all decisions of the run (`path`, a Path; ResourceExhausted or
            InvalidArgument where they take too much). A Path: the run follows it, and the result says in
            `forced` which tests would have decided otherwise. A gradient is then that of the forced
            program.
          diagnostics: "off", "summary" or "instances". Never changes a result.
          margins: sites whose margins are returned by element, whatever `diagnostics` says: tests, choices, and
            loops with a test of reals of their own, as `fixed_point` has; what stops a `while_loop` are tests with
            sites of theirs. Not with `keep`, nor of a gradient.
          objective: name of an objective whose value is returned.
          weights: [N], of the instances in `value`, the sum of their values; default ones.
          on_nonfinite: "report", or "raise" (NonFiniteError with certificates and the result).
          keep: True: the server keeps the run for `result.vjp`, as long as it has memory, for gradients by
            every real final state; or a Keep that says for which. It costs the time of a gradient's
            forward pass. A handle that is lost is replayed, to the same bits.
          program: what the answer says of the program that ran: "fingerprint", with sites and
            policy, or "text", the text as well. Without, reading result.program.text asks the
            server for it, as long as this client is open.
          progress: True for a bar, or a function of (phase, steps done, steps total), called at
            least once at the end.
          raw: low formats come back as bits (uint16, uint8) instead of as exact f32.
          timeout: deadline in seconds, of all tries together; None: the client's.
          retry: as for Client; None: the client's. Of its budget a call has the client's alone.
          options: instances, first_instance, instance_ids (the ids), seed (of random draws), stride (of state
            ranges), arithmetic=N (what rounding does to each operation in the first N instances: `arithmetic` of
            the result; N runs more), chunk_steps, checkpoint_interval. The last two never change a bit.
        Errors: InvalidArgument (with `field`), NotFound, ResourceExhausted, DeadlineExceeded,
          Cancelled, Unavailable, NonFiniteError.
        """
        return self.rollout_stream(
            world,
            steps=steps,
            initial=initial,
            params=params,
            controls=controls,
            data=data,
            policy=policy,
            record=record,
            path=path,
            diagnostics=diagnostics,
            margins=margins,
            objective=objective,
            weights=weights,
            on_nonfinite=on_nonfinite,
            keep=keep,
            program=program,
            progress=progress,
            raw=raw,
            timeout=timeout,
            retry=retry,
            **options,
        ).result

    def rollout_stream(
        self,
        world: World,
        *,
        weights: Any = None,
        on_nonfinite: str = "report",
        keep: bool | Keep = False,
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
        retry: Retry | bool | None = None,
        **spec: Any,
    ) -> Stream:
        """As `rollout`, but an iterable over blocks of diagnostics while they arrive.

        Leaving the loop cancels the request. Errors of arguments and of the token are raised at once,
        those of the server while iterating.
        """
        terms = self._calls.terms(timeout, retry)
        declared = lambda: self._runs.declared(world, terms)
        made = request.rollout_spec(world, declared, **spec)
        how = kept_as(keep)
        sends = how is not None and how.is_of_server and self._runs.can_keep(terms)
        message = request.rollout_request(
            made, weights=weights, keep=how.to_proto(made, declared) if how and sends else None
        )
        return self._runs.stream(
            "Rollout",
            world,
            message,
            terms,
            on_nonfinite=on_nonfinite,
            progress=progress,
            raw=raw,
            keep=how is not None,
        )

    @overload
    def gradient(
        self, world: World, *, steps: int, objective: str = "", **arguments: Any
    ) -> results.Gradient: ...

    @overload
    def gradient(
        self, world: World, *, steps: int, objective: list[str] | tuple[str, ...], **arguments: Any
    ) -> list[results.Gradient]: ...

    def gradient(
        self,
        world: World,
        *,
        steps: int,
        initial: Arrays | None = None,
        params: Arrays | None = None,
        controls: Arrays | None = None,
        data: Arrays | None = None,
        objective: str | list[str] | tuple[str, ...] = "",
        cotangents: Cotangents | Mapping[str, Arrays] | None = None,
        weights: Any = None,
        wrt: Iterable[str] | None = None,
        reduction: str = "all",
        loops: Mapping[str, Truncated | Implicit] | None = None,
        return_tree: bool = False,
        clip_norm: float | None = None,
        policy: Policy | str | None = None,
        record: Iterable[str] = (),
        path: bool | Path = False,
        diagnostics: str = "summary",
        on_nonfinite: str = "report",
        program: str = "fingerprint",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
        retry: Retry | bool | None = None,
        **options: Any,
    ) -> results.Gradient | list[results.Gradient]:
        """Unrolls a world and differentiates the program that ran.

        Args: those of `rollout`, and
          objective: what is differentiated, by name; or cotangents, or both. A list of names gives a
            list of results in that order, each to the bits of a call of its own: the world is simulated
            once for each (ADR 73), and `timeout` is of all together. Losses of one kept rollout share
            their simulation: `rollout(keep=True)`, then `result.vjps([...])`.
          cotangents: Cotangents(state={...}, trajectory={...}), the derivative of a loss by the
            answer.
          weights: [N], of the instances in the sum that shared inputs are differentiated for;
            default ones.
          wrt: names of inputs ("k", or "param.k" where a name is ambiguous); default: every
            differentiable input that was sent, arrays that the world sends by itself among them.
          reduction: "all", or "finite_only", which leaves out non-finite instances and counts them: those that are
            not `ok`, also where a `where` leaves the NaN or infinity out.
          loops: by site, Truncated(n) or Implicit(): how the gradient goes through a loop, other
            than by every iteration that ran.
          return_tree: also the aligned nodes of the sums over instances, which merge with those of
            other ids to the bits of one request. Those of weights (sg.Weights) do so only where the
            ranges of ids are cut at multiples of 256.
          clip_norm: the most that the Euclidean norm of all gradients together may be, without the
            loss scale; longer ones are shortened as torch.nn.utils.clip_grad_norm_ does. `norm` of
            the answer is that before. inf gives the norm and clips nothing.
        Returns: gradients with the shapes of the inputs that were sent.
        Errors: those of `rollout`; ValueError for a list without names, or with a name twice.
        """
        # An iterator has names for one call alone.
        if wrt is not None:
            wrt = request.names_of("wrt", "inputs", wrt)
        record = request.names_of("record", "states and observables", record)
        differentiate: Callable[..., Any] = partial(
            self.gradient_stream,
            world,
            steps=steps,
            initial=initial,
            params=params,
            controls=controls,
            data=data,
            cotangents=cotangents,
            weights=weights,
            wrt=wrt,
            reduction=reduction,
            loops=loops,
            return_tree=return_tree,
            clip_norm=clip_norm,
            policy=policy,
            record=record,
            path=path,
            diagnostics=diagnostics,
            on_nonfinite=on_nonfinite,
            program=program,
            progress=progress,
            raw=raw,
            retry=retry,
            **options,
        )
        if isinstance(objective, (list, tuple)):
            end = time.monotonic() + self._calls.terms(timeout).timeout
            return [
                differentiate(objective=name, timeout=max(end - time.monotonic(), 1e-3)).result
                for name in distinct(objective)
            ]
        return cast(results.Gradient, differentiate(objective=objective, timeout=timeout).result)

    def gradient_stream(
        self,
        world: World,
        *,
        cotangents: Any = None,
        weights: Any = None,
        wrt: Iterable[str] | None = None,
        reduction: str = "all",
        loops: Mapping[str, Truncated | Implicit] | None = None,
        return_tree: bool = False,
        clip_norm: float | None = None,
        on_nonfinite: str = "report",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
        retry: Retry | bool | None = None,
        **spec: Any,
    ) -> Stream:
        """As `gradient` of one objective, but an iterable over blocks of diagnostics, forward and then backward."""
        terms = self._calls.terms(timeout, retry)
        declared = lambda: self._runs.declared(world, terms)
        message = request.gradient_request(
            request.rollout_spec(world, declared, **spec),
            declared,
            cotangents=cotangents,
            weights=weights,
            wrt=wrt,
            reduction=reduction,
            loops=loops,
            return_tree=return_tree,
            clip_norm=clip_norm,
        )
        return self._runs.stream(
            "Gradient",
            world,
            message,
            terms,
            on_nonfinite=on_nonfinite,
            progress=progress,
            raw=raw,
        )

    def hessian_vector(
        self,
        world: World,
        vector: Mapping[str, Arrays],
        *,
        initial: Arrays | None = None,
        params: Arrays | None = None,
        controls: Arrays | None = None,
        step: float | None = None,
        tries: int = 4,
        **options: Any,
    ) -> HessianVector:
        """The Hessian of an objective times a vector, by differences of gradients along one path.

        Args: those of `gradient`, and
          vector: the direction in which inputs move, by group and name, each of the shape that is sent:
            {"params": {"k": 1.0}}.
          step: h; default: eps^(1/3) max(|x|, 1) / max|v|, a power of two, eps of role dynamics.
          tries: where x + h v and x - h v cannot be made to follow the path of x (it is too large or has
            decisions that cannot be recorded, roundings are random): how many steps are tried, each an
            eighth of the one before, until they take it by themselves in every instance.
          path: a Path that all three follow; default: that of x.
        Accuracy: h^2 times a third of the third derivative by v, and eps |g| / h. In f64 with the
          default step about ten digits; ask for policy="f64" where the curvature matters.
        Errors: those of `gradient`; ValueError for a vector that does not fit what is sent.
        """
        inputs = {"initial": initial, "params": params, "controls": controls}
        return hessian_vector(self, world, vector, inputs, step, tries, **options)

    # ---- Why ----

    def compare(
        self,
        world: World,
        *,
        steps: int,
        policies: Sequence[Policy | str] | Mapping[str, Policy | str] = ("f64", "f32"),
        orders: Sequence[str] = (),
        configs: Sequence[Mapping[str, Any]] = (),
        worlds: Mapping[str, World] | None = None,
        gradient: bool = True,
        split: bool = False,
        progress: bool | ProgressCallback = False,
        timeout: float | None = None,
        retry: Retry | bool | None = None,
        **arguments: Any,
    ) -> Comparison:
        """The same work in several variants: where their paths part, by which margins, and what that does
        to states, value and gradients. `print(result.why)` says it in words.

        Args:
          policies: by list, or by the names they shall have. The first is the reference; the others are
            compared with it.
          orders: further variants: the reference with another order of sums in every role.
          configs: further variants: the reference with other numbers in the world's configuration, such as
            {"tol": 1e-4}, and another number of steps under "steps".
          worlds: further variants by name: the reference in another world with the same inputs.
          gradient: False: rollouts are compared.
          split: the error of each gradient is divided into rounding and path (docs/why.md), with shared inputs
            sent once for each instance.
          progress: as for `rollout`; steps of all calls together, forward and adjoint each.
          timeout: of all calls together, in seconds; None: the client's.
          arguments: others of `gradient` (of `rollout`, where gradient=False): initial, params, objective, ...
        Cost: one call, with inputs once (docs/why.md); two more for each variant but the reference with split=True, where
          results have their paths; for each pair that parts two to four runs of one instance up to the fork; and one or two
          where instances ended with an error, or were stopped, in one run alone.
        Errors: those of `gradient`, under the name of a variant; ValueError for variants that have one name, or cannot
          be split; Unimplemented (reason NO_PATH) for split=True where no path can be recorded.
        """
        return compare(
            self,
            world,
            steps=steps,
            policies=policies,
            orders=orders,
            configs=configs,
            worlds=worlds,
            gradient=gradient,
            divide=split,
            timeout=self._calls.terms(timeout).timeout,
            retry=retry,
            progress=progress,
            **arguments,
        )

    def sensitivity(
        self,
        world: World,
        *,
        steps: int,
        policy: Policy | str = "f32",
        runs: int = 16,
        orders: bool | Sequence[str] = True,
        stochastic: bool = True,
        gradient: bool = True,
        progress: bool | ProgressCallback = False,
        timeout: float | None = None,
        retry: Retry | bool | None = None,
        **arguments: Any,
    ) -> Sensitivity:
        """Runs that differ in rounding alone: which test is a knife edge, and which digits of value and
        gradient are more than rounding. `print(result)` is one sorted table.

        Args:
          runs: k, beside the run of the policy itself.
          orders: True: run i, from 1 on, sums in the order shuffled(i), in every role; or a list of orders,
            of which run i has the i-th: there are no more runs than orders.
          stochastic: run i rounds what is cast into a role up or down by chance, drawn by seed i.
          gradient: False: rollouts are run.
          progress, timeout, arguments: as for `compare`.
        Cost: as of `compare`: k + 1 runs, and for each that parts two to four of one instance up to the fork.
        Errors: those of `gradient`; ValueError for stochastic=True in a world that draws random numbers, for
          its draws would change, and without orders under a policy whose casts have no choice (f64).
        """
        return sensitivity(
            self,
            world,
            steps=steps,
            policy=policy,
            runs=runs,
            orders=orders,
            stochastic=stochastic,
            gradient=gradient,
            timeout=self._calls.terms(timeout).timeout,
            retry=retry,
            progress=progress,
            **arguments,
        )

    def tune(
        self,
        world: World,
        *,
        steps: int,
        bound: float,
        keep: float = 0.99,
        formats: Sequence[str] = ("f64", "f32", "bf16"),
        reference: Policy | str = "f64",
        roles: Iterable[str] | None = None,
        sites: Iterable[str] | None = None,
        cost: Mapping[str, float] | None = None,
        progress: bool | ProgressCallback = False,
        timeout: float | None = None,
        retry: Retry | bool | None = None,
        **arguments: Any,
    ) -> Tuned:
        """Searches the cheapest formats with which instances keep their path signature and gradients their accuracy.

        A policy holds if a share of at least `keep` of the instances has the path signature of the reference
        (loops and named tests decide the same), no input's gradient is off by more than `bound`, as
        |g - g_ref| / |g_ref| over all elements, every instance is finite (`ok`, with finite last states and
        values) where that of the reference is, and no error ends one. Guards do not count: comparisons with 0, a number up to 1e-5 or an
        infinity whose outcome only a `where` or a conversion to a real reads. Cost: the sum of weight * bits over
        roles and sites. The search (simgrad/why/tune.py) uses the instances of even index; those of odd index
        confirm what it found. The result is 1-minimal: no role and no site alone can have a format of fewer bits.

        Args:
          formats: from which is chosen; the first is that with which every role and site begins.
          reference: the policy whose path signatures and gradients are right.
          roles, sites: which may be lowered, one name or several; None: all that the world's operations
            name. The others stay as in `reference`.
          cost: by role or site; 1 where none is given.
          progress, timeout, arguments: as for `compare`.
        Cost: a gradient of half the instances for each policy tried: at least one for each role and site,
          at most the number of formats times theirs for each pass; and one more where an error ends some of its
          instances.
        Errors: those of `gradient`; ValueError where the first format fails already, where the reference has no
          finite gradient of an instance, or there is one instance.
        """
        return tune(
            self,
            world,
            steps=steps,
            bound=bound,
            keep=keep,
            formats=formats,
            reference=reference,
            roles=roles,
            sites=sites,
            cost=cost,
            timeout=self._calls.terms(timeout).timeout,
            retry=retry,
            progress=progress,
            **arguments,
        )
