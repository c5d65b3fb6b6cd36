"""A comparison as one HTML file that needs no network: tables, and charts as inline SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Sequence

import numpy as np

from simgrad.why import svg
from simgrad.why.difference import difference
from simgrad.why.fork import traces_of
from simgrad.why.sentence import among, counted, ulps

if TYPE_CHECKING:
    from simgrad.why.compare import Comparison, Pair

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1.2rem }
h3 { font-size: 1rem; margin-bottom: .2rem }
table { border-collapse: collapse; margin: .5rem 0 } th, td { text-align: left; padding: .2rem .9rem .2rem 0; vertical-align: top }
th { font-weight: 600; border-bottom: 1px solid #999 } td { border-bottom: 1px solid #eee; font-variant-numeric: tabular-nums }
.why { font-size: 1.05rem } code, td.line { font-family: ui-monospace, monospace; font-size: .9em }
svg { display: block; max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #444 }
.grid { stroke: #e6e6e6 } .axis { stroke: #888 } .key { margin-right: 1.2rem; font-size: .85rem }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; vertical-align: -1px }
"""


def page(comparison: Comparison) -> str:
    """The whole file. Equal answers give equal text."""
    names = ", ".join(comparison.results)
    some = next(iter(comparison.results.values()))
    body = [
        f"<h1>{escape(names)}</h1>",
        f"<p>{counted(some.instances, 'instance')}, {counted(some.steps, 'step')}. Reference: {escape(comparison.reference)}.</p>",
        *_note_on_points(some.steps),
        *(f'<p class="why">{_said(pair.why)}</p>' for pair in comparison.pairs.values()),
        *(_pair(pair) for pair in comparison.pairs.values()),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>simgrad compare: {escape(names)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _note_on_points(steps: int) -> list[str]:
    if steps <= svg.COLUMNS:
        return []
    shared = -(-steps // svg.COLUMNS)
    return [
        f"<p>Up to {shared} steps share a point of a line: it shows the largest of their numbers, of margins the smallest. "
        "A bar shows the sum of its steps.</p>"
    ]


def _pair(pair: Pair) -> str:
    parts = [
        f"<h2>{escape(pair.other)} against {escape(pair.reference)}</h2>",
        "<ul>" + "".join(f"<li>{_said(s.text)}</li>" for s in pair.sentences) + "</ul>",
        _forks(pair),
        _iterations(pair),
        _events(pair),
        _margins(pair),
        _gradients(pair),
        _sites(pair),
        _arrays(pair),
    ]
    return f'<section data-pair="{escape(pair.other)}">' + "\n".join(p for p in parts if p) + "</section>"


def _said(text: str) -> str:
    """A sentence, with what stands between backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(parts))


def _forks(pair: Pair) -> str:
    forks = pair.forks
    if forks is None:
        return "<p>Paths are not compared: the two have another number of steps.</p>"
    if not forks.count:
        return "<p>No paths part.</p>"
    site = np.array([name or "unknown site" for name in forks.site])
    located = forks.located & forks.parted
    names = dict.fromkeys([*forks.sites(), *site[located].tolist()])
    drawn = []
    for k, name in enumerate(names):
        here = forks.step[(site == name) & located]
        counts = np.bincount(here, minlength=pair.reference_result.steps)
        drawn.append(svg.Bars(name, counts, svg.COLOURS[k % len(svg.COLOURS)]))
    unknown = forks.count - int(np.count_nonzero(located))
    note = f"<p>{unknown} further instances part at steps that were not located.</p>" if unknown else ""
    return (
        f"<h3>Where paths part: {forks.count} of {pair.other_result.instances} instances</h3>"
        + svg.bars("forks", drawn, "instances")
        + svg.legend([(b.name, b.colour) for b in drawn])
        + note
    )


def _iterations(pair: Pair) -> str:
    if not pair.iterations:
        return ""
    drawn = []
    for k, (name, (mine, theirs)) in enumerate(pair.iterations.items()):
        colour = svg.COLOURS[k % len(svg.COLOURS)]
        drawn += _of_both(pair, name, mine, theirs, colour)
    return (
        f"<h3>Iterations of loops, mean over instances (dashed: {escape(pair.reference)})</h3>"
        + svg.lines("iterations", drawn, "iterations")
        + _line_legend(drawn)
    )


def _events(pair: Pair) -> str:
    part = pair.forks.sites() if pair.forks else {}
    differ = {n: both for n, both in pair.events.items() if not np.array_equal(*both)}

    def weight(name: str) -> tuple[int, float]:
        mine, theirs = (np.asarray(x, float) for x in differ[name])
        off = np.abs(mine - theirs).sum() if mine.shape == theirs.shape else np.inf
        return part.get(name, 0), float(off)

    # Tests at which most paths part come first, then those that differ most.
    shown = sorted(differ, key=weight, reverse=True)[: len(svg.COLOURS)]
    drawn: list[svg.Line] = []
    for colour, name in zip(svg.COLOURS, shown):
        drawn += _of_both(pair, name, *differ[name], colour)
    if not drawn:
        return ""
    more = len(differ) - len(shown)
    note = f"<p>{more} further {'test differs' if more == 1 else 'tests differ'}.</p>" if more else ""
    return note + (
        f"<h3>How often tests held that differ, over all instances (dashed: {escape(pair.reference)})</h3>"
        + svg.lines("events", drawn, "held in a step")
        + _line_legend(drawn)
    )


def _margins(pair: Pair) -> str:
    mine, theirs = traces_of(pair.reference_result), traces_of(pair.other_result)
    drawn = []
    for k, name in enumerate(n for n in mine if n in theirs):
        ours, others = (np.abs(traces[name].margin_ulps) for traces in (mine, theirs))
        drawn += _of_both(pair, name, ours, others, svg.COLOURS[k % len(svg.COLOURS)])
    if not any(np.isfinite(line.values).any() for line in drawn):
        return ""
    return (
        f"<h3>Smallest margins of tests, in ulps of the test's format (dashed: {escape(pair.reference)})</h3>"
        + svg.lines("margins", drawn, "ulps", log=True, joined=np.fmin)
        + _line_legend(drawn)
    )


def _of_both(pair: Pair, name: str, mine: np.ndarray, theirs: np.ndarray, colour: str) -> list[svg.Line]:
    """A line of each of the two runs, of which the reference's is dashed."""
    return [
        svg.Line(f"{name}, {pair.reference}", mine, colour, dashed=True, key=name),
        svg.Line(f"{name}, {pair.other}", theirs, colour, key=name),
    ]


def _line_legend(drawn: Sequence[svg.Line]) -> str:
    return svg.legend(list(dict.fromkeys((line.key, line.colour) for line in drawn)))


def _gradients(pair: Pair) -> str:
    if not pair.gradients:
        return ""
    if pair.split:
        rest = "computed otherwise" if pair.is_of_other_world else "rounding"
        drawn = [
            svg.Bar(
                name,
                [
                    ("path", parts.size_of_path, svg.PATH_COLOUR),
                    (rest, parts.size_of_rounding, svg.ROUNDING_COLOUR),
                ],
            )
            for name, parts in pair.split.items()
        ]
        return (
            "<h3>Error of gradients by cause (Euclidean sizes)</h3>"
            + svg.rows("gradients", drawn)
            + svg.legend([("path", svg.PATH_COLOUR), (rest, svg.ROUNDING_COLOUR)])
        )
    finite = {n: off.relative for n, off in pair.gradients.items() if np.isfinite(off.relative)}
    drawn = [svg.Bar(n, [("relative", value, svg.ROUNDING_COLOUR)]) for n, value in finite.items()]
    return "<h3>Error of gradients, relative to their size</h3>" + svg.rows("gradients", drawn)


def _sites(pair: Pair) -> str:
    mine, theirs = traces_of(pair.reference_result), traces_of(pair.other_result)
    part = pair.forks.sites() if pair.forks else {}
    both = [n for n in mine if n in theirs]
    # Guards have no traces, and paths may part there.
    names = sorted([*both, *(n for n in part if n not in both)], key=lambda n: (-part.get(n, 0), n))
    first = pair.forks.first if pair.forks else None
    rows = []
    for name in names:
        line = first.line if first and first.site == name else ""
        told = [_closest(traces[name].margin_ulps) for traces in (mine, theirs)] if name in both else ["", ""]
        rows.append([name, mine[name].line if name in both else line, str(part.get(name, 0)), *told])
    heads = ["site", "line", "instances that part there", f"closest test in {pair.reference}", f"in {pair.other}"]
    return "<h3>Sites</h3>" + _table("sites", heads, rows) if rows else ""


def _closest(margins: np.ndarray) -> str:
    magnitudes = np.where(np.isnan(margins), np.inf, np.abs(margins))
    if not np.isfinite(magnitudes).any():
        return ""
    step = int(np.argmin(magnitudes))
    return f"{ulps(float(margins[step]))} at step {step}"


def _arrays(pair: Pair) -> str:
    rows = [[f"state {n}", f"{d.largest:.4g}", f"{d.relative:.4g}", ""] for n, d in pair.states.items()]
    rows += [[f"trajectory {n}", f"{d.largest:.4g}", f"{d.relative:.4g}", ""] for n, d in pair.trajectories.items()]
    if pair.value is not None:
        what = "value" + among(pair.left_out, pair.other_result.instances)
        off = difference(*map(np.asarray, pair.value))
        rows.append([what, f"{off.largest:.4g}", "", ""])
    for name, g in pair.gradients.items():
        told = f"zero in {g.zero[0]} and {g.zero[1]} instances, connected in {g.connected[0]} and {g.connected[1]}"
        gates = f"; gated by {g.gated_by[1]}" if g.gated_by[1] else ""
        rows.append([f"gradient of {name}", f"{g.largest:.4g}", f"{g.relative:.4g}", told + gates])
    return "<h3>Differences</h3>" + _table("differences", ["of", "largest", "relative", ""], rows)


def _table(name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table data-table="{escape(name)}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
