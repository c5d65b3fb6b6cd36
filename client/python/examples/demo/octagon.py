"""Section 2: two orders of one sum."""

import numpy as np
from page import heading, paragraph, table

import simgrad as sg

TOLERANCE = 2.0**-10
PENETRATION = np.array(
    [TOLERANCE - 2.0**-21] + 4 * [2.0**-23]
)  # in exact arithmetic the sum is the tolerance


def show(client: sg.Client) -> None:
    heading("2. Octagon: two orders of one sum")
    paragraph(
        """A solver stops when the sum of five penetrations is below a tolerance. The exact sum is
        the tolerance itself. Both runs below add the same five f16 numbers, one from the left
        and one from the right. From the left each small number is rounded away; from the right
        they first add up to something that counts. One order stops, the other runs another
        iteration: another program."""
    )
    world = sg.World("boundary_projection", elements=5, tol=TOLERANCE)
    rows = []
    for order in ("sequential", "reversed"):
        r = client.rollout(
            world,
            steps=1,
            initial={"y": -PENETRATION},
            params={"k": 0.5},
            policy=sg.Policy("f16_unsafe").role("termination", order=order),
            diagnostics="instances",
        )
        site = r.sites["projection"]
        first = site.values[0][0][0]
        rows.append(
            [
                order,
                f"{first:.13g}",
                f"{TOLERANCE:.13g}",
                "yes" if first < TOLERANCE else "no",
                int(site.iterations[0, 0]),
                f"{r.path_signature:016x}",
            ]
        )
    table(
        ["order", "first sum", "tolerance", "stops at once", "iterations", "path signature"], rows
    )
