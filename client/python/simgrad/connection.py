"""Channels to servers."""

from __future__ import annotations

import re

import grpc
import grpc.experimental

CONNECTION_OPTIONS = [
    # How often gRPC tries to connect: a server that is back is found within a second or so.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # gRPC's own repeats are not needed beside ours, and 1.51's lose calls: one that is made while its
    # connection ends may never return, not even at its deadline.
    ("grpc.enable_retries", 0),
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
]


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


def _is_loopback(target: str) -> bool:
    """Whether it names this machine; `target`: as gRPC writes it, with a scheme or without."""
    address = re.sub(r"^(dns:(//[^/]*/)?|ipv[46]:)", "", target)
    return re.match(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?$", address, re.IGNORECASE) is not None
