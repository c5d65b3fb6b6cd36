"""arm64: that nothing asks for x86-64 in every run; with --long a server that is compiled for arm64 and emulated.

No arm64 machine takes part. What an emulator cannot show is not claimed (docs/operations.md).
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import simgrad as sg
from image_build import DOCKERFILE, Buildah, run
from image_test import USER, in_image
from live_server import ROOT, LiveServer
from same_bits import unequal

SYSROOT = ROOT / "build/arm64-sysroot"
SERVER = ROOT / "build/arm64/server/simgrad-server"
BINFMT = pathlib.Path("/proc/sys/fs/binfmt_misc")
# All that names a kind of processor, in a build.
PROCESSOR = re.compile(r"x86|amd64|\bavx|\bsse|-march|-m(?:avx|sse|fma)", re.IGNORECASE)
INTRINSICS = re.compile(r"#include <\w*intrin\.h>|gnu::target|_mm\d*_|__builtin_cpu_")
ONLY_X86 = re.compile(r"#\s*if.*(?:__x86_64__|__SSE2__|__AVX)")


def build_files():
    cmake = [*ROOT.glob("CMakeLists.txt"), *(ROOT / "cmake").iterdir()]
    for folder in ("precision", "proto", "sim", "server"):
        cmake += (ROOT / folder).rglob("CMakeLists.txt")
    return [DOCKERFILE, *cmake]


def test_the_build_names_a_kind_of_processor_where_llvms_archives_are_chosen_alone():
    named = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in build_files()
        for line in path.read_text().splitlines()
        if PROCESSOR.search(line)
    ]
    assert named == ["sim/backend/compiled/CMakeLists.txt: set(llvm_target x86)"]


def unguarded(text):
    """Lines with intrinsics of x86-64 that another processor's compiler would see."""
    open_conditions, found = [], []
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(r"\s*#\s*if", line):
            open_conditions.append(bool(ONLY_X86.match(line)))
        elif re.match(r"\s*#\s*(else|elif)", line):
            open_conditions[-1] = bool(ONLY_X86.match(line.replace("elif", "if")))
        elif re.match(r"\s*#\s*endif", line):
            open_conditions.pop()
        if INTRINSICS.search(line) and not any(open_conditions):
            found.append(line)
    return found


def test_intrinsics_stand_where_x86_64_alone_reads_them():
    assert unguarded("#include <immintrin.h>\n") and unguarded("#if A\n#else\n  _mm_getcsr();\n#endif\n")
    assert not unguarded("#if defined(__x86_64__)\n_mm_getcsr();\n#else\n#endif\n")
    for folder in ("precision", "sim", "server"):
        for path in (ROOT / folder).rglob("*.[ch]*"):
            assert not unguarded(path.read_text()), path


def test_the_folder_of_packages_holds_every_library_that_the_image_is_built_with():
    setup = (ROOT / "scripts/arm64-sysroot").read_text()
    listed = re.search(r"(?s)libraries=\((.*?)\)", setup)[1].split()
    installed = re.findall(r"\S+-dev\b", DOCKERFILE.read_text())
    assert installed and set(installed) <= set(listed)


# ---- emulated ----


@pytest.fixture(scope="module")
def built():
    """The folder of arm64 packages, and the server, compiled for them."""
    subprocess.run([ROOT / "scripts/arm64-sysroot"], check=True)
    subprocess.run([ROOT / "scripts/build", "arm64", "simgrad-server"], check=True)
    return SERVER


@pytest.fixture(scope="module")
def servers(built, tmp_path_factory):
    """(emulated, this machine's)."""
    emulated = tmp_path_factory.mktemp("arm64") / "simgrad-server"
    emulated.write_text(f'#!/bin/sh\nexec qemu-aarch64-static -L {SYSROOT} {built} "$@"\n')
    emulated.chmod(0o755)
    both = [LiveServer(binary=emulated), LiveServer()]
    yield both
    assert [server.stop() for server in both] == [0, 0]


def heights(instances, elements=1):
    return np.linspace(0.2, 1.5, instances * elements).reshape(instances, elements)


def ball(instances, **configuration):
    """Work that is compiled, not left to the reference executor: more than 2^18 operations."""
    initial = {"y": heights(instances), "v": np.zeros((instances, 1))}
    world = sg.World("bouncing_ball", **configuration)
    return world, {"steps": 400, "initial": initial, "params": {"k": np.linspace(0.2, 1, instances)}}


BALLS = [
    {"contact": "toi"},
    {"contact": "projection", "clamp": False},
    {"contact": "projection", "clamp": True},
    {"contact": "penalty"},
]
POLICIES = ["f32", "f64", "bf16_safe", "bf16_unsafe", "f16_safe"]


def on_both(servers, call):
    results = []
    for server in servers:
        with sg.Client(server.target, timeout=600) as client:
            results.append(call(client))
    return results


@pytest.mark.long
def test_the_emulated_server_compiles_for_arm64(servers):
    emulated, native = on_both(servers, lambda client: client.info())
    assert "neon" in str(emulated.devices) and "neon" not in str(native.devices)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("configuration", BALLS, ids=lambda c: "-".join(map(str, c.values())))
def test_rollouts_and_gradients_have_the_bits_of_x86_64(servers, configuration, policy):
    world, asked = ball(300, **configuration)
    both = on_both(servers, lambda client: client.rollout(world, policy=policy, record=["y"], **asked))
    assert unequal(*both) == []
    gradient = lambda client: client.gradient(world, objective="final_height", policy=policy, **asked)
    both = on_both(servers, gradient)
    assert unequal(*both) == []
    # Clamped impulses are what the last step ends with: no gradient passes them.
    assert np.any(both[0].initial["y"] != 0) != configuration.get("clamp", False)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_arrays_of_one_instance_have_the_bits_of_x86_64(servers, policy):
    world = sg.World("boundary_projection", elements=5000)
    asked = {"steps": 40, "initial": {"y": -heights(1, 5000)[0]}, "params": {"k": 0.5}}
    both = on_both(servers, lambda client: client.rollout(world, policy=policy, **asked))
    assert unequal(*both) == []


@pytest.mark.long
def test_recorded_answers_of_releases_come_from_the_emulated_server(servers):
    """Those of tests/integration/version_skew_test.py, which hold worlds of callers and kept rollouts too."""
    environment = {**os.environ, "SIMGRAD_SERVER": servers[0].process.args[0]}
    tests = ["tests/integration/version_skew_test.py", "-k", "this_server_answers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-4000:]


PROGRAMS = [
    "precision/rounding_test",
    "precision/lane_rounding_test",
    "precision/arithmetic_test",
    "precision/float_environment_test",
    "precision/narrow_elementary_test",
    "sim/equality/simgrad_compiled_equality_test",
]


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_numbers_pass_under_emulation(built, program):
    subprocess.run([ROOT / "scripts/build", "arm64", program.rpartition("/")[2]], check=True)
    binary = ROOT / "build/arm64/tests" / program
    done = subprocess.run(
        ["qemu-aarch64-static", "-L", SYSROOT, binary, "--gtest_brief=1"],
        env={k: v for k, v in os.environ.items() if k != "SIMGRAD_LONG"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout[-4000:]


ARM64_BASE, ARM64_IMAGE = "localhost/simgrad-test-base-arm64", "localhost/simgrad-test-arm64"


@pytest.fixture(scope="module")
def emulation(built):
    """The kernel starts arm64 programs with the emulator, in every root file system."""
    if not (BINFMT / "register").exists():
        run("mount", "-t", "binfmt_misc", "none", str(BINFMT))
    handler = BINFMT / "qemu-aarch64"
    if handler.exists():
        yield
        return
    (BINFMT / "register").write_text(pathlib.Path("/usr/lib/binfmt.d/qemu-aarch64.conf").read_text())
    yield
    handler.write_text("-1")


@pytest.fixture(scope="module")
def image(built, emulation, tmp_path_factory):
    """(configuration, root file system) of what the Dockerfile makes for arm64 of the server that was compiled here."""
    folder = tmp_path_factory.mktemp("images")
    compiled = tmp_path_factory.mktemp("built")
    shutil.copy(built, compiled)
    store = Buildah(folder)
    store.import_base(ARM64_BASE, "arm64")
    options = ("--platform=linux/arm64", f"--build-context=built={compiled}")
    bases = {"BUILD_BASE": ARM64_BASE, "RUNTIME_BASE": ARM64_BASE}
    store.build(ARM64_IMAGE, DOCKERFILE, ROOT, *options, **bases)
    yield store.configuration(ARM64_IMAGE), store.unpack(ARM64_IMAGE), store.architecture(ARM64_IMAGE)
    store("umount", "--all")
    shutil.rmtree(folder)


@pytest.mark.long
def test_the_image_is_of_arm64_and_its_server_has_the_bits_of_x86_64(image, servers):
    *of_container, architecture = image
    assert architecture == "arm64"
    entry = of_container[0]["Entrypoint"]
    command = in_image(of_container, *entry, "--port=0", "--metrics_port=0")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = re.search(r"listening on \S+?:(\d+)", process.stdout.readline())[1]
        world, asked = ball(300, contact="toi")
        with sg.Client(f"localhost:{port}", timeout=600) as client:
            assert "neon" in str(client.info().devices)
            inside = client.gradient(world, objective="final_height", **asked)
        (_, outside) = on_both(servers, lambda c: c.gradient(world, objective="final_height", **asked))
        assert unequal(inside, outside) == []
        children = run("pgrep", "-P", str(process.pid)).split()
        assert re.search(rf"Uid:\s+{USER}\s", pathlib.Path(f"/proc/{children[0]}/status").read_text())
    finally:
        for child in subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split():
            os.kill(int(child), signal.SIGTERM)
        process.wait(timeout=60)
    assert process.returncode == 0


@pytest.mark.long
def test_the_image_holds_the_terms_and_the_packages_of_arm64(image):
    documents = image[1] / "usr/share/doc/simgrad"
    bill = (documents / "sbom.spdx.json").read_text()
    assert "arch=arm64" in bill and "arch=amd64" not in bill
    assert "libgrpc" in (documents / "THIRD-PARTY-NOTICES").read_text()
