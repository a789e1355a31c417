"""What the clients in Python have in common. docs/real-clients.md has what is given and printed."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.wire import encode_request

CONNECTIONS = 2
KEYS = 500
PATIENCE_SECONDS = 10.0


class Call(NamedTuple):
    """One call as the numbers of the command line want it. `seconds` is its deadline."""

    number: int
    headers: list[tuple[str, str]]
    seconds: float = PATIENCE_SECONDS
    delay: float = 0.0
    cancelled: bool = False
    hurried: bool = False
    oversized: bool = False

    @property
    def key(self) -> str:
        return str(self.number % KEYS)

    @property
    def message(self) -> bytes:
        return encode_request(Request("clients", (Descriptor((Entry("key", self.key),)),)))


Caller = Callable[[int, Call], Awaitable[bytes]]
"""Makes a call over the connection with this number. Raises what its library raises."""

Code = Callable[[BaseException], str]
"""The name of the status that an error of the library stands for, and its text."""


def numbers() -> dict[str, int]:
    """What the command line says: ADDRESS NAME=NUMBER..."""
    parts = [argument.split("=") for argument in sys.argv[2:]]
    return {name: int(number) for name, number in parts}


def calls(given: dict[str, int]) -> Iterator[Call]:
    cancel, hurry = given.get("cancel", 0), given.get("cancel", 0) + given.get("deadline", 0)
    width = given.get("header_bytes", 0)
    for number in range(given["calls"]):
        dice, delay = number * 7919 % 1000, (100 + number * 104_729 % 3000) / 1e6
        oversized = hurry <= dice < hurry + given.get("oversized", 0)
        hurried = cancel <= dice < hurry
        headers = [
            (f"x-extra-{place}", str(number if place % 2 else place).zfill(width))
            for place in range(given.get("headers", 0))
        ]
        headers += [("x-oversized", "x" * 20_000)] * oversized
        seconds = delay if hurried else PATIENCE_SECONDS
        yield Call(number, headers, seconds, delay, dice < cancel, hurried, oversized)


def read(call: Call, answer: bytes) -> str:
    if f"<{call.key}>".encode() in answer:
        return "right"
    if b"<" in answer:
        return "wrong"
    return "late" if call.hurried else "policy"


async def outcome(caller: Caller, code: Code, connection: int, call: Call) -> str:
    task = asyncio.ensure_future(caller(connection, call))
    if call.cancelled:
        asyncio.get_running_loop().call_later(call.delay, task.cancel)
    try:
        return read(call, await task)
    except asyncio.CancelledError:
        return "cancelled" if call.cancelled else "failed: cancelled, which nobody asked for"
    except Exception as error:  # each library has its own
        why = code(error)
        if call.hurried and why.startswith("DEADLINE_EXCEEDED"):
            return "late"
        return "refused" if call.oversized else f"failed: {why}"


async def run(caller: Caller, code: Code) -> None:
    """Calls until all calls are made or standard input ends, and prints what became of them."""
    given = numbers()
    ahead, tally, over = calls(given), Counter[str](), threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()

    async def work(connection: int) -> None:
        for call in ahead:
            tally[await outcome(caller, code, connection, call)] += 1
            await asyncio.sleep(given.get("pause", 0) / 1000)
            if over.is_set():
                return

    await asyncio.gather(*(work(place % CONNECTIONS) for place in range(given["concurrency"])))
    print(json.dumps(tally))
