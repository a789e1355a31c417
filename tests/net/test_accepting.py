"""Connections that come in at listening sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack, closing

from ratelimit_service.net.accepting import Acceptor
from tests.waiting import PATIENCE_SECONDS


async def test_connections_are_taken_a_few_at_a_time() -> None:
    """However many connections wait, a round of the loop takes eight, and at last all are taken."""
    loop = asyncio.get_running_loop()
    rounds = 0
    taken: Counter[int] = Counter()
    done = asyncio.Event()

    def count_rounds() -> None:
        nonlocal rounds
        rounds += 1
        if not done.is_set():
            loop.call_soon(count_rounds)

    def take(connection: socket.socket, _: str) -> None:
        connection.close()
        taken[rounds] += 1
        if taken.total() == 100:
            done.set()

    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=128)))
        listener.setblocking(False)
        for _ in range(100):
            stack.enter_context(closing(socket.create_connection(listener.getsockname())))
        acceptor = Acceptor(loop, [listener], take)
        acceptor.start()
        count_rounds()

        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)

        acceptor.stop()
    assert max(taken.values()) == 8
