"""Draws a dashboard from data that Prometheus answered: a preview, not Grafana.

tests/deploy/live_dashboards_test.py calls it with the data of its run; the pictures in docs/pictures/
come from there:
  SIMGRAD_PREVIEW_FOLDER=docs/pictures .venv/bin/python -m pytest tests/deploy/live_dashboards_test.py
"""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.colors import LogNorm  # noqa: E402

COLUMN, LINE = 0.62, 0.34  # inches of a cell of Grafana's grid
LEGEND_ENTRIES = 8
CAPTION = "preview drawn with matplotlib from a test's data, not a screenshot of Grafana"

# A series is {"metric": labels, "values": [[time, text], ...]}; data: by panel title and refId.
Lines = list[dict]
Data = dict[tuple[str, str], Lines]


def _legend(template: str, labels: dict[str, str]) -> str:
    for name, text in labels.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def _points(line: dict, start: float) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array([[when, float(text)] for when, text in line["values"]])
    return pairs[:, 0] - start, pairs[:, 1]


def _draw_lines(axes, panel: dict, data: Data, start: float) -> None:
    entries = 0
    for target in panel["targets"]:
        for line in data[panel["title"], target["refId"]]:
            label = _legend(target["legendFormat"], line["metric"])
            entries += 1
            shown = label if entries <= LEGEND_ENTRIES else None
            axes.plot(*_points(line, start), linewidth=1, label=shown)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.yaxis.get_offset_text().set_fontsize(6)
    axes.legend(fontsize=5.5, ncols=2, loc="upper left", framealpha=0.6)


def _draw_heatmap(axes, panel: dict, data: Data, start: float) -> None:
    """Buckets are cumulative: a row is the difference of two."""
    lines = data[panel["title"], panel["targets"][0]["refId"]]
    lines = sorted(lines, key=lambda line: float(line["metric"]["le"]))
    times = sorted({when for line in lines for when, _ in line["values"]})
    column = {when: i for i, when in enumerate(times)}
    cumulative = np.zeros((len(lines), len(times)))
    for row, line in enumerate(lines):
        for when, text in line["values"]:
            cumulative[row, column[when]] = float(text)
    cells = np.maximum(np.diff(cumulative, axis=0, prepend=0), 0)
    cells = np.where(cells > 0, cells, np.nan)
    if np.isfinite(cells).any():
        seconds = np.array(times) - start
        axes.pcolormesh(seconds, np.arange(len(lines)), cells, cmap="Oranges", norm=LogNorm())
    names = [line["metric"]["le"] for line in lines]
    axes.set_yticks(range(len(names)), names, fontsize=5.5)


def _draw_stat(axes, panel: dict, data: Data) -> None:
    texts = []
    for target in panel["targets"]:
        for line in data[panel["title"], target["refId"]]:
            names = panel["options"]["textMode"] == "name"
            last = f"{float(line['values'][-1][1]):.4g}"
            texts.append(_legend(target["legendFormat"], line["metric"]) if names else last)
    axes.text(0.5, 0.5, "\n".join(texts) or "no data", ha="center", va="center", fontsize=8)
    axes.set_axis_off()


def _draw_panel(axes, panel: dict, data: Data, start: float) -> bool:
    """Whether there was anything to draw."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.set_title(f"{panel['title']}  [{unit}]", fontsize=7.5, loc="left", pad=3)
    axes.tick_params(labelsize=6, length=2)
    has_data = any(data[panel["title"], target["refId"]] for target in panel["targets"])
    if panel["type"] == "stat":
        _draw_stat(axes, panel, data)
    elif not has_data:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=7, color="grey")
        axes.set_xticks([])
        axes.set_yticks([])
    elif panel["type"] == "heatmap":
        _draw_heatmap(axes, panel, data, start)
    else:
        _draw_lines(axes, panel, data, start)
    return has_data


def draw(dashboard: dict, data: Data, start: float, picture: pathlib.Path) -> set[str]:
    """Writes the picture, with times from `start`; returns the titles of panels that had data."""
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"]) + 2
    figure = plt.figure(figsize=(24 * COLUMN, height * LINE))
    drawn = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] / 24, 1 - (place["y"] + 2) / height
        if panel["type"] == "row":
            figure.text(0.005, top - 0.9 / height, panel["title"], fontsize=10, weight="bold")
            continue
        width, tall = place["w"] / 24, place["h"] / height
        box = (left + 0.028, top - tall + 0.8 / height, width - 0.04, tall - 1.9 / height)
        if _draw_panel(figure.add_axes(box), panel, data, start):
            drawn.add(panel["title"])
    figure.text(0.005, 1 - 1.2 / height, f"{dashboard['title']} ({CAPTION})", fontsize=11)
    figure.savefig(picture, dpi=90)
    plt.close(figure)
    return drawn
