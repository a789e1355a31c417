"""What the client makes of servers that are not as they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ratelimit_service.client import Client
from ratelimit_service.errors import TransportError
from ratelimit_service.health import Health
from ratelimit_service.model import Decision, Request
from ratelimit_service.service import Answer
from ratelimit_service.transport import H2Server
from tests.service.asking import Asking, descriptor


async def ask(server: H2Server, timeout_us: int) -> Decision:
    port = await server.start()

    def call() -> Decision:
        with Client(f"127.0.0.1:{port}") as client:
            return client.should_rate_limit(Request("d", (descriptor("a=b"),)), timeout_us)

    try:
        return await asyncio.to_thread(call)
    finally:
        await server.stop(0)


async def test_answer_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers something else is told to be no rate limit service."""
    service = Asking(tmp_path, "domain: d").service

    def submit(bodies: Sequence[bytes], done: Callable[[list[Answer]], None], *_: object) -> None:
        done([b"\xff\xff" for _ in bodies])

    monkeypatch.setattr(service, "submit", submit)

    with pytest.raises(TransportError, match="is no rate limit service"):
        await ask(H2Server("127.0.0.1:0", service, Health()), 10_000_000)


async def test_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends with its timeout."""
    service = Asking(tmp_path, "domain: d").service
    monkeypatch.setattr(service, "submit", lambda *_: None)

    with pytest.raises(TransportError, match="DEADLINE_EXCEEDED"):
        await ask(H2Server("127.0.0.1:0", service, Health()), 50_000)
