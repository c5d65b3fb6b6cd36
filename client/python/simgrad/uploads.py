"""Content that one server keeps for this client, so that large constants travel once."""

from __future__ import annotations

import collections
import hashlib
import numbers
import threading
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import grpc

from simgrad import named_programs
from simgrad.clock import Clock
from simgrad.repeating import Call
from simgrad.v1 import simgrad_pb2
from simgrad.variants import parts_with_world, reference_of

DEFAULT_LEAST = 1 << 20  # bytes; sending less costs hardly more than asking whether it is there
_PIECE = 1 << 20  # bytes of one message of an upload, where the server takes so much
_GLANCE = 4096  # bytes at either end of content that tell it from other content of the same name
_MOST_KNOWN = 4096  # digests and names that are remembered, of each sort
# Seconds until content is uploaded again that a server had no memory for: from the first, twice as
# many after each refusal, to the last, which is how long a server keeps content by default.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0

Metadata = Sequence["tuple[str, str]"]


class Least(NamedTuple):
    """The bytes above which content is uploaded.

    Attributes:
      tensors: of a tensor. programs: of a program, which comes again where it comes twice.
    """

    tensors: int
    programs: int


def least_of(upload: Any) -> Least | None:
    """The argument `upload` of a client; None: nothing is uploaded."""
    if upload is True or (isinstance(upload, str) and upload == "auto"):
        return Least(DEFAULT_LEAST, named_programs.LEAST)
    if upload is False or upload is None:
        return None
    if isinstance(upload, numbers.Integral) and int(upload) > 0:
        return Least(int(upload), int(upload))
    raise ValueError(
        f'upload {upload!r}: "auto" (or True), False (or None), or a whole number of bytes, at least 1, '
        "above which content is uploaded"
    )


class _Part(NamedTuple):
    """A tensor or the program of a request: what it is called, its content, and what names it instead.

    Attributes:
      refer: refer(copy, digest) puts the digest in the place of the content in a copy of the request; a program is named
        there already. sha256: of a program; None: of a tensor.
    """

    name: str
    content: bytes
    refer: Callable[[Any, bytes], None] = lambda copy, digest: None
    sha256: bytes | None = None


class Plan(NamedTuple):
    """The parts of one try that are named, with their digests.

    Attributes:
      uploads: whether one of them must be uploaded first.
    """

    named: list[tuple[_Part, bytes]]
    uploads: bool


class Uploads:
    """Sends requests to one server, naming what the server has instead of sending it again.

    A tensor that is larger than `least` is uploaded when an input of its name is sent for the first time,
    and from then on named by its SHA-256. What comes under that name later and is other content is sent
    whole, as it may be other content each time; it is uploaded when it comes for the third time. A program is
    uploaded when it comes for the second time; one that is larger than `least.tensors` as a tensor is, at the first
    time. A server that has lost content is given it again. What it has no memory for, or loses twice within ten
    minutes, is sent whole, and uploaded when it comes again some seconds later; what it refuses for another reason is
    sent whole from then on. Results have the same bits either way.

    Args:
      upload: the method of the server's stub, of which `future` is called.
      least: None: everything is sent whole.
    Threads: safe. Cost: for each request that names a tensor, its SHA-256, where it is not new, and a copy of the
      request; a copy of one that names a program which is sent whole.
    """

    def __init__(self, upload: Any, least: Least | None, clock: Clock):
        self.least = least
        self._upload = upload
        self._clock = clock
        self._names = _Recent()
        self._glances = _Recent()
        self._sent = _Recent()  # digests of what was sent, whole or in an upload
        self._kept = _Recent()  # digests, as the next
        self._refused = _Recent()
        self._pauses: collections.OrderedDict[bytes, tuple[float, float]] = collections.OrderedDict()
        self._lost: collections.OrderedDict[bytes, float] = collections.OrderedDict()  # when it was lost last
        self._lock = threading.Lock()

    def may_name_program(self, message: Any) -> bool:
        """Whether a request names a program that may be uploaded now, or is there: one that came before."""
        if self.least is None:
            return False
        with self._lock:
            sent = [found for found in named_programs.held(message) if found.sha256 in self._sent]
        return any(len(found.content) > self.least.programs for found in sent)

    def plan(self, message: Any, call: Call, limits: simgrad_pb2.Limits | None) -> Plan:
        """Chooses the parts that a try of the call names, of those that it may and that the server takes."""
        named: list[tuple[_Part, bytes]] = []
        uploads = False
        if limits is None:
            self._note_programs(message)
        if self.least is not None and call.may_name and limits and limits.max_upload_bytes:
            for part in _parts(message, self.least, limits.max_upload_bytes):
                is_program = part.sha256 is not None
                digest = self._program_to_name(part) if is_program else self._digest_to_name(part)
                if digest is not None:
                    named.append((part, digest))
                    with self._lock:
                        uploads = uploads or digest not in self._kept
        return Plan(named, uploads)

    def send(
        self,
        method: Any,
        message: Any,
        call: Call,
        left: float,
        metadata: Metadata,
        limits: simgrad_pb2.Limits | None,
        plan: Plan | None = None,
    ) -> Any:
        """Calls a method, by reference where it may be, once the server has what is named.

        Args:
          left: seconds for all of it.
          plan: of this try; None: made here.
        Errors: Cancelled where the call was cancelled during an upload.
        """
        end = self._clock.now() + left
        outgoing = message
        digests: list[bytes] = []
        for part, digest in (plan or self.plan(message, call, limits)).named:
            assert limits is not None
            if not self._is_there(part, digest, call, metadata, limits, end):
                continue
            if part.sha256 is None and outgoing is message:
                outgoing = _copy(message)
            part.refer(outgoing, digest)
            digests.append(digest)
        if named_programs.has_any(outgoing, digests):
            outgoing = _copy(message) if outgoing is message else outgoing
            named_programs.put_whole(outgoing, digests)
        call.named = bool(digests)
        call.on_lost = lambda: self._forget(digests)
        return method(outgoing, timeout=max(end - self._clock.now(), 0.0), metadata=metadata)

    def _note_programs(self, message: Any) -> None:
        """Remembers programs that are sent before it is known what the server takes."""
        with self._lock:
            for found in named_programs.held(message):
                self._sent.add(found.sha256)

    def _program_to_name(self, part: _Part) -> bytes | None:
        """The SHA-256 of a program that the server has, or should be given. None: it is sent whole."""
        digest = part.sha256
        assert digest is not None and self.least is not None
        with self._lock:
            if digest in self._kept:
                return digest
            is_new = self._sent.add(digest)
            is_first = self._names.add(part.name) and len(part.content) > self.least.tensors
            return None if (is_new and not is_first) or self._is_refused(digest) else digest

    def _is_refused(self, digest: bytes) -> bool:
        """Whether the server does not take it, or had no memory for it a short time ago; under the lock."""
        until, _ = self._pauses.get(digest, (0.0, 0.0))
        return digest in self._refused or (digest in self._pauses and self._clock.now() < until)

    def _digest_to_name(self, part: _Part) -> bytes | None:
        """The digest of what the server has, or should be given. None: it is sent whole."""
        # An input that is another one each time is known by its ends, so that it costs no digest.
        glance = (part.name, len(part.content), part.content[:_GLANCE], part.content[-_GLANCE:])
        with self._lock:
            is_first = self._names.add(part.name)
            is_other = self._glances.add(hash(glance))
        if is_other and not is_first:
            return None
        digest = hashlib.sha256(part.content).digest()
        with self._lock:
            if digest in self._kept:
                return digest
            is_new = self._sent.add(digest)
            return None if self._is_refused(digest) or (is_new and not is_first) else digest

    def _is_there(
        self,
        part: _Part,
        digest: bytes,
        call: Call,
        metadata: Metadata,
        limits: simgrad_pb2.Limits,
        end: float,
    ) -> bool:
        """Whether the server has the content; uploads it where it does not."""
        with self._lock:
            if digest in self._kept:
                return True
        piece = min(_PIECE, max(limits.max_request_bytes // 2, 1 << 15))
        upload = self._upload.future(
            _pieces(digest, part.content, piece),
            timeout=max(end - self._clock.now(), 0.0),
            metadata=metadata,
        )
        call.hold(upload)
        try:
            upload.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            call.check()
            # The request itself, whole, tells the caller what is wrong, if anything is.
            if isinstance(error, grpc.RpcError):
                self._note_refusal(digest, error)
            return False
        finally:
            call.hold(None)
            upload.cancel()  # where the thread is interrupted
        with self._lock:
            if digest not in self._lost:
                self._pauses.pop(digest, None)
            self._kept.add(digest)
        return True

    def _note_refusal(self, digest: bytes, error: grpc.RpcError) -> None:
        """Remembers for how long the content is sent whole."""
        with self._lock:
            if error.code() in _REFUSALS:
                self._refused.add(digest)
            elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self._wait_with(digest)

    def _wait_with(self, digest: bytes) -> None:
        """Sends content whole for some time, twice as long as the time before; under the lock."""
        _, last = self._pauses.pop(digest, (0.0, 0.0))
        pause = min(max(2 * last, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._pauses[digest] = (self._clock.now() + pause, pause)
        if len(self._pauses) > _MOST_KNOWN:
            self._pauses.popitem(last=False)

    def _forget(self, digests: Sequence[bytes]) -> None:
        """Forgets what the server has lost. A server that loses it again soon has too little memory for it."""
        with self._lock:
            now = self._clock.now()
            for digest in digests:
                self._kept.discard(digest)
                before = self._lost.pop(digest, None)
                if before is not None and now - before < _LONGEST_PAUSE:
                    self._wait_with(digest)
                else:
                    self._pauses.pop(digest, None)
                self._lost[digest] = now
                if len(self._lost) > _MOST_KNOWN:
                    self._lost.popitem(last=False)


_REFUSALS = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)


class _Recent:
    """A set that forgets what was added or asked for longest ago."""

    def __init__(self) -> None:
        self._items: collections.OrderedDict[Any, None] = collections.OrderedDict()

    def __contains__(self, item: Any) -> bool:
        if item not in self._items:
            return False
        self._items.move_to_end(item)
        return True

    def add(self, item: Any) -> bool:
        """Whether it is new."""
        is_new = item not in self
        self._items[item] = None
        if len(self._items) > _MOST_KNOWN:
            self._items.popitem(last=False)
        return is_new

    def discard(self, item: Any) -> None:
        self._items.pop(item, None)


def _pieces(digest: bytes, content: bytes, piece: int) -> Iterator[simgrad_pb2.UploadRequest]:
    first = simgrad_pb2.UploadRequest(sha256=digest, size=len(content), data=content[:piece])
    yield first
    for start in range(piece, len(content), piece):
        yield simgrad_pb2.UploadRequest(data=content[start : start + piece])


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _parts(message: Any, least: Least, most: int) -> Iterator[_Part]:
    """The parts of a request that are larger than `least` bytes, and at most `most`."""

    def within(size: int) -> bool:
        return least.tensors < size <= most

    for i, (prefix, part) in enumerate(parts_with_world(message)):
        # Variants send other inputs under the names of the reference's.
        of = prefix if i else ""
        program = named_programs.of(part.world)
        if program is not None and least.programs < len(program.content) <= most:
            yield _Part(f"{of}program", program.content, sha256=program.sha256)
        for group in ("initial", "params", "controls", "data") if prefix else ():
            yield from _tensors(f"{of}{group}", message, _part(i, group), within)
        if isinstance(part, simgrad_pb2.RolloutSpec) and within(len(part.path.forced.decisions.inline)):
            yield _Part("path", part.path.forced.decisions.inline, _refer_path)
    for i in range(len(getattr(reference_of(message), "cotangents", ()))):
        for group in ("final_state", "trajectory"):
            yield from _tensors(f"cotangent {group}", message, _cotangent(i, group), within)


# ---- Where parts stand in a request, and in a copy of it ----


def _part(i: int, field: str) -> Callable[[Any], Any]:
    return lambda request: getattr(parts_with_world(request)[i][1], field)


def _cotangent(i: int, group: str) -> Callable[[Any], Any]:
    return lambda request: getattr(reference_of(request).cotangents[i], group)


def _refer_path(copy: Any, digest: bytes) -> None:
    copy.spec.path.forced.decisions.ref = digest


def _tensors(
    name: str, request: Any, group_of: Callable[[Any], Any], within: Callable[[int], bool]
) -> Iterator[_Part]:
    for i, named in enumerate(group_of(request)):
        if within(len(named.tensor.inline)):

            def refer(copy: Any, digest: bytes, i: int = i) -> None:
                group_of(copy)[i].tensor.ref = digest

            yield _Part(f"{name} {named.name}", named.tensor.inline, refer)
