"""Replays in the test's own process: rules and logs as text, reports as values or as printed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ratelimit_service.cli.main import ratelimit
from ratelimit_service.model import Code, Descriptor, Entry, Request
from ratelimit_service.rule_lab.replay.play import Replay
from ratelimit_service.rule_lab.replay.recorded import Block, RecordedRequest
from ratelimit_service.rule_lab.replay.report import Report, report_of
from ratelimit_service.rule_lab.replay.trace import Trace
from ratelimit_service.rule_lab.simulation.snapshots import snapshot_of
from ratelimit_service.settings import Settings

DAY = "unit: day, requests_per_unit: 1"
"""A limit that the second request of a caller meets."""


class Recorded(NamedTuple):
    """A request of a log, when it came, and what it was answered."""

    at_us: int
    request: Request
    code: Code | None = None


def block_of(
    records: Sequence[Recorded], known: dict[Request, RecordedRequest] | None = None
) -> Block:
    """Records as logs are read; requests that are `known` already are asked again."""
    known = {} if known is None else known
    requests = [known.setdefault(each.request, RecordedRequest(each.request)) for each in records]
    return Block([each.at_us for each in records], requests, [each.code for each in records])


def records_of(block: Block) -> list[Recorded]:
    """The records of a block."""
    return [
        Recorded(at_us, recorded.request, code)
        for at_us, recorded, code in zip(*block, strict=True)
    ]


def flat(blocks: Iterator[Block]) -> list[Recorded]:
    """The records of all blocks."""
    return list(chain.from_iterable(map(records_of, blocks)))


def request_of(domain: str, hits: int | None, *entries: tuple[str, str]) -> Request:
    """A request of one descriptor."""
    return Request(domain, (Descriptor(tuple(Entry(*e) for e in entries), hits_addend=hits),))


START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
START_US = int(START.timestamp()) * 1_000_000


def rfc3339(seconds: float) -> str:
    """A moment so long after the start."""
    return (START + datetime.timedelta(seconds=seconds)).isoformat()


def csv_of(rows: Sequence[tuple[float, str]]) -> str:
    """A log of requests: seconds after the start, and the value of the only entry."""
    lines = ["time,domain,user"]
    lines += [f"{rfc3339(seconds)},api,{value}" for seconds, value in rows]
    return "\n".join(lines) + "\n"


def rules_file(directory: Path, text: str, name: str = "api.yaml") -> Path:
    """A rule file."""
    path = directory / name
    path.write_text(text)
    return path


def limited(directory: Path, limit: str, name: str = "api.yaml") -> Path:
    """Rules with one limit for each user."""
    text = f"domain: api\ndescriptors:\n- key: user\n  rate_limit: {{{limit}}}\n"
    return rules_file(directory, text, name)


def played(
    records: Sequence[Recorded], new: Path, old: Path | None = None, percent: float = 1.0
) -> Report:
    """The report on these requests."""
    trace = Trace(snapshot_of(new), Settings())
    before = Trace(snapshot_of(old), Settings()) if old else None
    replay = Replay(trace, before)
    replay.play(block_of(records))
    return report_of(replay, new="new", old="old" if old else None, logs=["log"], percent=percent)


class Ran(NamedTuple):
    """What the command has left."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> Any:
        return json.loads(self.out)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Ran:
    """Runs `ratelimit replay` in this process."""
    code = ratelimit.main(["replay", *map(str, arguments)], standalone_mode=False)
    printed = capsys.readouterr()
    return Ran(code, printed.out, printed.err)
