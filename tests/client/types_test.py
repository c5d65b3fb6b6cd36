"""The package has py.typed, so its annotations are a promise: mypy finds them complete and right."""

import subprocess
import sys


def check(root, *arguments, cwd=None):
    """mypy with the package's own settings, whatever is installed beside it."""
    package = root / "client/python"
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy"),
            *("--config-file", package / "pyproject.toml", "--cache-dir", cwd or "/dev/null"),
            *arguments,
        ],
        cwd=package,
        capture_output=True,
        text=True,
    )


def test_the_package_is_strictly_typed(root, tmp_path):
    checked = check(root, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_wrong_use_of_the_client_is_found(root, tmp_path):
    """What a user's own check says: the types reach past the package."""
    program = tmp_path / "use.py"
    program.write_text(
        "import simgrad as sg\n"
        'with sg.Client("localhost:1") as client:\n'
        '    result = client.rollout(sg.World("bouncing_ball"), steps="4")\n'
        "    result.trajektory\n"
    )
    found = check(root, program, cwd=tmp_path).stdout
    assert "use.py:3: error" in found and '"steps"' in found
    assert "use.py:4: error" in found and "trajektory" in found
    assert "Found 2 errors in 1 file" in found
