"""docs/operations.md says nothing that is not there: panels, flags, values, files, alerts."""

import importlib.metadata
import json
import re
import subprocess

import yaml
from live_server import BINARY, ROOT
from server_flags import server_flags
from simgrad import command_line

PAGE = (ROOT / "docs/operations.md").read_text()
# Alone on its line, or in backquotes.
CLIENT_COMMAND = re.compile(r"(?m)(?:^ *|`)simgrad (info[^`\n]*)")
RUNBOOK = PAGE[PAGE.index("# Alerts") :]
VALUES = yaml.safe_load((ROOT / "deploy/kubernetes/simgrad/values.yaml").read_text())


def panels():
    pages = [json.loads(p.read_text()) for p in (ROOT / "deploy/grafana/dashboards").iterdir()]
    return {panel["title"] for page in pages for panel in page["panels"]}


def test_every_alert_has_a_section_and_every_section_an_alert(rules_text):
    sections = re.findall(r"(?m)^## (Simgrad\w+)$", RUNBOOK)
    assert sorted(sections) == sorted(re.findall(r"- alert: (\w+)", rules_text))


def test_every_section_says_what_to_do():
    for section in RUNBOOK.split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        assert (
            re.search(r"(?m)^- (Do|`\w+`):", text) or "Do:" in text or "- The server" in text
        ), name


def test_panels_that_the_runbook_sends_to_exist():
    named = set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", RUNBOOK))
    assert len(named) > 15
    assert {name.partition(", per")[0] for name in named} <= {
        title.partition(", per")[0] for title in panels()
    }


def test_flags_exist():
    # Flags of helm, docker, kubectl, git, ctest and scripts/wheels.
    others = {"namespace", "set", "from", "create", "reuse", "build", "previous", "short", "reset", "client"}
    others |= {"platform", "load", "preset"}
    named = set(re.findall(r"--([a-z_]+)\b", CLIENT_COMMAND.sub("", PAGE))) - others
    assert {"drain_timeout", "near_band_ulps"} <= named <= server_flags()


def test_the_server_tells_its_version_and_ends():
    assert "`simgrad-server --version` prints version and revision" in PAGE
    told = subprocess.run([str(BINARY), "--version"], capture_output=True, text=True, timeout=60)
    version = importlib.metadata.version("simgrad")
    assert told.returncode == 0
    assert re.fullmatch(rf"simgrad-server {re.escape(version)} [\w-]+\n", told.stdout)


def test_commands_of_the_client_parse():
    commands = CLIENT_COMMAND.findall(PAGE)
    assert len(commands) >= 3 and any("--tls-ca" in command for command in commands)
    for command in commands:
        command_line.parser().parse_args(command.split())


def value_at(path):
    found = VALUES
    for key in path.split("."):
        assert key in found, f"{path} is no value of the chart"
        found = found[key]


def test_values_that_are_set_or_named_exist():
    named = set(re.findall(r"--set ([\w.]+?)=", PAGE))
    named |= set(
        re.findall(rf"`((?:{'|'.join(VALUES)})(?:\.\w+)+)`", PAGE)
    )
    assert len(named) > 20
    for path in named:
        if ".labels." not in path:  # whatever one's own Prometheus selects by
            value_at(path)


def test_files_that_are_linked_exist():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links and all((ROOT / "docs" / link).exists() for link in links)


def test_build_arguments_are_those_of_the_dockerfile():
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
    names = re.findall(r"--build-arg (\w+)=", PAGE)
    assert names and all(f"ARG {name}=" in dockerfile for name in names)


def test_the_pictures_are_said_to_be_previews():
    assert "previews" in PAGE and "no screenshots of Grafana" in PAGE
    for name in re.findall(r"!\[\w+\]\((.*?)\)", PAGE):
        assert (ROOT / "docs" / name).stat().st_size > 50_000
