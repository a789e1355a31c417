"""What it costs to keep who is over, near or busy: the time of a call with it, and without.

    .venv/bin/python -m benchmarks.callers

Both run in one process, in turns of twenty reads of fifty calls of two descriptors, through the
connection, the service and the memory store, without sockets. A row has the medians of many turns,
and how much longer the one with it takes, with the 95 % interval of the median of the pairs.
docs/operations.md has the rows.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.profile import RULES, Process
from benchmarks.short_ways import CALLS, READS, turn
from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings

PAIRS, TAKEN_SECONDS = 60, 5.0
"""So many pairs of turns; what was noted is taken after so much time in turns with it."""


class Row(NamedTuple):
    """Calls of a shape, all of which come to the same."""

    name: str
    shape: str
    limit: int = 200_000_000
    near: float = 0.8


ROWS = (
    Row("within, one caller", "hot"),
    Row("within, 100,000 callers", "uniform"),
    Row("near, one caller", "hot", near=1e-9),
    Row("near, 100,000 callers", "uniform", near=1e-9),
    Row("over, one caller", "hot", limit=0),
    Row("over, 100,000 callers", "uniform", limit=0),
)


def process_of(row: Row, rules: Path) -> Process:
    process = Process(row.shape, rules)
    stats = Stats()
    loaded = Rules(rules, stats=stats, health=Health())
    loaded.load()
    settings = Settings(near_limit_ratio=row.near)
    process.service = Service(lambda: loaded.snapshot, process.store, settings, stats)
    return process


def in_turns(row: Row, rules: Path) -> tuple[list[float], list[float]]:
    """Turns of one service, which keeps callers in every other one."""
    process = process_of(row, rules)
    service, callers = process.service, process.service.callers
    assert callers is not None
    gc.collect()
    gc.freeze()
    gc.disable()
    found: tuple[list[float], list[float]] = [], []
    lasted = 0.0
    for number in range(PAIRS):
        for at in (0, 1) if number % 2 else (1, 0):
            service.callers = service._answering.callers = None if at else callers  # noqa: SLF001
            found[at].append(turn(process))
        lasted += found[0][-1] * READS * CALLS / 1e6
        if lasted > TAKEN_SECONDS:
            callers.clear()
            lasted = 0.0
    gc.enable()
    gc.unfreeze()
    return found


def main() -> None:
    print("| calls | µs with it | µs without it | longer |")
    print("|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for row in ROWS:
            rules = Path(directory, "rules.yaml")
            rules.write_text(RULES.read_text().replace("200000000", str(row.limit)))
            kept, without = in_turns(row, rules)
            longer = sorted(
                100 * (one / other - 1) for one, other in zip(kept, without, strict=True)
            )
            low, high = longer[PAIRS // 2 - 8], longer[PAIRS // 2 + 7]  # binomial, 95 %
            print(
                f"| {row.name} | {median(kept):.2f} | {median(without):.2f} "
                f"| {median(longer):.1f} % ({low:.1f} to {high:.1f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
