"""simgrad compare: the same work in several variants."""

from __future__ import annotations

import argparse
import re
from typing import Any

from simgrad import report
from simgrad.client import Client
from simgrad.command_arguments import (
    add_config,
    add_inputs,
    add_world,
    assignments,
    config_of,
    file_name,
    fits_int64,
    print_fields,
    sent,
    world_of,
)
from simgrad.command_output import output
from simgrad.why.compare import Comparison


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_world(command)
    add_config(command)
    add_inputs(command)
    command.add_argument(
        "--policies",
        default="f64,f32",
        metavar="P,Q,...",
        help="presets; the first is the reference (default %(default)s)",
    )
    command.add_argument(
        "--orders",
        default="",
        metavar="O,P,...",
        help="further variants: the reference with these orders of sums in every role",
    )
    command.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME=VALUE[,...]",
        help="a further variant: the reference with other numbers in the configuration; steps=N is the number "
        "of steps (repeatable)",
    )
    command.add_argument("--objective", default="", help="what is differentiated")
    command.add_argument(
        "--wrt",
        action="append",
        default=[],
        metavar="INPUT",
        help="differentiate for this input only (repeatable; default: all that are sent)",
    )
    command.add_argument("--no-gradient", action="store_true", help="compare rollouts")
    command.add_argument(
        "--split", action="store_true", help="divide the error of gradients into rounding and path"
    )
    command.add_argument("--html", type=file_name, metavar="FILE.html", help="write a report there, in one file")


def run(client: Client, options: argparse.Namespace) -> int:
    world = world_of(options)
    gradient: dict[str, Any] = {} if options.no_gradient else {"wrt": options.wrt or None}
    if options.no_gradient and options.wrt:
        raise ValueError("--wrt is of gradients: leave it or --no-gradient out")
    with output("--html", options.html) as file:
        result = client.compare(
            world,
            **sent(client, world, options),
            **gradient,
            policies=_words("policies", options.policies),
            orders=_words("orders", options.orders) if options.orders else (),
            configs=[_variant(text) for text in options.variant],
            gradient=not options.no_gradient,
            split=options.split,
        )
        try:
            print_fields(options, report.comparison_dict(result), lambda _: _text(result, options))
        finally:  # also for a reader that has left
            if file is not None:
                file.write(lambda opened: opened.write(result.html().encode()))
    return 0


def _text(result: Comparison, options: argparse.Namespace) -> str:
    """The table and the reasons; with --split also what is said of each gradient's error."""
    lines = [repr(result)]
    for pair in result.pairs.values() if options.split else ():
        lines += [s.text for s in pair.sentences[1:] if "share_of_path" in s.facts]
    return "\n".join(lines)


def _words(option: str, text: str) -> list[str]:
    words = [word.strip() for word in re.split(r",(?![^(]*\))", text)]  # at no comma in parentheses
    if not all(words):
        raise ValueError(f"--{option} {text}: names, separated by commas")
    return words


def _variant(text: str) -> dict[str, Any]:
    config = config_of("variant", text.split(","))
    steps = config.get("steps")
    if steps is not None:
        if not isinstance(steps, float) or not steps.is_integer() or steps < 0:
            raise ValueError(f"--variant {text}: steps is a whole number")
        if not fits_int64(int(steps)):
            raise ValueError(f"--variant {text}: steps is beyond the range of an int64")
        config["steps"] = int(steps)
    return config
