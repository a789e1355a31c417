"""The short way of an answer says, and tallies, what the long way does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_service import limiter, wire
from ratelimit_service.model import Descriptor, Entry, Hit, Outcome, Request
from ratelimit_service.service import Answer
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes
from tests.service.asking import Asking, Away

KEYS = ("open", "closed", "error", "local", "shadow", "counted", "leased", "free", "none")
RULES = """
domain: edge
descriptors:
  - {key: open, rate_limit: {unit: minute, requests_per_unit: 20, failure_policy: open}}
  - {key: closed, rate_limit: {unit: minute, requests_per_unit: 20, failure_policy: closed}}
  - {key: error, rate_limit: {unit: minute, requests_per_unit: 20, failure_policy: error}}
  - {key: local, rate_limit: {unit: minute, requests_per_unit: 20, failure_policy: local}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 20}}
  - key: counted
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 20, count_denied: true, name: of all}
  - key: leased
    rate_limit: {unit: minute, requests_per_unit: 20, algorithm: concurrency}
  - {key: free, rate_limit: {unlimited: true}}
"""

COUNTED = st.builds(
    Outcome,
    st.booleans(),
    st.integers(0, 20),
    st.integers(0, 7_200_000_000),
    st.integers(0, 3),
    st.booleans(),
)
DESCRIPTOR = st.builds(
    Descriptor,
    st.sampled_from(KEYS).map(lambda key: (Entry(key, "a"),)),
    st.none(),
    st.none() | st.integers(0, 3),
    st.booleans(),
)
REQUEST = st.tuples(st.lists(DESCRIPTOR, min_size=1, max_size=4).map(tuple), st.integers(0, 3)).map(
    lambda parts: Request("edge", *parts)
)


class Given(Away):
    """A store that answers with what it was given, hit by hit."""

    def __init__(self, outcomes: Sequence[Outcome | None]) -> None:
        self.given = outcomes

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        """Where all hits pass they are charged in full, as every store does it."""
        found = self.given[: len(hits)]
        if any(one is None or one.over for one in found):
            return found
        return [
            one and one._replace(charged=hit.addend) for one, hit in zip(found, hits, strict=True)
        ]


def told(
    directory: Path, request: Request, outcomes: Sequence[Outcome | None]
) -> tuple[list[Answer], object]:
    """The answer, and everything that was counted for it."""
    asking = Asking(directory, RULES, settings=Settings(), store=Given(outcomes))
    answers: list[Answer] = []
    asking.service.submit([wire.encode_request(request)], answers.extend)
    (domain,) = asking.rules.snapshot.domains.values()
    tallies = [
        (rule.path, value, tally.take())
        for rule in domain.rules
        for value, tally in rule.tallies.items()
    ]
    taken = asking.counters.take()
    return answers, (tallies, taken["numbers"], taken["labelled"])


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=60,
)
@given(REQUEST, st.lists(st.none() | COUNTED, min_size=4, max_size=4))
def test_short_answers_are_the_long_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: Request,
    outcomes: Sequence[Outcome | None],
) -> None:
    """Whatever a store says of a request, its answer and its tallies are those of the long way."""
    with monkeypatch.context() as patched:
        patched.setattr("ratelimit_service.service.asked.token_bytes", lambda count: b"\1" * count)
        short = told(tmp_path, asked, outcomes)
        patched.setattr(limiter, "plain", lambda *_: None)
        patched.setattr("ratelimit_service.service.answering._WITHIN", None)
        long = told(tmp_path, asked, outcomes)

    assert short == long
