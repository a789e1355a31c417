"""Logs that `ratelimit replay` reads, and what it prints of them."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RateLimitError
from ratelimit_service.model import Code, Request
from ratelimit_service.rule_lab.replay.logs import Lines, Log, LogError
from ratelimit_service.rule_lab.replay.recorded import Block, in_order, merged, moment_us
from ratelimit_service.rule_lab.replay.sources import Readers
from tests.rule_lab.replay.playing import (
    DAY,
    START_US,
    Recorded,
    block_of,
    csv_of,
    flat,
    limited,
    request_of,
    run,
)


def read(
    text: str | bytes, tmp_path: Path, mapping: Path | None = None
) -> tuple[list[Recorded], Lines]:
    """The requests in a file with this text."""
    path = tmp_path / "log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with ExitStack() as stack:
        log = Log(str(path), stack, Readers(mapping).reader_of)
        return flat(log.blocks()), log.lines


def blocks_of(records: list[Recorded], size: int = 7) -> Iterator[Block]:
    """Records in blocks, as they are read."""
    return (block_of(records[start : start + size]) for start in range(0, len(records), size))


def test_csv(tmp_path: Path) -> None:
    """A row is a request: entries in the columns' order without the empty ones, and its hits."""
    records, _ = read(
        "domain,user,time,path,hits\n"
        "api,alice,2026-01-01T00:00:00Z,,\n"
        'api,"a,""b",2026-01-01T01:00:00.5+01:00,/login,3\n'
        "other,,2025-12-31T23:59:60Z,/x,0\r\n",
        tmp_path,
    )
    assert records == [
        Recorded(START_US, request_of("api", None, ("user", "alice"))),
        Recorded(START_US + 500_000, request_of("api", 3, ("user", 'a,"b'), ("path", "/login"))),
        Recorded(START_US - 1_000_000, request_of("other", 0, ("path", "/x"))),
    ]


def test_rows_that_cannot_be_read_are_told_with_their_lines(tmp_path: Path) -> None:
    """Each row that makes no sense is told with its line and what is wrong; the others count."""
    records, lines = read(
        "time,domain,user,hits\n"
        "2026-01-01,api,a,\n"
        "2026-01-01T00:00:00Z,api,a,-1\n"
        "2026-01-01T00:00:00Z,,a,\n"
        "2026-01-01T00:00:00Z,api,,\n"
        "\n"
        "2026-01-01T00:00:00Z,api\n"
        "2026-01-01T00:00:00Z,api,a,\n",
        tmp_path,
    )
    assert len(records) == 1
    assert lines.unread == 5
    name = tmp_path / "log"
    assert lines.problems[0].startswith(f"{name}:2: time must be as in 2026-01-31T14:03:07Z")
    assert lines.problems[1] == f"{name}:3: hits must be a number up to 4294967295, not '-1'"
    assert lines.problems[2] == f"{name}:4: domain is empty"
    assert lines.problems[3] == f"{name}:5: there is no entry: all cells of keys are empty"
    assert lines.problems[4] == f"{name}:7: 2 cells, but the header has 4"


def test_rows_that_no_reader_takes_are_told_in_our_words(tmp_path: Path) -> None:
    """A time that is none, and a cell without end, are told without the words of Python."""
    _, lines = read(
        f'time,domain,user\nyesterday,api,a\n2026-01-01T00:00:00Z,api,"{"a" * 140_000}"\n',
        tmp_path,
    )

    assert [problem.partition("log:")[2] for problem in lines.problems] == [
        "2: time must be as in 2026-01-31T14:03:07Z: 'yesterday' is no time",
        "3: the line is no row of a CSV: a cell has more than 131,072 characters, or a line end "
        "and no quotes",
    ]


def test_endless_line_costs_itself_only(tmp_path: Path) -> None:
    """A line of megabytes is told and left out, and the next one is read."""
    row = b"2026-01-01T00:00:00Z,api,a\n"
    records, lines = read(b"time,domain,user\n" + row + b"x" * 3_000_000 + b"\n" + row, tmp_path)

    assert len(records) == 2
    assert lines.problems == [f"{tmp_path / 'log'}:3: the line is longer than 1048576 bytes"]


def test_values_that_are_no_text_are_read_all_the_same(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are replaced; a byte order mark is no part of the header."""
    records, _ = read(b"\xef\xbb\xbftime,domain,user\n2026-01-01T00:00:00Z,api,\xff\n", tmp_path)

    assert records[0].request.descriptors[0].entries == (("user", "\ufffd"),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty: there is nothing to replay"),
        ("user,domain\n", "needs one column 'time'"),
        ("time,time,domain\n", "needs one column 'time'"),
        ("time,domain,\n", "a column of the header has no name"),
    ],
)
def test_logs_that_cannot_be_read_at_all(tmp_path: Path, text: str, why: str) -> None:
    """A file that is no log is one clear error."""
    with pytest.raises(RateLimitError, match=why):
        read(text, tmp_path)


@given(st.lists(st.integers(0, 2**52 // 1000), max_size=300))
def test_logs_are_put_in_order(times: list[int]) -> None:
    """Records come by time, those of one time in their order, also of several logs."""
    records = [Recorded(at % 97, Request(str(index), ())) for index, at in enumerate(times)]

    assert flat(in_order(blocks_of(records))) == sorted(records, key=lambda each: each.at_us)
    halves = [blocks_of(records[:100]), blocks_of(records[100:])]
    assert flat(merged(halves)) == sorted(records, key=lambda each: each.at_us)


def test_order_within_a_window() -> None:
    """A log of any length is put in order where no record is further back than the window."""
    times = [at ^ 7 for at in range(1_000)]  # eight at a time are turned around
    blocks = blocks_of([Recorded(at, Request("", ())) for at in times])

    assert [each.at_us for each in flat(in_order(blocks, 10))] == sorted(times)


def test_large_requests_wait_in_bounded_memory() -> None:
    """What waits to be sorted is bounded in bytes too; of large requests fewer wait, in order."""
    large = 1_000
    given_in = came_out = most = 0

    def given_out() -> Iterator[Block]:
        nonlocal given_in, most
        for at in range(large):
            given_in += 1
            most = max(most, given_in - came_out)
            request = Request("x" * 1_000, ())
            yield block_of([Recorded(at ^ 7, request)])

    times = []
    for block in in_order(given_out(), most_bytes=100_000):
        times += block.times
        came_out += len(block.times)

    assert times == sorted(times)
    assert len(times) == large
    assert most <= 100 + 1


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=2, max_size=3), st.integers(1, 5)
)
def test_logs_that_are_read_in_parts_are_merged(logs: list[list[int]], size: int) -> None:
    """Several logs come as one by time, of one time in the order of the logs, however read."""
    read = [
        [Recorded(at, Request(f"{log} {index}", ())) for index, at in enumerate(sorted(times))]
        for log, times in enumerate(logs)
    ]

    records = flat(merged([blocks_of(records, size) for records in read], window=1))
    assert records == sorted(chain.from_iterable(read), key=lambda each: each.at_us)


@given(st.integers(0, 4_102_444_800_000_000))
def test_moments_are_exact(at_us: int) -> None:
    """Times are read to the microsecond."""
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)).isoformat()
    assert moment_us(text) == at_us


def test_compressed_and_piped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs may be compressed with gzip, and come by standard input; several are one."""
    rules = limited(tmp_path, DAY)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(csv_of([(0, "a"), (2, "a")]).encode()))
    piped = io.BufferedReader(io.BytesIO(csv_of([(1, "a")]).encode()))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=piped))

    ran = run(capsys, "--rules", rules, "--json", tmp_path / "a.csv.gz", "-")

    assert ran.code == 0
    assert ran.report["requests"] == 3
    assert ran.report["denied"] == 2
    assert ran.report["logs"] == [str(tmp_path / "a.csv.gz"), "standard input"]


@pytest.mark.parametrize("whole", [40, 400])
def test_damaged_compressed_log_is_one_clear_error(tmp_path: Path, whole: int) -> None:
    """A compressed log that ends too early, or holds other bytes, is told in a sentence."""
    rows = csv_of([(index, f"user {index * index}") for index in range(500)])
    sound = gzip.compress(rows.encode())
    for damaged in (sound[:whole], sound[:whole] + b"\xff" * 50 + sound[whole + 50 :]):
        with pytest.raises(LogError, match="log cannot be read: "):
            read(damaged, tmp_path)


def test_text_says_what_is_to_be_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report in text has the numbers of each rule, the names, and what changes."""
    new = limited(tmp_path, DAY, "new.yaml")
    old = limited(tmp_path, "unit: day, requests_per_unit: 2", "old.yaml")
    log = tmp_path / "log.csv"
    log.write_text(csv_of([(0, "a"), (0.5, "a"), (9, "b")]))

    ran = run(capsys, "--rules", new, "--against", old, log)

    assert ran.code == 1
    assert ran.err == ""
    assert ran.out == (
        "3 requests from 2026-01-01T00:00:00Z to 2026-01-01T00:00:09Z\n"
        f"{new} denies 1 (33.3 %)\n"
        f"{old} denies 0 (0.0 %)\n"
        "  1 request of 1 caller is newly denied: user=a 1\n"
        "\n"
        f"user of api ({new}:4:3)\n"
        "  asked 3 by 2 callers, denied 1 (33.3 %)\n"
        "  denied 0 by the old rules\n"
        "  busiest second 2, at 2026-01-01T00:00:00Z\n"
        "  1 per day\n"
        "    at most 1 used (100 %), by user=a, 2026-01-01T00:00:00Z\n"
        "    smallest requests_per_unit that denies at most so many callers: 2 for 1 %, 2 for 0 %\n"
        "  denied most often: user=a 1 (100 %)\n"
        "  1 request of 1 caller is newly denied: user=a 1\n"
    )


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 if nothing changes, 1 if something does, 2 if lines cannot be read."""
    new = limited(tmp_path, DAY, "new.yaml")
    old = limited(tmp_path, "unit: day, requests_per_unit: 2", "old.yaml")
    log, torn = tmp_path / "log.csv", tmp_path / "torn.csv"
    log.write_text(csv_of([(0, "a"), (1, "a")]))
    torn.write_text(csv_of([(0, "a")]) + "2026-01-01T00:0")

    assert run(capsys, "--rules", new, log).code == 0
    assert run(capsys, "--rules", new, "--against", new, log).code == 0
    assert run(capsys, "--rules", new, "--against", old, log).code == 1
    assert run(capsys, "--rules", new, "--skip-unreadable", torn).code == 0
    ran = run(capsys, "--rules", new, torn)
    assert ran.code == 2
    assert f"{torn}:3: 1 cells, but the header has 3" in ran.err
    assert "left out because unreadable: 1 line" in ran.out


def test_how_far_it_is_shows_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar on standard error, which goes in the end; what programs read has none of it."""
    seconds = chain([0.0], repeat(2.0))
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("ratelimit_service.cli.replay.time", clock)
    rules, log = limited(tmp_path, DAY), tmp_path / "log.csv"
    log.write_text(csv_of([(0, "a"), (1, "b"), (2, "c"), (3, "d")]))

    assert run(capsys, "--rules", rules, "--json", log).err == ""
    seconds = chain([0.0], repeat(2.0))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ran = run(capsys, "--rules", rules, "--json", log)
    bar = f"[{'#' * 30}] 100% 4 requests, 2 a second, 0 s to go"
    assert ran.err == f"\r\x1b[K{bar}\r\x1b[K"
    assert ran.report["requests"] == 4


def test_what_stands_in_a_log_does_not_act_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Callers' values are shown as text, whatever they hold."""
    log = tmp_path / "log.csv"
    log.write_text(csv_of([(0, "\x1b[2J"), (1, "\x1b[2J")]))

    ran = run(capsys, "--rules", limited(tmp_path, DAY), log)

    assert "\x1b" not in ran.out
    assert "user=" in ran.out


MAPPING = """
domain: edge
time: $start_time
flags: $response_flags
hits: $cost
descriptors:
- {remote_address: $client}
- {plan: $request.plan, path: $path}
- {generic_key: all}
"""


def mapping_file(tmp_path: Path, text: str = MAPPING) -> Path:
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    return path


def test_access_logs(tmp_path: Path) -> None:
    """Fields of Envoy's access log make descriptors as the mapping says.

    As Envoy does, it leaves out a descriptor of which a field has no value.
    """
    records, lines = read(
        '{"start_time":"2026-01-01T00:00:00.250Z","client":"10.0.0.1","response_flags":"-"}\n'
        '{"start_time":"1767225601.5","client":"-","request":{"plan":"pro"},"path":"/a","cost":3,'
        '"response_flags":"UF,RL"}\n',
        tmp_path,
        mapping_file(tmp_path),
    )

    everybody = (("generic_key", "all"),)
    assert lines.unread == 0
    assert [each.code for each in records] == [Code.OK, Code.OVER_LIMIT]
    assert [each.at_us - START_US for each in records] == [250_000, 1_500_000]
    assert [[each.entries for each in of.request.descriptors] for of in records] == [
        [(("remote_address", "10.0.0.1"),), everybody],
        [(("plan", "pro"), ("path", "/a")), everybody],
    ]
    assert [each.hits_addend for each in records[1].request.descriptors] == [3, 3]


def test_access_logs_with_lines_that_are_none(tmp_path: Path) -> None:
    """Lines of an access log that cannot be read are told with the field that is wrong."""
    records, lines = read(
        '{"start_time":"2026-01-01T00:00:00Z"}\n'
        "[1]\n"
        '{"start_time":"yesterday"}\n'
        '{"start_time":"2026-01-01T00:00:00Z","cost":"many"}\n'
        '{"start_time":\n',
        tmp_path,
        mapping_file(tmp_path),
    )

    assert len(records) == 1
    assert [problem.partition(": ")[2] for problem in lines.problems] == [
        "the line is no JSON object",
        "the field start_time must be a time: 'yesterday' is none",
        "$cost must be a number of hits, not 'many'",
        "the line is no JSON: column 15: a value must stand here: an object, a list, a text in "
        "double quotes, a number, true, false or null",
    ]


def test_access_logs_need_a_mapping(tmp_path: Path) -> None:
    """Without a mapping an access log is one clear error, as is a mapping that cannot be right."""
    with pytest.raises(RateLimitError, match="with --mapping FILE"):
        read('{"start_time":"2026-01-01T00:00:00Z"}\n', tmp_path)
    with pytest.raises(RateLimitError, match=r"(?s)descriptors is missing.*time must be a field"):
        read("{}\n", tmp_path, mapping_file(tmp_path, "domain: a\ntime: start\n"))


@pytest.mark.parametrize(
    "time",
    [
        *("1767225600000", "9" * 5_000, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
        *("9998-01-31T00:00:00Z", "9007199255", "2255-06-06T00:00:00Z"),
    ],
)
def test_times_without_a_date_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    """A time before 1970 or after 2255, as milliseconds come to, is a line that cannot be read."""
    mapping = mapping_file(tmp_path, "domain: api\ndescriptors: [{user: $user}]\n")
    (tmp_path / "log").write_text(json.dumps({"start_time": time, "user": "bob"}))
    rules = limited(tmp_path, DAY)
    ran = run(capsys, "--rules", rules, "--mapping", mapping, tmp_path / "log")

    assert ran.code == 2
    assert "log:1: the field start_time must be" in ran.err


def test_first_line_that_is_nested_too_deep(tmp_path: Path) -> None:
    """A log whose first line no reader can take in is told in a sentence."""
    with pytest.raises(LogError, match="log:1: the line is no JSON"):
        read('{"a":' * 100_000, tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("time", "yesterday", "a field is not as it should be: 'yesterday' is no time"),
        ("time", 3, "a field is of another kind than decision logs have"),
        ("domain", None, "a field is not as it should be: domain is no text"),
        ("descriptors", [{}], "the field or unit 'entries' is missing or unknown"),
        ("descriptors", 3, "a field is of another kind than decision logs have"),
        ("hits", -1, "a field is not as it should be: hits must be a number up to 4294967295"),
    ],
)
def test_decisions_with_fields_that_are_none(
    tmp_path: Path, field: str, value: object, why: str
) -> None:
    """A line of a decision log whose fields are others is told with what is wrong with them."""
    line = {"v": 1, "time": "2026-01-01T00:00:00Z", "by": "count", "domain": "a"}
    line["descriptors"] = [{"entries": [["user", "bob"]]}]
    sound = json.dumps(line)
    records, lines = read(f"{sound}\n{json.dumps({**line, field: value})}\n", tmp_path)

    assert len(records) == 1
    assert [problem.partition("log:2: ")[2] for problem in lines.problems] == [why]
