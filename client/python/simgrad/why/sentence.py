"""A comparison in words. Each sentence keeps the facts that it states, so that they can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping, Union

import numpy as np

from simgrad.why.difference import without_gradient

if TYPE_CHECKING:
    from simgrad.why.compare import Pair
    from simgrad.why.difference import GradientDifference
    from simgrad.why.fork import Fork, Forks, Side

# Whether all instances decide as that of a fork does; None where that is not known.
Alike = Callable[["Fork"], Union[bool, None]]
# By class of a birth certificate, the words before its operation.
_BIRTHS = {
    "input": "an input of",
    "invalid": "an invalid operand of",
    "divide_by_zero": "a division by zero in",
    "overflow": "an overflow of",
    "conversion": "a conversion in",
}


@dataclass(frozen=True)
class Sentence:
    """A sentence, and what it states by name: every number of the text, written short there, and every name."""

    text: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text


def sentences(pair: Pair, alike: Alike = lambda fork: None) -> list[Sentence]:
    """The sentences about a pair, the most important first: gradients that became zero in most instances,
    then where paths part, then additions that do nothing, then the rest. Paths that do not part come behind these.
    That most instances of a run give no numbers, or end with an error, comes before all."""
    zeros = _of_zero_gradients(pair, alike)
    most = [said for said in zeros if 2 * said.facts["zero"] > said.facts["of"]]
    rest = [said for said in zeros if said not in most]
    still = _of_absorption(pair)
    paths = _of_paths(pair)
    parts = pair.forks is not None and pair.forks.count > 0
    # That paths are the same explains nothing where additions do nothing, and these nothing where nothing differs.
    first = [*still, *paths] if not parts and _differs(pair) else [*paths, *still]
    said = [*most, *first, *rest, *_of_gradients(pair), *_of_parts(pair)]
    if not pair.gradients:
        said.append(_of_states(pair))
    missing = _of_missing_numbers(pair)
    missing += _of_newly_nonfinite(pair)
    missing += _of_ended(pair)
    mostly = [s for s in missing if 2 * s.facts["missing"] > s.facts["of"]]
    return [*mostly, *said, *(s for s in missing if s not in mostly)]


def ulps(margin: float) -> str:
    """A distance in ulps: -1 ulp, 2.5 ulps, 1.15e+15 ulps."""
    text = f"{margin:.4g}"
    return f"{text} ulp" if abs(margin) == 1 else f"{text} ulps"


def counted(number: int, noun: str) -> str:
    """A number of them: 1 step, 2 steps."""
    return f"{number} {noun if number == 1 else noun + 's'}"


def _count(number: int, of: int) -> str:
    return f"{number} of {counted(of, 'instance')}"


def among(left_out: int, instances: int) -> str:
    """The words for the instances of a difference, where some are left out: " over 2 of 3 instances"."""
    return f" over {_count(instances - left_out, instances)}" if left_out else ""


def cause(fork: Fork, reference: str, whose: str = "") -> tuple[str, dict[str, Any]]:
    """The cause of a fork: what the other run did there, and the reference instead. `whose` follows the margin."""
    mine, theirs = fork.other, fork.reference
    at = f"at step {fork.step}"
    # Margins of two signs are of tests that decided otherwise: neither is known to be of the one that parts.
    is_of_one = mine.exact or not mine.margin * mine.margin_ulps < 0
    if np.isfinite(mine.margin_ulps) and is_of_one:
        by = "by a margin of {}" if mine.exact else "(closest margin {})"
        at += f" {by.format(ulps(mine.margin_ulps) + whose)}"
    facts: dict[str, Any] = {
        "reference": reference,
        "site": fork.site,
        "line": fork.line,
        "step": fork.step,
        "instance": fork.instance,
        "margin_ulps": mine.margin_ulps,
        "reference_margin_ulps": theirs.margin_ulps,
    }
    if not fork.site:
        return f"the paths part {at}", facts
    line = f" ({fork.line})" if fork.line else ""
    if fork.kind == "loop":
        facts.update(iterations=mine.iterations, reference_iterations=theirs.iterations)
        did = _of_loop(mine, theirs)
        if did is None:
            return f"the loop `{fork.site}`{line} decides otherwise {at}", facts
        return f"the loop `{fork.site}`{line} {did[0]} {at}, where {reference} {did[1]}", facts
    name = f"the {fork.kind} `{fork.site}`{line}"
    if fork.kind == "choice":
        facts.update(chosen=mine.chosen, reference_chosen=theirs.chosen)
        return f"{name} takes {mine.chosen} {at}, where {reference} takes {theirs.chosen}", facts
    facts.update(held=mine.held, reference_held=theirs.held)
    if -1 in (mine.held, theirs.held) or mine.held == theirs.held:
        return f"{name} decides otherwise {at}", facts
    if mine.held + theirs.held == 1:
        does, instead = ("holds", "does not") if mine.held else ("does not hold", "does")
        return f"{name} {does} {at}, where that of {reference} {instead}", facts
    facts.update(checks=mine.checks, reference_checks=theirs.checks)
    return (
        f"{name} holds in {mine.held} of {mine.checks} evaluations {at}, where that of {reference} holds in "
        f"{theirs.held} of {theirs.checks}",
        facts,
    )


def _of_loop(mine: Side, theirs: Side) -> tuple[str, str] | None:
    """The words for what both loops did; None where it is unknown."""
    if -1 not in (mine.iterations, theirs.iterations):
        if mine.iterations < theirs.iterations:
            return "stops", "goes on"
        if mine.iterations > theirs.iterations:
            return "goes on", "stops"
    if mine.reason == theirs.reason or not (mine.reason and theirs.reason):
        return None
    return f"ends as {mine.reason}", f"ends as {theirs.reason}"


def _of_missing_numbers(pair: Pair) -> list[Sentence]:
    """Says in how many instances the reference gives no finite numbers to compare with."""
    bad, number = pair.nonfinite, pair.reference_result.instances
    if not bad:
        return []
    text = (
        f"{pair.reference} has states, values or gradients that are not finite in {_count(bad, number)}: a NaN or an "
        "infinity that both have counts as equal."
    )
    return [_sentence(pair, text, {"nonfinite": bad, "missing": bad, "of": number})]


def _of_newly_nonfinite(pair: Pair) -> list[Sentence]:
    """Says in how many instances the other run alone is not finite, and where that begins. Those without a finite
    state and value count as missing."""
    new, number = pair.newly_nonfinite, pair.other_result.instances
    if new is None or not new.instances.any():
        return []
    bad = int(np.count_nonzero(new.instances))
    text = f"{pair.other} is not finite in {_count(bad, number)} where {pair.reference} is"
    facts: dict[str, Any] = {"newly_nonfinite": bad, "missing": int(np.count_nonzero(new.ends)), "of": number}
    if new.first is not None:
        reverse = " of the reverse pass" if new.first.phase == "adjoint" else ""
        text += f", first in instance {new.first.instance} at step {new.first.step}{reverse}"
        facts |= {"phase": new.first.phase, "step": new.first.step, "instance": new.first.instance}
    if new.birth is not None:
        born = new.birth
        words = _BIRTHS.get(born.non_finite_class, f"{born.non_finite_class} in")
        site = f" at `{born.site}`" if born.site else ""
        line = f" ({born.label})" if born.label else ""
        text += f": {words} `{born.operation}` in {born.format}{site}{line}"
        facts |= {"operation": born.operation, "site": born.site, "line": born.label, "format": born.format}
        facts |= {"class": born.non_finite_class}
    return [_sentence(pair, text + ".", facts)]


def _of_ended(pair: Pair) -> list[Sentence]:
    """Says in how many instances a run ended with an error, in how many the policy stopped it, and how many were
    left out: none of these has a gradient to compare, and a stopped one keeps its last state."""
    said = []
    none = ", and these have no gradient" if pair.gradients else ""
    for name, result in ((pair.reference, pair.reference_result), (pair.other, pair.other_result)):
        ended = [h for h in result.halted if h.error]
        if ended:
            lines = sorted({h.line for h in ended if h.line})
            at = f" ({', '.join(lines)})" if lines else ""
            text = f"{name} ends with an error{at} in {_count(len(ended), result.instances)}{none}."
            facts = {"ended": len(ended), "missing": len(ended), "of": result.instances, "lines": ", ".join(lines)}
            said.append(_sentence(pair, text, facts))
        stopped = [bad for bad in result.health if bad.stopped and bad.phase != "adjoint"]
        if stopped:
            first = min(stopped, key=lambda bad: (bad.step, bad.instance))
            text = (
                f"{name} stops in {_count(len(stopped), result.instances)} at a number that is not finite, first in "
                f"instance {first.instance} at step {first.step}{none}."
            )
            facts = {"stopped": len(stopped), "missing": len(stopped), "of": result.instances}
            facts |= {"step": first.step, "instance": first.instance}
            said.append(_sentence(pair, text, facts))
        if left_out := getattr(result, "left_out", 0):
            text = f"{name} leaves out {_count(left_out, result.instances)}, which are not finite."
            said.append(_sentence(pair, text, {"left_out": left_out, "missing": left_out, "of": result.instances}))
    all_left_out = [off for off in pair.gradients.values() if off.left_out == pair.other_result.instances]
    if all_left_out and all(all_left_out[0].counted):
        text = f"No instance has a gradient in both {pair.reference} and {pair.other}."
        said.append(_sentence(pair, text, {"missing": all_left_out[0].left_out, "of": pair.other_result.instances}))
    return said


def _among(pair: Pair, left_out: int) -> tuple[str, dict[str, Any]]:
    """The words for the instances that have a gradient in both runs, where these are not all, and their facts."""
    number = pair.other_result.instances
    facts = {"compared": number - left_out, "left_out": left_out, "of": number} if left_out else {}
    return among(left_out, number), facts


def _of_zero_gradients(pair: Pair, alike: Alike) -> list[Sentence]:
    said = []
    for name, off in pair.gradients.items():
        before, now = off.zero
        if now <= before or not off.counted[0]:
            continue
        number, all_count = off.counted[1], off.counted[1] == pair.other_result.instances
        text = f"In {pair.other} the gradient of `{name}` is zero in {_count(now, number)}"
        text += "" if all_count else f" that {'counts' if number == 1 else 'count'}"
        facts: dict[str, Any] = {"input": name, "zero": now, "reference_zero": before, "of": number}
        if before:
            text += f" ({before} in {pair.reference})"
        if now == number and all_count and pair.forks is not None:
            because, more = _of_all(pair, pair.forks, name, alike)
            text += because
            facts |= more
        said.append(_sentence(pair, text + ".", facts))
    return said


def _of_all(pair: Pair, forks: Forks, name: str, alike: Alike) -> tuple[str, dict[str, Any]]:
    """Relates the paths of all instances to the gradient of an input that is zero in all of them. A fork is the
    cause only where all part at its site, that site gates the gradient, and a split does not say that paths change
    nothing in it."""
    number, first = pair.other_result.instances, forks.first
    facts: dict[str, Any]
    gate = pair.gradients[name].gated_by[1]
    if not forks.count:
        return f", although it takes the path of {pair.reference} in all of them", {"parted": 0}
    if pair.split is not None and name in pair.split and pair.split[name].is_rounding_alone:
        parts = pair.split[name]
        facts = {"parted": forks.count, "size_of_path": parts.size_of_path, "size_of_rounding": parts.size_of_rounding}
        return f", by {_rest(pair)} alone: paths part in {_count(forks.count, number)}, which changes nothing in it", facts
    if first is None or forks.count < number or forks.sites().get(first.site) != number or gate not in ("", first.site):
        return f"; paths part in {_count(forks.count, number)}", {"parted": forks.count}
    is_cause = gate != ""
    if not is_cause or not _all_alike(pair, forks, first, alike):
        at = f"the {first.kind} `{first.site}`" + (f" ({first.line})" if first.line else "")
        facts = {"parted": number, "site": first.site, "line": first.line, "step": first.step, "instance": first.instance}
        mark = ":" if is_cause else ";"
        return f"{mark} all paths part at {at}, first at step {first.step} in instance {first.instance}", facts
    alone = number == 1 or _one_margin(pair, first)
    because, facts = cause(first, pair.reference, "" if alone else f" in instance {first.instance}")
    return f": {because}", {**facts, "parted": number}


def _all_alike(pair: Pair, forks: Forks, first: Fork, alike: Alike) -> bool:
    """Whether all instances part in the step of the first, and do there what it does."""
    if pair.other_result.instances == 1:
        return True
    if (forks.step != first.step).any():
        return False
    by_traces = _alike_by_traces(pair, first)
    if by_traces and first.index == ():  # the traces tell of one decision in each instance
        return True
    known = alike(first)
    return by_traces if known is None else known


def _alike_by_traces(pair: Pair, first: Fork) -> bool:
    """As _all_alike, by what the traces tell of the step: of a loop with turns in common it is not known, and False."""
    number, step = pair.other_result.instances, first.step
    runs = (pair.reference_result, pair.other_result)
    theirs, mine = (r.sites.get(first.site) for r in runs)
    if first.kind == "loop" and theirs is not None and mine is not None:
        return bool(
            mine.iterations_max[step] < theirs.iterations_min[step]
            or mine.iterations_min[step] > theirs.iterations_max[step]
        )
    tests = [r.events.get(first.site) for r in runs]
    held = (first.reference.held, first.other.held)
    return all(t is not None and t.count[step] == number * h for t, h in zip(tests, held))


def _one_margin(pair: Pair, first: Fork) -> bool:
    """Whether a loop stopped at one value in every instance."""
    loop, step = pair.other_result.sites.get(first.site), first.step
    if loop is None or loop.checks[step] != pair.other_result.instances:
        return False
    one_bucket = np.count_nonzero(loop.histogram[step]) == 1
    return bool(loop.tested_min[step] == loop.tested_max[step] and one_bucket)


def _of_paths(pair: Pair) -> list[Sentence]:
    if pair.forks is None:
        return []
    number = pair.other_result.instances
    facts: dict[str, Any] = {"parted": pair.forks.count, "of": number}
    if not pair.forks.count:
        text = f"{pair.other} takes the path of {pair.reference} in {_count(number, number)}"
        both = {name: off for name, off in pair.gradients.items() if off.left_out < number}
        worst = max(both.items(), key=lambda entry: entry[1].rank, default=None)
        if worst is not None:
            name, off = worst
            over, more = _among(pair, off.left_out)
            facts |= {"input": name, "relative": off.relative, "largest": off.largest, **more}
            if off.largest == 0:
                text += f", and its gradients are the same{over}"
            elif np.isfinite(off.relative):
                text += f", and its gradients are off by at most {off.relative:.3g} of their size{over} (`{name}`)"
            else:
                text += f", and the gradient of `{name}` {_beyond(pair, off)}{over}"
        return [_sentence(pair, text + ".", facts)]
    text = f"{pair.other} leaves the path of {pair.reference} in {_count(pair.forks.count, number)}"
    if pair.forks.first is not None:
        because, more = cause(pair.forks.first, pair.reference)
        text += f", first in instance {pair.forks.first.instance}: {because}"
        facts |= more
    return [_sentence(pair, text + ".", facts)]


def _differs(pair: Pair) -> bool:
    """Whether a final state or a gradient is another one."""
    return any(off.largest != 0 for off in (*pair.states.values(), *pair.gradients.values()))


def _of_absorption(pair: Pair) -> list[Sentence]:
    """States into which most last additions add nothing, where the reference loses fewer."""
    said = []
    for name, (before, now) in pair.absorption.items():
        if 2 * now <= 1 or now <= before:
            continue
        text = (
            f"In {pair.other} {now:.1%} of the last additions into `{name}` at sampled steps, with those that a `where` leaves out, are "
            f"absorbed: they change nothing, though a derivative through them counts them ({before:.1%} in {pair.reference})."
        )
        said.append(_sentence(pair, text, {"state": name, "absorbed": now, "reference_absorbed": before}))
    return said


def _of_gradients(pair: Pair) -> list[Sentence]:
    said = []
    for name, off in pair.gradients.items():
        if off.counted[0] and off.zero[1] > off.zero[0] and off.zero[1] == pair.other_result.instances:
            continue  # that it is zero has been said
        if off.left_out == pair.other_result.instances:
            continue  # that none has one in both has been said
        over, more = _among(pair, off.left_out)
        text = f"The gradient of `{name}` in {pair.other} is off that in {pair.reference} by {off.relative:.3g} of its size"
        if off.largest == 0:
            text = f"The gradient of `{name}` in {pair.other} equals that in {pair.reference}"
        elif not np.isfinite(off.relative):
            text = f"The gradient of `{name}` {_beyond(pair, off)}"
        facts = {"input": name, "relative": off.relative, "largest": off.largest, **more}
        said.append(_sentence(pair, f"{text}{over}.", facts))
    return said


def _beyond(pair: Pair, off: GradientDifference) -> str:
    """The words for a difference whose relative size is not finite."""
    if np.isnan(off.relative):
        bad = [name for name, finite in ((pair.other, off.finite[1]), (pair.reference, off.finite[0])) if not finite]
        if not bad:
            return f"in {pair.other} is off that in {pair.reference} by more than f64 holds"
        return f"is not finite in {' and in '.join(bad)}"
    return f"in {pair.other} is off by {off.largest:.3g} at most, where that in {pair.reference} is zero"


def _sentence(pair: Pair, text: str, facts: dict[str, Any]) -> Sentence:
    return Sentence(text, {**facts, "reference": pair.reference, "other": pair.other})


def _of_parts(pair: Pair) -> list[Sentence]:
    said = []
    forks = pair.forks
    unrecorded = np.zeros(0, bool) if forks is None or forks.unrecorded is None else forks.unrecorded
    for name, parts in (pair.split or {}).items():
        if parts.left_out and unrecorded.size:
            unrecorded = unrecorded & ~(without_gradient(pair.reference_result) | without_gradient(pair.other_result))
        stops = int(np.count_nonzero(unrecorded))
        differs = np.nan_to_num(np.where(np.isnan(parts.path), 0.0, parts.whole)).any()
        if not differs and not parts.undefined:
            continue  # that the two are equal has been said
        share = parts.share_of_path
        size = parts.elements
        lost = parts.undefined - parts.nonfinite
        over, more = _among(pair, parts.left_out)
        facts = {"input": name, "share_of_path": share, "nonfinite": parts.nonfinite, "undefined": lost, "elements": size}
        facts |= more
        if parts.undefined and differs:
            over += " in the elements that have parts"
        text = f"Of the error of the gradient of `{name}`{over}, {share:.1%} is due to the path, and the rest to {_rest(pair)}"
        if not differs:
            text = f"The gradient of `{name}`{over} has no error that can be divided"
        elif not np.nan_to_num(parts.path).any():
            text = f"The error of the gradient of `{name}`{over} is {_rest(pair)} alone"
            if stops and not parts.undefined:
                text += f"; the tests that part in {_count(stops, pair.other_result.instances)} steer no number"
                facts |= {"stops": stops, "of": pair.other_result.instances}
        elif not np.nan_to_num(parts.rounding).any():
            text = f"The error of the gradient of `{name}`{over} is due to the path alone"
        if parts.nonfinite:
            text += f"; {parts.nonfinite} of {size} elements are not finite in {pair.other} or in {pair.reference}"
        if lost:
            text += f"; {lost} of {size} elements are undefined along the other's path"
        said.append(_sentence(pair, text + ".", facts))
    return said


def _rest(pair: Pair) -> str:
    """Names the cause of the part of an error that the path has no part in."""
    return f"what {pair.other} computes otherwise" if pair.is_of_other_world else "rounding"


def _of_states(pair: Pair) -> Sentence:
    worst = max(pair.states.items(), key=lambda entry: entry[1].rank, default=None)
    if worst is None or worst[1].largest == 0:
        return _sentence(pair, f"{pair.other} ends in the states of {pair.reference}.", {"largest": 0.0})
    name, off = worst
    text = f"In {pair.other} the final state `{name}` is off that in {pair.reference} by {off.largest:.3g} at most."
    return _sentence(pair, text, {"state": name, "largest": off.largest, "relative": off.relative})
