"""A server is warm when its best code is made, not when compiles have paused."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import server_process  # noqa: E402


class Paused(server_process.Server):
    """Quick code is made in the first call, its best code in call `best_at`."""

    def __init__(self, best_at):
        super().__init__()
        self.calls, self.best_at = 0, best_at

    def call(self):
        self.calls += 1

    def has_running_threads(self):
        return False

    def metric(self, name, label=""):
        quick, best = self.calls >= 1, self.calls >= self.best_at
        return {"": quick + best, 'quality="quick"': quick, 'quality="best"': best}[label]


def test_warm_calls_until_the_best_code_is_made():
    server = Paused(best_at=9)
    server.warm(server.call)
    assert server.calls == 9 + 2


def test_code_that_never_becomes_the_best_is_an_error(monkeypatch):
    monkeypatch.setattr(server_process, "WARM_SECONDS", 0.05)
    server = Paused(best_at=float("inf"))
    with pytest.raises(server_process.NeverWarm, match="1 kernels still wait"):
        server.warm(server.call)
