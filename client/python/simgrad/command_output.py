"""The file that an option names for what is found: known to be writable before the work, and written after it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import stat
from typing import BinaryIO, Callable, Iterator

# Names of descriptors that this process holds: /dev/stdout is one, whatever it was redirected to.
_DESCRIPTOR = re.compile(r"/dev/(std(in|out|err)$|fd/)|/proc/[^/]+/fd/")

Write = Callable[[BinaryIO], object]


class NotWritten(Exception):
    """The work is done, and what it found could not be written."""


class Output:
    """A file that is written whole or not at all: a temporary file beside it takes its place at the end, so that a
    file that was there stays where writing fails. A target that is no regular file (a pipe, a device, /dev/stdout),
    or whose folder takes no new file, is written in place.

    Raises: ValueError where no such file can be written.
    """

    def __init__(self, option: str, path: str):
        self._what = f"{option} {path}"
        self._path = path
        self._temporary: str | None = None
        try:
            there = _status(path)
            self._is_appended = there is not None and _DESCRIPTOR.match(os.path.abspath(path)) is not None
            if path.endswith(os.sep) or (there is not None and stat.S_ISDIR(there.st_mode)):
                raise ValueError(f"{self._what}: a folder, and not a file")
            if there is not None and not os.access(path, os.W_OK):
                raise ValueError(f"{self._what}: a file that may not be written")
            if there is None or (stat.S_ISREG(there.st_mode) and not self._is_appended):
                self._make(None if there is None else stat.S_IMODE(there.st_mode))
        except OSError as error:
            raise ValueError(f"{self._what}: it cannot be written ({error.strerror})") from None

    def _make(self, mode: int | None) -> None:
        """Makes the temporary file, with the mode of the file whose place it takes; None: of a new file."""
        self._path = os.path.realpath(self._path)  # a link stays one
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise ValueError(f"{self._what}: there is no such folder")
        name = os.path.join(folder, f".simgrad-{secrets.token_hex(8)}.tmp")
        try:
            file = open(name, "xb")
        except PermissionError:
            if mode is None:
                raise
            return  # a file that may be written, in a folder that may not: in place
        self._file, self._temporary = file, name
        if mode is not None:
            with contextlib.suppress(OSError):  # of a file system without modes
                os.chmod(name, mode)

    def write(self, write: Write) -> None:
        """Has `write` write the file. Raises: NotWritten where that fails."""
        try:
            temporary = self._temporary
            if temporary is None:
                self._write_in_place(write)
                return
            with self._file as file:
                write(file)
            try:
                os.replace(temporary, self._path)
                self._temporary = None
            except OSError:  # a mount point, or a file of another user in a folder that keeps such
                shutil.copyfile(temporary, self._path)
        except OSError as error:
            raise NotWritten(f"{self._what}: it cannot be written ({error.strerror or error})") from None

    def _write_in_place(self, write: Write) -> None:
        # In one piece: an archive goes back to what it wrote, which a pipe cannot and appending does not.
        whole = io.BytesIO()
        write(whole)
        # A descriptor keeps what was printed to it before.
        with open(self._path, "ab" if self._is_appended else "wb") as file:
            file.write(whole.getbuffer())

    def close(self) -> None:
        """Removes the temporary file that has not taken its place."""
        if self._temporary is not None:
            with contextlib.suppress(OSError):  # its last bytes may not fit
                self._file.close()
            with contextlib.suppress(OSError):
                os.remove(self._temporary)


def _status(path: str) -> os.stat_result | None:
    """None where nothing is there."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextlib.contextmanager
def output(option: str, path: str | None) -> Iterator[Output | None]:
    """The file that `option` names, while the work is done; None where it names none."""
    if path is None:
        yield None
        return
    with contextlib.closing(Output(option, path)) as file:
        yield file
