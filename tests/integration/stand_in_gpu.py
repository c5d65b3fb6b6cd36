"""Servers on the stand-in GPU (tests/stand_in_gpu): the shipped binary, its kernels on the host."""

import pathlib

import pytest
from live_server import BINARY

FOLDER = BINARY.parent.parent / "tests/stand_in_gpu"
BUILT = (FOLDER / "libcuda.so.1").exists()

needed = pytest.mark.skipif(not BUILT, reason="built without the CUDA toolkit's headers")


def environment(**settings):
    """For a server that is to find it; the settings are those of machine.h: gpus, memory, ..."""
    named = {f"SIMGRAD_STAND_IN_{name.upper()}": str(value) for name, value in settings.items()}
    return {"LD_LIBRARY_PATH": str(FOLDER), **named}


class ErrorFile:
    """Errors that befall the driver's calls for as long as one says so."""

    INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 1, 2, 700  # CUresult

    def __init__(self, folder: pathlib.Path):
        self.path = folder / "error"

    def begin(self, error: int):
        new = self.path.with_suffix(".new")
        new.write_text(f"{error}\n")
        new.rename(self.path)

    def end(self):
        self.path.unlink()
