"""The range of JAX's releases that simgrad.jax declares: outside it a warning, and its oldest runs the tests.

The newest is that of tests/with_jax/requirements.txt, under which this folder runs.
"""

import re
import subprocess
import sys

import jax
import pytest

import simgrad.jax

OLDEST = "0.10.0"


@pytest.mark.parametrize("version", [OLDEST, "0.11.0"])
def test_a_release_outside_the_range_is_warned_of(version):
    given = tuple(map(int, version.split(".")))
    code = f"import jax; jax.__version__, jax.__version_info__ = {version!r}, {given}; import simgrad.jax"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told = f"simgrad.jax knows JAX 0.10 up to, and not including, 0.11; this is {version}"
    assert (told in ran.stderr) == (given[:2] != (0, 10))


def test_the_range_is_the_one_that_is_declared_and_tested(root):
    declared = re.search(r'"jax>=([\d.]+),<([\d.]+)"', (root / "client/python/pyproject.toml").read_text())
    first, past = (".".join(map(str, bound)) for bound in (simgrad.jax._FIRST, simgrad.jax._PAST))
    assert declared.groups() == (first, past) and OLDEST == f"{first}.0"
    wanted = re.search(r"^jax==(.*)$", (root / "tests/with_jax/requirements.txt").read_text(), re.MULTILINE)[1]
    assert jax.__version__ in (wanted, OLDEST)


@pytest.mark.long
def test_the_oldest_release_lowers_what_the_newest_does(root):
    subprocess.run([root / "scripts/setup-jax", "--jax", OLDEST], check=True)
    python = root / f".venv-jax-{OLDEST}/bin/python"
    tests = [root / "tests/with_jax", "--ignore", root / "tests/with_jax/versions_test.py"]
    ran = subprocess.run([python, "-m", "pytest", "-q", *tests], cwd=root, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:]
