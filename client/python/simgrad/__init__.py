"""simgrad: rollouts and gradients of worlds under an explicit precision policy.

    import simgrad as sg

    with sg.Client("localhost:8001") as client:
        ball = sg.World("bouncing_ball", contact="toi")
        r = client.rollout(ball, steps=100, initial={"y": [[0.5]], "v": [[0.0]]}, record=["y"])

Axis order is [instance, time, field shape]. An input of the declared rank is shared by all
instances, one more axis means per instance; nothing else is accepted (see PerStep). A gradient has
the shape of its input.
"""

__version__ = "0.1.0"

from simgrad import quiet_grpc  # noqa: F401  before anything else that imports grpc

from simgrad.arithmetic import Arithmetic, OperationArithmetic
from simgrad.arrays import Bits, PerStep
from simgrad.client import Client
from simgrad.composition import ComposedWorld, compose
from simgrad.controllers import Controller, controller
from simgrad.credentials import tls
from simgrad.diagnostics import (
    REASONS,
    Absorption,
    AdditionSite,
    BackwardTrace,
    BirthCertificate,
    EventTrace,
    ForwardTrace,
    StateRange,
    TerminationTrace,
)
from simgrad.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    Internal,
    InvalidArgument,
    NonFiniteError,
    NotFound,
    ResourceExhausted,
    SimgradError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from simgrad.functions import (
    accept,
    builder,
    literal,
    cond,
    custom_vjp,
    fake_quantize,
    fixed_point,
    for_loop,
    halt,
    normal,
    observe,
    role,
    root,
    scan,
    stop_gradient,
    switch,
    test,
    uniform,
    where,
    while_loop,
)
from simgrad.hessian import HessianVector
from simgrad.kept import Keep, KeptRun
from simgrad.local import LocalClient, local
from simgrad.loop_derivative import Implicit, Truncated
from simgrad.numpy_shapes import stack
from simgrad.path import FirstDifference, Forced, Path
from simgrad.policy import LossScaleState, Policy
from simgrad.pool import Pool
from simgrad.request import Cotangents
from simgrad.results import AdjointSolves, Gradient, Halted, Program, Rollout
from simgrad.retry import Retry
from simgrad.stream import Stream
from simgrad.why import Comparison, Sensitivity, Tuned
from simgrad.world import World
from simgrad.world_function import (
    Config,
    Control,
    Data,
    FunctionWorld,
    Param,
    State,
    Step,
    Weights,
    world,
)
from simgrad import worlds  # noqa: E402  built on all of the above

__all__ = [
    "LossScaleState",
    "Absorption",
    "AdditionSite",
    "AdjointSolves",
    "Arithmetic",
    "BackwardTrace",
    "BirthCertificate",
    "Bits",
    "Cancelled",
    "Client",
    "Comparison",
    "ComposedWorld",
    "Config",
    "Control",
    "Controller",
    "Cotangents",
    "Data",
    "DeadlineExceeded",
    "EventTrace",
    "FailedPrecondition",
    "FieldViolation",
    "FirstDifference",
    "Forced",
    "ForwardTrace",
    "FunctionWorld",
    "Gradient",
    "Halted",
    "HessianVector",
    "Implicit",
    "Internal",
    "InvalidArgument",
    "Keep",
    "KeptRun",
    "LocalClient",
    "NonFiniteError",
    "NotFound",
    "OperationArithmetic",
    "Param",
    "Path",
    "PerStep",
    "Policy",
    "Pool",
    "Program",
    "REASONS",
    "ResourceExhausted",
    "Retry",
    "Rollout",
    "Sensitivity",
    "SimgradError",
    "State",
    "StateRange",
    "Step",
    "Stream",
    "TerminationTrace",
    "Truncated",
    "Tuned",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Weights",
    "World",
    "accept",
    "builder",
    "compose",
    "cond",
    "controller",
    "custom_vjp",
    "fake_quantize",
    "fixed_point",
    "for_loop",
    "halt",
    "literal",
    "local",
    "normal",
    "observe",
    "role",
    "root",
    "scan",
    "stack",
    "stop_gradient",
    "switch",
    "test",
    "tls",
    "uniform",
    "where",
    "while_loop",
    "world",
    "worlds",
]
