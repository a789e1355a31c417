"""Overrides in decisions, one rule of docs/overrides.md after the other."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.decision_log.line import line_of
from ratelimit_service.model import SECOND_US, Code, FailurePolicy, Hit, Request, read_override
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from tests.service.asking import Asking, Away, Heard, descriptor
from tests.service.overriding import BAN, EXEMPT, GRANT, LIMIT, RULES, override
from tests.stores.cases import T


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path, RULES)


async def passes(asking: Asking, text: str = "user=bob", hits: int = 0) -> bool:
    return (await asking.ask(text, hits=hits)).code is Code.OK


async def passed(asking: Asking, times: int, text: str = "user=bob") -> int:
    """How many of so many requests pass."""
    return sum([await passes(asking, text) for _ in range(times)])


def test_an_override_reads_as_it_was_written() -> None:
    """What an override says of itself in JSON is read back as the same override."""
    for kind, number in ((BAN, 0), (EXEMPT, 0), (LIMIT, 0), (LIMIT, 9), (GRANT, 7)):
        for until_us in (None, T + 1):
            one = override(kind, "user=b*,ip=10.0.0.1", number, limit="x", until_us=until_us)
            assert read_override(one.fields()) == one


async def test_a_ban_denies_and_charges_nothing(asking: Asking) -> None:
    """Who is banned is denied; when the ban goes, all of the limit is there."""
    ban = override(BAN)
    asking.service.overrides.add([ban])

    assert await passed(asking, 5) == 0
    assert await passes(asking, "user=alice")

    asking.service.overrides.remove([ban])
    assert await passed(asking, 3) == 2


async def test_a_ban_denies_the_whole_request_and_charges_nobody(asking: Asking) -> None:
    """Beside a banned descriptor nothing of the request is counted."""
    asking.service.overrides.add([override(BAN)])
    for _ in range(3):
        assert (await asking.ask("user=alice", "user=bob")).code is Code.OVER_LIMIT

    assert await passed(asking, 3, "user=alice") == 2


async def test_refunds_beside_a_ban_count(asking: Asking) -> None:
    """Hits that a banned request gives back are given back, and it is denied all the same."""
    assert await passed(asking, 3, "user=alice") == 2
    asking.service.overrides.add([override(BAN)])

    back = descriptor("user=alice", refund=True)
    assert (await asking.ask(back, "user=bob")).code is Code.OVER_LIMIT
    assert await passed(asking, 3, "user=alice") == 1


@pytest.mark.parametrize("text", ["free=x", "nobody=x", "user=bob"])
async def test_a_ban_needs_no_rule(asking: Asking, text: str) -> None:
    """A ban holds for descriptors that no rule limits, and in domains without rules."""
    asking.service.overrides.add([override(BAN, text), override(BAN, text, domain="other")])

    assert not await passes(asking, text)
    assert (await asking.ask(text, domain="other")).code is Code.OVER_LIMIT
    assert (await asking.ask(text, domain="third")).code is Code.OK


async def test_the_exempt_pass_uncharged(asking: Asking) -> None:
    """Who is exempt passes, and is not counted; others in the request still are."""
    exempt = override(EXEMPT)
    asking.service.overrides.add([exempt])

    assert await passed(asking, 9) == 9
    decisions = [await asking.ask("user=bob", "user=alice") for _ in range(3)]
    assert [each.code for each in decisions] == [Code.OK, Code.OK, Code.OVER_LIMIT]

    asking.service.overrides.remove([exempt])
    assert await passed(asking, 3) == 2


async def test_a_limit_counts_on(asking: Asking) -> None:
    """Another number holds for what was counted before, and the old one for what came since."""
    assert await passes(asking)
    limit = override(LIMIT, number=5)
    asking.service.overrides.add([limit])
    decision = await asking.ask("user=bob")
    status = decision.statuses[0]
    assert status.limit is not None
    assert (status.limit.requests_per_unit, status.remaining) == (5, 3)
    assert await passed(asking, 5) == 3

    asking.service.overrides.remove([limit])
    assert await passed(asking, 3) == 0


async def test_grants_are_spent_first_and_go_with_the_window(asking: Asking) -> None:
    """Extra hits pass before the limit's own are charged, and end with the window."""
    grant = override(GRANT, number=3)
    asking.service.overrides.add([grant])

    remaining = [(await asking.ask("user=bob")).statuses[0].remaining for _ in range(5)]
    assert remaining == [4, 3, 2, 1, 0]
    assert not await passes(asking)
    asking.now_us += 60 * SECOND_US
    assert await passed(asking, 5) == 2


class Homes(Away):
    """A store that notes of each hit whether it lies in the store for limits of a second."""

    def __init__(self) -> None:
        self.noted: list[tuple[bytes, bool]] = []

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        self.noted += [(hit.key[:10], hit.spec.window_us == SECOND_US) for hit in hits]
        return super().outcomes(hits)


@pytest.mark.parametrize("left_us", [1, SECOND_US, 2 * SECOND_US, 60 * SECOND_US])
async def test_a_grant_lies_where_its_limit_does(tmp_path: Path, left_us: int) -> None:
    """A grant has the tag of its limit, and the store: also in the last second of a minute."""
    rules = """
domain: edge
descriptors:
  - key: user
    rate_limits:
      - {unit: minute, requests_per_unit: 2}
      - {unit: second, requests_per_unit: 2}
      - {unit: minute, requests_per_unit: 2, algorithm: sliding_window}
"""
    asking, homes = Asking(tmp_path, rules), Homes()
    asking.now_us = T + 60 * SECOND_US - left_us
    service = asking.served_by(homes, asking.settings)
    service.overrides.add([override(GRANT, number=3, made_us=asking.now_us)])

    await service.decide([wire.encode_request(Request("edge", (descriptor("user=bob"),)))])

    tag = homes.noted[0][0]
    assert homes.noted == [
        (tag, of_second) for of_second in (False, False, True, True, False, False)
    ]


async def test_a_grant_is_kept_as_ever(asking: Asking) -> None:
    """Other versions that run beside this one find what was spent: under this key, in this form."""
    store = MemoryStore(10, asking.stats, asking.health, asking.clock)
    service = asking.served_by(store, asking.settings)
    service.overrides.add([replace(override(GRANT, number=3), id="5d1f02ab31")])

    await service.decide([wire.encode_request(Request("edge", (descriptor("user=bob"),)))] * 4)

    state = store.state(b"{493fd248}+5d1f02ab31f60:4:edge4:user=3:bob")
    assert state == struct.pack(">cdI", b"h", T, 3)


async def test_what_a_grant_has_given_is_not_charged(asking: Asking) -> None:
    """Hits that a grant gave leave the limit as it was, also when the grant is taken away."""
    grant = override(GRANT, number=3)
    asking.service.overrides.add([grant])
    assert await passed(asking, 2) == 2

    asking.service.overrides.remove([grant])
    assert await passed(asking, 5) == 2


async def test_grants_of_one_caller_add_up(asking: Asking) -> None:
    """Two grants give what both of them have."""
    asking.service.overrides.add([override(GRANT, number=3), override(GRANT, number=2)])

    assert await passed(asking, 10) == 7


async def test_each_caller_has_a_grant_of_its_own(asking: Asking) -> None:
    """A grant to a pattern gives its hits to each caller, also to several of one request."""
    asking.service.overrides.add([override(GRANT, "user=b*", 1)])
    codes = [(await asking.ask("user=bob", "user=ben")).code for _ in range(4)]
    assert codes == [Code.OK, Code.OK, Code.OK, Code.OVER_LIMIT]
    assert await passed(asking, 5, "user=bill") == 3


async def test_what_remains_has_all_grants_in_it(asking: Asking) -> None:
    """The remaining hits are those of the limit and of every grant that has some left."""
    asking.service.overrides.add([override(GRANT, number=2), override(GRANT, number=2)])

    told = [(await asking.ask("user=bob")).statuses[0].remaining for _ in range(6)]
    assert told == [5, 4, 3, 2, 1, 0]
    assert not await passes(asking)


async def test_what_remains_has_grants_in_it_that_were_too_small(asking: Asking) -> None:
    """Hits that a request of more hits could not take from a grant remain for smaller ones."""
    asking.service.overrides.add([override(GRANT, number=1), override(GRANT, number=3)])

    told = [
        (await asking.ask("user=bob", hits=hits)).statuses[0].remaining for hits in (3, 2, 1, 1)
    ]
    assert told == [3, 1, 0, 0]


QUEUE_RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 60, algorithm: leaky_bucket, max_wait: 10s}
"""


async def test_granted_hits_wait_for_the_queue_as_it_is(tmp_path: Path) -> None:
    """A hit on a grant has no place in the queue: its delay is what the others take."""
    asking = Asking(tmp_path, QUEUE_RULES)
    assert await passed(asking, 3) == 3
    asking.service.overrides.add([override(GRANT, number=2)])

    metadata = [(await asking.ask("user=bob")).metadata for _ in range(3)]
    assert [each and each["delay_ms"] for each in metadata] == [3_000, 3_000, 3_000]
    metadata = [(await asking.ask("user=bob")).metadata]
    assert [each and each["delay_ms"] for each in metadata] == [4_000]


async def test_hits_come_from_a_grant_or_from_the_limit(asking: Asking) -> None:
    """Several hits are taken from a grant together, or not at all."""
    asking.service.overrides.add([override(GRANT, number=3)])

    assert await passes(asking, hits=2)  # 1 is left of the grant
    assert await passes(asking, hits=2)  # the limit's own
    assert await passes(asking)
    assert not await passes(asking)


async def test_a_denied_request_spends_no_grant(asking: Asking) -> None:
    """Where another descriptor denies the request, a grant keeps what it has."""
    assert await passed(asking, 2, "user=alice") == 2
    asking.service.overrides.add([override(GRANT, number=1)])
    for _ in range(3):
        assert (await asking.ask("user=bob", "user=alice")).code is Code.OVER_LIMIT

    assert await passed(asking, 5) == 3


async def test_the_same_descriptor_twice_spends_a_grant_twice(asking: Asking) -> None:
    """Two hits of one request on a grant of one: one is given, the other is the limit's."""
    asking.service.overrides.add([override(GRANT, number=1)])

    assert (await asking.ask("user=bob", "user=bob")).code is Code.OK
    assert await passed(asking, 5) == 1


async def test_one_of_several_limits_can_be_meant(asking: Asking) -> None:
    """With a limit's name an override is about that limit; the others hold as ever."""
    asking.service.overrides.add([override(EXEMPT, "plan=a", limit="short")])
    assert await passed(asking, 9, "plan=a") == 5

    asking.service.overrides.add([override(GRANT, "plan=b", 2, limit="short")])
    assert await passed(asking, 9, "plan=b") == 4

    asking.service.overrides.add([override(BAN, "plan=c", limit="other")])
    assert await passed(asking, 9, "plan=c") == 2

    asking.service.overrides.add([override(BAN, "plan=d", limit="long")])
    assert await passed(asking, 9, "plan=d") == 0


async def test_an_override_ends_at_its_moment(asking: Asking) -> None:
    """An override holds up to the microsecond before it ends, and not a moment longer."""
    asking.service.overrides.add([override(BAN, until_us=T + 1_000), override(EXEMPT)])
    for at_us, code in ((0, False), (999, False), (1_000, True), (999, False), (1_001, True)):
        asking.now_us = T + at_us
        assert [await passes(asking) for _ in range(3)] == [code] * 3


async def test_overrides_come_before_the_failure_policy(tmp_path: Path) -> None:
    """While the store is away bans deny, and who is exempt passes, whatever the policy says."""
    asking = Asking(
        tmp_path, RULES, settings=Settings(failure_policy=FailurePolicy.CLOSED), store=Away()
    )
    asking.service.overrides.add([override(EXEMPT), override(BAN, "user=eve")])

    assert await passes(asking)
    assert not await passes(asking, "user=alice")
    assert not await passes(asking, "user=eve")


async def test_answers_say_which_override_took_part(asking: Asking) -> None:
    """Dynamic metadata names the overrides of each descriptor, and metrics count them by kind."""
    ban, exempt = override(BAN), override(EXEMPT, "user=alice")
    asking.service.overrides.add([ban, exempt])
    decision = await asking.ask("user=alice", "user=bob")

    assert decision.metadata == {
        "by_override": [
            {"descriptor": 0, "kind": "exempt", "id": exempt.id},
            {"descriptor": 1, "kind": "ban", "id": ban.id},
        ]
    }
    assert asking.stats.override_decisions == {"ban": 1, "exempt": 1}


async def test_decision_metadata_says_by_override(tmp_path: Path) -> None:
    """What decided is said to be an override, with the rule in whose place it stands."""
    asking = Asking(tmp_path, RULES, settings=Settings(decision_metadata=True))
    asking.service.overrides.add([override(BAN)])
    metadata = (await asking.ask("user=bob")).metadata
    assert metadata is not None
    decided = metadata["decided"]
    assert isinstance(decided, Mapping)
    assert {name: decided[name] for name in ("by", "rule", "limit", "denied")} == {
        "by": "override",
        "rule": "user",
        "limit": "",
        "denied": True,
    }


async def test_remembered_denials_do_not_stand_against_overrides(tmp_path: Path) -> None:
    """What a local cache knows to be over denies nobody whom an override lets pass."""
    asking = Asking(tmp_path, RULES)
    memory = MemoryStore(100, asking.stats, asking.health, asking.clock)
    asking.service = asking.served_by(LocalCache(memory, 10_000, asking.stats), asking.settings)
    assert await passed(asking, 4) == 2
    assert asking.stats.local_cache["hit"] == 1

    for one, times in ((override(EXEMPT), 4), (override(GRANT, number=3), 3)):
        asking.service.overrides.add([one])
        assert await passed(asking, 4) == times
        asking.service.overrides.remove([one])
        assert await passed(asking, 2) == 0
    asking.service.overrides.add([override(LIMIT, number=3)])
    assert await passed(asking, 4) == 1


async def test_the_global_shadow_mode_holds_for_bans(tmp_path: Path) -> None:
    """In the global shadow mode nobody is denied, not even who is banned; others are counted."""
    asking = Asking(tmp_path, RULES, settings=Settings(shadow_mode=True))
    asking.service.overrides.add([override(BAN)])
    for _ in range(2):
        decision = await asking.ask("user=bob", "user=alice")
        assert decision.code is Code.OK
        assert decision.statuses[0].code is Code.OVER_LIMIT

    assert decision.statuses[1].remaining == 0


async def test_records_name_overrides(asking: Asking) -> None:
    """Who listens hears which override denied a request or let it through, and its rule."""
    heard = Heard(asking.service)
    ban, exempt = override(BAN), override(EXEMPT, "user=alice")
    limit = override(LIMIT, "user=eve", 1)
    asking.service.overrides.add([ban, exempt, limit])
    for name in ("bob", "alice", "eve", "eve"):
        await asking.ask(f"user={name}")

    assert [each.by for each in heard] == ["override", "override", "count", "count"]
    assert [each.overrides for each in heard] == [(ban,), (exempt,), (limit,), (limit,)]
    assert [each.rule for each in heard] == ["user"] * 4
    line = json.loads(line_of(heard[0], T))
    assert (line["code"], line["by"], line["rule"]) == ("OVER_LIMIT", "override", "user")
    named = {"id": ban.id, "kind": "ban", "who": "ops", "reason": "because"}
    assert line["overrides"] == [named]


ALGORITHM_RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {{unit: minute, requests_per_unit: 2, algorithm: {algorithm}}}
"""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_limits_and_grants_hold_for_every_algorithm(tmp_path: Path, algorithm: str) -> None:
    """Another number, also 0, and extra hits hold whatever counts."""
    asking = Asking(tmp_path, ALGORITHM_RULES.format(algorithm=algorithm))
    asking.service.overrides.add(
        [
            override(LIMIT, "user=more", 5),
            override(LIMIT, "user=none", 0),
            override(GRANT, "user=given", 3),
            override(GRANT, "user=both", 3),
            override(LIMIT, "user=both", 4),
        ]
    )

    found = {each: await passed(asking, 9, f"user={each}") for each in ("more", "none", "given")}
    assert found == {"more": 5, "none": 0, "given": 5}
    assert await passed(asking, 9, "user=both") == 7


DENIED_COUNT_RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, count_denied: true}
  - key: soft
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
"""


async def test_denied_hits_count_once_beside_a_grant(tmp_path: Path) -> None:
    """Where denied hits count, they count once, however often grants are tried."""
    asking = Asking(tmp_path, DENIED_COUNT_RULES)
    asking.service.overrides.add([override(GRANT, "user=bob", 2), override(GRANT, "user=bob", 1)])

    assert await passed(asking, 7) == 5
    counted = asking.rules.snapshot.domains["edge"].rules
    assert {rule.path: rule.tallies.of().over for rule in counted}["user"] == 2
    assert (await asking.ask(descriptor("user=bob", addend=0))).statuses[0].remaining == 0


@pytest.mark.parametrize("beside", [False, True])
async def test_denied_hits_count_once_behind_a_grant_that_is_too_small(
    tmp_path: Path, beside: bool
) -> None:
    """Hits that neither a grant nor the limit has room for count once, also beside a refund."""
    asking = Asking(tmp_path, DENIED_COUNT_RULES)
    asking.service.overrides.add([override(GRANT, "user=bob", 1)])
    asked = [descriptor("user=bob", addend=3)]
    if beside:
        asked.append(descriptor("soft=x", refund=True))
    assert (await asking.ask(*asked)).code is Code.OVER_LIMIT

    asking.service.overrides.add([override(LIMIT, "user=bob", 9)])
    left = (await asking.ask(descriptor("user=bob", addend=0))).statuses[0].remaining
    assert left == 9 - 3 + 1


async def test_a_shadow_is_counted_once_a_grant_is_spent(tmp_path: Path) -> None:
    """In shadow mode hits pass in any case: first the grant's, then the limit's are counted."""
    asking = Asking(tmp_path, DENIED_COUNT_RULES)
    asking.service.overrides.add([override(GRANT, "soft=bob", 2)])

    remaining = [(await asking.ask("soft=bob")).statuses[0].remaining for _ in range(4)]
    assert remaining == [3, 2, 1, 0]
    assert await passed(asking, 3, "soft=bob") == 3


async def test_overrides_are_of_the_domain_that_counts(asking: Asking) -> None:
    """Of a request that names two domains the last one counts, whatever is remembered of it."""
    asking.service.overrides.add([override(BAN), override(BAN, "user=eve", domain="other")])
    body = wire.encode_request(Request("edge", (descriptor("user=bob"),)))
    other, third = b"\x0a\x05other", b"\x0a\x05third"
    bodies = [
        body,
        other + body,
        third + body,
        other + body,
        body,
        body + third,
        other + body + third,
    ]

    answers = await asking.service.decide([*bodies, *bodies])
    codes = [wire.decode_decision(each).code for each in answers if isinstance(each, bytes)]
    assert codes == 2 * ([Code.OVER_LIMIT] * 5 + [Code.OK] * 2)


async def test_unlimited_rules_stay_out_of_quotas_beside_overrides(tmp_path: Path) -> None:
    """Under --quota-mode unlimited rules are no quotas, also where an override takes part."""
    asking = Asking(tmp_path, RULES, settings=Settings(quota_mode=True))
    asking.service.overrides.add([override(LIMIT, "user=bob", 1), override(EXEMPT, "user=ann")])

    codes = [(await asking.ask("free=x", "user=bob")).code for _ in range(3)]
    assert codes == [Code.OK, Code.OVER_LIMIT, Code.OVER_LIMIT]

    # Who is exempt is a quota that passes.
    codes = [(await asking.ask("user=ann", "user=bob")).code for _ in range(3)]
    assert codes == [Code.OK] * 3


async def test_refunds_that_nothing_counts_meet_no_ban(asking: Asking) -> None:
    """A ban says nothing of hits that are given back, also where the rule is unlimited or none."""
    texts = ["user=bob", "free=bob", "none=bob"]
    asking.service.overrides.add([override(BAN, text) for text in texts])

    for text in texts:
        refund = descriptor(text)._replace(is_negative_hits=True)
        assert (await asking.ask(refund)).code is Code.OK
        assert (await asking.ask(text)).code is Code.OVER_LIMIT
        assert (await asking.ask(refund, text)).code is Code.OVER_LIMIT
