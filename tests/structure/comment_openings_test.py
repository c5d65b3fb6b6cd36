"""Comments and docstrings begin with their subject, not with "What ...", "Where ..." or "Of ...".

A comment that begins with a noun phrase of that kind leaves its reader to find out what it speaks of.
"""

import ast
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("precision", "sim", "server", "client/python/simgrad")
OPENING = re.compile(r"(What|Whatever|Where|Which|Whose|Who|Whoever|Nobody|Of)\b")


def in_cpp(text):
    """(line, text) of the first line of each comment."""
    before = False  # a line above that is a comment and nothing else
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.match(r"(|.*\s)//[/!]?<? ?(.*)", line)
        alone = comment is not None and not comment[1].strip()
        if comment and not (alone and before):
            yield number, comment[2]
        before = alone


def in_python(text):
    """(line, text) of the first line of each comment and of each docstring."""
    before = None  # the line of a comment with nothing else on it
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        number = token.start[0]
        alone = token.line.lstrip().startswith("#")
        if not (alone and before == number - 1):
            yield number, token.string.lstrip("#: ")
        before = number if alone else None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield node.body[0].lineno, docstring
        # A string below an attribute documents it.
        for statement in getattr(node, "body", ()) if isinstance(node, (ast.Module, ast.ClassDef)) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and statement is not node.body[0]:
                yield statement.lineno, str(value.value)


def openings(path):
    read = in_python if path.suffix == ".py" else in_cpp
    return [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0] if text else ''}"
        for line, text in read(path.read_text())
        if OPENING.match(text)
    ]


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h", ".py") and "v1" not in path.parts:  # v1: generated
                yield path


@pytest.mark.parametrize(
    ("read", "text", "lines"),
    [
        (in_cpp, "// What it is.\nint a;  // of no use\nint b;  // Of b.\n", [1, 3]),
        (in_cpp, "// The sum.\n// Of all.\nint a;\n\n  // Where it\n  // Which is.\nint b;\n", [5]),
        (in_cpp, 'auto u = "http://Of";\n', []),
        (in_python, '"""What it is."""\nx = 1  # Of x.\n# The sum,\n# Which is.\ny = "# Of y"\n', [1, 2]),
        (in_python, 'def f():\n    """Of f."""\n\n\nclass A:\n    """An A."""\n\n    b = 1\n    """Which b."""\n', [2, 9]),
    ],
)
def test_an_opening_is_found(read, text, lines):
    assert sorted(line for line, words in read(text) if OPENING.match(words)) == lines


def test_comments_begin_with_their_subject():
    wrong = [found for path in sources() for found in openings(path)]
    assert wrong == []
