"""The demo runs to its end, also where no Python here has JAX. tests/with_jax has its hopper."""

import subprocess
import sys

import pytest


def test_the_demo_runs_without_jax(root, server, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    code = f"""
import runpy, sys
sys.path.insert(0, {str(root / "client/python/examples/demo")!r})
import hopper
hopper.PYTHONS = []
sys.argv = ["demo", "--target", {server.target!r}, "--metrics", "localhost:{server.metrics_port}", "--figure", "demo.png"]
runpy.run_path({str(root / "client/python/examples/demo/__main__.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number in range(1, 7):
        assert f"\n{number}. " in done.stdout
    assert "no JAX with MJX here" in done.stdout and (tmp_path / "demo.png").exists()
