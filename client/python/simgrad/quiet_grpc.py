"""Imports gRPC so that it writes nothing on standard error.

Else it writes a line there when a server ends in order. It reads GRPC_VERBOSITY when it is imported: a
value that is set (DEBUG, INFO, ERROR) is left as it is, and ours is taken back, so that processes that
this one starts do not inherit it.
"""

import os

if "GRPC_VERBOSITY" in os.environ:
    import grpc
else:
    os.environ["GRPC_VERBOSITY"] = "NONE"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ["GRPC_VERBOSITY"]
