"""The command line: simgrad info | worlds | program | rollout | gradient | compare | serve.

Exit codes: 0 done; 1 the server refused or failed, or the answer could not be written; 2 wrong usage;
3 no server answered in time; 4 an instance is non-finite, or ended with an error, and --fail-on-nonfinite was given;
130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any, BinaryIO, Mapping, Sequence

import numpy as np

from simgrad import __version__, command_compare, errors, report
from simgrad.client import DEFAULT_TIMEOUT, Client
from simgrad.command_arguments import (
    add_config,
    add_inputs,
    add_world,
    assignments,
    drop_output,
    file_name,
    int32,
    named_array_of,
    number,
    preset,
    print_fields,
    sent,
    shape_of_state,
    target,
    world_of,
)
from simgrad.command_output import NotWritten, Output, output
from simgrad.credentials import tls
from simgrad.local import server_binary
from simgrad.policy import SETTINGS, Policy
from simgrad.request import Declaration

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NONFINITE = range(5)
EXIT_INTERRUPTED = 130  # as a shell says of a command that ends by Ctrl-C

# The fields that an override may set.
_SETTINGS = {"role": SETTINGS, "site": tuple(name for name in SETTINGS if name != "scale")}

_EXAMPLES = """examples:
  simgrad info
  simgrad program --world bouncing_ball --config contact=toi --policy bf16_safe --cuda
  simgrad rollout --world simgrad.worlds:lennard_jones --config particles=4 --steps 10 \\
      --initial x=@positions.npy --initial v=@speeds.npy --output run.npz
  simgrad rollout --world bouncing_ball --config contact=toi --steps 100 \\
      --initial y=0.5 --initial v=0
  simgrad compare bouncing_ball --config contact=toi --steps 100 --initial y=0.5 --initial v=0 \\
      --param restitution=0.8 --objective final_height --policies f64,bf16_unsafe --html report.html
  simgrad gradient --world boundary_projection --config elements=9 --config tol=1e-3 --steps 4 \\
      --initial y=-1e-3,0,0,0,0,0,0,0,0 --param k=0.5 --objective final_penetration \\
      --policy f16_unsafe --role termination.format=f32 --role termination.order=sequential --json

Numbers may be decimal or C hexadecimal (0x1.8p-11). An input is a number, a comma-separated list
with one number per element (of a scalar: per instance; of an array of several axes: row by row), or
@file.npy with an array of shape [field] or [instance, field]; of a control or data also
[instance, step, field].
exit codes: 0 done, 1 refused, failed or not written, 2 wrong usage, 3 no answer in time,
            4 an instance is non-finite, or ended with an error, and --fail-on-nonfinite was given,
            130 interrupted (Ctrl-C)"""


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["serve"]:
        return _serve(given[1:])
    options = argparse.Namespace(json="--json" in given)
    try:
        options = _parsed(given)
        return _run(options)
    except (errors.Unavailable, errors.DeadlineExceeded) as error:
        return _fail(options, error, EXIT_UNREACHABLE)
    except errors.SimgradError as error:
        return _fail(options, error, EXIT_FAILED)
    except KeyboardInterrupt:
        print("simgrad: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except NotWritten as error:
        print(f"simgrad: {error}", file=sys.stderr)  # and no JSON: standard output has its object
        return EXIT_FAILED
    except BrokenPipeError:
        drop_output()  # its reader has left
        return EXIT_OK
    except (TypeError, ValueError, LookupError, ArithmeticError, OSError) as error:
        said = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"simgrad: {said}", file=sys.stderr)
        if options.json:
            _print_error("USAGE", str(said))
        return EXIT_USAGE


def _parsed(given: list[str]) -> argparse.Namespace:
    try:
        return parser().parse_args(given)
    except SystemExit:
        sys.stdout.flush()  # of --help, whose reader may have left
        raise


def _run(options: argparse.Namespace) -> int:
    try:
        with _connect(options) as client:
            return int(options.run(client, options))
    except SystemExit as error:  # of a world's function, which must not pass for our end
        raise ValueError(f"--world {options.world}: a function of it ends Python ({error!r})") from None


def _serve(flags: list[str]) -> int:
    """Becomes the server: its flags, which begin with two dashes, and its exit codes."""
    flags = ["--help" if flag == "-h" else flag for flag in flags]
    try:
        server = server_binary()
        os.execv(server, [server, *flags])
    except OSError as error:
        print(f"simgrad: {error}", file=sys.stderr)
        return EXIT_USAGE


def _first_token(file: pathlib.Path) -> str:
    """The first token of a file as the server reads it: a token and its limits on a line, # begins a comment."""
    lines = [line.strip() for line in file.read_text().splitlines()]
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise ValueError(f"--token-file {file}: holds no token")
    return tokens[0].split()[0]


def _connect(options: argparse.Namespace) -> Client:
    certificates = {
        "--tls-ca": options.tls_ca,
        "--tls-certificate": options.tls_certificate,
        "--tls-key": options.tls_key,
    }
    credentials = token = None
    try:
        if options.tls or any(file is not None for file in certificates.values()):
            credentials = tls(options.tls_ca, certificate=options.tls_certificate, key=options.tls_key)
        if options.token_file is not None:
            token = _first_token(pathlib.Path(options.token_file))
    except OSError as error:
        raise ValueError(_unread(error, {**certificates, "--token-file": options.token_file})) from None
    return Client(
        options.target,
        timeout=options.timeout,
        credentials=credentials,
        token=token,
        retry=not options.no_retry,
    )


def _unread(error: OSError, files: Mapping[str, str | None]) -> str:
    """Tells of a file that cannot be read with the option that names it."""
    named = pathlib.Path(error.filename or "")
    asked = [option for option, file in files.items() if file and pathlib.Path(file) == named]
    return f"{' and '.join(asked)} {named}: {error.strerror}" if asked else str(error)


def parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--target", type=target, default="localhost:8001", help="host:port (default %(default)s)"
    )
    common.add_argument(
        "--timeout",
        type=number,
        default=DEFAULT_TIMEOUT,
        metavar="S",
        help="deadline in seconds (default %(default)g)",
    )
    common.add_argument("--tls", action="store_true", help="TLS with the system's certificates")
    common.add_argument("--tls-ca", type=file_name, metavar="PEM", help="TLS; who signed the server's certificate")
    common.add_argument("--tls-certificate", type=file_name, metavar="PEM", help="our own, for mutual TLS")
    common.add_argument("--tls-key", type=file_name, metavar="PEM", help="its private key")
    common.add_argument("--token-file", type=file_name, metavar="FILE", help="bearer token to send: the first in it, where # begins a comment")
    common.add_argument(
        "--no-retry",
        action="store_true",
        help="do not repeat a call that fails for a reason that passes",
    )
    common.add_argument("--json", action="store_true", help="one JSON object on standard output")
    top = argparse.ArgumentParser(
        prog="simgrad",
        epilog=_EXAMPLES,
        description="Rollouts and gradients of worlds under a precision policy.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"simgrad {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            parents=[common],
            help=help,
            description=help,
            epilog=_EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        return command

    add("info", _info, "Shows the server: version, devices, formats, limits.")
    add(
        "worlds",
        _worlds,
        "Lists the built-in worlds with configuration, inputs, objectives and sites.",
    )
    program = add("program", _program, "Prints the numerical program of a world under a policy.")
    _add_world(program)
    program.add_argument("--objective", default="", help="include its cost")
    program.add_argument(
        "--adjoint", action="store_true", help="include the adjoint (needs --objective)"
    )
    program.add_argument(
        "--cuda",
        nargs="?",
        const=True,
        default=False,
        choices=("thread_per_instance", "block_per_instance"),
        metavar="MAPPING",
        help="print the CUDA C++ of its kernels instead, in the mapping that a GPU would run "
        "(default), thread_per_instance or block_per_instance; needs no GPU",
    )
    program.add_argument(
        "--per-step",
        action="append",
        default=[],
        metavar="NAME",
        help="a control or data that will be sent with a step axis (repeatable; with --cuda)",
    )
    command_compare.add_arguments(
        add(
            "compare",
            command_compare.run,
            "Does the same work in several variants, and tells where their paths part and why.",
        )
    )
    # main() hands it over before anything is parsed.
    commands.add_parser("serve", help="Runs a server in the foreground, with the server's own flags: serve --help.")
    rollout = add("rollout", _rollout, "Unrolls a world and reports what happened.")
    gradient = add(
        "gradient", _gradient, "Unrolls a world and differentiates the program that ran."
    )
    for command in (rollout, gradient):
        _add_world(command)
        add_inputs(command)
        _add_answer(command)
    rollout.add_argument("--objective", default="", help="return its value")
    gradient.add_argument("--objective", default="", help="what is differentiated")
    gradient.add_argument(
        "--cotangent",
        action="append",
        default=[],
        metavar="STATE=VALUES",
        help="derivative of a loss by a final state, beside an objective or instead of one (repeatable): "
        "numbers for one instance, or @file.npy of shape [instance, field]",
    )
    gradient.add_argument(
        "--wrt",
        action="append",
        default=[],
        metavar="INPUT",
        help="differentiate for this input only (repeatable; default: all that are sent)",
    )
    return top


def _add_world(command: argparse.ArgumentParser) -> None:
    add_world(command)
    add_config(command)
    command.add_argument(
        "--policy", type=preset, default="f32", metavar="PRESET", help="preset (default %(default)s)"
    )
    for what, fields in _SETTINGS.items():
        command.add_argument(
            f"--{what}",
            action="append",
            default=[],
            metavar=f"{what.upper()}.FIELD=VALUE",
            help=f"override of a {what}: {', '.join(fields)} (repeatable)",
        )
    command.add_argument("--loss-scale", type=number, metavar="X", help="fixed loss scale")
    command.add_argument(
        "--nonfinite",
        choices=("report", "stop"),
        default="report",
        help="what happens to a non-finite instance (default %(default)s)",
    )


def _add_answer(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--record",
        action="append",
        default=[],
        metavar="NAME",
        help="return this trajectory (repeatable)",
    )
    command.add_argument(
        "--diagnostics",
        choices=("off", "summary", "instances"),
        default="summary",
        help="how much is returned (default %(default)s)",
    )
    command.add_argument(
        "--arithmetic",
        type=int32,
        default=0,
        metavar="N",
        help="tell what rounding did to each operation in the first N instances (default 0)",
    )
    command.add_argument(
        "--program", action="store_true", help="also show the text of the program that ran"
    )
    command.add_argument(
        "--raw",
        action="store_true",
        help="arrays of low formats as their bits (uint16, uint8), instead of as the f32 that equal them",
    )
    command.add_argument(
        "--output",
        type=file_name,
        metavar="FILE.npz",
        help="write the arrays there: ok, state.NAME, trajectory.NAME; value, values; gradients as params.NAME ...; "
        "indices of halted instances, and of those that ended with an error",
    )
    command.add_argument(
        "--fail-on-nonfinite", action="store_true", help="exit with 4 if an instance is not ok, or ends with an error"
    )


def _info(client: Client, options: argparse.Namespace) -> int:
    return _done(options, report.message_dict(client.info()), report.info_text)


def _worlds(client: Client, options: argparse.Namespace) -> int:
    worlds = [report.message_dict(world) for world in client.worlds()]
    return _done(options, {"worlds": worlds}, report.worlds_text)


def _program(client: Client, options: argparse.Namespace) -> int:
    program = client.program(
        world_of(options),
        policy=_policy(options),
        objective=options.objective,
        adjoint=options.adjoint,
        cuda=options.cuda,
        per_step=options.per_step,
    )
    return _done(options, report.program_dict(program), report.program_text)


def _rollout(client: Client, options: argparse.Namespace) -> int:
    with output("--output", options.output) as file:
        return _finish(options, client.rollout(**_work(client, options)), file)


def _gradient(client: Client, options: argparse.Namespace) -> int:
    with output("--output", options.output) as file:
        work = _work(client, options)
        result = client.gradient(**work, wrt=options.wrt or None, cotangents=_cotangents(client, work, options))
        return _finish(options, result, file)


def _work(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    world = world_of(options)
    return dict(
        **sent(client, world, options),
        world=world,
        policy=_policy(options),
        record=options.record,
        raw=options.raw,
        diagnostics=options.diagnostics,
        arithmetic=options.arithmetic,
        program="text" if options.program else "fingerprint",
    )


def _cotangents(client: Client, work: dict[str, Any], options: argparse.Namespace) -> dict[str, Any] | None:
    sent = assignments("cotangent", options.cotangent)
    if not sent:
        return None
    state = {}
    for name, text in sent.items():
        initial = work["initial"].get(name)
        rank = 0 if initial is None else np.ndim(initial)
        shape = shape_of_state(client, work["world"], name)
        array = named_array_of(f"--cotangent {name}", text, Declaration(rank), shape)
        state[name] = array if text.startswith("@") else array[None]
    return {"state": state}


def _done(options: argparse.Namespace, fields: dict[str, Any], text: Any) -> int:
    print_fields(options, fields, text)
    return EXIT_OK


def _finish(options: argparse.Namespace, result: Any, file: Output | None) -> int:
    fields = report.result_dict(result)
    if options.program:
        fields["program"] = result.program.text
    try:
        print_fields(options, fields, lambda _: report.result_text(result, options.program))
    finally:  # also for a reader that has left
        if file is not None:
            file.write(lambda opened: _write(opened, result))
    bad = not result.ok.all() or any(halted.error for halted in result.halted)
    return EXIT_NONFINITE if options.fail_on_nonfinite and bad else EXIT_OK


def _write(file: BinaryIO, result: Any) -> None:
    arrays = {"ok": result.ok}
    if result.value is not None:
        arrays |= {"value": np.asarray(result.value), "values": np.asarray(result.values)}
    if result.halted:
        ended = [h for h in result.halted if h.error]
        arrays |= {"halted": np.array([h.instance for h in result.halted]), "ended": np.array([h.instance for h in ended])}
    for group in ("state", "trajectory", "initial", "params", "controls"):
        for name, array in getattr(result, group, {}).items():
            arrays[f"{group}.{name}"] = array
    np.savez(file, **arrays)


def _policy(options: argparse.Namespace) -> Policy:
    policy = Policy(options.policy).nonfinite(options.nonfinite)
    for option, method in (("role", Policy.role), ("site", Policy.site)):
        for path, value in assignments(option, getattr(options, option)).items():
            name, dot, setting = path.rpartition(".")
            if not dot or setting not in _SETTINGS[option]:
                raise ValueError(
                    f"--{option} {path}={value}: NAME.FIELD=VALUE with a field of "
                    f"{', '.join(_SETTINGS[option])}"
                )
            policy = method(policy, name, **{setting: value})
    return policy if options.loss_scale is None else policy.loss_scale(options.loss_scale)


def _fail(options: argparse.Namespace, error: errors.SimgradError, code: int) -> int:
    print(f"simgrad: {error.code}: {error}", file=sys.stderr)
    if options.json:
        _print_error(error.code, str(error), error.reason, error.field, error.retry_after)
    return code


def _print_error(
    code: str, message: str, reason: str = "", field: str = "", retry_after: float | None = None
) -> None:
    """The JSON object of a failure, with the same fields whatever failed."""
    error = {"code": code, "reason": reason, "field": field, "message": message, "retry_after": retry_after}
    try:
        print(json.dumps({"error": error}, indent=2), flush=True)
    except OSError:  # the code of the failure counts, whether the object is read or not
        drop_output()
