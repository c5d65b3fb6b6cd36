"""An empty environment, far from the checkout, that both wheels are installed into."""

import json
import os
import pathlib
import re
import subprocess
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = "simgrad_server/bin/simgrad-server"  # in the wheel, and beside the client


def run(*command, cwd, **environment):
    """Standard output of a command that must do well, without what names this checkout or its server."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SIMGRAD_SERVER", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, env={**kept, **environment}
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


# As the README tells them: both wheels, and the same with extras.
INSTALL = re.search(r"scripts/wheels && (pip install \S+)", (ROOT / "README.md").read_text())[1]
INSTALL_EXTRAS = re.search(r'`(pip install \S+ "[^"]*\[)[\w,]+(\]")`', (ROOT / "README.md").read_text())


class Environment:
    """Holds both wheels; `work` is a folder to work in."""

    def __init__(self, folder: pathlib.Path, wheels: dict[str, pathlib.Path], extra: str = "server"):
        venv.create(folder / "venv", with_pip=True)
        self.python = folder / "venv/bin/python"
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "dist").symlink_to(wheels["simgrad"].parent)
        there = {"PATH": f"{self.python.parent}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        for line in (INSTALL, INSTALL_EXTRAS[1] + extra + INSTALL_EXTRAS[2], "pip install matplotlib"):
            run("bash", "-ec", f"{line} --quiet", cwd=self.work, **there)
        self.packages = pathlib.Path(
            json.loads(self.run("-c", "import json, simgrad; print(json.dumps(simgrad.__path__))"))[0]
        ).parent
        assert self.packages.is_relative_to(folder), "the checkout is still in the way"
        self.server = self.packages / SERVER

    def run(self, *arguments, **environment):
        # Not activated: the environment's commands are not on PATH.
        return run(self.python, *arguments, cwd=self.work, **environment)
