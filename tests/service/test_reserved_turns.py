"""Reservations on limits that pay in turn: the one that holds is the one that settles."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from ratelimit_service.decision_log.line import line_of
from ratelimit_service.rules.explain import explain
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from tests.service.asking import Asking, Heard, descriptor
from tests.service.overriding import EXEMPT, GRANT, override
from tests.service.paying import ANN, TTL, Model, left, paid
from tests.service.reserving import Gateway
from tests.stores.cases import HOUR, MINUTE, SECOND, T
from tests.stores.conftest import Time

RULES = """
domain: edge
shard_by: [org]
reservations: true
descriptors:
  - key: org
    descriptors:
      - key: team
        descriptors:
          - key: user
            charge: first
            rate_limits:
              - {name: tier, unit: minute, requests_per_unit: 5, soft: 40%, max_reservation: 60%}
              - {name: reserve, unit: hour, requests_per_unit: 7, count_by: [org, team]}
              - {name: credits, unit: month, requests_per_unit: 20, count_by: [org]}
  - key: gate
    rate_limit: {unit: minute, requests_per_unit: 9}
  - key: slots
    charge: first
    rate_limits:
      - {name: own, unit: minute, requests_per_unit: 1, algorithm: concurrency}
      - {name: spare, unit: hour, requests_per_unit: 1, algorithm: concurrency}
"""


@pytest.fixture
def asking(tmp_path: Path, any_store: Store, clock: Time) -> Asking:
    settings = Settings(decision_metadata=True)
    return Asking(tmp_path / "rules", RULES, store=any_store, clock=clock, settings=settings)


class Caller:
    """Who reserves, settles, and asks."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self._gateway = Gateway(asking, "edge")

    async def reserve(self, hits: int, *texts: str, hold_id: str = "") -> str:
        """The reservation's id; empty if it is denied."""
        return await self._gateway.reserve(hits, *texts, hold_id=hold_id, seconds=TTL)

    async def settle(self, hold_id: str, hits: int, *texts: str) -> bool:
        """Whether anything was held."""
        return await self._gateway.commit(hold_id, hits, *texts)

    async def left(self, text: str) -> list[object]:
        """What remains of each limit, to a look."""
        return left(await self.asking.ask(descriptor(text, addend=0)))

    async def paid(self, hits: int, text: str) -> list[object]:
        """Which limit pays for plain hits."""
        return paid(await self.asking.ask(descriptor(text, addend=hits)))


@pytest.fixture
def caller(asking: Asking) -> Caller:
    return Caller(asking)


async def test_the_first_with_room_holds_and_settles(caller: Caller) -> None:
    """What is held takes room from plain hits there, and the others hold nothing."""
    held = await caller.reserve(3, ANN)
    assert await caller.left(ANN) == [2, 7, 20]

    assert await caller.paid(3, ANN) == ["reserve"]
    assert await caller.settle(held, 2, ANN)
    assert await caller.left(ANN) == [3, 4, 20]


async def test_an_overrun_stays_where_it_was_held(caller: Caller) -> None:
    """More than was held counts there, beyond its limit, though others have room."""
    first = await caller.reserve(3, ANN)
    second = await caller.reserve(6, ANN)
    assert await caller.left(ANN) == [2, 1, 20]

    assert await caller.settle(second, 30, ANN)
    assert await caller.settle(first, 1, ANN)
    assert await caller.left(ANN) == [4, 0, 20]
    assert caller.asking.stats.reservations["overrun"] == 1
    assert await caller.paid(5, ANN) == ["credits"]


async def test_denied_only_if_none_has_room(caller: Caller) -> None:
    """What is held in each of them leaves none, and a denied one holds nothing."""
    assert all([await caller.reserve(hits, ANN) for hits in (3, 7, 18)])

    assert await caller.reserve(5, ANN) == ""
    assert await caller.left(ANN) == [2, 0, 2]
    assert await caller.reserve(4, ANN)  # with the soft part
    assert await caller.left(ANN) == [0, 0, 2]


async def test_an_extension_stays_where_it_lies(caller: Caller) -> None:
    """It never holds in a second limit: where there is no room it is denied, and holds on."""
    held = await caller.reserve(7, ANN)
    assert await caller.reserve(3, ANN, hold_id=held) == held
    assert await caller.left(ANN) == [5, 4, 20]

    assert await caller.reserve(8, ANN, hold_id=held) == ""
    assert await caller.left(ANN) == [5, 4, 20]
    assert await caller.settle(held, 1, ANN)
    assert await caller.left(ANN) == [5, 6, 20]


async def test_a_settle_counts_once(caller: Caller, clock: Time) -> None:
    """Sent again it counts nothing, in no limit, also if its hold had ended before."""
    held = await caller.reserve(7, ANN)
    clock.now_us += (TTL + 1) * SECOND

    assert not await caller.settle(held, 4, ANN)
    assert await caller.left(ANN) == [1, 7, 20]
    assert not await caller.settle(held, 4, ANN)
    assert await caller.left(ANN) == [1, 7, 20]
    assert await caller.reserve(7, ANN, hold_id=held) == ""  # it is known where it was settled
    assert await caller.left(ANN) == [1, 7, 20]


async def test_a_late_settle_counts_where_there_is_room(caller: Caller) -> None:
    """So does an unknown id. If none has room nothing counts, as with a report."""
    unknown = "0" * 32
    assert not await caller.settle(unknown, 6, ANN)
    assert await caller.left(ANN) == [5, 1, 20]

    assert not await caller.settle("1" * 32, 21, ANN)
    assert await caller.left(ANN) == [5, 1, 20]


async def test_what_is_too_large_for_one_is_held_by_the_next(caller: Caller) -> None:
    """`max_reservation` is judged for each limit. What none lets hold is denied."""
    held = await caller.reserve(5, ANN)
    assert await caller.left(ANN) == [5, 2, 20]
    assert await caller.reserve(21, ANN) == ""
    assert caller.asking.stats.reservations["too_large"] == 1

    small = await caller.reserve(3, ANN)
    assert await caller.left(ANN) == [2, 2, 20]
    assert await caller.reserve(5, ANN, hold_id=small) == ""
    assert await caller.settle(small, 0, ANN)
    assert await caller.settle(held, 0, ANN)
    assert await caller.left(ANN) == [5, 7, 20]


async def test_two_descriptors_hold_twice(caller: Caller) -> None:
    """Each has a hold of its own, also on a counter that both count on."""
    bob = "org=o,team=t,user=bob"
    held = await caller.reserve(5, ANN, bob)
    assert await caller.left(ANN) == [5, 2, 15]

    assert await caller.settle(held, 2, ANN, bob)
    assert await caller.left(ANN) == [5, 5, 18]


async def test_all_descriptors_hold_or_none(caller: Caller) -> None:
    """A limit beside them that has no room lets none of them hold."""
    assert await caller.reserve(10, ANN, "gate=g") == ""
    assert await caller.left(ANN) == [5, 7, 20]

    held = await caller.reserve(9, ANN, "gate=g")
    assert await caller.left(ANN) == [5, 7, 11]
    assert await caller.settle(held, 12, ANN, "gate=g")
    assert await caller.left(ANN) == [5, 7, 8]
    assert await caller.reserve(1, ANN, "gate=g") == ""
    assert await caller.left(ANN) == [5, 7, 8]


async def test_what_is_not_asked_any_more_pays_nothing(caller: Caller) -> None:
    """What is held on a limit that is not asked now waits for its end, and another one pays."""
    held = await caller.reserve(3, ANN)
    exempt = override(EXEMPT, ANN, limit="tier")
    caller.asking.service.overrides.add([exempt])

    assert not await caller.settle(held, 4, ANN)
    assert await caller.left(ANN) == [3, 20]
    caller.asking.service.overrides.remove([exempt])
    assert await caller.left(ANN) == [2, 3, 20]


async def test_a_place_goes_back_where_it_was_taken(caller: Caller) -> None:
    """`concurrency` takes one place under the id, in one of them, whatever is reserved."""
    first = await caller.reserve(800, "slots=x")
    second = await caller.reserve(800, "slots=x")
    assert await caller.reserve(800, "slots=x") == ""

    await caller.settle(second, 650, "slots=x")
    assert await caller.paid(1, "slots=x") == ["spare"]
    await caller.settle(first, 650, "slots=x")
    assert await caller.paid(1, "slots=x") == ["own"]


async def test_overrides(caller: Caller) -> None:
    """Nothing is held in a grant, or in a limit from which somebody is exempt."""
    add = caller.asking.service.overrides.add
    add([override(GRANT, "org=g,team=t,user=a", 3), override(EXEMPT, ANN, limit="tier")])

    held = await caller.reserve(3, "org=g,team=t,user=a")
    assert await caller.settle(held, 2, "org=g,team=t,user=a")
    assert await caller.paid(3, "org=g,team=t,user=a") == ["tier"]  # by the grant
    assert await caller.paid(3, "org=g,team=t,user=a") == ["tier"]
    held = await caller.reserve(3, ANN)
    assert await caller.left(ANN) == [4, 20]
    assert await caller.settle(held, 1, ANN)


async def test_the_log_says_which_one_it_was(caller: Caller) -> None:
    """`paid` names the limit that holds, and the one that was settled; `limit` who denies."""
    heard = Heard(caller.asking.service)
    held = await caller.reserve(4, ANN)
    assert [await caller.paid(hits, ANN) for hits in (5, 3)] == [["tier"], ["reserve"]]
    await caller.reserve(7, ANN, hold_id=held)
    await caller.settle(held, 8, ANN)
    reserved, _, _, denied, settled = [line_of(record, T) for record in heard]
    told = json.loads(denied)

    for line in (reserved, settled):
        assert '"paid":[{"descriptor":0,"limit":"reserve"}]' in line
    assert (told["limit"]["name"], told["used"], told["reset_seconds"]) == ("reserve", 3, 2_760)
    assert '"overrun":4' in settled


def test_told_in_words(tmp_path: Path) -> None:
    """`explain` says that the one that holds is settled."""
    asking = Asking(tmp_path, RULES)
    told = explain(asking.rules.snapshot, "edge", descriptor(ANN))

    assert "the first with room pays, or holds what it will pay: tier: 5 per minute" in told.why


async def test_all_limits_can_take_reservations(tmp_path: Path) -> None:
    """With --reservations also those that pay in turn, if none of them takes places."""
    text = RULES.replace("reservations: true\n", "").replace(", max_reservation: 60%", "")
    caller = Caller(
        Asking(tmp_path, text, settings=Settings(reservations=True, decision_metadata=True))
    )

    held = await caller.reserve(5, ANN)
    assert await caller.left(ANN) == [0, 7, 20]
    assert await caller.settle(held, 5, ANN)


async def test_walk_against_a_model(asking: Asking, clock: Time) -> None:
    """An id holds in one limit at most, is settled there, and counts once, whatever comes between.

    What is left of each is always the limit without what is counted and held there.
    """
    chance, caller, model = random.Random(5), Caller(asking), Model()
    ids: list[tuple[str, list[str]]] = []
    told: Counter[str] = Counter()
    for _ in range(1_200):
        clock.now_us += chance.choice(
            [*[0] * 40, SECOND, 15 * SECOND, 39 * SECOND, 40 * SECOND, MINUTE, HOUR, 300 * HOUR]
        )
        now = clock.now_us
        model.end(now)
        who = [chance.choice("op"), chance.choice("tu"), chance.choice(["ann", "bob"])]
        step = chance.choice(["plain", "reserve", "reserve", "extend", "settle", "settle"])
        hits = chance.choice([1, 1, 2, 3, 4, 6, 8])
        hold_id = ""
        if step in ("extend", "settle"):
            hold_id, who = chance.choice(ids[-12:] or [("", who)])
            if not hold_id:
                continue
        text = f"org={who[0]},team={who[1]},user={who[2]}"
        if step == "plain":
            pays = model.payer(who, hits, now)
            if pays is not None:
                model.charge(pays, who, hits, now)
            assert await caller.paid(hits, text) == ([pays.name] if pays else [])
            told[f"plain {pays and pays.name}"] += 1
        elif step == "settle":
            released = model.settle(who, hold_id, hits, now)
            assert await caller.settle(hold_id, hits, text) == released
            told[f"settle {released}"] += 1
        else:
            found = await caller.reserve(hits, text, hold_id=hold_id)
            passes = model.reserve(who, hold_id or found or "denied", hits, now)
            assert bool(found) == passes
            if passes and not hold_id:
                ids.append((found, who))
            told[f"{step} {passes}"] += 1
        if any(model.room(pot, size, who, now) >= 0 for pot, size in model.asked(who)):
            assert await caller.left(text) == model.left(who, now)
    assert min(told.values()) > 10, told
