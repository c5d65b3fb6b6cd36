"""The chart, rendered with a file of values."""

import functools
import json
import os
import pathlib
import shutil
import subprocess

import yaml
from live_server import ROOT

CHART = ROOT / "deploy/kubernetes/simgrad"
VALUES = {p.stem: p for p in sorted((ROOT / "tests/deploy/chart_values").glob("*.yaml"))}
CASES = ("default", *VALUES)


class RenderError(Exception):
    """A template refused to render."""


@functools.cache
def renderer():
    """The renderer, built with Debian's Go from Debian's libraries."""
    assert shutil.which("go"), "go is missing: scripts/setup --with-deploy-tests"
    out = ROOT / "build/render_chart"
    out.parent.mkdir(exist_ok=True)
    offline = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}
    subprocess.run(
        ["go", "build", "-o", str(out), "."],
        cwd=ROOT / "tests/deploy/render_chart",
        env={**os.environ, **offline, "GOCACHE": str(ROOT / "build/go-cache")},
        check=True,
    )
    return out


def render(*files: pathlib.Path, release="demo", chart=CHART):
    """(merged values, text of every template by its name)."""
    command = [str(renderer()), str(chart), release, "lab", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RenderError(done.stderr)
    answer = json.loads(done.stdout)
    return answer["values"], answer["files"]


@functools.cache
def case(name):
    return render(*([VALUES[name]] if name in VALUES else []))


def objects(name):
    """The Kubernetes objects of a case, by kind; there is one of each."""
    texts = [text for file, text in case(name)[1].items() if file.endswith(".yaml")]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    by_kind = {document["kind"]: document for document in found}
    assert len(by_kind) == len(found)
    return by_kind


def pod(name):
    return objects(name)["Deployment"]["spec"]["template"]


def container(name):
    """The server's; an operator may put others beside it."""
    (server,) = [c for c in pod(name)["spec"]["containers"] if c["name"] == "simgrad"]
    return server


def flags(name):
    """The server's flags, by their names."""
    pairs = [argument[2:].split("=", 1) for argument in container(name)["args"]]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)
