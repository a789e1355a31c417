"""What a limiter does by itself, with the real rules on a clock that stands still."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratelimit_client import (
    Decision,
    DeniedError,
    Limiter,
    Reason,
    SyncLimiter,
    UnavailableError,
)
from ratelimit_client.testing import VirtualClock, VirtualLimiter, VirtualSyncLimiter
from ratelimit_service.settings import Settings
from tests.ratelimit_client.broken import LOST, UNSENT, Broken, virtual
from tests.ratelimit_client.conftest import RULES


async def test_tries_again_what_was_never_sent() -> None:
    """What was certainly not counted is sent again, after a pause, until the attempts are used."""
    line = Broken(UNSENT, UNSENT)
    assert (await line.limiter(attempts=3).check(user="a")).remaining == 2
    assert len(line.asked) == 3
    assert 0.02 < line.clock.now() < 0.1

    line = Broken(UNSENT, UNSENT)
    with pytest.raises(UnavailableError):
        await line.limiter(attempts=2).check(user="a")


async def test_what_nothing_limits_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first answer that no limit holds is logged with what was asked; limited ones are not."""
    limiter = VirtualLimiter(RULES, domain="api")

    await limiter.check(user="a", cost=2)
    assert caplog.messages == []
    for _ in range(3):
        decision = await limiter.check(user="a", costs=2)
        assert decision.reason is Reason.NO_LIMIT

    (result,) = [each for each in caplog.messages if "no limit holds" in each]
    assert "the domain 'api' with the entries 'user', 'costs'" in result


async def test_does_not_try_again_what_may_have_been_counted() -> None:
    """A call without an answer is not sent again: it would be counted twice."""
    line = Broken(LOST)

    with pytest.raises(UnavailableError):
        await line.limiter(attempts=9).check(user="a")

    assert len(line.asked) == 1


async def test_honours_retry_after() -> None:
    """A call is sent again no sooner than the answer says, and not at all beyond the deadline."""
    soon = UnavailableError("busy", retriable=True, retry_after=0.3)
    line = Broken(soon)
    assert (await line.limiter().check(user="a")).allowed
    assert 0.3 <= line.clock.now() < 0.4

    late = UnavailableError("busy", retriable=True, retry_after=1.0)
    line = Broken(late)
    with pytest.raises(UnavailableError):
        await line.limiter(attempts=9).check(user="a")
    assert len(line.asked) == 1


async def test_waits_for_its_turn() -> None:
    """Who waits passes when the window is over, a little later, and never more than the limit."""
    limiter = virtual()
    at = []
    for _ in range(7):
        assert (await limiter.wait(user="a", at_most=100)).allowed
        at.append(limiter.clock.now())

    assert at[:3] == [0, 0, 0]
    assert all(60 <= moment <= 66 for moment in at[3:6])
    assert 120 <= at[6] <= 132


async def test_waits_no_longer_than_it_may() -> None:
    """Who would have to wait for longer is denied at once, and nothing is counted."""
    limiter = virtual()
    await limiter.check(user="a", cost=3)

    decision = await limiter.wait(user="a", at_most=59)

    assert not decision.allowed
    assert limiter.clock.now() == 0


async def test_waits_for_its_place_in_a_queue() -> None:
    """Who is admitted to a queue waits as long as the queue says."""
    limiter = virtual()
    at = []
    for _ in range(4):
        await limiter.wait(queue="a", at_most=0)
        at.append(limiter.clock.now())
    assert at == [0, 1, 2, 3]

    together = await asyncio.gather(*[virtual_check(limiter) for _ in range(3)])
    assert [each.delay for each in together] == [1, 2, 3]


async def virtual_check(limiter: Limiter) -> Decision:
    return await limiter.check(queue="a")


async def test_waits_while_nobody_answers() -> None:
    """Who is denied because the service is away asks again, with pauses that grow."""
    line = Broken(*[LOST] * 6)

    decision = await line.limiter(on_failure="closed").wait(user="a", at_most=10)

    assert (decision.allowed, len(line.asked)) == (True, 7)
    assert 0.3 < line.clock.now() < 2


async def test_known_denials_end_with_their_window() -> None:
    """With denials remembered every answer is the one that the service would give."""
    chance = random.Random(1)
    asking, remembering = virtual(), virtual(remember_denials=3)
    known = 0
    for _ in range(700):
        key, cost = f"u{chance.randrange(6)}", chance.randrange(4)
        answers = [await each.check(user=key, cost=cost) for each in (asking, remembering)]
        assert answers[0].allowed == answers[1].allowed
        if answers[1].reason is Reason.KNOWN_DENIAL:
            known += 1
            wait, remembered = answers[0].retry_after, answers[1].retry_after
            assert wait is not None
            assert remembered is not None
            assert abs(wait - remembered) <= 1
        if chance.random() < 0.2:
            passed = chance.choice([0.1, 0.5, 1.0, 7.3])
            asking.clock.advance(passed)
            remembering.clock.advance(passed)
    assert known > 30


@pytest.mark.parametrize("tenths", range(1, 70, 4))
async def test_known_denial_near_the_end_of_its_window(tenths: int) -> None:
    """Whenever a denial is remembered, the request passes once the window has ended."""
    limiter = virtual(remember_denials=1)
    limiter.clock.advance(60 - tenths / 10)
    await limiter.check(user="a", cost=3)
    assert not await limiter.check(user="a")

    limiter.clock.advance(tenths / 10)

    assert await limiter.check(user="a")


TOLD = Settings(denial_quota=True)


async def test_known_denials_end_to_the_millisecond() -> None:
    """Where the service says how long a denial holds, it is asked once until then."""
    line = Broken(settings=TOLD)
    limiter = line.limiter(remember_denials=9)
    line.clock.advance(59.1)
    await limiter.check(user="a", cost=3)

    denied = [await limiter.check(user="a") for _ in range(3)]
    line.clock.advance(0.899)
    denied.append(await limiter.check(user="a"))
    request = len(line.asked)
    line.clock.advance(0.001)

    assert not any(denied)
    assert (request, (await limiter.check(user="a")).allowed) == (2, True)


@pytest.mark.parametrize("ahead", [-3600.0, -0.3, 0.3, 3600.0])
async def test_known_denials_with_another_clock(ahead: float) -> None:
    """A clock that differs from the service's holds a denial for less than a second too long."""
    begin = datetime.fromtimestamp(VirtualClock().wall(), UTC)
    line = Broken(settings=TOLD, clock=VirtualClock(begin + timedelta(seconds=ahead)))
    limiter = line.limiter(remember_denials=9)

    def advance(seconds: float) -> None:
        line.clock.advance(seconds)
        line.service_clock.advance(seconds)

    advance(57.5)
    await limiter.check(user="a", cost=3)
    assert not await limiter.check(user="a")
    advance(2.4)
    assert not await limiter.check(user="a")
    advance(0.6)

    assert await limiter.check(user="a")


async def test_known_denials_are_forgotten() -> None:
    """A refund, a lease that is given back and five seconds each end what is remembered."""
    line = Broken()
    limiter = line.limiter(remember_denials=9)
    await limiter.check(user="a", cost=3)
    request = []
    for step in ("", "", "refund", "", "lease", "", "five seconds", ""):
        if step == "refund":
            await limiter.refund(user="b")
        if step == "lease":
            await (await limiter.lease(slot="b")).release()
        if step == "five seconds":
            line.clock.advance(5)
        before = len(line.asked)
        assert not await limiter.check(user="a")
        request.append(len(line.asked) - before)

    assert request == [1, 0, 1, 0, 1, 0, 1, 0]


async def test_charges_go_past_known_denials() -> None:
    """What is charged afterwards is counted, although the last look was denied."""
    line = Broken()
    limiter = line.limiter(remember_denials=9)
    await limiter.charge(spent="a", cost=1001)
    assert not await limiter.check(spent="a", cost=0)

    await limiter.charge(spent="a", cost=500)
    await limiter.refund(spent="a", cost=501)

    assert (await limiter.check(spent="a", cost=0)).remaining == 0
    await limiter.refund(spent="a", cost=1)
    assert (await limiter.check(spent="a", cost=0)).remaining == 1


async def test_decorated() -> None:
    """A decorated function runs as often as its arguments' limit allows."""
    limiter = virtual()

    @limiter.limited(user=lambda name, **_: name, cost=lambda _, size=1: size)
    async def work(name: str, size: int = 1) -> str:
        return name * size

    assert await work("a", size=2) == "aa"
    with pytest.raises(DeniedError, match="try again in 60 s"):
        await work("a", size=2)
    assert [await work(each) for each in "ab"] == ["a", "b"]
    with pytest.raises(TypeError, match="use SyncLimiter"):
        limiter.limited(user="a")(len)  # type: ignore[arg-type]


def test_decorated_without_asyncio() -> None:
    """The same for functions that block."""
    limiter = VirtualSyncLimiter(RULES, domain="api")

    @limiter.limited({"user": lambda name: name}, team="red")
    def work(name: str) -> str:
        return name

    assert [work("a") for _ in range(3)] == ["a"] * 3
    with pytest.raises(DeniedError):
        work("a")
    assert limiter.check(team="red", cost=0).remaining == 2

    async def other() -> None: ...

    with pytest.raises(TypeError, match="use Limiter"):
        limiter.limited(user="a")(other)


def test_sync_waits_and_settles() -> None:
    """What waits, settles and gives back does the same without asyncio."""
    limiter = VirtualSyncLimiter(RULES, domain="api")
    for _ in range(4):
        assert limiter.wait(user="a", at_most=100).allowed
    assert 60 <= limiter.clock.now() <= 66

    limiter.reserve(tokens="a", cost=10).settle(1500)
    assert limiter.check(tokens="a", cost=0).remaining == 0
    with limiter.lease(slot="a", cost=2), pytest.raises(DeniedError):
        limiter.lease(slot="a")
    assert limiter.check(slot="a", cost=0).remaining == 2


def test_virtual_time(tmp_path: Path) -> None:
    """The clock of a test begins when it says: calendars go by it. Rules may be a file."""
    file = tmp_path / "api.yaml"
    file.write_text(
        "domain: api\n"
        "descriptors: [{key: a, rate_limit: {unit: month, per: calendar, requests_per_unit: 1}}]"
    )
    start = datetime(2028, 2, 28, 12, tzinfo=UTC)
    limiter = VirtualSyncLimiter(file, domain="api", start=start)

    assert limiter.check(a="x").allowed
    assert limiter.check(a="x").retry_after == 36 * 3600
    limiter.clock.advance(36 * 3600)
    assert limiter.check(a="x").allowed
    with pytest.raises(ValueError, match="cannot go back"):
        limiter.clock.advance(-1)


def test_rules_with_problems() -> None:
    """Rules that the service would refuse are refused, with the line and what is allowed."""
    with pytest.raises(ValueError, match=r"rules.yaml:2:.*'requests' is no key"):
        VirtualLimiter("domain: api\ndescriptors: [{key: a, rate_limit: {requests: 1}}]", domain="")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline": 0}, "deadline is 0"),
        ({"on_failure": "ask"}, "allowed are open, closed and raise"),
        ({"attempts": 0}, "attempts is 0"),
        ({"remember_denials": -1}, "remember_denials is -1"),
    ],
)
def test_numbers_that_make_no_sense(options: dict[str, object], message: str) -> None:
    """A limiter cannot be made with them; the error says what is allowed."""
    for kind in (Limiter, SyncLimiter):
        with pytest.raises(ValueError, match=message):
            kind("localhost:1", domain="api", **options)  # type: ignore[arg-type]
