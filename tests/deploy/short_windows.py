"""The alert rules with windows of two seconds, so that a test need not wait for minutes."""

import re

SHORT = "2s"
SPANNING = "10s"


def with_short_windows(rules: str) -> str:
    """Every range becomes two seconds, every `for` one second; thresholds stay. A range that must span a
    restart (15m) becomes ten seconds."""
    rules = re.sub(r"\[15m\]", f"[{SPANNING}]", rules)
    rules = re.sub(r"\[\d+[mh]\]", f"[{SHORT}]", rules)
    return re.sub(r"(?m)^(\s+for:) \d+m$", r"\1 1s", rules)
