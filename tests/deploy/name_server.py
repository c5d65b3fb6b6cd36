"""A DNS server on loopback that answers every name with the addresses that it was told."""

import contextlib
import ipaddress
import socket
import struct
import threading

ADDRESS_RECORD, INTERNET = 1, 1
ANSWER, RECURSION = 0x8000, 0x0180  # flags of a response


class NameServer:
    """UDP alone; other types than A get an answer without records."""

    def __init__(self, *addresses: str):
        self.addresses = list(addresses)
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                query, peer = self._socket.recvfrom(4096)
                self._socket.sendto(self._answer(query), peer)

    def _answer(self, query: bytes) -> bytes:
        end = query.index(b"\0", 12) + 5  # the name, its type and its class
        kind, _ = struct.unpack("!HH", query[end - 4 : end])
        found = list(self.addresses) if kind == ADDRESS_RECORD else []
        self.asked += kind == ADDRESS_RECORD
        head = query[:2] + struct.pack("!HHHHH", ANSWER | RECURSION, 1, len(found), 0, 0)
        records = [
            struct.pack("!HHHIH", 0xC00C, ADDRESS_RECORD, INTERNET, 0, 4)
            + ipaddress.ip_address(address).packed
            for address in found
        ]
        return head + query[12:end] + b"".join(records)

    def stop(self):
        self._socket.close()
