"""The demo: what a numerical setting does to a world, with numbers from a running server.

usage: python client/python/examples/demo --target HOST:PORT --metrics HOST:PORT --figure FILE.png
scripts/demo builds, starts a server and runs this.
"""

import argparse
import sys

import connection
import depressurization
import figure
import hopper
import metrics
import octagon
import restitution
import training

import simgrad as sg


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--target", default="localhost:8001", help="gRPC host:port (default %(default)s)"
    )
    parser.add_argument(
        "--metrics", default="localhost:8002", help="metrics host:port (default %(default)s)"
    )
    parser.add_argument("--figure", default="simgrad_demo.png", help="where the picture goes")
    options = parser.parse_args()
    before = metrics.scrape(options.metrics)
    with sg.Client(options.target) as client:
        connection.show(client)
        octagon.show(client)
        depressurization.show(client)
        hopper.show(client)
        runs = training.show(client)
        restitution.show(client)
        figure.draw(client, runs, options.figure)
    metrics.show(before, metrics.scrape(options.metrics))
    return 0


if __name__ == "__main__":
    sys.exit(main())
