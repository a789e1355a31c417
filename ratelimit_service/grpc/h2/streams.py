"""What a connection remembers of an open stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from ratelimit_service.grpc.h2.frames import FrameType
from ratelimit_service.grpc.h2.head import ENCODINGS, Head
from ratelimit_service.grpc.h2.limits import STREAM_WINDOW
from ratelimit_service.model.call_origin import CallOrigin

__all__ = ["Methods", "Readable", "Stream"]


@dataclass(frozen=True, slots=True)
class Methods:
    """The paths that are served. Calls of streaming methods hand on each message as it comes."""

    unary: frozenset[bytes] = frozenset()
    streaming: frozenset[bytes] = frozenset()


class Readable(Enum):
    """Whether a request is a gRPC call that we can read."""

    YES = auto()
    NO_GRPC = auto()
    ENCODING = auto()
    UNKNOWN = auto()
    """Whether the called method is not served."""
    ENOUGH = auto()
    """Whether it has been handed on or answered already."""


def _readable(head: Head, methods: Methods) -> Readable:
    if head.method != b"POST" or not head.content_type.startswith(b"application/grpc"):
        return Readable.NO_GRPC
    if head.encoding not in ENCODINGS:
        return Readable.ENCODING
    if head.path not in methods.unary and head.path not in methods.streaming:
        return Readable.UNKNOWN
    return Readable.YES


class Stream:
    """The record of one open stream."""

    __slots__ = (
        "answered",
        "asking",
        "body",
        "caller",
        "cost_us",
        "credit",
        "ended",
        "head",
        "held",
        "readable",
        "receive_window",
        "received",
        "since",
        "streaming",
        "waiting",
    )

    def __init__(self, head: Head, methods: Methods) -> None:
        self.head = head
        self.body = bytearray()
        self.received = 0
        self.cost_us = 0
        """What its headers have cost and is not charged yet. A reset charges it."""
        self.ended = False
        """Whether the client has ended its side of the stream."""
        self.answered = False
        """Whether our headers are sent."""
        self.asking = False
        """Whether one of its messages has been handed on and is not answered yet."""
        self.streaming = head.path in methods.streaming
        self.readable = _readable(head, methods)
        self.caller: CallOrigin | None = None
        """Who made the call, if somebody asks."""
        self.credit = 0
        """How much larger its send window is than that of all new streams."""
        self.receive_window = STREAM_WINDOW
        self.since = 0
        """The second in which it was opened, or last brought a message."""
        self.held = 0
        """How many bytes are kept for it."""
        self.waiting: deque[tuple[FrameType, bytes, bool]] = deque()
        """What flow control holds back: type, payload, and whether it ends the stream."""

    def origins(self) -> list[CallOrigin] | None:
        """Who made its one call, as `Calls` has it."""
        return None if self.caller is None else [self.caller]
