"""How many recorded requests a second `ratelimit replay` asks of rules, on one core.

And how long `ratelimit test` takes for 1,000 steps.

    .venv/bin/python -m benchmarks.replay

Prints a table; docs/benchmarks.md has the figures. The time is that of the processor.
`REQUESTS` in the environment is how many there are in each log.
"""

from __future__ import annotations

import gc
import io
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rule_lab.replay.csv_log import CsvLog
from ratelimit_service.rule_lab.replay.decision_log import DecisionLogReader, RequestText
from ratelimit_service.rule_lab.replay.envoy_log import EnvoyLog, Mapped
from ratelimit_service.rule_lab.replay.logs import Lines, LogReader
from ratelimit_service.rule_lab.replay.play import Replay
from ratelimit_service.rule_lab.replay.recorded import Block, RequestCache, merged
from ratelimit_service.rule_lab.replay.trace import Trace
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.settings import Settings

REQUESTS = int(os.environ.get("REQUESTS", "400000"))
CALLERS = 100_000
A_SECOND = 2_000
LOGS = 3
RULES = """
domain: api
descriptors:
- key: user
  rate_limit: {{unit: minute, requests_per_unit: {most}, algorithm: {algorithm}}}
"""


def snapshot(most: int, algorithm: str = "fixed_window") -> Snapshot:
    """Rules with one limit for each caller."""
    text = RULES.format(most=most, algorithm=algorithm).encode()
    return Snapshot(1, build([Version("api.yaml", text, None)], Tallies, strict=True).domains)


def callers(count: int, seed: int) -> Sequence[int]:
    """Who asks, by Zipf's law."""
    weights = list(accumulate(1 / rank for rank in range(1, CALLERS + 1)))
    return random.Random(seed).choices(range(CALLERS), cum_weights=weights, k=count)


def times(count: int) -> Iterator[str]:
    """When they ask, in RFC 3339."""
    for number in range(count):
        second, part = divmod(number, A_SECOND)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        yield f"2026-01-31T{clock}.{part * 1_000_000 // A_SECOND:06}Z"


def decisions(count: int, seed: int = 1) -> bytes:
    """A decision log as `serve` writes it."""
    text = "".join(
        f'{{"v":1,"time":"{at}","domain":"api","descriptors":[{{"entries":[["user","{caller}"]]}}],'
        '"code":"OK","by":"store","descriptor":0,"rule":"user","source":"api.yaml:3:3",'
        '"limit":{"requests_per_unit":100,"unit":"minute"},"used":1,"remaining":99,'
        '"reset_seconds":31.5,"store":"memory","duration_seconds":0.00042,'
        '"caller":"10.0.0.7:41234"}\n'
        for at, caller in zip(times(count), callers(count, seed), strict=True)
    )
    return text.encode()


def rows(count: int, seed: int = 1) -> bytes:
    """The same as CSV."""
    lines = zip(times(count), callers(count, seed), strict=True)
    text = "time,domain,user\n" + "".join(f"{at},api,{caller}\n" for at, caller in lines)
    return text.encode()


MAPPED = Mapped("$start_time", "api", ((("user", "$user"),),), flags="$response_flags")


def accesses(count: int) -> bytes:
    """The same as Envoy's access log: fields that its documents show, and the caller."""
    lines = zip(times(count), callers(count, seed=1), strict=True)
    text = "".join(
        f'{{"start_time":"{at[:23]}Z","method":"GET","path":"/v1/orders?page=2","protocol":"HTTP/2",'
        f'"response_code":200,"response_flags":"-","bytes_received":0,"bytes_sent":1843,'
        f'"duration":12,"upstream_host":"10.0.3.17:8080","x_forwarded_for":"203.0.113.9",'
        f'"user_agent":"curl/8.5.0","request_id":"8a1f7f2c-6f0e-4c5e-9d55-0d6d4ac1{number:08x}",'
        f'"user":"{caller}"}}\n'
        for number, (at, caller) in enumerate(lines)
    )
    return text.encode()


def blocks(log: bytes, known: RequestCache[RequestText] | None = None) -> Iterator[Block]:
    """What stands in such a log."""
    lines = Lines("log", io.BytesIO(log))
    reader: LogReader = DecisionLogReader(known)
    if log.startswith(b'{"start_time"'):
        reader = EnvoyLog(MAPPED)
    elif not log.startswith(b"{"):
        reader = CsvLog("log", lines.first)
    return reader.blocks(lines)


def row(what: str, logs: Sequence[bytes], new: Snapshot, old: Snapshot | None = None) -> None:
    """Measures one replay."""
    settings = Settings()
    played = Replay(Trace(new, settings), Trace(old, settings) if old else None)
    known = RequestCache[RequestText]()
    started = time.process_time()
    for block in merged([blocks(log, known) for log in logs]):
        played.play(block)
    seconds = time.process_time() - started
    print(
        f"| {what} | {played.requests:,} | {played.new.denied / played.requests:.0%} "
        f"| {played.requests / seconds:,.0f} |",
        flush=True,
    )


def tested(steps: int) -> float:
    """The processor time of the whole command `ratelimit test`, in seconds."""
    cases = "".join(
        ("" if step % 20 else f"- name: case {step}\n  steps:\n")
        + f"  - {{at: {step % 20}s, domain: api, descriptors: [{{user: u{step % 4}}}], "
        f"expect: OK, remaining: {299 - step % 20 // 4}}}\n"
        for step in range(steps)
    )
    with TemporaryDirectory() as directory:
        rules = Path(directory, "api.yaml")
        rules.write_text(RULES.format(most=300, algorithm="fixed_window"))
        path = Path(directory, "api.test.yaml")
        path.write_text(f"rules: api.yaml\ncases:\n{cases}")
        used = -sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        command = [sys.executable, "-m", "ratelimit_service", "test", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return used + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def main() -> None:
    gc.disable()  # as the command does
    log, table = decisions(REQUESTS), rows(REQUESTS)
    started = time.process_time()
    for _ in merged([blocks(log)]):
        pass
    reading = REQUESTS / (time.process_time() - started)
    print("| log | requests | denied | a second |")
    print("|---|---|---|---|")
    row("a decision log", [log], snapshot(300))
    row("the same, a sliding window", [log], snapshot(300, "sliding_window"))
    row("the same, against other rules", [log], snapshot(300), snapshot(150))
    row("CSV", [table], snapshot(300))
    row("Envoy's access log", [accesses(REQUESTS)], snapshot(300))
    each = REQUESTS // LOGS
    row(f"{LOGS} decision logs", [decisions(each, seed) for seed in range(LOGS)], snapshot(300))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"\nOnly read: {reading:,.0f} a second. Most memory, with the logs: {most:.0f} MB.")
    whole, first = (min(tested(steps) for _ in range(3)) for steps in (1_000, 1))
    print(f"`ratelimit test` of 1,000 steps: {whole:.2f} s, of one step {first:.2f} s.")


if __name__ == "__main__":
    main()
