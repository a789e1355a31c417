"""Where lines of the decision log go, and what becomes of them if they cannot be written."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.cli.service_client import Client
from ratelimit_service.decision_log import sinks
from ratelimit_service.decision_log.sinks import DecisionLogFile, Stdout, sink_of
from ratelimit_service.decision_log.writer import DecisionWriter, Progress
from ratelimit_service.settings import Settings
from tests.decision_log.packets import packet
from tests.runtime.callers import ask
from tests.runtime.conftest import Start
from tests.servers.process import wait_until
from tests.servers.redis import RedisServer
from tests.waiting import PATIENCE_SECONDS

DAY_US = 86_400_000_000
YEAR_US = 365 * DAY_US
"""For what goes by the real clock: a day can begin within a test."""


def test_files_are_bounded(tmp_path: Path) -> None:
    """A log takes so many bytes and files at most, holds whole lines, and ends with the newest."""
    path = tmp_path / "decisions.jsonl"
    file = DecisionLogFile(str(path), 1_000, YEAR_US, files=2)
    written = [b"%04d %s\n" % (number, b"x" * (number % 90)) for number in range(300)]
    for line in written:
        file.write(line)
    file.close()

    result = [tmp_path / "decisions.jsonl.2", tmp_path / "decisions.jsonl.1", path]
    assert sorted(result) == sorted(tmp_path.iterdir())
    assert all(each.stat().st_size <= 1_000 for each in result)
    stored = b"".join(each.read_bytes() for each in result)
    assert b"".join(written).endswith(stored)
    assert len(stored) > 1_500


def test_files_are_rotated_in_time(tmp_path: Path) -> None:
    """With a new day a new file begins, also if the service was restarted in between."""
    path = tmp_path / "decisions.jsonl"
    now = [10 * DAY_US]

    def file() -> DecisionLogFile:
        return DecisionLogFile(str(path), 1_000, DAY_US, 5, lambda: now[0])

    first = file()
    first.write(b"monday\n")
    first.write(b"monday too\n")
    now[0] += DAY_US
    first.write(b"tuesday\n")
    first.close()
    os.utime(path, (11 * 86_400, 11 * 86_400))
    second = file()
    second.write(b"tuesday too\n")
    now[0] += DAY_US
    second.close()
    third = file()
    os.utime(path, (11 * 86_400, 11 * 86_400))
    third.write(b"wednesday\n")
    third.close()

    assert path.read_bytes() == b"wednesday\n"
    assert path.with_name("decisions.jsonl.1").read_bytes() == b"tuesday\ntuesday too\n"
    assert path.with_name("decisions.jsonl.2").read_bytes() == b"monday\nmonday too\n"


def test_two_programs_write_one_file(tmp_path: Path) -> None:
    """While a restart's two programs write, one rotates: the other goes on in the new file."""
    path = tmp_path / "decisions.jsonl"
    now = [10 * DAY_US]
    old, new = (DecisionLogFile(str(path), 1_000, DAY_US, 5, lambda: now[0]) for _ in range(2))
    for file in (old, new):
        file.write(b"monday\n")
        os.utime(path, (10 * 86_400, 10 * 86_400))
    now[0] += DAY_US
    new.write(b"tuesday\n")
    os.utime(path, (11 * 86_400, 11 * 86_400))
    old.write(b"tuesday too\n")
    path.unlink()
    old.write(b"again\n")
    old.close()
    new.close()

    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, f"{path.name}.1"]
    assert path.with_name(f"{path.name}.1").read_bytes() == b"monday\n" * 2
    assert path.read_bytes() == b"again\n"


def test_devices_are_not_rotated(tmp_path: Path) -> None:
    """A pipe or a device that is the log stays where it is, whatever it has taken."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    now = [10 * DAY_US]
    file = DecisionLogFile(str(path), 10, DAY_US, 5, lambda: now[0])
    for _ in range(2):
        file.write(b"a line of 20 bytes.\n")
        now[0] += DAY_US
    file.close()

    assert os.read(reader, 100) == b"a line of 20 bytes.\n" * 2
    os.close(reader)
    assert list(tmp_path.iterdir()) == [path]


def test_parts_of_lines_are_taken_back(tmp_path: Path) -> None:
    """If a disk takes only a part of a line, the whole lines stay, also those of others."""
    path = tmp_path / "decisions.jsonl"
    ours, others = (DecisionLogFile(str(path), 1_000, YEAR_US, 5) for _ in range(2))
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    ours.write(b"ours\n")
    others.write(b"others\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, bounds[1]))
    try:
        with pytest.raises(OSError, match="large"):
            ours.write(b"more than fits in here\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    ours.write(b"again\n")
    ours.close()
    others.close()

    assert path.read_bytes() == b"ours\nothers\nagain\n"


def test_stdout() -> None:
    """Lines go to standard output whole, also if it does not block and its reader is slow."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    lines = b"x" * 300_000 + b"\n" + b"{}\n" * 5_000 + b"no end"
    with os.fdopen(writer, "wb") as out, os.fdopen(reader, "rb") as read:
        thread = threading.Thread(target=Stdout(out.fileno()).write, args=(lines,))
        thread.start()
        assert read.read(len(lines)) == lines
        thread.join()


def test_syslog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each line is a message of the system's log; one that is too long for it is left out."""
    monkeypatch.setattr(sinks, "_SYSLOG", str(tmp_path / "log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system:
        system.bind(str(tmp_path / "log"))
        system.settimeout(PATIENCE_SECONDS)
        log = sink_of(Settings(decision_log="syslog"), -1)
        assert log.write(b"one\n" + b"x" * (16 << 18) + b"\ntwo\n") == 1
        assert system.recv(100) == b"<134>ratelimit: one"
        assert system.recv(100) == b"<134>ratelimit: two"
        log.close()


def test_closed_stdout_is_told() -> None:
    """A standard output that is closed is a fault that is told, and no end of the writer."""
    writer = DecisionWriter(Settings(decision_log="stdout"))
    fault = "the decision log cannot be written: standard output is closed"
    assert writer.open() == Progress(fault=fault)
    assert writer.write([packet("a", "b")]) == Progress(0, 2, fault)


def test_missing_directory_is_told(tmp_path: Path) -> None:
    """A file that cannot be opened is named."""
    log = tmp_path / "missing" / "decisions.jsonl"

    fault = DecisionWriter(Settings(decision_log=str(log))).open().fault

    assert fault.startswith("the decision log cannot be written: ")
    assert str(log) in fault
    assert fault.endswith(": No such file or directory")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_disk_is_told() -> None:
    """What a full disk does not take is lost and counted, with the reason; later it is tried."""
    writer = DecisionWriter(Settings(decision_log="/dev/full"))
    assert writer.open() == Progress()
    for _ in range(2):
        assert writer.write([packet("a"), packet("b")]) == Progress(
            0, 2, "the decision log cannot be written: No space left on device"
        )


def test_packets_keep_to_the_bound_of_files(tmp_path: Path) -> None:
    """Where the lines of several packets are more than a file holds the file is rotated between."""
    path = tmp_path / "log"
    writer = DecisionWriter(
        Settings(decision_log=str(path), decision_log_max_bytes=1_000, decision_log_files=2)
    )
    assert writer.write([packet(f"{number}{'x' * 300}") for number in range(6)]) == Progress(6)
    files = sorted(tmp_path.iterdir())
    assert [each.read_bytes().count(b"\n") for each in files] == [2, 2, 2]
    assert all(each.stat().st_size <= 1_000 for each in files)


def test_packets_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """A packet of another version is a fault of ours; its decisions are not counted as written."""
    writer = DecisionWriter(Settings(decision_log=str(tmp_path / "log")))
    done = writer.write([packet("a"), b"\0\0\0\x07another", packet("b")])
    assert (done.written, done.failed, done.fault) == (2, 7, "")
    assert "version" in done.bug


def test_workers_write_one_log(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """All workers' decisions stand in one log soon after, and none is lost by a restart."""
    path = tmp_path / "decisions.jsonl"
    log = ["--decision-log", str(path), "--decision-log-rotate", "8760h"]  # once a year
    service = start("--store", own_redis.url, "--workers", "2", *log)
    with Client(service.address) as client:
        for _ in range(4):
            ask(client)

    def lines() -> Sequence[dict[str, Any]]:
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    wait_until(lambda: len(lines()) == 4, "the decisions to be written")
    assert [line["code"] for line in lines()] == ["OK", "OK", "OVER_LIMIT", "OVER_LIMIT"]
    assert [line["used"] for line in lines()] == [1, 2, 2, 2]
    assert {line["caller"] for line in lines()} == {"127.0.0.1"}
    assert {line["shard"] for line in lines()} == {f"127.0.0.1:{own_redis.port}"}

    with Client(service.address) as client:
        for _ in range(3):
            ask(client)
        service.signal(signal.SIGUSR2)
        wait_until(lambda: "restarted: version" in service.log, "the restart")
    wait_until(lambda: len(lines()) == 7, "the decisions from before the restart")

    def counted() -> list[tuple[str, str]]:
        return re.findall(
            r'log_records_total{outcome="(\w+)"} ([1-9]\S*)', service.get("/metrics").text
        )

    wait_until(lambda: counted() == [("written", "7.0")], "the lines to be counted")
