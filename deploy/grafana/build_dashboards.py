#!/usr/bin/env python3
"""Writes the dashboards: deploy/grafana/dashboards/*.json, from operations.py and numerics.py.

usage: .venv/bin/python deploy/grafana/build_dashboards.py
Then deploy/kubernetes/copy-files, for the chart.
"""

from __future__ import annotations

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import numerics  # noqa: E402
import operations  # noqa: E402
from panel import DATASOURCE, grafana_panel, selector  # noqa: E402

SOURCES = (operations, numerics)
WIDTH = 24
HEIGHT = 8
STAT_HEIGHT = 4
TARGET_VARIABLES = ("job", "namespace", "pod", "instance")


def _query_variable(name: str, query: str) -> dict:
    # All jobs are those found, not every job there is: others export process_... too. Outside of Kubernetes series
    # have no namespace and no pod, and an alert on a service has no instance: all of these is those without, too.
    everything = {"job": None, "world": ".+", "site": ".+"}.get(name, ".*")
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,  # on change of the time range: worlds and instances come and go
        "includeAll": True,
        "allValue": everything,
        "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def variables(names: tuple[str, ...]) -> list[dict]:
    """The data source, job, namespace, pod and instance, and what a dashboard adds."""
    pods = 'job=~"$job", namespace=~"$namespace"'
    queries = {
        "job": "label_values(simgrad_ready, job)",
        "namespace": 'label_values(simgrad_ready{job=~"$job"}, namespace)',
        "pod": f"label_values(simgrad_ready{{{pods}}}, pod)",
        "instance": f'label_values(simgrad_ready{{{pods}, pod=~"$pod"}}, instance)',
        "world": f"label_values(simgrad_gradients_total{selector()}, world)",
        "site": f"""label_values(simgrad_termination_checks_total{selector('world=~"$world"')}, site)""",
    }
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "multi": False,
        "includeAll": False,
    }
    return [source] + [_query_variable(n, queries[n]) for n in (*TARGET_VARIABLES, *names)]


def _annotation(name: str, colour: str, expression: str, title: str) -> dict:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": colour,
        "expr": expression,
        "titleFormat": title,
        "step": "60s",
    }


def annotations() -> list[dict]:
    """Vertical lines over every panel: processes that began (upgrades, restarts), and alerts."""
    alerts = f"""ALERTS{selector('alertname=~"Simgrad.+", alertstate="firing"')}"""
    return [
        _annotation(
            "Starts",
            "blue",
            f"time() - process_start_time_seconds{selector()} < 60",
            "{{pod}} {{instance}} started",
        ),
        _annotation("Alerts", "red", alerts, "{{alertname}}"),
    ]


def panels(rows) -> list[dict]:
    """Rows of panels on the grid, filled from left to right."""
    placed: list[dict] = []
    y = 0
    for title, members in rows:
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        row = {"id": len(placed) + 1, "type": "row", "title": title, "collapsed": False}
        placed.append({**row, "gridPos": place, "panels": []})
        y += 1
        x = line = 0
        for member in members:
            if x + member.width > WIDTH:
                x, y, line = 0, y + line, 0
            height = STAT_HEIGHT if member.kind == "stat" else HEIGHT
            placed.append(grafana_panel(member, len(placed) + 1, x, y, height))
            x, line = x + member.width, max(line, height)
        y += line
    return placed


def dashboard(source) -> dict:
    """A dashboard in Grafana's JSON, for Grafana 10 and later."""
    others = [other for other in SOURCES if other is not source]
    return {
        "uid": source.UID,
        "title": source.TITLE,
        "description": source.DESCRIPTION,
        "tags": ["simgrad"],
        "editable": False,
        "graphTooltip": 1,
        "schemaVersion": 38,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": variables(source.VARIABLES)},
        "links": [
            {"title": other.TITLE, "type": "link", "url": f"/d/{other.UID}", "keepTime": True}
            for other in others
        ],
        "annotations": {"list": annotations()},
        "panels": panels(source.ROWS),
    }


def rendered() -> dict[str, str]:
    """Text of every dashboard file, by its name."""
    return {
        f"{source.UID}.json": json.dumps(dashboard(source), indent=1, ensure_ascii=False) + "\n"
        for source in SOURCES
    }


if __name__ == "__main__":
    (FOLDER / "dashboards").mkdir(exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / "dashboards" / name).write_text(text)
