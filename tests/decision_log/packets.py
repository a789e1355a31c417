"""Decisions as a process that decides hands them on."""

from __future__ import annotations

from ratelimit_service import wire
from ratelimit_service.decision_log.packets import DecisionPackets
from ratelimit_service.limiter import DecidedBy
from ratelimit_service.model import Request
from ratelimit_service.service import DecidedBatch, DecisionRecord
from tests.service.asking import descriptor

_PACKETS = DecisionPackets(1, 1, None, "memory", lambda _: "")


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
    _PACKETS.add(0, batch, range(len(told)))
    return _PACKETS.take()
