"""The process that writes the decision log, and what becomes of lines without it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ratelimit_service.decision_log import scribe
from ratelimit_service.decision_log.scribe import DecisionScribe
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.processes import pipes
from ratelimit_service.settings import Settings
from tests.decision_log.packets import packet
from tests.servers.process import PATIENCE_SECONDS


class Scribe:
    """One, and what it has written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stats, self.health = Stats(), Health()
        self.scribe = DecisionScribe(
            Settings(decision_log=str(path), decision_log_rotate_us=365 * 86_400_000_000),
            self.stats,
            self.health,
        )

    @property
    def users(self) -> list[str]:
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        return [json.loads(line)["descriptors"][0]["entries"][0][1] for line in lines]

    @property
    def counted(self) -> dict[str, int]:
        return dict(self.stats.decision_log)

    def signal(self, number: signal.Signals) -> None:
        assert self.scribe.process is not None
        self.scribe.process.send_signal(number)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for what is written here, however long a busy machine takes for it."""
    monkeypatch.setattr(scribe, "_REST_SECONDS", PATIENCE_SECONDS)


async def test_no_line_is_lost_with_the_process(tmp_path: Path) -> None:
    """Lines come in their order, before the process is there, of it, and when it was killed.

    All are counted as written.
    """
    ours = Scribe(tmp_path / "log")
    async with ours.scribe.running():
        assert ours.scribe.take(packet("early"))
        await until(lambda: ours.scribe.working)
        ours.signal(signal.SIGTERM)  # whoever ends the service ends it by its parent
        assert ours.scribe.take(packet("a", "b"))
        await until(lambda: ours.counted == {"written": 3})
        assert ours.users == ["early", "a", "b"]
        ours.signal(signal.SIGSTOP)
        for name in "cde":
            assert ours.scribe.take(packet(name))
        assert len(ours.users) == 3
        ours.signal(signal.SIGKILL)
        await until(lambda: ours.counted == {"written": 6})
        assert ours.scribe.take(packet("late"))

    assert ours.users == ["early", *"abcde", "late"]
    assert ours.counted == {"written": 7}


async def test_another_process_writes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the process was killed there is another one, and what came meanwhile is written."""
    monkeypatch.setattr(pipes, "_FIRST_PAUSE_SECONDS", 0.05)
    ours = Scribe(tmp_path / "log")
    async with ours.scribe.running():
        await until(lambda: ours.scribe.working)
        former = ours.scribe.process
        ours.signal(signal.SIGKILL)
        await until(lambda: not ours.scribe.working)
        names = [str(number) for number in range(300)]
        for name in names:
            assert ours.scribe.take(packet(name))
        await until(lambda: ours.scribe.working and ours.scribe.process is not former)
        assert ours.scribe.take(packet("late"))

    assert ours.users == [*names, "late"]
    assert ours.counted == {"written": 301}


async def test_what_is_too_much_is_counted(tmp_path: Path) -> None:
    """What a process that hangs does not write is bounded. The end has it written all the same.

    A packet that cannot be read is counted, and holds up no other. After the end none is taken.
    """
    ours = Scribe(tmp_path / "log")
    large = packet("x" * 60_000)
    async with ours.scribe.running():
        await until(lambda: ours.scribe.working)
        ours.scribe.hear(b"\0\0\0\x07another")
        ours.scribe.hear(packet("a"))
        await until(lambda: ours.counted == {"dropped_error": 7, "written": 1})
        ours.signal(signal.SIGSTOP)
        for _ in range(100):
            ours.scribe.hear(large)

    dropped = ours.counted["dropped_slow"]
    assert 10 < dropped < 50
    assert len(ours.users) == ours.counted["written"] == 1 + 100 - dropped
    assert not ours.scribe.take(large)


async def test_slow_reader_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader does not take is counted, also at the end, which waits for it only so long."""
    monkeypatch.setattr(scribe, "_PROCESS_SECONDS", 0.05)
    monkeypatch.setattr(scribe, "_REST_SECONDS", 0.05)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    ours = Scribe(path)
    large = packet("x" * 60_000)
    async with asyncio.timeout(PATIENCE_SECONDS), ours.scribe.running():
        await until(lambda: ours.scribe.working)
        for _ in range(100):
            ours.scribe.hear(large)
        assert 10 < ours.counted["dropped_slow"] < 50

    assert sum(ours.counted.values()) == 100
    assert ours.counted["dropped_slow"] > 90
    os.close(reader)


async def test_faults_are_known_at_once(tmp_path: Path) -> None:
    """That a log cannot be written is known before any decision, and also when it is mended."""
    path = tmp_path / "nowhere" / "decisions.jsonl"
    ours = Scribe(path)
    async with ours.scribe.running():
        await until(lambda: bool(ours.health.faults))
        assert "No such file or directory" in ours.health.faults["decision_log"]
        path.parent.mkdir()
        ours.scribe.hear(packet("a"))
        await until(lambda: not ours.health.faults)

    assert ours.users == ["a"]
    assert ours.counted == {"written": 1}
