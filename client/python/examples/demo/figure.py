"""Section 5, the picture: losses, iterations and margins of the three training runs."""

import os

import numpy as np
from depressurization import SETTINGS, STEPS
from training import START_K, Run, batch

import simgrad as sg


def draw(client: sg.Client, runs: dict[str, Run], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, (losses, iterations, margins) = pyplot.subplots(
        1, 3, figsize=(15, 4.2), constrained_layout=True
    )
    styles = {
        "f32": dict(linewidth=4, alpha=0.5),
        "bf16_unsafe": {},
        "bf16_safe": dict(linestyle="--"),
    }
    bins = np.linspace(-0.012, 0.02, 65)  # of the tolerance
    for preset, run in runs.items():
        losses.semilogy(run.losses, label=preset, **styles[preset])
        iterations.plot(run.solver_iterations, label=preset, **styles[preset])
        margins.hist(first_margins(client, preset), bins=bins, label=preset, alpha=0.6)
    losses.set(title="loss", xlabel="gradient step", ylabel="mean squared penetration")
    iterations.set(
        title="solver iterations at step 0", xlabel="gradient step", ylabel="mean over instances"
    )
    margins.set(
        title="first tested sum minus tolerance", xlabel="margin / tolerance", ylabel="instances"
    )
    margins.axvline(0, color="black", linewidth=1)
    for axes in (losses, iterations, margins):
        axes.legend()
    fig.savefig(path, dpi=110)
    pyplot.close(fig)
    print(f"\n  Losses, iterations and margins: {os.path.abspath(path)}")


def first_margins(client: sg.Client, preset: str) -> np.ndarray:
    """Of each instance at step 0: the first tested sum, relative to the tolerance."""
    tolerance = SETTINGS["bf16"][0]
    world = sg.World("boundary_projection", elements=9, tol=tolerance)
    r = client.rollout(
        world,
        steps=STEPS,
        initial={"y": batch()},
        params={"k": START_K},
        policy=preset,
        diagnostics="instances",
    )
    return np.array([tested[0] for tested in r.sites["projection"].values[0]]) / tolerance - 1
