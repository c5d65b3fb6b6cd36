"""Memory that a request freed serves the next one: the kernel does not make its pages anew."""

import contextlib
import pathlib
import statistics

from live_server import LiveServer

import simgrad as sg

CALLS = 50


def _minor_faults(pid: int) -> int:
    after_name = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[7])


def _faults_of_a_call(environment: dict[str, str]) -> float:
    ball = sg.World("bouncing_ball", contact="projection")
    with contextlib.ExitStack() as ends:
        server = LiveServer("--device=cpu", "--threads=1", environment=environment)
        ends.callback(server.stop)
        client = ends.enter_context(sg.Client(server.target))

        def ask() -> None:
            client.gradient(
                ball,
                steps=2000,
                initial={"y": [0.5], "v": [0.0]},
                params={"k": 1.0},
                objective="final_height",
            )

        for _ in range(10):
            ask()
        seen = [_minor_faults(server.process.pid)]
        for _ in range(CALLS):
            ask()
            seen.append(_minor_faults(server.process.pid))
        # The median: of a busy machine, some calls are cut into more messages.
        return statistics.median(after - before for before, after in zip(seen, seen[1:]))


def test_small_gradients_take_their_memory_again():
    assert _faults_of_a_call({"GLIBC_TUNABLES": ""}) < 40


def test_the_allocators_settings_of_the_operator_take_precedence():
    # Blocks above 64 KiB are returned at once.
    settings = "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=65536"
    assert _faults_of_a_call({"GLIBC_TUNABLES": settings}) > 40
