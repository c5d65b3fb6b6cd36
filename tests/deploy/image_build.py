"""Builds the image without a container engine: the Dockerfile's own RUN and COPY lines, executed by
buildah with chroot isolation on a root file system that mmdebstrap made of Debian packages. As root.
"""

import json
import pathlib
import re
import subprocess
import sys
import zipfile

from live_server import ROOT

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
BASE = "localhost/simgrad-test-base"
BASE_WITH_TOOLKIT = "localhost/simgrad-test-base-with-toolkit"


def run(*command, **options):
    """Runs a command to its end; a failure shows the end of its output."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


class Buildah:
    """buildah with storage of its own in a folder, gone with the folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        stores = [f"--root={folder}/root", f"--runroot={folder}/run", "--storage-driver=vfs"]
        self.command = ["buildah", *stores]

    def __call__(self, *arguments, **options):
        return run(*self.command, *arguments, **options)

    def import_base(self):
        """Debian's smallest system as an image, with the package sources of this machine."""
        archive = self.folder / "base.tar"
        settings = self.folder / "99-of-this-machine"
        lines = run("apt-config", "dump").splitlines()
        settings.write_text("\n".join(line for line in lines if line.startswith("Acquire")) + "\n")
        run(
            "mmdebstrap",
            "--variant=minbase",
            f"--customize-hook=copy-in {settings} /etc/apt/apt.conf.d",
            "bookworm",
            str(archive),
        )
        container = self("from", "scratch").strip()
        self("add", "--quiet", container, str(archive), "/")
        self("commit", "--quiet", "--rm", container, BASE)
        archive.unlink()

    def import_base_with_toolkit(self):
        """What a CUDA base image has beside: here NVIDIA's wheels, in /usr/local/cuda."""
        container = self("from", "--pull-never", BASE).strip()
        self("add", "--quiet", container, str(self._toolkit()), "/usr/local/cuda")
        self("commit", "--quiet", "--rm", container, BASE_WITH_TOOLKIT)

    def _toolkit(self):
        """Headers and libraries of NVRTC and the driver's interface, laid out as NVIDIA does."""
        wheels, cuda = self.folder / "wheels", self.folder / "cuda"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(wheels)]
        run(*pip, "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12")
        for wheel in wheels.iterdir():
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith("License.txt"):  # the toolkit's own name for NVIDIA's terms
                        cuda.mkdir(exist_ok=True)
                        (cuda / "EULA.txt").write_bytes(archive.read(name))
                    part = re.fullmatch(r"nvidia/\w+/(include|lib)/(.*[^/])", name)
                    if part:
                        target = cuda / {"lib": "lib64"}.get(part[1], part[1]) / part[2]
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(archive.read(name))
        return cuda

    def build(self, tag, **arguments):
        """The runtime image, from the Dockerfile; `arguments` are build arguments."""
        bases = {"BUILD_BASE": BASE, "RUNTIME_BASE": BASE}
        given = [f"--build-arg={n}={v}" for n, v in {**bases, **arguments}.items()]
        how = ["--isolation=chroot", "--pull-never", "--format=docker", f"--file={DOCKERFILE}"]
        self("bud", *how, *given, f"--tag={tag}", str(ROOT), timeout=3000)

    def configuration(self, tag):
        """The image's configuration, with Docker's names."""
        return json.loads(self("inspect", "--type=image", tag))["Docker"]["config"]

    def unpack(self, tag):
        """A container's root file system, mounted at the path returned."""
        container = self("from", "--pull-never", tag).strip()
        return pathlib.Path(self("mount", container).strip())
