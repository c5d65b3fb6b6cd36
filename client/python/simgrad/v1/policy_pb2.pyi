from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
NON_FINITE_POLICY_REPORT: NonFinitePolicy
NON_FINITE_POLICY_STOP: NonFinitePolicy
NON_FINITE_POLICY_UNSPECIFIED: NonFinitePolicy

class DynamicLossScale(_message.Message):
    __slots__ = ["backoff", "clean", "growth", "interval", "mode", "scale"]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    backoff: float
    clean: int
    growth: float
    interval: int
    mode: str
    scale: float
    def __init__(self, scale: _Optional[float] = ..., clean: _Optional[int] = ..., mode: _Optional[str] = ..., growth: _Optional[float] = ..., backoff: _Optional[float] = ..., interval: _Optional[int] = ...) -> None: ...

class LossScale(_message.Message):
    __slots__ = ["dynamic", "fixed"]
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    dynamic: DynamicLossScale
    fixed: float
    def __init__(self, fixed: _Optional[float] = ..., dynamic: _Optional[_Union[DynamicLossScale, _Mapping]] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ["loss_scale", "non_finite", "preset", "roles", "sites"]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    loss_scale: LossScale
    non_finite: NonFinitePolicy
    preset: str
    roles: _containers.RepeatedCompositeFieldContainer[RoleOverride]
    sites: _containers.RepeatedCompositeFieldContainer[SiteOverride]
    def __init__(self, preset: _Optional[str] = ..., roles: _Optional[_Iterable[_Union[RoleOverride, _Mapping]]] = ..., sites: _Optional[_Iterable[_Union[SiteOverride, _Mapping]]] = ..., loss_scale: _Optional[_Union[LossScale, _Mapping]] = ..., non_finite: _Optional[_Union[NonFinitePolicy, str]] = ...) -> None: ...

class ResolvedPolicy(_message.Message):
    __slots__ = ["loss_scale", "non_finite", "preset", "roles", "sites"]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    loss_scale: float
    non_finite: NonFinitePolicy
    preset: str
    roles: _containers.RepeatedCompositeFieldContainer[ResolvedRole]
    sites: _containers.RepeatedCompositeFieldContainer[SiteOverride]
    def __init__(self, preset: _Optional[str] = ..., roles: _Optional[_Iterable[_Union[ResolvedRole, _Mapping]]] = ..., sites: _Optional[_Iterable[_Union[SiteOverride, _Mapping]]] = ..., loss_scale: _Optional[float] = ..., non_finite: _Optional[_Union[NonFinitePolicy, str]] = ...) -> None: ...

class ResolvedRole(_message.Message):
    __slots__ = ["execution", "guarantee", "role", "setting"]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SETTING_FIELD_NUMBER: _ClassVar[int]
    execution: str
    guarantee: str
    role: str
    setting: RoleSetting
    def __init__(self, role: _Optional[str] = ..., setting: _Optional[_Union[RoleSetting, _Mapping]] = ..., execution: _Optional[str] = ..., guarantee: _Optional[str] = ...) -> None: ...

class RoleOverride(_message.Message):
    __slots__ = ["role", "setting"]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SETTING_FIELD_NUMBER: _ClassVar[int]
    role: str
    setting: RoleSetting
    def __init__(self, role: _Optional[str] = ..., setting: _Optional[_Union[RoleSetting, _Mapping]] = ...) -> None: ...

class RoleSetting(_message.Message):
    __slots__ = ["accumulator", "format", "order", "overflow", "products", "rounding", "scale"]
    ACCUMULATOR_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    ROUNDING_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    accumulator: str
    format: str
    order: str
    overflow: str
    products: str
    rounding: str
    scale: str
    def __init__(self, format: _Optional[str] = ..., overflow: _Optional[str] = ..., order: _Optional[str] = ..., accumulator: _Optional[str] = ..., rounding: _Optional[str] = ..., products: _Optional[str] = ..., scale: _Optional[str] = ...) -> None: ...

class SiteOverride(_message.Message):
    __slots__ = ["setting", "site"]
    SETTING_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    setting: RoleSetting
    site: str
    def __init__(self, site: _Optional[str] = ..., setting: _Optional[_Union[RoleSetting, _Mapping]] = ...) -> None: ...

class NonFinitePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
