"""Decision logs, as `ratelimit replay` reads them."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.decision_log.line import hashed_value, line_of, read_line
from ratelimit_service.errors import StatusCode
from ratelimit_service.model import Descriptor, Entry, Limit, Request, Unit
from ratelimit_service.rule_lab.replay.decision_log import DecisionLogReader
from ratelimit_service.rule_lab.replay.logs import Lines
from ratelimit_service.rule_lab.replay.recorded import moment_us
from ratelimit_service.service import DecidedBy, DecisionRecord, Refusal
from ratelimit_service.stores import Verdict
from ratelimit_service.wire import encode_request
from tests.rule_lab.replay.playing import DAY, START_US, Recorded, flat, limited, request_of, run

entries = st.tuples(st.text(min_size=1), st.text())
limits = st.builds(
    lambda requests, unit: Limit(requests, unit),  # noqa: PLW0108 -- or more would be made up
    st.integers(0, 2**32 - 1),
    st.sampled_from(Unit),
)
requests = st.builds(
    Request,
    st.text(min_size=1),
    st.lists(
        st.builds(
            Descriptor,
            st.lists(entries, min_size=1, max_size=3).map(
                lambda pairs: tuple(Entry(*pair) for pair in pairs)
            ),
            st.none() | limits,
            st.none() | st.integers(0, 2**32 - 1),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.integers(0, 9),
)


@given(requests, st.integers(0, 4_102_444_800_000_000))
def test_decision_log_says_what_was_asked(request: Request, at_us: int) -> None:
    """A request that is written to a decision log is read as it was, at its time."""
    record = DecisionRecord(encode_request(request), b"", Verdict.WITHIN, DecidedBy.NOTHING)
    line = line_of(record, at_us)

    decision = read_line(line, moment_us)

    assert (decision.at_us, decision.request, decision.code) == (at_us, request, "OK")


TAILS = st.sampled_from(
    [
        '"by":"count","descriptor":0,"rule":"user","used":1,"remaining":4,"reset_seconds":0.5}',
        '"by":"count","limit":{"requests_per_unit":5,"unit":"day"},"store":"memory"}',
        '"by":"count","limit":{"unit":"}","used":1,"remaining":4,"reset_seconds":0.5}}',
        '"by":"count","limit":{"unit":"}","used":1,"remaining":4,"reset_seconds":0.5}',
        '"by":"count","descriptor":0,"rule":"user","used":',
        '"by":"count","hits":7}',
        '"by":"count","domain":"other"}',
        '"by":"co\\\\unt"}',
        '"by":"count","sample":0.5}',
        '"by":"count","used":01}',
        '"by":"count"',
        '"by":"count"}}',
        '"by":count}',
        '"more":{"code":"OK"}}',
    ]
)
TIMES = st.sampled_from(["2026-01-31T14:00:00.000001Z", "2026-01-31T14:00:60.000001Z"]) | (
    st.sampled_from(["2026-13-31T14:00:00.000001Z", "2026-01-31T14:00:00Z"])
)
ASKED = st.sampled_from(
    [
        '"domain":"api","descriptors":[{"entries":[["user","a"]]}]',
        '"domain":"api","descriptors":[{"entries":[["user","\\",\\"code\\":\\"OK"]]}],"hits":2',
        '"domain":"api","descriptors":[{"entries":[["user","a"]],"code":"x"}]',
        '"domain":"api","descriptors":[{"entries":[["user","a"]]}],"domain":"b"',
        '"domain":"api"',
    ]
)
LOGGED = st.tuples(TIMES, ASKED, st.sampled_from(["OK", "OVER_LIMIT", "UNAVAILABLE"]), TAILS)


@given(st.lists(LOGGED, max_size=12))
def test_lines_that_are_known_read_as_new_ones(parts: list[tuple[str, str, str, str]]) -> None:
    """A line of a decision log says the same whatever was read before it."""
    logged = [
        f'{{"v":1,"time":"{time}",{asking},"code":"{code}",{tail}'
        for time, asking, code, tail in parts
    ]

    def read(*lines: str) -> tuple[list[Recorded], int]:
        log = Lines("log", io.BytesIO("\n".join(lines).encode()))
        return flat(DecisionLogReader().blocks(log)), log.unread

    alone = [read(line) for line in logged]
    assert read(*logged) == ([each for one, _ in alone for each in one], sum(n for _, n in alone))


def test_decision_logs_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A decision log is known by its first line; what is sampled or hashed in it is told."""
    log = tmp_path / "decisions.jsonl"
    lines = []
    for index in range(3):
        asked_for = encode_request(request_of("api", None, ("user", "a")))
        verdict = Verdict.WITHIN if index < 2 else Verdict.DENIED
        record = DecisionRecord(asked_for, b"", verdict, DecidedBy.COUNT)
        lines.append(line_of(record, START_US + index, 0.5, partial(hashed_value, b"key")))
    log.write_text("\n".join([*lines, '{"v":2}']))

    ran = run(capsys, "--rules", limited(tmp_path, DAY), "--json", "--skip-unreadable", log)

    assert ran.code == 0
    assert ran.report["denied"] == 2
    assert ran.report["recorded"] == {"OK": 2, "OVER_LIMIT": 1}
    (sampled, hashed, left_out) = ran.report["notes"]
    assert "holds only a sample" in sampled
    assert "values in a decision log are hashed" in hashed
    assert left_out == "left out because unreadable: 1 line"
    name = ran.report["rules"][0]["top_denied"][0]["name"]
    assert name == f"user={hashed_value(b'key', 'a')}"


def test_decision_log_may_begin_with_a_request_that_nobody_could_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests that were refused as unreadable are told, and no problem of the log."""
    refusal = Refusal(StatusCode.INVALID_ARGUMENT, "")
    refused = DecisionRecord(b"\xff", refusal, None, DecidedBy.NOTHING)
    body = encode_request(request_of("api", None, ("user", "bob")))
    answered = DecisionRecord(body, b"", Verdict.WITHIN, DecidedBy.COUNT)
    lines = [line_of(refused, START_US), line_of(answered, START_US)]
    (tmp_path / "log").write_text("\n".join(lines))
    ran = run(capsys, "--rules", limited(tmp_path, DAY), tmp_path / "log")

    assert (ran.code, ran.err) == (0, "")
    assert "1 request from 2026-01-01T00:00:00Z" in ran.out
    assert "settled what was held, and not asked here: 1 request" in ran.out
