"""Results as plain dictionaries (for JSON) and as text for people."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping

import numpy as np
from google.protobuf import json_format

from simgrad import summary
from simgrad.diagnostics import REASONS, BackwardTrace, RangeCounts
from simgrad.results import Gradient, Program, Rollout
from simgrad.why.compare import Comparison
from simgrad.why.difference import NewlyNonfinite


_LABELS = {
    "initial": "gradient of initial",
    "params": "gradient of param",
    "controls": "gradient of control",
}


def message_dict(message: Any) -> dict[str, Any]:
    """A message with its fields by name; integers are numbers, whatever their width."""
    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return _with_integers(message.DESCRIPTOR, fields)


def program_dict(program: Program) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "fingerprint": program.fingerprint,
        "text": program.text,
        "policy": _policy(program),
        "termination_sites": list(program.termination_sites),
        "event_sites": list(program.event_sites),
    }
    if program.cuda is not None:
        fields["cuda"] = {
            "mapping": program.cuda.mapping,
            "text": program.cuda.text,
            "numbers": [_plain(x) for x in program.cuda.numbers],
            "integers": list(program.cuda.integers),
        }
    return fields


def program_text(fields: dict[str, Any]) -> str:
    """The text of a program; that of its kernels where it was asked for, and after it their
    numbers, as a comment."""
    if "cuda" not in fields:
        return str(fields["text"])
    cuda = fields["cuda"]
    tables = (("number", cuda["numbers"]), ("integer", cuda["integers"]))
    lines = [f"// args.{name}[{i}] is {x}" for name, table in tables for i, x in enumerate(table)]
    return "\n".join([cuda["text"].rstrip("\n"), "", *lines])


def result_dict(result: Rollout) -> dict[str, Any]:
    """Everything a caller of the command line may want to process; non-finite numbers become
    strings."""
    fields: dict[str, Any] = {
        "fingerprint": result.program.fingerprint,
        "policy": _policy(result.program),
        "device": result.device,
        "server_version": result.server_version,
        "request_id": result.request_id,
        "instances": result.instances,
        "steps": result.steps,
        "ok": int(result.ok.sum()),
        "health": [dict(vars(entry)) for entry in result.health],
        "halted": [dict(vars(halted)) for halted in result.halted],
        "path_signature": f"{result.path_signature:016x}",
        "path_signatures": [f"{s:016x}" for s in result.path_signatures.tolist()],
        "value": result.value,
        "values": result.values,
        "state": result.state,
        "trajectory": result.trajectory,
        "states_range": {name: dict(vars(r)) for name, r in result.states_range.items()},
        "ranges": _ranges(result.ranges),
        "absorption": {
            state: [dict(vars(site)) for site in absorption.sites]
            for state, absorption in result.absorption.items()
        },
        "arithmetic": {
            "roles": [dict(vars(row)) for row in result.arithmetic.roles],
            "operations": [dict(vars(row)) for row in result.arithmetic.operations],
        },
        "sites": {},
        "events": {},
        "certificates": [str(c) for c in result.certificates],
        "seconds": result.seconds,
    }
    for name, site in result.sites.items():
        fields["sites"][name] = {
            "iterations": site.iterations,
            "reasons": {r: site.reasons[:, i] for i, r in enumerate(REASONS[:-1])}
            | ({"counter": site.counter} if site.counter.any() else {}),
            "margin": site.margin,
            "margin_ulps": site.margin_ulps,
            **({"margin_test": site.margin_test} if any(site.margin_test) else {}),
            "checks": site.checks,
            "near_stopped": site.near_stopped,
            "near_continued": site.near_continued,
            "nan_margins": site.nan_margins,
            "line": site.line,
        }
        if site.flat_values is not None:
            fields["sites"][name]["values"] = site.values
    for name, event in result.events.items():
        fields["events"][name] = {
            "count": event.count,
            "changes": event.changes,
            "margin": event.margin,
            "margin_ulps": event.margin_ulps,
            "checks": event.checks,
            "nan_margins": event.nan_margins,
            "first_step": event.first_step,
            "kind": event.kind,
            "line": event.line,
        }
    if isinstance(result, Gradient):
        fields["gradients"] = {
            group: {name: array for name, array in getattr(result, group).items()}
            for group in ("initial", "params", "controls")
        }
        fields.update(
            connected=result.connected,
            gated_by=result.gated_by,
            zero_share=result.zero_share,
            magnitudes=result.magnitudes,
            warnings=result.warnings,
            adjoint_solves={site: dataclasses.asdict(s) for site, s in result.adjoint_solves.items()},
            loss_scale=result.loss_scale,
            skipped=result.skipped,
            left_out=result.left_out,
            backward=_backward(result.backward),
        )
    return {name: _plain(value) for name, value in fields.items()}


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """A comparison as result_dict gives a result: each variant's answer, and each pair."""
    fields: dict[str, Any] = {
        "reference": comparison.reference,
        "why": comparison.why.splitlines(),
        "calls": comparison.calls,
        "results": {name: result_dict(result) for name, result in comparison.results.items()},
        "pairs": {},
    }
    for name, pair in comparison.pairs.items():
        forks = pair.forks
        fields["pairs"][name] = {
            "sentences": [{"text": s.text, "facts": dict(s.facts)} for s in pair.sentences],
            "forks": None
            if forks is None
            else {
                "parted": forks.parted,
                "step": forks.step,
                "site": forks.site,
                "located": forks.located,
                "first": forks.first and dataclasses.asdict(forks.first),
            },
            "states": {n: vars(d) for n, d in pair.states.items()},
            "trajectories": {n: vars(d) for n, d in pair.trajectories.items()},
            "value": pair.value,
            "values": pair.values and vars(pair.values),
            "gradients": {n: vars(d) for n, d in pair.gradients.items()},
            "split": None if pair.split is None else {n: vars(p) for n, p in pair.split.items()},
            "nonfinite": pair.nonfinite,
            "left_out": pair.left_out,
            "newly_nonfinite": pair.newly_nonfinite and _newly_nonfinite(pair.newly_nonfinite),
        }
    plain: dict[str, Any] = _plain(fields)
    return plain


def _newly_nonfinite(new: NewlyNonfinite) -> dict[str, Any]:
    """Instances by their places in the batch."""
    return {
        "instances": np.flatnonzero(new.instances),
        "ends": np.flatnonzero(new.ends),
        "first": new.first and dataclasses.asdict(new.first),
        "birth": new.birth and str(new.birth),
    }


def info_text(fields: dict[str, Any]) -> str:
    lines = [
        f"simgrad {fields.get('version', '')} ({fields.get('revision', '')}), gRPC port "
        f"{fields.get('port', '')}, metrics port {fields.get('metrics_port', '')}"
    ]
    for device in fields.get("devices", []):
        formats = ", ".join(f"{k} {v}" for k, v in sorted(device.get("formats", {}).items()))
        lines.append(
            f"device {device.get('kind')}: {device.get('name')}, {device.get('threads')} threads, "
            f"{device.get('instruction_set')}; {formats}"
        )
    lines.append("worlds: " + ", ".join(fields.get("worlds", [])))
    lines.append("presets: " + ", ".join(fields.get("presets", [])))
    lines.append("orders: " + ", ".join(fields.get("orders", [])))
    lines += [f"limit {name}: {value}" for name, value in sorted(fields.get("limits", {}).items())]
    return "\n".join(lines)


def worlds_text(fields: dict[str, Any]) -> str:
    lines = []
    for world in fields["worlds"]:
        lines.append(f"{world['name']}: {world.get('description', '')}")
        for entry in world.get("config", []):
            default = next(iter(entry.get("default_value", {"": "unset"}).values()))
            if entry["type"] == "integer" and default != "unset":
                default = int(default)  # it travels as a number like the others
            words = f" ({', '.join(entry['words'])})" if entry.get("words") else ""
            lines.append(
                f"  config {entry['name']} = {default}{words}: {entry.get('description', '')}"
            )
        for entry in world.get("inputs", []):
            kind = entry["kind"].replace("INPUT_KIND_", "").lower()
            kind = "weights" if entry.get("weights") else kind
            shape = ["elements" if str(n) == "-1" else n for n in entry.get("shape", [])]
            default = f" = {entry['default_value']}" if "default_value" in entry else ""
            lines.append(
                f"  {kind} {entry['name']}[{', '.join(map(str, shape))}]{default}: "
                f"{entry.get('description', '')}"
            )
        for group in ("observables", "objectives", "termination_sites", "event_sites"):
            lines.append(
                f"  {group.replace('_', ' ')}: {', '.join(world.get(group, [])) or 'none'}"
            )
    return "\n".join(lines)


def result_text(result: Rollout, program: bool = False) -> str:
    """A report for people on what happened; `program`: with the text of the program."""
    title = repr(result).splitlines()[0]
    lines = [title, f"path {result.path_signature:016x}, program {result.program.fingerprint[:16]}"]
    if result.value is not None:
        lines.append(f"value {result.value!r}")
    for label in ("state", "trajectory", "initial", "params", "controls"):
        for name, array in getattr(result, label, {}).items():
            lines.append(f"{_LABELS.get(label, label)} {name}: {_short(np.asarray(array).tolist())}")
    lines += [f"site {trace!r}" for trace in result.sites.values()]
    lines += [f"event {trace!r}" for trace in result.events.values()]
    lines += [f"halted: {said}" for said in summary.halts(result.halted)]
    lines += repr(result.arithmetic).splitlines() if result.arithmetic else []
    if isinstance(result, Gradient):
        for name, count in result.connected.items():
            lines.append(f"{name}: connected in {count} of {result.instances} instances")
        lines += [f"warning: {warning}" for warning in result.warnings]
        if result.left_out:
            lines.append(f"left out: {result.left_out} of {result.instances} instances, which are not finite")
        if result.skipped:
            lines.append(f"skipped: {summary.SKIPPED}")
    lines += [str(certificate) for certificate in result.certificates]
    if program:
        lines += ["", result.program.text.rstrip("\n")]
    return "\n".join(lines)


def _policy(program: Program) -> dict[str, Any]:
    policy = program.policy
    return {
        "preset": policy.preset,
        "loss_scale": policy.loss_scale,
        "nonfinite": policy.nonfinite,
        "roles": {name: dict(vars(setting)) for name, setting in policy.roles.items()},
        "sites": {name: dict(setting) for name, setting in policy.sites.items()},
    }


def _ranges(ranges: Mapping[str, RangeCounts]) -> dict[str, Any]:
    return {role: dict(vars(counts)) for role, counts in ranges.items()}


def _backward(trace: BackwardTrace | None) -> dict[str, Any] | None:
    if trace is None:
        return None
    return {
        "largest": trace.largest,
        "nonfinite": trace.nonfinite,
        "exponents": trace.exponents,
        "ranges": _ranges(trace.ranges),
    }


def _with_integers(descriptor: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """JSON of protobuf writes 64-bit integers as strings; these become numbers again."""
    return {
        name: _with_integer(descriptor.fields_by_name[name], value)
        for name, value in fields.items()
    }


def _with_integer(entry: Any, value: Any) -> Any:
    inside = entry.message_type
    if inside is not None and inside.GetOptions().map_entry:
        of_value = inside.fields_by_name["value"]
        return {key: _with_integer(of_value, v) for key, v in value.items()}
    if isinstance(value, list):
        return [_with_integer(entry, v) for v in value]
    if inside is not None and isinstance(value, dict):
        return _with_integers(inside, value)
    wide = entry.cpp_type in (entry.CPPTYPE_INT64, entry.CPPTYPE_UINT64)
    return int(value) if wide else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _short(value: Any, limit: int = 160) -> str:
    text = str(value)
    return text if len(text) <= limit else text[:limit] + " ... (--json prints all)"
