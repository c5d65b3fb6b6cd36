"""The cheapest formats with which instances stay finite and keep their path signature, and gradients their accuracy.

A signature holds what loops and tests that are sites decide. Guards, and what else the level of the program leaves
out, are in recorded paths alone, and here none is recorded; the answer counts them.

Search: every knob (a role, or a site) begins at the first of `formats`. The knobs are gone through in their
order; each is lowered to the cheapest format with which the work still holds, tried from the cheapest up.
This is repeated until a pass changes nothing. In that last pass every cheaper format of every knob was tried
beside the final others, and failed: the result is 1-minimal. Nothing is drawn, so it is reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

import numpy as np

from simgrad import errors
from simgrad.policy import Policy
from simgrad.program_lines import operations, unsigned_lines
from simgrad.progress import ProgressCallback
from simgrad.request import names_of
from simgrad.results import Gradient
from simgrad.v1 import program_pb2
from simgrad.why.both import gradients_in_both
from simgrad.why.difference import newly_nonfinite, nonfinite_instances, without_gradient
from simgrad.why.sentence import Sentence
from simgrad.why.table import aligned
from simgrad.why.variants import ROLES, policy_of
from simgrad.why.work import Calls, Variant, Work, check_arguments, work_of
from simgrad.world import World

if TYPE_CHECKING:
    from simgrad.client import Client

BITS = {"f64": 64, "f32": 32, "bf16": 16, "f16": 16, "e4m3": 8, "e5m2": 8}
# Roles that a program has whether or not its operations name them.
_EVERYWHERE = ("state", "objective", "tape", "adjoint", "gradient")
Formats = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Knob:
    """A part of a program that has a format of its own: a role, or a site."""

    kind: str  # "role" or "site"
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "role" else f"site {self.name}"

    def set(self, policy: Policy, format: str) -> Policy:
        method = policy.role if self.kind == "role" else policy.site
        return method(self.name, format=format)


@dataclass(frozen=True)
class Trial:
    """One policy that was tried on the sample.

    Attributes:
      knob, format: what was lowered, and to what; None and "" for the first and the last row.
      formats: of every knob. cost: bits, by weight.
      kept: share of instances that keep the reference's path signature. error: of the gradient, the largest relative
        difference over the inputs, over the instances that have one; inf where none has.
      holds: whether both are within their bounds, no instance is not finite where the reference's is, and none ends with
        an error. refused: why the server did not run it, or "".
      sample: "search" or "confirmation".
      nonfinite: instances that are not finite (not ok, or with such a state or value) where the reference's are.
      ended: other instances that end with an error, and have no gradient.
    """

    knob: Knob | None
    format: str
    formats: Formats
    cost: float
    kept: float
    error: float
    holds: bool
    refused: str
    sample: str
    nonfinite: int = 0
    ended: int = 0


@dataclass(repr=False)
class Tuned:
    """The result of Client.tune. Path signatures leave guards out, and other decisions, as the level of the world says:
    `compare` may tell instances with the same one that part there.

    Attributes:
      policy: the cheap policy. formats: the format of each knob, by its name.
      cost, cost_before: sum of weight * bits over the knobs, with the policy and with the first of the formats.
      confirmed: whether the policy holds on the instances that the search did not see.
      search_ids, confirmation_ids: ids of the two samples.
      tried: every policy, in the order of the search; the last row is the confirmation.
      passes: how often the knobs were gone through. calls: how many calls of the server this took.
      guards: the lines of the guards that the signatures leave out, one for each guard.
      unsigned: the lines of what else decides by reals and is in no signature, one for each: other comparisons, choices
        (argmax, pivots, conversions), and whether a number is finite.
    """

    policy: Policy
    formats: dict[str, str]
    cost: float
    cost_before: float
    confirmed: bool
    search_ids: np.ndarray
    confirmation_ids: np.ndarray
    tried: list[Trial]
    passes: int
    calls: int
    guards: list[str] = field(default_factory=list)
    unsigned: list[str] = field(default_factory=list)

    @property
    def why(self) -> str:
        """The answer in a sentence."""
        return self.sentence.text

    @property
    def sentence(self) -> Sentence:
        """The answer in a sentence, with the facts that it states."""
        last, others = self.tried[-1], len(self.confirmation_ids)
        holds = "holds" if last.holds else "does not hold"
        facts: dict[str, Any] = {
            "cost": self.cost,
            "cost_before": self.cost_before,
            "instances": others,
            "holds": last.holds,
            "kept": last.kept,
            "error": last.error,
            "nonfinite": last.nonfinite,
            "ended": last.ended,
        }
        left_out = ""
        if self.guards or self.unsigned:
            guards, unsigned = len(self.guards), len(self.unsigned)
            lines = list(dict.fromkeys(line for line in (*self.guards, *self.unsigned) if line))
            at = ", ".join(lines[:3]) + (", ..." if len(lines) > 3 else "")
            counted = [f"{guards} {'guard' if guards == 1 else 'guards'}"] if guards else []
            if unsigned:
                counted.append(f"{unsigned} {'other ' if guards else ''}{'decision' if unsigned == 1 else 'decisions'}")
            left_out = f", which leaves out {' and '.join(counted)}" + (f" ({at})" if at else "")
            facts |= {"guards": guards, "unsigned": unsigned, "lines": at}
        bad = f"; {last.nonfinite} are not finite where the reference is" if last.nonfinite else ""
        bad += f"; {last.ended} {_end(last.ended)} with an error" if last.ended else ""
        return Sentence(
            f"{self.cost:g} instead of {self.cost_before:g} bits; on {others} other {'instance' if others == 1 else 'instances'} the policy {holds}: "
            f"{last.kept:.1%} keep their path signature{left_out}, and gradients are off by {last.error:.3g}{bad}.",
            facts,
        )

    def table(self) -> str:
        """The trials, a row each."""
        rows = [["tried", "cost", "keep their signature", "gradient off by", ""]]
        for t in self.tried:
            what = f"{t.knob} {t.format}" if t.knob else ("all" if t.sample == "search" else "confirmation")
            said = f"refused: {t.refused}" if t.refused else ("holds" if t.holds else "fails")
            if t.nonfinite:
                said += f": {t.nonfinite} not finite where the reference is"
            if t.ended:
                said += f"{',' if t.nonfinite else ':'} {t.ended} {_end(t.ended)} with an error"
            figures = ["", ""] if t.refused else [f"{t.kept:.1%}", f"{t.error:.3g}"]
            rows.append([what, f"{t.cost:g}", *figures, said])
        return aligned(rows)

    def __repr__(self) -> str:
        formats = [["knob", "format"], *([knob, format] for knob, format in self.formats.items())]
        return f"Tuned in {len(self.tried)} trials, {self.passes} passes\n{aligned(formats)}\n{self.why}"


@dataclass
class _Search:
    """The state of a search: what was tried, by the formats of all knobs."""

    work: Work
    variant: Variant
    reference: Gradient
    knobs: Sequence[Knob]
    weights: Sequence[float]
    keep: float
    bound: float
    sample: str
    tried: list[Trial]
    known: dict[Formats, bool]

    def policy(self, formats: Formats) -> Policy:
        policy = self.variant.policy
        for knob, format in zip(self.knobs, formats):
            policy = knob.set(policy, format)
        return policy

    def cost(self, formats: Formats) -> float:
        return float(sum(w * BITS[f] for w, f in zip(self.weights, formats)))

    def holds(self, formats: Formats, knob: Knob | None, format: str) -> bool:
        """Whether the work holds with these formats: a run, unless it is known."""
        if formats not in self.known:
            trial = self._run(formats, knob, format)
            self.tried.append(trial)
            self.known[formats] = trial.holds
        return self.known[formats]

    def _run(self, formats: Formats, knob: Knob | None, format: str) -> Trial:
        name = self.variant.name if knob is None else f"{knob} {format}"
        variant = replace(self.variant, name=name, policy=self.policy(formats))
        self.work.calls.expect(2 * variant.steps)
        kept, error, refused, bad, ended = 0.0, float("inf"), "", 0, 0
        try:
            result = self.work.gradient(variant, diagnostics="off")
        except errors.InvalidArgument as problem:
            refused = str(problem)
        else:
            same = result.path_signatures == self.reference.path_signatures
            kept = float(np.mean(same))
            differences = gradients_in_both(self.work, (self.variant, variant), (self.reference, result)).values()
            error = max((d.rank for d in differences), default=0.0)
            new = newly_nonfinite(self.reference, result)
            bad, ended = (int(np.count_nonzero(told)) for told in (new, without_gradient(result) & ~new))
        holds = not refused and kept >= self.keep and error <= self.bound and not bad and not ended
        return Trial(
            knob, format, formats, self.cost(formats), kept, error, holds, refused, self.sample, bad, ended
        )


def tune(
    client: Client,
    world: World,
    *,
    steps: int,
    bound: float,
    keep: float,
    formats: Sequence[str],
    reference: Policy | str,
    roles: Iterable[str] | None,
    sites: Iterable[str] | None,
    cost: Mapping[str, float] | None,
    timeout: float,
    retry: Any,
    progress: bool | ProgressCallback,
    **arguments: Any,
) -> Tuned:
    """Does the work of Client.tune."""
    _check(bound, keep, formats)
    check_arguments(arguments, True)
    with Calls("tune", timeout, retry, progress) as calls:
        plain, work = work_of(client, world, calls, **arguments)
        if work.instances < 2:
            raise ValueError("instances: at least 2, one to search with and one to confirm with")
        variant = Variant("reference", plain, policy_of(reference), steps)
        source = calls.program(client, plain).source
        assert source is not None  # Client.program always asks for it
        knobs = knobs_of(source, roles, sites)
        weighed = _weights(knobs, cost)
        samples = {
            "search": work.take(np.arange(0, work.instances, 2)),
            "confirmation": work.take(np.arange(1, work.instances, 2)),
        }
        tried: list[Trial] = []
        searches = {}
        for name, sample in samples.items():
            calls.expect(2 * steps)
            truth = sample.gradient(variant, diagnostics="off")
            bad, number = np.count_nonzero(nonfinite_instances(truth, sample.own)), truth.instances
            if bad:
                raise ValueError(
                    f"reference: {bad} of {number} instances have states, values or gradients that are not finite: "
                    "there is nothing to keep" + ("; leave them out" if bad < number else "")
                )
            if none := np.count_nonzero(without_gradient(truth)):
                raise ValueError(
                    f"reference: {none} of {number} instances end with an error, are stopped or are left out, and have "
                    "no gradient to keep" + ("; leave them out" if none < number else "")
                )
            searches[name] = _Search(
                sample, variant, truth, knobs, weighed, keep, bound, name, tried, {}
            )
        search = searches["search"]
        start: Formats = (formats[0],) * len(knobs)
        if not search.holds(start, None, formats[0]):
            raise ValueError(_no_start(formats[0], tried[-1]))
        found, passes = _descend(search, start, formats)
        confirmed = searches["confirmation"].holds(found, None, "")
    guards, unsigned = unsigned_lines(source)
    return Tuned(
        policy=search.policy(found),
        formats={str(knob): format for knob, format in zip(knobs, found)},
        cost=search.cost(found),
        cost_before=search.cost(start),
        confirmed=confirmed,
        search_ids=samples["search"].ids,
        confirmation_ids=samples["confirmation"].ids,
        tried=tried,
        passes=passes,
        calls=calls.count,
        guards=guards,
        unsigned=unsigned,
    )


def _descend(search: _Search, start: Formats, formats: Sequence[str]) -> tuple[Formats, int]:
    """The first formats from which no knob can be lowered, and the passes until then."""
    now, passes, changed = start, 0, True
    while changed:
        changed = False
        passes += 1
        for k, knob in enumerate(search.knobs):
            for format in cheaper(formats, now[k]):
                lowered = (*now[:k], format, *now[k + 1 :])
                if search.holds(lowered, knob, format):
                    now, changed = lowered, True
                    break
    return now, passes


def cheaper(formats: Sequence[str], than: str) -> list[str]:
    """The formats with fewer bits, the fewest first; those of equal bits in the order given."""
    return sorted((f for f in formats if BITS[f] < BITS[than]), key=lambda f: BITS[f])


def _check(bound: float, keep: float, formats: Sequence[str]) -> None:
    if isinstance(formats, str) or not formats:
        raise ValueError(f"formats {formats!r}: a list, the first of which is where the search begins")
    for format in formats:
        if format not in BITS:
            raise ValueError(f"formats: {format!r} is none of {', '.join(BITS)}")
    if any(BITS[f] >= BITS[formats[0]] for f in formats[1:]):
        raise ValueError(f"formats {list(formats)}: the first must have more bits than the others")
    if not bound >= 0:
        raise ValueError(f"bound {bound!r}: at least 0, of the gradient's relative error")
    if not 0 <= keep <= 1:
        raise ValueError(f"keep {keep!r}: a share between 0 and 1")


def _no_start(format: str, trial: Trial) -> str:
    if trial.refused:
        return f"formats: {format} in every role was refused: {trial.refused}"
    if trial.nonfinite:
        return (
            f"formats: with {format} in every role {trial.nonfinite} instances are not finite where the reference's are: "
            "begin with a wider format"
        )
    if trial.ended:
        return (
            f"formats: with {format} in every role {trial.ended} instances end with an error, and have no gradient: "
            "begin with a wider format"
        )
    return (
        f"formats: with {format} in every role {trial.kept:.1%} of the instances keep the reference's path signature, and "
        f"gradients are off by {trial.error:.3g}: begin with a wider format, or loosen keep or bound"
    )


def _end(number: int) -> str:
    return "ends" if number == 1 else "end"


def knobs_of(
    source: program_pb2.Program, roles: Iterable[str] | None, sites: Iterable[str] | None
) -> list[Knob]:
    """Roles in the order of the policy's table, then sites in the order of the text. By default those that
    an operation of the program has, which a knob of another does not overrule."""
    roles = None if roles is None else names_of("roles", "roles", roles)
    sites = None if sites is None else names_of("sites", "sites", sites)
    ops = list(operations(source))
    with_roles = {op.role or "dynamics" for op in ops if op.code != "event" and not op.site} | set(_EVERYWHERE)
    with_sites = list(dict.fromkeys(site for op in ops for site in _sites_of(source, op)))
    if unknown := sorted(set(roles or ()) - set(ROLES)):
        raise ValueError(f"roles: {', '.join(unknown)} is none of {', '.join(ROLES)}")
    if unknown := sorted(set(sites or ()) - set(with_sites)):
        raise ValueError(f"sites: {', '.join(unknown)} is none of {', '.join(with_sites) or '(none)'}")
    wanted = [r for r in ROLES if r in (with_roles if roles is None else roles)]
    chosen = [s for s in with_sites if sites is None or s in sites]
    knobs = [Knob("role", r) for r in wanted] + [Knob("site", s) for s in chosen]
    if not knobs:
        raise ValueError("roles, sites: at least one that may be lowered")
    return knobs


def _sites_of(source: program_pb2.Program, op: program_pb2.Op) -> list[str]:
    """The sites whose formats an operation has: of the reals that it computes, and of those that it compares as a named site."""

    def has_reals(values: Sequence[int]) -> bool:
        return any(source.values[k].element == program_pb2.ELEMENT_TYPE_REAL for k in values)

    compared = op.regions[0].yields[:1] if op.code == "while" else op.operands[:1]
    decides = op.code in ("while", "event", "accept") and has_reals(compared)
    computes = op.site and op.code != "event" and has_reals([*op.operands, *op.results])
    return ([op.site] if computes else []) + ([op.decision_site] if decides else [])


def _weights(knobs: Sequence[Knob], cost: Mapping[str, float] | None) -> list[float]:
    given = dict(cost or {})
    found = [float(given.pop(str(knob), given.pop(knob.name, 1.0))) for knob in knobs]
    if given:
        names = ", ".join(map(str, knobs))
        raise ValueError(f"cost: {', '.join(sorted(given))} is none of {names}")
    if not all(np.isfinite(w) and w >= 0 for w in found):
        raise ValueError("cost: finite numbers, at least 0")
    return found

