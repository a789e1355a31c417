"""The process that writes the decision log, and what becomes of decisions with it and without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from ratelimit_service.decision_log import process
from ratelimit_service.decision_log.process import LogProcess
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.processes import pipes
from ratelimit_service.settings import Settings
from tests.decision_log.packets import packet
from tests.waiting import PATIENCE_SECONDS, until


class Log:
    """A log, and what stands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stats, self.health = Stats(), Health()
        self.process = LogProcess(
            Settings(decision_log=str(path), decision_log_rotate_us=365 * 86_400_000_000),
            self.stats,
            self.health,
        )

    def take(self, *names: str) -> None:
        for name in names:
            self.process.take(packet(name))

    @property
    def users(self) -> list[str]:
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        return [json.loads(line)["descriptors"][0]["entries"][0][1] for line in lines]

    def counted(self, outcome: str) -> int:
        return self.stats.decision_log[outcome]


async def test_what_is_taken_is_written_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines come in their order, those from before the process is there and the last ones too.

    A signal that ends the service does not end the process: it is left to its parent.
    """
    monkeypatch.setattr(process, "_END_SECONDS", PATIENCE_SECONDS)
    log = Log(tmp_path / "log")
    async with log.process.running() as running:
        log.take("early")
        await until(lambda: log.counted("written") == 1)
        assert running.process is not None
        running.process.send_signal(signal.SIGTERM)
        log.take("a", "b")
        await until(lambda: log.counted("written") == 3)
        assert log.users == ["early", "a", "b"]
        log.take("late")

    assert log.users == ["early", "a", "b", "late"]
    assert log.counted("written") == 4


async def test_another_process_writes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process had not read is lost and counted; another one writes what comes then.

    It also writes what came while there was none.
    """
    monkeypatch.setattr(process, "_END_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(pipes, "_FIRST_PAUSE_SECONDS", 0.05)
    log = Log(tmp_path / "log")
    async with log.process.running() as running:
        log.take("first")
        await until(lambda: log.counted("written") == 1)
        former = running.process
        assert former is not None
        former.send_signal(signal.SIGSTOP)
        log.take("lost", "lost too")
        former.kill()
        await until(lambda: log.counted("dropped_slow") == 2)
        names = [str(number) for number in range(300)]
        log.take(*names)
        await until(lambda: log.counted("written") == 301)
        assert running.process is not former

    assert log.users == ["first", *names]
    assert log.counted("dropped_slow") == 2


async def test_what_is_too_much_is_counted(tmp_path: Path) -> None:
    """What a process that hangs does not write is bounded, and lost at the end.

    A packet that cannot be read is counted, and holds up no other. After the end none is taken.
    """
    log = Log(tmp_path / "log")
    large = packet("x" * 60_000)
    async with log.process.running() as running:
        log.process.take(b"\0\0\0\x07another")
        log.take("a")
        await until(lambda: (log.counted("dropped_error"), log.counted("written")) == (7, 1))
        assert running.process is not None
        running.process.send_signal(signal.SIGSTOP)
        for _ in range(100):
            log.process.take(large)
        assert 10 < log.counted("dropped_slow") < 50

    assert log.counted("dropped_slow") == 100
    assert log.users == ["a"]
    log.process.take(large)
    assert log.counted("dropped_slow") == 101


async def test_slow_reader_holds_nobody_up(tmp_path: Path) -> None:
    """What a reader does not take is counted, also at the end, which waits for it only so long."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = Log(path)
    large = packet("x" * 60_000)
    async with asyncio.timeout(PATIENCE_SECONDS), log.process.running():
        for _ in range(100):
            log.process.take(large)
        assert 10 < log.counted("dropped_slow") < 50

    assert log.counted("dropped_slow") > 90
    assert sum(log.stats.decision_log.values()) == 100
    os.close(reader)


async def test_faults_are_known_at_once(tmp_path: Path) -> None:
    """That a log cannot be written is known before any decision, and also when it is mended."""
    path = tmp_path / "nowhere" / "decisions.jsonl"
    log = Log(path)
    async with log.process.running():
        await until(lambda: bool(log.health.faults))
        assert "No such file or directory" in log.health.faults["decision_log"]
        path.parent.mkdir()
        log.take("a")
        await until(lambda: not log.health.faults)

    assert log.users == ["a"]
    assert log.counted("written") == 1
