"""Messages that reserve and settle, to the requests that they are about."""

from __future__ import annotations

import pytest

from ratelimit_service.wire.messages import RateLimitDescriptor, RateLimitRequest
from ratelimit_service.wire.reservations import (
    CommitRequest,
    ReserveRequest,
    Reserving,
    read_commit,
    read_reserve,
)

NEWER = b"\x1a\x01x"
"""Field 3 as no version of these messages has it."""


def about(*, hits: int | None = None, negative: bool = False) -> list[RateLimitDescriptor]:
    """One descriptor, with hits of its own or none."""
    descriptor = RateLimitDescriptor(is_negative_hits=negative)
    descriptor.entries.add(key="user", value="ann")
    if hits is not None:
        descriptor.hits_addend.value = hits
    return [descriptor]


BODY = RateLimitRequest(domain="edge", descriptors=about()).SerializeToString()


@pytest.mark.parametrize("later", [b"", NEWER], ids=["as it is", "of a later version"])
def test_reserve(later: bytes) -> None:
    """What is reserved is the request without hits, whatever else the message says."""
    message = ReserveRequest(
        domain="edge", descriptors=about(hits=7, negative=True), reservation_id="a"
    )
    message.ttl.seconds = 2
    if not later:
        message.amount = 5

    read = read_reserve(message.SerializeToString() + later)

    assert read == Reserving(BODY, 0 if later else 5, "a", 2_000_000)


@pytest.mark.parametrize("later", [b"", b"\x18\x05"], ids=["as it is", "of a later version"])
def test_commit(later: bytes) -> None:
    """What is settled is the same request, so that it has the same plan."""
    message = CommitRequest(domain="edge", descriptors=about(hits=7), actual_amount=5)
    if not later:
        message.reservation_id = "a"

    read = read_commit(message.SerializeToString() + later)

    assert read == Reserving(BODY, 5, "" if later else "a")
