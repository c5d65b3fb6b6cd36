"""The client: one connection to a simgrad server."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, cast

import grpc

from simgrad import errors, request, results
from simgrad.assembly import Assembly
from simgrad.policy import Policy, policy_message
from simgrad.progress import ProgressCallback, observer_of
from simgrad.request import Arrays, Cotangents
from simgrad.stream import Stream
from simgrad.v1 import simgrad_pb2, simgrad_pb2_grpc
from simgrad.world import World

DEFAULT_TIMEOUT = 300.0  # seconds; long enough for the longest rollout a server admits on a CPU
# What this side accepts; the server cuts its answers below its own limit
# (info().limits.max_message_bytes).
DEFAULT_MAX_MESSAGE_BYTES = 64 << 20
# Every server takes requests up to this size (docs/protocol.md); before a larger one it is asked.
ALWAYS_TAKEN_BYTES = 64 << 10


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
        (tokens get rotated); None: none is sent. Without TLS it travels in the clear.

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
    ):
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout {timeout!r}: a positive, finite number of seconds")
        if load_balancing not in ("pick_first", "round_robin"):
            raise ValueError(f"load_balancing {load_balancing!r}: one of pick_first, round_robin")
        service_config = f'{{"loadBalancingConfig": [{{"{load_balancing}": {{}}}}]}}'
        options = [
            ("grpc.service_config", service_config),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", max_message_bytes),
        ]
        self.target = target
        self.timeout = timeout
        self._token = token
        self._channel = (
            grpc.secure_channel(target, credentials, options)
            if credentials
            else grpc.insecure_channel(target, options)
        )
        stub: Any = simgrad_pb2_grpc.SimgradStub  # generated without types
        self._stub = stub(self._channel)
        self._max_message_bytes = max_message_bytes
        self._max_request_bytes: int | None = None  # the server's, once it was asked
        self._declarations: dict[bytes, Mapping[tuple[int, str], tuple[int, int]]] = {}

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- What there is ----

    def info(self, *, timeout: float | None = None) -> simgrad_pb2.ServerInfo:
        """Version, devices, formats, limits, worlds, presets, orders, ports."""
        answer: simgrad_pb2.ServerInfo = self._call(
            self._stub.GetServerInfo, simgrad_pb2.GetServerInfoRequest(), timeout
        )
        return answer

    def worlds(self, *, timeout: float | None = None) -> list[simgrad_pb2.WorldSchema]:
        """Schemas of the built-in worlds."""
        return list(
            self._call(self._stub.ListWorlds, simgrad_pb2.ListWorldsRequest(), timeout).worlds
        )

    def program(
        self,
        world: World,
        *,
        policy: Policy | str | None = None,
        objective: str = "",
        adjoint: bool = False,
        cuda: bool | str = False,
        per_step: Iterable[str] = (),
        timeout: float | None = None,
    ) -> results.Program:
        """The numerical program of a world under a policy, without running it.

        Args:
          objective: include its cost.
          adjoint: include the adjoint for every differentiable input (needs an objective).
          cuda: include the CUDA C++ text of its kernels (Program.cuda): True for the mapping that
            a GPU would run it with, or "thread_per_instance" or "block_per_instance". Needs no GPU.
          per_step: controls and data that will be sent with a step axis; shapes that text alone.
        Returns: a Program whose `source` is the world as protobuf: World(program=source) gives the
          same bits.
        Errors: InvalidArgument, NotFound.
        """
        answer = self._call(
            self._stub.DescribeProgram,
            simgrad_pb2.DescribeProgramRequest(
                world=world.to_proto(),
                policy=policy_message(policy),
                objective=objective,
                adjoint=adjoint,
                cuda=request.cuda_text_options(cuda, per_step),
            ),
            timeout,
        )
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
        diagnostics: str = "summary",
        objective: str = "",
        on_nonfinite: str = "report",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
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
          diagnostics: "off", "summary" or "instances". Never changes a result.
          objective: name of an objective whose value is returned.
          on_nonfinite: "report", or "raise" (NonFiniteError with certificates and the result).
          progress: True for a bar, or a function of (phase, steps done, steps total), called at
            least once at the end.
          raw: low formats come back as bits (uint16, uint8) instead of as exact f32.
          timeout: deadline in seconds, None: the client's.
          options: instances, first_instance, instance_ids (the ids), stride (of state ranges),
            chunk_steps, checkpoint_interval. The last two never change a bit.
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
            diagnostics=diagnostics,
            objective=objective,
            on_nonfinite=on_nonfinite,
            progress=progress,
            raw=raw,
            timeout=timeout,
            **options,
        ).result

    def rollout_stream(
        self,
        world: World,
        *,
        on_nonfinite: str = "report",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
        **spec: Any,
    ) -> Stream:
        """As `rollout`, but an iterable over blocks of diagnostics while they arrive.

        Leaving the loop cancels the request. Errors are raised while iterating.
        """
        message = simgrad_pb2.RolloutRequest(
            spec=request.rollout_spec(world, lambda: self._declared(world, timeout), **spec)
        )
        return self._stream(self._stub.Rollout, message, on_nonfinite, progress, raw, timeout)

    def gradient(
        self,
        world: World,
        *,
        steps: int,
        initial: Arrays | None = None,
        params: Arrays | None = None,
        controls: Arrays | None = None,
        data: Arrays | None = None,
        objective: str = "",
        cotangents: Cotangents | Mapping[str, Arrays] | None = None,
        weights: Any = None,
        wrt: Iterable[str] | None = None,
        reduction: str = "all",
        policy: Policy | str | None = None,
        record: Iterable[str] = (),
        diagnostics: str = "summary",
        on_nonfinite: str = "report",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> results.Gradient:
        """Unrolls a world and differentiates the program that ran.

        Args: those of `rollout`, and
          objective: what is differentiated, by name; or cotangents, or both.
          cotangents: Cotangents(state={...}, trajectory={...}), the derivative of a loss by the
            answer.
          weights: [N], of the instances in the sum that shared inputs are differentiated for;
            default ones.
          wrt: names of inputs ("k", or "param.k" where a name is ambiguous); default: every
            differentiable input that was sent.
          reduction: "all", or "finite_only", which leaves out non-finite instances and counts them.
        Returns: gradients with the shapes of the inputs that were sent.
        Errors: those of `rollout`.
        """
        stream = self.gradient_stream(
            world,
            steps=steps,
            initial=initial,
            params=params,
            controls=controls,
            data=data,
            objective=objective,
            cotangents=cotangents,
            weights=weights,
            wrt=wrt,
            reduction=reduction,
            policy=policy,
            record=record,
            diagnostics=diagnostics,
            on_nonfinite=on_nonfinite,
            progress=progress,
            raw=raw,
            timeout=timeout,
            **options,
        )
        return cast(results.Gradient, stream.result)

    def gradient_stream(
        self,
        world: World,
        *,
        cotangents: Any = None,
        weights: Any = None,
        wrt: Iterable[str] | None = None,
        reduction: str = "all",
        on_nonfinite: str = "report",
        progress: bool | ProgressCallback = False,
        raw: bool = False,
        timeout: float | None = None,
        **spec: Any,
    ) -> Stream:
        """As `gradient`, but an iterable over blocks of diagnostics, forward and then backward."""
        declared = lambda: self._declared(world, timeout)
        message = request.gradient_request(
            request.rollout_spec(world, declared, **spec),
            declared,
            cotangents=cotangents,
            weights=weights,
            wrt=wrt,
            reduction=reduction,
        )
        return self._stream(self._stub.Gradient, message, on_nonfinite, progress, raw, timeout)

    # ---- How ----

    def _stream(
        self,
        method: Any,
        message: Any,
        on_nonfinite: str,
        progress: bool | ProgressCallback,
        raw: bool,
        timeout: float | None,
    ) -> Stream:
        if on_nonfinite not in ("report", "raise"):
            raise ValueError(f"on_nonfinite {on_nonfinite!r}: one of report, raise")
        self._check_size(message, timeout)
        call = method(
            message,
            timeout=self._deadline(timeout),
            wait_for_ready=False,
            metadata=self._metadata(),
        )
        finish = _raise_if_nonfinite if on_nonfinite == "raise" else lambda result: None
        return Stream(call, Assembly(raw), observer_of(progress), finish, self._error)

    def _call(self, method: Any, message: Any, timeout: float | None) -> Any:
        self._check_size(message, timeout)
        try:
            return method(message, timeout=self._deadline(timeout), metadata=self._metadata())
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _error(self, error: grpc.RpcError) -> errors.SimgradError:
        return errors.from_rpc_error(error, self._max_message_bytes)

    def _check_size(self, message: Any, timeout: float | None) -> None:
        size = message.ByteSize()
        if size <= ALWAYS_TAKEN_BYTES:
            return
        if self._max_request_bytes is None:
            self._max_request_bytes = self.info(timeout=timeout).limits.max_request_bytes
        if self._max_request_bytes:  # 0: a server that does not say; it will answer itself
            request.check_size(message, size, self._max_request_bytes)

    def _metadata(self) -> list[tuple[str, str]]:
        if self._token is None:
            return []
        token = self._token() if callable(self._token) else self._token
        if not token.isascii() or not token.isprintable():
            raise ValueError("token: must be printable ASCII on one line; is it a whole file?")
        return [("authorization", f"Bearer {token}")]

    def _deadline(self, timeout: float | None) -> float:
        if timeout is None:
            return self.timeout
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout {timeout!r}: a positive, finite number of seconds")
        return timeout

    def _declared(
        self, world: World, timeout: float | None
    ) -> Mapping[tuple[int, str], tuple[int, int]]:
        """Declared rank and type of the inputs of a world, asked once for each configuration."""
        if world.program is not None:
            return request.declarations_of(world.program)
        key = world.to_proto().SerializeToString(deterministic=True)
        if key not in self._declarations:
            self._declarations[key] = request.declarations_of(
                self.program(world, timeout=timeout).source
            )
        return self._declarations[key]


def _raise_if_nonfinite(result: results.Rollout) -> None:
    bad = int((~result.ok).sum())
    if bad:
        first = str(result.certificates[0]) if result.certificates else "no certificate"
        raise errors.NonFiniteError(
            f"{bad} of {result.instances} instances became non-finite; {first}",
            result.certificates,
            result,
        )
