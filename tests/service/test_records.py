"""What a listener hears of decisions."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.model import FailurePolicy, Outcome, Request
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import DecidedBatch, DecidedBy, Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store, Verdict
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from tests.service.asking import Asking, Away, Heard, descriptor

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1, name: users}}
  - {key: path, rate_limit: {unit: day, requests_per_unit: 9, name: paths}}
  - {key: free, rate_limit: {unlimited: true}}
"""


def listened(
    directory: Path, store: Store | None = None, settings: Settings | None = None
) -> tuple[Asking, Heard]:
    asking = Asking(directory, RULES, store=store, settings=settings)
    return asking, Heard(asking.service)


async def test_what_was_asked_and_which_limit_decided(tmp_path: Path) -> None:
    """A record says what was asked, how it ended, by which limit, and the count there."""
    asking, heard = listened(tmp_path)

    await asking.ask("path=a", "user=bob")
    await asking.ask("path=a", "user=bob")
    await asking.ask("free=a")

    passed, denied, free = heard
    assert wire.decode_request(passed.body).descriptors[1].entries == (("user", "bob"),)
    assert [each.verdict for each in heard] == [Verdict.WITHIN, Verdict.DENIED, Verdict.ADMITTED]
    assert [each.by for each in heard] == [DecidedBy.COUNT, DecidedBy.COUNT, DecidedBy.NOTHING]
    assert [each.limit and each.limit.name for each in heard] == ["users", "users", None]
    assert (denied.rule, free.rule) == ("user", "")
    assert isinstance(passed.outcome, Outcome)
    assert (passed.outcome.remaining, passed.outcome.charged) == (0, 1)


@pytest.mark.parametrize("policy", [FailurePolicy.OPEN, FailurePolicy.CLOSED, FailurePolicy.ERROR])
async def test_by_policy(tmp_path: Path, policy: FailurePolicy) -> None:
    """Without a count a record says that the failure policy decided, and on which limit."""
    asking, heard = listened(tmp_path, Away(), Settings(failure_policy=policy))

    await asking.service.decide([wire.encode_request(_request("user=bob"))])

    (one,) = heard
    assert (one.by, one.outcome, one.rule) == (DecidedBy.POLICY, None, "user")
    assert isinstance(one.answer, Refusal) == (policy is FailurePolicy.ERROR)


async def test_by_local_cache(tmp_path: Path) -> None:
    """Who is known to be over is told apart from who was counted."""
    parts = Asking(tmp_path, RULES)
    memory = MemoryStore(9, parts.stats, parts.health, lambda: parts.now_us)
    asking, heard = listened(tmp_path, LocalCache(memory, 1 << 20, Stats()))

    for _ in range(3):
        await asking.ask("user=bob")

    assert [each.by for each in heard] == ["count", "count", "local_cache"]


async def test_listener_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A listener that fails costs no answer, and no other listener a decision. It is in the log."""
    asking, _ = listened(tmp_path)

    class Failing(Heard):
        def hear(self, _: DecidedBatch) -> None:
            raise KeyError("no disk")

    failing, later = Failing(asking.service), Heard(asking.service)
    with caplog.at_level(logging.ERROR):
        decision = await asking.ask("user=bob")

    assert decision.statuses
    assert "no disk" in caplog.text
    assert (len(failing), len(later)) == (0, 1)


async def test_decisions_that_a_fault_has_ended(tmp_path: Path) -> None:
    """Who listens hears also of requests that a fault of ours has refused."""

    class Broken(Away):
        def charge(self, *_: object, **__: object) -> None:
            raise KeyError("a fault of the store")

    asking, heard = listened(tmp_path, Broken())
    await asking.answer(_request("user=bob"))
    await asking.answer(_request("free=a"))

    refused, free = heard
    assert isinstance(refused.answer, Refusal)
    assert (refused.denied, free.denied) == (True, False)


def _request(text: str) -> Request:
    return Request("edge", (descriptor(text),))
