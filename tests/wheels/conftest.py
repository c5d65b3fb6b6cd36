"""The wheels, made once, and installed once."""

import re
import sys
import zipfile

import pytest
from environment import ROOT, Environment, run

sys.path.insert(0, str(ROOT / "tests/integration"))  # live_server, same_bits


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Paths of both wheels, by the name of what they hold."""
    out = tmp_path_factory.mktemp("wheels")
    run(ROOT / "scripts/wheels", out, cwd=out)
    return {re.match(r"[a-z_]+", path.name)[0]: path for path in out.glob("*.whl")}


@pytest.fixture(scope="session")
def documents(wheels):
    """The server's wheel as {name of a member: its bytes}, the binary too."""
    with zipfile.ZipFile(wheels["simgrad_server"]) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="session")
def installed(wheels, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("installed"), wheels)
