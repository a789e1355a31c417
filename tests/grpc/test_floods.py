"""Clients that only cost are ended; those that are busy or careful are not."""

from __future__ import annotations

import pytest

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    ErrorCode,
    FrameType,
)
from tests.grpc.h2_client import PATH, Client

FLOODS = {
    "ping": frames.ping(b"12345678", ack=False),
    "settings": frames.settings({}),
    "window": frames.window_update(1, 1),
    "priority": frames.frame(FrameType.PRIORITY, 0, 3, b"\0\0\0\0\0"),
    "empty data": frames.frame(FrameType.DATA, 0, 1, b""),
    "unknown": frames.frame(FrameType.GOAWAY, 0, 0, b"\0" * 8),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_floods(flood: bytes) -> None:
    """A client that only costs is told to calm down, long before it costs much."""
    client = Client()
    client.connection.receive(client.headers() + client.data(end=False))

    for _ in range(3_000):
        client.connection.receive(flood)

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM
    assert client.connection.closing


def test_rapid_reset() -> None:
    """Calls that are given up as soon as they are made count as nothing but cost."""
    client = Client()

    for _ in range(3_000):
        headers = client.headers()
        reset = frames.rst_stream(client.stream_id, ErrorCode.CANCEL)
        client.connection.receive(headers + reset)

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


def test_busy_client_is_no_flood() -> None:
    """Calls that are answered make up for what a client says besides."""
    client = Client()

    for _ in range(10_000):
        client.connection.receive(client.headers() + client.data() + frames.window_update(0, 1))
        client.connection.sender.answer(client.stream_id, b"")
        client.connection.take_output()

    assert not client.connection.closing


def test_careful_client_is_no_flood() -> None:
    """A client may say several things with each call, as grpcio does that measures its way."""
    client = Client()
    client.settle()
    pings = frames.ping(b"12345678", ack=False) + frames.ping(b"87654321", ack=True)

    for _ in range(3_000):
        client.connection.receive(frames.window_update(0, 5) + pings)
        client.connection.receive(client.headers() + client.data())
        client.connection.sender.answer(client.stream_id, b"")

    assert not client.connection.closing


def test_continuation_flood() -> None:
    """A header block without end is cut off."""
    client = Client()
    client.connection.receive(frames.frame(FrameType.HEADERS, 0, 1, b""))

    for _ in range(100):
        client.connection.receive(frames.frame(FrameType.CONTINUATION, 0, 1, b""))

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(("calls", "size"), [(300, 3_000), (100, 6_000)])
def test_large_headers_of_calls_that_are_answered_are_no_flood(calls: int, size: int) -> None:
    """A new client may have much metadata in all of its first calls, before the first answer."""
    client = Client()

    for number in range(calls):
        extra = [("baggage", f"{number:06}" + "a" * size)]
        client.connection.receive(client.headers(extra) + client.data())
    assert len(client.connection.streams) == calls
    for number in range(calls):
        client.connection.sender.answer(2 * number + 1, b"")

    assert not len(client.connection.streams)
    assert not client.connection.closing


def test_large_headers_of_calls_that_come_to_nothing_are_charged() -> None:
    """Headers of calls that are reset cost what it took to read them."""
    client = Client()
    resets = b""
    for number in range(100):
        extra = [("baggage", f"{number:06}" + "a" * 3_000)]
        client.connection.receive(client.headers(extra))
        resets += frames.rst_stream(client.stream_id, ErrorCode.CANCEL)
    assert not client.connection.closing

    client.connection.receive(resets)

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("refused", ["too large", "no such method"])
def test_large_headers_of_refused_calls_are_charged(refused: str) -> None:
    """What is refused for its headers is a call that comes to nothing."""
    client = Client()
    size = 18_000 if refused == "too large" else 10_000
    path = "/no.Service/Method" if refused == "no such method" else PATH

    for number in range(40):
        extra = [("baggage", f"{number:06}" + "a" * size)]
        client.connection.receive(client.headers(extra, path=path))

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM
