"""Whatever the short ways do, the long ways do the same, byte by byte and tally by tally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from ratelimit_service import compiled, limiter, wire
from ratelimit_service.limiter import Planner, PlanTemplate, compiler
from ratelimit_service.model import (
    CountDenied,
    Descriptor,
    Entry,
    FailurePolicy,
    Hit,
    Limit,
    Outcome,
    Request,
    Unit,
)
from ratelimit_service.service import Answer, CallbackBatch
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes, Store
from ratelimit_service.stores.memory import MemoryStore
from tests.examples import up_to
from tests.service.asking import Asking, Away

pytestmark = pytest.mark.skipif(compiled(), reason="no short way can be taken away from it")

LIMITS = (
    "{unit: minute, requests_per_unit: 5}",
    "{unit: minute, requests_per_unit: 5, name: shown, count_denied: true}",
    "{unit: minute, requests_per_unit: 5, soft: 20%}",
    "{unit: minute, requests_per_unit: 5, group: {ipv4: 24}}",
    "{unit: month, requests_per_unit: 5, per: calendar, time_zone: Europe/Berlin}",
    "{unit: minute, requests_per_unit: 5, algorithm: sliding_window}",
    "{unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 3}",
    "{unit: second, requests_per_unit: 5, algorithm: leaky_bucket, max_wait: 1s}",
    "{unit: minute, requests_per_unit: 3, algorithm: concurrency}",
    "{unlimited: true}",
)
OTHERS = (
    "",
    "shadow_mode: true, ",
    "quota_mode: true, ",
    "detailed_metric: true, ",
    "value_to_metric: true, ",
    "on_limit: enqueue, ",
    "answer: {headers: ietf, body: problem, description: Slow down}, ",
    "answer: {headers: x-ratelimit, template: '{limit} a {unit}'}, ",
)
KEYS = "abcd"
POLICIES = st.sampled_from([None, *FailurePolicy])


def rule(key: str, parts: tuple[str, Sequence[str], FailurePolicy | None]) -> str:
    other, limits, policy = parts
    said = f", failure_policy: {policy}" if policy else ""
    if len(limits) == 1:
        one = limits[0] if "unlimited" in limits[0] else f"{limits[0][:-1]}{said}}}"
        return f"  - {{key: {key}, {other}rate_limit: {one}}}"
    each = ", ".join(f"{one[:-1]}{said}}}" for one in limits)
    return f"  - {{key: {key}, {other}rate_limits: [{each}]}}"


LIMITED = st.sampled_from(LIMITS).map(lambda one: (one,)) | st.just((LIMITS[0], LIMITS[4]))
RULES = st.lists(st.tuples(st.sampled_from(OTHERS), LIMITED, POLICIES), min_size=4, max_size=4).map(
    lambda parts: "domain: edge\ndescriptors:\n" + "\n".join(map(rule, KEYS, parts))
)
SETTINGS = st.sampled_from(
    [
        Settings(),
        Settings(),
        Settings(limit_response_headers=True),
        Settings(headers="x-ratelimit", denial_body="json", dynamic_metadata=True),
        Settings(dynamic_metadata=True),
        Settings(decision_metadata=True),
        Settings(denial_quota=True),
        Settings(shadow_mode=True),
        Settings(quota_mode=True),
        Settings(count_denied=CountDenied.ALL, failure_policy=FailurePolicy.CLOSED),
        Settings(count_denied=CountDenied.REPORTED),
    ]
)
ENTRIES = st.tuples(
    st.sampled_from(KEYS + "e"), st.sampled_from(("x", "y", "10.0.0.1", "10.0.0.2"))
).map(lambda pair: (Entry(*pair),))
USUAL = ENTRIES.map(Descriptor)
DESCRIPTOR = USUAL | st.builds(
    Descriptor,
    ENTRIES,
    st.none() | st.just(Limit(3, Unit.MINUTE)),
    st.none() | st.integers(0, 6),
    st.sampled_from([False, False, False, True]),
)
REQUEST = st.builds(
    Request, st.just("edge"), st.lists(DESCRIPTOR, min_size=1, max_size=3).map(tuple), st.just(0)
)
OUTCOME = st.none() | st.builds(
    Outcome,
    st.booleans(),
    st.integers(0, 5),
    st.integers(0, 7_200_000_000),
    st.integers(0, 3),
    st.booleans(),
)


class Given(Away):
    """A store that answers with what it was given, hit by hit."""

    def __init__(self, outcomes: Sequence[Outcome | None]) -> None:
        self.given = outcomes

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        """Where all hits pass they are charged in full, as every store does it."""
        found = [self.given[place % len(self.given)] for place in range(len(hits))]
        if any(one is None or one.over for one in found):
            return found
        return [
            one and one.replaced(charged=hit.addend) for one, hit in zip(found, hits, strict=True)
        ]


def told(
    asking: Asking, store: Store, settings: Settings, asked: Sequence[Request]
) -> tuple[list[Answer], object]:
    """The answers, and everything that was counted for them."""
    service = asking.served_by(store, settings)
    answers: list[Answer] = []
    for request in asked:
        service.submit(CallbackBatch([wire.encode_request(request)], answers.extend))
    (domain,) = asking.rules.snapshot.domains.values()
    tallies = [
        (one.path, value, tally.take())
        for one in domain.rules
        for value, tally in one.tallies.items()
    ]
    tallies += [("override", value, tally.take()) for value, tally in domain.overrides.items()]
    taken = asking.stats.take()
    return answers, ([each for each in tallies if each[2]], taken["numbers"], taken["labelled"])


def the_long_way(patched: pytest.MonkeyPatch) -> None:
    """Makes every rule unusual, and every request one that must be decoded."""
    patched.setattr(compiler, "takes_fast_path", lambda *_: False)
    patched.setattr(compiler, "stands_alone", lambda _: False)
    patched.setattr(wire, "plain_entries", lambda *_: None)
    patched.setattr(wire, "split_request", lambda _: None)
    patched.setattr(MemoryStore, "_charge", MemoryStore._settle)


def compare(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    rules: str,
    settings: Settings,
    store: Callable[[Asking], Store],
    asked: Sequence[Request],
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("ratelimit_service.service.planned.urandom", lambda count: b"\1" * count)
        asking = Asking(directory, rules)
        short = told(asking, store(asking), settings, asked)
        the_long_way(patched)
        asking = Asking(directory, rules)
        long = told(asking, store(asking), settings, asked)
    assert short == long


def memory(asking: Asking) -> Store:
    return MemoryStore(100, asking.stats, asking.health, lambda: asking.now_us)


LAW = hypothesis(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=up_to(40)
)


@LAW
@given(RULES, SETTINGS, REQUEST, st.lists(OUTCOME, min_size=1, max_size=4))
def test_any_outcome_is_answered_alike(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rules: str,
    settings: Settings,
    asked: Request,
    outcomes: Sequence[Outcome | None],
) -> None:
    """Whatever a store says of a request, both ways answer and tally the same."""
    compare(tmp_path, monkeypatch, rules, settings, lambda _: Given(outcomes), [asked])


@LAW
@given(RULES, SETTINGS, st.lists(REQUEST, min_size=1, max_size=8))
def test_requests_are_counted_alike(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rules: str,
    settings: Settings,
    asked: Sequence[Request],
) -> None:
    """Requests over the memory store, each three times, are planned and counted the same."""
    compare(tmp_path, monkeypatch, rules, settings, memory, [*asked, *asked, *asked])


def test_short_ways_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A usual request takes every short way, and no long one."""
    taken: Counter[str] = Counter()

    def counted(owner: object, name: str) -> None:
        before = getattr(owner, name)

        def counting(*given: object, **named: object) -> object:
            taken[name] += 1
            return before(*given, **named)

        monkeypatch.setattr(owner, name, counting)

    for name in ("plain", "answer", "tally", "tally_within", "tally_plain"):
        counted(limiter, name)
    for name in ("encode_within", "encode_plain", "encode_decision", "plain_entries"):
        counted(wire, name)
    counted(wire, "decode_request")
    counted(Planner, "plan")
    counted(Planner, "plan_alone")
    counted(PlanTemplate, "plan")
    counted(MemoryStore, "_settle")
    rules = f"domain: edge\ndescriptors:\n  - {{key: a, rate_limit: {LIMITS[0]}}}"
    asking = Asking(tmp_path, rules)

    for value in ("p", "q", "r", "r", "r", "r", "r", "r"):
        body = wire.encode_request(Request("edge", (Descriptor((Entry("a", value),)),)))
        asking.service.submit(CallbackBatch([body], lambda _: None))

    assert dict(taken) == {
        "encode_within": 7,
        "tally_within": 7,
        "plan": 2,  # by the template, which the second of its kind is remembered for
        "plan_alone": 2,
        "plain_entries": 2,
        "_settle": 1,  # who is over is denied by the rule of passing
        "plain": 1,
        "encode_plain": 1,
        "tally_plain": 1,
    }
