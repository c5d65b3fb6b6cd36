from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Absorption(_message.Message):
    __slots__ = ["absorbed", "additions", "label", "role", "state"]
    ABSORBED_FIELD_NUMBER: _ClassVar[int]
    ADDITIONS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    absorbed: int
    additions: int
    label: str
    role: str
    state: str
    def __init__(self, role: _Optional[str] = ..., state: _Optional[str] = ..., label: _Optional[str] = ..., additions: _Optional[int] = ..., absorbed: _Optional[int] = ...) -> None: ...

class Arithmetic(_message.Message):
    __slots__ = ["absorbed", "additions", "label", "operation", "overflows", "results", "role", "site", "underflows"]
    ABSORBED_FIELD_NUMBER: _ClassVar[int]
    ADDITIONS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OVERFLOWS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    UNDERFLOWS_FIELD_NUMBER: _ClassVar[int]
    absorbed: int
    additions: int
    label: str
    operation: str
    overflows: int
    results: int
    role: str
    site: str
    underflows: int
    def __init__(self, role: _Optional[str] = ..., operation: _Optional[str] = ..., label: _Optional[str] = ..., site: _Optional[str] = ..., results: _Optional[int] = ..., underflows: _Optional[int] = ..., overflows: _Optional[int] = ..., additions: _Optional[int] = ..., absorbed: _Optional[int] = ...) -> None: ...

class BackwardBlock(_message.Message):
    __slots__ = ["exponents", "first_step", "largest", "nonfinite", "ranges", "steps"]
    EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    exponents: bytes
    first_step: int
    largest: _containers.RepeatedScalarFieldContainer[float]
    nonfinite: _containers.RepeatedScalarFieldContainer[int]
    ranges: _containers.RepeatedCompositeFieldContainer[RoleRange]
    steps: int
    def __init__(self, first_step: _Optional[int] = ..., steps: _Optional[int] = ..., largest: _Optional[_Iterable[float]] = ..., nonfinite: _Optional[_Iterable[int]] = ..., exponents: _Optional[bytes] = ..., ranges: _Optional[_Iterable[_Union[RoleRange, _Mapping]]] = ...) -> None: ...

class BirthCertificate(_message.Message):
    __slots__ = ["element", "format", "instance_id", "iteration", "label", "non_finite_class", "operands", "operation", "phase", "result", "role", "site", "step", "value"]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_CLASS_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    element: int
    format: str
    instance_id: int
    iteration: int
    label: str
    non_finite_class: str
    operands: _containers.RepeatedScalarFieldContainer[float]
    operation: str
    phase: str
    result: float
    role: str
    site: str
    step: int
    value: str
    def __init__(self, phase: _Optional[str] = ..., step: _Optional[int] = ..., operation: _Optional[str] = ..., label: _Optional[str] = ..., value: _Optional[str] = ..., site: _Optional[str] = ..., role: _Optional[str] = ..., format: _Optional[str] = ..., instance_id: _Optional[int] = ..., element: _Optional[int] = ..., iteration: _Optional[int] = ..., operands: _Optional[_Iterable[float]] = ..., result: _Optional[float] = ..., non_finite_class: _Optional[str] = ...) -> None: ...

class DiagnosticsBlock(_message.Message):
    __slots__ = ["absorption", "events", "first_step", "instance_offset", "instances", "ranges", "sampled_steps", "states", "steps", "terminations"]
    ABSORPTION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_STEPS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TERMINATIONS_FIELD_NUMBER: _ClassVar[int]
    absorption: _containers.RepeatedCompositeFieldContainer[Absorption]
    events: _containers.RepeatedCompositeFieldContainer[EventColumns]
    first_step: int
    instance_offset: int
    instances: _containers.RepeatedCompositeFieldContainer[InstanceColumns]
    ranges: _containers.RepeatedCompositeFieldContainer[RoleRange]
    sampled_steps: _containers.RepeatedScalarFieldContainer[int]
    states: _containers.RepeatedCompositeFieldContainer[StateColumns]
    steps: int
    terminations: _containers.RepeatedCompositeFieldContainer[TerminationColumns]
    def __init__(self, first_step: _Optional[int] = ..., steps: _Optional[int] = ..., terminations: _Optional[_Iterable[_Union[TerminationColumns, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[EventColumns, _Mapping]]] = ..., sampled_steps: _Optional[_Iterable[int]] = ..., states: _Optional[_Iterable[_Union[StateColumns, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[RoleRange, _Mapping]]] = ..., instances: _Optional[_Iterable[_Union[InstanceColumns, _Mapping]]] = ..., instance_offset: _Optional[int] = ..., absorption: _Optional[_Iterable[_Union[Absorption, _Mapping]]] = ...) -> None: ...

class EventColumns(_message.Message):
    __slots__ = ["changes", "checks", "count", "histogram", "kind", "margin", "margin_instance", "margin_ulps", "margin_ulps_instance", "nan_margins", "site"]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MARGIN_ULPS_FIELD_NUMBER: _ClassVar[int]
    MARGIN_ULPS_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NAN_MARGINS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedScalarFieldContainer[int]
    checks: _containers.RepeatedScalarFieldContainer[int]
    count: _containers.RepeatedScalarFieldContainer[int]
    histogram: bytes
    kind: str
    margin: _containers.RepeatedScalarFieldContainer[float]
    margin_instance: _containers.RepeatedScalarFieldContainer[int]
    margin_ulps: _containers.RepeatedScalarFieldContainer[float]
    margin_ulps_instance: _containers.RepeatedScalarFieldContainer[int]
    nan_margins: _containers.RepeatedScalarFieldContainer[int]
    site: str
    def __init__(self, site: _Optional[str] = ..., checks: _Optional[_Iterable[int]] = ..., count: _Optional[_Iterable[int]] = ..., changes: _Optional[_Iterable[int]] = ..., margin: _Optional[_Iterable[float]] = ..., margin_instance: _Optional[_Iterable[int]] = ..., margin_ulps: _Optional[_Iterable[float]] = ..., margin_ulps_instance: _Optional[_Iterable[int]] = ..., nan_margins: _Optional[_Iterable[int]] = ..., kind: _Optional[str] = ..., histogram: _Optional[bytes] = ...) -> None: ...

class InstanceColumns(_message.Message):
    __slots__ = ["instances", "iterations", "reasons", "site", "value_counts", "values"]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    instances: int
    iterations: bytes
    reasons: bytes
    site: str
    value_counts: bytes
    values: bytes
    def __init__(self, site: _Optional[str] = ..., instances: _Optional[int] = ..., iterations: _Optional[bytes] = ..., reasons: _Optional[bytes] = ..., value_counts: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class RoleRange(_message.Message):
    __slots__ = ["overflows", "role", "underflows"]
    OVERFLOWS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    UNDERFLOWS_FIELD_NUMBER: _ClassVar[int]
    overflows: int
    role: str
    underflows: int
    def __init__(self, role: _Optional[str] = ..., underflows: _Optional[int] = ..., overflows: _Optional[int] = ...) -> None: ...

class StateColumns(_message.Message):
    __slots__ = ["infinities", "max", "min", "nans", "smallest", "state", "subnormals", "zeros"]
    INFINITIES_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    NANS_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUBNORMALS_FIELD_NUMBER: _ClassVar[int]
    ZEROS_FIELD_NUMBER: _ClassVar[int]
    infinities: _containers.RepeatedScalarFieldContainer[int]
    max: _containers.RepeatedScalarFieldContainer[float]
    min: _containers.RepeatedScalarFieldContainer[float]
    nans: _containers.RepeatedScalarFieldContainer[int]
    smallest: _containers.RepeatedScalarFieldContainer[float]
    state: str
    subnormals: _containers.RepeatedScalarFieldContainer[int]
    zeros: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, state: _Optional[str] = ..., min: _Optional[_Iterable[float]] = ..., max: _Optional[_Iterable[float]] = ..., smallest: _Optional[_Iterable[float]] = ..., subnormals: _Optional[_Iterable[int]] = ..., zeros: _Optional[_Iterable[int]] = ..., nans: _Optional[_Iterable[int]] = ..., infinities: _Optional[_Iterable[int]] = ...) -> None: ...

class TerminationColumns(_message.Message):
    __slots__ = ["checks", "counter", "histogram", "iterations", "iterations_max", "iterations_mean", "iterations_min", "margin", "margin_instance", "margin_test", "margin_ulps", "margin_ulps_instance", "nan_margins", "near_continued", "near_stopped", "reasons", "runs", "site", "tested_max", "tested_min", "tests"]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_MEAN_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_MIN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MARGIN_TEST_FIELD_NUMBER: _ClassVar[int]
    MARGIN_ULPS_FIELD_NUMBER: _ClassVar[int]
    MARGIN_ULPS_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NAN_MARGINS_FIELD_NUMBER: _ClassVar[int]
    NEAR_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    NEAR_STOPPED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    TESTED_MAX_FIELD_NUMBER: _ClassVar[int]
    TESTED_MIN_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedScalarFieldContainer[int]
    counter: _containers.RepeatedScalarFieldContainer[int]
    histogram: bytes
    iterations: bytes
    iterations_max: _containers.RepeatedScalarFieldContainer[int]
    iterations_mean: _containers.RepeatedScalarFieldContainer[float]
    iterations_min: _containers.RepeatedScalarFieldContainer[int]
    margin: _containers.RepeatedScalarFieldContainer[float]
    margin_instance: _containers.RepeatedScalarFieldContainer[int]
    margin_test: _containers.RepeatedScalarFieldContainer[int]
    margin_ulps: _containers.RepeatedScalarFieldContainer[float]
    margin_ulps_instance: _containers.RepeatedScalarFieldContainer[int]
    nan_margins: _containers.RepeatedScalarFieldContainer[int]
    near_continued: _containers.RepeatedScalarFieldContainer[int]
    near_stopped: _containers.RepeatedScalarFieldContainer[int]
    reasons: _containers.RepeatedScalarFieldContainer[int]
    runs: _containers.RepeatedScalarFieldContainer[int]
    site: str
    tested_max: _containers.RepeatedScalarFieldContainer[float]
    tested_min: _containers.RepeatedScalarFieldContainer[float]
    tests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, site: _Optional[str] = ..., runs: _Optional[_Iterable[int]] = ..., iterations_mean: _Optional[_Iterable[float]] = ..., iterations_min: _Optional[_Iterable[int]] = ..., iterations_max: _Optional[_Iterable[int]] = ..., reasons: _Optional[_Iterable[int]] = ..., tested_min: _Optional[_Iterable[float]] = ..., tested_max: _Optional[_Iterable[float]] = ..., margin: _Optional[_Iterable[float]] = ..., margin_instance: _Optional[_Iterable[int]] = ..., margin_ulps: _Optional[_Iterable[float]] = ..., margin_ulps_instance: _Optional[_Iterable[int]] = ..., histogram: _Optional[bytes] = ..., nan_margins: _Optional[_Iterable[int]] = ..., checks: _Optional[_Iterable[int]] = ..., near_stopped: _Optional[_Iterable[int]] = ..., near_continued: _Optional[_Iterable[int]] = ..., iterations: _Optional[bytes] = ..., counter: _Optional[_Iterable[int]] = ..., margin_test: _Optional[_Iterable[int]] = ..., tests: _Optional[_Iterable[str]] = ...) -> None: ...
