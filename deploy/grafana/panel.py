"""Panels as data, and their Grafana form.

Every query is written through the functions here, so every selector carries $job, $namespace, $pod
and $instance, every rate $__rate_interval, and no quantile or ratio gives NaN on an idle server.
"""

from __future__ import annotations

import dataclasses

TARGET = 'job=~"$job", namespace=~"$namespace", pod=~"$pod", instance=~"$instance"'
# What tells processes apart, and how they are called: outside of Kubernetes a pod has no name.
PROCESS = "pod, instance"
PROCESS_NAME = "{{pod}} {{instance}}"
WINDOW = "[$__rate_interval]"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclasses.dataclass(frozen=True)
class Query:
    """One PromQL expression and how its series are called; heatmaps take no legend."""

    expression: str
    legend: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel; `unit` is Grafana's id of a unit, `width` is out of 24."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"  # timeseries, heatmap, stat
    width: int = 8
    stacked: bool = False
    names: bool = False  # a stat that shows the names of its series, not their values
    threshold: float | None = None  # a line: where an alert looks, or an objective is missed


def selector(match: str = "") -> str:
    """Braces with the target and further matchers."""
    return "{" + TARGET + (f", {match}" if match else "") + "}"


def world(match: str = "") -> str:
    """Matchers of the chosen worlds."""
    return 'world=~"$world"' + (f", {match}" if match else "")


def site(match: str = "") -> str:
    """Matchers of the chosen worlds and sites."""
    return world('site=~"$site"' + (f", {match}" if match else ""))


def value(metric: str, by: str, match: str = "", how: str = "sum") -> str:
    """A gauge."""
    return f"{how} by ({by}) ({metric}{selector(match)})"


def rate(metric: str, by: str, match: str = "") -> str:
    """Increments per second of a counter."""
    return f"sum by ({by}) (rate({metric}{selector(match)}{WINDOW}))"


def share(part: str, whole: str) -> str:
    """part / whole with the same labels; no sample where the whole is zero."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, histogram: str, by: str, match: str = "") -> str:
    """A quantile of a histogram; no sample where nothing was observed."""
    buckets = rate(f"{histogram}_bucket", f"{by}, le" if by else "le", match)
    observed = rate(f"{histogram}_count", by, match)
    return f"histogram_quantile({q}, {buckets}) and on ({by}) ({observed} > 0)"


def mean(histogram: str, by: str, match: str = "") -> str:
    """The mean of a histogram."""
    return share(rate(f"{histogram}_sum", by, match), rate(f"{histogram}_count", by, match))


def heatmap(
    title: str, description: str, unit: str, histogram: str, match: str = "", width: int = 8
):
    """A heatmap of a histogram: observations per bucket and interval."""
    query = f"sum by (le) (increase({histogram}_bucket{selector(match)}{WINDOW}))"
    return Panel(title, description, unit, (Query(query, "{{le}}"),), "heatmap", width)


def _targets(panel: Panel) -> list[dict]:
    instant = panel.kind == "stat"
    return [
        {
            "datasource": DATASOURCE,
            "expr": query.expression,
            "legendFormat": query.legend,
            "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            "instant": instant,
            "range": not instant,
            "refId": chr(ord("A") + i),
        }
        for i, query in enumerate(panel.queries)
    ]


def _options(panel: Panel) -> dict:
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
            "yAxis": {"unit": panel.unit},
            "rowsFrame": {"layout": "le"},
            "tooltip": {"show": True, "yHistogram": True},
        }
    if panel.kind == "stat":
        return {
            "colorMode": "none" if panel.names else "value",
            "graphMode": "none",
            "textMode": "name" if panel.names else "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def grafana_panel(panel: Panel, identity: int, x: int, y: int, height: int) -> dict:
    """A panel in Grafana's JSON, at a place of the grid."""
    defaults: dict = {"unit": panel.unit}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": stacking,
            "thresholdsStyle": {"mode": "off" if panel.threshold is None else "dashed"},
        }
        if panel.threshold is not None:
            steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.threshold}]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["min"] = 0
    return {
        "id": identity,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"h": height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": _targets(panel),
    }
