"""Makes a world of a step function of JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from typing import Any, Callable, Iterable, Mapping, Sequence

import jax

from simgrad.jax.cost_function import cost_functions
from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.given import Given
from simgrad.jax.init_function import InitFunction
from simgrad.jax.jax_world import JaxWorld
from simgrad.jax.lowering import Options
from simgrad.jax.node import Node
from simgrad.jax.roles import CHOICES, WORDS, is_test
from simgrad.jax.trace import StepFinder
from simgrad.jax.trace_errors import line_of_clash
from simgrad.jax.trees import Group
from simgrad.jax.varying import Varying
from simgrad.jax.without_x64 import has_widths_without_x64, widths_without_x64
from simgrad.jax.world_writer import WorldWriter


def world(
    step: Callable[..., Any],
    *,
    state: Any,
    control: Any = None,
    params: Any = None,
    data: Any = None,
    observe: Mapping[str, Callable[..., Any]] | Sequence[str] = (),
    objective: Mapping[str, Any] | None = None,
    init: Callable[..., Any] | None = None,
    varying: str | Sequence[str] = (),
    max_iter: Mapping[str, int] | None = None,
    sites: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    tests: str = "decisions",
    formats: str = "erase",
    custom: str = "keep",
    kinks: str = "simgrad",
    random: str = "threefry",
    name: str = "",
) -> JaxWorld:
    """A step function of JAX as a world.

        world = simgrad.jax.world(step, state={"x": x0, "v": v0}, params={"k": 1.0},
                                  objective={"far": lambda state: jnp.sum(state["x"] ** 2)})
        client.gradient(world, steps=100, initial={"x": xs, "v": vs}, objective="far").params["k"]

    Args:
      step: step(state, control, params, data) -> state, or (state, outputs), of any pytrees. It takes
        what is given of the three behind state, by name where it has arguments of these names.
      state, control, params, data: examples; they fix structure, shapes and, of what the step does
        not change, numbers. Reals beside the state are inputs, and so are integers and bools of control; those of
        params and data are constants, as is what the step closes over.
      observe: functions of the next state, by name; or names of its leaves. They can be recorded.
      objective: by name the terminal cost, of the state (and params), or {"stage": ..., "terminal":
        ...}; a stage cost takes what the step takes, at its start.
      init: init(params, data, state) -> the state that a run starts from, or leaves of it by name; it takes
        what of the three its arguments name, else params, then data, by place. What it gives need not be
        sent, and is part of the gradient.
      varying: leaves, or all below a path, that are inputs although they would be constants: integers and bools of
        params and data, "data.bonds", and what the step hands through of its state, "state.mass".
      max_iter: caps of loops whose own tests give none, by "file.py:line" or function.
      sites: names of one's own for lines that decide, by "file.py:line".
      roles: roles by module, function or named scope: state, dynamics, solver, termination, event, network
        or objective.
      tests: the level: decisions, all or loops.
      formats: "erase": formats of reals are the policy's, whatever the step says. "keep": what the step
        computes in f32, bf16 or f16 although it is traced in f64 is rounded there as well.
      custom: "keep": functions with a jax.custom_jvp or custom_vjp have their author's derivative,
        a custom_vjp of JAX itself excepted. "inline": that of the operations that ran.
      kinks: derivatives at ties. "simgrad": those of the server's operations. "jax": those of JAX, for max,
        min, abs and the largest and smallest of an axis; results are the same bits.
      random: "threefry": what the step draws with a key of its state is what JAX draws in f64. "philox": each place
        that draws has a draw of the language, by the request's seed and the instance's id; keys mean nothing.
    A step in which numbers of 64 bits meet narrower ones of its own is traced again by the widths of JAX without x64, where
    JAX runs without: docs/jax.md, "What differs from JAX".
    Warns: of each line whose own derivative is left out, once, at the line of this call.
    Errors: JaxWorldError, all of a kind at once, with the lines, also for names in varying, max_iter, sites and roles
      that stand for nothing; ValueError for other words.
    """
    _refuse_other_words(tests, formats, custom, kinks, random)
    examples = {"state": state, "control": control, "params": params, "data": data}

    def make(because_of: str = "") -> tuple[JaxWorld, Iterable[str]]:
        caps = Given("max_iter", max_iter)
        options = Options(custom, formats, kinks, random, caps, without_x64=because_of)
        return _made(step, examples, observe, objective, init, varying, max_iter, sites, roles, tests, options, name)

    try:
        made, warned = make()
    except Exception as error:
        again = _without_x64(make, error, formats)
        if again is None:
            raise
        made, warned = again
    for said in warned:
        warnings.warn(said, stacklevel=2)
    return made


def _without_x64(
    make: Callable[[str], tuple[JaxWorld, Iterable[str]]], error: Exception, formats: str
) -> tuple[JaxWorld, Iterable[str]] | None:
    """A second try by the widths of JAX without x64, where JAX runs without; None where `error` is not about numbers of two
    widths, or the second try meets such, too."""
    line = line_of_clash(error)
    if line is None or jax.config.jax_enable_x64 or not has_widths_without_x64():
        return None
    try:
        with widths_without_x64(formats):
            return make(line)
    except JaxWorldError as another:
        if line_of_clash(another) is None:
            raise another from None
        return None
    except Exception:  # which is the step's own, as of an integer beyond 32 bits
        return None


def _made(
    step: Callable[..., Any],
    examples: Mapping[str, Any],
    observe: Mapping[str, Callable[..., Any]] | Sequence[str],
    objective: Mapping[str, Any] | None,
    init: Callable[..., Any] | None,
    varying: str | Sequence[str],
    max_iter: Mapping[str, int] | None,
    sites: Mapping[str, str] | None,
    roles: Mapping[str, str] | None,
    tests: str,
    options: Options,
    name: str,
) -> tuple[JaxWorld, Iterable[str]]:
    """The world, and what its maker is warned of."""
    caps, aliases, given_roles = options.max_iter, Given("sites", sites), Given("roles", roles)
    for place, cap in (max_iter or {}).items():
        if isinstance(cap, bool) or not hasattr(cap, "__index__") or cap < 1:
            raise ValueError(f"max_iter[{place!r}]: a whole number from 1, not {cap!r}")
    _refuse_unknown_roles(roles or {})
    without_draws = dataclasses.replace(options, random="none") if options.random == "philox" else options
    groups = {k: Group.of(k, x) for k, x in examples.items() if k == "state" or x is not None}
    functions = dict(observe) if isinstance(observe, Mapping) else {}
    wanted = [observe] if isinstance(observe, str) else [] if functions else list(observe)
    costs = cost_functions(objective or {}, groups)
    start = InitFunction(init, groups) if init is not None else None
    inputs = Varying(varying, groups)
    begun = start.varying(inputs.constants, without_draws) if start else frozenset()
    finder = StepFinder(step, groups, functions, wanted, options, begun | inputs.state, inputs.constants)
    all_constants: list[set[tuple[str, str]]] = []

    def read_by_costs(constants: set[tuple[str, str]]) -> tuple[set[str], set[str]]:
        all_constants.append(constants)
        stage = [c.reads(constants, without_draws) for c in costs if c.place == "stage"]
        terminal = [c.reads(constants, without_draws) for c in costs if c.place == "terminal"]
        return set().union(*stage), set().union(*terminal)

    found = finder.find(read_by_costs)
    writer = WorldWriter(name or _name_of(step), tests, groups, found, aliases, given_roles, options.kinks)
    writer.write(costs, start, all_constants[-1], without_draws)
    program = writer.builder.build()
    _refuse_unused(caps, aliases, given_roles, found.live.nodes, inputs.unused(writer.inputs))
    starts = start.run if start else None
    widths = functools.partial(widths_without_x64, options.formats) if options.without_x64 else contextlib.nullcontext
    constants = frozenset(inputs.constants)
    return JaxWorld(step, groups, found, program, writer.report(), starts, options.random, constants, widths), options.warned


def _refuse_other_words(
    tests: str, formats: str, custom: str, kinks: str, random: str
) -> None:
    allowed = (
        ("tests", tests, ("decisions", "all", "loops")),
        ("formats", formats, ("erase", "keep")),
        ("custom", custom, ("keep", "inline")),
        ("kinks", kinks, ("simgrad", "jax")),
        ("random", random, ("threefry", "philox")),
    )
    for option, given, words in allowed:
        if given not in words:
            raise ValueError(f"{option} {given!r}: one of {', '.join(words)}")


def _refuse_unknown_roles(roles: Mapping[str, str]) -> None:
    unknown = {name: role for name, role in roles.items() if role not in WORDS}
    if unknown:
        raise JaxWorldError(
            "these are no roles:",
            [Problem("", f"roles {n!r}: {r!r}", f"one of {', '.join(WORDS)}") for n, r in unknown.items()],
        )


def _refuse_unused(
    caps: Given[int], aliases: Given[str], roles: Given[str], nodes: Sequence[Node], others: Sequence[Problem]
) -> None:
    """Names that stand for nothing in the step or in a cost; `others`: of leaves."""
    loops = _lines(x for x in nodes if x.op == "while")
    deciding = _lines(x for x in nodes if x.op == "while" or is_test(x) or x.op in CHOICES)
    functions = list(dict.fromkeys(x.line.function for x in nodes if x.line.function))
    problems = [
        Problem("", f"{given.argument} {name!r}: {what}", f"there {'are' if known else 'is'} {_listed(known)}")
        for given, what, known in (
            (caps, "no while_loop is on this line or in this function", loops),
            (aliases, "nothing is decided on this line", deciding),
            (roles, "no operation is in a module, function or named scope of this name", functions),
        )
        for name in given.unused
    ]
    problems += others
    if problems:
        raise JaxWorldError("these names stand for nothing:", problems)


_MOST_LISTED = 12


def _lines(nodes: Iterable[Node]) -> list[str]:
    return list(dict.fromkeys(x.line.text for x in nodes if x.line.text))


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else []
    return ", ".join([*names[:_MOST_LISTED], *more]) or "none"


def _name_of(step: Callable[..., Any]) -> str:
    name = getattr(step, "__name__", "step")
    return name if name.isidentifier() and name.isascii() else "step"
