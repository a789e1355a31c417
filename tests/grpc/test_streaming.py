"""Streaming calls: their messages wait for answers, and nothing of them stays when they end."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from pathlib import Path

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc.h2 import client as served
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.client import Visit
from ratelimit_service.grpc.h2.connection import Event
from ratelimit_service.grpc.h2.events import Ended, Message
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.limits import MAX_WATCHES
from tests.grpc.chatting import Chatting
from tests.grpc.ends import Ends, take_turns
from tests.grpc.served_ends import RULES, rounds
from tests.grpc.served_ends import Ends as ServedEnds
from tests.service.asking import Asking

WATCH = "/grpc.health.v1.Health/Watch"


def test_streaming_calls_wait_for_their_answers() -> None:
    """A streaming call's next message is handed on when the last one's answer is on its way."""
    client = Chatting()
    shut = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0})
    body = b"".join(b"\0\0\0\0\1" + bytes((number,)) for number in range(200))
    data = frames.frame(FrameType.DATA, END_STREAM, 1, body)

    first = client.talk(shut + client.chat() + data, b"x" * 1_000)
    held = client.connection.budget.held
    rest = client.talk(frames.window_update(1, 2_000_000))

    assert [event.message for event in first if isinstance(event, Message)] == [b"\0"]
    assert held < 10_000
    assert [event.message for event in rest if isinstance(event, Message)] == [
        bytes((number,)) for number in range(1, 200)
    ]
    assert isinstance(rest[-1], Ended)
    assert len(client.connection.streams) == client.connection.budget.held == 0


def test_streaming_calls_wait_in_frames_of_their_own() -> None:
    """A message that comes while the last one's answer waits is kept, and handed on after it."""
    client = Chatting()
    shut = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0})
    client.talk(shut + client.chat())
    parts = [frames.frame(FrameType.DATA, 0, 1, b"\0\0\0\0\1" + bytes((at,))) for at in range(20)]

    first = [event for part in parts for event in client.talk(part, b"x" * 1_000)]
    rest = client.talk(frames.window_update(1, 2_000_000))

    assert [event.message for event in first if isinstance(event, Message)] == [b"\0"]
    assert len(rest) == 19


def test_streaming_calls_wait_for_a_slow_client() -> None:
    """While a client does not read, its streaming calls are given no more messages."""
    client = Chatting()
    body = b"".join(b"\0\0\0\0\1" + bytes((number,)) for number in range(200))
    client.connection.congested = True

    first = client.talk(client.chat() + frames.frame(FrameType.DATA, END_STREAM, 1, body))
    client.connection.congested = False
    rest = client.talk(b"")

    assert len(first) == 1
    assert len(rest) == 200


def test_window_of_a_streaming_call() -> None:
    """A streaming call may go on for ever, in messages that come in any pieces."""
    client = Chatting()
    client.talk(client.chat())
    body = (b"\0\0\0\3\xe8" + b"x" * 1_000) * 1_000
    sent, window, count = 0, 131_072, 0

    while sent < len(body):
        assert window > 0
        part = body[sent : sent + min(window, 777)]
        events = client.talk(frames.frame(FrameType.DATA, 0, 1, part))
        count += sum(isinstance(event, Message) for event in events)
        sent, window = sent + len(part), window - len(part)
        for kind, _, stream_id, payload in client.said():
            if kind == FrameType.WINDOW_UPDATE and stream_id:
                window += int.from_bytes(payload, "big")
        client.connection.receive(frames.window_update(0, 100_000) + frames.window_update(1, 9_999))
        client.connection.tick()

    assert count == 1_000


async def test_chat_goes_on_when_the_client_reads_again() -> None:
    """Messages of a client that does not read wait, and are handed on once it reads."""
    ends, client = Ends(), Chatting()
    ends.served.connection = client.connection
    answered = []

    def handle(client: served.Client, events: list[Event], visit: Visit) -> None:
        for event in events:
            if isinstance(event, Message):
                answered.append(event.message)
                client.connection.sender.send(event.stream_id, b"answer")
                if len(answered) == 3:
                    ends.wire.unsent = True
                    client.flush()

    ends.calls.handle = handle  # type: ignore[method-assign]
    body = b"".join(b"\0\0\0\0\1" + bytes((number,)) for number in range(20))
    ends.receive(client.chat() + frames.frame(FrameType.DATA, 0, 1, body))
    assert len(answered) == 3

    ends.wire.unsent = False
    if ends.served.ready(elapsed_us(), select.EPOLLOUT):
        ends.scheduler.add(ends.served)
    take_turns(ends.scheduler)

    assert len(answered) == 20


async def test_a_watch_ends_with_its_stream(tmp_path: Path) -> None:
    """Whatever a client does to have a watched stream reset, nothing of the watch stays."""
    ends = ServedEnds(Asking(tmp_path, RULES))
    before = len(asyncio.all_tasks())

    def watch(then: Callable[[int], bytes]) -> None:
        ends.receive(ends.client.headers(path=WATCH) + ends.client.data(b""))
        ends.receive(then(ends.client.stream_id))

    endings: list[Callable[[int], bytes]] = [
        lambda of: frames.frame(FrameType.RST_STREAM, 0, of, bytes(4)),
        lambda of: frames.frame(FrameType.DATA, 0, of, b"more"),
        lambda of: frames.frame(FrameType.HEADERS, END_HEADERS, of, b"\x82"),
        lambda of: frames.window_update(of, 0),
        lambda of: frames.window_update(of, frames.MAX_WINDOW),
        lambda of: frames.frame(FrameType.PRIORITY, 0, of, b"?"),
        lambda of: frames.frame(FrameType.PRIORITY, 0, of, of.to_bytes(4, "big") + b"\0"),
    ]
    for ending in endings:
        watch(ending)
    await rounds()

    assert len(asyncio.all_tasks()) == before


async def test_watches_have_a_bound(tmp_path: Path) -> None:
    """A connection watches so much at once, and more once a watch is over."""
    ends = ServedEnds(Asking(tmp_path, RULES))
    before = len(asyncio.all_tasks())

    def watch(count: int) -> bytes:
        call = (ends.client.headers(path=WATCH) + ends.client.data(b"") for _ in range(count))
        return b"".join(call)

    first = ends.receive(watch(MAX_WATCHES + 5))
    await rounds()
    watching = len(asyncio.all_tasks()) - before
    ends.receive(frames.frame(FrameType.RST_STREAM, 0, 1, bytes(4)))
    await rounds()
    more = ends.receive(watch(2))
    await rounds()

    assert watching == len(asyncio.all_tasks()) - before == MAX_WATCHES
    assert (first.count(FrameType.HEADERS), more.count(FrameType.HEADERS)) == (5, 1)
    ends.served.abort()
    take_turns(ends.scheduler)
    await rounds()
    assert len(asyncio.all_tasks()) == before
