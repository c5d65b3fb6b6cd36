"""Errors of JAX while it traces a step: with the user's line, the leaf that is asked for its number, and what to write."""

from __future__ import annotations

import os
import pathlib
import re
import traceback
from typing import Sequence

import jax

from simgrad.jax.errors import JaxWorldError, Problem, told
from simgrad.jax.node import Line

_PACKAGES = tuple(f"{pathlib.Path(file).parent}{os.sep}" for file in (jax.__file__, __file__))
_CLOSE_OVER = "close over it: what a step closes over is constant"
_OF_A_LENGTH = f"use a fixed length and a mask, jnp.where(jnp.arange(9) < n, x, 0), or {_CLOSE_OVER}"
# Errors of JAX without a type of their own.
_OF_SHAPES = ("Shapes must be 1D sequences of concrete values", "Slice entries must be static integers")


def error_of_tracing(error: Exception, what: str, leaves: Sequence[str], has_x64: bool) -> JaxWorldError | None:
    """An error for the user, in place of one of JAX; None: it is no such error.

    Args:
      what: is traced: a step, an init or a cost. leaves: what it takes, as messages tell them. has_x64: x64 is on
        outside of the trace.
    """
    found = _problem(error, what)
    if found is None:
        return _format_error(error, what, has_x64)
    problem, hint = found
    line, text, asked = _user_line(error)
    said = f"{problem}{_made_of(str(error), leaves)}: {text}"
    return JaxWorldError(f"this {what} makes no world:", [Problem(line, said, hint, asked=asked)])


def _problem(error: Exception, what: str) -> tuple[str, str] | None:
    """Tells what is wrong with Python's use of a traced value, and what to write."""
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return f"Python decides on a value of the {what}", f"use jax.lax.cond, jnp.where or jax.lax.while_loop, or {_CLOSE_OVER}"
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return (
            f"NumPy is given a value of the {what}",
            "use the function of jax.numpy that has its name; of a NumPy table, jnp.asarray(table)[i]",
        )
    if isinstance(error, jax.errors.TracerIntegerConversionError):
        return (
            f"Python takes a value of the {what} for an index or a count",
            f"index an array of jax.numpy, not a list: jnp.asarray(table)[i]; to count, use jax.lax.fori_loop, or {_CLOSE_OVER}",
        )
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return "a shape that depends on data", "use jnp.where with three arguments, or a mask with size="
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return f"Python needs the number of a value of the {what}", f"{_OF_A_LENGTH}; give size= where a shape depends on it"
    if any(text in str(error) for text in _OF_SHAPES):
        return f"a shape that depends on a value of the {what}", _OF_A_LENGTH
    return None


def _made_of(text: str, leaves: Sequence[str]) -> str:
    """The leaves that JAX says a value depends on; empty where it does not say."""
    _, found, said = text.partition("it depends on the value")
    places = [int(k) for k in re.findall(r"leaves\[(\d+)\]", said.split("\n")[0])] if found and "function flat" in text else []
    names = [leaves[k] for k in dict.fromkeys(places) if k < len(leaves)]
    return f" (it depends on {' and '.join(names)})" if names else ""


def mixes_formats(text: str) -> bool:
    """Whether an error of JAX tells of f64 that meets a narrower format."""
    return "float64" in text and any(name in text for name in ("float32", "bfloat16", "float16"))


def _mixes_widths(text: str) -> bool:
    """Whether an error of JAX tells of an i64 that meets an i32."""
    return re.search(r"\bu?int64\b", text) is not None and re.search(r"\bu?int32\b", text) is not None


def line_of_clash(error: Exception) -> str | None:
    """The line where numbers of 64 bits met narrower ones in a trace, "the step" where none is known; None: the error is
    about something else."""
    if isinstance(error, JaxWorldError):
        lines = [told(problem.line, problem.asked) for problem in error.problems[:1] if error.is_clash]
    else:
        line, _, asked = _user_line(error)
        lines = [told(line, asked)] if _mixes_widths(str(error)) or mixes_formats(str(error)) else []
    return (lines[0] or "the step") if lines else None


def _format_error(error: Exception, what: str, has_x64: bool) -> JaxWorldError | None:
    """An error of JAX about a carry, a branch or an operand whose format the step fixes, as a world is traced with x64;
    None: it is about something else. `has_x64` says whether x64 is on outside."""
    text = str(error)
    problems, hints = [], []
    if mixes_formats(text):
        problems.append("float64, in which a world is traced, meets a narrower format")
        hints.append(
            "give a carry or a branch the type of what it meets: jnp.zeros(n, x.dtype), jnp.zeros(n), or param_dtype=float of a Flax module"
        )
    if _mixes_widths(text):
        problems.append("int64, which an integer without a dtype has in a world, meets int32")
        hints.append("give integers a dtype: jnp.sum(x, dtype=jnp.int32), jnp.argmax(x).astype(jnp.int32)")
    if not problems:
        return None
    line, own, asked = _user_line(error)
    if not has_x64:
        hints.append('where a library does it, run jax.config.update("jax_enable_x64", True) before its model and state are made')
    said = f"{', and '.join(problems)} that the {what} fixes: {own} ({_types_of(text)})"
    problem = Problem(line, said, "; ".join(hints), asked=asked)
    return JaxWorldError(f"this {what} makes no world:", [problem], is_clash=True)


def _types_of(text: str) -> str:
    """The sentences of an error of JAX that name leaves and their types; its first line where none does."""
    lines = [line.partition(" (Tip:")[0].strip(" *;.") for line in text.strip().splitlines()]
    return "; ".join([line for line in lines if " has type " in line] or lines[:1])


def _user_line(error: Exception) -> tuple[str, str, str]:
    """The line of the user's, or of a library's, that raised; its text; of a library's the line of the user's that asked
    for it."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if not f.filename.startswith(_PACKAGES) and "<frozen" not in f.filename]
    if not mine:
        return "", "", ""
    lines = [Line(f.filename, f.lineno or 0) for f in mine]
    own = [line.text for line in lines if not line.is_installed]
    asked = own[-1] if own and lines[-1].is_installed else ""
    return lines[-1].text, (mine[-1].line or "").strip(), asked
