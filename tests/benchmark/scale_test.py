"""docs/scale.md tells the bytes that travel, and calls can be timed for its model of seconds.

With --long, the model forecasts two and four servers.
"""

import contextlib
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import scale  # noqa: E402
from server_process import Server  # noqa: E402

import simgrad as sg  # noqa: E402


@pytest.fixture(scope="module")
def servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Server("--device=cpu", "--threads=1")) for _ in range(4)]


def numbers(line):
    """The numbers of a row of a table, without its first cell."""
    return [float(cell) for cell in line.strip("|\n ").split("|")[1:]]


def test_the_page_has_the_bytes_that_travel(servers):
    """Numbers of varying length are among them, and a shard has as many messages as its time allows: a few hundred
    bytes of a shard, divided by the steps where they count as those of a step."""
    tolerances = (0.5, 450, 2, 5, 0.2)  # columns of the table
    page = scale.PAGE.read_text().splitlines()
    with sg.Client(servers[0].target, timeout=120) as client:
        for line in scale.bytes_table(client)[2:]:
            name = line.split(" | ")[0]
            (said,) = [of_page for of_page in page if of_page.startswith(f"{name} | ")]
            for found, told, tolerance in zip(numbers(line), numbers(said), tolerances, strict=True):
                assert found == pytest.approx(told, abs=tolerance), (line, said)


def test_the_cell_of_a_trajectory_is_its_element_size(servers):
    with sg.Client(servers[0].target, timeout=120) as client:
        recorded = scale.measured_bytes(client, diagnostics="off", record=["y"])
    assert recorded.cell == pytest.approx(4 * 4, abs=0.1)  # four elements in f32
    assert recorded.up_row == pytest.approx(2 * 4 * 4, abs=0.1)  # y and v


def test_calls_can_be_timed(servers):
    constants = scale.measured_seconds(servers[0], steps=20, repeats=1)
    assert min(constants.shard, constants.speed) > 0
    run = scale.run_seconds(servers[:2], 1024, 20, repeats=1)
    assert min(run) > 0


@pytest.mark.long  # a forecast of seconds holds where little else runs
@pytest.mark.parametrize("count", [2, 4])
def test_the_model_forecasts_servers(servers, count):
    """Within a factor of two, in processor seconds."""
    n, t = 65536, 200
    constants = scale.measured_seconds(servers[0], steps=t)
    run = scale.run_seconds(servers[:count], n, t, repeats=12)
    forecast = constants.parts(count, n, t)
    assert forecast.server / 2 < run.server < 2 * forecast.server
    assert run.client < 4 * forecast.client  # it grows with the messages that a busy machine makes of an answer


def test_more_servers_than_the_model_finds_useful_take_longer():
    constants = scale.Constants(shard=1e-3, column=1e-5, row=1e-7, speed=1e7)
    best = constants.most_useful(10**6, 1000)
    seconds = [constants.seconds(k, 10**6, 1000) for k in (best / 2, best, 2 * best)]
    assert min(seconds) == seconds[1]
