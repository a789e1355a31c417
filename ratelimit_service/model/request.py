"""What a caller asks: a domain and, in order, the descriptors of one request."""

from __future__ import annotations

from typing import Final, NamedTuple

from ratelimit_service.model.limit import Limit

__all__ = ["LEAST_TIMEOUT_US", "Descriptor", "Entry", "Request"]

LEAST_TIMEOUT_US: Final = 2_000
"""A caller who says that it waits for no longer than this counts as one who says nothing: nobody
could answer in time. It is counted, unless it takes its call back before."""


class Entry(NamedTuple):
    """One key and its value; the value may be empty."""

    key: str
    value: str


class Descriptor(NamedTuple):
    """Ordered entries, with what the caller says about them.

    `limit` overrides the rules. `hits_addend` overrides the request's; 0 is a peek, None says
    nothing. With `is_negative_hits` the hits are given back.
    """

    entries: tuple[Entry, ...]
    limit: Limit | None = None
    hits_addend: int | None = None
    is_negative_hits: bool = False


class Request(NamedTuple):
    """One call of ShouldRateLimit; `hits_addend` 0 means unset, that is 1."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    hits_addend: int = 0
