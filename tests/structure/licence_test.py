"""The licence: its text, and everything that must name it."""

import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "client/python"
# Of https://www.apache.org/licenses/LICENSE-2.0.txt.
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_licence_is_the_text_of_apache_2():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert "Apache License, Version 2.0" in (ROOT / "NOTICE").read_text()


@pytest.mark.parametrize("package", ["python", "server"])
def test_packages_carry_copies_that_have_not_drifted(package):
    for name in ("LICENSE", "NOTICE"):
        assert (ROOT / "client" / package / name).read_text() == (ROOT / name).read_text()


def test_a_distribution_of_the_client_names_its_licence_and_holds_it(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(PYTHON, source, ignore=shutil.ignore_patterns("*.egg-info", "build"))
    make = f"import setuptools.build_meta as backend; backend.build_sdist({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", make], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as held:
        texts = {
            member.name.partition("/")[2]: held.extractfile(member).read().decode()
            for member in held
            if member.isfile()
        }
    assert re.search(r"(?m)^License(-Expression)?: Apache-2\.0$", texts["PKG-INFO"])
    assert set(re.findall(r"(?m)^License-File: (\S+)$", texts["PKG-INFO"])) == {"LICENSE", "NOTICE"}
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text()


def test_chart_and_image_name_the_licence():
    chart = (ROOT / "deploy/kubernetes/simgrad/Chart.yaml").read_text()
    assert re.search(r"(?m)^  artifacthub\.io/license: Apache-2\.0$", chart)
    image = (ROOT / "deploy/docker/Dockerfile").read_text()
    assert 'org.opencontainers.image.licenses="Apache-2.0"' in image
