"""What the client makes of servers that are not as they should be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from ratelimit_service.cli.service_client import Client
from ratelimit_service.errors import TransportError
from ratelimit_service.model import Decision, Request
from ratelimit_service.wire import METHOD, SERVICE
from tests.service.asking import descriptor


@contextmanager
def answering(answer: Callable[[], bytes]) -> Iterator[str]:
    """A server that answers so, whatever it is asked; its address."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: answer()
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0)


def ask(address: str, timeout_us: int) -> Decision:
    with Client(address) as client:
        return client.should_rate_limit(Request("d", (descriptor("a=b"),)), timeout_us)


def test_answer_that_is_none() -> None:
    """A server that answers something else is told to be no rate limit service."""
    with (
        answering(lambda: b"\xff\xff") as address,
        pytest.raises(TransportError, match="is no rate limit service"),
    ):
        ask(address, 60_000_000)


def test_server_that_does_not_answer() -> None:
    """A call ends with its timeout, and the error says that nothing came within it."""
    late = threading.Event()

    def answer() -> bytes:
        late.wait(30)
        return b""

    with (
        answering(answer) as address,
        pytest.raises(TransportError, match=r"nothing has answered at 127.* within 0\.05s: "),
    ):
        ask(address, 50_000)
    late.set()
