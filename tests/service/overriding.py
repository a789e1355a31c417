"""Overrides for tests: one is made in a line."""

from __future__ import annotations

from itertools import count

from ratelimit_service.model import Override, OverrideKind
from tests.service.asking import descriptor
from tests.stores.cases import T

BAN, EXEMPT, LIMIT, GRANT = OverrideKind
_NUMBERS = count()

RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: plan
    rate_limits:
      - {name: short, unit: minute, requests_per_unit: 2}
      - {name: long, unit: hour, requests_per_unit: 5}
  - key: free
    rate_limit: {unlimited: true}
"""


def override(
    kind: OverrideKind,
    text: str = "user=bob",
    number: int = 0,
    *,
    limit: str = "",
    until_us: int | None = None,
    made_us: int = T,
    domain: str = "edge",
) -> Override:
    return Override(
        f"{next(_NUMBERS):08x}",
        kind,
        domain,
        descriptor(text).entries,
        made_us,
        number,
        limit,
        until_us,
        "because",
        "ops",
    )
