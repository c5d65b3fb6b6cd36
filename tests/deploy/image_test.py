"""The images: the Dockerfile as text in every run; built, started and asked with --long."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess

import pytest
import simgrad as sg
import stand_in_gpu
import yaml
from image_build import BASE, BASE_WITH_TOOLKIT, DOCKERFILE, DOCKERFILE_OF_RAY, Buildah
from live_server import ROOT
from server_flags import server_flags

USER = 10001
# Packages with which one can build; none of them may be installed in the image.
BUILD_TOOLS = ("g++", "gcc", "cmake", "ninja-build", "make", "protobuf-compiler", "libgrpc++-dev")


def instructions():
    """(stage, instruction, arguments) of every line, continuation lines joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", DOCKERFILE.read_text())
    stage, found = "", []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, arguments = line.strip().partition(" ")
        if name == "FROM":
            stage = arguments.split(" AS ")[1].strip()
        found.append((stage, name, re.sub(r"\s+", " ", arguments)))
    return found


def of(stage, name):
    return [
        arguments for where, what, arguments in instructions() if (where, what) == (stage, name)
    ]


def test_every_base_image_is_an_argument():
    bases = [arguments for _, name, arguments in instructions() if name == "FROM"]
    own = {"build", "packages", "materials", "runtime", "scratch"}
    assert [base for base in bases if base.split()[0] not in own] == [
        "${BUILD_BASE}${BUILD_DIGEST:+@${BUILD_DIGEST}} AS build",
        "${RUNTIME_BASE}${RUNTIME_DIGEST:+@${RUNTIME_DIGEST}} AS packages",
    ]
    defaults = {
        arguments.partition("=")[0] for stage, name, arguments in instructions() if not stage
    }
    assert defaults == {"BUILD_BASE", "BUILD_DIGEST", "RUNTIME_BASE", "RUNTIME_DIGEST"}


def test_the_image_says_which_base_it_was_pinned_to():
    (labels,) = of("runtime", "LABEL")
    assert 'org.opencontainers.image.base.digest="${RUNTIME_DIGEST}"' in labels
    assert {"RUNTIME_BASE", "RUNTIME_DIGEST"} <= set(of("runtime", "ARG"))


def test_a_container_without_a_gpu_asks_for_none():
    """NVIDIA's runtime, where it is a node's default, gives `all` to whoever asks for it."""
    (environment,) = of("runtime", "ENV")
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment


def test_terms_and_bill_of_materials_are_made_from_what_is_linked_and_come_along():
    made = " ".join(of("build", "RUN"))
    assert "scripts/third-party notices /out/simgrad-server" in made
    assert "--licence=libnvrtc=${CUDA_HOME}/EULA.txt < /out/opened" in made
    (bill,) = of("materials", "RUN")
    declared = {line.partition("=")[0] for line in of("materials", "ARG")}
    assert set(re.findall(r"\$\{(\w+)\}", bill)) == declared, "arguments end with their stage"
    assert "sbom /out/simgrad-server --installed=/out/status" in bill
    assert "--from=materials /out/documents/ /usr/share/doc/simgrad/" in of("runtime", "COPY")
    assert "LICENSE NOTICE /out/documents/" in of("build", "COPY")


def copied_from_the_context():
    lines = [line for line in of("build", "COPY") if not line.startswith("--from=")]
    return [source for line in lines for source in line.split()[:-1]]


def test_what_is_copied_exists_and_is_no_more_than_the_build_needs():
    sources = copied_from_the_context()
    assert all((ROOT / source).exists() for source in sources)
    assert not {"tests", "client", "docs", "deploy", "."} & set(sources)


def test_the_context_is_what_is_copied_and_nothing_else():
    """Else a build sends Git's history and every build folder to the engine."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    everything, *taken = [line for line in lines if not line.startswith("#")]
    assert everything == "*"
    assert sorted(taken) == sorted(f"!{source}" for source in set(copied_from_the_context()))


def test_the_build_installs_what_scripts_setup_does():
    setup = (ROOT / "scripts/setup").read_text()
    installed = re.search(r"--no-install-recommends (.*?) &&", of("build", "RUN")[0])[1].split()
    assert all(re.search(rf"(?m)(^|\s){re.escape(package)}(\s|$)", setup) for package in installed)


def test_the_image_runs_as_a_number_and_not_as_root():
    assert of("runtime", "USER") == [f"{USER}:{USER}"]


def test_the_runtime_stage_takes_only_finished_things_from_the_build():
    for line in of("packages", "COPY") + of("runtime", "COPY"):
        assert re.match(r"--from=(build|materials) /out/", line)
    commands = " ".join(of("packages", "RUN") + of("runtime", "RUN"))
    assert not any(tool in commands for tool in ("cmake", "g++", "-dev"))


def test_entry_point_and_health_check_run_without_a_shell():
    (entry,) = of("runtime", "ENTRYPOINT")
    (check,) = of("runtime", "HEALTHCHECK")
    assert entry == '["/usr/local/bin/simgrad-server"]'
    assert check.endswith('CMD ["/usr/local/bin/simgrad-server", "--healthcheck"]')
    assert "healthcheck" in server_flags()
    assert of("runtime", "CMD") == []


def test_labels_are_those_of_open_containers():
    labels = re.findall(r"(\S+)=", of("runtime", "LABEL")[0])
    assert len(labels) >= 5
    assert all(label.startswith("org.opencontainers.image.") for label in labels)


def test_only_nvrtc_of_the_toolkit_goes_into_the_image():
    (gather,) = [line for line in of("build", "RUN") if "/out/lib/" in line]
    pattern = re.search(r"grep -E '(.*?)'", gather)[1]
    names = ("libnvrtc.so.12", "libnvrtc-builtins.so.12.6", "libcudart.so.12", "libcublas.so.12")
    taken = [name for name in names if re.search(pattern, f"/usr/local/cuda/lib64/{name}")]
    assert taken == ["libnvrtc.so.12", "libnvrtc-builtins.so.12.6"]


IMAGE, CUDA_IMAGE, RAY_IMAGE = (f"localhost/simgrad-test{variant}" for variant in ("", "-cuda", "-ray"))


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.fail("mmdebstrap and chroot need root")
    for tool in ("buildah", "mmdebstrap"):
        assert shutil.which(tool), f"{tool} is missing: scripts/setup --with-image-tests"
    folder = tmp_path_factory.mktemp("images")
    store = Buildah(folder)
    store.import_base()
    yield store
    store("umount", "--all")
    shutil.rmtree(folder)


def built(buildah, tag, **arguments):
    """(configuration, root file system) of the image that the Dockerfile makes."""
    bases = {"BUILD_BASE": BASE, "RUNTIME_BASE": BASE}
    buildah.build(tag, DOCKERFILE, ROOT, **{**bases, "REVISION": "abcdef123456", **arguments})
    return buildah.configuration(tag), buildah.unpack(tag)


@pytest.fixture(scope="module")
def image(buildah):
    """As a release has it, from bases that are pinned by their digests."""
    digest = buildah.digest(BASE)
    return built(buildah, IMAGE, BUILD_DIGEST=digest, RUNTIME_DIGEST=digest)


@pytest.fixture(scope="module")
def cuda_image(buildah):
    buildah.import_base_with_toolkit()
    return built(buildah, CUDA_IMAGE, SIMGRAD_CUDA="ON", BUILD_BASE=BASE_WITH_TOOLKIT)


@pytest.fixture(scope="module")
def ray_image(buildah, image):
    buildah.build(RAY_IMAGE, DOCKERFILE_OF_RAY, ROOT / "client/python", SIMGRAD=IMAGE)
    return buildah.configuration(RAY_IMAGE), buildah.unpack(RAY_IMAGE)


def in_image(image, *command, brought=None, pid_1=False, writable=()):
    """The command line that runs in the image as its user: root read-only, the cache and `writable` each a tmpfs;
    `brought`: a folder that appears as /mnt; `pid_1`: as the first process of the container."""
    configuration, root = image
    folders = "\n".join(
        f"mount -t tmpfs -o uid={USER},gid={USER},mode=0700 none {root}{folder}"
        for folder in sorted({*configuration["Volumes"], *writable})
    )
    mounts = f"""
        mount --bind {root} {root}
        echo 127.0.0.1 localhost > {root}/etc/hosts  # as an engine does
        mount -t proc none {root}/proc
        mount --bind /dev {root}/dev
        {folders}
        {f"mount --bind {brought} {root}/mnt" if brought else ""}
        mount -o remount,bind,ro {root}
        exec chroot --userspec={configuration['User']} {root} {shlex.join(command)}
    """
    alone = ["--pid"] if pid_1 else []
    return ["unshare", "--mount", *alone, "--fork", "--kill-child", "sh", "-ec", mounts]


def output(image, *command, timeout=60, **options):
    return subprocess.run(
        in_image(image, *command, **options), capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.long
def test_the_image_serves_a_request_as_an_unprivileged_user_on_a_read_only_root(image):
    entry = image[0]["Entrypoint"]
    command = in_image(image, *entry, "--port=0", "--metrics_port=0")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        banner = process.stdout.readline()
        port = re.search(r"listening on \S+?:(\d+)", banner)[1]
        with sg.Client(f"localhost:{port}", timeout=60) as client:
            world = sg.World("bouncing_ball", contact="toi")
            result = client.rollout(
                world, steps=50, initial={"y": [1.0], "v": [0.0]}, params={"k": 1.0}
            )
            assert result.ok.all()
            assert client.info().revision == "abcdef123456"
    finally:
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True
        ).stdout.split()
        for child in children:
            status = open(f"/proc/{child}/status").read()
            assert re.search(rf"Uid:\s+{USER}\s", status)
            os.kill(int(child), signal.SIGTERM)
        process.wait(timeout=60)
    assert children and process.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("tls", [False, True])
def test_the_health_check_fits_the_flags_of_the_server(image, tmp_path, tls):
    tmp_path.chmod(0o755)
    flags = ["--port=0", "--metrics_port=0"] if tls else ["--port=8901", "--metrics_port=0"]
    if tls:
        create = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
        files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate")]
        subprocess.run([*create, *files], check=True, capture_output=True)
        (tmp_path / "key").chmod(0o644)
        flags += ["--tls_certificate=/mnt/certificate", "--tls_key=/mnt/key", "--health_port=8903"]
    check = image[0]["Healthcheck"]["Test"][1:]
    entry = [*image[0]["Entrypoint"], *flags]
    process = subprocess.Popen(
        in_image(image, *entry, brought=tmp_path, pid_1=True), stdout=subprocess.PIPE, text=True
    )
    try:
        assert "listening" in process.stdout.readline()
        (child,) = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True
        ).stdout.split()
        inside = ["nsenter", f"--target={child}", "--pid", "--mount", "--root", *check]
        assert subprocess.run(inside).returncode == 0
        os.kill(int(child), signal.SIGSTOP)  # hangs: listens, and answers nothing
        assert subprocess.run(inside, capture_output=True).returncode != 0
        os.kill(int(child), signal.SIGCONT)
    finally:
        os.kill(int(child), signal.SIGTERM)
        process.wait(timeout=60)


@pytest.mark.long
def test_only_the_kernel_cache_can_be_written(image):
    for path in ("/x", "/tmp/x", "/usr/local/bin/x", "/etc/x", "/var/lib/x"):
        assert output(image, "touch", path).returncode != 0
    (writable,) = image[0]["Volumes"]
    assert output(image, "touch", f"{writable}/x").returncode == 0


@pytest.mark.long
def test_no_build_tool_is_in_the_image(image):
    installed = output(image, "dpkg-query", "-W", "-f", "${Package}\n").stdout.split()
    assert "libc6" in installed and not set(BUILD_TOOLS) & set(installed)
    assert not [package for package in installed if package.endswith("-dev")]
    for tool in ("cc", "c++", "g++", "cmake", "ninja", "protoc"):
        assert output(image, "sh", "-c", f"command -v {tool}").returncode != 0


@pytest.mark.long
def test_the_image_says_what_it_is(buildah, image):
    configuration, _ = image
    assert configuration["User"] == f"{USER}:{USER}"
    assert configuration["Labels"]["org.opencontainers.image.revision"] == "abcdef123456"
    assert configuration["Labels"]["org.opencontainers.image.base.digest"] == buildah.digest(BASE)
    assert configuration["Healthcheck"]["Test"][0] == "CMD"
    assert set(configuration["ExposedPorts"]) == {"8001/tcp", "8002/tcp"}


@pytest.mark.long
def test_the_image_holds_its_terms_and_its_bill_of_materials(image, cuda_image):
    for _, root in (image, cuda_image):
        documents = root / "usr/share/doc/simgrad"
        assert (documents / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
        notices = (documents / "THIRD-PARTY-NOTICES").read_text()
        assert "libgrpc" in notices and ("libnvrtc" in notices) == (root is cuda_image[1])
        bill = json.loads((documents / "sbom.spdx.json").read_text())
        installed = output((image if root is image[1] else cuda_image), "dpkg-query", "-W", "-f", "${Package}\n")
        assert set(installed.stdout.split()) <= {package["name"] for package in bill["packages"]}


@pytest.mark.long
def test_the_cuda_image_holds_nothing_of_the_toolkit_but_nvrtc(cuda_image):
    _, root = cuda_image
    libraries = sorted(path.name for path in (root / "usr/local/lib").glob("*.so*"))
    assert len(libraries) == 2, libraries
    assert all(re.match(r"libnvrtc(-builtins)?\.so\.", name) for name in libraries)
    assert not (root / "usr/local/cuda").exists()


@pytest.mark.long
@stand_in_gpu.needed
def test_the_cuda_image_generates_and_compiles_its_kernels(cuda_image, tmp_path):
    """With a driver brought in from outside, as NVIDIA's container runtime does; it loads what
    NVRTC made for sm_90, but cannot run it."""
    shutil.copy(stand_in_gpu.FOLDER / "libcuda.so.1", tmp_path)
    tmp_path.chmod(0o755)
    flags = ("--port=0", "--metrics_port=0", "--device=cuda", "--warm=true")
    cache = next(iter(cuda_image[0]["Volumes"]))
    server = shlex.join([*cuda_image[0]["Entrypoint"], *flags, f"--kernel_cache={cache}"])
    script = f"""
        {server} > {cache}/banner & server=$!
        while ! grep -q listening {cache}/banner; do kill -0 $server || exit 1; sleep 0.1; done
        kill $server; wait $server; head -c 400 {cache}/banner; ls {cache}; grep -lc ELF {cache}/*.kernel
    """
    command = ("env", "LD_LIBRARY_PATH=/mnt", "sh", "-ec", script)
    done = output(cuda_image, *command, brought=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "cuda (1 x stand-in GPU, sm_90)" in done.stdout
    cubins = [line for line in done.stdout.split() if line.endswith(".kernel") and "/" in line]
    assert len(cubins) >= 4, done.stdout  # two worlds, forward and gradient


def ray_start(group, *more):
    """How KubeRay starts a node of the group, as far as it is the same outside of a cluster."""
    cluster, _ = yaml.safe_load_all((ROOT / "deploy/kubernetes/ray-cluster.yaml").read_text())
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    asked = {"head": cluster["spec"]["headGroupSpec"], "workers": workers}[group]["rayStartParams"]
    flags = [f"--{name}={value}" for name, value in asked.items()]
    return shlex.join(["bash", "-lc", " ".join(["ray start --block", *flags, *more])])


HEALTHY = " && ".join(
    f"wget --tries 1 -T 10 -q -O- http://localhost:{path} | grep -q success"
    for path in ("52365/api/local_raylet_healthz", "8265/api/gcs_healthz")
)


@pytest.mark.long
def test_nodes_of_the_ray_image_run_servers_as_kuberay_starts_them(ray_image, tmp_path):
    """Head and worker beside each other in one network, which has loopback alone; the example trains on two servers."""
    configuration, _ = ray_image
    assert configuration["User"] == f"{USER}:{USER}" and not configuration["Entrypoint"]
    shutil.copy(ROOT / "client/python/examples/train_on_ray.py", tmp_path)
    tmp_path.chmod(0o755)
    head = ray_start("head", "--head", "--dashboard-agent-listen-port=52365", "--metrics-export-port=8080")
    worker = ray_start(
        "workers",
        "--address=127.0.0.1:6379 --num-cpus=2",
        "--dashboard-agent-listen-port=52366 --metrics-export-port=8081",
    )
    # 120 s, of which each turn takes at least one.
    script = f"""
        until_it_holds() {{
            for turn in $(seq 120); do if "$@" > /tmp/said 2>&1; then return; fi; sleep 1; done
            cat /tmp/said /tmp/head /tmp/worker >&2
            exit 1
        }}
        {head} > /tmp/head 2>&1 &
        until_it_holds bash -lc {shlex.quote(HEALTHY)}
        until_it_holds ray health-check --address 127.0.0.1:6379
        {worker} > /tmp/worker 2>&1 &
        until_it_holds sh -c 'ray status --address 127.0.0.1:6379 | grep -q "/2.0 CPU"'
        RAY_ADDRESS=127.0.0.1:6379 python /mnt/train_on_ray.py 2
    """
    command = ["env", "-i", *configuration["Env"], "sh", "-ec", script]
    folders = ("/tmp", "/dev/shm")
    alone = in_image(ray_image, *command, brought=tmp_path, pid_1=True, writable=folders)
    done = subprocess.run(
        [ROOT / "scripts/with-loopback", *alone], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert float(re.search(r"restitution ([\d.]+)", done.stdout)[1]) == pytest.approx(0.8, abs=1e-6)
