"""Section 1: who answers."""

from page import heading, paragraph, table

import simgrad as sg


def show(client: sg.Client) -> None:
    info = client.info()
    device = info.devices[0]
    heading("1. The server")
    paragraph("""A server is up. It runs worlds, differentiates the program that ran, and says what
        happened at every step. Everything below is computed by it.""")
    table(
        ["what", "value"],
        [
            ["version", info.version],
            [
                "device",
                f"{device.kind}, {device.name}, {device.threads} threads, {device.instruction_set}",
            ],
            ["gRPC", client.target],
            ["metrics port", info.metrics_port],
            ["worlds", ", ".join(info.worlds)],
        ],
    )
