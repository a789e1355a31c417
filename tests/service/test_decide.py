"""Requests in, decisions out: what the rule language and the caller's fields come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.health import Health
from ratelimit_service.model import (
    MAX_ADDEND,
    Code,
    Decision,
    FailurePolicy,
    Hit,
    Limit,
    Outcome,
    Request,
    Status,
    Unit,
)
from ratelimit_service.observer import Stats
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.service import Refusal, Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import NEVER, Done, Outcomes, Wanted, always
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.wire import decode_decision, encode_request
from tests.service.asking import Asking, Away, descriptor
from tests.stores.cases import BROKEN, MINUTE

OK, OVER = Code.OK, Code.OVER_LIMIT
Ask = Callable[..., Asking]

USER = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, name: per-user}
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: free
    rate_limit: {unlimited: true}
  - key: hidden
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
"""


@pytest.fixture
def asking(tmp_path: Path) -> Ask:
    return lambda *files, **options: Asking(tmp_path, *files, **options)


def codes(decision: Decision) -> list[Code]:
    return [status.code for status in decision.statuses]


async def test_counted_to_the_limit(asking: Ask) -> None:
    """A status shows its limit, what is left and the seconds until the window ends."""
    service = asking(USER)
    limit = Limit(2, Unit.MINUTE, 1, "per-user")

    answers = [await service.ask("user=bob") for _ in range(3)]

    assert answers == [
        Decision(OK, (Status(OK, limit, 1, MINUTE),)),
        Decision(OK, (Status(OK, limit, 0, MINUTE),)),
        Decision(OVER, (Status(OVER, limit, 0, MINUTE),)),
    ]


async def test_reset_is_whole_seconds_rounded_up_and_never_zero(asking: Ask) -> None:
    """With a tenth of a second left the reset is one second."""
    service = asking(USER)
    service.now_us += MINUTE - 100_000

    (status,) = (await service.ask("user=bob")).statuses

    assert status.reset_us == 1_000_000


async def test_no_rule_and_unlimited(asking: Ask) -> None:
    """No rule shows nothing; an unlimited rule shows 2^32-1 left; both without a limit."""
    service = asking(USER)

    decision = await service.ask("unknown=x", "free=x", "user=x,deeper=y")

    assert decision == Decision(OK, (Status(OK), Status(OK, remaining=MAX_ADDEND), Status(OK)))


async def test_unknown_domain_is_allowed_and_counted(
    asking: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown domain is allowed, counted for each descriptor and logged once."""
    service = asking(USER)

    await service.ask("user=x", "user=y", domain="nowhere")
    decision = await service.ask("user=x", domain="nowhere")

    assert decision == Decision(OK, (Status(OK),))
    assert service.stats.unknown_domains == 3
    assert [r.getMessage() for r in caplog.records if "nowhere" in r.getMessage()] == [
        "no rule file has the domain 'nowhere': its requests are allowed"
    ]


async def test_denied_request_leaves_the_others_uncharged(asking: Ask) -> None:
    """A denied request shows, for descriptors that had room, what is left without it."""
    service = asking(USER)
    await service.ask("user=bob", hits=2)

    decision = await service.ask("tenant=acme", "user=bob", hits=2)

    assert codes(decision) == [OK, OVER]
    assert decision.code is OVER
    assert [status.remaining for status in decision.statuses] == [10, 0]
    assert service.tally("tenant").uncharged == 2


async def test_shadow_rule_never_denies(asking: Ask) -> None:
    """A rule in shadow mode answers OK with nothing left, and tallies what it let through."""
    service = asking(USER)
    await service.ask("hidden=x")

    decision = await service.ask("hidden=x")

    assert decision.code is OK
    assert codes(decision) == [OK]
    assert decision.statuses[0].remaining == 0
    tally = service.tally("hidden")
    assert (tally.hits, tally.over, tally.shadow) == (2, 1, 1)


async def test_addends(asking: Ask) -> None:
    """A descriptor's addend wins over the request's; 0 is a peek there and 1 at the request."""
    service = asking(USER)

    decision = await service.ask(
        descriptor("tenant=a"),
        descriptor("tenant=b", addend=4),
        descriptor("tenant=c", addend=0),
        hits=3,
    )

    assert [status.remaining for status in decision.statuses] == [7, 6, 10]


async def test_refund_is_ok_even_when_the_request_is_denied(asking: Ask) -> None:
    """Negative hits give back, answer OK and do not keep the rest from being denied."""
    service = asking(USER)
    await service.ask("tenant=a", hits=5)
    await service.ask("user=bob", hits=2)

    decision = await service.ask("user=bob", descriptor("tenant=a", addend=2, refund=True))

    assert codes(decision) == [OVER, OK]
    assert decision.statuses[1].remaining == 7
    assert service.tally("tenant").refunded == 2


async def test_refunds_that_are_not_taken(tmp_path: Path) -> None:
    """With --no-refunds a request with a refund is refused whole, also where it is known."""
    service = Asking(tmp_path, USER, settings=Settings(no_refunds=True))
    await service.ask("tenant=a", hits=5)
    refund = Request("edge", (descriptor("tenant=a", addend=2, refund=True),))

    answers = [await service.answer(refund) for _ in range(2)]
    after = await service.ask("tenant=a", hits=0)

    for answer in answers:
        assert isinstance(answer, Refusal)
        assert (answer.code, "--no-refunds" in answer.message) == (
            StatusCode.INVALID_ARGUMENT,
            True,
        )
    assert service.stats.refusals["refund"] == 2
    assert after.statuses[0].remaining == 4


REPLACING = """
domain: edge
descriptors:
  - {key: base, rate_limit: {unit: minute, requests_per_unit: 1, name: base}}
  - key: vip
    rate_limit: {unit: minute, requests_per_unit: 9, name: vip, replaces: [{name: base}]}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: base}]}}
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: a, replaces: [{name: b}]}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 1, name: b, replaces: [{name: a}]}}
  - key: top
    rate_limit: {unit: minute, requests_per_unit: 9, name: top, replaces: [{name: vip}]}
"""


@pytest.mark.parametrize(
    ("asked", "counted"),
    [
        (["base=x"], [True]),
        (["base=x", "vip=x"], [False, True]),
        (["vip=x", "base=x"], [True, False]),
        (["free=x", "base=x"], [False, False]),
        (["a=x", "b=x"], [False, False]),
        (["base=x", "vip=x", "top=x"], [False, False, True]),
    ],
    ids=lambda value: "+".join(map(str, value)),
)
async def test_replaces(asking: Ask, asked: list[str], counted: list[bool]) -> None:
    """A replaced rule is as no rule; chains count, unlimited rules replace, pairs drop both."""
    service = asking(REPLACING)

    decision = await service.ask(*asked)

    assert [status.limit is not None for status in decision.statuses] == counted


async def test_override_counts_with_the_rule(asking: Ask) -> None:
    """A caller's limit counts on the counter of a rule with the same entries and window."""
    service = asking(USER)
    await service.ask("user=bob")
    limit = Limit(5, Unit.MINUTE)

    decision = await service.ask(descriptor("user=bob", limit=limit))

    assert decision.statuses == (Status(OK, limit, 3, MINUTE),)
    assert service.rules.snapshot.domains["edge"].overrides.of().hits == 1


async def test_override_needs_no_rule_but_a_domain(asking: Ask) -> None:
    """Any entries can be limited by the caller in a known domain, none in an unknown one."""
    service = asking(USER)
    own = descriptor("any=thing", limit=Limit(0, Unit.WEEK))

    assert (await service.ask(own)).code is OVER
    assert (await service.ask(own, domain="nowhere")).code is OK


SHARED = """
domain: edge
descriptors:
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 3}
  - {key: path, value: /own/*, rate_limit: {unit: minute, requests_per_unit: 3}}
"""


async def test_shared_threshold(asking: Ask) -> None:
    """Values of one pattern share a counter with share_threshold, and have their own without."""
    service = asking(SHARED)
    for value in ("/api/a", "/own/a"):
        await service.ask(f"path={value}")

    decision = await service.ask("path=/api/b", "path=/own/b")

    assert [status.remaining for status in decision.statuses] == [1, 2]


def quota_rules(kinds: str) -> str:
    """A rule for each letter: e enforced, s shadow, q quota, Q quota in shadow; upper limit 1."""
    lines = ["domain: edge", "descriptors:"]
    for number, kind in enumerate(kinds):
        flags = {"e": "", "s": "shadow_mode: true, ", "q": "quota_mode: true, "}.get(
            kind, "quota_mode: true, shadow_mode: true, "
        )
        limit = "rate_limit: {unit: minute, requests_per_unit: 1}"
        lines.append(f"  - {{key: k{number}, {flags}{limit}}}")
    return "\n".join(lines)


@pytest.mark.parametrize("kinds", ["".join(kinds) for kinds in product("esqQ", repeat=2)])
@pytest.mark.parametrize("overs", list(product([False, True], repeat=2)))
async def test_overall_code(asking: Ask, kinds: str, overs: tuple[bool, bool]) -> None:
    """Over limit: an enforced rule is over, or there are quota rules and all of them are over."""
    service = asking(quota_rules(kinds))
    for number, over in enumerate(overs):
        if over:
            await service.ask(f"k{number}=x")

    decision = await service.ask("k0=x", "k1=x")

    rules = list(zip(kinds, overs, strict=True))
    quotas = [kind == "q" and over for kind, over in rules if kind in "qQ"]
    denied = any(kind == "e" and over for kind, over in rules) or (bool(quotas) and all(quotas))
    assert decision.code is (OVER if denied else OK)
    assert codes(decision) == [OVER if over and kind in "eq" else OK for kind, over in rules]


async def test_global_shadow_mode(asking: Ask) -> None:
    """The global shadow mode leaves statuses as they are and turns the overall code to OK."""
    service = asking(USER, settings=Settings(shadow_mode=True))
    await service.ask("user=bob", hits=2)

    decision = await service.ask("user=bob", "tenant=a")

    assert decision.code is OK
    assert codes(decision) == [OVER, OK]
    assert service.stats.global_shadow_mode == 1
    assert decision.statuses[1].remaining == 9


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["user=bob"], OVER),
        (["user=bob", "tenant=a"], OK),
        (["user=bob", "unknown=x"], OK),
        (["user=bob", "free=x"], OVER),
        (["user=bob", "hidden=x"], OK),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else value.name,
)
async def test_global_quota_mode(asking: Ask, asked: list[str], code: Code) -> None:
    """Every rule is a quota then; unmatched descriptors count as passed, unlimited ones not."""
    service = asking(USER, settings=Settings(quota_mode=True))
    await service.ask("user=bob", hits=2)

    decision = await service.ask(*asked)

    assert decision.code is code
    assert codes(decision)[0] is OVER


SEVERAL = """
domain: edge
descriptors:
  - key: job
    {mode}: true
    rate_limits:
      - {{unit: minute, requests_per_unit: 5, algorithm: concurrency}}
      - {{unit: minute, requests_per_unit: 0}}
"""


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("quota_mode", Settings(quota_mode=True)),
        ("quota_mode", Settings(shadow_mode=True)),
        ("detailed_metric", Settings(quota_mode=True)),
    ],
    ids=["beside a descriptor without rule", "global shadow mode", "global quota mode"],
)
async def test_quota_that_cannot_deny_counts_every_limit(
    asking: Ask, mode: str, settings: Settings
) -> None:
    """A quota takes what has room in each of its limits, also where it cannot deny."""
    service = asking(SEVERAL.format(mode=mode), settings=settings)

    await service.ask("job=a", "unknown=x")
    decision = await service.ask("job=a", "unknown=x")

    assert decision.code is OK
    assert decision.metadata is not None
    assert [limit["remaining"] for limit in decision.metadata["limits"]] == [3, 0]  # type: ignore[attr-defined]


async def test_refund_is_no_quota(asking: Ask) -> None:
    """What gives back hits of a quota in shadow lets no other quota pass."""
    service = asking(quota_rules("qQ"))
    await service.ask("k0=x")

    decision = await service.ask("k0=x", descriptor("k1=x", refund=True))

    assert decision.code is OVER


async def test_token_budget(asking: Ask) -> None:
    """With count_denied, a limit of 1000 and uses of 300, the fifth peek is over."""
    service = asking(
        """
domain: edge
descriptors:
  - {key: budget, rate_limit: {unit: day, requests_per_unit: 1000, count_denied: true}}
"""
    )
    peeks = []
    for _ in range(5):
        peeks.append((await service.ask(descriptor("budget=x", addend=0))).code)
        await service.ask(descriptor("budget=x", addend=300))

    assert peeks == [OK, OK, OK, OK, OVER]


async def test_global_count_denied(asking: Ask) -> None:
    """With --count-denied a denied request is charged in every descriptor."""
    service = asking(USER, settings=Settings(count_denied=True))
    await service.ask("user=bob", hits=2)

    decision = await service.ask("user=bob", "tenant=a", hits=3)

    assert decision.code is OVER
    assert decision.statuses[1].remaining == 7


POLICIES = """
domain: edge
descriptors:
  - {key: o, rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: open}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: closed}}
  - {key: e, rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: error}}
  - {key: d, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: s
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: closed}
  - {key: free, rate_limit: {unlimited: true}}
"""


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["o=x"], OK),
        (["c=x"], OVER),
        (["d=x"], OK),
        (["s=x"], OK),
        (["o=x", "c=x"], OVER),
        (["free=x", "unknown=x"], OK),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else value.name,
)
async def test_failure_policy(asking: Ask, asked: list[str], code: Code) -> None:
    """Without an outcome closed denies and open allows; such a status shows no limit."""
    service = asking(POLICIES, store=Away())

    decision = await service.ask(*asked)

    assert decision.code is code
    assert [status.limit for status in decision.statuses] == [None] * len(asked)


async def test_failure_policy_error(asking: Ask) -> None:
    """`error` fails the whole call as UNAVAILABLE, whatever the other policies say."""
    service = asking(POLICIES, store=Away())

    answer = await service.answer(
        Request("edge", (descriptor("c=x"), descriptor("e=x"), descriptor("o=x")))
    )

    assert isinstance(answer, Refusal)
    assert answer.code is StatusCode.UNAVAILABLE


class HalfAway(Away):
    """A store that answers for counters of hours only, and these are over."""

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        full = Outcome(True, 0, MINUTE, 0)
        return [full if hit.spec.window_us > MINUTE else None for hit in hits]


@pytest.mark.parametrize("order", ["minute hour", "hour minute"])
async def test_limit_that_is_over_denies_though_another_is_not_counted(
    asking: Ask, order: str
) -> None:
    """Where one of two limits has no count and the other is over, the other denies."""
    limits = "".join(f"\n  - {{unit: {unit}, requests_per_unit: 5}}" for unit in order.split())
    rules = f"domain: edge\ndescriptors:\n- key: a\n  rate_limits:{limits}\n"
    service = asking(rules, store=HalfAway())

    decision = await service.ask("a=x")

    assert decision.code is OVER
    (status,) = decision.statuses
    assert status.code is OVER
    assert status.limit is not None
    assert status.limit.unit is Unit.HOUR
    assert (service.tally("a").over, service.tally("a").by_policy) == (1, 0)


async def test_default_failure_policy(asking: Ask) -> None:
    """--failure-policy holds where a rule says nothing, and what it decides is counted."""
    service = asking(POLICIES, store=Away(), settings=Settings(failure_policy=FailurePolicy.CLOSED))

    decision = await service.ask("d=x", descriptor("d=y", addend=2, refund=True))

    assert codes(decision) == [OVER, OK]
    assert service.stats.policy_decisions["closed"] == 2
    assert service.tally("d").by_policy == 3


class Here(Away):
    """A store that is away, whose first hit of two is counted here alone."""

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        over = [hit.key.endswith(b"4:full") for hit in hits]
        return [Outcome(each, 3, MINUTE, 1 - each, local=True) for each in over]


async def test_counted_here_alone(asking: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """What the policy `local` decides shows no limit, and is seen in metrics, metadata and log."""
    service = asking(POLICIES, store=Here(), settings=Settings(failure_policy=FailurePolicy.LOCAL))

    passed, denied = await service.ask("d=x"), await service.ask("d=full")

    told = {"by_policy": [{"descriptor": 0.0, "policy": "local"}]}
    assert passed == Decision(OK, (Status(OK),), metadata=told)
    assert denied == Decision(OVER, (Status(OVER),), metadata=told)
    assert service.stats.policy_decisions["local"] == 2
    assert (service.tally("d").by_policy, service.tally("d").over) == (2, 0)
    assert caplog.text.count("decided by failure policy") == 1


@pytest.mark.parametrize(
    ("policy", "code"), [(FailurePolicy.OPEN, OK), (FailurePolicy.CLOSED, OVER)]
)
async def test_domain_that_never_loaded(asking: Ask, policy: FailurePolicy, code: Code) -> None:
    """Requests of a domain whose file is bad from the start follow the failure policy."""
    service = asking(
        "domain: edge\ndescriptors: [{key: a, vlaue: b}]", settings=Settings(failure_policy=policy)
    )

    decision = await service.ask("a=b")

    told = {"by_policy": [{"descriptor": 0.0, "policy": policy}]}
    assert decision == Decision(code, (Status(code),), metadata=told)


@pytest.mark.parametrize(
    ("policy", "code"), [(FailurePolicy.OPEN, OK), (FailurePolicy.CLOSED, OVER)]
)
async def test_no_rules_ever_loaded(
    asking: Ask, policy: FailurePolicy, code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    """If no file could be read, nobody knows which domains there are: the policy decides all."""
    service = asking("descriptors: [", settings=Settings(failure_policy=policy))

    decision = await service.ask("a=b", domain="any")

    told = {"by_policy": [{"descriptor": 0.0, "policy": policy}]}
    assert decision == Decision(code, (Status(code),), metadata=told)
    assert "its requests are allowed" not in caplog.text


async def test_no_rules_ever_loaded_and_policy_error(asking: Ask) -> None:
    """Under the policy `error` such a request is refused, as envoyproxy/ratelimit does."""
    service = asking("descriptors: [", settings=Settings(failure_policy=FailurePolicy.ERROR))

    answer = await service.answer(Request("any", (descriptor("a=b"),)))

    assert isinstance(answer, Refusal)
    assert answer.code is StatusCode.UNAVAILABLE
    assert "rules of this domain have never loaded" in answer.message


HEADERS = Settings(limit_response_headers=True)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (["user=new"], ("2", "1", "60")),
        (["tenant=new", "user=new"], ("2", "1", "60")),
        (["user=bob", "tenant=new"], ("2", "0", "60")),
        (["hidden=full", "user=bob"], ("2", "0", "60")),
        (["unknown=x", "free=x"], None),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
async def test_headers(asking: Ask, asked: list[str], shown: tuple[str, str, str] | None) -> None:
    """The headers show an over-limit status first, then the least remaining, then the first."""
    service = asking(USER, settings=HEADERS)
    await service.ask("user=bob", "hidden=full", hits=2)
    await service.ask("hidden=full")

    decision = await service.ask(*asked)

    names = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
    assert decision.response_headers == (tuple(zip(names, shown, strict=True)) if shown else ())


async def test_no_headers_by_default(asking: Ask) -> None:
    """The headers are off unless asked for."""
    service = asking(USER)

    assert (await service.ask("user=bob")).response_headers == ()


METADATA = """
domain: edge
descriptors:
  - key: a
    metadata: {owner: {team: red, mail: r@x}, tags: [1]}
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: b
    metadata: {owner: {team: blue, phone: "7"}, tags: [2], more: true}
    value_to_metric: true
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 9}
"""


async def test_metadata_is_merged_and_never_leaks(asking: Ask) -> None:
    """Rule metadata of passed descriptors is merged, the first wins, and no rule is changed."""
    service = asking(METADATA, settings=Settings(dynamic_metadata=True))

    both = (await service.ask("a=x", "b=y")).metadata
    only_b = (await service.ask("a=x", "b=y")).metadata

    assert both is not None
    assert only_b is not None
    assert both["domain"] == "edge"
    assert both["descriptors"] == [{"entries": ["a=x"]}, {"entries": ["b=y"]}]
    assert both["metadata"] == {
        "owner": {"team": "red", "mail": "r@x", "phone": "7"},
        "tags": [1],
        "more": True,
    }
    assert only_b["metadata"] == {
        "owner": {"team": "blue", "phone": "7"},
        "tags": [2],
        "more": True,
    }


async def test_metadata_shows_what_the_caller_sent(asking: Ask) -> None:
    """Addends and overrides are repeated in the metadata."""
    service = asking(USER, settings=Settings(dynamic_metadata=True))

    asked = descriptor("user=x", addend=2, limit=Limit(5, Unit.HOUR, 2))
    metadata = (await service.ask(asked, hits=3)).metadata

    assert metadata == {
        "domain": "edge",
        "hitsAddend": 3,
        "descriptors": [
            {
                "entries": ["user=x"],
                "hitsAddend": 2,
                "limit": {"requestsPerUnit": 5, "unit": "HOUR", "unitMultiplier": 2},
            }
        ],
    }


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
    ) -> None:
        odd = [
            [one._replace(spec=BROKEN) for one in hits] if b"broken" in hits[0].key else hits
            for hits in requests
        ]
        self._memory.charge(odd, done, wanted, deadline_us)


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


@pytest.mark.parametrize(
    ("limit", "hits", "after", "counted"),
    [
        (15, 1, 11, (0, 0, 1)),
        (15, 1, 13, (0, 1, 1)),
        (15, 1, 16, (1, 0, 0)),
        (20, 3, 5, (0, 0, 3)),
        (8, 2, 7, (0, 1, 2)),
        (20, 3, 19, (0, 3, 3)),
        (20, 3, 22, (2, 1, 0)),
        (20, 7, 22, (2, 4, 0)),
        (10, 3, 30, (3, 0, 0)),
    ],
)
async def test_tallies_as_the_reference(
    asking: Ask, limit: int, hits: int, after: int, counted: tuple[int, int, int]
) -> None:
    """Where denied hits are counted, over, near and within split as in envoyproxy/ratelimit."""
    rule = f"{{key: k, rate_limit: {{unit: minute, requests_per_unit: {limit}}}}}"
    service = asking(f"domain: edge\ndescriptors: [{rule}]", settings=Settings(count_denied=True))
    if after > hits:
        await service.ask(descriptor("k=x", addend=after - hits))
    tally = service.tally("k")
    before = (tally.over, tally.near, tally.within)

    await service.ask(descriptor("k=x", addend=hits))

    found = (tally.over, tally.near, tally.within)
    assert tuple(b - a for a, b in zip(before, found, strict=True)) == counted


async def test_unlimited_rules_are_tallied(asking: Ask) -> None:
    """An unlimited rule counts its hits, so that it can be used for statistics."""
    service = asking(USER)

    await service.ask("free=x", hits=3)

    assert (service.tally("free").hits, service.tally("free").within) == (3, 3)
