from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ratelimit_client.live import Live

RULES = """
domain: api
descriptors:
- {key: user, rate_limit: {name: per-user, unit: minute, requests_per_unit: 3}}
- {key: team, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: free, rate_limit: {unlimited: true}}
- {key: tokens, rate_limit: {unit: day, requests_per_unit: 1000}}
- {key: stream, rate_limit: {name: stream, unit: day, requests_per_unit: 1000, reservations: true}}
- {key: spent, rate_limit: {unit: day, requests_per_unit: 1000, count_denied: true}}
- {key: slot, rate_limit: {algorithm: concurrency, window: 1m, requests_per_unit: 2}}
- {key: queue, rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 1, max_wait: 10s}}
- key: login
  rate_limit: {name: sign-in, unit: minute, requests_per_unit: 1}
  answer: {headers: ietf, body: problem, description: Too many attempts.}
"""  # noqa: E501


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with `RULES` for all tests that ask of keys of their own."""
    live = Live(tmp_path_factory.mktemp("live"), RULES)
    yield live
    live.close()
