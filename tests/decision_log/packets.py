"""Decisions as a process that decides hands them on."""

from __future__ import annotations

from ratelimit_service import wire
from ratelimit_service.decision_log.packets import Packer, packed
from ratelimit_service.limiter import DecidedBy
from ratelimit_service.model import Request
from ratelimit_service.service import DecidedBatch, DecisionRecord
from tests.service.asking import descriptor

_PACKER = Packer(1, 1, None, "memory", lambda _: "")


def packet(*users: str) -> bytes:
    """Decisions about these users."""
    records = [
        DecisionRecord(
            wire.encode_request(Request("edge", (descriptor(f"user={user}"),))),
            b"",
            None,
            DecidedBy.NOTHING,
        )
        for user in users
    ]
    return packed(len(users), [*_PACKER.groups(0, DecidedBatch.of(records), range(len(records)))])
