"""Two wheels in an empty environment: what they hold, and that all which is shown to users runs from them."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import zipfile

import pytest
import stand_in_gpu
from environment import ROOT, SERVER, Environment
from live_server import BINARY, LiveServer
from same_bits import unequal
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

import simgrad as sg

WORLD = sg.World("bouncing_ball", contact="toi")
WORK = dict(
    steps=200, initial={"y": [1.0], "v": [0.0]}, params={"k": 1.0, "restitution": 0.8}, objective="final_height"
)
# Those of which client/README.md says that they need nothing else.
EXAMPLES = re.findall(r"(?m)^\| `(\w+)\.py` \|[^|]*\| +\|$", (ROOT / "client/README.md").read_text())
TAKES_ITS_SERVER = re.compile(r"sg\.local\(\)")


def test_the_clients_wheel_is_pure_and_holds_every_module(wheels):
    assert wheels["simgrad"].name == f"simgrad-{sg.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheels["simgrad"]) as archive:
        held = {name for name in archive.namelist() if name.startswith("simgrad/")}
    source = ROOT / "client/python"
    files = (path for path in (source / "simgrad").rglob("*") if path.suffix in (".py", ".pyi") or path.name == "py.typed")
    assert held == {str(path.relative_to(source)) for path in files}


def test_extras_are_the_servers_and_those_of_what_is_optional(wheels):
    with zipfile.ZipFile(wheels["simgrad"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = archive.read(name).decode()
    extras = dict(re.findall(r"(?m)^Requires-Dist: (.*?) *; extra == [\"'](\w+)[\"']", metadata))
    extras = {extra: requirement for requirement, extra in extras.items()}
    assert extras["server"] == f"simgrad-server=={sg.__version__}"
    assert extras["cuda"] == f"simgrad-server[cuda]=={sg.__version__}"
    assert {"torch", "jax", "ray"} <= extras.keys()


def test_the_servers_wheel_is_small_and_needs_nothing_of_its_system_but_libc(wheels, documents, tmp_path):
    tag = re.fullmatch(r"simgrad_server-[\d.]+-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheels["simgrad_server"].name)
    assert tag and int(tag[1]) <= 36
    assert wheels["simgrad_server"].stat().st_size < 30e6
    beside = {name for name in documents if name.startswith("simgrad_server.libs/")}
    assert [re.sub(r"-\w+\.so.*", "", name) for name in beside] == ["simgrad_server.libs/libprometheus-cpp-core"]
    binary = tmp_path / "simgrad-server"
    binary.write_bytes(documents[SERVER])
    needed = set(re.findall(r"NEEDED.*\[(lib[\w+]+|ld-linux)", subprocess.check_output(["readelf", "-d", binary], text=True)))
    assert needed == {"libprometheus", "libstdc++", "libm", "libgcc_s", "libc", "ld-linux"}


def test_the_servers_wheel_holds_terms_and_a_bill_of_materials_of_what_is_linked_in(documents, tmp_path):
    (folder,) = {name.partition("/")[0] for name in documents if ".dist-info/" in name}
    assert documents[f"{folder}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    notices = documents[f"{folder}/licenses/THIRD-PARTY-NOTICES"].decode()
    file = tmp_path / "sbom.spdx.json"
    file.write_bytes(documents[f"{folder}/sboms/simgrad-server.spdx.json"])
    assert validate_full_spdx_document(parse_file(str(file))) == []
    bill = json.loads(file.read_text())
    packages = {package["SPDXID"]: package for package in bill["packages"]}
    (server,) = (package for package in packages.values() if package["name"] == "simgrad-server")
    assert server["checksums"][0]["checksumValue"] == hashlib.sha256(documents[SERVER]).hexdigest()
    linked = {"STATIC_LINK": set(), "DYNAMIC_LINK": set()}
    for relation in bill["relationships"]:
        if relation["relationshipType"] in linked:
            linked[relation["relationshipType"]].add(packages[relation["relatedSpdxElement"]]["name"])
    assert {"llvm-19-dev", "libgrpc-dev", "libprotobuf-dev", "libabsl-dev", "libssl-dev"} <= linked["STATIC_LINK"]
    assert "libprometheus-cpp-core1.0" in linked["DYNAMIC_LINK"]
    for name in linked["STATIC_LINK"] | linked["DYNAMIC_LINK"]:
        terms = pathlib.Path(f"/usr/share/doc/{name}/copyright").read_text(errors="replace")
        assert terms.strip() in notices, name


def test_the_wheels_server_gives_the_bits_of_the_release_build(installed):
    answers = []
    for binary in (BINARY, installed.server):
        server = LiveServer("--device=cpu", binary=binary)
        try:
            with sg.Client(server.target) as client:
                answers.append([client.gradient(WORLD, policy=policy, **WORK) for policy in ("f64", "f32", "bf16_safe")])
        finally:
            assert server.stop() == 0
    assert unequal(*answers) == []


def test_a_server_is_found_and_ends_with_its_client(installed):
    told = installed.run("-c", """if True:
        import os, pathlib, simgrad as sg
        with sg.local(device="cpu") as client:
            guard = client._process.pid
            server = int(pathlib.Path(f"/proc/{guard}/task/{guard}/children").read_text())
            print(os.readlink(f"/proc/{server}/exe"))
        print(pathlib.Path(f"/proc/{server}").exists())
    """)
    assert told.split() == [str(installed.server), "False"]


@pytest.mark.parametrize("command", [("simgrad", "serve"), ("simgrad-server",)])
def test_commands_become_the_server(installed, command):
    program, *words = command
    binary = installed.python.with_name(program)
    flags = [*words, "--port=0", "--metrics_port=0", "--device=cpu"]
    process = subprocess.Popen([binary, *flags], stdout=subprocess.PIPE, cwd=installed.work, text=True)
    try:
        assert "listening on 127.0.0.1:" in process.stdout.readline()
        assert os.readlink(f"/proc/{process.pid}/exe") == str(installed.server)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.stdout.close()


def test_the_first_lines_of_the_readme_run(installed):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert TAKES_ITS_SERVER.search(block)
    _, restitution, connected, fingerprint = installed.run("-c", block).split()
    assert float(restitution) != 0 and connected == "1" and len(fingerprint) > 16


@pytest.fixture(scope="module")
def server(installed):
    running = LiveServer("--device=cpu", binary=installed.server)
    yield running
    assert running.stop() == 0


def test_every_example_is_listed():
    listed = re.findall(r"(?m)^\| `(\w+)\.py` \|", (ROOT / "client/README.md").read_text())
    there = {path.stem for path in (ROOT / "client/python/examples").glob("*.py")}
    assert set(listed) == there and len(EXAMPLES) >= 5


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(installed, server, name):
    example = shutil.copy(ROOT / f"client/python/examples/{name}.py", installed.work)
    assert installed.run(example, server.target).strip()


def test_the_notebook_runs(installed):
    cells = json.loads((ROOT / "docs/tutorial.ipynb").read_text())["cells"]
    files = []
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        files.append(installed.work / f"cell_{number}.py")
        files[-1].write_text("".join(cell["source"]))
    assert TAKES_ITS_SERVER.search(files[0].read_text())
    told = installed.run("-c", """if True:
        import pathlib, sys
        names = {}
        for file in sys.argv[1:]:
            exec(compile(pathlib.Path(file).read_text(), file, "exec"), names)
        names["client"].close()
        print("tuned:", names["tuned"].confirmed)
    """, *files, MPLBACKEND="Agg")
    assert "tuned: True" in told


@pytest.mark.long
@stand_in_gpu.needed
def test_the_extra_cuda_brings_nvidias_nvrtc_and_the_server_compiles_with_it(wheels, tmp_path):
    """The driver is the stand-in, which takes what NVRTC made for sm_90 and cannot run it."""
    environment = Environment(tmp_path, wheels, extra="cuda")
    (nvrtc,) = (environment.packages / "nvidia/cu13/lib").glob("libnvrtc.so.*")
    driver = tmp_path / "libcuda.so.1"
    shutil.copy(stand_in_gpu.FOLDER / driver.name, driver)
    cache = tmp_path / "kernels"
    server = LiveServer(
        *("--device=cuda", "--warm=true", f"--kernel_cache={cache}"),
        binary=environment.server,
        environment={"LD_LIBRARY_PATH": str(tmp_path)},
    )
    try:
        assert str(nvrtc) in pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
        assert any(b"\x7fELF" in kernel.read_bytes() for kernel in cache.glob("*.kernel"))
    finally:
        server.stop()


@stand_in_gpu.needed
def test_nvrtc_is_found_where_nvidias_wheel_lies(installed, tmp_path):
    """The stand-in NVRTC in the place of NVIDIA's; the loader is told of the driver alone."""
    driver = tmp_path / "libcuda.so.1"
    shutil.copy(stand_in_gpu.FOLDER / driver.name, driver)
    (nvrtc,) = stand_in_gpu.FOLDER.glob("libnvrtc.so.*")
    place = installed.packages / "nvidia/cu13/lib"  # as in the wheel nvidia-cuda-nvrtc 13
    place.mkdir(parents=True)
    shutil.copy(nvrtc, place)
    found = place / nvrtc.name
    server = LiveServer("--device=cuda", binary=installed.server, environment={"LD_LIBRARY_PATH": str(tmp_path)})
    try:
        with sg.Client(server.target) as client:
            on_gpu = client.gradient(WORLD, policy="f32", **WORK)
        assert str(found) in pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
    finally:
        server.stop()
        shutil.rmtree(installed.packages / "nvidia")
    assert on_gpu.value is not None
