"""A client whose calls go to a streaming method."""

from __future__ import annotations

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.connection import Connection, Event, Methods
from ratelimit_service.grpc.h2.events import Ended, Message
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    PREFACE,
    FrameType,
)
from tests.grpc.h2_client import HEADERS, PATH, Client

STREAMING = "/a.B/Chat"

CHAT = [(name, STREAMING if name == ":path" else value) for name, value in HEADERS]


class Chatting(Client):
    """A client whose calls go to a streaming method."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__()
        methods = Methods(frozenset({PATH.encode()}), frozenset({STREAMING.encode()}))
        self.connection = Connection(methods, memory)
        self.connection.receive(PREFACE + frames.settings({}) + self.ack())
        self.said()

    def chat(self) -> bytes:
        self.stream_id += 2
        block = self.encoder.encode(CHAT)
        return frames.frame(FrameType.HEADERS, END_HEADERS, self.stream_id, block)

    def talk(self, data: bytes, answer: bytes = b"answer") -> list[Event]:
        """Answers each message at once, as reflection does; returns the events."""
        found = []
        while True:
            events = self.connection.receive(data)
            for event in events:
                if isinstance(event, Message):
                    self.connection.sender.send(event.stream_id, answer)
                elif isinstance(event, Ended):
                    self.connection.sender.finish(event.stream_id)
            found += events
            if not self.connection.has_more:
                return found
            data = b""
