"""Several requests that differ in a few parts, as one request of Compare."""

from __future__ import annotations

from typing import Any, Iterable, Union

from simgrad.v1 import simgrad_pb2

Request = Union[simgrad_pb2.RolloutRequest, simgrad_pb2.GradientRequest]

_GROUPS = ("initial", "params", "controls", "data")
# The parts of a spec in which a variant may differ, beside its inputs.
_MESSAGES, _NUMBERS = ("policy", "world"), ("steps", "seed")


def compare_request(asked: Iterable[Request], sends_paths: bool) -> simgrad_pb2.CompareRequest | None:
    """One request for what several ask, the first of which is the reference. The runs record their paths where the
    reference asks for it; sends_paths: and they are sent.

    Returns: None where a request differs from the reference in more than a variant can say, as one that lacks an
      input of the reference does.
    Cost: holds two of them at a time, and leaves of each what all share.
    """
    message = simgrad_pb2.CompareRequest()
    shared: Request | None = None
    for request in asked:
        if shared is None:
            shared = request
            _reference_in(message, request).CopyFrom(request)
            _strip(shared)
            continue
        variant = _variant_of(_reference_in(message, request).spec, request.spec)
        _strip(request)
        if variant is None or request != shared:
            return None
        message.variants.append(variant)
    reference = reference_of(message)
    message.without_paths = not reference.spec.path.record
    if not sends_paths:
        reference.spec.ClearField("path")
    return message


def reference_of(message: Any) -> Any:
    """The rollout or the gradient that a Compare asks of its reference; any other request as it is."""
    if not isinstance(message, simgrad_pb2.CompareRequest):
        return message
    return getattr(message, message.WhichOneof("work") or "rollout")


def parts_with_world(message: Any) -> list[tuple[str, Any]]:
    """The parts of a request that may have a world, and the path of fields that leads to each: "", "spec." or
    "variants[0]."; all but those with "" have inputs, too."""
    fields = reference_of(message).DESCRIPTOR.fields_by_name
    parts: list[tuple[str, Any]] = []
    if "spec" in fields:
        parts.append(("spec.", reference_of(message).spec))
    elif "world" in fields:
        parts.append(("", message))
    if isinstance(message, simgrad_pb2.CompareRequest):
        parts += [(f"variants[{i}].", variant) for i, variant in enumerate(message.variants)]
    return parts


def _reference_in(message: simgrad_pb2.CompareRequest, like: Request) -> Any:
    """The field of the reference, for a request of this kind."""
    return message.gradient if isinstance(like, simgrad_pb2.GradientRequest) else message.rollout


def _strip(request: Request) -> None:
    """Leaves what all variants share."""
    for field in (*_GROUPS, *_MESSAGES, *_NUMBERS):
        request.spec.ClearField(field)


def _variant_of(
    reference: simgrad_pb2.RolloutSpec, spec: simgrad_pb2.RolloutSpec
) -> simgrad_pb2.Variant | None:
    """The part of a spec that differs; None where it has fewer inputs."""
    variant = simgrad_pb2.Variant()
    for field in _MESSAGES:
        if getattr(spec, field) != getattr(reference, field):
            getattr(variant, field).CopyFrom(getattr(spec, field))
    for field in _NUMBERS:
        if getattr(spec, field) != getattr(reference, field):
            setattr(variant, field, getattr(spec, field))
    for group in _GROUPS:
        known = {tensor.name: tensor for tensor in getattr(reference, group)}
        sent = getattr(spec, group)
        if not known.keys() <= {tensor.name for tensor in sent}:
            return None
        getattr(variant, group).extend(t for t in sent if known.get(t.name) != t)
    return variant
