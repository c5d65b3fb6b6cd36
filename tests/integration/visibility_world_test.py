"""simgrad.worlds.visibility against the area of a disc in a square, which has a closed form, and so have its
derivatives.

Noise is measured over instances, and four of its standard deviations are allowed; draws hang on the
seed alone, so a test that passes once passes always.
"""

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg

POINTS, INSTANCES, STEPS, H = 256, 2048, 4, 0.1
RADIUS, START = 0.35, 0.3


def area(gap, radius=RADIUS):
    """Of a disc whose centre is `gap` from one edge of the square, and farther than the radius from others."""
    gap = np.minimum(gap, radius)
    return np.pi * radius**2 - radius**2 * np.arccos(gap / radius) + gap * np.sqrt(radius**2 - gap**2)


def by_gap(gap, radius=RADIUS):
    """The derivative of `area`: the chord that the edge cuts."""
    return 2 * np.sqrt(np.maximum(radius**2 - gap**2, 0))


def by_radius(gap, radius=RADIUS):
    """The derivative of `area`: the arc inside."""
    return 2 * radius * (np.pi - np.arccos(np.minimum(gap, radius) / radius))


def moved(velocity, start=START):
    """Distances of the centre from the edge at 0, behind each step."""
    return start + H * velocity * np.arange(1, STEPS + 1)


def inputs(velocity=0.0, start=START, radius=RADIUS, width=0.04, instances=INSTANCES, **options):
    return {
        "steps": STEPS,
        "policy": "f64",
        "seed": 11,
        "initial": {"centre": np.tile([start, 0.5], (instances, 1))},
        "params": {"velocity": [velocity, 0.0], "radius": radius, "width": width},
        **options,
    }


@pytest.fixture(scope="module")
def world():
    return sg.worlds.visibility(POINTS, h=H)


def test_the_closed_forms_are_derivatives_of_one_another():
    for gap in (0.05, 0.2, 0.34):
        slope = (area(gap + 1e-6) - area(gap - 1e-6)) / 2e-6
        assert by_gap(gap) == pytest.approx(slope, rel=1e-6)
        slope = (area(gap, RADIUS + 1e-6) - area(gap, RADIUS - 1e-6)) / 2e-6
        assert by_radius(gap) == pytest.approx(slope, rel=1e-6)
    assert area(RADIUS) == pytest.approx(np.pi * RADIUS**2) and area(0.0) == pytest.approx(
        np.pi * RADIUS**2 / 2
    )


@pytest.mark.parametrize("velocity, start", [(0.0, 0.5), (-0.5, 0.4), (1.0, 0.0)])
def test_a_hard_edge_covers_the_area(client, world, velocity, start):
    r = client.rollout(world, record=["hard"], **inputs(velocity, start))
    exact = area(moved(velocity, start))
    noise = np.sqrt(exact * (1 - exact) / (POINTS * INSTANCES))
    found = r.trajectory["hard"]
    assert np.all(abs(found.mean(axis=0) - exact) < 4 * noise)
    # And the noise is that of independent points, in instances and in steps.
    assert np.all(abs(found.std(axis=0) / (noise * np.sqrt(INSTANCES)) - 1) < 0.1)
    assert abs(np.corrcoef(found.T)[0, 1]) < 4 / np.sqrt(INSTANCES)
    covered = r.events["covered"]
    assert covered.kind == "membership" and "visibility.py" in covered.line


def test_the_gradient_of_a_hard_edge_is_0_while_its_mean_moves(client, world):
    velocity, by = -0.2, 0.01
    g = client.gradient(world, objective="hard_coverage", **inputs(velocity))
    for name, found in {**g.params, **g.initial}.items():
        assert not np.any(found) and g.zero_share[name] == 1, name
    # The same points seen by discs that are moved a little, and back, or are a little larger, and smaller.
    gaps = moved(velocity)
    for change, exact in (
        (lambda e: {"start": START + e}, by_gap(gaps).sum()),
        (lambda e: {"radius": RADIUS + e}, by_radius(gaps).sum()),
    ):
        high, low = (
            client.rollout(world, objective="hard_coverage", **inputs(velocity, **change(e)))
            for e in (by, -by)
        )
        assert high.path_signature != low.path_signature
        slopes = (high.values - low.values) / (2 * by)
        noise = slopes.std() / np.sqrt(INSTANCES)
        assert noise < 0.02 * exact and abs(slopes.mean() - exact) < 4 * noise


def test_a_soft_edge_has_a_bias_of_second_order_in_its_width(client, world):
    """pi^3/3 width^2 for a disc that is far from the edges: A'' = 2 pi."""
    biases = {}
    for width in (0.04, 0.02):
        work = inputs(0.0, 0.5, 0.25, width, record=["hard", "soft"])
        r = client.rollout(world, **work)
        paired = (r.trajectory["soft"] - r.trajectory["hard"]).ravel()  # of the same points
        noise = paired.std() / np.sqrt(paired.size)
        expected = np.pi**3 / 3 * width**2
        assert noise < 0.03 * expected and abs(paired.mean() - expected) < 4 * noise
        biases[width] = paired.mean()
    assert 3.6 < biases[0.04] / biases[0.02] < 4.4


def chords(gap, radius):
    """What the edges left and right of the centre cut from discs in the middle between the other two."""
    left, right = (
        2 * np.minimum(np.sqrt(np.maximum(radius**2 - d**2, 0)), 0.5) for d in (gap, 1 - gap)
    )
    return left - right


def of_soft_edge(gap, width):
    """The mean of chords over radii, which lie around the disc's as the sigmoid says."""
    radii = np.linspace(0, RADIUS + 40 * width, 200_001)
    weight = 1 / np.cosh((RADIUS - radii) / (2 * width)) ** 2
    return np.sum(weight * chords(gap, radii)) / np.sum(weight)


def test_its_gradient_has_that_order_too(client, world):
    """By the position of a disc that an edge cuts: pi^2/6 width^2 times the chord's second derivative by the
    radius, which is -2 gap^2 / (radius^2 - gap^2)^(3/2)."""
    gap = 0.2
    exact = {w: of_soft_edge(gap, w) - by_gap(gap) for w in (0.06, 0.03, 0.01, 0.005)}
    biases = {}
    for width in (0.06, 0.03):
        g = client.gradient(world, objective="soft_coverage", **inputs(0.0, gap, width=width))
        slopes = g.initial["centre"][:, 0] / STEPS
        noise = slopes.std() / np.sqrt(INSTANCES)
        biases[width] = slopes.mean() - by_gap(gap)
        assert abs(biases[width] - exact[width]) < 4 * noise < abs(exact[width])
    assert 3 < biases[0.06] / biases[0.03] < 6
    leading = -np.pi**2 / 3 * gap**2 / (RADIUS**2 - gap**2) ** 1.5
    assert exact[0.005] == pytest.approx(leading * 0.005**2, rel=0.01)
    assert exact[0.01] / exact[0.005] == pytest.approx(4, rel=0.03)


def test_soft_gradients_agree_with_central_differences(client, world):
    given = inputs(-0.4, instances=3, objective="soft_coverage")
    g = client.gradient(world, **given)

    def slope(kind, name, direction):
        by = 1e-6
        high, low = (
            client.rollout(
                world,
                **{**given, kind: {**given[kind], name: given[kind][name] + e * direction}},
            ).value
            for e in (by, -by)
        )
        return (high - low) / (2 * by)

    for name, direction in {"velocity": [0.3, 0.8], "radius": 1.0, "width": 1.0}.items():
        direction = np.asarray(direction)
        found = np.sum(g.params[name] * direction)
        assert found == pytest.approx(slope("params", name, direction), rel=1e-6), name
    direction = np.array([[1.0, -0.5], [0.2, 0.7], [-0.3, 0.1]])
    found = np.sum(g.initial["centre"] * direction)
    assert found == pytest.approx(slope("initial", "centre", direction), rel=1e-6)


def test_checkpoints_chunks_and_batches_change_no_bit(client, world):
    def run(rows=slice(None), **options):
        given = inputs(-0.4, instances=5, objective="soft_coverage", record=["hard", "soft"])
        given["initial"] = {"centre": given["initial"]["centre"][rows]}
        return client.gradient(world, **given, **options)

    whole = run()
    for options in ({"checkpoint_interval": 1}, {"checkpoint_interval": 3}, {"chunk_steps": 1}):
        assert not differences(whole, run(**options), diagnostics="chunk_steps" not in options)
    alone = run(slice(2, 3), first_instance=2)
    for name in ("hard", "soft"):
        assert alone.trajectory[name][0].tobytes() == whole.trajectory[name][2].tobytes()
    assert alone.initial["centre"][0].tobytes() == whole.initial["centre"][2].tobytes()


def test_no_points_are_refused():
    with pytest.raises(ValueError, match="points 0: at least 1"):
        sg.worlds.visibility(0)
