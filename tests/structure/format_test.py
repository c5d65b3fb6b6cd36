"""C++ is formatted as .clang-format says, by the version that scripts/setup installs."""

import shutil
import subprocess

import pytest


def test_every_cpp_file_is_formatted(root):
    if shutil.which("clang-format-14") is None:
        pytest.fail("clang-format-14 is missing: scripts/setup")
    listed = subprocess.run(["git", "ls-files", "*.cc", "*.h", "*.inc"], cwd=root, check=True, capture_output=True, text=True)
    files = listed.stdout.split()
    assert len(files) > 300
    done = subprocess.run(["clang-format-14", "--dry-run", "--Werror", *files], cwd=root, capture_output=True, text=True)
    wrong = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "error:" in line})
    assert done.returncode == 0 and not wrong, f"clang-format-14 -i {' '.join(wrong)}"
