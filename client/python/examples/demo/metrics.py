"""Section 6: what an operator sees of all this."""

import urllib.request

from page import heading, paragraph, table


def scrape(address: str) -> dict[str, float]:
    """Every series of /metrics with its value."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    series = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in series}


def show(before: dict[str, float], after: dict[str, float]) -> None:
    changed = {name for name, value in after.items() if before.get(name, 0.0) != value}
    of_the_process = [name for name in changed if name.startswith("process_")]
    buckets = [name for name in changed if "_bucket{" in name]
    lines = changed.difference(of_the_process, buckets)
    heading("6. What an operator sees")
    paragraph(
        f"""The same story in Prometheus metrics: the lines of /metrics that the work above changed.
        Near the boundary, disconnected gradients and stop reasons stand there without anyone
        having asked. {len(buckets)} lines of histogram buckets and {len(of_the_process)} about
        the process changed too and are left out."""
    )
    table(
        ["series", "before", "after"],
        [[name, f"{before.get(name, 0.0):g}", f"{after[name]:g}"] for name in sorted(lines)],
    )
