"""What repr says of results: a few lines that fit a terminal."""

import dataclasses

import numpy as np

from simgrad import results
from simgrad.diagnostics import Absorption, AdditionSite, BirthCertificate, EventTrace
from simgrad.diagnostics import TerminationTrace

F32 = results.RoleSetting("f32", "ieee", "pairwise", "f32", "native", "bitwise")
BF16 = results.RoleSetting("bf16", "ieee", "sequential", "f32", "emulated", "bitwise")
POLICY = results.ResolvedPolicy(
    "mixed", {"state": F32, "dynamics": BF16, "adjoint": F32}, {"floor": {"format": "f64"}}, 8.0, "stop"
)
SITES = tuple(f"site_{i}" for i in range(40))
PROGRAM = results.Program("0123456789abcdef" * 4, POLICY, SITES, ("floor",))


def gradient(**changes):
    everything = dict(
        state={"x": np.zeros((3, 2))},
        trajectory={},
        ok=np.array([True, True, False]),
        health=[],
        certificates=[],
        halted=[],
        path_signature=1,
        path_signatures=np.zeros(3, np.uint64),
        value=1 / 3,
        values=np.zeros(3),
        sites=dict.fromkeys(SITES),
        events={},
        states_range={},
        ranges={},
        program=PROGRAM,
        device="cpu",
        server_version="0",
        request_id="r",
        instances=3,
        steps=1,
        seconds={},
        params={"k": np.zeros(())},
        connected={"k": 0, "x": 3, "m": 0},
        gated_by={"k": "floor"},
    )
    return results.Gradient(**{**everything, **changes})


def test_a_policy_groups_the_roles_that_run_alike():
    assert repr(POLICY).splitlines() == [
        "ResolvedPolicy mixed, nonfinite stop, loss scale 8",
        "  f32         pairwise sums in f32: state, adjoint",
        "  bf16        sequential sums in f32: dynamics",
        "  sites       floor {'format': 'f64'}",
    ]


def test_a_policy_tells_how_matrices_are_multiplied_where_it_is_asked_for():
    network = results.RoleSetting(
        *("tf32", "ieee", "pairwise", "f32", "emulated", "bitwise", "toward_zero", "exact")
    )
    policy = results.ResolvedPolicy("f32", {"state": F32, "network": network}, {}, 1.0, "report")
    assert repr(policy).splitlines()[1:] == [
        "  f32         pairwise sums in f32: state",
        "  tf32        pairwise sums in f32, exact products, rounded toward_zero:",
        "              network",
    ]


def test_a_gradient_tells_shapes_health_and_what_is_not_connected():
    lines = repr(gradient()).splitlines()
    assert lines[:3] == [
        "Gradient of 3 instances x 1 step under mixed: 1 not finite",
        "  value       0.333333333",
        "  state       x [3, 2]",
    ]
    assert lines[-2:] == [
        "  params      k []",
        "  unconnected k (gated by floor), m",
    ]
    assert max(map(len, lines)) <= 79 and len(lines) < 12


def test_a_program_is_known_by_its_fingerprint():
    lines = repr(PROGRAM).splitlines()
    assert lines[0] == "Program 0123456789abcdef under mixed" and lines[-1] == "  events      floor"
    assert max(map(len, lines)) <= 79


def test_the_first_certificate_says_where_it_was_born():
    born = BirthCertificate(
        *("forward", 7, "log", "world.py:3", "y", "", "dynamics", "f32", 5, 0, 0, (-1.0,), float("nan")),
        "invalid",
    )
    text = " ".join(repr(gradient(certificates=[born])).split())
    assert " ".join(f"born {born}".split()) in text


def test_halts_tell_how_many_instances_they_ended_where_and_why():
    said = "the solver\n  gave up"
    halted = [
        results.Halted(0, "fell", 9, False, "world.py:4"),
        results.Halted(1, "solve.error", 2, True, "world.py:7", said),
        results.Halted(2, "fell", 4, False, "world.py:4"),
    ]
    text = " ".join(repr(gradient(halted=halted)).split())
    assert (
        "halted 2 instances by fell (world.py:4), first at step 4; 1 instance by solve.error (world.py:7), "
        "first at step 2, with an error: the solver gave up"
    ) in text
    assert "halted" not in repr(gradient())


def columns(dtype, *values):
    return np.array(values, dtype)


def test_a_site_tells_its_runs_and_the_closest_test():
    site = TerminationTrace(
        site="projection",
        runs=columns(np.uint64, 0, 3, 1),
        iterations_min=columns(np.uint32, 0, 2, 5),
        iterations_mean=columns(float, 0.0, 3.0, 5.0),
        iterations_max=columns(np.uint32, 0, 4, 5),
        iterations_histogram=np.zeros((3, 16)),
        reasons=np.array([[0, 0, 0, 0], [2, 1, 0, 0], [0, 0, 0, 0]]),
        counter=columns(np.uint64, 0, 0, 1),
        tested_min=np.zeros(3),
        tested_max=np.zeros(3),
        margin=columns(float, np.inf, 0.5, -0.25),
        margin_instance=columns(np.uint64, 0, 7, 9),
        margin_ulps=columns(float, np.inf, 4.0, -1.0),
        margin_ulps_instance=columns(np.uint64, 0, 7, 9),
        margin_test=np.array(["", "", "small"]),
        histogram=np.zeros((3, 64)),
        nan_margins=np.zeros(3),
        checks=columns(np.uint64, 0, 9, 6),
        near_stopped=np.zeros(3),
        near_continued=np.zeros(3),
        line="world.py:12",
    )
    assert repr(site) == (
        "projection (world.py:12): 4 runs of 2 to 5 iterations, 3.5 on average: converged 2, max_iter 1, "
        "counter 1; closest by -1 ulps at step 2, instance 9, test small"
    )
    site.begins = 40  # the block of a stream
    assert "closest by -1 ulps at step 42, instance 9" in repr(site)
    site.runs = np.zeros(3)
    assert repr(site) == "projection (world.py:12): never ran"


def test_an_event_tells_how_often_and_when_it_held():
    event = EventTrace(
        site="floor",
        checks=columns(np.uint64, 2, 2, 2),
        count=columns(np.uint64, 0, 1, 2),
        changes=columns(np.uint64, 0, 1, 1),
        margin=columns(float, 1.0, np.nan, -2.0),
        margin_instance=columns(np.uint64, 0, 0, 1),
        margin_ulps=columns(float, 8.0, np.nan, -16.0),
        margin_ulps_instance=columns(np.uint64, 0, 0, 1),
        nan_margins=columns(np.uint64, 0, 1, 0),
        kind="membership",
    )
    assert repr(event) == (
        "floor [membership]: 3 of 6 checks true, first at step 1; 2 changes; closest by 8 ulps at step 0, instance 0"
    )
    event.begins = 40
    assert "first at step 41; 2 changes; closest by 8 ulps at step 40, instance 0" in repr(event)
    event.count[:] = 0
    event.margin_ulps[:] = np.inf
    assert repr(event) == "floor [membership]: 0 of 6 checks true; 2 changes"


def test_absorption_tells_the_states_that_stand_still():
    still = Absorption("x", [AdditionSite("dynamics", "w.py:3", 6, 6), AdditionSite("solver", "", 2, 0)])
    moves = Absorption("v", [AdditionSite("dynamics", "w.py:4", 8, 0)])
    assert (still.additions, still.absorbed, still.share) == (8, 6, 0.75)
    assert repr(still) == "x in 75% of 8 additions at sampled steps"
    assert Absorption("none").share == 0.0
    lines = repr(gradient(absorption={"x": still, "v": moves})).splitlines()
    assert "  absorbed    x in 75% of 8 additions at sampled steps" in lines


def test_a_role_that_saturates_says_so():
    saturating = dataclasses.replace(F32, overflow="saturate")
    policy = results.ResolvedPolicy("f32", {"state": saturating, "event": F32}, {}, 1.0, "report")
    assert "saturating: state" in repr(policy) and "saturating: event" not in repr(policy)
