"""Rules that depend on the time, where clocks change: in each process that decides, and in tools.

The services are real ones, whose wall clock shows what the test says.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from ratelimit_service.model import Code, Request
from ratelimit_service.rule_lab.simulation.simulator import Simulator
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.settings import Settings
from tests.runtime.callers import Caller, ask
from tests.runtime.conftest import Start
from tests.runtime.seen import processes
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, descriptor

ZONES = {
    "berlin": 'from: "02:00", to: "03:00", time_zone: Europe/Berlin',
    "sydney": 'from: "02:00", to: "03:00", time_zone: Australia/Sydney',
    "howe": 'from: "01:30", to: "02:00", time_zone: Australia/Lord_Howe',
    "night": 'days: sat, from: "22:00", to: "02:30", time_zone: Europe/Berlin',
}
LIMIT = "unit: year, requests_per_unit: 0"
RULES = "domain: edge\ndescriptors:\n" + "".join(
    f"  - {{key: {key}, rate_limit: {{{LIMIT}, when: {{{when}}}}}}}\n"
    for key, when in ZONES.items()
)
RULES += "  - {key: user, rate_limit: {unlimited: true}}\n"
RULES += "  - {key: user, value: alice, valid_until: 2026-03-29T03:00+02:00, "
RULES += f"rate_limit: {{{LIMIT}}}}}\n"

MOMENTS = {
    # Clocks of Berlin go from 02:00 to 03:00 on a Sunday: the hour between is left out.
    "2026-03-29T00:59:59.999999+00:00": {"night", "alice"},
    "2026-03-29T01:00:00+00:00": set(),
    "2026-03-29T01:30:00+00:00": set(),
    "2026-03-30T00:00:00+00:00": {"berlin"},  # the day after it is there
    # They go back from 03:00 to 02:00, so that hour comes twice.
    "2026-10-24T23:59:59.999999+00:00": {"night"},
    "2026-10-25T00:00:00+00:00": {"berlin", "night"},
    "2026-10-25T00:29:59.999999+00:00": {"berlin", "night"},
    "2026-10-25T00:30:00+00:00": {"berlin"},
    "2026-10-25T00:59:59.999999+00:00": {"berlin"},
    "2026-10-25T01:00:00+00:00": {"berlin", "night"},
    "2026-10-25T01:30:00+00:00": {"berlin"},
    "2026-10-25T01:59:59.999999+00:00": {"berlin"},
    "2026-10-25T02:00:00+00:00": set(),
    # In Sydney summer ends in April, and begins in October.
    "2026-04-04T14:59:59.999999+00:00": {"howe"},
    "2026-04-04T15:00:00+00:00": {"howe", "sydney"},
    "2026-04-04T16:00:00+00:00": {"sydney"},
    "2026-04-04T16:59:59.999999+00:00": {"sydney"},
    "2026-04-04T17:00:00+00:00": set(),
    "2026-10-03T15:59:59.999999+00:00": set(),
    "2026-10-03T16:00:00+00:00": set(),
    # On Lord Howe Island clocks change by half an hour.
    "2026-04-04T14:29:59.999999+00:00": set(),
    "2026-04-04T14:30:00+00:00": {"howe"},
    "2026-04-04T15:29:59.999999+00:00": {"howe", "sydney"},
    "2026-04-04T15:30:00+00:00": {"sydney"},
}
"""Which of the limits hold; times go forward and back."""
ASKED = [*(f"{key}=x" for key in ZONES), "user=alice"]


def us(moment: str) -> int:
    since = datetime.fromisoformat(moment) - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def request(text: str) -> Request:
    return Request("edge", (descriptor(text),))


def held(codes: dict[str, Code]) -> set[str]:
    """The limits that denied."""
    return {
        text.removesuffix("=x").removeprefix("user=")
        for text, code in codes.items()
        if code is Code.OVER_LIMIT
    }


class WallClock:
    """What the wall clock of a service shows."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "shown"
        self.show(0)
        (directory / "sitecustomize.py").write_text(
            "import mmap, os, time\n"
            f"with open({str(self._path)!r}, 'rb') as file:\n"
            "    shown = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)\n"
            "time.time_ns = lambda: int.from_bytes(shown[:8], 'little')\n"
        )

    def show(self, at_us: int) -> None:
        """From now on, and until it shows something else."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write((at_us * 1_000).to_bytes(8, "little"))


@pytest.mark.parametrize("workers", [0, 2])
def test_when_clocks_change(
    start: Start, own_redis: RedisServer, tmp_path: Path, workers: int
) -> None:
    """Limits hold by their zone's clocks, to the microsecond, in memory and in every worker."""
    (tmp_path / "rules" / "edge.yaml").write_text(RULES)
    clock = WallClock(tmp_path)
    store = ["--store", own_redis.url, "--workers", str(workers)] if workers else []
    service = start(*store, PYTHONPATH=str(tmp_path))
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(service.address)) for _ in range(4)]
        for caller in callers:
            ask(caller, request("user=bob"))
        for moment, hold in MOMENTS.items():
            clock.show(us(moment))
            for caller in callers:
                codes = {text: ask(caller, request(text)) for text in ASKED}
                assert held(codes) == hold, moment
        if workers:
            served = [each["connections"] for each in processes(service)["workers"]]
            assert served == [2, 2]


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    (tmp_path / "edge").mkdir()
    return Asking(tmp_path / "edge", RULES)


def test_tools_say_the_same(asking: Asking) -> None:
    """What `test` and `replay` decide with, and what `explain` tells, is what services do."""
    snapshot = asking.rules.snapshot
    simulator = Simulator(snapshot, Settings())
    for moment, hold in MOMENTS.items():
        codes = {text: simulator.decide(request(text), us(moment)).decision.code for text in ASKED}
        answer = {
            text: str(explain(at_moment(snapshot, us(moment)), "edge", descriptor(text)))
            for text in ASKED
        }
        assert held(codes) == hold, moment
        assert {
            text.removesuffix("=x") for text in answer if "(as now)" in answer[text]
        } == hold - {"alice"}
        assert ("it ended" in answer["user=alice"]) == ("alice" not in hold)
