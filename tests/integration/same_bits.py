"""Whether two results are the same in every bit."""

import dataclasses

import numpy as np

from simgrad.program_text import ProgramText

# Where an answer comes from, how long it took, and in how many calls.
OF_THE_RUN = {"device", "request_id", "seconds", "tries", "reused", "replayed", "calls"}


def unequal(a, b, path="result"):
    """Paths of what differs between two results, in any bit."""
    if dataclasses.is_dataclass(a):
        return [
            found
            for f in dataclasses.fields(a)
            if f.name not in OF_THE_RUN
            for found in unequal(getattr(a, f.name), getattr(b, f.name), f"{path}.{f.name}")
        ]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{path}: {sorted(a)} and {sorted(b)}"]
        return [found for k in a for found in unequal(a[k], b[k], f"{path}[{k!r}]")]
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: {len(a)} and {len(b)} entries"]
        return [found for k, (x, y) in enumerate(zip(a, b)) for found in unequal(x, y, f"{path}[{k}]")]
    if isinstance(a, (np.ndarray, np.generic)) and a.dtype != object:
        same = a.dtype == b.dtype and a.shape == b.shape
        if same and a.dtype.kind == "U":
            return [] if (a == b).all() else [path]
        return [] if same and a.tobytes() == b.tobytes() else [path]
    if isinstance(a, float):
        return [] if np.float64(a).tobytes() == np.float64(b).tobytes() else [f"{path}: {a} and {b}"]
    if isinstance(a, ProgramText):
        return []
    return [] if a == b else [f"{path}: {a} and {b}"]
