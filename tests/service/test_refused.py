"""Requests that get a status instead of a decision, for what they say or a fault of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.model import (
    Hit,
    OverrideKind,
    Request,
)
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.service import Refusal, Service
from ratelimit_service.stores import NEVER, Done, Wanted, always, judge
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.wire import decode_decision, encode_request
from tests.service.asking import Away, descriptor
from tests.service.deciding import OK, OVER, USER, Ask
from tests.service.overriding import GRANT, LIMIT, override
from tests.stores.cases import BROKEN
from tests.waiting import PATIENCE_SECONDS


async def test_bad_requests_are_refused_and_counted(asking: Ask) -> None:
    """A bad request gets its status and sentence, is counted, and harms no other of its batch."""
    service = asking(USER)

    answer = await service.answer(Request("", (descriptor("user=x"),)))

    assert isinstance(answer, Refusal)
    assert answer.code is StatusCode.INVALID_ARGUMENT
    assert "domain" in answer.message
    assert sum(service.stats.refusals.values()) == 1
    assert (await service.ask("user=x")).code is OK


class Broken(dict[str, Domain]):
    """Domains of which one cannot be looked up, as if by a fault of ours."""

    def get(self, name: str, default: Domain | None = None) -> Domain | None:  # type: ignore[override]
        if name == "broken":
            raise KeyError(name)
        return super().get(name, default)


async def test_fault_of_ours_is_one_refusal(asking: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception refuses that request, is logged, and harms no other."""
    service = asking(USER)
    snapshot = Snapshot(9, Broken(service.rules.snapshot.domains))
    broken = Service(
        lambda: snapshot,
        MemoryStore(9, service.stats, service.health),
        service.settings,
        service.stats,
    )
    bodies = [
        encode_request(Request(name, (descriptor("user=x"),)))
        for name in ("edge", "broken", "edge")
    ]

    answers = await broken.decide(bodies)

    assert isinstance(answers[1], Refusal)
    assert answers[1].code is StatusCode.INTERNAL
    assert "KeyError" in caplog.text
    assert [isinstance(answer, bytes) for answer in answers] == [True, False, True]


class Unsettled(Away):
    """A memory store that is asked for what it does not know where a key says so."""

    def __init__(self) -> None:
        self._memory = MemoryStore(9, Stats(), Health())

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        odd = [
            [one._replace(spec=BROKEN) for one in hits] if b"broken" in hits[0].key else hits
            for hits in requests
        ]
        self._memory.charge(odd, done, wanted, deadline_us, priority)


class Short(Away):
    """A store that forgets to say what some requests came to."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        with suppress(ValueError):  # as in Redis, where a reply is handled long after the call
            done([judge(hits, [None] * len(hits)) for hits in requests][1:])


@pytest.mark.parametrize("kind", [None, LIMIT, GRANT])
async def test_store_that_does_not_answer_each_request(
    asking: Ask, kind: OverrideKind | None
) -> None:
    """Whatever a store forgets, each request has an answer, also one with overrides."""
    service = asking(USER, store=Short())
    if kind is not None:
        service.service.overrides.add([override(kind, "user=x", 7)])
    body = encode_request(Request("edge", (descriptor("user=x"),)))

    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = await service.service.decide([body, body])

    assert [one.code for one in answers if isinstance(one, Refusal)] == [StatusCode.INTERNAL] * 2


async def test_fault_in_counting_is_one_refusal(
    asking: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that the memory store fails to count is refused, whatever its policy."""
    service = asking(USER, store=Unsettled())

    users = ("x", "broken", "x")
    requests = [Request("edge", (descriptor(f"user={user}"),)) for user in users]

    answers = await service.service.decide([encode_request(request) for request in requests])

    codes = [one.code if isinstance(one, Refusal) else decode_decision(one).code for one in answers]
    assert codes == [OK, StatusCode.INTERNAL, OK]
    assert (await service.ask("user=x")).code is OVER
    assert service.stats.refusals == {"internal": 1}
    assert "KeyError: 'none'" in caplog.text
