"""Section 3: a sum on a termination boundary, and what it does to a gradient."""

import numpy as np
from page import heading, paragraph, table

import simgrad as sg

# By format: the tolerance; one penetration an ulp or so below it; eight that make the exact sum the
# tolerance.
SETTINGS = {
    "bf16": (float.fromhex("0x1.06p-10"), float.fromhex("0x1.04p-10"), 2.0**-20),
    "f16": (float.fromhex("0x1.064p-10"), float.fromhex("0x1.06p-10"), 2.0**-23),
}
STEPS = 4


def policies(low: str) -> dict[str, sg.Policy]:
    chosen = {
        "f32": sg.Policy("f32"),
        f"{low}_unsafe": sg.Policy(f"{low}_unsafe"),
        f"{low}_safe": sg.Policy(f"{low}_safe").loss_scale(1),
    }
    if low == "f16":
        chosen["f16_safe, loss scale 65536"] = sg.Policy("f16_safe").loss_scale(65536)
    return chosen


def parting(a: sg.Rollout, b: sg.Rollout) -> str:
    """First step and site at which two rollouts of one instance decided differently."""
    for step in range(a.steps):
        for name in a.sites:
            x, y = a.sites[name], b.sites[name]
            if (x.iterations[step, 0], x.instance_reasons[step, 0]) != (
                y.iterations[step, 0],
                y.instance_reasons[step, 0],
            ):
                return f"step {step}, {name}"
        for name in a.events:
            if a.events[name].count[step] != b.events[name].count[step]:
                return f"step {step}, {name}"
    return "never"


def show(client: sg.Client) -> None:
    heading("3. Depressurization: the iteration that went missing")
    paragraph(
        """Nine penetrations whose exact sum is the tolerance, corrected by a loop with gain k,
        over four steps. In f32 the loop runs once at the first step, and the value depends on
        k. With everything in the low format the sum loses its small terms, the loop stops at
        once, and k is no longer part of the program: its gradient is not small, it is absent.
        Testing in f32 (safe) brings the path and the gradient back. In f16 the gradient then
        lies where f16 has one bit left; a loss scale lifts it."""
    )
    for low, (tolerance, large, small) in SETTINGS.items():
        world = sg.World("boundary_projection", elements=9, tol=tolerance)
        start = -np.array([large] + 8 * [small])
        rows, reference = [], None
        for name, policy in policies(low).items():
            g = client.gradient(
                world,
                steps=STEPS,
                initial={"y": start},
                params={"k": 0.5},
                policy=policy,
                objective="final_penetration",
                diagnostics="instances",
            )
            reference = reference or g
            site = g.sites["projection"]
            rows.append(
                [
                    name,
                    " ".join(str(n) for n in site.iterations[:, 0]),
                    f"{min(site.margin_ulps, key=abs):+.4g}",
                    f"{g.value:.4e}",
                    f"{float(g.params['k']):+.4e}" if g.connected["k"] else "none",
                    "yes" if g.connected["k"] else f"no, {g.gated_by['k']}",
                    f"{g.path_signature:016x}",
                    parting(reference, g),
                ]
            )
        print(f"  Low format {low}:")
        table(
            [
                "policy",
                "iterations",
                "margin (ulps)",
                "value",
                "gradient of k",
                "k connected",
                "path signature",
                "parts from f32 at",
            ],
            rows,
        )
        print()
