"""HTTP/2 by hand: what a client library would never send."""

import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(path, **more):
    """A block of literals that are added to no table; lengths below 127."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    block = b""
    for name, value in fields.items():
        block += b"\x00" + bytes([len(name)]) + name.encode()
        block += bytes([len(value)]) + value.encode()
    return block


class Connection:
    """Speaks HTTP/2 so far that a server lets it send; what comes is read and kept by a thread."""

    def __init__(self, port, host="127.0.0.1", source=None, wrap=None, keep=True):
        where = (source, 0) if source else None
        self.socket = socket.create_connection((host, port), timeout=30, source_address=where)
        if wrap:
            self.socket = wrap(self.socket)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.received = bytearray()
        self.bytes_received = 0
        self.ended = threading.Event()
        self.streams_ended = set()  # by the server
        self.stream_window = 65535  # of each stream; grown by what the server says
        self.windows = {}
        self.window = 65535
        self.grown = threading.Condition()
        self._keep = keep
        self._next = 1
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        pending = bytearray()
        try:
            while data := self.socket.recv(1 << 16):
                self.bytes_received += len(data)
                if self._keep:
                    self.received += data
                pending += data
                self._take_frames(pending)
        except OSError:
            pass
        self.ended.set()
        with self.grown:
            self.grown.notify_all()

    def _take_frames(self, pending):
        while len(pending) >= 9:
            length = int.from_bytes(pending[:3], "big")
            if len(pending) < 9 + length:
                return
            kind, flags, stream = pending[3], pending[4], int.from_bytes(pending[5:9], "big")
            payload = bytes(pending[9 : 9 + length])
            del pending[: 9 + length]
            if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
                self.streams_ended.add(stream)
            with self.grown:
                if kind == WINDOW_UPDATE:
                    more = int.from_bytes(payload, "big")
                    if stream == 0:
                        self.window += more
                    else:
                        self.windows[stream] = self.windows.get(stream, 0) + more
                elif kind == SETTINGS and not flags & ACK:
                    for at in range(0, length, 6):
                        if int.from_bytes(payload[at : at + 2], "big") == 4:
                            self.stream_window = int.from_bytes(payload[at + 2 : at + 6], "big")
                self.grown.notify_all()
            if kind == SETTINGS and not flags & ACK:
                self.send(frame(SETTINGS, ACK, 0))
            if kind == PING and not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))

    def send(self, data):
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def new_stream(self):
        stream = self._next
        self._next += 2
        return stream

    def start(self, path, **more):
        """Opens a call and leaves it open."""
        stream = self.new_stream()
        self.send(frame(HEADERS, END_HEADERS, stream, headers(path, **more)))
        return stream

    def upload(self, stream, data, timeout=30.0):
        """Sends data within the windows that the server grants; how much of it was sent."""
        sent = 0
        while sent < len(data):
            with self.grown:
                room = min(
                    16384,
                    self.window,
                    self.stream_window + self.windows.get(stream, 0),
                    len(data) - sent,
                )
                if self.ended.is_set():
                    return sent
                if room <= 0:
                    if not self.grown.wait(timeout):
                        return sent
                    continue
                self.window -= room
                self.windows[stream] = self.windows.get(stream, 0) - room
            if not self.send(frame(DATA, 0, stream, data[sent : sent + room])):
                return sent
            sent += room
        return sent

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()
