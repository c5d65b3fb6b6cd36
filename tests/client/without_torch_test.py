"""Nothing of simgrad needs PyTorch but simgrad.torch, which says so."""

import subprocess
import sys


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_client_imports_no_torch():
    made = run("import sys, simgrad; print('torch' in sys.modules)")
    assert made.stdout.strip() == "False", made.stderr


def test_without_torch_simgrad_torch_says_what_to_install():
    made = run("import sys; sys.modules['torch'] = None; import simgrad.torch")
    assert made.returncode != 0
    assert "simgrad.torch makes functions of PyTorch, which is not installed: pip install torch" in made.stderr
