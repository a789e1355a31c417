"""Requests from what people write: mappings, keywords, and functions of a call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ratelimit_client.errors import BadRequestError
from ratelimit_client.model import Descriptor, Entries, Request, Value

__all__ = ["Computed", "Cost", "Described", "computed", "held_for", "request_of", "reserving"]

Described = Descriptor | Entries
"""A descriptor, or just its entries."""

Computed = Value | Callable[..., Value]
"""A value, or a function that makes it of the arguments of a decorated function."""

Cost = int | Callable[..., int]
"""The same for a cost."""


def request_of(
    domain: str, descriptors: tuple[Described, ...], entries: Entries, cost: int
) -> Request:
    """The descriptors that are given, and one more of the keywords."""
    listed = [
        described if isinstance(described, Descriptor) else Descriptor.of(described)
        for described in descriptors
    ]
    if entries:
        listed.append(Descriptor.of(entries))
    return Request(domain, tuple(listed), cost)


_LEAST_TTL = 0.000_001
_LONGEST_TTL = 31_536_000.0
"""A year: no service holds anything for so long."""


def held_for(request: Request, ttl: float | None) -> Request:
    """The same, to be held for so long. Raises BadRequestError for what is no time to live."""
    if ttl is None:
        return replace(request, ttl=0.0)
    if not _LEAST_TTL <= ttl <= _LONGEST_TTL:
        raise BadRequestError(
            f"ttl is {ttl}: give seconds above 0 and up to a year, or None for the longest"
        )
    return replace(request, ttl=ttl)


def reserving(request: Request, ttl: float | None) -> Request:
    """The same, to be held for so long. Raises BadRequestError if nothing in it can be settled."""
    if all(descriptor.cost is not None for descriptor in request.descriptors):
        raise BadRequestError(
            "every descriptor has a cost of its own: a budget settles those that have none"
        )
    return held_for(request, ttl)


def computed(
    descriptors: tuple[Mapping[str, Computed], ...],
    entries: Mapping[str, Computed],
    cost: Cost,
    arguments: tuple[object, ...],
    keywords: Mapping[str, object],
) -> tuple[tuple[Entries, ...], int]:
    """The entries of each descriptor, and the cost, for one call of a decorated function."""
    every = (*descriptors, entries) if entries else descriptors
    values = tuple(
        {
            key: value(*arguments, **keywords) if callable(value) else value
            for key, value in described.items()
        }
        for described in every
    )
    return values, cost(*arguments, **keywords) if callable(cost) else cost
