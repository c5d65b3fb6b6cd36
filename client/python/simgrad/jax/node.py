"""Values of a traced step: numbers known while tracing, or nodes of the graph that is being lowered."""

from __future__ import annotations

import itertools
import os
from typing import Any, NamedTuple, Sequence, Union

import numpy as np

REAL = np.dtype(np.float64)  # every real: its format is the policy's
BOOL = np.dtype(np.bool_)
I32 = np.dtype(np.int32)
I64 = np.dtype(np.int64)
U32 = np.dtype(np.uint32)
U64 = np.dtype(np.uint64)  # an i64 of the same bits stands for it
Shape = tuple[int, ...]

# Operations that have regions.
CONTROL = frozenset(("while", "for", "cond"))
DRAWS = frozenset(("uniform", "normal", "random_bits"))
COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))


# Folders of packages, in paths of files.
INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
Place = tuple[str, int, str]  # of a line: path, number and function


class Line(NamedTuple):
    """The line of the user's code that asked for an operation. `scope` is JAX's stack of named scopes."""

    path: str = ""
    number: int = 0
    function: str = ""
    scope: str = ""

    @property
    def file(self) -> str:
        return self.path.replace("\\", "/").rpartition("/")[2]

    @property
    def place(self) -> Place:
        return self.path, self.number, self.function

    @property
    def is_installed(self) -> bool:
        """Whether it is in a package that was installed, and not in the user's own files."""
        return any(folder in self.path for folder in INSTALLED)

    @property
    def text(self) -> str:
        """ "solver.py:602", or empty where nothing is known."""
        return f"{self.file}:{self.number}" if self.path else ""


class Scope:
    """A region: of the step, of a loop or of a branch.

    Attributes:
      kind: root, predicate, while, for or branch.
      arguments: nodes that stand for what the loop carries or scans.
      results: what the region gives, once it is written.
    """

    def __init__(self, parent: "Scope | None", kind: str):
        self.parent = parent
        self.kind = kind
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.arguments: list[Node] = []
        self.results: list[Node] = []

    def inside(self, other: "Scope") -> bool:
        scope: Scope | None = self
        while scope is not None and scope.depth > other.depth:
            scope = scope.parent
        return scope is other


class Node:
    """One operation and its result; of several results each is a node `result` of this one.

    Operands come before their users in `number`. `is_active`: a derivative may go through it. `outputs` are shapes and dtypes of several results.
    """

    __slots__ = (
        *("number", "op", "operands", "attributes", "shape", "dtype", "line", "scope", "regions"),
        *("outputs", "is_active"),
    )
    _numbers = itertools.count()

    def __init__(
        self,
        op: str,
        operands: Sequence["Node"],
        attributes: dict[str, Any],
        shape: Sequence[int],
        dtype: Any,
        line: Line,
        scope: Scope,
        regions: Sequence[Scope] = (),
        outputs: Sequence[tuple[Shape, np.dtype]] = (),
    ):
        self.number = next(Node._numbers)
        self.op = op
        self.operands = tuple(operands)
        self.attributes = attributes
        self.shape: Shape = tuple(int(n) for n in shape)
        self.dtype = np.dtype(dtype)
        self.line = line
        self.scope = scope
        self.regions = tuple(regions)
        self.outputs = tuple(outputs)
        starts = op in ("input", "argument", "result") or op in CONTROL
        passes = op != "stop_gradient" and any(x.is_active for x in self.operands)
        self.is_active: bool = self.dtype == REAL and (starts or passes)

    @property
    def size(self) -> int:
        return size_of(self.shape)

    def __repr__(self) -> str:
        return f"%{self.number}:{self.op}{list(self.shape)}{self.dtype.name}"


Value = Union[Node, np.ndarray]


def taken_from(x: Node) -> Sequence[Node]:
    """The operands whose elements an operation gives, of one that only moves them; else all."""
    if x.op == "select":
        return x.operands[1:]
    return x.operands[:1] if x.op in ("gather", "dynamic_slice") else x.operands


def size_of(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= int(n)
    return count


def known_array(x: Any) -> np.ndarray:
    """A known value: an array whose reals are f64, and whose u64 are i64 of the same bits."""
    array = np.asarray(x)
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        return array.astype(np.float64, copy=False)
    return array.astype(I64) if array.dtype == U64 else array


def neutral(dtype: Any) -> np.dtype:
    """The dtype that a dtype of JAX has here: of all reals f64, of u64 i64."""
    if str(dtype).startswith(("bfloat", "float")):
        return REAL
    kept: np.dtype = np.dtype(dtype)
    return I64 if kept == U64 else kept


def same(x: Value, y: Value) -> bool:
    """Whether they are one node, or the same numbers to the bit."""
    if x is y:
        return True
    if isinstance(x, Node) or isinstance(y, Node):
        return False
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def frozen(x: Any) -> Any:
    """Attributes as something that hashes."""
    if isinstance(x, np.ndarray):
        return (x.dtype.str, x.shape, x.tobytes())
    if isinstance(x, dict):
        return tuple(sorted((k, frozen(v)) for k, v in x.items()))
    if isinstance(x, (list, tuple)):
        return tuple(frozen(v) for v in x)
    return x
