"""The bouncing ball against its closed form (tests/data/published.json, ball_analytic)."""

import math

import numpy as np
import pytest

import simgrad as sg

T_END = 15.0


def fall(client, published, contact, h, gradient=True):
    setting = published["ball_analytic"]["setting"]
    call = client.gradient if gradient else client.rollout
    return call(
        sg.World("bouncing_ball", contact=contact),
        steps=round(T_END / h),
        policy="f64",
        initial={"y": [setting["x0"]], "v": [setting["v0"]]},
        objective="final_height",
        params={"g": setting["g"], "restitution": setting["restitution"], "h": h, "k": 1.0},
        diagnostics="off",
    )


# Free flight is integrated exactly by toi, so the only error is rounding: 1500 steps of f64.
@pytest.mark.parametrize("h", [0.01, 0.05])
def test_time_of_impact_reproduces_height_and_gradients(client, published, h):
    expect = published["ball_analytic"]["expect"]
    g = fall(client, published, "toi", h)
    assert g.value == pytest.approx(expect["height_at_end"], rel=1e-9)
    assert float(g.params["restitution"]) == pytest.approx(
        expect["d_height"]["restitution"], rel=1e-9
    )
    assert float(g.params["g"]) == pytest.approx(expect["d_height"]["g"], rel=1e-9)
    assert float(g.initial["y"][0]) == pytest.approx(expect["d_height"]["x0"], rel=1e-9)


def test_time_of_impact_finds_the_published_bounces(client, published):
    setting, expect = published["ball_analytic"]["setting"], published["ball_analytic"]["expect"]
    r = client.rollout(
        sg.World("bouncing_ball", contact="toi"),
        steps=1500,
        policy="f64",
        initial={"y": [setting["x0"]], "v": [setting["v0"]]},
        params={"g": setting["g"], "restitution": setting["restitution"]},
    )
    steps = np.flatnonzero(r.events["contact"].count)
    assert steps.tolist() == [math.floor(t / 0.01) for t in expect["bounce_times"]]
    assert r.events["contact"].first_step.tolist() == [steps[0]]


def test_projection_converges_in_the_height_at_first_order(client, published):
    """The impact is found up to one step, and the ball moves at up to v = sqrt(2 g x0) = 31 then:
    each of three impacts costs at most about v h (1 + restitution), scattered with the phase of the
    impact in its step.
    """
    exact = published["ball_analytic"]["expect"]["height_at_end"]
    sizes = np.array([0.01, 0.005, 0.0025, 0.00125, 0.000625])
    errors = np.array(
        [abs(fall(client, published, "projection", h, gradient=False).value - exact) for h in sizes]
    )
    assert (errors <= 3 * 31.3 * 1.8 * sizes).all()
    order = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    # Scatter of a factor 2 either way in the constant, over a range of 16 in h: +- 0.35 in the
    # slope.
    assert 0.65 < order < 1.6


def frozen_limits(setting, times):
    """d height by restitution e and by g for h to 0, along the frozen path of projection contact.

    The times of impact do not move, and at an impact y is set to 0, so only the velocity carries
    on: with s the speed before an impact and D the time since the last one, v+ = e s, ds = -(dv+
    before) + (D for g), and dv+ = e ds + (s for e). At the end y = v+ D - g D^2 / 2.
    """
    e, speed, last = setting["restitution"], math.sqrt(2 * setting["g"] * setting["x0"]), 0.0
    by_e = by_g = 0.0
    for time in times:
        by_e = speed - e * by_e
        by_g = e * (time - last - by_g)
        speed, last = e * speed, time
    rest = setting["t_end"] - last
    return by_e * rest, by_g * rest - rest**2 / 2


def test_frozen_path_gradients_of_projection_have_limits_of_their_own(client, published):
    """The truth is 314.57 by restitution, -7.28 by g and 1.596 by x0. docs/numerics.md section
    9."""
    setting, expect = published["ball_analytic"]["setting"], published["ball_analytic"]["expect"]
    by_e, by_g = frozen_limits(setting, expect["bounce_times"])
    assert by_e == pytest.approx(52.2, abs=0.05)
    errors = []
    for h in (0.01, 0.0025, 0.000625):
        g = fall(client, published, "projection", h)
        errors.append(abs(float(g.params["restitution"]) - by_e))
        # First order, with the constants of the height: speeds of 31 and times of 15 over three
        # impacts.
        assert errors[-1] <= 60 * h
        assert abs(float(g.params["g"]) - by_g) <= 60 * h
        assert float(g.initial["y"][0]) == 0.0  # y is set to 0 at the first impact
    assert errors[-1] < errors[0] / 4
    assert abs(by_e - expect["d_height"]["restitution"]) > 250
