"""No switch over operations, or over statements of a plan, has a default.

What such a switch forgets would be done wrong, without a word.
"""

import re


def defaults(text):
    """Lines of `default:` inside switches over operations, their classes or statements of plans."""
    found = []
    for match in re.finditer(r"switch \(([^{]*)\) \{", text):
        if not re.search(r"\bcode\b|\.code|op_class", match.group(1)):
            continue
        depth, at = 1, match.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        body = text[match.end() : at]
        if re.search(r"\bcase (plan::)?(OpCode::|OpClass::|Code::|k[A-Z])", body) and "default:" in body:
            found.append(text.count("\n", 0, match.start()) + 1)
    return found


def test_a_default_is_found():
    code = "switch (op.code) {\n  case OpCode::kAdd:\n    return 1;\n  default:\n    return 0;\n}"
    assert defaults(code) == [1]
    assert defaults(code.replace("OpCode", "Code")) == [1]
    assert defaults(code.replace("  default:\n    return 0;\n", "")) == []


def test_no_switch_over_operations_has_a_default(root):
    paths = [p for folder in ("sim", "server", "tests") for p in (root / folder).rglob("*.cc")]
    paths += [p for folder in ("sim", "server", "tests") for p in (root / folder).rglob("*.h")]
    assert len(paths) > 300
    wrong = [f"{p.relative_to(root)}:{line}" for p in paths for line in defaults(p.read_text())]
    assert wrong == []
