"""The layers of the client below what a caller sees: each uses those below it alone (client/README.md)."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client/python/simgrad"
# From below. A pool stands beside the client, and gives it another way to the service.
LAYERS = ["calls", "service", "runs", "client"]


def imported(text):
    """The modules of simgrad that are imported, or named for types, as "client" or "pool.servers"."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "simgrad":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simgrad."):
            found.add(node.module.removeprefix("simgrad."))
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("simgrad.") for a in node.names if a.name.startswith("simgrad.")}
    return found


def test_imports_are_found():
    text = "import grpc, simgrad.a\nfrom simgrad import b\nif X:\n    from simgrad.c.d import E\n"
    assert imported(text) == {"a", "b", "c.d"}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_uses_none_above_it(layer):
    above = LAYERS[LAYERS.index(layer) + 1 :]
    used = imported((PACKAGE / f"{layer}.py").read_text())
    assert not {name for name in used if name in above or name.split(".")[0] == "pool"}


def test_a_pool_gives_its_service_without_the_client():
    for path in sorted((PACKAGE / "pool").glob("*.py")):
        if path.name not in ("__init__.py", "pool.py"):
            assert not imported(path.read_text()) & {"client", "runs", "pool", "pool.pool"}, path.name
