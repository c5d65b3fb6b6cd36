"""Charts as SVG text: no script, no font, nothing that is fetched. Equal data give equal text."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Sequence

import numpy as np

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 34
COLUMNS = 360  # at most so many points or bars along the x axis
# Distinct to most eyes; from the set of Okabe and Ito.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5c5c5c")
PATH_COLOUR, ROUNDING_COLOUR = "#d55e00", "#0072b2"


@dataclass(frozen=True)
class Line:
    """Values over steps, [T]; what is not finite leaves a gap. `key` names the line in a legend."""

    name: str
    values: np.ndarray
    colour: str
    dashed: bool = False
    key: str = ""


@dataclass(frozen=True)
class Bars:
    """Counts over steps, [T], stacked over those of the bars before."""

    name: str
    values: np.ndarray
    colour: str


@dataclass(frozen=True)
class Bar:
    """One row of a chart of bars that lie: parts of a length, by name and colour."""

    name: str
    parts: Sequence[tuple[str, float, str]]


class _Axis:
    """From values to pixels."""

    def __init__(self, low: float, high: float, first: float, last: float, log: bool = False):
        self._log = log
        self._low = float(np.log10(low)) if log else low
        self._high = float(np.log10(high)) if log else high
        if self._high <= self._low:
            self._high = self._low + 1.0
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        value = float(np.log10(value)) if self._log else value
        share = (value - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        if self._log:
            low, high = int(np.ceil(self._low)), int(np.floor(self._high))
            stride = max(1, (high - low) // 5)
            return [10.0**k for k in range(low, high + 1, stride)]
        span = self._high - self._low
        unit = 10.0 ** np.floor(np.log10(span / 4))
        unit *= next(m for m in (1, 2, 5, 10) if span / (unit * m) <= 5)
        first = np.ceil(self._low / unit)
        count = int(np.floor(self._high / unit) - first) + 1
        return [float((first + k) * unit) for k in range(count)]


def lines(
    figure: str, drawn: Sequence[Line], y_label: str, log: bool = False, joined: np.ufunc = np.fmax
) -> str:
    """Lines over steps. Where steps share a point, it shows what `joined` makes of them (the largest); on a
    logarithmic axis values that are not above 0 lie on its lower end."""
    steps = max((len(line.values) for line in drawn), default=0)
    values = np.concatenate([line.values[np.isfinite(line.values)] for line in drawn] or [np.zeros(0)])
    if log:
        positive = values[values > 0]
        low = 10 ** np.floor(np.log10(positive.min())) / 10 if positive.size else 0.1
        high = 10 ** np.ceil(np.log10(positive.max())) if positive.size else 1.0
    else:
        low, high = 0.0, float(max(values.max(initial=0.0), 1.0))
    x, y = _axes(steps, low, high, log)
    body = []
    for line in drawn:
        runs: list[list[str]] = [[]]
        for step, value in _thinned(line.values, joined):
            if np.isfinite(value):
                runs[-1].append(f"{x(step + 0.5):.1f},{y(max(value, low)):.1f}")
            elif runs[-1]:
                runs.append([])
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        for run in filter(None, runs):
            points = run if len(run) > 1 else [run[0], run[0]]
            body.append(
                f'<polyline data-series="{escape(line.name)}" fill="none" stroke="{line.colour}"'
                f'{dash} stroke-width="1.6" stroke-linecap="round" points="{" ".join(points)}"/>'
            )
    return _figure(figure, body, x, y, y_label)


def bars(figure: str, drawn: Sequence[Bars], y_label: str) -> str:
    """Stacked bars over steps. Where steps share a bar, it shows their sum."""
    steps = max((len(b.values) for b in drawn), default=0)
    edges = np.unique(np.linspace(0, steps, min(steps, COLUMNS) + 1).astype(int))
    if steps == 0:
        return _figure(figure, [], *_axes(1, 0.0, 1.0, False), y_label)
    sums = [np.add.reduceat(np.asarray(b.values, float), edges[:-1]) for b in drawn]
    x, y = _axes(steps, 0.0, float(max(np.sum(sums, axis=0).max(initial=0.0), 1.0)), False)
    body = []
    base = np.zeros(len(edges) - 1)
    for b, counts in zip(drawn, sums):
        for k in np.flatnonzero(counts):
            left, right = x(edges[k]), x(edges[k + 1])
            last = edges[k + 1] - 1
            when = f"step {edges[k]}" if last == edges[k] else f"steps {edges[k]} to {last}"
            top, bottom = y(base[k] + counts[k]), y(base[k])
            body.append(
                f'<rect data-series="{escape(b.name)}" data-step="{edges[k]}" data-last-step="{last}" data-count="{counts[k]:g}" '
                f'x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 0.5, 1.5):.1f}" '
                f'height="{bottom - top:.1f}" fill="{b.colour}"><title>{escape(b.name)}, {when}: '
                f"{counts[k]:g}</title></rect>"
            )
        base += counts
    return _figure(figure, body, x, y, y_label, whole=True)


def rows(figure: str, drawn: Sequence[Bar]) -> str:
    """Bars that lie, each with its parts beside each other, on one scale; lengths are written behind them."""
    height = 26 * len(drawn) + 12
    longest = max((sum(length for _, length, _ in bar.parts) for bar in drawn), default=0.0)
    left, right = 150, WIDTH - 190
    body = []
    for k, bar in enumerate(drawn):
        top, at = 6 + 26 * k, float(left)
        body.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{escape(bar.name)}</text>')
        for name, length, colour in bar.parts:
            width = (right - left) * length / longest if longest else 0.0
            body.append(
                f'<rect data-series="{escape(name)}" data-row="{escape(bar.name)}" data-length="{length:.9g}" '
                f'x="{at:.1f}" y="{top}" width="{width:.1f}" height="18" fill="{colour}">'
                f"<title>{escape(name)} {length:.4g}</title></rect>"
            )
            at += width
        said = ", ".join(f"{name} {length:.3g}" for name, length, _ in bar.parts)
        body.append(f'<text x="{at + 6:.1f}" y="{top + 14}">{escape(said)}</text>')
    return _svg(figure, body, height)


def legend(names: Sequence[tuple[str, str]]) -> str:
    """Names and colours, for below a chart."""
    return "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in names
    )


def document(chart: str, names: Sequence[tuple[str, str]]) -> str:
    """A chart as a file of its own, with a legend below it on white."""
    head, _, body = chart.partition(">")
    height = int(head.rpartition('height="')[2].rstrip('"'))
    head = head.replace(f" {height}\"", f" {height + 26}\"").replace(f'"{height}"', f'"{height + 26}"')
    key, at = [], _LEFT
    for name, colour in names:
        key.append(f'<rect x="{at}" y="{height + 6}" width="12" height="12" fill="{colour}"/>')
        key.append(f'<text x="{at + 17}" y="{height + 16}">{escape(name)}</text>')
        at += 40 + 7 * len(name)
    style = (
        "<style>text{font:11px sans-serif;fill:#444}.grid{stroke:#e6e6e6}.axis{stroke:#888}</style>"
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    return f"{head}>{style}{body.removesuffix('</svg>')}{''.join(key)}</svg>\n"


def _axes(steps: int, low: float, high: float, log: bool) -> tuple[_Axis, _Axis]:
    x = _Axis(0.0, float(max(steps, 1)), _LEFT, WIDTH - _RIGHT)
    return x, _Axis(low, high, HEIGHT - _BOTTOM, _TOP, log)


def _thinned(values: np.ndarray, joined: np.ufunc) -> list[tuple[float, float]]:
    """Steps and values; where there are too many, each group of neighbours as one."""
    if len(values) <= COLUMNS:
        return [(float(t), float(v)) for t, v in enumerate(values)]
    edges = np.linspace(0, len(values), COLUMNS + 1).astype(int)
    groups = joined.reduceat(np.asarray(values, float), edges[:-1])
    return [(float(t), float(v)) for t, v in zip(edges[:-1], groups)]


def _figure(
    figure: str, body: Sequence[str], x: _Axis, y: _Axis, y_label: str, whole: bool = False
) -> str:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    grid = []
    for value in y.ticks():
        if whole and value != int(value):
            continue
        at = y(value)
        grid.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
        grid.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in x.ticks():
        if value == int(value):
            grid.append(
                f'<text x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>'
            )
    grid.append(f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    grid.append(f'<text x="{right}" y="{HEIGHT - 4}" text-anchor="end">step</text>')
    middle = (bottom + _TOP) // 2
    grid.append(
        f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    return _svg(figure, [*grid, *body], HEIGHT)


def _svg(figure: str, body: Sequence[str], height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" data-figure="{escape(figure)}" '
        f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">' + "".join(body) + "</svg>"
    )
