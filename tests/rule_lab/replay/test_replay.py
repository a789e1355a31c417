"""What a replay says of rules, held against the limiter's own answers and against its promises."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.model import Code, Descriptor, Entry, Request
from ratelimit_service.rule_lab.replay.play import Replay
from ratelimit_service.rule_lab.replay.recorded import RecordedRequest
from ratelimit_service.rule_lab.replay.report import RuleReport
from ratelimit_service.rule_lab.replay.text import lines_of
from ratelimit_service.rule_lab.replay.trace import Trace
from ratelimit_service.rule_lab.simulation.simulator import Simulator
from ratelimit_service.rule_lab.simulation.snapshots import snapshot_of
from ratelimit_service.settings import Settings
from tests.examples import up_to
from tests.rule_lab.replay import playing
from tests.rule_lab.replay.playing import START_US, Recorded, block_of, limited, played, rules_file

SECOND_US = 1_000_000

RULES = """domain: api
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 3}
  descriptors:
  - key: path
    value: /login
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_window}
- key: address
  shadow_mode: true
  rate_limits:
  - {unit: second, requests_per_unit: 1, name: second}
  - {unit: minute, requests_per_unit: 4, name: minute, algorithm: token_bucket}
- key: job
  rate_limit: {unit: minute, requests_per_unit: 1, algorithm: concurrency}
- key: free
  rate_limit: {unlimited: true}
"""

descriptors = st.builds(
    lambda entries, hits, refund: Descriptor(
        tuple(Entry(*entry) for entry in entries), hits_addend=hits, is_negative_hits=refund
    ),
    st.sampled_from(
        [
            (("user", "a"),),
            (("user", "b"),),
            (("user", "a"), ("path", "/login")),
            (("address", "1"),),
            (("job", "x"),),
            (("free", "z"),),
            (("nobody", "n"),),
        ]
    ),
    st.sampled_from([None, None, None, 0, 1, 2]),
    st.sampled_from([False] * 6 + [True]),
)
requests = st.lists(
    st.tuples(st.integers(0, 30 * SECOND_US), st.lists(descriptors, min_size=1, max_size=3)),
    max_size=40,
)


@given(requests)
@settings(max_examples=up_to(60))
def test_replay_answers_as_the_limiter_does(steps: list[tuple[int, list[Descriptor]]]) -> None:
    """Each request gets the code that the limiter gives it, and is counted once as what it was."""
    with TemporaryDirectory() as directory:
        snapshot = snapshot_of(rules_file(Path(directory), RULES))
    simulator, trace = Simulator(snapshot, Settings()), Trace(snapshot, Settings())
    now, denied = START_US, 0
    for wait_us, descriptors in steps:
        now += wait_us
        request = Request("api", tuple(descriptors))
        expected = simulator.decide(request, now).decision.code is Code.OK
        assert trace.decide(RecordedRequest(request), now) is expected
        denied += not expected

    assert trace.denied == denied
    for use in trace.uses.values():
        times = sum(
            not descriptor.is_negative_hits and use.declared is rule
            for _, descriptors in steps
            for descriptor, rule in zip(
                descriptors,
                simulator.decide(Request("api", tuple(descriptors)), now).rules,
                strict=True,
            )
        )
        unlimited = not use.rule.limits
        refunds = 0 if not unlimited else use.requests - times
        assert use.requests - refunds == times
        assert use.denied + use.admitted_over + use.held_back <= use.requests


LIMITS = [
    "unit: minute, requests_per_unit: {}",
    "unit: minute, requests_per_unit: {}, anchor: first_hit",
    "unit: minute, requests_per_unit: {}, algorithm: sliding_window",
    "unit: minute, requests_per_unit: {}, algorithm: sliding_window, buckets: 6",
    "unit: minute, requests_per_unit: {}, algorithm: sliding_log",
    "unit: minute, requests_per_unit: 4, algorithm: token_bucket, burst: {}",
    "unit: minute, requests_per_unit: 4, algorithm: leaky_bucket, burst: {}",
]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("percent", [0.0, 10.0])
def test_suggested_limits_are_the_smallest_that_do(
    tmp_path: Path, limit: str, percent: float
) -> None:
    """The suggested limit denies at most so many percent of callers; one less denies more."""
    chance = random.Random(7)
    at = START_US
    records = []
    for _ in range(600):
        at += chance.randrange(SECOND_US)
        user = f"u{int(30 * chance.random() ** 2)}"
        hits = chance.choice([None, None, 2])
        records.append(record(at, user, hits))

    def denied_percent(number: int) -> float:
        rules = limited(tmp_path, limit.format(number))
        return played(records, rules).rules[0].callers_denied_percent

    report = played(records, limited(tmp_path, limit.format(3)), percent=percent)
    suggested = report.rules[0].limits[0].suggestions[0]

    assert (suggested.percent, suggested.beyond) == (percent, False)
    assert suggested.key == ("burst" if "burst" in limit else "requests_per_unit")
    assert denied_percent(suggested.number) <= percent
    assert denied_percent(suggested.number - 1) > percent


@pytest.mark.parametrize(
    "limit",
    [
        "unit: day, requests_per_unit: 10, pool: p, reserve: 50%",
        "unit: day, requests_per_unit: 10, pool: p",
        "unit: day, requests_per_unit: 0, algorithm: token_bucket",
    ],
)
def test_limits_without_a_suggestion(tmp_path: Path, limit: str) -> None:
    """A pool is filled by other rules, too, and no burst goes with a rate of nothing."""
    records = [record(START_US + at, "bob") for at in range(20)]

    report = played(records, limited(tmp_path, limit))

    (rule,) = report.rules
    assert rule.denied
    assert not rule.limits[0].suggestions


def test_who_changes_side_is_told(tmp_path: Path) -> None:
    """Requests that only one of two sets of rules denies are told with their callers, both ways."""
    new = rules_file(
        tmp_path,
        "domain: api\ndescriptors:\n"
        "- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}\n"
        "- {key: user, value: vip, rate_limit: {unit: day, requests_per_unit: 9}}\n",
        "new.yaml",
    )
    old = limited(tmp_path, "unit: day, requests_per_unit: 3", "old.yaml")
    records = [record(START_US + index, user) for index in range(5) for user in ("a", "b", "vip")]

    report = played(records, new, old)

    assert report.denied == 6
    assert report.denied_before == 6
    denied, allowed = report.newly_denied, report.newly_allowed
    assert denied is not None
    assert allowed is not None
    assert (denied.requests, denied.callers) == (2, 2)
    assert [(each.name, each.times) for each in denied.top] == [("user=a", 1), ("user=b", 1)]
    assert (allowed.requests, allowed.callers) == (2, 1)
    assert allowed.top[0].name == "user=vip"
    rule = next(rule for rule in report.rules if rule.rule == "user")
    assert rule.newly_denied == denied
    assert rule.newly_allowed == allowed
    assert rule.denied_before == 6


def test_rules_of_a_time(tmp_path: Path) -> None:
    """A rule that requests met at its times is not unmet; callers are those of that time."""
    rules = rules_file(
        tmp_path,
        """domain: api
descriptors:
- key: user
  rate_limits:
  - {unit: day, requests_per_unit: 0, when: {to: "12:00"}}
  - {unit: day, requests_per_unit: 0, when: {from: "12:00"}}
- key: address
  value: 10.0.0.0/8
  group: {ipv4: 8}
  valid_until: 2026-01-01T00:01Z
  rate_limit: {unit: day, requests_per_unit: 0}
- {key: address, rate_limit: {unit: day, requests_per_unit: 0}}
""",
    )
    address = Request("api", (Descriptor((Entry("address", "10.1.2.3"),)),))
    records = [record(START_US, "a")] + [
        Recorded(START_US + at * SECOND_US, address, None) for at in (0, 59, 60)
    ]

    report = played(records, rules)

    assert report.unmet == ()
    named = [[each.name for each in rule.top_denied] for rule in report.rules[:3]]
    assert named == [["address=10.0.0.0/8"], ["address=10.1.2.3"], ["user=a"]]


def test_same_rules_change_nothing(tmp_path: Path) -> None:
    """Rules against themselves change no request, whatever they deny."""
    rules = limited(tmp_path, "unit: day, requests_per_unit: 1")
    report = played([record(START_US, "a")] * 5, rules, rules)

    assert report.denied == 4
    assert not report.changes


def test_removed_and_unmet_rules_are_told(tmp_path: Path) -> None:
    """Rules that only the old files have, and rules that no request met, are told apart."""
    old = limited(tmp_path, "unit: day, requests_per_unit: 1", "old.yaml")
    new = rules_file(
        tmp_path,
        "domain: api\ndescriptors:\n"
        "- {key: users, rate_limit: {unit: day, requests_per_unit: 2}}\n",
        "new.yaml",
    )
    report = played([record(START_US, "a")] * 3, new, old)

    assert [rule.rule for rule in report.removed] == ["user"]
    assert report.removed[0].denied == 2
    assert [(rule.domain, rule.rule) for rule in report.unmet] == [("api", "users")]
    assert report.unmatched == {"api": 3}
    assert report.newly_allowed is not None
    assert report.newly_allowed.requests == 2


def test_a_rule_that_is_still_there_is_not_said_to_be_gone(tmp_path: Path) -> None:
    """A rule whose callers all meet another one now was met in the old rules only."""
    old = limited(tmp_path, "unit: day, requests_per_unit: 1", "old.yaml")
    before = "- {key: user, one_of: [a, b], rate_limit: {unit: day, requests_per_unit: 5}}\n"
    new = rules_file(tmp_path, old.read_text() + before, "new.yaml")
    lines = list(lines_of(played([record(START_US, "a")] * 2, new, old)))

    assert f"user of api ({old}:4:3) was met in the old rules only" in lines
    assert f"user of api ({new}:4:3): no request met it" in lines


def test_rules_that_only_the_old_have_are_told_as_if_asked_alone(tmp_path: Path) -> None:
    """What is told of a removed rule is all that is told of it where nothing is compared.

    Of a rule that both have only the new ones' use is told, and how often the old ones denied.
    """
    stays = "- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}\n"
    gone = "- {key: address, rate_limit: {unit: day, requests_per_unit: 2}}\n"
    old = rules_file(tmp_path, f"domain: api\ndescriptors:\n{stays}{gone}", "old.yaml")
    new = rules_file(tmp_path, f"domain: api\ndescriptors:\n{stays.replace('2', '3')}", "new.yaml")
    records = [
        Recorded(START_US + second * SECOND_US, playing.request_of("api", None, (key, name)))
        for second in range(4)
        for key in ("user", "address")
        for name in "ab"
    ]
    compared = played(records, new, old)
    alone = {rule.rule: rule for rule in played(records, old).rules}
    kept_alone = played(records, new).rules

    def uncompared(rule: RuleReport) -> RuleReport:
        return replace(rule, denied_before=None, newly_denied=None, newly_allowed=None)

    assert list(map(uncompared, compared.removed)) == [alone["address"]]
    assert list(map(uncompared, compared.rules)) == list(kept_alone)
    assert compared.rules[0].denied_before == alone["user"].denied == 4
    assert compared.denied_before == 8


def findings(tmp_path: Path, limit: str, records: list[Recorded]) -> list[tuple[str, str]]:
    report = played(records, limited(tmp_path, limit))
    return [(each.kind, each.text) for each in report.rules[0].findings]


def test_limit_that_many_nearly_keep_is_too_strict(tmp_path: Path) -> None:
    """A limit that denies many callers, most of whom ask little more, is said to be too strict."""
    records = [
        record(START_US + index, f"u{user}")
        for user in range(20)
        for index in range(11 if user < 8 else 5)
    ]
    named = findings(tmp_path, "unit: day, requests_per_unit: 10", records)

    assert named == [
        (
            "too_strict",
            "denies 40 % of callers, 100 % of these within 1.2 x of the limit: too strict "
            "(requests_per_unit 11 would have denied at most 1 %)",
        )
    ]


def test_limit_that_is_never_reached_is_decorative(tmp_path: Path) -> None:
    """A limit of which hardly anything is ever used is said to be decorative."""
    records = [record(START_US + index, f"u{index % 5}") for index in range(20)]
    named = findings(tmp_path, "unit: day, requests_per_unit: 100", records)

    assert named == [("decorative", "never above 4 %: decorative")]


def test_few_callers_that_make_most_denials_are_named(tmp_path: Path) -> None:
    """If few of the denied callers make half of the denials, they are named."""
    records = [record(START_US + index, "mad") for index in range(30)]
    records += [record(START_US + index, f"u{user}") for user in range(9) for index in range(4)]
    named = findings(tmp_path, "unit: day, requests_per_unit: 3", records)

    assert ("few", "one caller makes 75 % of denials: user=mad") in named


def test_nearly_reached(tmp_path: Path) -> None:
    """A limit that denies nobody yet, but is nearly used up, is told."""
    records = [record(START_US + index, "a") for index in range(19)]
    named = findings(tmp_path, "unit: day, requests_per_unit: 20", records)

    assert named == [("tight", "denies nobody, but 95 % was used: it is nearly reached")]


def test_memory_is_bounded(tmp_path: Path) -> None:
    """However many callers there are, only so many names, plans and counters are held."""
    trace = Trace(
        snapshot_of(limited(tmp_path, "unit: day, requests_per_unit: 1")),
        Settings(),
        max_counters=50,
        most_prepared=50,
        sample=50,
        names=50,
    )
    recorded = [RecordedRequest(record(0, f"u{number // 2}").request) for number in range(2_000)]
    for number, request in enumerate(recorded):
        trace.decide(request, START_US + number // 2)

    (use,) = trace.uses.values()
    assert trace.denied == 1_000
    assert len(use.callers) == 50
    assert 300 < use.callers.distinct() < 3_000
    assert 50 <= len(use.deniers.top(5_000)) <= 2 * 50  # between two purges
    assert sum(request.plan is not None for request in recorded) <= 50
    assert trace.lost > 600


def test_requests_far_too_late_are_asked_at_the_time_reached(tmp_path: Path) -> None:
    """A request from before the time that a replay has come to is asked then, and is told."""
    trace = Trace(snapshot_of(limited(tmp_path, "unit: second, requests_per_unit: 1")), Settings())
    replay = Replay(trace)

    replay.play(block_of([record(START_US + SECOND_US, "a"), record(START_US, "a")]))

    assert replay.late == 1
    assert trace.denied == 1


def record(at_us: int, user: str, hits: int | None = None) -> Recorded:
    return Recorded(at_us, Request("api", (Descriptor((Entry("user", user),), hits_addend=hits),)))


@pytest.mark.parametrize("descriptors", [1, 2])
def test_large_values_take_bounded_memory(tmp_path: Path, descriptors: int) -> None:
    """However large requests are, what is remembered of them is not."""
    trace = Trace(snapshot_of(limited(tmp_path, "unit: day, requests_per_unit: 5")), Settings())
    replay = Replay(trace)
    tracemalloc.start()
    for number in range(60):
        value = f"{number:08}" * (1 << 17)  # a megabyte
        descriptor = Descriptor((Entry("user", value),))
        request = Request("api", (descriptor,) * descriptors)
        replay.play(block_of([Recorded(START_US + number, request)]))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert replay.requests == 60
    assert held < 40 << 20
