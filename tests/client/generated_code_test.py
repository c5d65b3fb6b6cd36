"""The generated code belongs to the protobuf files and disturbs nobody."""

import shutil
import subprocess
import sys

import pytest


def test_generated_code_is_up_to_date(root, tmp_path):
    if not shutil.which("protoc") or not shutil.which("grpc_python_plugin"):
        pytest.skip("protoc or grpc_python_plugin is not installed")
    subprocess.run([root / "scripts/generate-proto", tmp_path], check=True)
    package = root / "client/python/simgrad/v1"
    generated = sorted(path.name for path in (tmp_path / "simgrad/v1").iterdir())
    checked_in = sorted(
        p.name for p in package.iterdir() if p.name not in ("__init__.py", "__pycache__")
    )
    assert generated == checked_in
    for name in generated:
        assert (tmp_path / "simgrad/v1" / name).read_text() == (package / name).read_text(), name


def test_everything_lives_in_our_own_package():
    script = """
from google.protobuf import descriptor_pool
import simgrad
from simgrad.v1 import error_details_pb2, simgrad_pb2_grpc
pool = descriptor_pool.Default()
for name in ("google.rpc.Status", "google.rpc.BadRequest"):
    try:
        pool.FindMessageTypeByName(name)
    except KeyError:
        continue
    raise SystemExit(f"{name} is registered")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_the_client_imports_no_optional_package():
    script = (
        "import sys, simgrad; assert not {'torch', 'tqdm', 'matplotlib', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
