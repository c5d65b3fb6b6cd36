"""Draws a dashboard from data that Prometheus answered: a preview, not Grafana.

tests/deploy/live_dashboards_test.py calls it with the data of its run; the pictures in docs/pictures/
come from there:
  SIMGRAD_PREVIEW_FOLDER=docs/pictures .venv/bin/python -m pytest tests/deploy/live_dashboards_test.py
"""

from __future__ import annotations

import pathlib
import re

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.colors import LogNorm  # noqa: E402

COLUMN, LINE = 0.62, 0.34  # inches of a cell of Grafana's grid
LEGEND_ENTRIES = 9
LEGEND_COLUMN = 1.4  # inches
# Lines of the grid that a panel keeps free: above for its title, below for its axis and its legend.
ABOVE, BELOW = 1.1, 2.3
CAPTION = "preview drawn with matplotlib from a test's data, not a screenshot of Grafana"

# A series is {"metric": labels, "values": [[time, text], ...]}; data: by panel title and refId.
Lines = list[dict]
Data = dict[tuple[str, str], Lines]


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), template).strip()


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
            axes.plot(*_points(line, start), linewidth=1.4, label=shown)
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ())
    for step in steps[1:]:
        axes.axhline(step["value"], color="red", linewidth=0.8, linestyle="--")
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.yaxis.get_offset_text().set_fontsize(6)
    _legend_below(axes)


def _legend_below(axes) -> None:
    """Under the axis, where it covers no curve; long names are cut."""
    lines, names = axes.get_legend_handles_labels()
    cut = [name if len(name) <= 34 else name[:33] + "…" for name in names]
    area = axes.get_window_extent()
    width, height = area.width / axes.figure.dpi, area.height / axes.figure.dpi  # inches
    place = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.2 / height), "borderaxespad": 0}
    look = {"fontsize": 5.5, "frameon": False, "handlelength": 1.2, "columnspacing": 1}
    axes.legend(lines, cut, ncols=max(1, int(width / LEGEND_COLUMN)), **place, **look)


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


def covered(figure) -> list[str]:
    """Titles of panels whose legend lies over a plot, their own or another."""
    renderer = figure.canvas.get_renderer()
    plots = [axes.get_window_extent(renderer) for axes in figure.axes if axes.axison]
    legends = [(axes.get_title(loc="left"), axes.get_legend()) for axes in figure.axes]
    return [
        title
        for title, legend in legends
        if legend and any(plot.overlaps(legend.get_window_extent(renderer)) for plot in plots)
    ]


def figure_of(dashboard: dict, data: Data, start: float):
    """The figure, with times from `start`, and the titles of panels that had data."""
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
        box = (left + 0.028, top - tall + BELOW / height, width - 0.04, tall - (ABOVE + BELOW) / height)
        if _draw_panel(figure.add_axes(box), panel, data, start):
            drawn.add(panel["title"])
    figure.text(0.005, 1 - 1.2 / height, f"{dashboard['title']} ({CAPTION})", fontsize=11)
    return figure, drawn


def draw(dashboard: dict, data: Data, start: float, picture: pathlib.Path) -> set[str]:
    """Writes the picture; returns the titles of panels that had data."""
    figure, drawn = figure_of(dashboard, data, start)
    figure.savefig(picture, dpi=90)
    plt.close(figure)
    return drawn
