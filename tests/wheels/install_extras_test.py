"""Each extra of the client, installed from its wheel into an empty environment, is what its module needs.

tests/structure/extras_test.py compares declarations with imports in every run; this downloads up to gigabytes.
"""

import json
import shutil
import venv

import pytest
from environment import ROOT, run


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("client")
    run(ROOT / "scripts/wheels", "--client", out, cwd=out)
    (path,) = out.glob("simgrad-*.whl")
    return path


@pytest.mark.long
@pytest.mark.parametrize("extra", ["torch", "jax", "ray"])
def test_an_extra_installs_what_its_module_imports(wheel, tmp_path, extra):
    folder = tmp_path / "venv"
    try:
        venv.create(folder, with_pip=True)
        python = folder / "bin/python"
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(python, *install, wheel, cwd=tmp_path)
        without = f"import importlib.util; print(importlib.util.find_spec({extra!r}))"
        assert run(python, "-c", without, cwd=tmp_path).strip() == "None"
        run(python, *install, f"{wheel}[{extra}]", cwd=tmp_path)
        told = run(
            python,
            "-W",
            "error::UserWarning:simgrad",  # simgrad.jax warns of a JAX that it does not know
            "-c",
            f"import json, simgrad.{extra}, {extra}; "
            f"print(json.dumps([simgrad.__path__[0], {extra}.__version__]))",
            cwd=tmp_path,
        )
        (where, version) = json.loads(told.splitlines()[-1])
        assert where.startswith(str(folder)) and version[0].isdigit()
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes
