"""A command of the README that builds works on a fresh machine: it installs what is missing before all else."""

import shutil
import subprocess

import pytest


@pytest.mark.parametrize("script", ["bench", "demo", "serve", "test", "wheels"])
def test_a_script_that_builds_sets_up_first(root, tmp_path, script):
    """In a tree where there is only a set-up, which fails."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shutil.copy(root / "scripts" / script, scripts)
    (scripts / "setup").write_text("#!/usr/bin/env bash\necho set up >&2\nexit 7\n")
    (scripts / "setup").chmod(0o755)
    done = subprocess.run([scripts / script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and done.stderr.splitlines() == ["set up"], done.stderr
