"""What a connection hands on: calls, messages, and that nobody waits any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.model.call_origin import CallOrigin

__all__ = ["Calls", "Cancelled", "Ended", "Event", "Message", "add_calls"]


@dataclass(slots=True)
class Calls:
    """Complete unary calls with the same headers; each with its one message.

    Calls that follow are added. To make a frozen one would take three times as long.

    `origins` are who made each of them; None if nobody asks.
    """

    head: Head
    stream_ids: list[int]
    messages: list[bytes]
    origins: list[CallOrigin] | None = None


class Message(NamedTuple):
    """One message of a call on a streaming path. The next one comes when it is answered."""

    stream_id: int
    path: bytes
    message: bytes


class Ended(NamedTuple):
    """The client sends no more messages on a streaming path."""

    stream_id: int


class Cancelled(NamedTuple):
    """The client does not want the answer any more, or its fault has ended the stream."""

    stream_id: int


Event = Calls | Message | Ended | Cancelled


def add_calls(
    events: list[Event],
    head: Head,
    stream_ids: list[int],
    messages: list[bytes],
    origins: list[CallOrigin] | None,
) -> None:
    """Adds calls with the same headers, together with those just before them if it can be."""
    last = events[-1] if events else None
    if (
        isinstance(last, Calls)
        and last.head is head
        and (last.origins is None) is (origins is None)
    ):
        last.stream_ids += stream_ids
        last.messages += messages
        if last.origins is not None and origins is not None:
            last.origins += origins
        return
    events.append(Calls(head, stream_ids, messages, origins))
