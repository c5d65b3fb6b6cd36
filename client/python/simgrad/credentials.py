"""TLS of a client, from PEM files."""

from __future__ import annotations

import os
import pathlib
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
    Errors: ValueError for one without the other; OSError for a file that cannot be read. A server
      whose certificate is not signed by `ca`, or is for another name, is Unavailable.
    """
    if (certificate is None) != (key is None):
        raise ValueError("certificate and key: both or neither")

    def read(path: Path | None) -> bytes | None:
        return None if path is None else pathlib.Path(path).read_bytes()

    return grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
