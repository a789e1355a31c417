"""Attacks one after the other, each on a new service beside an honest client; prints a table.

    .venv/bin/python -m benchmarks.abuse [--seconds S] [--only TEXT ...] [--on TEXT] [--runs N]
                                         [--part N/M]

docs/benchmarks.md has the figures. Ends with 1 if a bound is broken, and with 2 if none is,
but some attacks could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.abuse.attack import Attack
from benchmarks.abuse.attacks import ATTACKS
from benchmarks.abuse.on_http import MAX_PAGE_BYTES
from benchmarks.abuse.processes import (
    AHEAD,
    ATTACKING,
    Program,
    Service,
    ahead,
    programs,
    say,
    started,
    stolen_seconds,
)
from benchmarks.by_policy import too_many
from benchmarks.run import LOAD_CORE, free_port, running, told
from benchmarks.timing import TURN
from ratelimit_service.grpc.h2.limits import ALL_HELD_BYTES, HELD_BYTES
from ratelimit_service.net.channel import READ_BYTES

SECONDS = 1.5
LATE_SECONDS = 0.02
WARM_SECONDS = 1.0
LOOK_SECONDS = 0.05
AFTER_SECONDS = 1.0
"""How long after an attack it may still keep somebody waiting."""

MAX_TURN_MS = 5.0
MAX_LOG_BYTES = 65_536
MAX_STOP_SECONDS = 5.0
"""Clients being gone, there is nothing to wait for."""

MOST_STOLEN = 0.02
"""A run says nothing if the machine's owner took more of its time than this share."""

COUNTED_BYTES = 16 << 20
"""What new keys and long values leave in all processes: counters (docs/sizing.md: 32,000 take 13 MB
at most), remembered plans and series. All of these are bounded, but not by one attack of some
seconds."""

LIST_BYTES = 262_144
"""What a list of requests over HTTP takes until its answers are read."""


def budget_bytes(attack: Attack, processes: int) -> int:
    """What an attack may make the service keep: the budgets of docs/operations.md, and a page.

    What is held takes a quarter more than is counted: blocks of memory are larger than what they
    hold.
    """
    held = min(attack.connections * HELD_BYTES, processes * ALL_HELD_BYTES)
    unhandled = attack.connections * 2 * READ_BYTES
    page = MAX_PAGE_BYTES if attack.page else 0
    return held * 5 // 4 + unhandled + COUNTED_BYTES + page + attack.lists * LIST_BYTES


class Phase(NamedTuple):
    """What was seen in some seconds: of the honest client, and of the service's processes."""

    calls: int
    late: int
    failed: int
    by_policy: int
    turns: int
    """How many were above the bound."""
    turn_ms: float
    callback_ms: float
    cause: str
    worst: list[tuple[float, float, float, str]]
    """The longest turns and callbacks: when, from the attack's start, their milliseconds of CPU and
    of wall, and what was done."""
    waited: list[tuple[float, float]]
    """Answers that were late or failed: when they were due, and the milliseconds waited."""


class Result(NamedTuple):
    """What an attack has come to."""

    control: Phase
    """Before the attack."""
    attacked: Phase
    """While it lasted, and after it: damage that stays counts as well."""
    grown_bytes: int
    budget_bytes: int
    log_bytes: int
    stop_seconds: float
    killed: bool
    stolen: float
    """The share of the machine's time that its owner took away."""
    report: dict[str, object]

    @property
    def late(self) -> int:
        return max(0, self.attacked.late - self.control.late)

    @property
    def failed(self) -> int:
        return max(0, self.attacked.failed - self.control.failed)


def attacked(
    stack: ExitStack, program: Program, name: str, redis_port: int, seconds: float, home: Path
) -> Result:
    """One attack on a new service. `stack` ends what was started, if it has not ended by itself."""
    attack = ATTACKS[name]
    lasts = max(seconds, attack.seconds)
    service = stack.enter_context(Service(program, attack, redis_port, home))
    record = home / "honest"
    ports = [str(service.grpc_port), str(service.http_port)]
    trust = ["--authority", service.authority] if service.authority else []
    module = ["taskset", "-c", LOAD_CORE, sys.executable, "-m"]
    caller = [*module, "benchmarks.abuse.honest", ports[0], *trust, "--record", str(record)]
    attacking = [*module, "benchmarks.abuse.attacks", name, *ports, *trust]
    honest = stack.enter_context(started([*AHEAD, *caller]))
    attacker = stack.enter_context(started([*ATTACKING, *attacking]))
    start = time.perf_counter() + WARM_SECONDS
    begins = start + seconds
    ends = begins + lasts + AFTER_SECONDS
    over = ends + seconds
    say(honest, start, over)
    say(attacker, begins, begins + lasts)
    restarting = threading.Timer(begins - time.perf_counter(), service.restart, [attack.restarts])
    restarting.start()
    memory: list[tuple[float, int]] = []
    logged, stolen = 0, stolen_seconds()
    while (now := time.perf_counter()) < ends:
        memory.append((now, service.resident()))
        if now < begins:
            logged = service.log_bytes
        time.sleep(LOOK_SECONDS)
    restarting.join()
    said, _ = attacker.communicate(timeout=60)
    honest.communicate(timeout=60)
    stolen = (stolen_seconds() - stolen) / (over - start) / (os.cpu_count() or 1)
    killed = not service.lives(attack.restarts)
    log_bytes = service.log_bytes - logged
    stop_seconds = service.stop()
    answers = pickle.loads(record.read_bytes())
    turns = [json.loads(line) for line in service.turns.read_text().splitlines()]
    before = [size for when, size in memory if when < begins]
    after = [size for when, size in memory if when >= begins]
    # What is late in the control is held against as long an attack, and no shorter one.
    control = phase(answers, turns, begins, start, begins)
    return Result(
        control._replace(late=round(control.late * (over - begins) / seconds)),
        phase(answers, turns, begins, begins, over),
        max(after) - max(before),
        budget_bytes(attack, service.deciding),
        log_bytes,
        stop_seconds,
        killed,
        stolen,
        json.loads(said) if said else {"ends": {}, "findings": ["no report"], "faults": []},
    )


def phase(
    answers: list[tuple[float, float, bool, bool]],
    turns: list[tuple[float, float, float, str]],
    begins: float,
    first: float,
    last: float,
) -> Phase:
    """What was seen from `first` until `last`; the attack begins at `begins`."""
    mine = [each for each in answers if first <= each[0] < last]
    long = [each for each in turns if first <= each[0] < last]
    whole = [each[1] for each in long if each[3] == TURN]
    parts = [(each[1], each[3]) for each in long if each[3] != TURN]
    callback_ms, cause = max(parts, default=(0.0, ""))
    return Phase(
        len(mine),
        sum(waited > LATE_SECONDS for _, waited, _, _ in mine),
        sum(not answered for _, _, answered, _ in mine),
        sum(by_policy for _, _, _, by_policy in mine),
        sum(cpu > MAX_TURN_MS for cpu in whole),
        max(whole, default=0.0),
        callback_ms,
        cause,
        [(each[0] - begins, *each[1:]) for each in sorted(long, key=lambda each: -each[1])],
        [
            (due - begins, waited * 1000)
            for due, waited, ok, _ in mine
            if waited > LATE_SECONDS or not ok
        ],
    )


def unmeasured(result: Result) -> str:
    """Why nothing can be said, if so: the machine did something else."""
    seen = result.report["ends"] or result.report["findings"]
    if not (result.control.calls and result.attacked.calls and seen):
        return "not measured: the machine was too busy"
    if result.stolen > MOST_STOLEN:
        return f"not measured: {result.stolen:.0%} of the machine's time was taken away"
    late = result.control.late + result.control.failed
    if late and of_answers(result):
        return f"answers not measured: {late} were late before the attack, too"
    return ""


def of_answers(result: Result) -> list[str]:
    """What of the honest client's answers was not as it should be."""
    found = []
    if result.late or result.failed:
        found.append("honest answers")
    if too_many(result.attacked.calls, result.attacked.by_policy):
        found.append(f"{result.attacked.by_policy} by policy")
    return found


def broken(attack: Attack, result: Result) -> list[str]:
    """The bounds that were not held.

    A busy machine excuses late answers, and nothing else. Where its owner takes time away the clock
    of a thread goes on, so that turns cannot be measured either.
    """
    found = [] if unmeasured(result) else of_answers(result)
    measured = result.stolen <= MOST_STOLEN and not attack.restarts  # programs that start take long
    if result.attacked.turns > result.control.turns and measured:
        found.append("turn")
    if result.grown_bytes > result.budget_bytes:
        found.append("memory")
    if result.log_bytes > MAX_LOG_BYTES:
        found.append("log")
    if result.stop_seconds > MAX_STOP_SECONDS:
        found.append("stop")
    if result.killed:
        found.append("killed")
    ends, faults = result.report["ends"], result.report["faults"]
    assert isinstance(ends, dict)
    assert isinstance(faults, list)
    if attack.kept and set(ends) != {"still open"}:
        found.append("cut off")
    if attack.ends and "still open" in ends:
        found.append("held")
    return found + faults


def verdict(result: Result, wrong: list[str]) -> str:
    """What is to be said of the bounds."""
    return ", ".join(filter(None, [*wrong, unmeasured(result)])) or "held"


def row(name: str, result: Result, wrong: list[str]) -> str:
    """A line of the table."""
    ends, findings = result.report["ends"], result.report["findings"]
    assert isinstance(ends, dict)
    assert isinstance(findings, list)
    ended = [f"{number:,} times {how}" if number > 1 else how for how, number in ends.items()]
    if result.killed:
        ended.append("a process died")
    cells = [
        name,
        f"{result.late}",
        f"{result.failed}",
        f"{result.attacked.calls}",
        f"{result.attacked.turn_ms:.1f} ({result.control.turn_ms:.1f})",
        f"{result.attacked.callback_ms:.1f} {result.attacked.cause}",
        f"{result.grown_bytes / 1e6:.0f} of {result.budget_bytes / 1e6:.0f}",
        f"{result.log_bytes / 1e3:.0f}",
        f"{result.stop_seconds:.1f}",
        ", ".join([*ended, *findings]),
        verdict(result, wrong),
    ]
    return f"| {' | '.join(cells)} |"


MOST_SHOWN = 12


def more(result: Result) -> Iterator[str]:
    """What to look at where a bound is broken."""
    for name, each in (("control", result.control), ("attack", result.attacked)):
        for when, cpu_ms, ms, cause in each.worst[:MOST_SHOWN]:
            yield f"    {name}, at {when:.3f} s: {cpu_ms:.1f} ms ({ms:.1f} of wall) of {cause}"
        yield f"    {name}: {len(each.waited)} late or failed"
        for due, waited_ms in each.waited[:MOST_SHOWN]:
            # What the service did in short turns is not known, but those are short.
            until = due + min(waited_ms, 1000.0) / 1000
            turns = [
                (cpu_ms, ms)
                for when, cpu_ms, ms, cause in each.worst
                if cause == TURN and due < when + ms / 1000 and when < until
            ]
            busy, passed = sum(cpu for cpu, _ in turns), sum(ms for _, ms in turns)
            yield (
                f"      {waited_ms:.0f} ms at {due:.3f} s: long turns took {busy:.1f} ms of CPU, "
                f"and stood still for {passed - busy:.1f} ms"
            )
    yield f"    {result.stolen:.1%} of the machine's time was taken away"


HEAD = """
| attack | late | failed | of | worst turn, ms of CPU (control) | worst callback | MB grown, of \
| KB logged | s to stop | how it ended | bounds |
|---|---|---|---|---|---|---|---|---|---|---|"""


def done(found: list[tuple[Result, list[str]]], runs: int) -> bool:
    """Whether the attack has held its bounds, or was tried often enough."""
    if not found:
        return False
    last, wrong = found[-1]
    if not wrong and verdict(last, wrong) == "held":
        return True
    tries = sum(not unmeasured(each) for each, _ in found)
    return tries >= runs or len(found) >= 3 * runs


def part(text: str) -> tuple[int, int]:
    """Which part of how many; raises ValueError if that is none."""
    first, parts = map(int, text.split("/"))
    if not 1 <= first <= parts:
        raise ValueError
    return first, parts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Of an attack at least.")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="Attacks with one of these in their name."
    )
    parser.add_argument("--on", default="", help="Programs with this in their name.")
    parser.add_argument(
        "--runs", type=int, default=3, help="Tries of an attack to hold its bounds."
    )
    parser.add_argument(
        "--part", type=part, default=(1, 1), help="Of N/M: every Mth attack, from the Nth on."
    )
    parser.add_argument("--more", action="store_true", help="Show the longest turns and waits.")
    arguments = parser.parse_args()
    first, parts = arguments.part
    # What was started is ended, also if this is ended itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))
    said: list[tuple[str, bool]] = []
    with ahead(), tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        redis_port = free_port()
        if shutil.which("redis-server"):
            command = [*AHEAD, "redis-server", "--port", str(redis_port)]
            command += ["--save", "", "--dir", directory]
            stack.enter_context(running(LOAD_CORE, command, redis_port))
        for program in programs():
            if arguments.on not in program.name:
                continue
            print(f"\n{program.name}\n{HEAD}", flush=True)
            for name, attack in list(ATTACKS.items())[first - 1 :: parts]:
                if attack.restarts and not program.redis:
                    continue  # its counters would be lost
                if not any(part.lower() in name.lower() for part in arguments.only):
                    continue
                found: list[tuple[Result, list[str]]] = []
                while not done(found, arguments.runs):
                    with tempfile.TemporaryDirectory() as home, ExitStack() as its:
                        result = attacked(
                            its, program, name, redis_port, arguments.seconds, Path(home)
                        )
                    found.append((result, broken(attack, result)))
                best, wrong = min(
                    found, key=lambda each: (len(each[1]), verdict(*each) != "held", each[0].late)
                )
                if verdict(best, wrong) != "held":
                    said.append((f"{program.name}: {name}: {verdict(best, wrong)}", bool(wrong)))
                print(row(name, best, wrong), flush=True)
                if arguments.more:
                    told("\n".join(more(best)))
    failed = sum(wrong for _, wrong in said)
    told("\n".join(line for line, _ in said))
    told(f"{failed} attacks broke a bound" if failed else "no bound was broken")
    sys.exit(1 if failed else 2 if said else 0)


if __name__ == "__main__":
    main()
