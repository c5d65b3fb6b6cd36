"""How a gradient goes through a loop, other than by every iteration that ran."""

from __future__ import annotations

from dataclasses import dataclass

from simgrad.v1 import simgrad_pb2


@dataclass(frozen=True)
class Truncated:
    """By its last `iterations`; where more ran, the value before them is a constant.

    client.gradient(..., loops={"newton": sg.Truncated(3)})
    """

    iterations: int

    def to_proto(self, site: str) -> simgrad_pb2.LoopDerivative:
        return simgrad_pb2.LoopDerivative(site=site, truncated=self.iterations)


@dataclass(frozen=True)
class Implicit:
    """As a fixed point x = G(x), linearised at the last iteration that ran: (1 + damping) w = g + J' w.

    The start value gets no cotangent. `Gradient.adjoint_solves["SITE.adjoint"]` says how the solves by
    iteration and gmres ended.

    Attributes:
      solver: "lu", for up to 512 numbers; "iteration", for loops that contract, until no number of w
        changes by `tol`; "gmres", until the residual is at most `tol` of g in the Euclidean norm; ""
        for lu where the loop carries up to 64 numbers, else iteration. "lu" takes neither tol nor max_iter.
      tol: 0: 1e-9, or what the format of role adjoint can reach, eps the distance of its neighbours at 1:
        by gmres a residual of 4 eps of g; by iteration, other than in f64, also a change of every number
        of w by less than 2 eps of the largest.
      max_iter: turns of iteration and gmres at most, each one product with J'.
      restart: gmres begins anew after so many turns, 1 to 512; it holds 2 * restart vectors.
    """

    solver: str = ""
    tol: float = 0.0
    max_iter: int = 0  # 0: 100
    damping: float = 0.0
    restart: int = 0  # 0: 20

    def to_proto(self, site: str) -> simgrad_pb2.LoopDerivative:
        return simgrad_pb2.LoopDerivative(
            site=site,
            implicit=simgrad_pb2.ImplicitDerivative(
                solver=self.solver,
                tol=self.tol,
                max_iter=self.max_iter,
                damping=self.damping,
                restart=self.restart,
            ),
        )
