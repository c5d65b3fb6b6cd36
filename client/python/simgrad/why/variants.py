"""The ways in which one piece of work is done."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Iterable, Mapping, Sequence

from simgrad.policy import Policy
from simgrad.results import ResolvedPolicy
from simgrad.v1 import program_pb2, simgrad_pb2
from simgrad.why.work import Variant
from simgrad.world import WithDefaults, World
from simgrad.world_function import FunctionWorld

ROLES = (
    *("state", "dynamics", "solver", "termination", "event", "network", "objective", "tape"),
    *("adjoint", "gradient"),
)
Policies = Sequence["Policy | str"] | Mapping[str, "Policy | str"]


def policy_of(given: Policy | str) -> Policy:
    """A Policy, or the preset of a name."""
    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        return Policy(given)
    raise TypeError(f"a policy is a simgrad.Policy or the name of a preset, not {given!r}")


def name_of(policy: Policy | str) -> str:
    """A preset's name, or a policy as it is written behind Policy."""
    if isinstance(policy, str):
        return policy
    text = repr(policy).removeprefix("Policy(")
    preset, _, rest = text.partition(")")
    return preset.strip("'") + rest


def policies_by_name(policies: Policies) -> dict[str, Policy]:
    """Policies under their names. Raises ValueError where two have one name, or there is none."""
    if isinstance(policies, (str, Policy)):
        raise TypeError(f"policies is a list of policies or a mapping of names to them, not {policies!r}")
    if isinstance(policies, Mapping):
        named = [(str(name), policy_of(given)) for name, given in policies.items()]
    else:
        named = [(name_of(given), policy_of(given)) for given in policies]
    if not named:
        raise ValueError("policies: at least one, the reference")
    return _distinct(named)


def with_order(policy: Policy, order: str, roles: Iterable[str] = ROLES) -> Policy:
    """The policy with one order of sums in these roles."""
    for role in roles:
        policy = policy.role(role, order=order)
    return policy


def with_stochastic_rounding(policy: Policy, resolved: ResolvedPolicy) -> Policy:
    """The policy with stochastic rounding of the casts into every role and at every site that has a choice; itself
    where none has. No cast into f64 rounds, tf32 draws nothing, and tape, gradient and a role with scale amax round
    to nearest even. `resolved`: what the server makes of the policy."""
    rounds = {"f32", "bf16", "f16", "e4m3", "e5m2"}
    for role, setting in resolved.roles.items():
        if role not in ("tape", "gradient") and setting.format in rounds and setting.scale == "none":
            policy = policy.role(role, rounding="stochastic")
    if resolved.roles["network"].scale == "none":
        for site, given in resolved.sites.items():
            if given.get("format") in rounds:
                policy = policy.site(site, rounding="stochastic")
    return policy


def without_weights(variant: Variant) -> Variant:
    """The variant in a world whose weights are params, which may be sent once for each instance."""
    program = variant.world.program
    if program is None or not any(i.weights for i in program.inputs):
        return variant
    changed = program_pb2.Program()
    changed.CopyFrom(program)
    for i in changed.inputs:
        i.weights = False
    message = simgrad_pb2.World(program=changed)
    return replace(variant, world=WithDefaults(message, variant.world.array_defaults))


def variants_of(
    world: World,
    steps: int,
    policies: Policies,
    orders: Sequence[str],
    configs: Sequence[Mapping[str, Any]],
    worlds: Mapping[str, World] | None,
) -> list[Variant]:
    """The first policy is the reference; then the others, and the reference with other orders, with another
    configuration, and in other worlds."""
    if isinstance(orders, str):
        raise TypeError(f"orders is a list of orders, not {orders!r}")
    named = policies_by_name(policies)
    made = [Variant(name, world, policy, steps) for name, policy in named.items()]
    reference = made[0]
    for order in orders:
        policy = with_order(reference.policy, order)
        made.append(replace(reference, name=f"{reference.name} {order}", policy=policy))
    for config in configs:
        if not config:
            raise ValueError("configs: one is empty, and would be the reference again")
        words = ", ".join(f"{name}={_short(value)}" for name, value in config.items())
        rest = {name: value for name, value in config.items() if name != "steps"}
        other = reconfigured(world, rest) if rest else world
        steps_of = _whole(config.get("steps", steps))
        made.append(Variant(f"{reference.name} {words}", other, reference.policy, steps_of))
    for name, other in (worlds or {}).items():
        if not isinstance(other, World):
            raise TypeError(f"worlds[{name!r}] is a simgrad.World, not {other!r}")
        made.append(replace(reference, name=str(name), world=other))
    if len(made) < 2:
        raise ValueError("there is one variant: give a second policy, or orders, configs or worlds")
    _distinct([(variant.name, variant) for variant in made])
    return made


def _short(value: Any) -> str:
    """A number in six digits, where they are the number."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _whole(steps: Any) -> int:
    try:
        return operator.index(steps)
    except TypeError:
        raise TypeError(f"configs: steps is a whole number, not {steps!r}") from None


def reconfigured(world: World, config: Mapping[str, Any]) -> World:
    """The world with other numbers in its configuration. Raises ValueError where it has none."""
    if isinstance(world, FunctionWorld):
        return world(**config)
    if world.has_program:
        raise ValueError(f"configs: {world!r} has its configuration; give other worlds in worlds=")
    old = world.to_proto().config
    known = {name: getattr(value, value.WhichOneof("value")) for name, value in old.items()}
    return World(world.name, **{**known, **config})


def _distinct(named: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in named:
        if name in found:
            raise ValueError(f"two variants are called {name!r}: give policies as a mapping of names")
        found[name] = value
    return found
