"""A server of one's own, for as long as its client."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import Any, Iterable

from simgrad.client import Client

_START_SECONDS = 60.0  # a device may be slow to begin with
_GUARD = pathlib.Path(__file__).with_name("_guard.py")
_CHECKOUT = pathlib.Path(__file__).parents[3] / "build/release/server/simgrad-server"
_BANNER = re.compile(r" listening on (\S+):(\d+), metrics on \S+:(\d+)")
_OF_LOCALHOST = ("127.0.0.1", "0.0.0.0", "::")


def _installed() -> pathlib.Path | None:
    """That of the package simgrad-server, also where its command is not on PATH."""
    if not importlib.util.find_spec("simgrad_server"):
        return None
    binary: pathlib.Path = importlib.import_module("simgrad_server").path()
    return binary if os.access(binary, os.X_OK) else None


def server_binary(given: str | os.PathLike[str] | None = None) -> str:
    """The server that `local` starts.

    Raises: FileNotFoundError where there is none, or where `given` or $SIMGRAD_SERVER is none.
    """
    named = given or os.environ.get("SIMGRAD_SERVER")
    if named and not (os.path.isfile(named) and os.access(named, os.X_OK)):
        raise FileNotFoundError(f"{os.fspath(named)} is no simgrad-server that can be run")
    found = named or _installed() or shutil.which("simgrad-server")
    if not found and os.access(_CHECKOUT, os.X_OK):
        found = _CHECKOUT
    if not found:
        raise FileNotFoundError(
            "there is no simgrad-server: install its wheel (scripts/wheels), give server=, set SIMGRAD_SERVER, "
            "put it on PATH, or build it (scripts/build release simgrad-server)"
        )
    return os.fspath(found)


def _target(address: str, port: str) -> str:
    """Dials a server of this machine: by the name localhost, which certificates have, where it listens there."""
    host = "localhost" if address in _OF_LOCALHOST else address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class LocalClient(Client):
    """A Client whose server ends with it; simgrad.local makes one.

    Attributes:
      metrics_port: where the server's metrics are, on the loopback interface, or at --address if that is given.
    """

    def __init__(self, command: list[str], **options: Any):
        self._log = tempfile.TemporaryFile("w+")
        # The guard empties it when it is large; what writes goes on at its end.
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # what interrupts the caller does not reach the server
        )
        assert self._process.stdin and self._process.stdout
        limit = threading.Timer(_START_SECONDS, self._process.kill)
        limit.start()
        banner = self._process.stdout.readline()
        limit.cancel()
        listening = _BANNER.search(banner)
        if listening is None:
            self._end()
            raise RuntimeError(f"{command[0]} did not start: {banner}{self._told()}")
        address, port, metrics_port = listening.groups()
        self.metrics_port = int(metrics_port)
        try:
            super().__init__(_target(address, port), **options)
        except BaseException:  # an option is wrong
            self._end()
            raise

    def _told(self) -> str:
        self._log.seek(0)
        return self._log.read().strip()

    def _end(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()  # the guard ends the server
        self._process.wait()
        self._process.stdout.close()

    def close(self) -> None:
        """Ends the calls that are under way, and the server."""
        super().close()
        if self._process.returncode is None:
            self._end()
            self._log.close()


def local(
    *,
    device: str = "auto",
    threads: int | None = None,
    server: str | os.PathLike[str] | None = None,
    flags: Iterable[str] = (),
    **options: Any,
) -> LocalClient:
    """Starts a server on free ports of the loopback interface and gives its client.

        with sg.local(device="cpu") as client:
            client.rollout(...)

    The server ends when the client is closed, and when this process ends, killed processes included; a
    child that this process forked and that outlives it keeps the server.

    Args:
      device: auto, cpu, cuda or cuda:N.
      threads: of the CPU; None: as many as the server chooses.
      server: the binary; None: $SIMGRAD_SERVER, else that of the package simgrad-server, else simgrad-server on
        PATH, else the build of the checkout that this module is part of.
      flags: more flags of the server, such as "--workers=2". Without a --log_level among them it is warning.
      options: those of Client.
    Raises: FileNotFoundError without a binary; RuntimeError with the server's words if it does not start.
    """
    chosen = [] if threads is None else [f"--threads={int(threads)}"]
    flags = list(flags)
    if not any(flag.partition("=")[0] == "--log_level" for flag in flags):
        chosen.append("--log_level=warning")
    command = [server_binary(server), "--port=0", "--metrics_port=0", f"--device={device}", *chosen, *flags]
    return LocalClient(command, **options)
