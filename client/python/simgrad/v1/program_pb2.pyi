from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
ELEMENT_TYPE_BOOL: ElementType
ELEMENT_TYPE_I32: ElementType
ELEMENT_TYPE_I64: ElementType
ELEMENT_TYPE_REAL: ElementType
ELEMENT_TYPE_U32: ElementType
ELEMENT_TYPE_U8: ElementType
INPUT_KIND_CONFIG: InputKind
INPUT_KIND_CONTROL: InputKind
INPUT_KIND_DATA: InputKind
INPUT_KIND_PARAM: InputKind
INPUT_KIND_STATE: InputKind
INPUT_KIND_STEP: InputKind
INPUT_KIND_UNSPECIFIED: InputKind

class Export(_message.Message):
    __slots__ = ["name", "observable", "value"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBSERVABLE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    observable: bool
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ..., observable: bool = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ["default_value", "description", "kind", "name", "value", "weights"]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    default_value: float
    description: str
    kind: InputKind
    name: str
    value: int
    weights: bool
    def __init__(self, kind: _Optional[_Union[InputKind, str]] = ..., name: _Optional[str] = ..., value: _Optional[int] = ..., default_value: _Optional[float] = ..., description: _Optional[str] = ..., weights: bool = ...) -> None: ...

class Objective(_message.Message):
    __slots__ = ["name", "stage", "terminal"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    stage: Region
    terminal: Region
    def __init__(self, name: _Optional[str] = ..., stage: _Optional[_Union[Region, _Mapping]] = ..., terminal: _Optional[_Union[Region, _Mapping]] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ["axes", "bounds", "cap_first", "carried", "code", "combine", "comparison", "decision_site", "dims", "elements", "error", "fill", "format", "has_entry", "indices", "interior", "label", "literal", "max_iter", "operands", "overflow", "predicate", "regions", "results", "reverse", "role", "rounding", "scanned", "shape", "site", "start", "stride", "test_kind", "transposed", "unit", "upper"]
    AXES_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    CAP_FIRST_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    COMBINE_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    DECISION_SITE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    HAS_ENTRY_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    INTERIOR_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    MAX_ITER_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROUNDING_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    TEST_KIND_FIELD_NUMBER: _ClassVar[int]
    TRANSPOSED_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    axes: _containers.RepeatedScalarFieldContainer[int]
    bounds: str
    cap_first: bool
    carried: int
    code: str
    combine: str
    comparison: str
    decision_site: str
    dims: _containers.RepeatedScalarFieldContainer[int]
    elements: int
    error: bool
    fill: float
    format: str
    has_entry: bool
    indices: _containers.RepeatedScalarFieldContainer[int]
    interior: _containers.RepeatedScalarFieldContainer[int]
    label: str
    literal: _containers.RepeatedScalarFieldContainer[float]
    max_iter: int
    operands: _containers.RepeatedScalarFieldContainer[int]
    overflow: str
    predicate: bool
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    results: _containers.RepeatedScalarFieldContainer[int]
    reverse: bool
    role: str
    rounding: str
    scanned: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    site: str
    start: _containers.RepeatedScalarFieldContainer[int]
    stride: _containers.RepeatedScalarFieldContainer[int]
    test_kind: str
    transposed: bool
    unit: bool
    upper: bool
    def __init__(self, code: _Optional[str] = ..., role: _Optional[str] = ..., site: _Optional[str] = ..., operands: _Optional[_Iterable[int]] = ..., results: _Optional[_Iterable[int]] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ..., label: _Optional[str] = ..., literal: _Optional[_Iterable[float]] = ..., axes: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., dims: _Optional[_Iterable[int]] = ..., decision_site: _Optional[str] = ..., comparison: _Optional[str] = ..., max_iter: _Optional[int] = ..., cap_first: bool = ..., has_entry: bool = ..., elements: _Optional[int] = ..., carried: _Optional[int] = ..., format: _Optional[str] = ..., overflow: _Optional[str] = ..., rounding: _Optional[str] = ..., reverse: bool = ..., stride: _Optional[_Iterable[int]] = ..., interior: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., fill: _Optional[float] = ..., bounds: _Optional[str] = ..., combine: _Optional[str] = ..., upper: bool = ..., transposed: bool = ..., unit: bool = ..., predicate: bool = ..., scanned: _Optional[int] = ..., error: bool = ..., test_kind: _Optional[str] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ["exports", "initial", "inputs", "level", "name", "objectives", "step", "values"]
    EXPORTS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    exports: _containers.RepeatedCompositeFieldContainer[Export]
    initial: Region
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    level: str
    name: str
    objectives: _containers.RepeatedCompositeFieldContainer[Objective]
    step: Region
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., initial: _Optional[_Union[Region, _Mapping]] = ..., step: _Optional[_Union[Region, _Mapping]] = ..., exports: _Optional[_Iterable[_Union[Export, _Mapping]]] = ..., objectives: _Optional[_Iterable[_Union[Objective, _Mapping]]] = ..., level: _Optional[str] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ["args", "ops", "yields"]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    args: _containers.RepeatedScalarFieldContainer[int]
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    yields: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, args: _Optional[_Iterable[int]] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ..., yields: _Optional[_Iterable[int]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ["element", "name", "shape"]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    element: ElementType
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, element: _Optional[_Union[ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ...) -> None: ...

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class InputKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
