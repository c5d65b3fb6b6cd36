"""Debian's Prometheus on a free port, scraping servers twice a second."""

import json
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

SCRAPE = "500ms"
# What Kubernetes' service discovery adds to a target.
LABELS = {"namespace": "lab", "service": "sim", "pod": "sim-0"}
DEADLINE = 60.0  # seconds; everything waited for here takes a few


class QueryError(AssertionError):
    """Prometheus refused a query."""


def wait_until(condition, what, deadline=DEADLINE):
    """Polls until the condition is true, and returns what it gave."""
    give_up = time.monotonic() + deadline
    while not (answer := condition()):
        assert time.monotonic() < give_up, f"waited {deadline:.0f} s in vain: {what}"
        time.sleep(0.05)
    return answer


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LivePrometheus:
    """Starts on construction; `folder` holds its configuration, data and log."""

    def __init__(self, folder: pathlib.Path, metrics_ports: list[int], rules: str):
        binary = shutil.which("prometheus")
        assert binary, "prometheus is missing: scripts/setup --with-promtool"
        self.url = f"http://127.0.0.1:{free_port()}"
        (folder / "rules.yml").write_text(rules)
        targets = [f"127.0.0.1:{port}" for port in metrics_ports]
        configuration = {
            "global": {
                "scrape_interval": SCRAPE,
                "scrape_timeout": SCRAPE,
                "evaluation_interval": SCRAPE,
            },
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "simgrad", "static_configs": [{"targets": targets, "labels": LABELS}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=warn",
            ],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        wait_until(self._answers, "Prometheus to answer")

    def _answers(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise RuntimeError(f"Prometheus ended: {self.log.read()}")
        try:
            return bool(self.query("vector(1)"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code in (400, 422):
                raise QueryError(f"{json.load(error)['error']}: {parameters}") from None
            raise urllib.error.URLError(f"{error.code}") from None

    def query(self, expression, at=None):
        """Samples of an instant query: dicts with metric and value."""
        when = {} if at is None else {"time": at}
        result = self._get("query", query=expression, **when)
        if result["resultType"] == "scalar":
            return [{"metric": {}, "value": result["result"]}]
        return result["result"]

    def query_range(self, expression, start, end, step):
        """Series of a range query: dicts with metric and values."""
        return self._get("query_range", query=expression, start=start, end=end, step=step)["result"]

    def firing(self):
        """Names of the alerts that fire."""
        return {a["labels"]["alertname"] for a in self.alerts() if a["state"] == "firing"}

    def alerts(self):
        return self._get("alerts")["alerts"]

    def rule_groups(self):
        return self._get("rules")["groups"]

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()
