"""Names are looked up beside the event loop: one that hangs keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ratelimit_service.net.names import Addresses, Names

ADDRESS: Addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80))]


class Resolver:
    """Knows `known.example` and no other name; of those that begin with `slow` it says nothing."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answers = threading.Event()

    def look_up(self, host: str, port: int, **_: Any) -> Addresses:
        self.asked[host] += 1
        if host.startswith("slow"):
            self.answers.wait()
        if host == "known.example" or host.startswith("slow"):
            return ADDRESS
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    found = Resolver()
    yield found
    found.answers.set()


async def test_a_name_that_hangs(resolver: Resolver) -> None:
    """While one is looked up in vain others are found, and it is not asked for a second time."""
    names = Names(resolver.look_up)
    waiting = [asyncio.ensure_future(names.addresses("slow.example", 80)) for _ in range(20)]
    for _ in range(20):
        assert await names.addresses("known.example", 80) == ADDRESS
    assert resolver.asked == {"slow.example": 1, "known.example": 20}
    waiting[0].cancel()
    resolver.answers.set()

    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [ADDRESS] * 19
    assert await names.addresses("slow.example", 80) == ADDRESS
    assert resolver.asked["slow.example"] == 2


async def test_more_names_than_are_looked_up(resolver: Resolver) -> None:
    """So many names are looked up at a time; others are refused at once until there is room."""
    names = Names(resolver.look_up)
    waiting = [
        asyncio.ensure_future(names.addresses(f"slow{number}.example", 80)) for number in range(64)
    ]
    await asyncio.sleep(0)

    with pytest.raises(OSError, match="64 other names are looked up already"):
        await names.addresses("known.example", 80)
    resolver.answers.set()
    assert await asyncio.gather(*waiting) == [ADDRESS] * 64
    assert await names.addresses("known.example", 80) == ADDRESS


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "192.0.2.77"])
async def test_an_address_needs_no_lookup(resolver: Resolver, host: str) -> None:
    """What is an address already is found at once."""
    found = await Names(resolver.look_up).addresses(host, 6379)

    assert found[0][-1][:2] == (host, 6379)
    assert not resolver.asked


@pytest.mark.parametrize("host", ["unknown.example", "a..b", "x" * 300, "nul\0"])
async def test_no_such_name(resolver: Resolver, host: str) -> None:
    """A name that is unknown, or can be none, is an OSError, each time that it is asked for."""
    names = Names(resolver.look_up if host == "unknown.example" else socket.getaddrinfo)

    for _ in range(2):
        with pytest.raises(OSError, match=r"not known|is no host name|No address"):
            await names.addresses(host, 80)


_ENDS = """
import asyncio, threading
from ratelimit_service.net.names import Names

async def main():
    names = Names(lambda *_, **__: threading.Event().wait())
    try:
        async with asyncio.timeout(0.01):
            await names.addresses("slow.example", 80)
    except TimeoutError:
        print("ended")

asyncio.run(main())
"""


def test_the_end_waits_for_no_name() -> None:
    """A process ends although a name is still looked up."""
    done = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, check=True)

    assert done.stdout == "ended\n"
