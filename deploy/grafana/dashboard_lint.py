"""What is wrong with a Grafana dashboard: rules in the spirit of Grafana's dashboard-linter.

Every rule takes the dashboard as parsed JSON and yields complaints; none means that it is clean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from metric_manifest import SAMPLE_SUFFIXES, Metric, family_of, names_in

# What every selector is restricted to, by a variable of the same name.
TARGET = ("job", "namespace", "pod", "instance")
RATES = re.compile(r"\b(?:rate|irate|increase)\(([a-zA-Z_:][\w:]*)\{[^}]*\}\[([^\]]*)\]\)")


def graphs(dashboard: dict) -> list[dict]:
    """Panels that show data."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(dashboard: dict) -> Iterator[tuple[str, str]]:
    """Title of the panel and expression of every target."""
    for panel in graphs(dashboard):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def _frame(dashboard: dict) -> Iterator[str]:
    if "__inputs" in dashboard:
        yield "has __inputs, which provisioning does not fill in"
    if dashboard.get("editable", True):
        yield "is editable: changes made in the browser would be lost"
    if not dashboard.get("uid"):
        yield "has no uid: links to it would break"
    identities = [panel["id"] for panel in dashboard["panels"]]
    if len(set(identities)) != len(identities):
        yield "two panels have one id"
    titles = [panel["title"] for panel in graphs(dashboard)]
    yield from (f"two panels are called {title}" for title in titles if titles.count(title) > 1)


def _variables(dashboard: dict) -> Iterator[str]:
    found = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    for name in ("datasource", *TARGET):
        if name not in found:
            yield f"has no variable {name}"
    if found.get("datasource", {}).get("query") != "prometheus":
        yield "variable datasource is not of Prometheus"
    for name, variable in found.items():
        if variable["type"] == "query" and variable.get("refresh") != 2:
            yield f"variable {name} is not reloaded when the time range changes"
    text = str(dashboard["panels"]) + str([v.get("query") for v in found.values()])
    for used in set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__interval", "__range"}:
        if used not in found:
            yield f"uses ${used}, which is no variable"


def _panels(dashboard: dict) -> Iterator[str]:
    for panel in graphs(dashboard):
        where = f"panel {panel['title']!r}"
        if not panel.get("title") or not panel.get("description"):
            yield f"{where} lacks title or description"
        legend = panel.get("options", {}).get("legend", {"placement": "bottom"})
        if legend["placement"] not in ("bottom", "right"):
            yield f"{where} has a legend over its curves"
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield f"{where} has no unit"
        if not panel.get("targets"):
            yield f"{where} has no query"
        for part in (panel, *panel.get("targets", ())):
            if part.get("datasource", {}).get("uid") != "${datasource}":
                yield f"{where} does not take its data source from the variable"


def _overlaps(dashboard: dict) -> Iterator[str]:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            yield f"panel {panel['title']!r} leaves the grid"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                if other != panel["title"]:
                    yield f"panels {panel['title']!r} and {other!r} overlap"
                    return


def _selectors(dashboard: dict) -> Iterator[str]:
    for title, expression in expressions(dashboard):
        for name, braces in re.findall(r"([a-zA-Z_:][\w:]*)(\{[^}]*\})", expression):
            for label in TARGET:
                if f'{label}=~"${label}"' not in braces:
                    yield f"panel {title!r}: {name} is not restricted to ${label}"
        if bare := set(re.findall(r"\b(?:simgrad|grpc_server|process)_\w+(?![\w{])", expression)):
            yield f"panel {title!r}: {', '.join(sorted(bare))} without braces"


def _rates(dashboard: dict, metrics: dict[str, Metric]) -> Iterator[str]:
    for title, expression in expressions(dashboard):
        for window in re.findall(r"\[([^\]]*)\]", expression):
            if window != "$__rate_interval":
                yield f"panel {title!r}: window [{window}] instead of [$__rate_interval]"
        rated = {name for name, _ in RATES.findall(expression)}
        for name in names_in(expression):
            family = metrics.get(family_of(name, metrics))
            counts = name.endswith(("_total", *SAMPLE_SUFFIXES))
            if family is not None:
                counts = family.type == "counter" or family.type == "histogram"
            if counts and name not in rated:
                yield f"panel {title!r}: counter {name} without rate or increase"
            if not counts and name in rated:
                yield f"panel {title!r}: rate of {name}, which is no counter"


def _labels(dashboard: dict, metrics: dict[str, Metric]) -> Iterator[str]:
    target = {*TARGET, "le"}
    for panel in graphs(dashboard):
        for query in panel["targets"]:
            names = [metrics.get(family_of(n, metrics)) for n in names_in(query["expr"])]
            known = target.union(*(metric.labels for metric in names if metric))
            if None in names or not names:
                continue  # not exported yet: its labels are not known
            used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query["expr"]))
            used |= set(re.findall(r"\{\{(\w+)\}\}", query["legendFormat"]))
            for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query["expr"]):
                used |= {label.strip() for label in group.split(",") if label.strip()}
            for label in used - known:
                yield f"panel {panel['title']!r}: no metric of the query has a label {label}"


def complaints(dashboard: dict, metrics: dict[str, Metric]) -> list[str]:
    """Everything that is wrong; `metrics` are the families that a server exports."""
    found: list[str] = []
    for rule in (_frame, _variables, _panels, _overlaps, _selectors):
        found += rule(dashboard)
    return found + [*_rates(dashboard, metrics), *_labels(dashboard, metrics)]
