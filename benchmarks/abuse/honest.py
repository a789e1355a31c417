"""The client that must not notice: 500 calls a second, each with Envoy's 20 ms to be answered.

A process of its own, on a schedule that the service cannot slow down. Its record, with pickle, is
for every call when it was due (by `time.perf_counter`), how long it waited and whether it was
answered; what never was has waited for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import pickle
import random
import ssl
import time
from pathlib import Path

import uvloop

from benchmarks.abuse.wire import told_when
from benchmarks.load import TICK_SECONDS, body
from benchmarks.steady import CONNECTIONS, Answer, Recorder

RATE = 500
USERS = 10_000
LAST_SECONDS = 1.0
"""How long answers are waited for in the end."""


class Honest(Recorder):
    """A connection whose calls fail when it is lost."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__(answers)
        self.lost = False

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True
        self.give_up()

    def give_up(self) -> None:
        """Notes what has no answer."""
        for due, roomy, tight in self._calls.values():
            self._answers.append(Answer(due, math.inf, roomy, tight, 0, by_policy=False))
        self._calls.clear()


async def honest(port: int, until: float, context: ssl.SSLContext | None) -> list[Answer]:
    """Calls until that moment, and connects anew where a connection is lost."""
    answers: list[Answer] = []
    loop = asyncio.get_running_loop()

    async def connected() -> Honest:
        name = "localhost" if context else None
        _, made = await loop.create_connection(
            lambda: Honest(answers), "127.0.0.1", port, ssl=context, server_hostname=name
        )
        return made

    clients = [await connected() for _ in range(CONNECTIONS)]
    chance = random.Random(1)
    messages = [body(user, user) for user in chance.sample(range(USERS), USERS)]
    start, sent = time.perf_counter(), 0
    while (now := time.perf_counter() - start) < until - start:
        while sent < now * RATE:
            due, place = start + sent / RATE, sent % CONNECTIONS
            if clients[place].lost:
                answers.append(Answer(due, math.inf, 0, 0, 0, by_policy=False))
            else:
                clients[place].call(due, 0, 0, messages[sent % USERS])
            sent += 1
        for place, client in enumerate(clients):
            if client.lost:
                try:
                    async with asyncio.timeout(1):
                        clients[place] = await connected()
                except OSError:
                    pass
        await asyncio.sleep(TICK_SECONDS)
    answers += [  # of the calls that were never sent, since connecting took until now
        Answer(start + number / RATE, math.inf, 0, 0, 0, by_policy=False)
        for number in range(sent, int((until - start) * RATE))
    ]
    end = time.perf_counter() + LAST_SECONDS
    while any(client.in_flight for client in clients) and time.perf_counter() < end:
        await asyncio.sleep(0.01)
    for client in clients:
        client.give_up()
    return answers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--authority", help="A file of whom to trust: the port speaks TLS.")
    arguments = parser.parse_args()
    context = None
    if arguments.authority:
        context = ssl.create_default_context(cafile=arguments.authority)
        context.set_alpn_protocols(["h2"])
    gc.disable()
    _, until = told_when()
    answers = uvloop.run(honest(arguments.port, until, context))
    found = [(each.due, each.waited, each.said > 0, each.by_policy) for each in answers]
    arguments.record.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
