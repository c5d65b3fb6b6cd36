"""Channels to servers."""

from __future__ import annotations

import re
from typing import Any, Iterator

import grpc
import grpc.experimental

CONNECTION_OPTIONS = [
    # How often gRPC tries to connect: a server that is back is found within a second or so.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A server that froze, or whose machine is gone, is found within half a minute, and its calls are repeated. Servers allow
    # a ping every five seconds.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # of later gRPC
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own repeats are not needed beside ours, and 1.51's lose calls: one that is made while its
    # connection ends may never return, not even at its deadline.
    ("grpc.enable_retries", 0),
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
]


def check_target(target: Any, name: str = "target") -> None:
    """Raises TypeError or ValueError for what is no name of a server."""
    if not isinstance(target, str):
        raise TypeError(f'{name} is text, "host:port", not {target!r}')
    if not target.strip() or (re.search(r"\s", target) and not target.startswith("unix")):
        raise ValueError(f'{name} {target!r}: the name of a server, as "host:port", without spaces')
    if address := re.match(r"https?://([^/]*)", target, re.IGNORECASE):
        said = f'"{address[1]}"' if address[1] else '"host:port"'
        raise ValueError(f"{name} {target!r}: gRPC has no address of this form; {said}, and TLS by credentials=simgrad.tls(...)")


def check_credentials(credentials: Any) -> None:
    """Raises TypeError for what is not credentials of gRPC's."""
    if credentials is not None and not isinstance(credentials, grpc.ChannelCredentials):
        raise TypeError(
            "credentials: simgrad.tls(...), another grpc.ChannelCredentials, or None for plaintext, not "
            f"{type(credentials).__name__}"
        )


def check_message_bytes(most: Any) -> None:
    """Raises TypeError or ValueError for what is no limit of messages of gRPC's."""
    if not hasattr(most, "__index__"):
        raise TypeError(f"max_message_bytes: a whole number of bytes, not {most!r}")
    if most != -1 and not 1 <= most < 2**31:
        raise ValueError(f"max_message_bytes {most!r}: 1 to 2147483647 bytes, or -1 for any number of them")


def connect(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    max_message_bytes: int,
    load_balancing: str = "pick_first",
    host: str = "",
) -> grpc.Channel:
    """A channel that connects at its first call.

    Args:
      credentials: None: plaintext.
      host: the name in the server's certificate, where `target` is an address.
    """
    service_config = f'{{"loadBalancingConfig": [{{"{load_balancing}": {{}}}}]}}'
    options = [
        ("grpc.service_config", service_config),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_message_bytes),
        *CONNECTION_OPTIONS,
    ]
    if _is_loopback(target):  # no proxy of `http_proxy` leads back to this machine
        options.append(("grpc.enable_http_proxy", 0))
    if host and credentials:
        options.append(("grpc.ssl_target_name_override", host))
    if credentials:
        return grpc.secure_channel(target, credentials, options)
    return grpc.insecure_channel(target, options)


class StreamedCall:
    """A call whose answer is a stream of messages, which is read once. However that ends, the call lets its connection go.

    Of a call that failed, was left or never read, gRPC's own reader of streams keeps events that it did not take. With
    them stay the call and, also when its channel is closed, the connection.
    Threads: one reads; any may cancel.
    """

    def __init__(self, rpc: Any):
        self._rpc = rpc
        self._is_whole = True  # what gRPC counts as still to come does come

    def __iter__(self) -> Iterator[Any]:
        messages = iter(self._rpc)
        try:
            while (message := self._next(messages)) is not _END:
                yield message
        finally:
            self._let_go()

    def cancel(self) -> None:
        self._rpc.cancel()

    def __del__(self) -> None:
        self._let_go()

    def _next(self, messages: Iterator[Any]) -> Any:
        self._is_whole = False  # gRPC releases a call whose wait is interrupted, as by Ctrl-C, and counts on
        try:
            message = next(messages, _END)
        except grpc.RpcError:
            self._is_whole = True
            raise
        self._is_whole = True
        return message

    def _let_go(self) -> None:
        """Ends the call, if it has not ended, and takes what is left; only once nobody reads."""
        self._rpc.cancel()
        take = getattr(self._rpc, "_consume_next_event", None)  # of that reader alone
        is_whole, self._is_whole = self._is_whole, False  # one that is interrupted is not taken up again
        while is_whole and take is not None and self._rpc._state.due:
            take()


_END = object()  # behind the last message


def _is_loopback(target: str) -> bool:
    """Whether it names this machine; `target`: as gRPC writes it, with a scheme or without."""
    address = re.sub(r"^(dns:(//[^/]*/)?|ipv[46]:)", "", target)
    return re.match(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?$", address, re.IGNORECASE) is not None
