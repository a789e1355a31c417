"""Whatever a service remembers of earlier requests, it plans the next as if it were the first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_service import wire
from ratelimit_service.model import Descriptor, Entry, Hit, Outcome, Request
from ratelimit_service.service import Answer, Service
from ratelimit_service.stores import Outcomes
from tests.service.asking import Asking, Away

RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors:
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 2, algorithm: token_bucket}
      - key: plan
        value: free
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: plan
        rate_limit: {unit: hour, requests_per_unit: 2}
  - key: user
    value: bob
    rate_limit: {unlimited: true}
  - key: path
    value: /a*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: path
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: plan
    rate_limits:
      - {unit: minute, requests_per_unit: 2}
      - {unit: hour, requests_per_unit: 2}
  - key: shown
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 2}
"""


class Recording(Away):
    """A store in which all hits pass, and which tells what they were."""

    def __init__(self) -> None:
        self.hits: list[Sequence[Hit]] = []

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        self.hits.append(hits)
        return [Outcome(False, 1, 1, hit.addend) for hit in hits]


VALUE = (
    st.sampled_from(["", "bob", "bo", "free", "/a", "/ab", "x" * 127, "y" * 128])
    | st.text("ab/\u00fc", min_size=2, max_size=2)
    | st.text()
)
"""Among them many of one length: all that is in front of a value is remembered by its bytes."""

ENTRY = st.builds(Entry, st.sampled_from(["user", "path", "plan", "shown", "ü"]), VALUE)
DESCRIPTOR = st.builds(
    Descriptor,
    st.lists(ENTRY, max_size=3).map(tuple),
    st.none(),
    st.none() | st.integers(0, 3),
    st.booleans(),
)
REQUEST = st.builds(
    Request,
    st.sampled_from(["edge", "other"]),
    st.lists(DESCRIPTOR, min_size=1, max_size=3).map(tuple),
    st.integers(0, 2),
)
DAMAGE = st.none() | st.tuples(st.integers(0, 1 << 16), st.integers(0, 255))


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Asking:
    return Asking(tmp_path_factory.mktemp("rules"), RULES)


def decided(service: Service, store: Recording, body: bytes) -> tuple[list[Answer], list[object]]:
    store.hits.clear()
    answers: list[Answer] = []
    service.submit([body], answers.extend)
    return answers, list(store.hits)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.lists(st.tuples(REQUEST, DAMAGE), min_size=1, max_size=12))
def test_plans_are_those_of_a_service_that_remembers_nothing(
    rules: Asking, asked: list[tuple[Request, tuple[int, int] | None]]
) -> None:
    """After any requests, good or broken, each has the hits and the answer of a first one."""

    def fresh() -> tuple[Service, Recording]:
        store = Recording()
        snapshot = rules.rules.snapshot
        return Service(lambda: snapshot, store, rules.settings, rules.stats), store

    used, used_store = fresh()
    bodies: list[bytes] = []
    for request, damage in asked:
        encoded = bytearray(wire.encode_request(request))
        if damage:
            encoded[damage[0] % len(encoded)] = damage[1]
        bodies += [bytes(encoded)] * 3

    first = {body: decided(*fresh(), body) for body in {*bodies}}
    for body in [*bodies, *bodies]:
        assert decided(used, used_store, body) == first[body]
