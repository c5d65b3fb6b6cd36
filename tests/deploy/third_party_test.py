"""Third-party notices and SBOM: everything that is linked, with its terms, and nothing that is not."""

import json
import os
import re
import subprocess
import sys

import pytest
from live_server import BINARY, ROOT
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

# Debian's dpkg must know the libraries; a binary of another system has other packages.
SCRIPT = ROOT / "scripts/third-party"


def third_party(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def printed(*arguments, **environment):
    done = third_party(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def linked_names():
    """Names of the shared libraries that the loader gives the server."""
    text = subprocess.run(["ldd", str(BINARY)], capture_output=True, text=True, check=True).stdout
    return {line.split()[0].rpartition("/")[2] for line in text.splitlines() if "vdso" not in line}


@pytest.fixture(scope="module")
def notices():
    return printed("notices", BINARY)


def test_every_library_of_the_server_stands_in_the_notices(notices):
    named = set(re.findall(r"[\w+.-]+\.so[\w.]*", notices))
    assert len(linked_names()) > 30
    assert linked_names() <= named


def test_notices_hold_the_terms_of_their_packages_and_the_licences_that_these_refer_to(notices):
    for package in ("libgrpc29", "libprotobuf32", "libssl3", "libprometheus-cpp-core1.0"):
        if package in notices:
            terms = open(f"/usr/share/doc/{package}/copyright", errors="replace").read()
            assert terms.strip() in notices
    referred = set(re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", notices))
    assert referred
    for name in referred:
        text = open(f"/usr/share/common-licenses/{name}", errors="replace").read()
        assert text.strip() in notices


def test_the_packages_are_those_that_own_the_libraries():
    packages = printed("packages", BINARY).split()
    assert packages == sorted(set(packages)) and "libc6" in packages
    assert not [name for name in packages if name.endswith("-dev")]
    files = subprocess.run(
        ["dpkg-query", "-L", *packages], capture_output=True, text=True, check=True
    ).stdout
    owned = {line.rpartition("/")[2] for line in files.splitlines()}
    # A link such as libx.so.1 may be made by ldconfig; the file behind it is the package's.
    stems = {re.sub(r"\.so.*", "", name) for name in owned if ".so" in name}
    assert {re.sub(r"\.so.*", "", name) for name in linked_names()} <= stems


@pytest.fixture
def statically_linked(tmp_path):
    """A program with Debian's static zlib in it, and the linker's map."""
    source, program, link_map = tmp_path / "x.c", tmp_path / "x", tmp_path / "x.map"
    source.write_text("#include <zlib.h>\nint main(void) { return zlibVersion()[0] == 0; }\n")
    libraries = ["-Wl,-Bstatic", "-lz", "-Wl,-Bdynamic", f"-Wl,-Map={link_map}"]
    subprocess.run(["gcc", str(source), "-o", str(program), *libraries], check=True)
    return program, link_map


def test_a_library_that_is_linked_statically_is_found_in_the_linkers_map(statically_linked):
    program, link_map = statically_linked
    terms = open("/usr/share/doc/zlib1g-dev/copyright").read().strip()
    assert terms in printed("notices", program, "--link-map", link_map)
    assert terms not in printed("notices", program)
    document = json.loads(printed("sbom", program, "--link-map", link_map))
    static = {r["relatedSpdxElement"] for r in document["relationships"] if r["relationshipType"] == "STATIC_LINK"}
    names = {p["name"] for p in document["packages"] if p["SPDXID"] in static}
    assert "zlib1g-dev" in names


def test_a_library_without_known_terms_is_refused(tmp_path):
    """NVRTC's case: no package of Debian's owns it."""
    library, terms = tmp_path / "libnvrtc.so.12", tmp_path / "EULA.txt"
    library.write_text("")
    arguments = ("notices", BINARY, f"--opened={library}", f"--licence=libnvrtc={terms}")
    refused = third_party(*arguments)
    assert refused.returncode == 1
    assert "libnvrtc.so.12" in refused.stderr and "EULA.txt is missing" in refused.stderr
    terms.write_text("NVIDIA's terms, for the test.\n")
    assert "NVIDIA's terms, for the test." in printed(*arguments)


def test_the_bill_of_materials_is_valid_spdx_and_the_same_twice(tmp_path):
    status = tmp_path / "status"
    status.write_text(
        "Package: tzdata\nStatus: install ok installed\nArchitecture: all\nVersion: 2024a-0\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
    )
    arguments = ("sbom", BINARY, f"--installed={status}", "--version=0.1.0", "--revision=abcdef123456")
    text = printed(*arguments, SOURCE_DATE_EPOCH="1700000000")
    assert text == printed(*arguments, SOURCE_DATE_EPOCH="1700000000")
    file = tmp_path / "sbom.spdx.json"
    file.write_text(text)
    document = parse_file(str(file))
    assert validate_full_spdx_document(document) == []
    names = {package.name for package in document.packages}
    assert {"simgrad-server", "tzdata", *printed("packages", BINARY).split()} == names


def test_packages_have_addresses_that_scanners_look_up():
    document = json.loads(printed("sbom", BINARY))
    addresses = {
        p["name"]: p["externalRefs"][0]["referenceLocator"]
        for p in document["packages"]
        if "externalRefs" in p
    }
    version = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "libc6"], capture_output=True, text=True, check=True
    ).stdout
    assert re.fullmatch(r"pkg:deb/\w+/libc6@[\w.%-]+\?arch=\w+", addresses["libc6"])
    assert addresses["libc6"].partition("@")[2].partition("?")[0].replace("%2B", "+") == version
