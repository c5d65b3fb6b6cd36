"""Nothing of simgrad needs Ray but simgrad.ray, which says so."""

import subprocess
import sys


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_client_imports_no_ray():
    made = run("import sys, simgrad; print('ray' in sys.modules)")
    assert made.stdout.strip() == "False", made.stderr


def test_without_ray_simgrad_ray_says_what_to_install():
    made = run("import sys; sys.modules['ray'] = None; import simgrad.ray")
    assert made.returncode != 0
    assert "simgrad.ray runs servers on a cluster of Ray, which is not installed: pip install ray" in made.stderr
