"""The reasons of errors: the enum of the protocol, the page and the server name the same."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def test_the_enum_the_page_and_the_server_name_the_same_reasons():
    proto = (ROOT / "proto/simgrad/v1/error_details.proto").read_text()
    (enum,) = re.findall(r"enum Reason \{(.*?)\}", proto, re.DOTALL)
    declared = set(re.findall(r"(\w+) = \d+;", enum)) - {"REASON_UNSPECIFIED"}
    page = (ROOT / "docs/protocol.md").read_text()
    told = set(re.findall(r"^\| `[A-Z_]+` \| `([A-Z_]+)` \|", page, re.MULTILINE))
    code = (ROOT / "server/service/error_status.cc").read_text()
    given = set(re.findall(r'(?:reason = |return |[?:] )"([A-Z_]+)"', code))
    assert declared == told
    assert {"QUEUE_FULL", "CALLER_LIMIT", "DRAINING"} <= given <= declared
