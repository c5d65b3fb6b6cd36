"""Fields of an answer that travel in pieces."""

from __future__ import annotations

from simgrad.v1 import simgrad_pb2


class Pieces:
    """Takes the pieces of one answer in their order."""

    def __init__(self) -> None:
        self._fields: dict[str, bytearray] = {}
        self._open: set[str] = set()  # fields whose last piece has not come

    def take(self, piece: simgrad_pb2.TensorPiece) -> None:
        buffer = self._fields.setdefault(piece.field, bytearray())
        if piece.offset != len(buffer):
            raise ValueError(
                f"a piece of {piece.field} at {piece.offset} follows one that ends at {len(buffer)}"
            )
        buffer += piece.data
        (self._open.discard if piece.last else self._open.add)(piece.field)

    def check_complete(self) -> None:
        if self._open:
            raise ValueError(f"the result came before the last piece of {min(self._open)}")

    def content(self, field: str, inline: bytes) -> bytes:
        """The content of a field: `inline`, or its pieces if that is empty."""
        return inline or bytes(self._fields.get(field, b""))

    def health(self, inline: simgrad_pb2.InstanceHealth) -> simgrad_pb2.InstanceHealth:
        if "health" in self._fields:
            return simgrad_pb2.InstanceHealth.FromString(bytes(self._fields["health"]))
        return inline
