"""One world under three policies: who iterates, who learns.

usage: compare_policies.py [TARGET]      (default localhost:8001)
"""

import sys

import numpy as np

import simgrad as sg

# Nine penetrations whose exact sum is the tolerance; in bf16 the eight small ones are lost.
TOLERANCE = float.fromhex("0x1.06p-10")
START = -np.array([float.fromhex("0x1.04p-10")] + 8 * [2.0**-20])


def main(target: str = "localhost:8001") -> None:
    world = sg.World("boundary_projection", elements=9, tol=TOLERANCE)
    with sg.Client(target) as client:
        for preset in ("f32", "bf16_unsafe", "bf16_safe"):
            g = client.gradient(
                world,
                steps=4,
                initial={"y": START},
                params={"k": 0.5},
                objective="final_penetration",
                policy=preset,
            )
            site = g.sites["projection"]
            print(
                f"{preset:12} iterations {site.iterations_max.tolist()}  value {g.value:.4e}  "
                f"gradient of k {float(g.params['k']):+.4e}  connected {g.connected['k']} "
                f"{g.gated_by['k'] and 'gated by ' + g.gated_by['k']}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
