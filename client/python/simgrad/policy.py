"""The precision policy: preset, then roles, then sites."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable

from simgrad.v1 import policy_pb2

# The fields that a policy may set of a role or site.
SETTINGS = tuple(field.name for field in policy_pb2.RoleSetting.DESCRIPTOR.fields)

_NON_FINITE = {
    "report": policy_pb2.NON_FINITE_POLICY_REPORT,
    "stop": policy_pb2.NON_FINITE_POLICY_STOP,
}


@dataclass(frozen=True)
class LossScaleState:
    """A dynamic loss scale behind a gradient, and its rule (`Policy.dynamic_loss_scale`)."""

    scale: float
    clean: int  # gradients since the scale changed last
    mode: str
    growth: float
    backoff: float
    interval: int

    @classmethod
    def of(cls, message: policy_pb2.DynamicLossScale) -> "LossScaleState":
        return cls(
            message.scale,
            message.clean,
            message.mode,
            message.growth,
            message.backoff,
            message.interval,
        )

    def to_proto(self) -> policy_pb2.DynamicLossScale:
        return policy_pb2.DynamicLossScale(
            scale=self.scale,
            clean=self.clean,
            mode=self.mode,
            growth=self.growth,
            backoff=self.backoff,
            interval=self.interval,
        )


class Policy:
    """A precision policy: the format, overflow mode, order, accumulator and rounding of each role, and how
    it multiplies matrices.

    Immutable: every method returns a new policy. Names are checked by the server, which answers
    with what it ran (`result.program.policy`).

    Example:
      Policy("f16_unsafe").role("termination", format="f32", order="sequential").loss_scale(65536)

    Args:
      preset: f64, f32, bf16_unsafe, f16_unsafe, bf16_safe, f16_safe, fp8_storage.
    """

    def __init__(self, preset: str = "f32"):
        if not isinstance(preset, str):
            raise TypeError(f"a preset is a name, not {preset!r}")
        self._message = policy_pb2.Policy(preset=preset)

    def role(
        self,
        name: str,
        *,
        format: str = "",
        order: str = "",
        overflow: str = "",
        accumulator: str = "",
        rounding: str = "",
        products: str = "",
        scale: str = "",
    ) -> "Policy":
        """Overrides what the role `name` does; what is left out stays as it was (the preset's, or
        that of an earlier call for this role).

        Args:
          name: state, dynamics, solver, termination, event, network, objective, tape, adjoint,
            gradient.
          format: f64, f32, bf16, f16; also e4m3, e5m2 where a role only stores. tf32 is f32, but `@`
            reads its operands with 11 bits of precision, as tensor cores do; roles dynamics, solver,
            network, objective and adjoint may have it.
          order: sequential, reversed, pairwise, compensated, exact, or shuffled(7): one after the
            other in a permutation that the seed 7 draws.
          overflow: ieee, saturate.
          accumulator: format in which reductions of the role accumulate, and sums of gradients over instances. What adds
            up over steps, a cost or the gradient of an instance, is rounded to `format` at each step.
          rounding: how values that are cast into the role round: nearest_even, nearest_away,
            toward_zero, or stochastic, up with the probability of what is cut off, drawn by the
            request's `seed`. A value that is computed in the role's format already is not cast. With
            tf32 it is the rounding of what `@` reads (nearest_even where it is left out), and not
            stochastic: casts into the role are those of f32.
          products: how `@` adds its products: fma_chain (each link one fused multiply-add, whatever
            `order` says), or an order as above, of products rounded to the accumulator.
          scale: of role network in e4m3 or e5m2. none; or amax: what enters the role, and what a
            product of matrices reads, is rounded to the format under a power of two, each array by
            its largest magnitude (`simgrad.fake_quantize`), saturating; the role computes in its
            accumulator. fp8_storage has it.
        """
        setting = _setting(format, order, overflow, accumulator, rounding, products, scale)
        return self._with(lambda m: _override(m.roles, "role", name, setting))

    def site(
        self,
        name: str,
        *,
        format: str = "",
        order: str = "",
        overflow: str = "",
        accumulator: str = "",
        rounding: str = "",
        products: str = "",
    ) -> "Policy":
        """Overrides one site (for example "projection"), over what its role says; what is left out
        stays as it was."""
        setting = _setting(format, order, overflow, accumulator, rounding, products)
        return self._with(lambda m: _override(m.sites, "site", name, setting))

    def loss_scale(self, scale: float) -> "Policy":
        """Multiplies the initial cotangent by `scale` and the gradients by its inverse."""
        return self._with(lambda m: setattr(m.loss_scale, "fixed", float(scale)))

    def dynamic_loss_scale(
        self,
        state: "LossScaleState | None" = None,
        *,
        mode: str | None = None,
        growth: float | None = None,
        backoff: float | None = None,
        interval: int | None = None,
    ) -> "Policy":
        """Scales by a number that follows the gradients: it falls where a scaled gradient is not
        finite (`result.skipped`), and grows after `interval` gradients without that.

        The server keeps nothing: give each request the `loss_scale_state` of the answer before,
        which says the rule too. Without a state the scale starts at 65536.

        Args:
          state: `loss_scale_state` of a gradient.
          mode: guarded (powers of two, never below 1, unscaled gradients finite too) or torch
            (PyTorch's GradScaler, to the bit; a count of clean gradients beyond the interval grows at
            once, where GradScaler never would). None, here and below: that of `state`, else guarded.
          growth, backoff: factors of the scale, above 1 and between 0 and 1 (2 and 0.5); of mode guarded powers
            of two.
          interval: clean gradients before it grows (2000).
        Errors: TypeError for a state that is none; ValueError for numbers outside these ranges.
        """
        if state is not None and not isinstance(state, LossScaleState):
            raise TypeError(f"state is the loss_scale_state of a gradient, not {state!r}")
        rule: dict[str, Any] = dict(mode=mode, growth=growth, backoff=backoff, interval=interval)
        given = {name: value for name, value in rule.items() if value is not None}
        now = replace(state or LossScaleState(65536.0, 0, "guarded", 2.0, 0.5, 2000), **given)
        # 0 would say "the default" to the server.
        if not (now.growth > 1 and 0 < now.backoff < 1 and now.interval >= 1):
            raise ValueError(
                f"growth {now.growth}, backoff {now.backoff}, interval {now.interval}: above 1, between 0 and 1, at least 1"
            )
        return self._with(lambda m: m.loss_scale.dynamic.CopyFrom(now.to_proto()))

    def nonfinite(self, action: str) -> "Policy":
        """Sets what happens to a non-finite instance: "report" (it runs on) or "stop"."""
        if action not in _NON_FINITE:
            raise ValueError(f"nonfinite {action!r}: one of {', '.join(_NON_FINITE)}")
        return self._with(lambda m: setattr(m, "non_finite", _NON_FINITE[action]))

    def to_proto(self) -> policy_pb2.Policy:
        copy = policy_pb2.Policy()
        copy.CopyFrom(self._message)
        return copy

    def _with(self, change: Callable[[policy_pb2.Policy], object]) -> "Policy":
        other = Policy()
        other._message.CopyFrom(self._message)
        change(other._message)
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self._in_order() == other._in_order()

    def __hash__(self) -> int:
        return hash(self._in_order().SerializeToString(deterministic=True))

    def _in_order(self) -> policy_pb2.Policy:
        """The message with roles and sites by name: in which order they were set says nothing."""
        message = self.to_proto()
        message.roles.sort(key=lambda entry: entry.role)
        message.sites.sort(key=lambda entry: entry.site)
        return message

    def __repr__(self) -> str:
        parts = [f"Policy({self._message.preset!r})"]
        for method, entries in (("role", self._message.roles), ("site", self._message.sites)):
            for entry in entries:
                name = getattr(entry, method)
                fields = "".join(f", {d.name}={v!r}" for d, v in entry.setting.ListFields())
                parts.append(f".{method}({name!r}{fields})")
        if self._message.loss_scale.HasField("dynamic"):
            state = LossScaleState.of(self._message.loss_scale.dynamic)
            parts.append(f".dynamic_loss_scale({state!r})")
        elif self._message.HasField("loss_scale"):
            parts.append(f".loss_scale({self._message.loss_scale.fixed!r})")
        for action, value in _NON_FINITE.items():
            if self._message.non_finite == value:
                parts.append(f".nonfinite({action!r})")
        return "".join(parts)


def policy_message(policy: "Policy | str | None") -> policy_pb2.Policy:
    """The message of a policy, of a preset's name, or of none (f32)."""
    if policy is None:
        return Policy().to_proto()
    if isinstance(policy, str):
        return Policy(policy).to_proto()
    if isinstance(policy, Policy):
        return policy.to_proto()
    raise TypeError(f"policy is a simgrad.Policy or the name of a preset, not {policy!r}")


def _setting(
    format: str,
    order: str,
    overflow: str,
    accumulator: str,
    rounding: str,
    products: str,
    scale: str = "",
) -> policy_pb2.RoleSetting:
    words = dict(
        format=format,
        order=order,
        overflow=overflow,
        accumulator=accumulator,
        rounding=rounding,
        products=products,
        scale=scale,
    )
    for name, word in words.items():
        if not isinstance(word, str):
            raise TypeError(f"{name} is a name, not {word!r}")
    return policy_pb2.RoleSetting(**words)


def _override(overrides: Any, key: str, name: str, setting: policy_pb2.RoleSetting) -> None:
    """Puts `setting` over what is there for `name`: a message names each role and site once."""
    if not isinstance(name, str):
        raise TypeError(f"a {key} is a name, not {name!r}")
    for known in overrides:
        if getattr(known, key) == name:
            known.setting.MergeFrom(setting)
            return
    overrides.add(setting=setting, **{key: name})
