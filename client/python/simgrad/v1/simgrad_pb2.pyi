from simgrad.v1 import diagnostics_pb2 as _diagnostics_pb2
from simgrad.v1 import policy_pb2 as _policy_pb2
from simgrad.v1 import program_pb2 as _program_pb2
from simgrad.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CUDA_MAPPING_BLOCK_PER_INSTANCE: CudaMapping
CUDA_MAPPING_THREAD_PER_INSTANCE: CudaMapping
CUDA_MAPPING_UNSPECIFIED: CudaMapping
DESCRIPTOR: _descriptor.FileDescriptor
DIAGNOSTICS_LEVEL_INSTANCES: DiagnosticsLevel
DIAGNOSTICS_LEVEL_OFF: DiagnosticsLevel
DIAGNOSTICS_LEVEL_SUMMARY: DiagnosticsLevel
DIAGNOSTICS_LEVEL_UNSPECIFIED: DiagnosticsLevel
INSTANCE_REDUCTION_ALL: InstanceReduction
INSTANCE_REDUCTION_FINITE_ONLY: InstanceReduction
INSTANCE_REDUCTION_UNSPECIFIED: InstanceReduction
PATH_KIND_CHOICE: PathKind
PATH_KIND_COUNT: PathKind
PATH_KIND_TEST: PathKind
PATH_KIND_UNSPECIFIED: PathKind
PATH_USE_FORCED: PathUse
PATH_USE_RECORDED: PathUse
PATH_USE_UNSPECIFIED: PathUse
PROGRAM_DETAIL_FINGERPRINT: ProgramDetail
PROGRAM_DETAIL_TEXT: ProgramDetail
PROGRAM_DETAIL_UNSPECIFIED: ProgramDetail

class AdjointSolves(_message.Message):
    __slots__ = ["capped", "most_turns", "residual", "site", "solves", "turns"]
    CAPPED_FIELD_NUMBER: _ClassVar[int]
    MOST_TURNS_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    SOLVES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    capped: int
    most_turns: int
    residual: float
    site: str
    solves: int
    turns: int
    def __init__(self, site: _Optional[str] = ..., solves: _Optional[int] = ..., turns: _Optional[int] = ..., most_turns: _Optional[int] = ..., capped: _Optional[int] = ..., residual: _Optional[float] = ...) -> None: ...

class ComparePart(_message.Message):
    __slots__ = ["backward", "comparison", "diagnostics", "gradient", "header", "piece", "progress", "rollout", "trajectory"]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    backward: _diagnostics_pb2.BackwardBlock
    comparison: Comparison
    diagnostics: _diagnostics_pb2.DiagnosticsBlock
    gradient: GradientResult
    header: StreamHeader
    piece: TensorPiece
    progress: Progress
    rollout: RolloutResult
    trajectory: TrajectoryChunk
    def __init__(self, header: _Optional[_Union[StreamHeader, _Mapping]] = ..., diagnostics: _Optional[_Union[_diagnostics_pb2.DiagnosticsBlock, _Mapping]] = ..., trajectory: _Optional[_Union[TrajectoryChunk, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., piece: _Optional[_Union[TensorPiece, _Mapping]] = ..., gradient: _Optional[_Union[GradientResult, _Mapping]] = ..., backward: _Optional[_Union[_diagnostics_pb2.BackwardBlock, _Mapping]] = ..., rollout: _Optional[_Union[RolloutResult, _Mapping]] = ..., comparison: _Optional[_Union[Comparison, _Mapping]] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ["gradient", "rollout", "variants", "without_paths"]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PATHS_FIELD_NUMBER: _ClassVar[int]
    gradient: GradientRequest
    rollout: RolloutRequest
    variants: _containers.RepeatedCompositeFieldContainer[Variant]
    without_paths: bool
    def __init__(self, rollout: _Optional[_Union[RolloutRequest, _Mapping]] = ..., gradient: _Optional[_Union[GradientRequest, _Mapping]] = ..., variants: _Optional[_Iterable[_Union[Variant, _Mapping]]] = ..., without_paths: bool = ...) -> None: ...

class CompareResponse(_message.Message):
    __slots__ = ["parts"]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[ComparePart]
    def __init__(self, parts: _Optional[_Iterable[_Union[ComparePart, _Mapping]]] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ["by_path", "differences", "first_elements", "first_sites", "first_steps", "instances", "parted", "sites", "unlike"]
    BY_PATH_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SITES_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEPS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    PARTED_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    UNLIKE_FIELD_NUMBER: _ClassVar[int]
    by_path: bool
    differences: _containers.RepeatedCompositeFieldContainer[FieldDifference]
    first_elements: bytes
    first_sites: bytes
    first_steps: bytes
    instances: int
    parted: int
    sites: _containers.RepeatedCompositeFieldContainer[SiteComparison]
    unlike: str
    def __init__(self, by_path: bool = ..., unlike: _Optional[str] = ..., instances: _Optional[int] = ..., parted: _Optional[int] = ..., first_steps: _Optional[bytes] = ..., first_sites: _Optional[bytes] = ..., first_elements: _Optional[bytes] = ..., sites: _Optional[_Iterable[_Union[SiteComparison, _Mapping]]] = ..., differences: _Optional[_Iterable[_Union[FieldDifference, _Mapping]]] = ...) -> None: ...

class ConfigSchema(_message.Message):
    __slots__ = ["default_value", "description", "name", "type", "words"]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    default_value: ConfigValue
    description: str
    name: str
    type: str
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., default_value: _Optional[_Union[ConfigValue, _Mapping]] = ..., words: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ...) -> None: ...

class ConfigValue(_message.Message):
    __slots__ = ["flag", "number", "word"]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    flag: bool
    number: float
    word: str
    def __init__(self, number: _Optional[float] = ..., word: _Optional[str] = ..., flag: bool = ...) -> None: ...

class Cotangent(_message.Message):
    __slots__ = ["final_state", "trajectory"]
    FINAL_STATE_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    final_state: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    trajectory: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    def __init__(self, final_state: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., trajectory: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ...) -> None: ...

class CudaText(_message.Message):
    __slots__ = ["integers", "mapping", "numbers", "text"]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    MAPPING_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    integers: _containers.RepeatedScalarFieldContainer[int]
    mapping: CudaMapping
    numbers: _containers.RepeatedScalarFieldContainer[float]
    text: str
    def __init__(self, text: _Optional[str] = ..., mapping: _Optional[_Union[CudaMapping, str]] = ..., numbers: _Optional[_Iterable[float]] = ..., integers: _Optional[_Iterable[int]] = ...) -> None: ...

class CudaTextOptions(_message.Message):
    __slots__ = ["mapping", "per_step"]
    MAPPING_FIELD_NUMBER: _ClassVar[int]
    PER_STEP_FIELD_NUMBER: _ClassVar[int]
    mapping: CudaMapping
    per_step: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, mapping: _Optional[_Union[CudaMapping, str]] = ..., per_step: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeProgramRequest(_message.Message):
    __slots__ = ["adjoint", "cotangent_final_state", "cotangent_trajectory", "cuda", "loops", "objective", "path", "policy", "world", "wrt"]
    ADJOINT_FIELD_NUMBER: _ClassVar[int]
    COTANGENT_FINAL_STATE_FIELD_NUMBER: _ClassVar[int]
    COTANGENT_TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    WRT_FIELD_NUMBER: _ClassVar[int]
    adjoint: bool
    cotangent_final_state: _containers.RepeatedScalarFieldContainer[str]
    cotangent_trajectory: _containers.RepeatedScalarFieldContainer[str]
    cuda: CudaTextOptions
    loops: _containers.RepeatedCompositeFieldContainer[LoopDerivative]
    objective: str
    path: PathUse
    policy: _policy_pb2.Policy
    world: World
    wrt: _containers.RepeatedCompositeFieldContainer[InputName]
    def __init__(self, world: _Optional[_Union[World, _Mapping]] = ..., policy: _Optional[_Union[_policy_pb2.Policy, _Mapping]] = ..., objective: _Optional[str] = ..., adjoint: bool = ..., cuda: _Optional[_Union[CudaTextOptions, _Mapping]] = ..., wrt: _Optional[_Iterable[_Union[InputName, _Mapping]]] = ..., cotangent_final_state: _Optional[_Iterable[str]] = ..., cotangent_trajectory: _Optional[_Iterable[str]] = ..., loops: _Optional[_Iterable[_Union[LoopDerivative, _Mapping]]] = ..., path: _Optional[_Union[PathUse, str]] = ...) -> None: ...

class DescribeProgramResponse(_message.Message):
    __slots__ = ["cuda", "inputs", "program", "source"]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    cuda: CudaText
    inputs: _containers.RepeatedCompositeFieldContainer[InputSchema]
    program: ProgramInfo
    source: _program_pb2.Program
    def __init__(self, program: _Optional[_Union[ProgramInfo, _Mapping]] = ..., source: _Optional[_Union[_program_pb2.Program, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[InputSchema, _Mapping]]] = ..., cuda: _Optional[_Union[CudaText, _Mapping]] = ...) -> None: ...

class DeviceInfo(_message.Message):
    __slots__ = ["formats", "instruction_set", "kind", "memory_bytes", "name", "note", "threads"]
    class FormatsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FORMATS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_SET_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    formats: _containers.ScalarMap[str, str]
    instruction_set: str
    kind: str
    memory_bytes: int
    name: str
    note: str
    threads: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., threads: _Optional[int] = ..., instruction_set: _Optional[str] = ..., formats: _Optional[_Mapping[str, str]] = ..., memory_bytes: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class DiagnosticsOptions(_message.Message):
    __slots__ = ["arithmetic_instances", "level", "margins", "stride"]
    ARITHMETIC_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MARGINS_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    arithmetic_instances: int
    level: DiagnosticsLevel
    margins: _containers.RepeatedScalarFieldContainer[str]
    stride: int
    def __init__(self, level: _Optional[_Union[DiagnosticsLevel, str]] = ..., stride: _Optional[int] = ..., margins: _Optional[_Iterable[str]] = ..., arithmetic_instances: _Optional[int] = ...) -> None: ...

class FieldDifference(_message.Message):
    __slots__ = ["at", "field", "largest", "relative"]
    AT_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    at: int
    field: str
    largest: float
    relative: float
    def __init__(self, field: _Optional[str] = ..., largest: _Optional[float] = ..., relative: _Optional[float] = ..., at: _Optional[int] = ...) -> None: ...

class FieldInfo(_message.Message):
    __slots__ = ["dtype", "name", "shape", "times"]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    dtype: _tensor_pb2.DType
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    times: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[_tensor_pb2.DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., times: _Optional[int] = ...) -> None: ...

class FirstEvent(_message.Message):
    __slots__ = ["site", "steps"]
    SITE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    site: str
    steps: bytes
    def __init__(self, site: _Optional[str] = ..., steps: _Optional[bytes] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GradientPart(_message.Message):
    __slots__ = ["backward", "diagnostics", "header", "piece", "progress", "result", "trajectory"]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    backward: _diagnostics_pb2.BackwardBlock
    diagnostics: _diagnostics_pb2.DiagnosticsBlock
    header: StreamHeader
    piece: TensorPiece
    progress: Progress
    result: GradientResult
    trajectory: TrajectoryChunk
    def __init__(self, header: _Optional[_Union[StreamHeader, _Mapping]] = ..., diagnostics: _Optional[_Union[_diagnostics_pb2.DiagnosticsBlock, _Mapping]] = ..., trajectory: _Optional[_Union[TrajectoryChunk, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., piece: _Optional[_Union[TensorPiece, _Mapping]] = ..., result: _Optional[_Union[GradientResult, _Mapping]] = ..., backward: _Optional[_Union[_diagnostics_pb2.BackwardBlock, _Mapping]] = ...) -> None: ...

class GradientRequest(_message.Message):
    __slots__ = ["clip_norm", "cotangents", "loops", "reduction", "return_tree", "spec", "weights", "wrt"]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    COTANGENTS_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    RETURN_TREE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WRT_FIELD_NUMBER: _ClassVar[int]
    clip_norm: float
    cotangents: _containers.RepeatedCompositeFieldContainer[Cotangent]
    loops: _containers.RepeatedCompositeFieldContainer[LoopDerivative]
    reduction: InstanceReduction
    return_tree: bool
    spec: RolloutSpec
    weights: _containers.RepeatedScalarFieldContainer[float]
    wrt: _containers.RepeatedCompositeFieldContainer[InputName]
    def __init__(self, spec: _Optional[_Union[RolloutSpec, _Mapping]] = ..., cotangents: _Optional[_Iterable[_Union[Cotangent, _Mapping]]] = ..., weights: _Optional[_Iterable[float]] = ..., reduction: _Optional[_Union[InstanceReduction, str]] = ..., wrt: _Optional[_Iterable[_Union[InputName, _Mapping]]] = ..., return_tree: bool = ..., loops: _Optional[_Iterable[_Union[LoopDerivative, _Mapping]]] = ..., clip_norm: _Optional[float] = ...) -> None: ...

class GradientResponse(_message.Message):
    __slots__ = ["parts"]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[GradientPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[GradientPart, _Mapping]]] = ...) -> None: ...

class GradientResult(_message.Message):
    __slots__ = ["adjoint_solves", "arithmetic", "gradients", "left_out", "loss_scale", "loss_scale_state", "norm", "reused", "rollout", "skipped", "warnings"]
    ADJOINT_SOLVES_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_STATE_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    REUSED_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    adjoint_solves: _containers.RepeatedCompositeFieldContainer[AdjointSolves]
    arithmetic: _containers.RepeatedCompositeFieldContainer[_diagnostics_pb2.Arithmetic]
    gradients: _containers.RepeatedCompositeFieldContainer[InputGradient]
    left_out: int
    loss_scale: float
    loss_scale_state: _policy_pb2.DynamicLossScale
    norm: float
    reused: bool
    rollout: RolloutResult
    skipped: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rollout: _Optional[_Union[RolloutResult, _Mapping]] = ..., gradients: _Optional[_Iterable[_Union[InputGradient, _Mapping]]] = ..., loss_scale: _Optional[float] = ..., skipped: bool = ..., left_out: _Optional[int] = ..., loss_scale_state: _Optional[_Union[_policy_pb2.DynamicLossScale, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ..., reused: bool = ..., norm: _Optional[float] = ..., adjoint_solves: _Optional[_Iterable[_Union[AdjointSolves, _Mapping]]] = ..., arithmetic: _Optional[_Iterable[_Union[_diagnostics_pb2.Arithmetic, _Mapping]]] = ...) -> None: ...

class ImplicitDerivative(_message.Message):
    __slots__ = ["damping", "max_iter", "restart", "solver", "tol"]
    DAMPING_FIELD_NUMBER: _ClassVar[int]
    MAX_ITER_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    SOLVER_FIELD_NUMBER: _ClassVar[int]
    TOL_FIELD_NUMBER: _ClassVar[int]
    damping: float
    max_iter: int
    restart: int
    solver: str
    tol: float
    def __init__(self, solver: _Optional[str] = ..., tol: _Optional[float] = ..., max_iter: _Optional[int] = ..., damping: _Optional[float] = ..., restart: _Optional[int] = ...) -> None: ...

class InputGradient(_message.Message):
    __slots__ = ["connected", "gated_by", "gradient", "kind", "largest", "name", "smallest", "tree", "zero"]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    GATED_BY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    connected: int
    gated_by: str
    gradient: _tensor_pb2.Tensor
    kind: _program_pb2.InputKind
    largest: float
    name: str
    smallest: float
    tree: _containers.RepeatedCompositeFieldContainer[TreeNode]
    zero: int
    def __init__(self, kind: _Optional[_Union[_program_pb2.InputKind, str]] = ..., name: _Optional[str] = ..., gradient: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., connected: _Optional[int] = ..., gated_by: _Optional[str] = ..., tree: _Optional[_Iterable[_Union[TreeNode, _Mapping]]] = ..., zero: _Optional[int] = ..., smallest: _Optional[float] = ..., largest: _Optional[float] = ...) -> None: ...

class InputName(_message.Message):
    __slots__ = ["kind", "name"]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: _program_pb2.InputKind
    name: str
    def __init__(self, kind: _Optional[_Union[_program_pb2.InputKind, str]] = ..., name: _Optional[str] = ...) -> None: ...

class InputSchema(_message.Message):
    __slots__ = ["default_value", "description", "differentiable", "element", "kind", "name", "shape", "weights"]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DIFFERENTIABLE_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    default_value: float
    description: str
    differentiable: bool
    element: _program_pb2.ElementType
    kind: _program_pb2.InputKind
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    weights: bool
    def __init__(self, kind: _Optional[_Union[_program_pb2.InputKind, str]] = ..., name: _Optional[str] = ..., element: _Optional[_Union[_program_pb2.ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., default_value: _Optional[float] = ..., differentiable: bool = ..., description: _Optional[str] = ..., weights: bool = ...) -> None: ...

class InstanceHealth(_message.Message):
    __slots__ = ["halted_by", "halted_error", "halted_index", "halted_step", "halts", "index", "ok", "phase", "step", "stopped"]
    HALTED_BY_FIELD_NUMBER: _ClassVar[int]
    HALTED_ERROR_FIELD_NUMBER: _ClassVar[int]
    HALTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    HALTED_STEP_FIELD_NUMBER: _ClassVar[int]
    HALTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    halted_by: _containers.RepeatedScalarFieldContainer[int]
    halted_error: _containers.RepeatedScalarFieldContainer[bool]
    halted_index: _containers.RepeatedScalarFieldContainer[int]
    halted_step: _containers.RepeatedScalarFieldContainer[int]
    halts: _containers.RepeatedScalarFieldContainer[str]
    index: _containers.RepeatedScalarFieldContainer[int]
    ok: bytes
    phase: _containers.RepeatedScalarFieldContainer[str]
    step: _containers.RepeatedScalarFieldContainer[int]
    stopped: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, ok: _Optional[bytes] = ..., index: _Optional[_Iterable[int]] = ..., phase: _Optional[_Iterable[str]] = ..., step: _Optional[_Iterable[int]] = ..., stopped: _Optional[_Iterable[bool]] = ..., halts: _Optional[_Iterable[str]] = ..., halted_index: _Optional[_Iterable[int]] = ..., halted_by: _Optional[_Iterable[int]] = ..., halted_step: _Optional[_Iterable[int]] = ..., halted_error: _Optional[_Iterable[bool]] = ...) -> None: ...

class KeepOptions(_message.Message):
    __slots__ = ["cotangent_final_state", "cotangent_trajectory", "loops", "wrt"]
    COTANGENT_FINAL_STATE_FIELD_NUMBER: _ClassVar[int]
    COTANGENT_TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    WRT_FIELD_NUMBER: _ClassVar[int]
    cotangent_final_state: _containers.RepeatedScalarFieldContainer[str]
    cotangent_trajectory: _containers.RepeatedScalarFieldContainer[str]
    loops: _containers.RepeatedCompositeFieldContainer[LoopDerivative]
    wrt: _containers.RepeatedCompositeFieldContainer[InputName]
    def __init__(self, wrt: _Optional[_Iterable[_Union[InputName, _Mapping]]] = ..., cotangent_final_state: _Optional[_Iterable[str]] = ..., cotangent_trajectory: _Optional[_Iterable[str]] = ..., loops: _Optional[_Iterable[_Union[LoopDerivative, _Mapping]]] = ...) -> None: ...

class KeptRun(_message.Message):
    __slots__ = ["handle", "seconds"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    handle: str
    seconds: float
    def __init__(self, handle: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ["kept_run_seconds", "max_arithmetic_instances", "max_depth", "max_elements", "max_exports", "max_instances", "max_kept_bytes", "max_literal_elements", "max_loop_iterations", "max_lowered_bytes", "max_lowered_operands", "max_lowered_operations", "max_lowered_text_bytes", "max_lowered_visits", "max_message_bytes", "max_name_bytes", "max_nested_iterations", "max_objectives", "max_operands", "max_operations", "max_path_bytes", "max_permuted_numbers", "max_request_bytes", "max_request_memory_bytes", "max_step_work", "max_steps", "max_total_elements", "max_total_operands", "max_upload_bytes", "max_uploaded_bytes", "max_values", "max_variants", "uploaded_seconds"]
    KEPT_RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_ARITHMETIC_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPORTS_FIELD_NUMBER: _ClassVar[int]
    MAX_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    MAX_KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LITERAL_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOOP_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOWERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOWERED_OPERANDS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOWERED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOWERED_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOWERED_VISITS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_NAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_NESTED_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    MAX_OPERANDS_FIELD_NUMBER: _ClassVar[int]
    MAX_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PERMUTED_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_WORK_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_OPERANDS_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUES_FIELD_NUMBER: _ClassVar[int]
    MAX_VARIANTS_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    kept_run_seconds: float
    max_arithmetic_instances: int
    max_depth: int
    max_elements: int
    max_exports: int
    max_instances: int
    max_kept_bytes: int
    max_literal_elements: int
    max_loop_iterations: int
    max_lowered_bytes: int
    max_lowered_operands: int
    max_lowered_operations: int
    max_lowered_text_bytes: int
    max_lowered_visits: int
    max_message_bytes: int
    max_name_bytes: int
    max_nested_iterations: int
    max_objectives: int
    max_operands: int
    max_operations: int
    max_path_bytes: int
    max_permuted_numbers: int
    max_request_bytes: int
    max_request_memory_bytes: int
    max_step_work: int
    max_steps: int
    max_total_elements: int
    max_total_operands: int
    max_upload_bytes: int
    max_uploaded_bytes: int
    max_values: int
    max_variants: int
    uploaded_seconds: float
    def __init__(self, max_steps: _Optional[int] = ..., max_instances: _Optional[int] = ..., max_elements: _Optional[int] = ..., max_operations: _Optional[int] = ..., max_loop_iterations: _Optional[int] = ..., max_nested_iterations: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_request_memory_bytes: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_step_work: _Optional[int] = ..., max_values: _Optional[int] = ..., max_total_elements: _Optional[int] = ..., max_depth: _Optional[int] = ..., max_name_bytes: _Optional[int] = ..., max_exports: _Optional[int] = ..., max_objectives: _Optional[int] = ..., max_operands: _Optional[int] = ..., max_total_operands: _Optional[int] = ..., max_literal_elements: _Optional[int] = ..., max_lowered_operations: _Optional[int] = ..., max_lowered_bytes: _Optional[int] = ..., max_path_bytes: _Optional[int] = ..., max_kept_bytes: _Optional[int] = ..., kept_run_seconds: _Optional[float] = ..., max_lowered_text_bytes: _Optional[int] = ..., max_lowered_operands: _Optional[int] = ..., max_lowered_visits: _Optional[int] = ..., max_permuted_numbers: _Optional[int] = ..., max_upload_bytes: _Optional[int] = ..., max_uploaded_bytes: _Optional[int] = ..., uploaded_seconds: _Optional[float] = ..., max_variants: _Optional[int] = ..., max_arithmetic_instances: _Optional[int] = ...) -> None: ...

class ListWorldsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListWorldsResponse(_message.Message):
    __slots__ = ["worlds"]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    worlds: _containers.RepeatedCompositeFieldContainer[WorldSchema]
    def __init__(self, worlds: _Optional[_Iterable[_Union[WorldSchema, _Mapping]]] = ...) -> None: ...

class LoopDerivative(_message.Message):
    __slots__ = ["implicit", "site", "truncated"]
    IMPLICIT_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    implicit: ImplicitDerivative
    site: str
    truncated: int
    def __init__(self, site: _Optional[str] = ..., truncated: _Optional[int] = ..., implicit: _Optional[_Union[ImplicitDerivative, _Mapping]] = ...) -> None: ...

class NamedTensor(_message.Message):
    __slots__ = ["name", "per_step", "tensor"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PER_STEP_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    per_step: bool
    tensor: _tensor_pb2.Tensor
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., per_step: bool = ...) -> None: ...

class Path(_message.Message):
    __slots__ = ["decisions", "structure"]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    decisions: _tensor_pb2.Tensor
    structure: str
    def __init__(self, structure: _Optional[str] = ..., decisions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class PathColumn(_message.Message):
    __slots__ = ["element", "first", "kind", "loops", "shape", "site", "width"]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    element: _program_pb2.ElementType
    first: int
    kind: PathKind
    loops: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    site: str
    width: int
    def __init__(self, site: _Optional[str] = ..., kind: _Optional[_Union[PathKind, str]] = ..., element: _Optional[_Union[_program_pb2.ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., first: _Optional[int] = ..., width: _Optional[int] = ..., loops: _Optional[_Iterable[int]] = ...) -> None: ...

class PathLayout(_message.Message):
    __slots__ = ["bytes", "columns", "structure"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    columns: _containers.RepeatedCompositeFieldContainer[PathColumn]
    structure: str
    def __init__(self, structure: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[PathColumn, _Mapping]]] = ..., bytes: _Optional[int] = ...) -> None: ...

class PathOptions(_message.Message):
    __slots__ = ["forced", "record"]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    forced: Path
    record: bool
    def __init__(self, record: bool = ..., forced: _Optional[_Union[Path, _Mapping]] = ...) -> None: ...

class ProgramInfo(_message.Message):
    __slots__ = ["event_sites", "fingerprint", "policy", "termination_sites", "text"]
    EVENT_SITES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    TERMINATION_SITES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    event_sites: _containers.RepeatedScalarFieldContainer[str]
    fingerprint: str
    policy: _policy_pb2.ResolvedPolicy
    termination_sites: _containers.RepeatedScalarFieldContainer[str]
    text: str
    def __init__(self, fingerprint: _Optional[str] = ..., text: _Optional[str] = ..., policy: _Optional[_Union[_policy_pb2.ResolvedPolicy, _Mapping]] = ..., termination_sites: _Optional[_Iterable[str]] = ..., event_sites: _Optional[_Iterable[str]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ["phase", "steps_done", "steps_total"]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    phase: str
    steps_done: int
    steps_total: int
    def __init__(self, phase: _Optional[str] = ..., steps_done: _Optional[int] = ..., steps_total: _Optional[int] = ...) -> None: ...

class RolloutPart(_message.Message):
    __slots__ = ["diagnostics", "header", "piece", "progress", "result", "trajectory"]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    diagnostics: _diagnostics_pb2.DiagnosticsBlock
    header: StreamHeader
    piece: TensorPiece
    progress: Progress
    result: RolloutResult
    trajectory: TrajectoryChunk
    def __init__(self, header: _Optional[_Union[StreamHeader, _Mapping]] = ..., diagnostics: _Optional[_Union[_diagnostics_pb2.DiagnosticsBlock, _Mapping]] = ..., trajectory: _Optional[_Union[TrajectoryChunk, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., piece: _Optional[_Union[TensorPiece, _Mapping]] = ..., result: _Optional[_Union[RolloutResult, _Mapping]] = ...) -> None: ...

class RolloutRequest(_message.Message):
    __slots__ = ["keep", "spec", "weights"]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    keep: KeepOptions
    spec: RolloutSpec
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, spec: _Optional[_Union[RolloutSpec, _Mapping]] = ..., keep: _Optional[_Union[KeepOptions, _Mapping]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class RolloutResponse(_message.Message):
    __slots__ = ["parts"]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[RolloutPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[RolloutPart, _Mapping]]] = ...) -> None: ...

class RolloutResult(_message.Message):
    __slots__ = ["arithmetic", "batch_path_signature", "certificates", "final_state", "first_events", "health", "kept", "path_signatures", "phase_seconds", "value", "values"]
    class PhaseSecondsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    BATCH_PATH_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    FINAL_STATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_EVENTS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    PATH_SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    PHASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    arithmetic: _containers.RepeatedCompositeFieldContainer[_diagnostics_pb2.Arithmetic]
    batch_path_signature: int
    certificates: _containers.RepeatedCompositeFieldContainer[_diagnostics_pb2.BirthCertificate]
    final_state: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    first_events: _containers.RepeatedCompositeFieldContainer[FirstEvent]
    health: InstanceHealth
    kept: KeptRun
    path_signatures: bytes
    phase_seconds: _containers.ScalarMap[str, float]
    value: float
    values: bytes
    def __init__(self, final_state: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., value: _Optional[float] = ..., values: _Optional[bytes] = ..., path_signatures: _Optional[bytes] = ..., batch_path_signature: _Optional[int] = ..., health: _Optional[_Union[InstanceHealth, _Mapping]] = ..., first_events: _Optional[_Iterable[_Union[FirstEvent, _Mapping]]] = ..., certificates: _Optional[_Iterable[_Union[_diagnostics_pb2.BirthCertificate, _Mapping]]] = ..., phase_seconds: _Optional[_Mapping[str, float]] = ..., kept: _Optional[_Union[KeptRun, _Mapping]] = ..., arithmetic: _Optional[_Iterable[_Union[_diagnostics_pb2.Arithmetic, _Mapping]]] = ...) -> None: ...

class RolloutSpec(_message.Message):
    __slots__ = ["checkpoint_interval", "chunk_steps", "controls", "data", "diagnostics", "first_instance", "initial", "instance_ids", "instances", "objective", "params", "path", "policy", "program", "record", "seed", "steps", "world"]
    CHECKPOINT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_STEPS_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    FIRST_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_IDS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    checkpoint_interval: int
    chunk_steps: int
    controls: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    data: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    diagnostics: DiagnosticsOptions
    first_instance: int
    initial: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    instance_ids: _containers.RepeatedScalarFieldContainer[int]
    instances: int
    objective: str
    params: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    path: PathOptions
    policy: _policy_pb2.Policy
    program: ProgramDetail
    record: _containers.RepeatedScalarFieldContainer[str]
    seed: int
    steps: int
    world: World
    def __init__(self, world: _Optional[_Union[World, _Mapping]] = ..., steps: _Optional[int] = ..., instances: _Optional[int] = ..., initial: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., params: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., controls: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., data: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., policy: _Optional[_Union[_policy_pb2.Policy, _Mapping]] = ..., first_instance: _Optional[int] = ..., instance_ids: _Optional[_Iterable[int]] = ..., record: _Optional[_Iterable[str]] = ..., diagnostics: _Optional[_Union[DiagnosticsOptions, _Mapping]] = ..., objective: _Optional[str] = ..., chunk_steps: _Optional[int] = ..., checkpoint_interval: _Optional[int] = ..., program: _Optional[_Union[ProgramDetail, str]] = ..., seed: _Optional[int] = ..., path: _Optional[_Union[PathOptions, _Mapping]] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ["default_device", "devices", "limits", "metrics_port", "orders", "port", "presets", "revision", "version", "worlds"]
    DEFAULT_DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    default_device: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceInfo]
    limits: Limits
    metrics_port: int
    orders: _containers.RepeatedScalarFieldContainer[str]
    port: int
    presets: _containers.RepeatedScalarFieldContainer[str]
    revision: str
    version: str
    worlds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., revision: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceInfo, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., worlds: _Optional[_Iterable[str]] = ..., presets: _Optional[_Iterable[str]] = ..., orders: _Optional[_Iterable[str]] = ..., port: _Optional[int] = ..., metrics_port: _Optional[int] = ..., default_device: _Optional[str] = ...) -> None: ...

class SiteComparison(_message.Message):
    __slots__ = ["flips", "parted", "reference_count", "site", "variant_count"]
    FLIPS_FIELD_NUMBER: _ClassVar[int]
    PARTED_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    VARIANT_COUNT_FIELD_NUMBER: _ClassVar[int]
    flips: int
    parted: int
    reference_count: int
    site: str
    variant_count: int
    def __init__(self, site: _Optional[str] = ..., parted: _Optional[int] = ..., flips: _Optional[int] = ..., reference_count: _Optional[int] = ..., variant_count: _Optional[int] = ...) -> None: ...

class StreamHeader(_message.Message):
    __slots__ = ["device", "instances", "path", "program", "request_id", "revision", "server_version", "steps", "trajectory"]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    device: str
    instances: int
    path: PathLayout
    program: ProgramInfo
    request_id: str
    revision: str
    server_version: str
    steps: int
    trajectory: _containers.RepeatedCompositeFieldContainer[FieldInfo]
    def __init__(self, program: _Optional[_Union[ProgramInfo, _Mapping]] = ..., device: _Optional[str] = ..., server_version: _Optional[str] = ..., instances: _Optional[int] = ..., steps: _Optional[int] = ..., trajectory: _Optional[_Iterable[_Union[FieldInfo, _Mapping]]] = ..., request_id: _Optional[str] = ..., revision: _Optional[str] = ..., path: _Optional[_Union[PathLayout, _Mapping]] = ...) -> None: ...

class TensorPiece(_message.Message):
    __slots__ = ["data", "field", "last", "offset"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    field: str
    last: bool
    offset: int
    def __init__(self, field: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class TrajectoryChunk(_message.Message):
    __slots__ = ["data", "first_instance_index", "first_time", "instances", "name", "times"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FIRST_INSTANCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    first_instance_index: int
    first_time: int
    instances: int
    name: str
    times: int
    def __init__(self, name: _Optional[str] = ..., first_instance_index: _Optional[int] = ..., instances: _Optional[int] = ..., first_time: _Optional[int] = ..., times: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class TreeNode(_message.Message):
    __slots__ = ["dtype", "index", "level", "value"]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    dtype: _tensor_pb2.DType
    index: int
    level: int
    value: bytes
    def __init__(self, level: _Optional[int] = ..., index: _Optional[int] = ..., value: _Optional[bytes] = ..., dtype: _Optional[_Union[_tensor_pb2.DType, str]] = ...) -> None: ...

class UploadRequest(_message.Message):
    __slots__ = ["data", "sha256", "size"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    sha256: bytes
    size: int
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadResponse(_message.Message):
    __slots__ = ["ref", "seconds"]
    REF_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ref: bytes
    seconds: float
    def __init__(self, ref: _Optional[bytes] = ..., seconds: _Optional[float] = ...) -> None: ...

class Variant(_message.Message):
    __slots__ = ["controls", "data", "initial", "params", "policy", "seed", "steps", "world"]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    controls: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    data: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    initial: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    params: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    policy: _policy_pb2.Policy
    seed: int
    steps: int
    world: World
    def __init__(self, policy: _Optional[_Union[_policy_pb2.Policy, _Mapping]] = ..., world: _Optional[_Union[World, _Mapping]] = ..., steps: _Optional[int] = ..., seed: _Optional[int] = ..., initial: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., params: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., controls: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., data: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ...) -> None: ...

class VjpRequest(_message.Message):
    __slots__ = ["clip_norm", "cotangents", "handle", "loops", "reduction", "return_tree", "weights", "wrt"]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    COTANGENTS_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    RETURN_TREE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WRT_FIELD_NUMBER: _ClassVar[int]
    clip_norm: float
    cotangents: _containers.RepeatedCompositeFieldContainer[Cotangent]
    handle: str
    loops: _containers.RepeatedCompositeFieldContainer[LoopDerivative]
    reduction: InstanceReduction
    return_tree: bool
    weights: _containers.RepeatedScalarFieldContainer[float]
    wrt: _containers.RepeatedCompositeFieldContainer[InputName]
    def __init__(self, handle: _Optional[str] = ..., cotangents: _Optional[_Iterable[_Union[Cotangent, _Mapping]]] = ..., weights: _Optional[_Iterable[float]] = ..., reduction: _Optional[_Union[InstanceReduction, str]] = ..., wrt: _Optional[_Iterable[_Union[InputName, _Mapping]]] = ..., return_tree: bool = ..., loops: _Optional[_Iterable[_Union[LoopDerivative, _Mapping]]] = ..., clip_norm: _Optional[float] = ...) -> None: ...

class World(_message.Message):
    __slots__ = ["config", "name", "program", "program_ref"]
    class ConfigEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ConfigValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ConfigValue, _Mapping]] = ...) -> None: ...
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_REF_FIELD_NUMBER: _ClassVar[int]
    config: _containers.MessageMap[str, ConfigValue]
    name: str
    program: _program_pb2.Program
    program_ref: bytes
    def __init__(self, name: _Optional[str] = ..., program: _Optional[_Union[_program_pb2.Program, _Mapping]] = ..., program_ref: _Optional[bytes] = ..., config: _Optional[_Mapping[str, ConfigValue]] = ...) -> None: ...

class WorldSchema(_message.Message):
    __slots__ = ["config", "description", "event_sites", "inputs", "name", "objectives", "observables", "termination_sites"]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EVENT_SITES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    OBSERVABLES_FIELD_NUMBER: _ClassVar[int]
    TERMINATION_SITES_FIELD_NUMBER: _ClassVar[int]
    config: _containers.RepeatedCompositeFieldContainer[ConfigSchema]
    description: str
    event_sites: _containers.RepeatedScalarFieldContainer[str]
    inputs: _containers.RepeatedCompositeFieldContainer[InputSchema]
    name: str
    objectives: _containers.RepeatedScalarFieldContainer[str]
    observables: _containers.RepeatedScalarFieldContainer[str]
    termination_sites: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., config: _Optional[_Iterable[_Union[ConfigSchema, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[InputSchema, _Mapping]]] = ..., observables: _Optional[_Iterable[str]] = ..., objectives: _Optional[_Iterable[str]] = ..., termination_sites: _Optional[_Iterable[str]] = ..., event_sites: _Optional[_Iterable[str]] = ...) -> None: ...

class DiagnosticsLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ProgramDetail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class InstanceReduction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class PathKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class PathUse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CudaMapping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
