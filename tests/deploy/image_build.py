"""Builds images without a container engine: the Dockerfiles' own RUN and COPY lines, executed by
buildah with chroot isolation on a root file system that mmdebstrap made of Debian packages. As root.
"""

import configparser
import json
import pathlib
import re
import subprocess
import sys
import zipfile

from live_server import ROOT

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
DOCKERFILE_OF_RAY = ROOT / "deploy/docker/Dockerfile.ray"
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

    def import_base(self, tag=BASE, architecture=None):
        """Debian's smallest system as an image, with this machine's sources of packages, Debian's and Python's.

        `architecture`: Debian's name of another than this machine's, whose programs the kernel can start.
        """
        foreign = [f"--architectures={architecture}"] if architecture else []
        archive = self.folder / "base.tar"
        settings = self.folder / "99-of-this-machine"
        lines = run("apt-config", "dump").splitlines()
        settings.write_text("\n".join(line for line in lines if line.startswith("Acquire")) + "\n")
        run(
            "mmdebstrap",
            "--variant=minbase",
            *foreign,
            f"--customize-hook=copy-in {settings} /etc/apt/apt.conf.d",
            "bookworm",
            str(archive),
        )
        platform = [f"--arch={architecture}"] if architecture else []
        container = self("from", *platform, "scratch").strip()
        self("add", "--quiet", container, str(archive), "/")
        for file, place in self._pip_settings().items():
            self("copy", "--quiet", container, str(file), place)
        self("commit", "--quiet", "--rm", container, tag)
        archive.unlink()

    def _pip_settings(self):
        """Files for an image, {here: there}: pip's index on this machine, and the certificates that pip trusts."""
        settings, files = configparser.RawConfigParser(), {}
        settings["global"] = {}
        for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
            name, _, value = line.partition("=")
            option, value = name.rpartition(".")[2], value.strip("'\"")
            if option == "cert":
                place = "/etc/pip-certificates.pem"  # Debian's ca-certificates, once installed, leaves it alone
                files[pathlib.Path(value)], value = place, place
            if option in ("cert", "index-url"):
                settings["global"][option] = value
        written = self.folder / "pip.conf"
        with written.open("w") as file:
            settings.write(file)
        return {**files, written: "/etc/pip.conf"}

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

    def build(self, tag, dockerfile, context, *options, **arguments):
        """An image; `options` are buildah's, `arguments` are build arguments."""
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        how = ["--isolation=chroot", "--pull-never", "--format=docker", f"--file={dockerfile}"]
        self("bud", *how, *options, *given, f"--tag={tag}", str(context), timeout=7200)

    def digest(self, tag):
        """sha256:..., as a registry gives it for a tag."""
        return json.loads(self("inspect", "--type=image", tag))["FromImageDigest"]

    def configuration(self, tag):
        """The image's configuration, with Docker's names."""
        return json.loads(self("inspect", "--type=image", tag))["Docker"]["config"]

    def architecture(self, tag):
        """By Go's name, which is Debian's for arm64."""
        return json.loads(self("inspect", "--type=image", tag))["Docker"]["architecture"]

    def unpack(self, tag):
        """A container's root file system, mounted at the path returned."""
        container = self("from", "--pull-never", tag).strip()
        return pathlib.Path(self("mount", container).strip())
