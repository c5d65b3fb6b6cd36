"""Section 5: what an operator sees of all this."""

import urllib.request

from page import heading, paragraph, table


def scrape(address: str) -> dict[str, float]:
    """Every series of /metrics with its value."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    series = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in series}


def show(before: dict[str, float], after: dict[str, float]) -> None:
    changed = {name: value for name, value in after.items() if before.get(name, 0.0) != value}
    lines = {name: value for name, value in changed.items() if "_bucket{" not in name}
    heading("5. What an operator sees")
    paragraph(
        f"""The same story in Prometheus metrics: the lines of /metrics that the work above changed.
        Near the boundary, disconnected gradients and stop reasons stand there without anyone
        having asked. {len(changed) - len(lines)} lines of histogram buckets changed too and are
        left out."""
    )
    table(
        ["series", "before", "after"],
        [
            [name, f"{before.get(name, 0.0):g}", f"{value:g}"]
            for name, value in sorted(lines.items())
        ],
    )
