"""The last line of scripts/test says how many passed and failed, whatever happened before it."""

import shutil
import subprocess

import pytest

SETUP = "#!/usr/bin/env bash\n"


def run(root, tmp_path, build):
    """scripts/test in a tree where only `build` is there to run."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shutil.copy(root / "scripts/test", scripts / "test")
    for name, text in (("setup", SETUP), ("build", build)):
        (scripts / name).write_text(text)
        (scripts / name).chmod(0o755)
    done = subprocess.run([scripts / "test"], cwd=tmp_path, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("code", [1, 7])
def test_a_build_that_fails_is_counted_and_named(root, tmp_path, code):
    status, lines = run(root, tmp_path, f"#!/usr/bin/env bash\nexit {code}\n")
    assert status == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert any(line.startswith("FAILED: set-up and build") for line in lines)
