"""Logs are read in blocks and asked by short ways: what is found is the same as one by one."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.decision_log.line import BadDecisionError, NothingAskedError, read_line
from ratelimit_service.limiter import Planner
from ratelimit_service.model import Code, Descriptor, Entry, Request, State
from ratelimit_service.rule_lab.replay.csv_log import CsvLog
from ratelimit_service.rule_lab.replay.decision_log import DecisionLogReader
from ratelimit_service.rule_lab.replay.envoy_log import EnvoyLog, Mapped
from ratelimit_service.rule_lab.replay.logs import Lines
from ratelimit_service.rule_lab.replay.play import Replay
from ratelimit_service.rule_lab.replay.recorded import Moments, RecordedRequest, moment_us
from ratelimit_service.rule_lab.replay.report import Report, report_of
from ratelimit_service.rule_lab.replay.trace import Trace
from ratelimit_service.rule_lab.replay.use import Caller
from ratelimit_service.rule_lab.simulation.snapshots import snapshot_of
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.settings import Settings
from tests.examples import up_to
from tests.rule_lab.replay.playing import (
    START_US,
    Recorded,
    block_of,
    records_of,
    request_of,
    rules_file,
)

RULES = """domain: api
descriptors:
- key: user
  rate_limit: {{unit: minute, requests_per_unit: {most}{more}}}
  descriptors:
  - key: path
    rate_limit: {{unit: hour, requests_per_unit: 2, algorithm: sliding_window}}
- {{key: user, value: vip, rate_limit: {{unit: minute, requests_per_unit: 1}}}}
- key: address
  shadow_mode: true
  rate_limit: {{unit: second, requests_per_unit: 1}}
- key: plan
  rate_limits:
  - {{unit: second, requests_per_unit: 1, name: second}}
  - {{unit: minute, requests_per_unit: 4, name: minute, algorithm: token_bucket}}
- {{key: job, rate_limit: {{unit: minute, requests_per_unit: 1, algorithm: concurrency}}}}
- {{key: free, rate_limit: {{unlimited: true}}}}
- key: office
  rate_limits:
  - {{unit: minute, requests_per_unit: 1, when: {{to: "00:01"}}}}
  - {{unit: minute, requests_per_unit: 2, when: {{from: "00:01"}}}}
"""
MORE = st.sampled_from(
    [
        "",
        ", algorithm: sliding_window",
        ", algorithm: sliding_log",
        ", algorithm: token_bucket",
        ", anchor: first_hit",
        ", count_denied: true",
    ]
)
NAMES = st.sampled_from("abcdefghé") | st.just("vip")
ENTRIES = st.one_of(
    st.tuples(st.just("user"), NAMES).map(lambda entry: (entry,)),
    st.tuples(st.just("user"), NAMES).map(lambda entry: (entry, ("path", "/a"))),
    st.tuples(
        st.sampled_from(["user", "address", "plan", "job", "free", "office", "nobody"]), NAMES
    ).map(lambda entry: (entry,)),
)
DESCRIPTORS = st.builds(
    lambda entries, hits, refund: Descriptor(
        tuple(Entry(*entry) for entry in entries), hits_addend=hits, is_negative_hits=refund
    ),
    ENTRIES,
    st.sampled_from([None] * 6 + [0, 1, 2]),
    st.sampled_from([False] * 9 + [True]),
)
ASKED = st.tuples(
    st.integers(0, 90_000_000).map(lambda at: at // 3 * 3),
    st.lists(DESCRIPTORS, min_size=1, max_size=2).map(tuple)
    | st.lists(DESCRIPTORS, min_size=1, max_size=1).map(tuple),
    st.sampled_from([None, Code.OK, Code.OVER_LIMIT]),
)


def one_by_one(replay: Replay, records: Sequence[Recorded]) -> None:
    """Plays a log the straight way: request after request, through both sets of rules."""
    block = block_of(records)
    for at_us, request, code in zip(*block, strict=True):
        if replay.requests and at_us < replay.last_us:
            replay.late += 1
        now = replay.last_us = max(replay.last_us, at_us)
        if not replay.requests:
            replay.first_us = now
        replay.requests += 1
        if code is not None:
            replay.recorded[code] += 1
        passes = replay.new.decide(request, now)
        if replay.old is not None and replay.old.decide(request, now) is not passes:
            if passes:
                replay.newly_allowed.note(replay.old.deciding)
            else:
                replay.newly_denied.note(replay.new.deciding)


def report(replay: Replay) -> Report:
    """All that a replay has found."""
    return report_of(replay, new="new", old="old", logs=(), percent=1.0)


@cache
def snapshot(most: int, more: str) -> Snapshot:
    """The rules with this limit for users."""
    with TemporaryDirectory() as directory:
        return snapshot_of(rules_file(Path(directory), RULES.format(most=most, more=more)))


@given(
    st.lists(ASKED, min_size=1, max_size=60),
    st.tuples(MORE, MORE),
    st.sampled_from([(1_000_000, 65_536, 4_096, 1_000), (4, 3, 2, 2)]),
    st.integers(1, 60),
)
@settings(max_examples=up_to(40), deadline=None)
def test_blocks_are_asked_as_one_by_one(
    requests: list[tuple[int, tuple[Descriptor, ...], Code | None]],
    more: tuple[str, str],
    bounds: tuple[int, int, int, int],
    size: int,
) -> None:
    """Any log gives the same report by any rules, also where callers, plans and counters go."""
    new, old = snapshot(2, more[0]), snapshot(3, more[1])
    known: dict[Request, RecordedRequest] = {}
    records = [
        Recorded(START_US + at, Request("api", descriptors), code)
        for at, descriptors, code in requests
    ]
    short, straight = [
        Replay(Trace(new, Settings(), *bounds), Trace(old, Settings(), *bounds)) for _ in range(2)
    ]

    one_by_one(straight, records)
    for start in range(0, len(records), size):
        short.play(block_of(records[start : start + size], known))

    assert report(short) == report(straight)


SECONDS = [
    "2026-01-31T14:00:00",
    "2026-01-31T14:00:60",
    "2026-13-31T14:00:00",
    "20260131T14:00:00",
    "20260131T140000.1234",
]
TIMES = st.tuples(
    st.sampled_from(SECONDS),
    st.sampled_from(
        [".5", ".123", ".321", ".000001", ".0000019", ".", ".x", ",5", "", "56789", ".٣٣٣٣٣٣"]
    ),
    st.sampled_from(["Z", "+01:00", ""]),
).map("".join)


@given(
    MORE,
    st.lists(st.integers(0, 200_000_000), min_size=1, max_size=30).map(sorted),
    st.integers(1, 30),
    st.sampled_from([1, 3, 150]),
)
@settings(max_examples=up_to(40), deadline=None)
def test_demand_is_what_the_algorithm_counts(
    more: str, times: list[int], size: int, addend: int
) -> None:
    """The most that a caller asks at a time is what its algorithm says, however it is followed."""
    trace = Trace(snapshot(2, more), Settings())
    request = request_of("api", addend, ("user", "a"))
    trace.decide(RecordedRequest(request), START_US)
    use = trace.uses["api", "user"]
    planner = Planner(Settings())
    (hit,) = planner.plan(request, snapshot(2, more))[0].hits
    (limit,) = use.limits
    spec = limit.demand
    assert spec is not None
    state: State | None = None
    most = 0
    moments = [START_US + at for at in times]
    for at_us in moments:
        step = spec.algorithm.charge(state, at_us, addend, spec, False, b"")
        if step.passed:
            state = step.state
        most = max(most, spec.limit - step.remaining if step.passed else spec.limit)

    caller = Caller(1)
    for start in range(0, len(moments), size):
        use.follow(caller, [hit], moments[start : start + size])

    assert caller.peaks == [most]


@given(st.lists(TIMES, min_size=1, max_size=12) | TIMES.map(lambda time: [time] * 8))
def test_times_together_are_read_as_each(texts: list[str]) -> None:
    """Times that are read together, or line after line, are those that each is alone."""
    alone = [moment_or_none(text) for text in texts]
    moments = Moments()
    for text, at_us in zip(texts, alone, strict=True):
        try:
            assert moments.moment_us(text) == at_us
        except ValueError:
            assert at_us is None
    try:
        assert moments.all_us(texts) == alone
    except ValueError:
        assert None in alone


def moment_or_none(text: str) -> int | None:
    try:
        return moment_us(text)
    except ValueError:
        return None


ASKED_TEXTS = st.sampled_from(
    [
        '"domain":"api","descriptors":[{"entries":[["user","a"]]}]',
        '"domain":"api","descriptors":[{"entries":[["user","\\u00e9\\"]"],["path","/é"]]}],"hits":2',
        '"domain":"api","descriptors":[{"entries":[["job","a"]],"hits":0,"refund":true}]',
        '"domain":"api","descriptors":[{"entries":[["a","b"]],"limit":'
        '{"requests_per_unit":1,"unit":"day"}}]',
        '"domain":"api","descriptors":[{"entries":["ab"],"more":[{"x":1}]}]',
        '"domain":"api","descriptors":[]',
        '"domain":"api","descriptors":{}',
        '"domain":"api","descriptors":[{"entries":[["user",1]]}]',
        '"domain":7,"descriptors":[{"entries":[["user","a"]]}]',
        '"domain":"api","descriptors":[{"entries":[["user","a"]]}],"hits":-1',
        '"domain":"api","descriptors":[{"entries":[["user","a"]]}],"hits":true',
        '"domain":"a","descriptors":[],"domain":"api","descriptors":[{"entries":[["user","a"]]}]',
        '"domain":"\\ud800","descriptors":[{"entries":[["user","a"]]}]',
        '"unreadable":"it is torn"',
        '"hits":1',
    ]
)
ENDS = st.sampled_from(
    [
        ',"code":"OK"}',
        ',"code":"OVER_LIMIT","used":3,"limit":{"unit":"}"},"sample":0.5}',
        ',"code":"UNAVAILABLE","hashed":true}',
        ',"code":7,"v":1.0}',
        ',"v":2}',
        ',"used":01}',
        ',"used":NaN}',
        ',"more":"\ufffd"}{"v":1}',
        "",
        "}}",
        ',"more":\n{}}',
    ]
)
LINES = st.one_of(
    st.tuples(
        st.sampled_from(
            ["2026-01-31T14:00:00.000001Z", "2026-01-31T14:00:00.2Z", "2026-01-31", "\\u0032"]
        ),
        ASKED_TEXTS,
        ENDS,
    ).map(lambda parts: f'{{"v":1,"time":"{parts[0]}",{parts[1]}{parts[2]}'),
    st.sampled_from(["", " ", "{}", "[]", '{"v":1}\r', "é", '{"a":' * 3_000]),
)
USUAL = (
    '{"v":1,"time":"2026-01-31T14:00:00.000001Z","domain":"api",'
    '"descriptors":[{"entries":[["user","a"]]}],"code":"OK"}'
)


@given(st.lists(st.just(USUAL) | LINES, max_size=40).map(lambda texts: [USUAL, *texts]))
@settings(max_examples=up_to(60), deadline=None)
def test_decisions_that_are_read_together_are_those_of_each_line(texts: list[str]) -> None:
    """Of any lines of a decision log what is read is what each of them says by itself."""
    whole = "\n".join(texts)
    lines = Lines("log", io.BytesIO(whole.encode()))
    reader = DecisionLogReader()
    blocks = [decision for block in reader.blocks(lines) for decision in records_of(block)]

    expected: list[Recorded] = []
    unread, refused, keys = 0, 0, set[str]()
    for line in whole.split("\n"):
        if not line.rstrip("\r"):
            continue
        try:
            decision = read_line(line, moment_us)
        except NothingAskedError:
            refused += 1
        except BadDecisionError:
            unread += 1
        else:
            keys |= decision.fields.keys()
            code = {"OK": Code.OK, "OVER_LIMIT": Code.OVER_LIMIT}.get(decision.code)
            expected.append(Recorded(decision.at_us, decision.request, code))
    assert blocks == expected
    assert (lines.unread, reader.refused) == (unread, refused)
    assert (reader.sampled, reader.hashed) == ("sample" in keys, "hashed" in keys)


VALUES = st.sampled_from(
    [
        '"a"',
        '"-"',
        '""',
        "3",
        "-0",
        "1.5",
        "1e2",
        "true",
        "null",
        "[]",
        '{"plan":"p"}',
        '"é\\n"',
        "x",
    ]
)
ACCESSES = st.one_of(
    st.fixed_dictionaries(
        {
            "start_time": st.sampled_from(
                ['"2026-01-31T14:00:00.5Z"', '"1767225601.5"', "1767225601"]
            )
        },
        optional={
            "user": VALUES,
            "flags": VALUES | st.just('"UF,RL"'),
            "cost": VALUES,
            "o": VALUES,
        },
    ).map(lambda line: "{" + ",".join(f'"{key}": {value}' for key, value in line.items()) + "}"),
    st.sampled_from(["", "[1]", '{"start_time":"never"}', '{"start_time":', "{}{}", '"{}"']),
)
MAPPINGS = [
    Mapped("$start_time", "edge", ((("user", "$user"),),), "$cost", "$flags"),
    Mapped("$start_time", "$o", ((("user", "$user"), ("o", "$o")), (("all", "all"),))),
    Mapped("$start_time", "edge", ((("plan", "$o.plan"),), (("user", "$user"),)), flags="$user"),
    Mapped("$start_time", "edge", ((("all", "all"),),)),
]


@given(
    st.sampled_from(MAPPINGS),
    st.lists(
        st.just('{"start_time":"2026-01-31T14:00:00.5Z","user":"a","flags":"-","o":"b"}')
        | ACCESSES,
        max_size=40,
    ),
)
@settings(max_examples=up_to(60), deadline=None)
def test_accesses_that_are_read_together_are_those_of_each_line(
    mapped: Mapped, texts: list[str]
) -> None:
    """Of any lines of an access log what is read is what each of them says by itself."""
    together = Lines("log", io.BytesIO("\n".join(texts).encode()))
    blocks = [each for block in EnvoyLog(mapped).blocks(together) for each in records_of(block)]

    line_by_line, alone = EnvoyLog(mapped), Lines("log", io.BytesIO())
    list(line_by_line.blocks(alone))
    # From outside nobody can have a line of the usual form read by itself.
    each = [line_by_line._one_by_one([line], index) for index, line in enumerate(texts, 1)]
    expected = [record for blocks in each for block in blocks for record in records_of(block)]
    assert blocks == expected
    assert (together.unread, together.problems) == (alone.unread, alone.problems)


CELLS = st.sampled_from(["a", "b", "", '"a,""b"', '"two\nlines"', '"torn', 'x"y', " ", "\r", "é"])
ROWS = st.one_of(
    st.tuples(st.sampled_from(["2026-01-31T14:00:00.5Z", "never"]), CELLS, CELLS).map(",".join),
    CELLS,
)


@given(
    st.lists(st.just("2026-01-31T14:00:00.5Z,api,a") | ROWS, max_size=12),
    st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=up_to(100))
def test_rows_are_those_of_the_csv_module(rows: list[str], end: str) -> None:
    """Of any text the rows are read that the csv module sees in it, and the others are counted."""
    text = "time,domain,user\n" + end.join(rows)
    lines = Lines("log", io.BytesIO(text.encode()))
    blocks = [
        each for block in CsvLog("log", lines.first).blocks(lines) for each in records_of(block)
    ]

    expected, unread = [], 0
    reader = csv.reader([line.rstrip("\r") + "\n" for line in text.removesuffix("\n").split("\n")])
    next(reader)
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            unread += 1
            continue
        if row is None:
            break
        if len(row) == 3 and moment_or_none(row[0]) and row[1] and row[2]:
            expected.append((row[1], row[2]))
        elif row:
            unread += 1
    read = [(each.request.domain, each.request.descriptors[0].entries[0].value) for each in blocks]
    assert (read, lines.unread) == (expected, unread)
