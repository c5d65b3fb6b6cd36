"""A server and a client for tests that have JAX: its multiply-adds rounded twice, as the server's are.

Without JAX they are skipped: scripts/setup-jax makes an environment that has it.
"""

import os
import pathlib
import sys

# No fused multiply-add; and little work for LLVM, as most of what is compiled runs once.
os.environ["XLA_FLAGS"] = "--xla_cpu_max_isa=AVX --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"
# XLA's code is found again, as that of the C++ tests is: by its text, its options and JAX's version.
if kept := os.environ.get("SIMGRAD_TEST_OBJECTS"):
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(kept, "jax")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import pytest  # noqa: E402

pytest.importorskip("jax", reason="no JAX here: scripts/setup-jax, then .venv-jax/bin/python -m pytest")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "integration"))

from live_server import BINARY, LiveServer  # noqa: E402

import simgrad as sg  # noqa: E402


@pytest.fixture(scope="session")
def server():
    assert BINARY.exists(), f"{BINARY} is missing: scripts/build release simgrad-server"
    running = LiveServer()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def client(server):
    with sg.Client(server.target, timeout=300) as connected:
        yield connected


@pytest.fixture(autouse=True)
def deep_enough():
    """JAX's own tracing of large models needs a deep stack."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield
    sys.setrecursionlimit(before)
