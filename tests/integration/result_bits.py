"""The bits of a result that the contract is about, by the name of the field."""

import numpy as np


def bits_of(result, diagnostics=True):
    """Everything in a result that a bit may not change in, as comparable data."""
    fields = {
        "ok": result.ok.tolist(),
        "path": result.path_signature,
        "paths": result.path_signatures.tobytes(),
        "value": None if result.value is None else np.float64(result.value).tobytes(),
        "values": None if result.values is None else result.values.tobytes(),
    }
    for group in ("state", "trajectory", "initial", "params", "controls"):
        for name, array in getattr(result, group, {}).items():
            fields[f"{group}.{name}"] = (array.shape, array.dtype.str, array.tobytes())
    fields["connected"] = getattr(result, "connected", None)
    if diagnostics:
        for name, trace in (*result.sites.items(), *result.events.items()):
            for column, array in vars(trace).items():
                if isinstance(array, np.ndarray):
                    fields[f"{name}.{column}"] = array.tobytes()
    return fields


def differences(a, b, **options):
    """Names of the fields whose bits differ; the empty list is what the contract promises."""
    x, y = bits_of(a, **options), bits_of(b, **options)
    return sorted(name for name in x.keys() | y.keys() if x.get(name) != y.get(name))
