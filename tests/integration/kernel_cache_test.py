"""Compiled code of the CPU outlives a restart of the shipped server, and is believed only where it is whole
and nobody else may have written it."""

import resource
import urllib.request

import numpy as np
import pytest
from result_bits import differences
from live_server import LiveServer, eventually

import simgrad as sg

WORLD = sg.World("bouncing_ball", contact="projection", elements=1)


def ball():
    rng = np.random.default_rng(3)
    n = 2000  # enough work for code to be compiled when it is first asked for
    return dict(
        steps=200,
        initial={"y": rng.uniform(0.01, 0.2, (n, 1)), "v": rng.normal(0, 1, (n, 1))},
        params={"k": np.float32(1.0)},
        policy=sg.Policy("f32"),
    )


def total(server, name, label=""):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(name) and line[len(name)] in "{ " and label in line
    )


def compiles(server, quality=""):
    return total(server, "simgrad_kernel_compiles_total", f'quality="{quality}' if quality else "")


@pytest.fixture
def start(tmp_path):
    servers = []

    def new():
        servers.append(
            LiveServer("--device=cpu", "--threads=1", "--self_check_interval=0", f"--kernel_cache={tmp_path}")
        )
        return servers[-1]

    yield new
    for server in servers:
        server.stop()


def ask(server):
    with sg.Client(server.target, timeout=120) as client:
        return client.rollout(WORLD, **ball())


@pytest.fixture
def kept(start, tmp_path):
    """The file of a server that has gone, and what it answered."""
    server = start()
    answers = [ask(server)]

    def has_best_code():
        answers.append(ask(server))
        return compiles(server, "best") == 1

    eventually(has_best_code)
    assert compiles(server, "quick") == 1
    assert differences(answers[0], answers[-1]) == []
    server.stop()
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    return file, answers[0]


def test_after_a_restart_nothing_is_compiled_again(start, kept):
    server = start()
    for _ in range(2):
        assert differences(kept[1], ask(server)) == []
    assert compiles(server) == 0


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "spoil", [flip, lambda file: file.chmod(0o602)], ids=["a bit is flipped", "everyone may write it"]
)
def test_a_file_that_is_not_to_be_believed_is_told_and_compiled_anew(start, kept, spoil):
    file, expected = kept
    spoil(file)
    server = start()
    assert differences(expected, ask(server)) == []
    assert compiles(server, "quick") == 1
    server.process.terminate()
    server.process.wait(timeout=60)
    server.log.seek(0)
    assert f"'{file}' is not used" in server.log.read()


def test_a_file_that_kubernetes_gave_its_group_is_used(start, kept):
    file, expected = kept
    file.chmod(0o660)
    server = start()
    assert differences(expected, ask(server)) == []
    assert compiles(server) == 0


def test_a_file_that_may_not_grow_ends_nothing(start):
    server = start()
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    assert ask(server).ok.all()
    eventually(lambda: compiles(server) > 0)
    assert ask(server).ok.all()
    assert server.process.poll() is None
