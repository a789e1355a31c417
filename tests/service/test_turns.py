"""Limits that pay in turn: of a descriptor's limits the first that has room is charged."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ratelimit_service.decision_log.line import line_of
from ratelimit_service.model import Code, Descriptor
from ratelimit_service.rule_lab.replay.denials import last_denials
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.explain import explain
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from tests.service.asking import Asking, Away, Heard, descriptor
from tests.service.overriding import BAN, EXEMPT, GRANT, LIMIT, override
from tests.service.paying import ANN, Model, left, paid
from tests.stores.cases import HOUR, MINUTE, T
from tests.stores.conftest import Time

RULES = """
domain: edge
shard_by: [org]
descriptors:
  - key: org
    descriptors:
      - key: team
        descriptors:
          - key: user
            charge: first
            rate_limits:
              - {name: tier, unit: minute, requests_per_unit: 5, soft: 40%}
              - {name: reserve, unit: hour, requests_per_unit: 7, count_by: [org, team]}
              - {name: credits, unit: month, requests_per_unit: 20, count_by: [org]}
  - key: gate
    rate_limit: {unit: minute, requests_per_unit: 6}
  - key: shadow
    shadow_mode: true
    charge: first
    rate_limits:
      - {name: a, unit: minute, requests_per_unit: 1}
      - {name: b, unit: hour, requests_per_unit: 1}
  - key: timed
    charge: first
    rate_limits:
      - {name: night, unit: day, requests_per_unit: 1, when: {from: "00:00", to: "06:00"}}
      - {name: always, unit: hour, requests_per_unit: 1}
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


@pytest.fixture
def in_memory(tmp_path: Path, clock: Time) -> Asking:
    return Asking(tmp_path, RULES, clock=clock, settings=Settings(decision_metadata=True))


async def test_walk_against_a_model(asking: Asking, clock: Time) -> None:
    """Exactly one limit of an admitted request's list is charged: the first with room for all."""
    chance = random.Random(11)
    model = Model()
    gate: Counter[int] = Counter()
    told: Counter[object] = Counter()
    for _ in range(1_500):
        clock.now_us += chance.choice([*[0] * 60, 1, MINUTE // 3, MINUTE, HOUR, 10 * 24 * HOUR])
        now = clock.now_us
        who = [chance.choice(["o", "p"]), chance.choice("tu"), chance.choice(["ann", "bob"])]
        text = f"org={who[0]},team={who[1]},user={who[2]}"
        if chance.random() < 0.15:
            name, hits = (
                chance.choice(["tier", "reserve", "credits", "none"]),
                chance.choice([1, 4]),
            )
            refund = descriptor(f"{text},paid={name}", addend=hits, refund=True)
            assert (await asking.ask(refund)).code is Code.OK
            model.give_back(who, name, hits, now)
            continue
        hits = chance.choice([0, 1, 1, 2, 3, 6])
        asked: list[str | Descriptor] = [descriptor(text, addend=hits)]
        gated = chance.random() < 0.3
        if gated:
            asked.append("gate=g")
        decision = await asking.ask(*asked)

        pot = model.payer(who, hits, now)
        passes = pot is not None and (not gated or gate[now // MINUTE] < 6)
        assert (decision.code is Code.OK) == passes
        if passes and pot is not None:
            model.charge(pot, who, hits, now)
            gate[now // MINUTE] += gated
            assert paid(decision) == ([pot.name] if hits else [])
            told[pot.name] += 1
        else:
            assert paid(decision) == []
            told[None] += 1
        if passes:
            assert left(decision) == model.left(who, now)
    assert min(told.values()) > 50, told


async def test_who_paid_is_told(asking: Asking) -> None:
    """The status, the header, the metadata and the log say which limit has paid."""
    heard = Heard(asking.service)
    for name, remaining, hits in [("tier", 0, 5), ("reserve", 1, 6), ("credits", 14, 6)]:
        decision = await asking.ask(descriptor(ANN, addend=hits))
        (status,) = decision.statuses
        assert status.limit is not None
        assert (status.limit.name, status.remaining) == (name, remaining)
        assert paid(decision) == [name]
        assert [each.value for each in decision.request_headers] == [name]
        assert (decision.metadata or {})["decided"] == {
            "by": "count",
            "descriptor": 0,
            "limit": name,
            "rule": "org > team > user",
            "shadow": False,
            "denied": False,
        }
        limit = heard[-1].limit
        assert limit is not None
        assert limit.name == name


async def test_denied_only_if_none_has_room(asking: Asking) -> None:
    """A denied request charges none of them, and may come back when the first has room again."""
    for hits in (5, 7, 20):
        await asking.ask(descriptor(ANN, addend=hits))
    decision = await asking.ask(descriptor(ANN, addend=3))

    (status,) = decision.statuses
    assert (status.code, status.reset_us) == (Code.OVER_LIMIT, MINUTE)
    assert paid(decision) == []
    assert not decision.request_headers
    soft = await asking.ask(descriptor(ANN, addend=2))
    assert [each.key for each in soft.request_headers] == [
        "x-ratelimit-warning",
        "x-ratelimit-paid",
    ]
    assert paid(soft) == ["tier"]


async def test_the_soft_part_is_last(asking: Asking) -> None:
    """`soft` counts as room only after all limits without it."""
    for hits in (5, 7, 18):
        await asking.ask(descriptor(ANN, addend=hits))
    names = [paid(await asking.ask(ANN)) for _ in range(5)]

    assert names == [["credits"], ["credits"], ["tier"], ["tier"], []]


async def test_hits_are_given_back_to_who_paid(asking: Asking) -> None:
    """A last entry `paid` names the limit that gets hits back; without one it is the first."""
    await asking.ask(descriptor(ANN, addend=5))
    await asking.ask(descriptor(ANN, addend=7))
    await asking.ask(descriptor(f"{ANN},paid=reserve", addend=4, refund=True))
    await asking.ask(descriptor(f"{ANN},paid=nobody", addend=4, refund=True))
    await asking.ask(descriptor(ANN, addend=2, refund=True))

    assert paid(await asking.ask(descriptor(ANN, addend=2))) == ["tier"]
    assert paid(await asking.ask(descriptor(ANN, addend=4))) == ["reserve"]
    assert paid(await asking.ask(ANN)) == ["credits"]


async def test_shadow_mode(asking: Asking) -> None:
    """In shadow mode they pay in turn, and what none has room for passes uncounted."""
    names = []
    for _ in range(3):
        decision = await asking.ask("shadow=x")
        assert decision.code is Code.OK
        names += [paid(decision)]

    assert names == [["a"], ["b"], []]


async def test_out_of_its_times(asking: Asking, clock: Time) -> None:
    """A limit that does not hold now is skipped."""
    clock.now_us = T - T % (24 * HOUR) + 12 * HOUR
    assert paid(await asking.ask("timed=x")) == ["always"]
    assert (await asking.ask("timed=x")).code is Code.OVER_LIMIT
    clock.now_us += 13 * HOUR
    assert [paid(await asking.ask("timed=x")) for _ in range(2)] == [["night"], ["always"]]


async def test_slots(asking: Asking) -> None:
    """`concurrency` limits pay in turn; a lease goes back to where it was taken."""
    taken = [await asking.ask("slots=x") for _ in range(3)]
    assert [paid(each) for each in taken] == [["own"], ["spare"], []]
    lease = {each.key: each.value for each in taken[1].request_headers}["x-ratelimit-lease"]
    await asking.ask(descriptor(f"slots=x,lease={lease}", refund=True))

    assert paid(await asking.ask("slots=x")) == ["spare"]
    assert (await asking.ask("slots=x")).code is Code.OVER_LIMIT


async def test_overrides(asking: Asking) -> None:
    """Another number holds for its limit, an exempt one is skipped, a grant pays first."""
    add = asking.service.overrides.add
    add([override(LIMIT, "org=o,team=t,user=a", 2, limit="tier")])
    assert [paid(await asking.ask("org=o,team=t,user=a")) for _ in range(3)] == [
        ["tier"],
        ["tier"],
        ["reserve"],
    ]
    add([override(EXEMPT, "org=o,team=t,user=b", limit="tier")])
    assert paid(await asking.ask("org=o,team=t,user=b")) == ["reserve"]
    add([override(BAN, "org=o,team=t,user=c")])
    assert (await asking.ask("org=o,team=t,user=c")).code is Code.OVER_LIMIT
    add([override(GRANT, "org=q,team=t,user=d", 3)])
    passed = 0
    while (await asking.ask("org=q,team=t,user=d")).code is Code.OK:
        passed += 1
    assert passed == 3 + 7 + 7 + 20


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
async def test_without_a_store(tmp_path: Path, clock: Time, policy: str) -> None:
    """The failure policy decides for all of them, and nobody is said to have paid."""
    text = RULES.replace("soft: 40%", f"failure_policy: {policy}")
    asking = Asking(tmp_path, text, store=Away(), clock=clock)
    decision = await asking.ask(ANN)

    assert decision.code is (Code.OVER_LIMIT if policy == "closed" else Code.OK)
    assert paid(decision) == []


def test_told_in_words(in_memory: Asking) -> None:
    """`explain` and the dump of rules say that they pay in turn, and by what they count."""
    told = explain(in_memory.rules.snapshot, "edge", descriptor(ANN))
    assert told.why.partition(": ")[2] == (
        "the first with room pays: tier: 5 per minute, 2 more with a warning; "
        "reserve: 7 per hour, counted by org, team; credits: 20 per month, counted by org"
    )
    line = next(line for line in dump(in_memory.rules.snapshot) if "org.team.user" in line)
    assert "charge: first" in line
    assert "count_by: org team" in line


async def test_log_and_why(in_memory: Asking) -> None:
    """The decision log names who was asked and who paid; `why` tells that none had room."""
    heard = Heard(in_memory.service)
    await in_memory.ask("gate=g", descriptor(ANN, addend=7))
    for hits in (5, 20, 3):
        await in_memory.ask(descriptor(ANN, addend=hits))
    lines = [line_of(record, T) for record in heard]

    assert '"paid":[{"descriptor":1,"limit":"reserve"}]' in lines[0]
    assert (
        '"in_turn":["tier","reserve","credits"],"paid":[{"descriptor":0,"limit":"credits"}]'
        in (lines[2])
    )
    assert '"in_turn"' in lines[3]
    assert '"paid"' not in lines[3]
    (told,) = last_denials(lines, 1, T)
    assert told.partition("): ")[2] == (
        "none of tier, reserve, credits has room; tier has again first: 5 a minute, 5 used, "
        "60 s to wait"
    )
