"""Which denied requests go into the queues of rules, and what becomes of them there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from ratelimit_service import wire
from ratelimit_service.errors import StoreError
from ratelimit_service.model import (
    SECOND_US,
    Code,
    Descriptor,
    Entry,
    FailurePolicy,
    Hit,
    Limit,
    Outcome,
    Request,
    Unit,
)
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Rule
from ratelimit_service.service import enqueueing
from ratelimit_service.service.enqueueing import Enqueueing
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes, Store
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.queues import Queue, QueueLook
from ratelimit_service.wire.json import requests_from_json
from ratelimit_service.wire.request_json import request_to_json
from tests.examples import up_to
from tests.service.asking import Asking, Away, descriptor
from tests.service.overriding import BAN, override
from tests.stores.conftest import Time
from tests.stores.test_local_cache import Counting
from tests.wire.test_messages import REQUEST, result_of

RULES = """
domain: edge
descriptors:
  - {key: user, on_limit: enqueue, rate_limit: {unit: day, requests_per_unit: 1}}
  - key: job
    on_limit: enqueue
    metadata: {team: mail}
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: spent
    on_limit: enqueue
    rate_limit: {unit: day, requests_per_unit: 1, count_denied: true}
  - {key: path, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, on_limit: enqueue, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: other, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: open, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: deny, on_limit: deny, rate_limit: {unit: day, requests_per_unit: 1}}
"""


class Kept:
    """Queues in a list each."""

    def __init__(self) -> None:
        self.queues: dict[Queue, list[Mapping[str, str]]] = {}
        self.lost: dict[Queue, int] = {}
        self.removed: set[Queue] = set()
        self.fault: Exception | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def put(self, queue: Queue, items: Sequence[Mapping[str, str]], lost: int) -> int:
        await self.may_go_on.wait()
        if self.fault is not None:
            raise self.fault
        kept = self.queues.setdefault(queue, [])
        kept += items
        self.lost[queue] = self.lost.get(queue, 0) + lost
        return 0

    async def look(self, queue: Queue) -> QueueLook:
        if self.fault is not None:
            raise self.fault
        length = len(self.queues.get(queue, []))
        oldest, newest = (4_000 * SECOND_US, 90 * SECOND_US) if length else (None, None)
        lost, there = self.lost.get(queue, 0), queue in self.queues
        return QueueLook(f"key of {queue.rule}", "here", length, oldest, newest, lost, there)

    async def listed(self) -> list[Queue]:
        if self.fault is not None:
            raise self.fault
        return sorted({*self.queues, *self.removed})

    async def forget(self, queue: Queue) -> None:
        self.removed.discard(queue)


class Enqueued(Asking):
    """A service with queues."""

    def __init__(
        self,
        directory: Path,
        store: Store | None = None,
        settings: Settings | None = None,
        rules: str = RULES,
    ) -> None:
        super().__init__(directory, rules, store=store, settings=settings)
        self.kept = Kept()
        self.enqueueing = self.service.enqueueing = Enqueueing(self.kept, self.stats)

    async def queued(self) -> dict[str, list[Any]]:
        """What lies in the queue of each rule: the values of the first entries of descriptors."""
        await self.enqueueing.finish()
        return {
            queue.rule: [
                [each["entries"][0]["value"] for each in json.loads(item["request"])["descriptors"]]
                for item in items
            ]
            for queue, items in self.kept.queues.items()
        }


@pytest.fixture
def enqueued(tmp_path: Path) -> Enqueued:
    return Enqueued(tmp_path)


async def test_what_is_denied(enqueued: Enqueued) -> None:
    """What a rule denies goes into its queue in order, and nothing else does."""
    for user in ("ann", "ann", "bob", "ann", "bob"):
        await enqueued.ask(f"user={user}")
    for each in ("path=a", "path=a", "deny=a", "deny=a", "seen=a", "seen=a", "unknown=a"):
        await enqueued.ask(each)

    assert await enqueued.queued() == {"user": [["ann"], ["ann"], ["bob"]]}
    assert enqueued.stats.queued == {"written": 3, "dropped_oldest": 0}


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (["user=a"], "user"),
        (["open=a", "user=a"], "user"),
        (["job=a", "user=a"], "job"),
        (["user=a", "job=a"], "user"),
        (["seen=a", "user=a"], "user"),
        (["path=a", "user=a"], None),
        (["user=a", "path=a"], None),
        (["user=a", "user=new"], "user"),
        (["user=a", "path=new"], "user"),
        (["quota=a"], "quota"),
        (["quota=a", "other=a"], None),
        (["quota=a", "other=new"], None),
        (["user=a", "other=a"], None),
        (["user=a", "other=a", "quota=new"], "user"),
        (["user=a", "unknown=a"], "user"),
    ],
)
async def test_all_who_deny_must_say_so(
    enqueued: Enqueued, asked: list[str], rule: str | None
) -> None:
    """A request is queued if all rules that deny it say so, by the rule that comes first."""
    for key in ("user", "job", "path", "seen", "quota", "other"):
        await enqueued.ask(f"{key}=a")

    await enqueued.ask(*asked)

    names = [each.partition("=")[2] for each in asked]
    assert await enqueued.queued() == ({rule: [names]} if rule else {})


async def test_a_limit_that_the_caller_brings(enqueued: Enqueued) -> None:
    """No rule says what becomes of what it denies, so that is not queued."""
    none = Limit(0, Unit.DAY)

    await enqueued.ask(descriptor("user=a", limit=none))
    await enqueued.ask("user=b", descriptor("any=a", limit=none))

    assert await enqueued.queued() == {}


async def test_peeks(enqueued: Enqueued) -> None:
    """Who only looks has nothing that could be done later."""
    await enqueued.ask("job=a")
    await enqueued.ask("spent=a", hits=5)
    look = descriptor("spent=a", addend=0)

    denied = [
        await enqueued.ask(look),
        await enqueued.ask(look, "job=new"),
        await enqueued.ask(look, "job=a"),
    ]

    assert [each.code for each in denied] == [Code.OVER_LIMIT] * 3
    assert await enqueued.queued() == {"spent": [["a"], ["a", "a"]]}


async def test_bans(enqueued: Enqueued) -> None:
    """What an operator bans is not queued, whatever its rule says."""
    enqueued.service.overrides.add([override(BAN, "user=ann")])

    answer = await enqueued.ask("user=ann")

    assert answer.code is Code.OVER_LIMIT
    assert await enqueued.queued() == {}


@pytest.mark.parametrize("policy", [FailurePolicy.CLOSED, FailurePolicy.ERROR])
async def test_failure_policies(tmp_path: Path, policy: FailurePolicy) -> None:
    """What a failure policy denies is not over its limit, so it is not queued."""
    enqueued = Enqueued(tmp_path, Away(), Settings(failure_policy=policy))

    await enqueued.answer(Request("edge", (descriptor("user=a"),)))

    assert await enqueued.queued() == {}


class Alone(Away):
    """A store that is away, of which this process counts every second hit alone."""

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        counted = Outcome(over=True, remaining=0, reset_us=SECOND_US, charged=0)
        return [counted.replaced(local=place % 2 == 0) for place in range(len(hits))]


async def test_what_a_process_denies_alone(tmp_path: Path) -> None:
    """`local` is a failure policy: what it denies is not queued, what a count denies is."""
    enqueued = Enqueued(tmp_path, Alone(), Settings(failure_policy=FailurePolicy.LOCAL))

    for entries in (["user=a"], ["user=a", "user=b"], ["seen=a", "user=b"]):
        answer = await enqueued.answer(Request("edge", tuple(map(descriptor, entries))))
        assert answer.code is Code.OVER_LIMIT

    assert await enqueued.queued() == {"user": [["a", "b"]]}


class Parted(Away):
    """A store that says which of three hits is over, or does not say it (None)."""

    def __init__(self, *over: bool | None) -> None:
        self._over = over

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        return [
            None if over is None else Outcome(over=over, remaining=0, reset_us=SECOND_US, charged=0)
            for over, _ in zip(self._over, hits, strict=True)
        ]


@pytest.mark.parametrize(
    ("over", "queued"),
    [
        ((None, True, False), {"user": [["a", "b", "c"]]}),
        ((False, True, None), {"user": [["a", "b", "c"]]}),
        ((None, True, True), {}),
        ((False, None, False), {}),
    ],
)
async def test_a_quota_that_a_failure_policy_denies(
    tmp_path: Path, over: tuple[bool | None, ...], queued: dict[str, list[list[str]]]
) -> None:
    """It denies the request only if no other quota has room, so only then nothing is queued."""
    enqueued = Enqueued(tmp_path, Parted(*over), Settings(failure_policy=FailurePolicy.CLOSED))
    entries = map(descriptor, ["quota=a", "user=b", "quota=c"])

    answer = await enqueued.answer(Request("edge", tuple(entries)))

    assert answer.code is Code.OVER_LIMIT
    assert await enqueued.queued() == queued


async def test_what_the_local_cache_denies(tmp_path: Path) -> None:
    """It is queued too, also for lack of time."""
    clock = Time()
    enqueued = Enqueued(tmp_path, LocalCache(Counting(clock), 1 << 20, Stats(), clock))
    service = enqueued.service
    body = wire.encode_request(Request("edge", (descriptor("user=ann"),)))
    for _ in range(5):
        await service.decide([body])

    service.deny_known([body] * 4)

    assert await enqueued.queued() == {"user": [["ann"]] * (4 + 4)}


async def test_what_an_item_says(enqueued: Enqueued) -> None:
    """An item is the request as /json takes it, its rule, and the metadata of the rule."""
    asked = (
        Descriptor((Entry("job", "é\r\n\u202e"), Entry("more", "")), None, 3),
        Descriptor((Entry("user", "ann"),), Limit(5, Unit.WEEK, 2)),
        Descriptor((Entry("user", "refunded"),), is_negative_hits=True),
        Descriptor((Entry("job", "7"),)),
    )
    for _ in range(2):
        await enqueued.answer(Request("edge", asked, 2))
    await enqueued.enqueueing.finish()

    (first, second) = enqueued.kept.queues[Queue("edge", "job")]
    assert first == second
    assert first["rule"] == "job"
    assert json.loads(first["metadata"]) == {"team": "mail"}
    (body,) = result_of(requests_from_json(first["request"].encode(), refunds=False)).requests
    assert wire.decode_request(body) == Request("edge", (asked[0], asked[1], asked[3]), 2)


@settings(max_examples=up_to(30))
@given(REQUEST)
def test_any_request_in_json(request: Request) -> None:
    """What is written of any request, /json reads as the same request, from one line."""
    text = request_to_json(request)

    (body,) = result_of(requests_from_json(text.encode(), refunds=True)).requests
    assert wire.decode_request(body) == request
    assert "\n" not in text


async def denials(enqueued: Enqueued, count: int, user: str = "a") -> None:
    """So many requests that are denied, after one that is not."""
    body = wire.encode_request(Request("edge", (descriptor(f"user={user}"),)))
    await enqueued.service.decide([body] * (count + 1))


async def test_answers_never_wait(enqueued: Enqueued, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the queue hangs requests are answered; those it has no room for are counted."""
    monkeypatch.setattr(enqueueing, "_MOST_WAITING", 50)
    monkeypatch.setattr(enqueueing, "_AT_ONCE", 10)
    enqueued.kept.may_go_on.clear()

    await denials(enqueued, 80)
    dropped = enqueued.stats.queued["dropped_busy"]
    assert (dropped, enqueued.stats.queued["written"]) == (30, 0)
    enqueued.kept.may_go_on.set()

    assert len((await enqueued.queued())["user"]) == 50
    await denials(enqueued, 1, "b")
    assert len((await enqueued.queued())["user"]) == 51
    assert enqueued.kept.lost[Queue("edge", "user")] == 30


async def test_the_end_does_not_wait_for_a_queue(
    enqueued: Enqueued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends waits a moment for a queue that hangs; what is left is counted."""
    monkeypatch.setattr(enqueueing, "_AT_ONCE", 10)
    monkeypatch.setattr(enqueueing, "_FINISH_SECONDS", 0.05)
    enqueued.kept.may_go_on.clear()
    await denials(enqueued, 80)

    await enqueued.enqueueing.finish()

    assert enqueued.stats.queued == {"dropped_error": 80}
    enqueued.kept.may_go_on.set()
    await denials(enqueued, 1, "b")
    assert await enqueued.queued() == {"user": [["b"]]}


async def test_bytes_are_bounded(enqueued: Enqueued, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting requests have so many bytes at most, and one of them too."""
    monkeypatch.setattr(enqueueing, "_MOST_BYTES_WAITING", 10 * enqueueing.MOST_BYTES)
    name = "x" * (enqueueing.MOST_BYTES - 100)

    await denials(enqueued, 20, name)
    await denials(enqueued, 5, name + "y" * 100)
    await enqueued.queued()

    assert enqueued.stats.queued == {
        "written": 10,
        "dropped_oldest": 0,
        "dropped_busy": 10,
        "dropped_large": 5,
    }


async def test_a_queue_that_is_away(enqueued: Enqueued) -> None:
    """What it does not confirm is dropped, not sent again, and told when it is back."""
    enqueued.kept.fault = StoreError("Redis is away")
    await denials(enqueued, 3)
    assert await enqueued.queued() == {}
    assert enqueued.stats.queued == {"dropped_error": 3}

    enqueued.kept.fault = None
    await denials(enqueued, 1, "b")

    assert await enqueued.queued() == {"user": [["b"]]}
    assert enqueued.kept.lost == {Queue("edge", "user"): 3}


async def test_no_queue_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With counters in memory it is counted, and the log says once what to do."""
    asking = Asking(tmp_path, RULES)
    asking.service.enqueueing = Enqueueing(None, asking.stats)

    for _ in range(4):
        await asking.ask("user=a")

    assert asking.stats.queued == {"dropped_no_redis": 3}
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "nothing is queued (on_limit: enqueue in user of edge): queues are in Redis, and counters "
        "are not; give a Redis as --store, or remove on_limit"
    )


class Asked(Enqueueing):
    """Notes that it was asked to take a request."""

    asked = 0

    def take(self, rule: Rule, body: bytes) -> None:
        self.asked += 1
        super().take(rule, body)


@pytest.mark.parametrize(("says", "asked"), [("enqueue", 1), ("deny", 0)])
async def test_rules_without_queues_hand_nothing_on(tmp_path: Path, says: str, asked: int) -> None:
    """Where no rule has a queue nobody is asked to take a request."""
    asking = Asking(tmp_path, RULES.replace("on_limit: enqueue", f"on_limit: {says}"))
    asking.service.enqueueing = taking = Asked(None, asking.stats)

    assert (await asking.ask("user=a")).code is Code.OK
    assert (await asking.ask("user=a")).code is Code.OVER_LIMIT
    assert taking.asked == asked


@pytest.mark.parametrize("fault", [KeyError("x"), StoreError("x")])
async def test_a_fault_costs_nobody_an_answer(
    enqueued: Enqueued, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails on the way into a queue, callers have their answers, and it goes on."""
    enqueued.kept.fault = fault
    await denials(enqueued, 2)
    await enqueued.enqueueing.finish()
    enqueued.kept.fault = None
    await denials(enqueued, 2, "b")

    assert await enqueued.queued() == {"user": [["b"]] * 2}
    assert enqueued.stats.queued["dropped_error"] == 2
    assert ("please report" in caplog.text) == isinstance(fault, KeyError)
