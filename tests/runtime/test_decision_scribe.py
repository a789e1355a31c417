"""The process that makes lines of decisions, and what becomes of these without it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable

from ratelimit_service import wire
from ratelimit_service.limiter import DecidedBy
from ratelimit_service.model import Request
from ratelimit_service.observer import Stats
from ratelimit_service.runtime.decision_packets import DecisionPackets
from ratelimit_service.runtime.decision_scribe import DecisionScribe
from ratelimit_service.service import DecidedBatch, DecisionRecord
from ratelimit_service.settings import Settings
from tests.servers.process import PATIENCE_SECONDS
from tests.service.asking import descriptor

PACKETS = DecisionPackets(1, 1, None, "memory", lambda _: "")


def packet(*users: str) -> bytes:
    """Decisions about these users."""
    told = [
        DecisionRecord(
            wire.encode_request(Request("edge", (descriptor(f"user={user}"),))),
            b"",
            None,
            DecidedBy.NOTHING,
        )
        for user in users
    ]
    batch = DecidedBatch.of(told)
    return PACKETS.of([(0, batch, range(len(told)))], len(told))


class Scribe:
    """One, and what it has written."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.written: list[bytes] = []
        self.scribe = DecisionScribe(Settings(decision_log="x"), self.stats, self.written.append)

    @property
    def users(self) -> list[str]:
        lines = b"".join(self.written).splitlines()
        return [json.loads(line)["descriptors"][0]["entries"][0][1] for line in lines]

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.stats.decision_log)

    def signal(self, number: signal.Signals) -> None:
        assert self.scribe.process is not None
        self.scribe.process.send_signal(number)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_no_line_is_lost_with_the_process() -> None:
    """Lines come in their order, before the process is there, of it, and when it was killed."""
    ours = Scribe()
    async with ours.scribe.running():
        assert ours.scribe.take(packet("early"))
        assert ours.users == ["early"]
        await until(lambda: ours.scribe.working)
        ours.signal(signal.SIGTERM)  # whoever ends the service ends it by its parent
        assert ours.scribe.take(packet("a", "b"))
        await until(lambda: len(ours.users) == 3)
        ours.signal(signal.SIGSTOP)
        for name in "cde":
            assert ours.scribe.take(packet(name))
        assert len(ours.users) == 3
        ours.signal(signal.SIGKILL)
        await until(lambda: len(ours.users) == 6)
        assert ours.scribe.take(packet("late"))

    assert ours.users == ["early", *"abcde", "late"]
    assert ours.dropped == {}


async def test_what_is_too_much_is_counted() -> None:
    """What a process that hangs does not give back is bounded. The end has it written all the same.

    A packet that cannot be read is counted, and holds up no other.
    """
    ours = Scribe()
    large = packet("x" * 60_000)
    async with ours.scribe.running():
        await until(lambda: ours.scribe.working)
        ours.scribe.hear(b"\0\0\0\x07another")
        ours.scribe.hear(packet("a"))
        await until(lambda: len(ours.users) == 1)
        assert ours.dropped == {"dropped_error": 7}
        ours.signal(signal.SIGSTOP)
        for _ in range(100):
            ours.scribe.hear(large)

    dropped = ours.dropped["dropped_slow"]
    assert 10 < dropped < 50
    assert len(ours.users) == 1 + 100 - dropped
