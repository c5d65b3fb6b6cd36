"""sg.local: a server that lives as long as its client, or as the process that asked for it."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import urllib.request

import pytest
from live_server import BINARY, eventually

import simgrad as sg


def child_of(pid: int) -> int:
    (child,) = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def is_alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_runs_until_its_client_is_closed():
    with sg.local(device="cpu", threads=1, server=BINARY) as client:
        server = child_of(client._process.pid)
        r = client.rollout(
            sg.World("bouncing_ball"),
            steps=3,
            initial={"y": [0.5], "v": [0.0]},
            params={"k": 1.0},
        )
        assert r.ok.all() and is_alive(server) and client.metrics_port > 0
    assert not is_alive(server)
    client.close()  # again, to no effect


@pytest.mark.parametrize("killed", ["caller", "guard"])
def test_a_server_ends_with_a_process_that_is_killed(killed):
    caller = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import sys, time
            import simgrad as sg
            client = sg.local(device="cpu", server=sys.argv[1])
            print(client._process.pid, flush=True)
            time.sleep(600)
        """), str(BINARY)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        guard = int(caller.stdout.readline())
        server = child_of(guard)
        assert is_alive(server)
        os.kill(caller.pid if killed == "caller" else guard, signal.SIGKILL)
        eventually(lambda: not is_alive(server))
    finally:
        caller.kill()
        caller.wait()
        caller.stdout.close()


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(RuntimeError, match="no_such_flag"):
        sg.local(server=BINARY, flags=["--no_such_flag=1"])
    with pytest.raises(RuntimeError, match="device") as failed:
        sg.local(server=BINARY, device="abacus")
    assert "Fatal Python error" not in str(failed.value) and "Thread" not in str(failed.value)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.5.6.7", "::1", "0.0.0.0"])
def test_a_client_dials_the_address_that_its_server_listens_on(address):
    flags = [f"--address={address}", "--allow_insecure=true"]
    with sg.local(device="cpu", threads=1, server=BINARY, flags=flags, timeout=30) as client:
        assert client.info().version
        at = {"127.5.6.7": "127.5.6.7", "::1": "[::1]"}.get(address, "localhost")
        with urllib.request.urlopen(f"http://{at}:{client.metrics_port}/metrics", timeout=30) as page:
            assert b"simgrad_" in page.read()


def log_of(client) -> str:
    return os.pread(client._log.fileno(), 1 << 24, 0).decode()


def run(client):
    client.rollout(sg.World("bouncing_ball"), steps=1, initial={"y": [0.5], "v": [0.0]}, params={"k": 1.0})


@pytest.mark.parametrize("flags, tells", [([], False), (["--log_level=info"], True)])
def test_requests_are_logged_where_it_is_asked_for(flags, tells):
    with sg.local(device="cpu", threads=1, server=BINARY, flags=iter(flags)) as client:
        run(client)
        if tells:
            eventually(lambda: "Rollout" in log_of(client))
        else:
            assert log_of(client) == ""


def test_a_log_that_grows_is_emptied(monkeypatch, tmp_path):
    of_local = sg.local.__globals__
    guard = tmp_path / "guard.py"
    guard.write_text(textwrap.dedent(f"""
        import sys
        sys.path.append({str(of_local["_GUARD"].parent)!r})
        import _guard
        _guard._LOG_BYTES, _guard._LOG_SECONDS = 5000, 0.05
        sys.exit(_guard.main(sys.argv[1:]))
    """))
    monkeypatch.setitem(of_local, "_GUARD", guard)
    flags = ["--log_level=info", "--log_lines_per_second=0"]
    with sg.local(device="cpu", threads=1, server=BINARY, flags=flags) as client:

        def shrinks():
            before = len(log_of(client))
            run(client)
            return len(log_of(client)) < before

        for _ in range(2):
            eventually(shrinks)
        run(client)
        eventually(lambda: "Rollout" in log_of(client))
        assert "\0" not in log_of(client)  # it goes on at its end


@pytest.mark.parametrize("wrong", [{"token": "a\nb"}, {"timeout": 0}])
def test_an_option_that_is_wrong_leaves_no_server(wrong):
    def children():
        return set(pathlib.Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    before = children()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sg.local(server=BINARY, device="cpu", **wrong)
    assert children() <= before


def test_without_a_binary_the_ways_to_one_are_told(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is no simgrad-server"):
        sg.local(server=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} is no simgrad-server"):
        sg.local(server=tmp_path)
    monkeypatch.setenv("SIMGRAD_SERVER", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match="gone is no simgrad-server"):
        sg.local()
    monkeypatch.delenv("SIMGRAD_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sg.local.__globals__, "_CHECKOUT", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"scripts/wheels.*SIMGRAD_SERVER"):
        sg.local()
