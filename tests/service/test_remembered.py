"""Whatever a service remembers of earlier requests, it plans the next as if it were the first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_service import wire
from ratelimit_service.model import (
    Code,
    Descriptor,
    Entry,
    Hit,
    Outcome,
    Override,
    OverrideKind,
    Request,
)
from ratelimit_service.service import Answer, CallbackBatch, Service
from ratelimit_service.stores import Outcomes
from tests.examples import up_to
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


def fresh(rules: Asking) -> tuple[Service, Recording]:
    """A service that remembers nothing."""
    store, snapshot = Recording(), rules.rules.snapshot
    return Service(lambda: snapshot, store, rules.settings, rules.stats), store


def damaged(request: Request, damage: tuple[int, int] | None) -> bytes:
    encoded = bytearray(wire.encode_request(request))
    if damage:
        encoded[damage[0] % len(encoded)] = damage[1]
    return bytes(encoded)


def decided(service: Service, store: Recording, body: bytes) -> tuple[list[Answer], list[object]]:
    store.hits.clear()
    answers: list[Answer] = []
    service.submit(CallbackBatch([body], answers.extend))
    return answers, list(store.hits)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=up_to(300))
@given(st.lists(st.tuples(REQUEST, DAMAGE), min_size=1, max_size=12))
def test_plans_are_those_of_a_service_that_remembers_nothing(
    rules: Asking, asked: list[tuple[Request, tuple[int, int] | None]]
) -> None:
    """After any requests, good or broken, each has the hits and the answer of a first one."""
    used, used_store = fresh(rules)
    bodies = [body for one in asked for body in [damaged(*one)] * 3]

    first = {body: decided(*fresh(rules), body) for body in {*bodies}}
    for body in [*bodies, *bodies]:
        assert decided(used, used_store, body) == first[body]


OVERRIDE = st.builds(
    lambda kind, entries: (kind, tuple(entries)),
    st.sampled_from([OverrideKind.BAN, OverrideKind.EXEMPT, OverrideKind.LIMIT]),
    st.lists(ENTRY | st.just(Entry("path", "/a*")), min_size=1, max_size=2),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=up_to(40))
@given(
    st.lists(st.tuples(REQUEST, DAMAGE), min_size=1, max_size=8),
    st.lists(OVERRIDE, min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_overrides_hold_whatever_is_remembered(
    rules: Asking,
    asked: list[tuple[Request, tuple[int, int] | None]],
    made: list[tuple[OverrideKind, tuple[Entry, ...]]],
    asked_before: list[bool],
) -> None:
    """Overrides that come one by one hold for each request as if it were the first one.

    So it is however its bytes say it, and whatever was known of it before.
    """
    overrides = [
        Override(f"{number:08x}", kind, "edge", entries, number, 1)
        for number, (kind, entries) in enumerate(made)
    ]
    # Overrides are made for what is asked as well.
    for number, (request, _) in enumerate(asked[:2]):
        if request.domain == "edge" and request.descriptors[0].entries:
            ban = Override(
                f"f{number}", OverrideKind.BAN, "edge", request.descriptors[0].entries, 9
            )
            overrides.append(ban)

    used, used_store = fresh(rules)
    bodies = [damaged(*one) for one in asked]

    for number, override in enumerate(overrides):
        used.overrides.add([override])
        for body in bodies:
            expected_of, store = fresh(rules)
            expected_of.overrides.add(overrides[: number + 1])
            expected = decided(expected_of, store, body)
            for _ in range(3 if asked_before[number % len(asked_before)] else 1):
                assert decided(used, used_store, body) == expected
    for override in overrides:
        used.overrides.remove([override])
    for body in bodies:
        assert decided(used, used_store, body) == decided(*fresh(rules), body)


def odd(entries: bytes, other: str = "") -> bytes:
    """A request for `edge` of a descriptor with these bytes, perhaps of another user's as well."""
    others = b""
    if other:
        others = wire.plain_descriptor((Entry("user", other),))
    return b"\x0a\x04edge\x12" + bytes((len(entries),)) + entries + others + b"\x18\x01"


@pytest.mark.parametrize(
    "descriptor",
    [
        b"\x0a\x0b\x0a\x04user\x12\x03bob",
        b"\x0a\x0b\x12\x03bob\x0a\x04user",
        b"\x0a\x0c\x0a\x84\x00user\x12\x03bob",
        b"\x0a\x8b\x00\x0a\x04user\x12\x03bob",
        b"\x0a\x0f\x0a\x04user\x12\x02no\x12\x03bob",
    ],
    ids=["plain", "the value first", "a long length", "two long lengths", "the last value counts"],
)
def test_no_bytes_evade_a_ban(tmp_path: Path, descriptor: bytes) -> None:
    """A descriptor that protobuf reads as a banned one is denied, however it is written.

    It may have been remembered before, with and without an override of others in force, alone and
    beside descriptors that are new each time.
    """
    asking = Asking(tmp_path, RULES.replace("unlimited: true", "unit: day, requests_per_unit: 99"))
    service, numbers = asking.service, count()

    def code(other: bool = False) -> Code:
        answers: list[Answer] = []
        service.submit(
            CallbackBatch([odd(descriptor, f"u{next(numbers)}" if other else "")], answers.extend)
        )
        assert isinstance(answers[0], bytes)
        return wire.decode_decision(answers[0]).code

    bob, ann = (
        Override(name, OverrideKind.BAN, "edge", (Entry("user", name),), 1)
        for name in ("bob", "ann")
    )
    assert [code() for _ in range(3)] == [Code.OK] * 3
    service.overrides.add([ann])
    assert [code() for _ in range(3)] == [Code.OK] * 3
    assert [code(other=True) for _ in range(3)] == [Code.OK] * 3
    service.overrides.add([bob])
    assert [code() for _ in range(3)] == [Code.OVER_LIMIT] * 3
    assert [code(other=True) for _ in range(3)] == [Code.OVER_LIMIT] * 3
    service.overrides.remove([bob])
    assert [code() for _ in range(3)] == [Code.OK] * 3
