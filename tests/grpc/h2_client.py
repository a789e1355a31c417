"""A client's end of a connection without sockets."""

from __future__ import annotations

from collections.abc import Sequence

import hpack

from ratelimit_service.grpc.calls import METHODS
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import (
    Calls,
    Connection,
    Event,
)
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PREFACE,
    FrameType,
)

PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "ratelimit"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Client:
    """The client's end of a connection without sockets."""

    def __init__(self) -> None:
        self.connection = Connection(METHODS)
        self.encoder = hpack.Encoder()
        self.stream_id = -1
        self.connection.receive(PREFACE + frames.settings({}) + self.ack())

    def settle(self) -> None:
        """Makes the first call, after which no header block depends on another."""
        self.connection.receive(self.headers() + self.data())
        self.connection.sender.answer(self.stream_id, b"")
        self.encoder.header_table_size = 0
        self.connection.receive(self.ack() + self.headers() + self.data())
        self.connection.sender.answer(self.stream_id, b"")
        self.said()

    @staticmethod
    def ack() -> bytes:
        return frames.frame(FrameType.SETTINGS, ACK, 0, b"")

    def headers(
        self, extra: Sequence[tuple[str, str]] = (), *, path: str = PATH, end: bool = False
    ) -> bytes:
        self.stream_id += 2
        block = self.encoder.encode([*(dict(HEADERS) | {":path": path}).items(), *extra])
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frames.frame(FrameType.HEADERS, flags, self.stream_id, block)

    def data(self, message: bytes = b"body", *, end: bool = True) -> bytes:
        payload = b"\0" + len(message).to_bytes(4, "big") + message
        return frames.frame(FrameType.DATA, END_STREAM if end else 0, self.stream_id, payload)

    def said(self) -> list[tuple[int, int, int, bytes]]:
        """What the server has said since: type, flags, stream and payload of each frame."""
        data, found = self.connection.take_output(), []
        while data:
            stop = 9 + int.from_bytes(data[:3], "big")
            stream_id = int.from_bytes(data[5:9], "big")
            found.append((data[3], data[4], stream_id, data[9:stop]))
            data = data[stop:]
        return found

    @property
    def goaway(self) -> int | None:
        """The error code with which the server has ended the connection."""
        codes = [
            int.from_bytes(payload[4:8], "big")
            for kind, _, _, payload in self.said()
            if kind == FrameType.GOAWAY
        ]
        return codes[-1] if codes else None


def messages(came: Sequence[Event]) -> list[tuple[int, bytes]]:
    """The unary calls among the events: stream and message of each."""
    return [
        call
        for event in came
        if isinstance(event, Calls)
        for call in zip(event.stream_ids, event.messages, strict=True)
    ]


def refused(client: Client) -> dict[int, str]:
    """The status with which each call was refused since."""
    decoder = hpack.Decoder()
    found = {}
    for kind, _, stream_id, payload in client.said():
        if kind == FrameType.HEADERS:
            status = dict(decoder.decode(payload, raw=True)).get(b"grpc-status")
            if status:
                found[stream_id] = status.decode()
    return found
