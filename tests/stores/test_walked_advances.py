"""Random walks of two processes with leased limits, held against the books of each window."""

from __future__ import annotations

import os
import re
from random import Random

import pytest

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Anchor, Calendar, Limit, Unit
from tests.servers.redis import RedisServer
from tests.stores.cases import MINUTE, SECOND
from tests.stores.conftest import Time
from tests.stores.leasing import Behind, Process, behind_a_proxy, counted, hit, two_processes

_STEPS = int(os.environ.get("ADVANCE_STEPS", "400"))
_SEED = int(os.environ.get("ADVANCE_SEED", "1"))

_LIMIT = Limit(200, Unit.MINUTE, advances=True)
_WAYS = {
    "clock": _LIMIT,
    "first_hit": _LIMIT._replace(anchor=Anchor.FIRST_HIT),
    "calendar": Limit(200, Unit.DAY, anchor=Calendar(Unit.DAY), advances=True),
    "two counters": _LIMIT._replace(algorithm="sliding_window"),
    "sub-counters": _LIMIT._replace(algorithm="sliding_window", buckets=6),
}


class _Walk:
    """What two processes do by chance in one window, and what must be true after each step."""

    def __init__(
        self,
        two: list[Process],
        clock: Time,
        limit: Limit,
        chance: Random,
        behind: Behind | None = None,
    ) -> None:
        self.two = two
        self.clock = clock
        self.limit = limit
        self.hit = hit(limit, key=str(chance.random()))
        self.behind = behind
        self.chance = chance
        self.admitted = 0
        self.more = 0
        """What a reset lets in: what was on the counter then."""
        self.unknown = False
        """Whether a reply was lost, so that more may be counted than anybody was told."""

    async def step(self) -> None:
        process, chance = self.chance.choice(self.two), self.chance
        step = chance.randrange(24)
        if step < 12:
            addend = chance.choice((1, 1, 1, 2, 7))
            await self.ask(process, addend, chance.randrange(1, 12))
        elif step < 14:
            none = hit(Limit(0, Unit.DAY), key="none")
            (settled,) = await process.ask((self.hit, none))
            assert not settled.verdict.passes
        elif step < 18:
            self.clock.now_us += chance.randrange(SECOND // 5)
            process.advances.hand_back_idle()
            await process.quiet()
        elif step == 18:
            process.advances.hand_back_all()
            await process.quiet()
        else:
            await self.seldom(process, step)

    async def seldom(self, process: Process, step: int) -> None:
        """What comes from outside: resets, refunds, overrides, reloads and faults."""
        chance = self.chance
        if step == 19 and chance.random() < 0.05:
            self.more += await counted(process, self.hit)
            await process.store.forget([self.hit])
        elif step == 20:
            await self.refund(process, chance.choice((1, 1, 3)))
        elif step == 21:
            plain = self.hit._replace(spec=spec_of(self.limit._replace(advances=False)))
            (settled,) = await process.ask((plain,))
            self.admitted += settled.verdict.passes
        elif step == 22:
            process.advances.lease({self.hit.spec} if chance.random() < 0.7 else set())
            await process.quiet()
        elif step == 23 and self.behind is not None and process is self.behind.lossy:
            await self.fault(self.behind)

    async def ask(self, process: Process, addend: int, times: int) -> None:
        requests = [(self.hit._replace(addend=addend),)] * times
        for settled in await process.ask(*requests):
            # Without an answer the failure policy decides, and nothing is counted here.
            outcomes = settled.outcomes
            self.admitted += addend * (settled.verdict.passes and None not in outcomes)

    async def refund(self, process: Process, addend: int) -> None:
        """A caller gives back what was admitted, if so much was."""
        if self.admitted >= addend:
            (settled,) = await process.ask((self.hit._replace(addend=addend, refund=True),))
            told = settled.outcomes[0]
            self.admitted -= told.charged if told is not None else 0

    async def fault(self, behind: Behind) -> None:
        """A process is asked without its server, or loses a reply to a charge or a hand-back."""
        process = behind.lossy
        kind = self.chance.randrange(3)
        if kind == 0:
            await behind.lose()
            await self.ask(process, 1, 9)
        else:
            behind.proxy.lose = re.compile(b".")
            held = process.advances.held(self.hit)
            if kind == 1:
                await self.ask(process, held + 1, 1)
            else:
                process.advances.hand_back_all()
                await self.ask(process, 1, 1)
            await behind.until_cut()
        await behind.back()
        self.unknown = self.unknown or kind > 0

    async def check(self) -> None:
        """Nobody is above the limit, and what was counted is admitted, held, or lost."""
        for each in self.two:  # else a timer can do it between what is looked at here
            each.advances.hand_back_idle()
            await each.quiet()
        held = sum(each.advances.held(self.hit) for each in self.two)
        lost = sum(each.stats.leased_hits["lost"] for each in self.two)
        on_counter = await counted(self.two[0], self.hit)
        assert self.admitted <= self.hit.spec.limit + self.more
        assert self.admitted + held <= on_counter + self.more
        if not (self.more or self.unknown):
            assert self.admitted + held + lost == on_counter


@pytest.mark.parametrize("way", _WAYS)
async def test_the_books_are_right_after_each_step(
    redis_server: RedisServer, clock: Time, way: str
) -> None:
    """What is admitted, held and lost is what the server has counted, and not above the limit."""
    chance = Random(f"{_SEED} {way}")
    for _ in range(max(1, _STEPS // 100)):
        async with two_processes(redis_server, clock) as two:
            await _walked(_Walk(two, clock, _WAYS[way], chance))


@pytest.mark.parametrize("way", _WAYS)
async def test_with_faults_nobody_gets_more(
    redis_server: RedisServer, clock: Time, way: str
) -> None:
    """A process that loses its server, replies and hand-backs admits no more than was counted."""
    chance = Random(f"{_SEED} faults {way}")
    for _ in range(max(1, _STEPS // 100)):
        async with behind_a_proxy(redis_server, clock) as behind:
            two = [behind.lossy, behind.other]
            await _walked(_Walk(two, clock, _WAYS[way], chance, behind))


async def _walked(walk: _Walk) -> None:
    begun = walk.clock.now_us
    for _ in range(100):
        await walk.step()
        if walk.clock.now_us >= begun + MINUTE - SECOND:
            break
        await walk.check()


_BURST, _RATE = 200, 600
"""Of a bucket in hits, and in hits a minute: an advance lives for a second."""


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
@pytest.mark.parametrize("pause_us", [SECOND // 20, 3 * SECOND])
async def test_in_no_time_a_bucket_admits_more_than_burst_and_rate(
    redis_server: RedisServer, clock: Time, algorithm: str, pause_us: int
) -> None:
    """However two processes spend what they hold: in any span the burst and what comes back."""
    chance = Random(f"{_SEED} {algorithm} {pause_us}")
    limit = Limit(_RATE, Unit.MINUTE, algorithm=algorithm, burst=_BURST, advances=True)
    moments: list[tuple[int, int]] = []
    async with two_processes(redis_server, clock) as two:
        for _ in range(_STEPS):
            process = chance.choice(two)
            clock.now_us += chance.randrange(pause_us)
            process.advances.hand_back_idle()
            await process.quiet()
            addend = chance.choice((1, 1, 1, 2, 9))
            many = chance.randrange(1, 12)
            found = await process.ask(*[(hit(limit, addend),)] * many)
            passed = addend * sum(settled.verdict.passes for settled in found)
            moments.append((clock.now_us, passed))
        assert any(process.stats.leased_hits["spent"] > 0 for process in two)

    for first, (begin_us, _) in enumerate(moments):
        total = 0
        for now_us, passed in moments[first:]:
            total += passed
            assert total * MINUTE <= _BURST * MINUTE + _RATE * (now_us - begin_us)
