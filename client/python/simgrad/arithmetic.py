"""Arithmetic: what rounding did to the numbers of each operation, in the first instances of a run.

docs/semantics.md, "Arithmetic", defines each count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator

from simgrad import errors, summary
from simgrad.v1 import diagnostics_pb2, simgrad_pb2

COUNTS = ("results", "underflows", "overflows", "additions", "absorbed")
_FIELD = "spec.diagnostics.arithmetic_instances"


@dataclass(frozen=True)
class OperationArithmetic:
    """Counts of one operation in one pass; of a whole role where `operation` is "".

    Attributes:
      phase: "forward" or "adjoint".
      role, operation: its role and name. "accumulate" sums the gradient of an input over the steps.
      line: of the caller's file; of "accumulate" the name of the input. May be "".
      site: its own, else that of the loop around it. May be "".
      results: how many real numbers it gave, over instances, elements, turns of loops and sampled steps.
      underflows: how often operands that are not zero gave zero or a subnormal number, inside sums and products of
        matrices too.
      overflows: of how many finite operands gave more than the format holds.
      additions: of two finite numbers that are not zero, those inside sums and products of matrices among them.
      absorbed: of how many additions the sum is one of the two.
    """

    phase: str
    role: str
    operation: str = ""
    line: str = ""
    site: str = ""
    results: int = 0
    underflows: int = 0
    overflows: int = 0
    additions: int = 0
    absorbed: int = 0

    @property
    def lost(self) -> int:
        """Numbers that underflowed, overflowed or were absorbed."""
        return self.underflows + self.overflows + self.absorbed

    @property
    def underflow_share(self) -> float:
        """Underflows by results, 0 where there was none; above 1 where sums or products of matrices have several inside."""
        return self.underflows / self.results if self.results else 0.0

    @property
    def overflow_share(self) -> float:
        """The part of all results that overflowed; 0 where there was none."""
        return self.overflows / self.results if self.results else 0.0

    @property
    def absorbed_share(self) -> float:
        """The part of all additions that was absorbed; 0 where there was none."""
        return self.absorbed / self.additions if self.additions else 0.0

    def __str__(self) -> str:
        return summary.of_operation(self)


@dataclass(repr=False)
class Arithmetic:
    """The counts that a call with arithmetic=N tells of its first N instances; without rows where it asks for none.

    As a sequence it has the rows of roles, then those of operations.
    Attributes:
      roles: a row for each pass and role that gave numbers, all operations together.
      operations: forward and then adjoint, in each pass most losses first, at most 256.
    """

    roles: list[OperationArithmetic] = field(default_factory=list)
    operations: list[OperationArithmetic] = field(default_factory=list)

    @classmethod
    def of(cls, messages: Iterable[diagnostics_pb2.Arithmetic], phase: str) -> Arithmetic:
        """The rows of one pass."""
        rows = [
            OperationArithmetic(
                *(phase, m.role, m.operation, m.label, m.site), **{name: getattr(m, name) for name in COUNTS}
            )
            for m in messages
        ]
        return cls([row for row in rows if not row.operation], [row for row in rows if row.operation])

    def of_phase(self, phase: str) -> Arithmetic:
        """The rows of one pass, "forward" or "adjoint"."""
        return Arithmetic(
            [row for row in self.roles if row.phase == phase], [row for row in self.operations if row.phase == phase]
        )

    def __add__(self, other: Arithmetic) -> Arithmetic:
        """The rows of one pass, and behind them those of another."""
        return Arithmetic(self.roles + other.roles, self.operations + other.operations)

    def __len__(self) -> int:
        return len(self.roles) + len(self.operations)

    def __iter__(self) -> Iterator[OperationArithmetic]:
        yield from self.roles
        yield from self.operations

    def __repr__(self) -> str:
        return summary.of_arithmetic(self)


def instances_of(arithmetic: Any) -> int:
    """How many instances the argument of a call asks for. Raises TypeError and ValueError for what is no i32."""
    if isinstance(arithmetic, bool) or not hasattr(arithmetic, "__index__"):
        raise TypeError(f"arithmetic: how many instances are looked at, a whole number, not {arithmetic!r}")
    if not -(2**31) <= (instances := arithmetic.__index__()) < 2**31:
        raise ValueError(f"arithmetic: how many instances are looked at, not {instances}")
    return int(instances)


def check_known(limits: simgrad_pb2.Limits, instances: int) -> None:
    """Raises Unimplemented where a server with these limits does not look at operations."""
    if limits.max_arithmetic_instances > 0:
        return
    raise errors.Unimplemented(
        f"arithmetic={instances}: the server is older, and does not look at operations: leave the argument out, or "
        "upgrade the server",
        reason="NO_ARITHMETIC",
        violations=(errors.FieldViolation(_FIELD, "the server does not know this field"),),
    )
