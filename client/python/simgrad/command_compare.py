"""simgrad compare: the same work in several variants."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from simgrad import report
from simgrad.client import Client
from simgrad.command_arguments import (
    add_config,
    add_inputs,
    add_world,
    assignments,
    config_value,
    file_name,
    print_fields,
    sent,
    world_of,
)
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
    if options.html is not None and not pathlib.Path(options.html).parent.is_dir():
        raise ValueError(f"--html {options.html}: there is no such folder")
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
    if options.html is not None:
        pathlib.Path(options.html).write_text(result.html(), encoding="utf-8")
    print_fields(options, report.comparison_dict(result), lambda _: _text(result, options))
    return 0


def _text(result: Comparison, options: argparse.Namespace) -> str:
    """The table and the reasons; with --split also what is said of each gradient's error."""
    lines = [repr(result)]
    for pair in result.pairs.values() if options.split else ():
        lines += [s.text for s in pair.sentences[1:] if "share_of_path" in s.facts]
    return "\n".join(lines)


def _words(option: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f"--{option} {text}: names, separated by commas")
    return words


def _variant(text: str) -> dict[str, Any]:
    config = {k: config_value(v) for k, v in assignments("variant", text.split(",")).items()}
    steps = config.get("steps")
    if steps is not None:
        if not isinstance(steps, float) or not steps.is_integer() or steps < 0:
            raise ValueError(f"--variant {text}: steps is a whole number")
        config["steps"] = int(steps)
    return config
