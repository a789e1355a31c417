"""Rules and answers for tests of decisions."""

from __future__ import annotations

from collections.abc import Callable

from ratelimit_service.model import (
    Code,
    Decision,
)
from tests.service.asking import Asking

OK, OVER = Code.OK, Code.OVER_LIMIT

Ask = Callable[..., Asking]

USER = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, name: per-user}
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: free
    rate_limit: {unlimited: true}
  - key: hidden
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
"""


def codes(decision: Decision) -> list[Code]:
    return [status.code for status in decision.statuses]
