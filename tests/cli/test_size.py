"""What a load needs, by `ratelimit size`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.cli.measured import BY_ALGORITHM, CALLS_A_CORE
from ratelimit_service.cli.size import Load, needed
from tests.cli.inside import Inside

DOCS = Path(__file__).parents[2] / "docs"
BENCHMARKS = (DOCS / "benchmarks.md").read_text()
SIZING = (DOCS / "sizing.md").read_text()


@pytest.fixture
def ratelimit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(monkeypatch, capsys)


def row(part: str, first: str) -> list[str]:
    """What stands behind this cell, in the first row of a part of the benchmarks that has it."""
    text = BENCHMARKS.split(f"\n## {part}\n")[1].split("\n## ")[0]
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


@pytest.mark.parametrize(("store", "build"), CALLS_A_CORE)
def test_calls_are_those_of_the_benchmarks(store: str, build: str) -> None:
    """Calls a core are what the benchmarks' table says, and the page about sizing repeats it."""
    column = 2 * (build == "compiled") + (store == "redis")
    calls, _times_grpcio = row("Speed", "uniform")[column].split()

    assert calls == f"{CALLS_A_CORE[store, build]:,}"
    assert f"| {calls} |" in SIZING


@pytest.mark.parametrize("name", BY_ALGORITHM)
def test_algorithms_are_those_of_the_benchmarks(name: str) -> None:
    """Bytes and costs of an algorithm are what the benchmarks' table says."""
    measured = BY_ALGORITHM[name]
    memory, *others = (float(cell.replace(",", "")) for cell in row("Memory of counters", name))

    assert memory == measured.memory_bytes
    assert others == [measured.redis_bytes, measured.redis_bytes_at_most, *measured[3:]]


def test_example(ratelimit: Inside) -> None:
    """The page shows what the command prints."""
    pattern = r"^    \$ ratelimit (size .*)\n((?:    .*\n)+)"
    ((command, shown),) = re.findall(pattern, SIZING, re.MULTILINE)

    assert ratelimit(*command.split()).out == re.sub("^    ", "", shown, flags=re.MULTILINE)


def test_every_measured_algorithm_is_there() -> None:
    """No algorithm of the benchmarks' table is missing, and each is one that rules can name.

    One that nobody has measured yet has no size: `--algorithm` does not take it.
    """
    text = BENCHMARKS.split("\n## Memory of counters\n")[1].split("\n## ")[0]
    rows = set(re.findall(r"^\| (\w+) \|", text, re.MULTILINE))

    assert BY_ALGORITHM.keys() == rows & ALGORITHMS.keys()
    assert len(BY_ALGORITHM) >= 6


def test_more_needs_more() -> None:
    """More calls, descriptors or counters never need less, and twice of it no more than twice."""
    for store in ("redis", "memory"):
        load = Load(30_000, 100_000, store=store)
        for more in (
            load._replace(rate=2 * load.rate),
            load._replace(descriptors=2 * load.descriptors),
            load._replace(keys=2 * load.keys),
        ):
            before, after = needed(load), needed(more)
            assert all(one <= other <= 2 * one for one, other in zip(before, after, strict=True))


def test_half_of_each_core_is_left() -> None:
    """No core, of the service or of Redis, is planned to be busy for more than half of its time."""
    for rate in (1, 999, 46_357, 46_358, 1_000_000):
        result = needed(Load(rate, 1))
        assert result.busy <= result.workers / 2
        assert result.redis_busy <= result.redis_servers / 2


def test_memory_is_one_process(ratelimit: Inside) -> None:
    """What one process cannot take is an error, and says what to do; as JSON it is a field."""
    words = ("size", "--rate", "900000", "--keys", "10", "--store", "memory")

    assert "count in Redis" in ratelimit(*words).out
    ran = ratelimit(*words, "--json")
    assert (ran.code, json.loads(ran.out)["enough"]) == (1, False)
