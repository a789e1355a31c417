"""What answers say beside their statuses: headers and metadata."""

from __future__ import annotations

import pytest

from ratelimit_service.model import (
    Limit,
    Unit,
)
from ratelimit_service.settings import Settings
from tests.service.asking import descriptor
from tests.service.deciding import USER, Ask

HEADERS = Settings(limit_response_headers=True)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (["user=new"], ("2", "1", "60")),
        (["tenant=new", "user=new"], ("2", "1", "60")),
        (["user=bob", "tenant=new"], ("2", "0", "60")),
        (["hidden=full", "user=bob"], ("2", "0", "60")),
        (["unknown=x", "free=x"], None),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
async def test_headers(asking: Ask, asked: list[str], shown: tuple[str, str, str] | None) -> None:
    """The headers show an over-limit status first, then the least remaining, then the first."""
    service = asking(USER, settings=HEADERS)
    await service.ask("user=bob", "hidden=full", hits=2)
    await service.ask("hidden=full")

    decision = await service.ask(*asked)

    names = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
    told = [header for header in decision.response_headers if header[0] in names]
    assert told == (list(zip(names, shown, strict=True)) if shown else [])


async def test_no_headers_by_default(asking: Ask) -> None:
    """The headers are off unless asked for."""
    service = asking(USER)

    assert (await service.ask("user=bob")).response_headers == ()


METADATA = """
domain: edge
descriptors:
  - key: a
    metadata: {owner: {team: red, mail: r@x}, tags: [1]}
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: b
    metadata: {owner: {team: blue, phone: "7"}, tags: [2], more: true}
    value_to_metric: true
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 9}
  - key: free
    metadata: {owner: {team: green}, tags: [3]}
    rate_limit: {unlimited: true}
"""


async def test_metadata_is_merged_and_never_leaks(asking: Ask) -> None:
    """Rule metadata of passed descriptors is merged, the first wins, and no rule is changed."""
    service = asking(METADATA, settings=Settings(dynamic_metadata=True))

    both = (await service.ask("a=x", "b=y")).metadata
    only_b = (await service.ask("a=x", "b=y")).metadata

    assert both is not None
    assert only_b is not None
    assert both["domain"] == "edge"
    assert both["descriptors"] == [{"entries": ["a=x"]}, {"entries": ["b=y"]}]
    assert both["metadata"] == {
        "owner": {"team": "red", "mail": "r@x", "phone": "7"},
        "tags": [1],
        "more": True,
    }
    assert only_b["metadata"] == {
        "owner": {"team": "blue", "phone": "7"},
        "tags": [2],
        "more": True,
    }


async def test_metadata_of_an_unlimited_rule(asking: Ask) -> None:
    """An unlimited rule's metadata is returned as any other rule's, alone and beside others."""
    service = asking(METADATA, settings=Settings(dynamic_metadata=True))

    alone = (await service.ask("free=x")).metadata
    beside = (await service.ask("free=x", "b=y")).metadata

    assert alone is not None
    assert beside is not None
    assert alone["metadata"] == {"owner": {"team": "green"}, "tags": [3]}
    assert beside["metadata"] == {
        "owner": {"team": "green", "phone": "7"},
        "tags": [3],
        "more": True,
    }


async def test_metadata_shows_what_the_caller_sent(asking: Ask) -> None:
    """Addends and overrides are repeated in the metadata."""
    service = asking(USER, settings=Settings(dynamic_metadata=True))

    asked = descriptor("user=x", addend=2, limit=Limit(5, Unit.HOUR, 2))
    metadata = (await service.ask(asked, hits=3)).metadata

    assert metadata == {
        "domain": "edge",
        "hitsAddend": 3,
        "descriptors": [
            {
                "entries": ["user=x"],
                "hitsAddend": 2,
                "limit": {"requestsPerUnit": 5, "unit": "HOUR", "unitMultiplier": 2},
            }
        ],
    }
