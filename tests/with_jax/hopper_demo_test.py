"""The hopper of the demo: what its page says holds for the numbers beside it."""

import re
import subprocess
import sys

import numpy as np
import pytest


def test_the_hopper_of_the_demo_shows_what_its_text_says(root, server):
    script = root / "client/python/examples/demo/hopper.py"
    done = subprocess.run([sys.executable, str(script), server.target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert re.search(r"solver.py:\d+ +loop +ctx = jax.lax.while_loop", done.stdout)
    by_gradient, by_difference = re.search(r"contact, is (\S+)\. A central difference gives (\S+)\. ", words).groups()
    # A step of 1e-5: its error is 1e-10 of the third derivative, and 1e-16 / 1e-5 from rounding.
    assert float(by_gradient) == pytest.approx(float(by_difference), rel=1e-6)
    row = re.compile(r"^ +(\d+) +(f64|bf16_unsafe) +(\S+) +(\S+) +([\d ]+)$", re.MULTILINE)
    rows = {(int(a), b): (float(c), float(d), e.split()) for a, b, c, d, e in row.findall(done.stdout)}
    assert rows[10, "f64"][2] == 9 * ["0"] + ["2"], "the solver of f64 waits for the contact"
    assert "0" not in rows[10, "bf16_unsafe"][2]
    assert np.isfinite(rows[12, "f64"][:2]).all() and np.isnan(rows[12, "bf16_unsafe"][:2]).all()
    assert "the loop `solver.solve.2`" in words and "goes on at step 0" in words
