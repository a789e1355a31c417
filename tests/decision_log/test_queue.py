"""The decision log: which decisions become lines, what these say, and what they hide of callers."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service import wire
from ratelimit_service.decision_log.key import hash_of, read_key
from ratelimit_service.decision_log.line import hashed_value
from ratelimit_service.decision_log.packets import PacketLines, decisions_in
from ratelimit_service.decision_log.process import LogProcess
from ratelimit_service.decision_log.queue import DecisionQueue
from ratelimit_service.errors import SettingsError
from ratelimit_service.limiter import DecidedBy
from ratelimit_service.model import FailurePolicy, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rule_lab.replay.denials import decisions_about
from ratelimit_service.service import CallOrigin, DecidedBatch, DecisionRecord
from ratelimit_service.settings import Settings
from tests.service.asking import Asking, descriptor
from tests.waiting import PATIENCE_SECONDS, until

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
"""

RULES_BY_VALUE = """
domain: edge
descriptors:
  - {key: user, value: bob, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: path, value: /a*, rate_limit: {unit: day, requests_per_unit: 1}}
"""


class Logging:
    """A service whose decisions become lines."""

    def __init__(self, tmp_path: Path, rules: str = RULES, **settings: Any) -> None:
        closed = Settings(failure_policy=FailurePolicy.CLOSED)
        self.asking = Asking(tmp_path, rules, settings=closed)
        self.sent: list[bytes] = []
        self.room = True
        set_up = Settings(decision_log="x", **settings)
        self.packet_lines = PacketLines(hash_of(read_key(set_up.decision_log_key_file)))
        stats = self.asking.stats
        self.queue = DecisionQueue(set_up, stats, self.send, lambda _: "there:6379")
        self.asking.service.events.add(self.queue)

    def send(self, packet: bytes) -> bool:
        lines = self.packet_lines.of(packet)
        assert lines.count(b"\n") == decisions_in(packet)
        if self.room:
            self.sent.append(lines)
        return self.room

    @property
    def lines(self) -> list[dict[str, Any]]:
        self.queue.flush()
        return [json.loads(line) for line in b"".join(self.sent).splitlines()]

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.asking.stats.decision_log)


async def test_every_decision_is_a_line(tmp_path: Path) -> None:
    """Without a sample every decision is written down, with what was asked and what decided."""
    logging = Logging(tmp_path)
    await logging.asking.ask("user=bob")
    await logging.asking.ask("user=bob")
    await logging.asking.service.decide([b"\xff"])

    assert [line["code"] for line in logging.lines] == ["OK", "OVER_LIMIT", "INVALID_ARGUMENT"]
    assert logging.lines[1]["descriptors"] == [{"entries": [["user", "bob"]]}]
    assert logging.lines[1]["rule"] == "user"


async def test_many_decisions_go_out_in_small_packets(tmp_path: Path) -> None:
    """However many decisions are made at once, no packet has more than two hundred of them."""
    logging = Logging(tmp_path)
    body = wire.encode_request(Request("edge", (descriptor("user=bob"),)))
    await logging.asking.service.decide([body] * 1_001)

    assert len(logging.lines) == 1_001
    assert max(lines.count(b"\n") for lines in logging.sent) <= 200


async def test_lines_say_who_asked_and_where_it_was_counted(tmp_path: Path) -> None:
    """A line has the caller's address, the ids of its request and trace, the shard and the time."""
    logging = Logging(tmp_path, store="redis://there")
    body = wire.encode_request(Request("edge", (descriptor("user=bob"),)))
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = [(b"x-request-id", b"7" * 300), (b"b3", f"{trace}-b7ad6b7169203331".encode())]
    await logging.asking.service.decide([body], origins=[CallOrigin("10.0.0.7", headers)])
    await logging.asking.service.decide([body], origins=[CallOrigin("")])
    await logging.asking.service.decide([b"\xff"])

    answer, silent, unreadable = logging.lines
    assert (answer["caller"], answer["request_id"]) == ("10.0.0.7", "7" * 128)
    assert (answer["trace_id"], answer["store"], answer["shard"]) == (trace, "redis", "there:6379")
    assert 0 <= answer["duration_seconds"] < 10
    assert not {"caller", "request_id", "trace_id"} & silent.keys()
    assert not {"store", "shard"} & unreadable.keys()


async def test_callers_are_hashed(tmp_path: Path) -> None:
    """In a hashed log no address of a caller can be read."""
    (tmp_path / "key").write_text("0123456789abcdef\n")
    logging = Logging(tmp_path, decision_log_key_file=str(tmp_path / "key"))
    await logging.asking.service.decide([b"\xff"], origins=[CallOrigin("10.0.0.7")])

    (line,) = logging.lines
    assert line["caller"] == hashed_value(b"0123456789abcdef", "10.0.0.7")


async def test_lines_without_a_caller_are_read_as_well(tmp_path: Path) -> None:
    """Lines of the first version, which say less, are read as those of now are."""
    old = (
        '{"v":1,"time":"2026-11-22T14:03:07.120000Z","domain":"edge","descriptors":[{"entries":'
        '[["user","bob"]]}],"code":"OVER_LIMIT","by":"count","descriptor":0,"rule":"user","limit":'
        '{"requests_per_unit":1,"unit":"day"},"used":1,"remaining":0,"reset_seconds":5.0}'
    )
    logging = Logging(tmp_path)
    body = wire.encode_request(Request("edge", (descriptor("user=bob"),)))
    await logging.asking.service.decide([body], origins=[CallOrigin("10.0.0.7")])
    path = tmp_path / "log"
    path.write_text("\n".join([old, *map(json.dumps, logging.lines)]))

    result = decisions_about([str(path)], "edge", descriptor("user=bob").entries, None)
    assert sorted(each.code for each in result.decisions) == ["OK", "OVER_LIMIT"]


async def test_lines_go_out_by_themselves(tmp_path: Path) -> None:
    """A decision is sent soon, though nothing else happens."""
    logging = Logging(tmp_path)
    await logging.asking.ask("user=bob")

    await until(lambda: logging.sent)


async def test_sample(tmp_path: Path) -> None:
    """Denials and what is allowed have shares of their own; a line says its share."""
    logging = Logging(tmp_path, decision_log_sample="denied=1,allowed=0")
    for _ in range(3):
        await logging.asking.ask("user=bob")
    assert [line["code"] for line in logging.lines] == ["OVER_LIMIT"] * 2
    assert "sample" not in logging.lines[0]

    logging = Logging(tmp_path, decision_log_sample="denied=0.5")
    for _ in range(201):
        await logging.asking.ask("user=bob")
    denied = [line for line in logging.lines if line["code"] == "OVER_LIMIT"]
    assert 50 < len(denied) < 150
    assert {line["sample"] for line in denied} == {0.5}


@pytest.mark.parametrize("denied", [1, 0.5])
async def test_a_sample_of_what_is_allowed(tmp_path: Path, denied: float) -> None:
    """Of decisions that allow a share is written down by chance, whatever batches they are in."""
    random.seed(7)
    rules = RULES.replace("requests_per_unit: 1", "requests_per_unit: 1000")
    logging = Logging(tmp_path, rules, decision_log_sample=f"denied={denied},allowed=0.1")
    wanted = [0, 0]
    for size in (1, 3, 50, 400) * 5:
        body = wire.encode_request(Request("edge", (descriptor("user=bob"),)))
        await logging.asking.service.decide([body] * size)
    for line in logging.lines:
        wanted[line["code"] == "OVER_LIMIT"] += 1
        assert line.get("sample") == (0.1 if line["code"] == "OK" else None if denied == 1 else 0.5)
    assert 60 < wanted[0] < 140  # of 1,000
    assert wanted[1] == 1_270 if denied == 1 else 500 < wanted[1] < 770


async def test_values_are_hashed(tmp_path: Path) -> None:
    """With a key no value of a caller stands in the log; who has the key can find it."""
    (tmp_path / "key").write_text("0123456789abcdef\n")
    logging = Logging(tmp_path, decision_log_key_file=str(tmp_path / "key"))
    await logging.asking.ask("user=bob")

    (line,) = logging.lines
    assert "bob" not in json.dumps(line)
    assert line["descriptors"][0]["entries"] == [["user", hashed_value(b"0123456789abcdef", "bob")]]
    assert line["hashed"] is True


async def test_rules_for_callers_are_hashed(tmp_path: Path) -> None:
    """Where values are hashed the path of a rule for one caller does not name this caller."""
    (tmp_path / "key").write_text("0123456789abcdef\n")
    logging = Logging(tmp_path, RULES_BY_VALUE, decision_log_key_file=str(tmp_path / "key"))
    await logging.asking.ask("user=bob")
    await logging.asking.ask("path=/a/b")

    lines = logging.lines
    assert "bob" not in json.dumps(lines)
    assert lines[0]["rule"] == f"user={hashed_value(b'0123456789abcdef', 'bob')}"
    assert lines[1]["rule"] == "path=/a*"


async def test_lines_do_not_act_on_who_reads_them(tmp_path: Path) -> None:
    """Characters of callers that steer terminals, or end lines for some readers, are escaped."""
    logging = Logging(tmp_path)
    await logging.asking.ask("user=ü\x9b2J\u2028\u202e\U000e0001\x7f")

    logging.queue.flush()
    (line,) = b"".join(logging.sent).decode().splitlines()
    assert line.isprintable()
    assert "ü" in line
    assert json.loads(line)["descriptors"][0]["entries"][0][1].endswith("\u202e\U000e0001\x7f")


@pytest.mark.parametrize("content", [None, "short"])
def test_bad_keys(tmp_path: Path, content: str | None) -> None:
    """A key that is missing or too short is an error before anything serves."""
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)

    with pytest.raises(SettingsError, match=r"key"):
        LogProcess(Settings(decision_log_key_file=str(path)), Stats(), Health())


async def test_what_nobody_takes_is_counted(tmp_path: Path) -> None:
    """Lines that the writer does not take are dropped and counted; decisions go on."""
    logging = Logging(tmp_path)
    logging.room = False
    for _ in range(3):
        await logging.asking.ask("user=bob")

    assert logging.lines == []
    assert logging.dropped == {"dropped_unsent": 3}


async def test_waiting_requests_are_bounded(tmp_path: Path) -> None:
    """Large requests that wait to become lines take a bounded memory; the rest is counted."""
    logging = Logging(tmp_path)
    body = b"x" * 65_000
    answer = DecisionRecord(body, b"", None, DecidedBy.NOTHING)
    logging.queue.hear(DecidedBatch.of([answer] * 1_000))
    logging.queue.hear(DecidedBatch.of([answer]))

    queues = len(logging.lines)
    assert 100 < queues < 400
    assert logging.dropped == {"dropped_busy": 1_001 - queues}
    logging.queue.hear(DecidedBatch.of([answer]))
    assert len(logging.lines) == queues + 1


async def test_failure_of_lines_ends_no_log(tmp_path: Path) -> None:
    """If lines cannot be sent for a fault of ours, the later ones are."""
    logging = Logging(tmp_path)
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
    fail = [True]

    def send(packet: bytes) -> bool:
        if fail.pop() if fail else False:
            raise ValueError("a fault")
        return logging.send(packet)

    queue = DecisionQueue(Settings(decision_log="x"), logging.asking.stats, send)
    logging.asking.service.events.add(queue)
    await logging.asking.ask("user=bob")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not faults:
            await asyncio.sleep(0.01)
        await logging.asking.ask("user=bob")
        while not logging.sent:
            await asyncio.sleep(0.01)
