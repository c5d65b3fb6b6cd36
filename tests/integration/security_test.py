"""Who may talk to the server, and what happens when certificates and tokens change."""

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest
from certificates import Authority, Secret
from live_server import BINARY, eventually

import simgrad as sg
from simgrad import command_line

pytestmark = pytest.mark.waits

BALL = sg.World("bouncing_ball")
FALL = dict(steps=5, initial={"y": [0.5], "v": [0.0]}, params={"k": 1.0})


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server_files(authority):
    return authority.sign("server")


def tls_flags(files):
    return [f"--tls_certificate={files[0]}", f"--tls_key={files[1]}"]


def copied(pair, folder):
    """A certificate and its key as files that a test may replace."""
    certificate, key = folder / "certificate", folder / "key"
    certificate.write_bytes(pair[0].read_bytes())
    key.write_bytes(pair[1].read_bytes())
    return certificate, key


def scrape(server):
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    return urllib.request.urlopen(url, timeout=30).read().decode()


def answers(target, **how):
    """Whether a rollout on a new connection is answered."""
    try:
        with sg.Client(target, timeout=10, retry=False, **how) as client:
            return bool(client.rollout(BALL, **FALL).ok.all())
    except (sg.Unavailable, sg.Unauthenticated):
        return False


class TestTls:
    def test_a_caller_who_trusts_the_ca_is_served_and_nobody_else(
        self, authority, server_files, start, tmp_path
    ):
        server = start(*tls_flags(server_files))
        assert answers(server.target, credentials=sg.tls(authority.certificate))
        assert not answers(server.target)  # plaintext
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other", "other")
        assert not answers(server.target, credentials=sg.tls(stranger.certificate))

    def test_mutual_tls_wants_a_certificate_of_its_ca(
        self, authority, server_files, start, tmp_path
    ):
        server = start(*tls_flags(server_files), f"--tls_client_ca={authority.certificate}")
        certificate, key = authority.sign("client")
        ca = authority.certificate
        assert answers(server.target, credentials=sg.tls(ca, certificate=certificate, key=key))
        assert not answers(server.target, credentials=sg.tls(ca))
        (tmp_path / "other").mkdir()
        wrong = Authority(tmp_path / "other", "other").sign("client")
        assert not answers(
            server.target, credentials=sg.tls(ca, certificate=wrong[0], key=wrong[1])
        )

    def test_a_certificate_that_is_not_shown_or_not_admitted_is_among_what_a_cut_may_be(
        self, authority, server_files, start, tmp_path
    ):
        server = start(*tls_flags(server_files), f"--tls_client_ca={authority.certificate}")
        ca = authority.certificate
        wrong = Authority(tmp_path, "other").sign("client")
        for credentials in (None, sg.tls(ca), sg.tls(ca, certificate=wrong[0], key=wrong[1])):
            with sg.Client(server.target, timeout=10, retry=False, credentials=credentials) as client:
                with pytest.raises(sg.Unavailable, match="speak TLS.* a certificate that the server admits"):
                    client.info()

    def test_files_that_are_no_pem_are_refused_before_anything_is_sent(self, authority, tmp_path):
        certificate, key = authority.sign("client")
        for how, said in (
            (dict(ca=key), f"ca {key}: holds no PEM of a certificate"),
            (dict(certificate=key, key=key), f"certificate {key}: holds no PEM of a certificate"),
            (dict(certificate=certificate, key=certificate), f"key {certificate}: holds no PEM of a private key"),
        ):
            with pytest.raises(ValueError, match=re.escape(said)):
                sg.tls(**how)
        broken = tmp_path / "broken"
        broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        with sg.Client("localhost:1", timeout=10, credentials=sg.tls(broken)) as client:
            with pytest.raises(sg.Unavailable):
                client.info()

    def test_a_name_of_several_addresses_is_told_by_the_one_that_answers(self, authority, server_files, start):
        # ::1 is nobody's: whichever address failed last, that of the server says why.
        server = start(*tls_flags(server_files), f"--tls_client_ca={authority.certificate}")
        target = server.target.replace("127.0.0.1", "localhost")
        with sg.Client(target, timeout=3, credentials=sg.tls(authority.certificate)) as client:
            with pytest.raises(sg.Unavailable) as failed:
                client.info()
        assert str(failed.value).startswith(f"cannot connect to {target}: the connection was closed at once")

    def test_a_certificate_names_its_caller_and_twenty_names_have_series(
        self, authority, server_files, start
    ):
        # A certificate is known by its first alternative name; of 22 names the last two are others.
        names = ["localhost", *(f"team-{i}" for i in range(21))]
        ca = authority.certificate
        server = start(
            *tls_flags(server_files), f"--tls_client_ca={ca}", f"--callers={','.join(names)}"
        )
        certificate, key = authority.sign("client")
        assert answers(server.target, credentials=sg.tls(ca, certificate=certificate, key=key))
        page = scrape(server)
        told = re.findall(r'simgrad_caller_requests_total\{caller="([^"]*)"\} (\d+)', page)
        assert sorted(told) == sorted(
            [("localhost", "1"), ("other", "0"), *((name, "0") for name in names[1:20])]
        )
        server.process.terminate()
        server.process.wait(timeout=30)
        server.log.seek(0)
        lines = [json.loads(line) for line in server.log.read().splitlines()]
        (rollout,) = [line for line in lines if line.get("method") == "Rollout"]
        assert rollout["caller"] == "localhost"

    def test_an_expired_certificate_is_refused_on_both_sides(self, authority, server_files, start):
        expired = authority.sign("expired", days=-1)
        server = start(*tls_flags(expired))
        with sg.Client(server.target, timeout=10, credentials=sg.tls(authority.certificate)) as client:
            with pytest.raises(sg.Unavailable, match="the server's certificate has expired") as failed:
                client.info()
        assert failed.value.tries == 1
        mutual = start(*tls_flags(server_files), f"--tls_client_ca={authority.certificate}")
        assert not answers(
            mutual.target,
            credentials=sg.tls(authority.certificate, certificate=expired[0], key=expired[1]),
        )

    def test_a_certificate_rotated_under_load_drops_no_good_request(
        self, authority, start, tmp_path
    ):
        secret = Secret(tmp_path / "secret")
        first, second = authority.sign("first"), authority.sign("second", days=60)
        secret.put(certificate=first[0], key=first[1])
        server = start(
            f"--tls_certificate={secret.folder}/certificate",
            f"--tls_key={secret.folder}/key",
            "--tls_reload_interval=1s",
        )
        before = expiry(server)
        stop, failures, served = threading.Event(), [], []

        def load():
            while not stop.is_set():
                # A connection of its own for each call: every one is a handshake.
                good = answers(server.target, credentials=sg.tls(authority.certificate))
                (served if good else failures).append(time.monotonic())

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        secret.put(certificate=second[0], key=second[1])
        eventually(lambda: expiry(server) > before)
        rotated = time.monotonic()
        eventually(lambda: sum(at > rotated for at in served) > 10)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        presented = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-alpn", "h2"],
            input="", capture_output=True, text=True, errors="replace",  # tickets are not text
        ).stdout  # fmt: skip
        assert second[0].read_text().strip() in presented


    def test_a_broken_rotation_costs_no_request_and_is_told(self, authority, start, tmp_path):
        """Files are replaced one by one, by something else, and not at all."""
        first, second = authority.sign("kept"), authority.sign("next", days=60)
        certificate, key = copied(first, tmp_path)
        server = start(*tls_flags((certificate, key)), "--tls_reload_interval=1s")
        before = expiry(server)
        assert failed_reloads(server) == {"certificate": 0, "tokens": 0}

        def served():
            return answers(server.target, credentials=sg.tls(authority.certificate))

        complaints = []
        for told, break_it in (
            ("must be the key", lambda: certificate.write_bytes(second[0].read_bytes())),
            ("a certificate chain", lambda: certificate.write_text("no PEM")),
            ("a private key", lambda: (certificate.write_bytes(first[0].read_bytes()), key.unlink())),
        ):
            break_it()
            eventually(lambda told=told: any(told in line["message"] for line in notes(server)))
            complaints.append(told)
            assert served() and expiry(server) == before
            failed = failed_reloads(server)
            assert failed["certificate"] >= len(complaints) and failed["tokens"] == 0
        copied(second, tmp_path)
        eventually(lambda: expiry(server) > before)
        assert served()
        warnings = [line for line in notes(server) if line["level"] == "warning"]
        assert len(warnings) <= 2 * len(complaints)  # told once, not at every look

    def test_a_certificate_that_became_a_folder_changes_nothing_and_sighup_reads_again(self, authority, start, tmp_path):
        """Containers make a folder where the source of a file's mount is missing."""
        first, second = authority.sign("kept"), authority.sign("next", days=60)
        certificate, key = copied(first, tmp_path)
        server = start(*tls_flags((certificate, key)), "--tls_reload_interval=1h")
        before = expiry(server)
        certificate.unlink()
        certificate.mkdir()
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: failed_reloads(server)["certificate"] == 1)
        assert answers(server.target, credentials=sg.tls(authority.certificate)) and expiry(server) == before
        certificate.rmdir()
        copied(second, tmp_path)
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: expiry(server) > before)
        assert answers(server.target, credentials=sg.tls(authority.certificate))

    def test_what_grpc_says_of_a_failed_handshake_is_a_line_of_json(
        self, authority, server_files, start
    ):
        server = start(*tls_flags(server_files), f"--tls_client_ca={authority.certificate}")
        assert not answers(server.target, credentials=sg.tls(authority.certificate))
        eventually(lambda: any("gRPC: " in line["message"] for line in notes(server)))


def notes(server):
    """Lines of the log, all of which are JSON, that are about no request."""
    with open(f"/proc/{server.process.pid}/fd/2") as log:
        lines = [json.loads(line) for line in log if line.endswith("\n")]
    return [line for line in lines if line["event"] == "note"]


def expiry(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        for line in page.read().decode().splitlines():
            if line.startswith("simgrad_tls_certificate_expiry_timestamp_seconds "):
                return float(line.split()[1])
    raise AssertionError("no such metric")


def failed_reloads(server):
    """Of files that changed, by what they hold."""
    told = re.findall(r'simgrad_reload_failures_total\{what="(\w+)"\} (\d+)', scrape(server))
    return {what: int(count) for what, count in told}


class TestTokens:
    def test_only_callers_with_a_token_of_the_file_are_served(self, start, tmp_path):
        tokens = tmp_path / "tokens"
        tokens.write_text("# trainers\nalpha\nbeta\n")
        server = start(f"--token_file={tokens}")
        assert answers(server.target, token="alpha")
        assert answers(server.target, token=lambda: "beta")
        for token in (None, "", "alph", "alphaa", "# trainers"):
            with sg.Client(server.target, token=token) as client:
                for call in (
                    client.info,
                    client.worlds,
                    lambda: client.program(BALL),
                    lambda: client.rollout(BALL, **FALL),
                    lambda: client.gradient(BALL, objective="final_height", **FALL),
                ):
                    with pytest.raises(sg.Unauthenticated) as refused:
                        call()
                    assert refused.value.reason == "UNAUTHENTICATED"
                    assert "alpha" not in str(refused.value)

    def test_the_word_bearer_is_taken_in_any_case_and_one_entry_alone(self, start, tmp_path):
        tokens = tmp_path / "tokens"
        tokens.write_text("alpha\nbeta\n")
        server = start(f"--token_file={tokens}")

        def code(*entries):
            metadata = [("authorization", entry) for entry in entries]
            with grpc.insecure_channel(server.target) as channel:
                ask = channel.unary_unary("/simgrad.v1.Simgrad/GetServerInfo")
                try:
                    ask(b"", timeout=20, metadata=metadata)
                except grpc.RpcError as failed:
                    return failed.code().name
            return "OK"

        for word in ("Bearer", "bearer", "BEARER"):
            assert code(f"{word} alpha") == "OK"
        for wrong in ("Basic alpha", "Beareralpha", "bearer Alpha", "bearer", "alpha"):
            assert code(wrong) == "UNAUTHENTICATED"
        assert code("Bearer alpha", "Bearer beta") == "UNAUTHENTICATED"
        assert code("Bearer alpha", "Bearer wrong") == "UNAUTHENTICATED"

    def test_the_command_line_sends_the_first_token_of_the_servers_own_file(
        self, start, tmp_path, capsys
    ):
        tokens = tmp_path / "tokens"
        tokens.write_text("# trainers\n\nalpha\nbeta\n")
        server = start(f"--token_file={tokens}")
        ask = ["info", "--target", server.target, "--token-file", str(tokens)]
        assert command_line.main(ask) == 0
        tokens.write_text("# nobody\n")
        assert command_line.main(ask) == 2
        assert "holds no token" in capsys.readouterr().err
        with pytest.raises(ValueError, match="one line"), sg.Client("localhost:1", token="a\nb") as c:
            c.info()

    @pytest.mark.parametrize("breaks", ["emptied", "deleted"])
    def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
        self, start, tmp_path, breaks
    ):
        def told():
            return [line for line in notes(server) if "--token_file" in line["message"]]

        tokens = tmp_path / "tokens"
        tokens.write_text("old\n")
        server = start(f"--token_file={tokens}")
        assert answers(server.target, token="old")
        tokens.write_text("new\n")
        eventually(lambda: answers(server.target, token="new"))
        assert not answers(server.target, token="old")
        assert failed_reloads(server) == {"certificate": 0, "tokens": 0}
        tokens.write_text("\n") if breaks == "emptied" else tokens.unlink()
        # The server looks at the file when it is called.
        eventually(lambda: answers(server.target, token="new") and told())
        assert failed_reloads(server)["tokens"] >= 1 and failed_reloads(server)["certificate"] == 0
        assert not answers(server.target, token="")
        tokens.write_text("newest\n")
        eventually(lambda: answers(server.target, token="newest"))
        assert [line["level"] for line in told()] == ["warning"]


class TestExposure:
    @pytest.mark.parametrize(
        "flags, named",
        [
            (["--address=0.0.0.0"], "--allow_insecure"),
            (["--address=0.0.0.0", "TLS"], "--allow_insecure_metrics"),
            (["--tls_certificate=x"], "--tls_key"),
            (["--tls_key=x"], "--tls_certificate"),
            (["--tls_client_ca=x"], "--tls_certificate"),
            (["--tls_certificate=/no/such", "--tls_key=/no/such"], "--tls_certificate"),
            (["--tls_certificate=/tmp", "--tls_key=/tmp"], "--tls_certificate"),
            (["--token_file=/no/such"], "--token_file"),
            (["--kernel_cache=/dev/null/kernels"], "--kernel_cache"),
        ],
    )
    def test_a_configuration_that_cannot_be_meant_is_refused(self, flags, named, server_files):
        flags = [f for flag in flags for f in (tls_flags(server_files) if flag == "TLS" else [flag])]
        for action in ([], ["--validate_config"]):
            ended = subprocess.run(
                [BINARY, "--port=0", "--metrics_port=0", *flags, *action],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert ended.returncode == 2
            assert named in ended.stderr

    @pytest.mark.parametrize("flag", ["--kept_run_bytes", "--content_bytes"])
    def test_a_share_of_the_memory_is_not_more_than_all(self, flag):
        limits = ["--memory_limit_bytes=268435456", f"{flag}=268435457"]
        for action in ([], ["--validate_config"]):
            ended = subprocess.run([BINARY, "--port=0", "--metrics_port=0", *limits, *action], capture_output=True, text=True, timeout=60)
            assert ended.returncode == 2
            assert f"{flag}=268435457: must be at most the memory limit, 268435456 bytes" in ended.stderr

    @pytest.mark.parametrize("device", ["auto", "cpu"])
    def test_validate_config_refuses_a_share_that_no_machine_of_this_size_has(self, device):
        flags = [f"--device={device}", "--content_bytes=1000000000000000"]
        ended = subprocess.run([BINARY, "--validate_config", *flags], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert "--content_bytes=1000000000000000: must be at most the memory limit" in ended.stderr

    def test_validate_config_is_silent_about_a_good_one(self, server_files, authority):
        other = authority.sign("another")
        good = [BINARY, "--validate_config", *tls_flags(server_files), "--address=0.0.0.0"]
        assert subprocess.run([*good, "--allow_insecure_metrics=true"]).returncode == 0
        swapped = [f"--tls_certificate={server_files[0]}", f"--tls_key={other[1]}"]
        ended = subprocess.run(
            [BINARY, "--validate_config", *swapped], capture_output=True, text=True
        )
        assert ended.returncode == 2 and "must be the key of the certificate" in ended.stderr

    def test_tokens_in_the_clear_are_warned_of(self, tmp_path, start):
        tokens = tmp_path / "tokens"
        tokens.write_text("alpha\n")
        flags = [f"--token_file={tokens}", "--address=0.0.0.0", "--allow_insecure=true"]
        told = "tokens travel in the clear"
        for given, warned in ((flags, True), (flags[:1], False)):
            ended = subprocess.run(
                [BINARY, "--validate_config", *given], capture_output=True, text=True
            )
            assert ended.returncode == 0 and (told in ended.stderr) is warned
        server = start(*flags)
        eventually(
            lambda: any(told in n["message"] and n["level"] == "warning" for n in notes(server))
        )

    def test_the_health_port_is_plaintext_and_has_health_alone(
        self, server_files, start, free_port
    ):
        server = start(*tls_flags(server_files), f"--health_port={free_port}")
        asked = [BINARY, "--healthcheck", *tls_flags(server_files), f"--health_port={free_port}"]
        assert subprocess.run(asked).returncode == 0
        # A container engine may hand every container a proxy: it is not asked.
        proxy = {**os.environ, "http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"}
        assert subprocess.run(asked, env=proxy).returncode == 0
        with pytest.raises(sg.SimgradError) as refused, sg.Client(f"127.0.0.1:{free_port}") as client:
            client.info()
        assert refused.value.code == "UNIMPLEMENTED"
        server.stop()
        ended = subprocess.run(asked, capture_output=True, text=True)
        assert ended.returncode == 1 and str(free_port) in ended.stderr

    @pytest.mark.parametrize("flag", ["reflection", "channelz"])
    def test_reflection_and_channelz_are_there_only_where_asked_for(self, start, flag):
        method, request = {
            "reflection": (
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                b":\x01*",
            ),
            "channelz": ("/grpc.channelz.v1.Channelz/GetServers", b""),
        }[flag]
        for value, code in (("true", "OK"), ("false", "UNIMPLEMENTED")):
            server = start(f"--{flag}={value}")
            with grpc.insecure_channel(server.target) as channel:
                call = channel.stream_stream(method)(iter([request]), timeout=20)
                try:
                    list(call)
                except grpc.RpcError:
                    pass
                assert call.code().name == code


class TestDraining:
    """SIGTERM while an answer streams."""

    LONG = dict(
        steps=400_000,
        initial={"y": np.linspace(0.1, 1.0, 64)[:, None], "v": np.zeros((64, 1))},
        params={"k": 1.0},
        chunk_steps=1000,
    )

    def watch(self, port):
        """Health as a probe sees it, until the connection ends."""
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_stream("/grpc.health.v1.Health/Watch")
            try:
                for message in call(b"", timeout=120):
                    yield {1: "SERVING", 2: "NOT_SERVING"}[message[1]]
            except grpc.RpcError:
                return

    def refusal(self, server):
        """The reason why work is refused as unavailable; None where it is done."""
        with sg.Client(server.target) as client:
            try:
                client.rollout(BALL, **FALL, retry=False)
            except sg.Unavailable as error:
                return error.reason
        return None

    def test_health_goes_first_then_the_answer_ends_and_nothing_is_lost(self, start, free_port):
        server = start(f"--health_port={free_port}", "--drain_timeout=120s")
        health = self.watch(free_port)
        assert next(health) == "SERVING"
        with sg.Client(server.target, timeout=120) as client:
            stream = client.rollout_stream(BALL, **self.LONG)
            blocks = iter(stream)
            next(blocks)
            server.process.terminate()
            assert next(health) == "NOT_SERVING"
            # Health goes first: what comes right behind it may still be taken.
            eventually(lambda: self.refusal(server) is not None)
            assert self.refusal(server) in ("DRAINING", "")  # "": the port is closed already
            with pytest.raises(sg.Unavailable):  # on the connection that it has
                client.rollout(BALL, **FALL, retry=False)
            for _ in blocks:
                pass
            assert stream.result.ok.all() and stream.result.steps == self.LONG["steps"]
        assert server.process.wait(timeout=60) == 0

    def test_work_beyond_the_drain_timeout_is_cancelled_and_the_exit_code_says_so(self, start):
        server = start("--drain_timeout=0s")
        with sg.Client(server.target, timeout=120) as client:
            blocks = iter(client.rollout_stream(BALL, **self.LONG, retry=False))
            next(blocks)
            server.process.terminate()
            with pytest.raises((sg.Unavailable, sg.Cancelled)):
                for _ in blocks:
                    pass
        assert server.process.wait(timeout=60) == 3
