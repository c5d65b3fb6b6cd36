"""Nothing of simgrad needs JAX but simgrad.jax, which says so."""

import subprocess
import sys


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_client_imports_no_jax():
    made = run("import sys, simgrad; print('jax' in sys.modules)")
    assert made.stdout.strip() == "False", made.stderr


def test_without_jax_simgrad_jax_says_what_to_install():
    made = run("import sys; sys.modules['jax'] = None; import simgrad.jax")
    assert made.returncode != 0
    assert "simgrad.jax lowers steps that are written in JAX" in made.stderr
    assert "pip install jax" in made.stderr
