"""The flags that the server of this build knows, and those that the deployment speaks of already."""

import re
import subprocess

from live_server import BINARY

# A test fails where the server has learnt one and it still stands here.
EXPECTED = {
    "allow_insecure": "comes with TLS",
    "allow_insecure_metrics": "comes with TLS",
    "health_port": "comes with TLS",
    "healthcheck": "comes with TLS",
    "kernel_cache": "comes with the CUDA executor",
    "max_connection_age": "comes with TLS",
    "reflection": "comes with TLS",
    "tls_certificate": "comes with TLS",
    "tls_client_ca": "comes with TLS",
    "tls_key": "comes with TLS",
    "token_file": "comes with TLS",
    "validate_config": "comes with TLS",
    "warm": "comes with the CUDA executor",
}


def server_flags():
    """Names of the flags that --help lists."""
    done = subprocess.run([str(BINARY), "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"(?m)^\s+--(\w+)", done.stdout))


def known_flags():
    return server_flags() | EXPECTED.keys()
