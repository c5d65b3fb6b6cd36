"""The alerts, with windows of two seconds, against the real server: each fires and clears again."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time

import event_load
import numpy as np
import pytest
import simgrad as sg
import stand_in_gpu
import yaml
from live_prometheus import LABELS, LivePrometheus, wait_until
from live_server import LiveServer
from server_flags import server_flags
from short_windows import with_short_windows

pytestmark = pytest.mark.waits

NUMERIC = {
    "SimgradNearBoundary",
    "SimgradIterationCaps",
    "SimgradNonfiniteForward",
    "SimgradNonfiniteInputs",
    "SimgradNonfiniteBackward",
    "SimgradDisconnectedGradients",
    "SimgradLossScaleCollapsed",
}
SERVICE = {"SimgradErrorRate", "SimgradDeadlines", "SimgradQueueFilling", "SimgradQueueRejects"}
# With windows of two seconds a short trouble is an objective missed: these may fire beside others.
OF_QUEUE = {"SimgradQueueWaitFastBurn", "SimgradQueueWaitSlowBurn"}
OF_AVAILABILITY = {"SimgradAvailabilityFastBurn", "SimgradAvailabilitySlowBurn"}
OBJECTIVES = OF_QUEUE | OF_AVAILABILITY
LIFE = {"SimgradNotReady", "SimgradTargetDown", "SimgradRestarted"}
LIMITS = {
    "SimgradConnectionsRefused",
    "SimgradCallerLimited",
    "SimgradMemoryFilling",
    "SimgradTapeMemory",
}
CERTIFICATE = {"SimgradCertificateExpiry"}
RELOAD = {"SimgradReloadFailing"}
# What no caller can bring about; promtool's unit tests cover them.
CANNOT_BE_FIRED = {
    "SimgradPoisonedMetric": "the guard of every observation is there so that it cannot",
    "SimgradGpuLost": "without work to end, the process is gone before it is scraped; then "
    "kube-state-metrics tells its exit code, and SimgradRestarted fires",
    "SimgradAbsent": "a Prometheus of these tests knows its server",
}
GPU = {
    "SimgradGpuErrors",
    "SimgradGpuMemory",
    "SimgradGpuOutOfMemory",
    "SimgradInternalErrors",
}
# Stands all the time where a build with CUDA finds no GPU, as on a machine of continuous integration.
FALLBACK = {"SimgradCpuFallback"}
# One worker and one place in the queue, so that a second request waits and a third is refused.
SMALL = ("--workers=1", "--queue_capacity=1", "--drain_timeout=10m")


def alerts_of(rules):
    groups = yaml.safe_load(rules)["groups"]
    return {r["alert"]: r for group in groups for r in group["rules"] if "alert" in r}


class Watch:
    """A server that can be ended and started again, and a Prometheus with short windows."""

    def __init__(self, folder, rules, flags=SMALL, environment=None):
        self.server = LiveServer(*flags, environment=environment)
        self.ports = (f"--port={self.server.port}", f"--metrics_port={self.server.metrics_port}")
        self.prometheus = LivePrometheus(folder, [self.server.metrics_port], rules)
        # Before the first scrape the target is absent, and short windows take that for an outage.
        wait_until(lambda: self.prometheus.query("up == 1"), "the first scrape")
        wait_until(lambda: "SimgradAbsent" not in self._active(), "the alert at start to clear")
        on_cpu = 'simgrad_device_info{kind="cpu"} and on (instance) simgrad_build_info{cuda!="none"}'
        self.standing = FALLBACK if self.prometheus.query(on_cpu) else set()

    def _active(self):
        """Names of alerts that fire or are about to."""
        return {alert["labels"]["alertname"] for alert in self.prometheus.alerts()}

    def firing(self):
        """Names of alerts that fire, without what always stands."""
        return self.prometheus.firing() - self.standing

    def client(self, **options):
        return sg.Client(self.server.target, timeout=60, retry=False, **options)

    def restart(self):
        """On the same ports, so that Prometheus finds it again."""
        assert self.server.stop() == 0
        self.server = LiveServer(*SMALL, *self.ports)

    def fires(self, names, beside=frozenset()):
        """Waits until all have fired, at once or not; beside them only those of `beside` may."""
        seen = set()

        def all_seen():
            fired = {
                a["labels"]["alertname"]: a
                for a in self.prometheus.alerts()
                if a["state"] == "firing"
            }
            for name, alert in fired.items():
                allowed = names | beside | self.standing | OBJECTIVES
                assert name in allowed, f"{name} fires too: {alert}"
                of = {"service"} if name in OBJECTIVES else {"pod"}
                for label in {"namespace"} | of:
                    assert alert["labels"][label] == LABELS[label]
                assert "<error" not in alert["annotations"]["description"], alert
            seen.update(fired)
            return seen >= names

        wait_until(all_seen, f"{names} to fire")

    def clears(self):
        """Waits until nothing fires or is about to, for longer than a window."""
        quiet = set()

        def quiet_for_long():
            if self._active() - self.standing:
                quiet.clear()
            quiet.add(self.prometheus.rule_groups()[0]["lastEvaluation"])
            return len(quiet) > 6

        wait_until(quiet_for_long, "every alert to clear")


@pytest.fixture(scope="module")
def watch(tmp_path_factory, rules_text):
    watch = Watch(tmp_path_factory.mktemp("prometheus"), with_short_windows(rules_text))
    try:
        yield watch
    finally:
        watch.prometheus.stop()
        watch.server.stop()


@pytest.fixture(scope="module")
def roomy(tmp_path_factory, rules_text):
    """With places enough in the queue that one request, which a busy machine lets wait, does not fill it."""
    flags = ("--workers=1", "--queue_capacity=20")
    with watched_with(tmp_path_factory.mktemp("prometheus"), rules_text, *flags) as watch:
        yield watch


@contextlib.contextmanager
def repeated(watch, *causes):
    """Runs the causes in turn, in the background."""
    enough, failures = threading.Event(), []

    def loop():
        try:
            with watch.client() as client:
                while not enough.is_set():
                    for cause in causes:
                        cause(client)
        except Exception as failure:  # shown by the test, not lost with the thread
            failures.append(failure)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
    assert not failures, failures


def test_short_windows_replace_every_window(rules_text):
    short = with_short_windows(rules_text)
    windows = re.findall(r"\[\w+\]", rules_text)
    assert re.findall(r"\[\w+\]", short) == ["[10s]" if w == "[15m]" else "[2s]" for w in windows]
    assert {"[5m]", "[15m]", "[30m]", "[1h]", "[6h]"} == set(windows)
    assert {rule.get("for", "1s") for rule in alerts_of(short).values()} == {"1s"}


def test_every_alert_is_fired_here_or_stands_in_a_list(rules_text):
    alerts = alerts_of(rules_text)
    groups = (NUMERIC, SERVICE, OBJECTIVES, LIFE, LIMITS, CERTIFICATE, RELOAD, FALLBACK, GPU)
    groups += (CANNOT_BE_FIRED.keys(),)
    assert sum(map(len, groups)) == len(alerts)
    assert set().union(*groups) == alerts.keys()


def test_ordinary_load_fires_nothing(roomy):
    with repeated(roomy, event_load.ordinary, event_load.unary):
        wait_until(
            lambda: roomy.prometheus.query("sum(rate(simgrad_gradients_total[2s])) > 0"), "load"
        )
        evaluations = set()  # eight of them: more than twice what a window and `for` take

        def often_enough():
            evaluations.add(roomy.prometheus.rule_groups()[0]["lastEvaluation"])
            assert roomy.firing() == set()
            return len(evaluations) > 8

        wait_until(often_enough, "evaluations of the rules")


def test_a_build_with_cuda_that_finds_no_gpu_is_alerted_and_no_other(watch):
    wait_until(
        lambda: watch.prometheus.firing() & FALLBACK == watch.standing, "the alert on the fallback"
    )


def test_alerts_on_numerics_fire_and_clear(roomy):
    with repeated(roomy, *event_load.NUMERIC_TROUBLES):
        roomy.fires(NUMERIC - {"SimgradLossScaleCollapsed"})
    roomy.clears()
    with repeated(roomy, event_load.small_loss_scale):  # shown is the scale of the last request
        roomy.fires({"SimgradLossScaleCollapsed"})
    with repeated(roomy, event_load.ordinary):
        roomy.clears()


def occupy(client):
    """Works or waits until its deadline, or is refused at once where the queue is full."""
    with contextlib.suppress(sg.ResourceExhausted, sg.DeadlineExceeded):
        event_load.endless(client, timeout=3).result


def test_alerts_on_the_service_fire_and_clear(watch):
    with repeated(watch, event_load.expired):
        # On a busy machine the next request waits for the end of the one before, in the only place of the queue; its
        # deadline may pass there, which is a rejection.
        watch.fires({"SimgradDeadlines"}, beside={"SimgradQueueFilling", "SimgradQueueRejects"})
    watch.clears()
    # Of three at a time one works, one waits, one is refused; all are sent again.
    attempts = (repeated(watch, occupy) for _ in range(3))
    with contextlib.ExitStack() as stack:
        for attempt in attempts:
            stack.enter_context(attempt)
        watch.fires(SERVICE - {"SimgradDeadlines"} | OF_QUEUE, beside={"SimgradDeadlines"})
    watch.clears()


def test_alerts_on_the_life_of_the_server_fire_and_clear(watch):
    with watch.client() as client, event_load.running(client):
        watch.server.process.send_signal(signal.SIGTERM)
        watch.fires({"SimgradNotReady"})
    watch.fires({"SimgradTargetDown"}, beside={"SimgradNotReady"})
    watch.restart()
    watch.clears()


def test_the_alert_on_a_restart_fires_and_clears(watch):
    def restarted_and_noticed():
        """A busy machine may take longer for it than the window is; then once more."""
        watch.restart()
        seen = f"process_start_time_seconds and timestamp(process_start_time_seconds) > {time.time()}"
        wait_until(lambda: watch.prometheus.query(seen), "a scrape of the new process")
        evaluations = set()
        while len(evaluations) < 4:
            evaluations.add(watch.prometheus.rule_groups()[0]["lastEvaluation"])
            if "SimgradRestarted" in watch.firing():
                return True
            time.sleep(0.05)
        return False

    wait_until(restarted_and_noticed, "the alert on a restart")
    watch.clears()


@contextlib.contextmanager
def watched_with(folder, rules_text, *flags):
    watch = Watch(folder, with_short_windows(rules_text), flags)
    try:
        yield watch
    finally:
        watch.prometheus.stop()
        watch.server.stop()


def test_the_alert_on_refused_connections_fires_and_clears(tmp_path, rules_text):
    flags = ("--max_connections_per_peer=2", "--self_check_interval=0")
    with watched_with(tmp_path, rules_text, *flags) as watch:
        with contextlib.ExitStack() as stack:
            for _ in range(6):
                address = ("127.0.0.1", watch.server.port)
                stack.enter_context(contextlib.closing(socket.create_connection(address)))
            watch.fires({"SimgradConnectionsRefused"})
        watch.clears()


def test_the_alert_on_a_callers_limit_fires_and_clears(tmp_path, rules_text):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret-of-ci name=ci requests=1\n")
    flags = (f"--token_file={tokens}", "--workers=2")
    with watched_with(tmp_path, rules_text, *flags) as watch:
        with watch.client(token="secret-of-ci") as client:
            with event_load.running(client), pytest.raises(sg.ResourceExhausted):
                event_load.ordinary(client)
            watch.fires({"SimgradCallerLimited"}, beside={"SimgradErrorRate", "SimgradQueueRejects"})
        watch.clears()


def put_certificate(folder, days):
    """A self-signed certificate and its key, in the place of those that were there."""
    new, names = folder / "new", ("tls.key", "tls.crt")
    new.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        + ["-days", str(days), "-keyout", str(new / names[0]), "-out", str(new / names[1])],
        check=True,
        capture_output=True,
    )
    for name in names:
        os.replace(new / name, folder / name)
    new.rmdir()


def test_alerts_on_the_certificate_fire_and_clear_when_it_is_renewed(tmp_path, rules_text):
    put_certificate(tmp_path, days=1)
    files = (f"--tls_certificate={tmp_path}/tls.crt", f"--tls_key={tmp_path}/tls.key")
    watch = Watch(
        tmp_path, with_short_windows(rules_text), (*SMALL, *files, "--tls_reload_interval=1s")
    )
    try:
        watch.fires(CERTIFICATE)
        (tmp_path / "tls.crt").write_text("no certificate\n")
        watch.fires(RELOAD, beside=CERTIFICATE)
        put_certificate(tmp_path, days=365)
        watch.clears()
    finally:
        watch.prometheus.stop()
        watch.server.stop()


def test_the_alert_on_memory_fires_and_clears(tmp_path, rules_text):
    """Streams whose callers read no further hold their memory and compute nothing."""
    flags = ("--memory_limit_bytes=268435456", "--workers=64", "--slow_reader_timeout=10m")
    with watched_with(tmp_path, rules_text, *flags) as watch, watch.client() as client:
        held, instances = [], 1 << 16
        while instances:  # ever smaller ones, until nothing more fits
            blocks = iter(client.rollout_stream(BALL, **many_balls(instances)))
            try:
                next(blocks)
                held.append(blocks)
            except sg.ResourceExhausted:
                instances //= 2
        watch.fires({"SimgradMemoryFilling"}, beside={"SimgradErrorRate", "SimgradQueueRejects"})
        for blocks in held:
            blocks.close()
        watch.clears()


BALL = sg.World("bouncing_ball")


def many_balls(n):
    return dict(
        steps=200_000,
        initial={"y": np.linspace(0.1, 1, n)[:, None], "v": np.zeros((n, 1))},
        params={"k": 1.0},
        chunk_steps=10,
    )


def test_the_alert_on_the_tape_fires_and_clears(tmp_path, rules_text):
    """Kept rollouts fill it until the oldest go; unused for their time, all go."""
    flags = ("--kept_run_bytes=1000000", "--kept_run_ttl=8s")
    with watched_with(tmp_path, rules_text, *flags) as watch, watch.client() as client:
        evicted = 'simgrad_tape_evictions_total{reason="limit"} > 0'
        while not watch.prometheus.query(evicted):
            assert client.rollout(BALL, **{**many_balls(10), "steps": 20}, keep=True).kept.handle
        watch.fires({"SimgradTapeMemory"})
        watch.clears()


@contextlib.contextmanager
def on_gpu(folder, rules_text, **settings):
    flags = ("--device=cuda", f"--kernel_cache={folder}/kernels", "--memory_limit_bytes=1000000000")
    environment = stand_in_gpu.environment(**settings)
    watch = Watch(folder, with_short_windows(rules_text), flags, environment)
    try:
        yield watch
    finally:
        watch.prometheus.stop()
        watch.server.stop()


@stand_in_gpu.needed
def test_alerts_on_the_gpu_fire_and_clear(tmp_path, rules_text):
    used = "simgrad_gpu_memory_used_bytes > 0"
    with on_gpu(tmp_path, rules_text) as watch, watch.client() as client:
        blocks = iter(client.rollout_stream(BALL, **many_balls(100)))
        for _ in range(20):  # later chunks need more than the first: a copy to return to, samples
            next(blocks)
        since = f"{used} and timestamp(simgrad_gpu_memory_used_bytes) > {time.time()}"
        (sample,) = wait_until(lambda: watch.prometheus.query(since), "memory in use")
    full = int(float(sample["value"][1]) * 1.02)  # that work will take 98 % of it
    (tmp_path / "full").mkdir()
    errors = stand_in_gpu.ErrorFile(tmp_path)
    settings = dict(memory=full, error_file=errors.path)
    with on_gpu(tmp_path / "full", rules_text, **settings) as watch, watch.client() as client:
        blocks = iter(client.rollout_stream(BALL, **many_balls(100)))
        next(blocks)
        watch.fires({"SimgradGpuMemory"})
        blocks.close()
        watch.clears()

        def ask_for_too_much(caller):
            with pytest.raises(sg.ResourceExhausted):
                caller.rollout(BALL, **many_balls(5000))

        with repeated(watch, ask_for_too_much):
            watch.fires({"SimgradGpuOutOfMemory"}, beside={"SimgradErrorRate"})
        watch.clears()

        def ask_in_vain(caller):
            with pytest.raises(sg.Internal):
                caller.rollout(BALL, **{**many_balls(3), "steps": 10})

        errors.begin(errors.INVALID_VALUE)
        with repeated(watch, ask_in_vain):
            troubles = {"SimgradInternalErrors", "SimgradGpuErrors"} | OF_AVAILABILITY
            watch.fires(troubles, beside={"SimgradErrorRate"})
        errors.end()
        watch.clears()
