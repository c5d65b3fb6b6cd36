"""What comparisons compute, without a server."""

import pathlib
import re
import sys
import types
import xml.etree.ElementTree

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "integration"))

from said import unbacked  # noqa: E402

import simgrad as sg
from simgrad.program import ProgramBuilder
from simgrad.program_lines import unsigned_lines
from simgrad.results import ResolvedPolicy, RoleSetting
from simgrad.why import fork as fork_module
from simgrad.why import svg
from simgrad.why.compare import Pair
from simgrad.why.difference import GradientDifference, difference
from simgrad.why.fork import Fork, Forks, Side, first_step
from simgrad.why.sensitivity import DIGITS, significant_digits
from simgrad.why.sentence import Sentence, sentences, ulps
from simgrad.why.split import parts_of
from simgrad.why.tune import Knob, cheaper, knobs_of
from simgrad.why.variants import (
    ROLES,
    name_of,
    policies_by_name,
    variants_of,
    with_stochastic_rounding,
    without_weights,
)
from simgrad.why.work import Calls, Variant, Work, work_of

BALL = sg.World("bouncing_ball", contact="toi")


def test_parts_add_up_and_each_is_zero_where_its_cause_is_missing():
    random = np.random.default_rng(3)
    rr, rp, pr, pp = random.normal(size=(4, 50))
    parts = parts_of(rr, rp, pr, pp)
    np.testing.assert_allclose(parts.rounding + parts.path, parts.whole, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(parts.interaction, pp - pr - rp + rr, atol=1e-15)
    # One path: the forced runs are the plain ones. One arithmetic: likewise the other way round.
    assert not parts_of(rr, rr, pp, pp).path.any() and (parts_of(rr, rr, pp, pp).rounding == pp - rr).all()
    assert not parts_of(rr, pp, rr, pp).rounding.any() and (parts_of(rr, pp, rr, pp).path == pp - rr).all()
    assert parts_of(rr, rr, pp, pp).share_of_path == 0 and parts_of(rr, pp, rr, pp).share_of_path == 1


def test_an_element_that_is_undefined_along_a_path_has_no_parts_and_is_counted():
    parts = parts_of([1.0, 2.0], [np.nan, 2.0], [1.5, 2.5], [1.5, 2.5])
    assert parts.undefined == 1 and np.isnan(parts.rounding[0]) and np.isnan(parts.path[0])
    assert parts.rounding[1] == 0.5 and parts.path[1] == 0 and parts.share_of_path == 0


def test_an_instance_that_is_left_out_has_no_parts_and_is_counted_apart():
    rr, rp, pr, pp = np.array([[[0.0, 0], [1, 2]], [[0, 0], [1, 2]], [[5, 6], [1, 3]], [[5, 6], [1, 3]]])
    parts = parts_of(rr, rp, pr, pp, np.array([True, False]))
    assert (parts.left_out, parts.undefined, parts.nonfinite, parts.elements) == (1, 0, 0, 2)
    for part in (parts.whole, parts.rounding, parts.path, parts.interaction):
        assert np.isnan(part[0]).all() and np.isfinite(part[1]).all()
    assert parts.size_of_rounding == 1 and parts.size_of_path == 0 and not parts.is_rounding_alone
    assert parts_of(rr, rp, pr, pp).size_of_rounding > 7 and parts_of(rr, rp, pr, pp).elements == 4


def test_differences_are_relative_to_the_reference_and_name_the_worst():
    off = difference([[3.0, 0.0], [0.0, 4.0]], [[3.0, 0.0], [0.0, 4.5]])
    assert (off.largest, off.relative, off.at) == (0.5, 0.1, (1, 1))
    assert difference([0.0], [0.0]).relative == 0 and difference([np.inf], [np.inf]).relative == 0
    assert difference([0.0], [1.0]).relative == np.inf and difference([0.0], [1.0]).rank == np.inf
    assert np.isnan(difference([1.0], [np.nan]).relative) and difference([1.0], [np.nan]).rank == np.inf
    assert np.isnan(difference([1.0], [np.inf]).relative) and difference([1.0], [np.inf]).largest == np.inf
    # Squares of these would overflow or vanish.
    assert difference([1e200], [2e200]).relative == 1 and difference([1e-200], [2e-200]).relative == 1
    assert difference([1.0], [1e200]).relative == pytest.approx(1e200)
    assert difference([1.0, 0.0], [1.0, 1e-200]).relative == pytest.approx(1e-200)
    # Neither 0, which says that both are equal, nor inf, which says that the reference is 0.
    assert difference([1e-300], [1e300]).relative == np.finfo(np.float64).max
    assert 0 < difference([1e300], [1e300 * (1 + 1e-15), 0.0][:1]).relative < 1e-14
    assert difference([1e300, 0.0], [1e300, 1e-300]).relative == np.finfo(np.float64).smallest_subnormal


@pytest.mark.parametrize("differs_from", [1, 2, 7, 64, 100])
def test_the_first_step_is_found_in_log_many_prefixes(differs_from):
    asked = []

    def differs(steps):
        asked.append(steps)
        return steps >= differs_from

    assert first_step(differs, 100) == differs_from - 1
    assert len(asked) <= 7


def test_prefixes_tell_which_instances_part_before_their_last_step(monkeypatch):
    random = np.random.default_rng(1)
    forks, ends = random.integers(1, 40, 50), random.integers(1, 40, 50)
    asked = []

    class Rows:
        def __init__(self, rows):
            self.rows = rows

        def take(self, among):
            return Rows(self.rows[among])

    def prefix_differs(work, reference, other):
        asked.append(len(work.rows))
        return lambda steps: forks[work.rows] <= steps

    monkeypatch.setattr(fork_module, "_prefix_differs", prefix_differs)
    found = fork_module._differ_in(Rows(np.arange(50)), None, None, ends)
    assert found.tolist() == (forks <= ends).tolist() and found.any() and not found.all()
    assert len(asked) <= len(set(ends))
    asked.clear()
    forks = np.full(50, 100)
    assert not fork_module._differ_in(Rows(np.arange(50)), None, None, ends).any() and len(asked) <= 6


def test_significant_digits_are_those_of_mean_and_deviation():
    # Mean 100, standard deviation 0.1: three digits.
    samples = [np.array([100 + d, 1.0, np.nan, d]) for d in (-0.1, 0.0, 0.1)]
    np.testing.assert_allclose(significant_digits(samples), [3.0, DIGITS["f64"], 0.0, 0.0])
    np.testing.assert_allclose(significant_digits(samples, 2.5), [2.5, 2.5, 0.0, 0.0])
    # Squares of these would overflow or vanish.
    for scale in (1e285, 1e-200, 1e-310):
        scaled = [x[:1] * scale for x in samples]
        np.testing.assert_allclose(significant_digits(scaled), [3.0], atol=1e-6)


def test_a_deadline_that_passes_before_the_first_run_is_that_of_all():
    class Late:
        def program(self, world, **options):
            raise sg.errors.DeadlineExceeded("deadline of 0.1 s exceeded before the answer began")

    with pytest.raises(sg.errors.DeadlineExceeded, match="^tune: the deadline of 5 s passed while the program was asked for: "):
        Calls("tune", 5.0, None, False).program(Late(), BALL)


def test_margins_are_counted_in_ulps():
    assert [ulps(m) for m in (-1.0, 1.0, 0.0, 2.5, 1.5e15)] == ["-1 ulp", "1 ulp", "0 ulps", "2.5 ulps", "1.5e+15 ulps"]


def loop(**columns):
    """A TerminationTrace of two steps, as far as sentences read it."""
    return types.SimpleNamespace(**{name: np.asarray(column) for name, column in columns.items()})


def zeroed(step=(0, 0, 0), site=("solve",) * 3, mine=(0, 0), theirs=(2, 2), tested=(1.5, 1.5), gate="solve", split=None):
    """A pair of three instances whose gradients are zero in the other run alone. `mine`, `theirs`: fewest and most
    iterations of the loop in the first step; `tested`: its last values there; `split`: as parts_of takes it."""
    step = np.asarray(step)
    parted = step >= 0
    first = None
    if parted.any():
        i = int(np.flatnonzero(step == step[parted].min())[0])
        stops, goes = Side(mine[0], "converged", -1, -1.0, -1.0, True, 1), Side(theirs[0], "converged", -1, 1.0, 7.0, False, 3)
        first = Fork(i, 10 + i, int(step[i]), site[i], "", (), "loop", goes, stops)
    histogram = np.eye(2, 64) * 3 if tested[0] == tested[1] else np.eye(2, 64) + np.eye(2, 64, 1) * 2
    a, b = (
        types.SimpleNamespace(
            instances=3,
            halted=[],
            health=[],
            path=None,
            events={},
            absorption={},
            sites={
                "solve": loop(
                    iterations_min=[it[0], 9],
                    iterations_max=[it[1], 9],
                    checks=[3, 3],
                    tested_min=[tested[0], 0],
                    tested_max=[tested[1], 1],
                    histogram=histogram,
                )
            },
        )
        for it in (theirs, mine)
    )
    off = GradientDifference(2.0, 1.0, (0,), connected=(3, 0), counted=(3, 3), zero=(0, 3), gated_by=("", gate), finite=(True, True))
    forks = Forks(parted, step, list(site), parted, first)
    parts = None if split is None else {"k": parts_of(*(np.full(3, g) for g in split))}
    return Pair("f32", "f16", a, b, forks, {}, {}, None, None, {"k": off}, parts, [])


ZERO = "In f16 the gradient of `k` is zero in 3 of 3 instances"
ROUNDED = ", by rounding alone: paths part in"


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (zeroed(), f"{ZERO}: the loop `solve` stops at step 0 by a margin of -1 ulp, where f32 goes on."),
        (
            zeroed(tested=(1.5, 1.75)),
            f"{ZERO}: the loop `solve` stops at step 0 by a margin of -1 ulp in instance 0, where f32 goes on.",
        ),
        (zeroed(step=(-1, 4, -1), site=("", "solve", "")), f"{ZERO}; paths part in 1 of 3 instances."),
        (zeroed(site=("solve", "solve", "rest")), f"{ZERO}; paths part in 3 of 3 instances."),
        (zeroed(gate="rest"), f"{ZERO}; paths part in 3 of 3 instances."),
        (zeroed(step=(5, 1, 1)), f"{ZERO}: all paths part at the loop `solve`, first at step 1 in instance 1."),
        (zeroed(mine=(0, 3)), f"{ZERO}: all paths part at the loop `solve`, first at step 0 in instance 0."),
        # A site that does not gate the gradient is not told to be why it is zero.
        (zeroed(gate=""), f"{ZERO}; all paths part at the loop `solve`, first at step 0 in instance 0."),
        (zeroed(gate="", step=(5, 1, 1)), f"{ZERO}; all paths part at the loop `solve`, first at step 1 in instance 1."),
        # Nor is one where either arithmetic gives the same along both paths.
        (zeroed(gate="", split=(2.0, 2.0, 0.0, 0.0)), f"{ZERO}{ROUNDED} 3 of 3 instances, which changes nothing in it."),
        (zeroed(gate="", split=(2.0, 2.0, 0.0, 0.0), step=(-1, 4, -1)), f"{ZERO}{ROUNDED} 1 of 3 instances, which changes nothing in it."),
        (zeroed(split=(2.0, 0.0, 2.0, 0.0)), f"{ZERO}: the loop `solve` stops at step 0 by a margin of -1 ulp, where f32 goes on."),
        # A path part of 0 in which both runs change, by opposite amounts.
        (zeroed(gate="", split=(2.0, 1.0, -1.0, 0.0)), f"{ZERO}; all paths part at the loop `solve`, first at step 0 in instance 0."),
        (zeroed(gate="", split=(2.0, np.nan, 0.0, 0.0)), f"{ZERO}; all paths part at the loop `solve`, first at step 0 in instance 0."),
        (zeroed(step=(-1, -1, -1)), f"{ZERO}, although it takes the path of f32 in all of them."),
    ],
)
def test_a_fork_is_the_cause_only_of_what_happens_in_all_that_are_counted(pair, said):
    first, *rest = sentences(pair)
    assert first.text == said
    assert not [unbacked(s) for s in (first, *rest) if unbacked(s)]


def test_what_has_no_size_is_not_given_one():
    pair = zeroed(step=(-1, -1, -1))
    for largest, relative, told in (
        (np.nan, np.nan, "the gradient of `k` is not finite in f16"),
        (2.0, np.inf, "the gradient of `k` in f16 is off by 2 at most, where that in f32 is zero"),
    ):
        pair.gradients = {"k": GradientDifference(largest, relative, (), (3, 3), (3, 3), (0, 0), ("", ""), (True, bool(np.isfinite(largest))))}
        assert sentences(pair)[0].text == f"f16 takes the path of f32 in 3 of 3 instances, and {told}."


def test_equal_gradients_are_told_as_the_same():
    pair = zeroed(step=(-1, -1, -1))
    pair.gradients = {"k": GradientDifference(0.0, 0.0, (), (3, 3), (3, 3), (0, 0), ("", ""), (True, True))}
    said = sentences(pair)[0]
    assert said.text == "f16 takes the path of f32 in 3 of 3 instances, and its gradients are the same."
    assert not unbacked(said)


def test_additions_that_do_nothing_are_told_where_the_reference_loses_fewer():
    pair = zeroed(step=(-1, -1, -1))
    shares = ({"x": 0.0, "y": 0.9, "v": 0.2}, {"x": 0.875, "y": 0.9, "v": 0.4})
    for result, absorbed in zip((pair.reference_result, pair.other_result), shares):
        result.absorption = {name: types.SimpleNamespace(share=share) for name, share in absorbed.items()}
    said = [s for s in sentences(pair) if "absorbed" in s.facts]
    assert [s.text for s in said] == [
        "In f16 87.5% of the last additions into `x` at sampled steps, with those that a `where` leaves out, are absorbed: they change "
        "nothing, though a derivative through them counts them (0.0% in f32)."
    ]
    assert not unbacked(said[0])
    assert pair.absorption["v"] == (0.2, 0.4)
    # That paths are the same is said after it.
    texts = [s.text for s in sentences(pair)]
    paths = [k for k, text in enumerate(texts) if text.startswith("f16 takes the path of")]
    assert paths and texts.index(said[0].text) < paths[0]


def of_turns(turns, converged, capped):
    """A loop of two steps, three runs in each."""
    reasons = np.array([converged, capped, [0, 0], [0, 0]]).T
    return loop(runs=[3, 3], iterations_mean=turns, reasons=reasons, counter=[0, 0])


def test_a_pair_prints_the_arrays_and_sites_that_differ():
    pair = zeroed(step=(-1, -1, -1))
    pair.sentences = sentences(pair)
    pair.value = (1.25, 1.5)
    pair.states = {"x": difference([1.0, 2.0], [1.0, 2.5]), "v": difference([1.0], [1.0])}
    pair.gradients = {}
    for result, turns, converged, held in (
        (pair.reference_result, [2.0, 4.0], ([3, 3], [0, 0]), [5, 0]),
        (pair.other_result, [2.0, 5.5], ([3, 1], [0, 2]), [5, 2]),
    ):
        result.sites = {"solve": of_turns(turns, *converged)}
        result.events = {"floor": loop(count=held), "wall": loop(count=[1, 1])}
    assert repr(pair).splitlines()[len(pair.sentences) :] == [
        "2 of 3 arrays and 2 of 3 sites differ",
        "                           f32   f16   off by  relative  at",
        "value                      1.25  1.5   0.25    0.2",
        "state x                                0.5     0.224     [1]",
        "solve: mean turns          3     3.75  1.5     0.335     step 1",
        "solve: ended as converged  6     4     2       0.471     step 1",
        "solve: ended as max_iter   0     2     2       inf       step 1",
        "floor: held                5     7     2       0.4       step 1",
    ]


def test_a_pair_without_a_difference_says_so_and_one_with_many_is_short():
    pair = zeroed(step=(-1, -1, -1))
    pair.gradients = {}
    for result in (pair.reference_result, pair.other_result):
        result.sites = {"solve": of_turns([1.0, 1.0], [3, 3], [0, 0])}
    pair.states = {f"x{k}": difference([1.0], [1.0]) for k in range(3)}
    assert repr(pair) == "0 of 3 arrays and 0 of 1 sites differ"
    pair.states = {f"x{k}": difference([1.0], [1.0 + 0.5**k]) for k in range(12)}
    rows = repr(pair).splitlines()
    assert rows[0] == "12 of 12 arrays and 0 of 1 sites differ"
    assert [row.split()[:2] for row in rows[2:]] == [*(["state", f"x{k}"] for k in range(8)), ["and", "4"]]


def test_a_number_that_is_no_fact_is_seen():
    assert unbacked(Sentence("f32 stops at step 3 by -1 ulp in 12.5% of 4.", {"name": "f32", "step": 3, "of": 4})) == ["-1", "12.5%"]
    assert unbacked(Sentence("`x1` (a.py:7) is off by 1.23e-08.", {"s": "x1", "l": "a.py:7", "off": 1.2345e-8})) == []


def test_variants_are_named_and_the_first_policy_is_the_reference():
    made = variants_of(BALL, 5, ["f64", "f32"], ["reversed"], [{"contact": "none", "steps": 10}], {"own": BALL})
    assert [v.name for v in made] == ["f64", "f32", "f64 reversed", "f64 contact=none, steps=10", "own"]
    assert [v.steps for v in made] == [5, 5, 5, 10, 5]
    assert {r.role: r.setting.order for r in made[2].policy.to_proto().roles} == dict.fromkeys(ROLES, "reversed")
    assert made[3].world.to_proto().config["contact"].word == "none" and made[4].world is BALL
    policy = sg.Policy("bf16_unsafe").role("termination", format="f32")
    assert name_of(policy) == "bf16_unsafe.role('termination', format='f32')"
    assert list(policies_by_name({"cheap": policy})) == ["cheap"]


def test_rounding_is_drawn_where_casts_have_a_choice():
    def resolved(sites=None, **formats):
        scaled = formats.pop("scaled", False)
        roles = {
            role: RoleSetting(
                formats.get(role, "f32"), "ieee", "pairwise", "f32", "native", "bitwise",
                scale="amax" if scaled and role == "network" else "none",
            )  # fmt: skip
            for role in ROLES
        }
        return ResolvedPolicy("f32", roles, sites or {}, 1.0, "report")

    def drawn(found):
        message = with_stochastic_rounding(sg.Policy("f32"), found).to_proto()
        entries = [(r.role, r.setting) for r in message.roles] + [(s.site, s.setting) for s in message.sites]
        return {name for name, setting in entries if setting.rounding == "stochastic"}

    all_roles = set(ROLES) - {"tape", "gradient"}
    assert drawn(resolved()) == drawn(resolved(network="e4m3")) == all_roles
    assert drawn(resolved(network="e4m3", scaled=True)) == all_roles - {"network"}
    assert drawn(resolved(solver="f64", dynamics="tf32")) == all_roles - {"solver", "dynamics"}
    sites = {"a": {"format": "f16"}, "b": {"format": "f64"}, "c": {"order": "exact"}}
    assert drawn(resolved(sites)) == all_roles | {"a"}
    doubles = resolved(**dict.fromkeys(ROLES, "f64"))
    assert with_stochastic_rounding(sg.Policy("f64"), doubles) == sg.Policy("f64")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (dict(policies=["f64"]), "there is one variant"),
        (dict(policies=[]), "policies: at least one"),
        (dict(policies=["f64", "f64"]), "two variants are called 'f64'"),
        (dict(orders="reversed"), "orders is a list of orders"),
        (dict(policies="f64"), "policies is a list"),
        (dict(policies=["f64", 3]), "a policy is a simgrad.Policy"),
        (dict(worlds={"own": "bouncing_ball"}), r"worlds\['own'\] is a simgrad.World"),
    ],
)
def test_variants_that_make_no_sense_are_refused(given, told):
    arguments = dict(policies=["f64", "f32"], orders=(), configs=(), worlds=None)
    with pytest.raises((ValueError, TypeError), match=told):
        variants_of(BALL, 5, **{**arguments, **given})


def test_a_world_that_has_its_configuration_takes_no_other():
    b = ProgramBuilder("one")
    b.next(x=b.state("x"))
    world = sg.World(program=b)
    with pytest.raises(ValueError, match="has its configuration"):
        variants_of(world, 5, ["f64"], (), [{"h": 1.0}], None)


@sg.world
def pushed(x: sg.State[2], k: sg.Param = 1.0, u: sg.Control[2] = 0.0, d: sg.Data[2] = 0.0):
    return x + k * u + d


@pytest.fixture
def work():
    x = np.arange(6.0).reshape(3, 2)
    u = sg.PerStep(np.ones((4, 2)))
    d = np.arange(24.0).reshape(3, 4, 2)
    _, work = work_of(
        None,
        pushed,
        None,
        initial={"x": x},
        params={"k": 2.0},
        controls={"u": u},
        data={"d": d},
        first_instance=10,
        weights=[1.0, 2.0, 3.0],
        cotangents={"state": {"x": x}},
    )
    return work


def test_some_instances_of_a_work_are_their_rows_ids_weights_and_cotangents(work):
    part = work.take([2, 0])
    assert part.inputs["initial"]["x"].tolist() == [[4, 5], [0, 1]] and part.ids.tolist() == [12, 10]
    assert part.inputs["params"]["k"] == 2.0 and part.inputs["controls"]["u"].array.shape == (4, 2)
    assert part.inputs["data"]["d"].shape == (2, 4, 2) and part.weights.tolist() == [3, 1]
    assert part.options["cotangents"].state["x"].tolist() == [[4, 5], [0, 1]] and part.instances == 2


def test_shared_inputs_that_are_differentiated_are_sent_for_each_instance(work):
    each = work.each()
    assert each.inputs["params"]["k"].tolist() == [2, 2, 2]
    assert each.inputs["controls"]["u"].array.shape == (3, 4, 2)
    assert each.take([1]).inputs["controls"]["u"].array.shape == (1, 4, 2)
    assert each.inputs["initial"]["x"] is work.inputs["initial"]["x"]


def test_weights_that_are_sent_for_each_instance_are_params():
    variant = Variant("f32", sg.worlds.cartpole((4, 1)), sg.Policy("f32"), 3)
    changed = without_weights(variant).world.program
    assert not any(i.weights for i in changed.inputs)
    for i in changed.inputs:
        i.weights = i.name in ("w1", "b1")
    assert changed == variant.world.program, "nothing else changes, and the world itself stays"
    assert without_weights(Variant("f32", BALL, sg.Policy("f32"), 3)).world is BALL


def test_cheaper_formats_are_those_of_fewer_bits_the_fewest_first():
    formats = ("f64", "f32", "f16", "bf16", "e4m3")
    assert cheaper(formats, "f64") == ["e4m3", "f16", "bf16", "f32"]
    assert cheaper(formats, "f16") == ["e4m3"] and cheaper(formats, "e4m3") == []


def test_roles_and_sites_are_named_by_one_name_or_by_several():
    source = sg.worlds.kinetics("robertson").program
    one = [Knob("role", "dynamics"), Knob("site", "newton")]
    assert knobs_of(source, "dynamics", "newton") == knobs_of(source, ["dynamics"], iter(["newton"])) == one
    with pytest.raises(TypeError, match="roles: names of roles, not 5"):
        knobs_of(source, 5, None)


def test_a_test_of_integers_is_no_knob():
    whole = sg.State(dtype="i32")

    @sg.world(level="loops", n=whole, m=whole)
    def step(x: sg.State, n, m, tol: sg.Config = 0.5):
        n = sg.while_loop(lambda n: n + m, n, until=lambda n: n >= m, max_iter=9, site="counts")
        y = sg.while_loop(lambda y: 0.5 * y, x, until=lambda y: y < tol, max_iter=9, site="halves")
        return {"x": sg.where(sg.test("many", n > m), y, x), "n": n, "m": m}

    assert [str(k) for k in knobs_of(step.program, None, None) if k.kind == "site"] == ["site halves"]


def rects(text):
    root = xml.etree.ElementTree.fromstring(text)
    return [e for e in root.iter() if e.tag.endswith("}rect")]


def test_bars_are_as_high_as_their_counts_and_stack():
    text = svg.bars("f", [svg.Bars("a", np.array([4, 0, 2]), "red"), svg.Bars("b<", np.array([4, 0, 0]), "blue")], "n")
    a, c, b = rects(text)
    assert (a.get("data-series"), a.get("data-count"), c.get("data-step"), b.get("data-series")) == ("a", "4", "2", "b<")
    assert float(a.get("height")) == pytest.approx(2 * float(c.get("height")), abs=0.11)
    assert ">0.5<" not in svg.bars("f", [svg.Bars("a", np.array([1]), "red")], "n")  # there is no half an instance
    assert float(b.get("y")) + float(b.get("height")) == pytest.approx(float(a.get("y")), abs=0.11)


def test_many_steps_share_bars_and_none_is_lost():
    counts = np.arange(5000) % 3
    assert sum(float(r.get("data-count")) for r in rects(svg.bars("f", [svg.Bars("a", counts, "red")], "n"))) == counts.sum()


def heights_of(chart):
    return [float(p.split(",")[1]) for p in xml.etree.ElementTree.fromstring(chart).find("{*}polyline").get("points").split()]


def test_a_line_has_gaps_where_nothing_is_finite_and_keeps_its_least_when_asked():
    values = np.array([1.0, 10.0, np.inf, 100.0])
    root = xml.etree.ElementTree.fromstring(svg.lines("f", [svg.Line("a", values, "red")], "ulps", log=True))
    points = [e.get("points").split() for e in root.iter() if e.tag.endswith("}polyline")]
    assert [len(set(p)) for p in points] == [2, 1]
    y = [float(p.split(",")[1]) for p in (*points[0], points[1][0])]
    assert y[0] - y[1] == pytest.approx(y[1] - y[2], abs=0.11)  # decades are equally far apart
    long = np.ones(10000)
    long[7777] = 1e-3
    thin = svg.lines("f", [svg.Line("a", long, "red")], "ulps", log=True, joined=np.fmin)
    assert max(heights_of(thin)) > 100


def test_a_line_that_is_seldom_above_zero_keeps_what_is():
    seldom = np.zeros(5000)
    seldom[[7, 4100]] = 3.0, 5.0
    heights = np.array(heights_of(svg.lines("f", [svg.Line("a", seldom, "red")], "held")))
    assert np.count_nonzero(heights < heights.max()) == 2


def test_rows_are_as_long_as_their_parts():
    text = svg.rows("g", [svg.Bar("k", [("path", 3.0, "red"), ("rounding", 1.0, "blue")]), svg.Bar("z", [("path", 0.0, "red")])])
    path, rounding, nothing = rects(text)
    assert float(path.get("width")) == pytest.approx(3 * float(rounding.get("width")), abs=0.2)
    assert float(nothing.get("width")) == 0


def test_several_objectives_are_refused_before_anything_runs():
    with sg.Client("localhost:1", timeout=1) as client:
        for ask in (
            lambda **more: client.compare(BALL, steps=5, policies=["f64", "f32"], **more),
            lambda **more: client.sensitivity(BALL, steps=5, **more),
        ):
            with pytest.raises(TypeError, match="objective is one name, not .'a', 'b'.; call it for each"):
                ask(objective=["a", "b"])


@pytest.mark.parametrize("ids, named", [
    ([0, 1, 2], {"first_instance": 0}),
    ([7], {"first_instance": 7}),
    ([2**64 - 2, 2**64 - 1], {"first_instance": 2**64 - 2}),
    ([3, 5, 4], None),
    ([1, 0], None),
    ([2**64 - 1, 0], None),
    ([0, 2**63, 2], None),
])  # fmt: skip
def test_consecutive_instances_are_named_by_the_first(ids, named):
    own = np.array(ids, np.uint64)
    work = Work(None, None, {}, {}, {}, {}, len(ids), own, None)
    assert work._named() == named if named else work._named()["instance_ids"] is own


def test_a_bar_says_which_steps_it_sums():
    counts = np.zeros(3 * svg.COLUMNS, int)
    counts[7] = 5
    (bar,) = re.findall(r"<title>[^<]*</title>", svg.bars("f", [svg.Bars("a", counts, "#000")], "y"))
    assert bar == "<title>a, steps 6 to 8: 5</title>"


def stops(x):
    return sg.while_loop(lambda y: 0.5 * y, x, until=lambda y: (y < 0.3) | (y * y < 0.2), max_iter=9, site="halve")


def stops_by_what_it_carries(x):
    y, _ = sg.while_loop(lambda y, done: (0.5 * y, y < 0.3), (x, False), until=lambda y, done: done, max_iter=9, site="halve")
    return y


def stops_and_chooses(x):
    y, low = sg.while_loop(lambda y, low: (0.5 * y, y < 0.3), (x, False), until=lambda y, low: low, max_iter=9, site="halve")
    return np.where(low, y, x)


def branches(x):
    return sg.cond(x > 1.0, lambda y: y * 2.0, lambda y: y, x)


def in_a_branch(x):
    return sg.cond(x > 0.0, lambda y: np.where(y > 1.0, y, 0.5), lambda y: y, x)


def asks_whether_finite(x):
    return np.where(np.isfinite(x), x, 0.0)


def rounds_to_a_number(x):
    return (2.0 * x).astype("i4").astype(float)


def orders(x):
    both = np.stack([x, 1.0 - x])
    return both[np.argsort(both)[0]]


def solves(x):
    return np.linalg.solve(np.stack([np.stack([x, 1.0 + 0 * x]), np.stack([1.0 + 0 * x, x])]), np.ones(2))[0]


def factors_and_tells_the_order(x):
    b, m = sg.builder(), np.stack([np.stack([x, 1.0 + 0 * x]), np.stack([1.0 + 0 * x, x])])
    return b.lu(m)[0, 1] * b.lu_permutation(m)[0].astype(float)


def has_one_row(x):
    return sg.builder().lu(x.reshape(1, 1))[0, 0]


def counts(x):
    return x + 1.0 * (np.arange(3) < 2)[0]


def ends(x):
    sg.halt("far", x > 9.0)
    return x


UNSIGNED = {  # by step: guards, and other decisions, at the levels "loops", "decisions" and "all"
    stops: [(0, 0), (0, 0), (0, 0)],
    stops_by_what_it_carries: [(0, 0), (0, 0), (0, 0)],
    stops_and_chooses: [(0, 1), (0, 0), (0, 0)],
    branches: [(0, 1), (0, 0), (0, 0)],
    in_a_branch: [(0, 2), (0, 0), (0, 0)],
    asks_whether_finite: [(0, 1), (0, 1), (0, 1)],
    rounds_to_a_number: [(0, 0), (0, 0), (0, 0)],
    orders: [(0, 1), (0, 0), (0, 0)],
    solves: [(0, 1), (0, 0), (0, 0)],
    factors_and_tells_the_order: [(0, 1), (0, 0), (0, 0)],
    has_one_row: [(0, 0), (0, 0), (0, 0)],
    counts: [(0, 0), (0, 0), (0, 0)],
    ends: [(0, 1), (0, 0), (0, 0)],
}


@pytest.mark.parametrize("step", UNSIGNED)
def test_a_decision_is_unsigned_where_neither_its_level_nor_a_loop_or_a_site_tells_it(step):
    for level, expected in zip(("loops", "decisions", "all"), UNSIGNED[step]):

        @sg.world(level=level)
        def world(x: sg.State):
            return step(x)

        guards, others = unsigned_lines(world.program)
        assert (len(guards), len(others)) == expected, (level, guards, others)
        assert all(line.startswith("why_test.py:") for line in others)


def test_an_outcome_that_an_event_takes_in_is_told_by_it():
    b = ProgramBuilder("masked", level="loops")
    x = b.state("x")
    inside = x > 1.0
    b.next(x=b.where(b.event("gate", x, ">", 2.0, guard=inside), x, 0.5 * x))
    assert unsigned_lines(sg.World(program=b).program) == ([], [])
