"""Reads the text of a numerical program, as `program="text"` answers it; raises ValueError at an unknown line."""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Definition:
    name: str
    element: str
    shape: tuple


@dataclass
class Region:
    name: str
    arguments: list = field(default_factory=list)
    operations: list = field(default_factory=list)
    yields: list = field(default_factory=list)


@dataclass
class Operation:
    """One line and its regions. `numbers` are those of a literal, `words` the attributes without a value."""

    code: str
    results: list
    operands: list
    role: str
    site: str = ""
    where: str | None = None
    of: str | None = None
    into: str | None = None
    numbers: list = field(default_factory=list)
    options: dict = field(default_factory=dict)
    words: set = field(default_factory=set)
    regions: list = field(default_factory=list)

    def integers(self, option):
        return [int(n) for n in self.options.get(option, "[]")[1:-1].split(",") if n]

    def check(self, *known):
        """Raises ValueError where the line says more than these words and options."""
        unknown = (self.words | set(self.options)) - set(known)
        if unknown:
            raise ValueError(f"{self.code} with {sorted(unknown)}")


@dataclass
class Input:
    kind: str
    definition: Definition
    name: str


@dataclass
class Program:
    inputs: list = field(default_factory=list)
    regions: dict = field(default_factory=dict)
    stage_cost: str | None = None
    gradient: str | None = None  # the format, where a line says it
    loss_scale: float = 1.0

    @property
    def states(self):
        return [i for i in self.inputs if i.kind == "state"]

    @property
    def gradient_format(self):
        has_wide_state = any(i.definition.element == "f64" for i in self.states)
        return self.gradient or ("f64" if has_wide_state else "f32")


def definition(text):
    if text == "_":
        return None
    name, element, shape = re.fullmatch(r"(%\d+):(\w+)\[([\d,]*)\]", text).groups()
    return Definition(name, element, tuple(int(n) for n in shape.split(",") if n))


def definitions(text):
    return [definition(each) for each in re.split(r",\s+", text)] if text else []


def operation(line):
    body, _, comment = line.partition("  # ")
    results, has_results, rest = body.rpartition(" = ")
    role, *others = comment.split(" ")
    site = others[0][1:] if others and others[0].startswith("@") else ""
    code, *words = rest.split(" ")
    operands = []
    while words and re.fullmatch(r"(%\d+|_),?", words[0]):
        operands.append(words.pop(0).rstrip(","))
    op = Operation(code, definitions(results) if has_results else [], operands, role, site)
    read_attributes(op, words)
    return op


def read_attributes(op, words):
    words = iter(words)
    for word in words:
        if word in ("where", "of", "into"):
            setattr(op, word, next(words))
        elif re.match(r"-?(0x|inf|nan)", word) and op.code == "literal":
            op.numbers.append(float.fromhex(word))
        elif "=" in word[1:] and not re.fullmatch(r"[<>=!]+", word):
            name, _, value = word.partition("=")
            op.options[name] = value
        else:
            op.words.add(word)


class Reader:
    def __init__(self, text):
        self.lines = [line for line in text.split("\n") if line]
        self.at = 0

    def indent(self):
        """That of the next line; -1 behind the last."""
        if self.at == len(self.lines):
            return -1
        line = self.lines[self.at]
        return (len(line) - len(line.lstrip(" "))) // 2

    def take(self):
        self.at += 1
        return self.lines[self.at - 1].strip()

    def region(self):
        indent = self.indent()
        name, arguments = re.fullmatch(r"(.*?)(?: \((.*)\))?:", self.take()).groups()
        region = Region(name, definitions(arguments))
        while self.indent() == indent + 1:
            line = self.take()
            if line == "yield" or line.startswith("yield "):
                region.yields = line[6:].split(", ") if line != "yield" else []
                return region
            op = operation(line)
            while self.indent() == indent + 2:
                op.regions.append(self.region())
            region.operations.append(op)
        raise ValueError(f"region {name} has no yield")

    def program(self):
        program = Program()
        while self.indent() == 0:
            if self.lines[self.at].endswith(":"):
                region = self.region()
                name = "terminal" if region.name.startswith("terminal cost of ") else region.name
                program.regions[name] = region
            else:
                read_head(program, self.take())
        if self.at != len(self.lines):
            raise ValueError(f"line {self.lines[self.at]!r}")
        unknown = set(program.regions) - {"step", "terminal", "adjoint terminal", "adjoint last", "adjoint step"}
        if unknown:
            raise ValueError(f"regions {sorted(unknown)}")
        return program


def read_head(program, line):
    """A line outside of regions."""
    if match := re.fullmatch(r"(state|param) (\S+) (\w+)(?: = \S+)?", line):
        program.inputs.append(Input(match[1], definition(match[2]), match[3]))
    elif match := re.fullmatch(r"stage cost (%\d+) of \w+", line):
        program.stage_cost = match[1]
    elif match := re.fullmatch(r"gradient (\w+) accumulator=\w+", line):
        program.gradient = match[1]
    elif match := re.fullmatch(r"loss_scale (\S+)", line):
        program.loss_scale = float.fromhex(match[1])
    # The sum of costs is that over instances.
    elif not re.fullmatch(r"world \w+|tests decisions|nonfinite report|functions 2|sum of costs accumulator=\w+", line):
        raise ValueError(f"line {line!r}")


def read(text):
    return Reader(text).program()
