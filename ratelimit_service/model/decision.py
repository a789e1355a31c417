"""What a caller is told."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from ratelimit_service.model.limit import Limit
from ratelimit_service.model.unit import SECOND_US

__all__ = ["Code", "Decision", "Header", "Status", "whole_seconds"]


class Code(IntEnum):
    """The verdict on a descriptor or a request; the numbers are Envoy's. UNKNOWN is never sent."""

    OK = 1
    OVER_LIMIT = 2


class Status(NamedTuple):
    """The answer for one descriptor; `limit` is None where no count decided."""

    code: Code
    limit: Limit | None = None
    remaining: int = 0
    reset_us: int | None = None


class Header(NamedTuple):
    """A header to add; the value is free of control characters."""

    key: str
    value: str


class Decision(NamedTuple):
    """The answer to one request; one status for each descriptor, in their order."""

    code: Code
    statuses: tuple[Status, ...]
    response_headers: tuple[Header, ...] = ()
    request_headers: tuple[Header, ...] = ()
    raw_body: bytes = b""
    metadata: Mapping[str, object] | None = None
    holds_us: int = 0
    """How long a denial holds, if clients are told so."""


def whole_seconds(duration_us: int) -> int:
    """A wait in whole seconds, rounded up and never 0: Envoy cuts fractions off."""
    return max(1, -(-duration_us // SECOND_US))
