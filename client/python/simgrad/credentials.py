"""TLS of a client, from PEM files."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Union

import grpc

Path = Union[str, "os.PathLike[str]"]


def tls(
    ca: Path | None = None, *, certificate: Path | None = None, key: Path | None = None
) -> grpc.ChannelCredentials:
    """Credentials for `Client(credentials=...)`.

    Args:
      ca: certificates that the server's must be signed by; None: those of the system.
      certificate, key: our own, for a server that asks for one (mutual TLS); both or neither.
    Errors: ValueError for one without the other, and for a file that is no PEM of what it should hold;
      OSError for a file that cannot be read. A server whose certificate is not signed by `ca`, or is
      for another name, is Unavailable.
    """
    if (certificate is None) != (key is None):
        raise ValueError("certificate and key: both or neither")

    def read(name: str, path: Path | None, what: bytes) -> bytes | None:
        if path is None:
            return None
        held = pathlib.Path(path).read_bytes()
        if not re.search(rb"-----BEGIN [A-Z0-9 ]*" + what + rb"-----", held):
            raise ValueError(f"{name} {os.fspath(path)}: holds no PEM of a {what.decode().lower()}")
        return held

    return grpc.ssl_channel_credentials(
        read("ca", ca, b"CERTIFICATE"),
        read("key", key, b"PRIVATE KEY"),
        read("certificate", certificate, b"CERTIFICATE"),
    )
