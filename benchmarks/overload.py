"""More calls than a core can bear, and hiccups under them: what is still counted, and in time.

    .venv/bin/python -m benchmarks.overload [--no-bounds] [--only memory] [--build interpreted]

What the server can do, in a closed loop, then a multiple of that, open loop, by clients that wait
for 20 ms as Envoy does, and what it can do once more; then 1.5 times it while Redis or the worker
stops for a while, or the load is ten times that. Fails if too little is counted, too much comes
late, or counting does not come back. OVERLOAD_SECONDS (3) makes it longer or shorter;
docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.abuse.processes import ahead, stolen_seconds
from benchmarks.cpu import cpu_seconds, processes
from benchmarks.flood import ANSWERS, LATE, SHAPE, SLICE_SECONDS, shape_flags
from benchmarks.load import PREPARED, WARM_UP
from benchmarks.run import COMPILED, HERE, LOAD_CORE, RATELIMIT, SERVER_CORE, Bench, running, told
from tests.servers.cluster import RedisCluster
from tests.servers.process import descendants
from tests.servers.redis import RedisServer

SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "3"))
CAPACITY_SECONDS = 0.8
IN_FLIGHT = 200
"""On all connections together, in the closed loop."""

UNEVEN = 1.3
"""Capacities before and after a load that differ by more are no measure of it."""

TRIES = 3
"""So often such a load is tried."""

MOST_STOLEN = 0.02
"""A load in which the owner of a virtual machine took more of its time is tried again as well."""

GIVES_WAY = ["nice", "-n", "10"]
"""Redis is on the generator's core. It must not wait there: its time would be that of the load."""

CONNECTIONS = (4, 100)
LOADS = (1.5, 2.0, 4.0, 10.0)
WARM_SLICES = 5
"""What is not looked at in the beginning: the load has only just begun."""

HICCUP_LOAD = 1.5
HICCUP_AT = 2.0
AFTER_SECONDS = 3.0
BACK_SLICES = 3
"""Counting is back once in so many slices in a row as much is counted as must be."""

HELD_UP_SECONDS = 0.015
"""A slice in which the generator did not run for so long says nothing."""

CORES = os.cpu_count() or 1

LEAST_COUNTED = 0.8
MOST_LATE = 0.001
"""Of all answers."""
MOST_SECONDS = 1.0


class Servers(NamedTuple):
    """A store: how it is named to the service, and what stops it for a while, if it can be."""

    url: str
    stop: Callable[[], None] | None = None
    cont: Callable[[], None] | None = None


class Seen(NamedTuple):
    """What became of a load, as shares of what the server can do."""

    offered: float
    counted: float
    by_policy: float
    late: float
    failed: float
    refused: float
    cancelled: float
    never_sent: float
    in_time: float
    """Of all answers, the share within 20 ms."""
    generator_cpu: float
    generator_lag: float
    """The longest time for which the generator did nothing in a slice, on average, in seconds."""
    redis_cpu: float
    redis_waited: float
    """How much of its core Redis took, and for how much of the time it waited for that core; of all
    servers together."""
    void: float
    """The share of slices in which the generator was held up."""
    lost: list[str]
    """Why the server has ended connections."""


@contextmanager
def memory(_: Path) -> Iterator[Servers]:
    yield Servers("memory")


@contextmanager
def redis_servers(directory: Path, count: int) -> Iterator[list[RedisServer]]:
    servers = []
    with ExitStack() as stack:
        for number in range(count):
            place = directory / f"redis-{number}"
            place.mkdir()
            server = RedisServer(place)
            server.start()
            stack.callback(server.kill)
            stack.callback(server.cont)
            servers.append(server)
        yield servers


def stoppable(url: str, servers: list[RedisServer]) -> Servers:
    """A store of servers that stop all at once."""

    def stop() -> None:
        for server in servers:
            server.stop()

    def cont() -> None:
        for server in servers:
            server.cont()

    return Servers(url, stop, cont)


@contextmanager
def one_redis(directory: Path) -> Iterator[Servers]:
    with redis_servers(directory, 1) as servers:
        yield stoppable(servers[0].url, servers)


@contextmanager
def ring(directory: Path) -> Iterator[Servers]:
    with redis_servers(directory, 3) as servers:
        places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        yield stoppable(f"redis+ring://{places}/0", servers)


@contextmanager
def cluster(directory: Path) -> Iterator[Servers]:
    # The nodes shall not take a stopped neighbour for dead: there is nobody to take over.
    nodes = RedisCluster(directory, "--cluster-node-timeout", "15000")
    nodes.start()
    try:
        yield stoppable(nodes.url, nodes.servers)
    finally:
        for server in nodes.servers:
            server.cont()
        nodes.kill()


def redis_seconds() -> tuple[float, float]:
    """How long the Redis servers started here have run, and have waited for their core."""
    ran = waited = 0
    for pid in descendants(os.getpid()):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "redis-server":
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                its = path.read_text().split()
                ran, waited = ran + int(its[0]), waited + int(its[1])
    return ran / 1e9, waited / 1e9


STORES = {"memory": memory, "one Redis": one_redis, "ring of 3": ring, "cluster of 3": cluster}


class Hiccup(NamedTuple):
    """What goes wrong for so many seconds: in Redis, the worker, or the load."""

    name: str
    what: str
    seconds: float


HICCUPS = [
    Hiccup("Redis stops for 0.2 s", "redis", 0.2),
    Hiccup("the worker stops for 0.1 s", "worker", 0.1),
    Hiccup("the worker stops for 0.5 s", "worker", 0.5),
    Hiccup("the worker stops for 2 s", "worker", 2.0),
    Hiccup("ten times the load for 0.5 s", "load", 0.5),
]


class Case:
    """One build of the service on one store, running."""

    def __init__(self, bench: Bench, process: subprocess.Popen[bytes], servers: Servers) -> None:
        self._bench, self._process, self._servers = bench, process, servers
        self._worker = process.pid
        """The process that stops."""
        self._asked = 0
        """How many calls were made. Each load begins behind the one before: if all began with the
        same calls, short loads would ask for few keys, which costs less."""

    def warm_up(self, connections: int) -> None:
        """Makes all calls once, since a key costs more when it is new."""
        while self._asked < PREPARED:
            self.capacity(connections)

    def capacity(self, connections: int) -> float:
        """Counted calls a second in a closed loop."""
        flags = ["--seconds", str(CAPACITY_SECONDS), "--connections", str(connections)]
        flags += ["--in-flight", str(max(1, IN_FLIGHT // connections)), *self._skip()]
        for left in reversed(range(TRIES)):
            try:
                shape = "addresses-traced" if SHAPE.headers == "traced" else "addresses"
                found = self._bench.generate(shape, *flags, by_policy=True)
                break
            except SystemExit as error:  # calls are refused also where the machine stood still
                if not left:
                    raise
                told(f"{error}: again")
        self._asked += round(found["calls"] * (1 + WARM_UP))
        return found["calls_per_second"] * (1 - found["by_policy"] / found["calls"])

    def load(self, load: float, connections: int) -> tuple[float, Seen, str]:
        """What the server can do, what became of so many times that, and what is wrong with it."""
        seconds, wrong = SECONDS + WARM_SLICES * SLICE_SECONDS, ""
        for left in reversed(range(TRIES)):
            before, began, stolen = self.capacity(connections), time.monotonic(), stolen_seconds()
            found = self.flood(load * before, connections, seconds)
            stolen = (stolen_seconds() - stolen) / (time.monotonic() - began) / CORES
            after = self.capacity(connections)
            wrong = "uneven" if max(before, after) > UNEVEN * min(before, after) else ""
            wrong = "stolen" if stolen > MOST_STOLEN else wrong
            if not wrong:
                break
            told(f"{wrong}: {before:,.0f} and {after:,.0f} calls a second, {stolen:.1%} stolen")
            if left:
                told("again")
        bears = (before + after) / 2
        return bears, seen(found, bears), wrong

    def flood(
        self,
        rate: float,
        connections: int,
        seconds: float,
        *flags: str,
        meanwhile: Callable[[float], None] = lambda _: None,
    ) -> dict[str, object]:
        """What became of a load; `meanwhile` is called when it has begun, with when that was."""
        command = [*GIVES_WAY, "taskset", "-c", LOAD_CORE, sys.executable, "-m", "benchmarks.flood"]
        command += [str(self._bench.port), "--rate", str(rate), "--seconds", str(seconds)]
        command += ["--connections", str(connections), *self._skip(), *flags]
        command += SHAPE.flags
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
        assert process.stdout is not None
        started = process.stdout.readline().split()
        before = redis_seconds()
        if started:
            meanwhile(float(started[1]))
        out = process.communicate()[0]
        if process.returncode:
            raise SystemExit(f"overload.py: the generator failed: {command}")
        found: dict[str, object] = json.loads(out)
        spent = zip(before, redis_seconds(), strict=True)
        found["redis"] = [(after - since) / seconds for since, after in spent]
        self._asked += sum(slices(found)["sent"])
        return found

    def _skip(self) -> list[str]:
        return ["--skip", str(self._asked % PREPARED)]

    def hiccup(self, hiccup: Hiccup, capacity: float, connections: int) -> tuple[float, Seen]:
        """Seconds after the hiccup until enough is counted again, and all that was seen."""

        def meanwhile(start: float) -> None:
            time.sleep(max(0.0, start + HICCUP_AT - time.perf_counter()))
            self._stop(hiccup.what)
            time.sleep(hiccup.seconds)
            self._cont(hiccup.what)

        flags: list[str] = []
        if hiccup.what == "load":
            flags = ["--burst", "10", "--burst-at", str(HICCUP_AT)]
            flags += ["--burst-seconds", str(hiccup.seconds)]
        seconds = HICCUP_AT + hiccup.seconds + AFTER_SECONDS
        rate = HICCUP_LOAD * capacity
        found = self.flood(rate, connections, seconds, *flags, meanwhile=meanwhile)
        return back_after(found, hiccup.seconds, counted_before(found)), seen(found, capacity)

    def _stop(self, what: str) -> None:
        if what == "worker":
            # It is the supervisor's child, and over Redis it may be replaced before it goes on.
            self._worker = max(processes(self._process.pid), key=cpu_seconds)
            os.kill(self._worker, signal.SIGSTOP)
        elif what == "redis" and self._servers.stop:
            self._servers.stop()

    def _cont(self, what: str) -> None:
        if what == "worker":
            with suppress(ProcessLookupError):
                os.kill(self._worker, signal.SIGCONT)
        elif what == "redis" and self._servers.cont:
            self._servers.cont()


def slices(found: dict[str, object]) -> dict[str, list[int]]:
    return found["slices"]  # type: ignore[return-value]  # from JSON


def good(found: dict[str, object]) -> list[bool]:
    """Of each slice whether the generator ran well in it; the last is not whole."""
    lag: list[float] = found["lag"]  # type: ignore[assignment]  # from JSON
    return [each < HELD_UP_SECONDS for each in lag[:-1]]


def seen(found: dict[str, object], capacity: float) -> Seen:
    """The shares, of the slices that say something."""
    counts, well = slices(found), good(found)
    chosen = [at for at in range(WARM_SLICES, len(well)) if well[at]]
    bears = max(1.0, capacity * SLICE_SECONDS * len(chosen))

    def share(*fates: str) -> float:
        return sum(counts[fate][at] for fate in fates for at in chosen) / bears

    in_time, late = share(*ANSWERS), share(*LATE)
    lag: list[float] = found["lag"]  # type: ignore[assignment]  # from JSON
    redis: list[float] = found["redis"]  # type: ignore[assignment]  # as above
    return Seen(
        share("offered"),
        share("counted", "denied"),
        share("by_policy"),
        late,
        share("failed", "late_failed"),
        share("refused"),
        share("cancelled"),
        share("never_sent"),
        in_time / (in_time + late) if in_time + late else 1.0,
        float(str(found["generator_cpu"])),
        statistics.fmean([lag[at] for at in chosen] or [0.0]),
        redis[0],
        redis[1],
        1 - len(chosen) / max(1, len(well) - WARM_SLICES),
        list(found["lost"]),  # type: ignore[call-overload]  # from JSON
    )


def counted_before(found: dict[str, object]) -> float:
    """Counted calls a second between the beginning of a load and a hiccup."""
    counted, well = slices(found)["counted"], good(found)
    chosen = [at for at in range(WARM_SLICES, round(HICCUP_AT / SLICE_SECONDS)) if well[at]]
    return statistics.fmean([counted[at] for at in chosen] or [0.0]) / SLICE_SECONDS


def back_after(found: dict[str, object], lasted: float, rate: float) -> float:
    """Seconds from the end of a hiccup until most of what was counted before is counted again."""
    counted, well = slices(found)["counted"], good(found)
    end = round((HICCUP_AT + lasted) / SLICE_SECONDS)
    wanted = LEAST_COUNTED * rate * SLICE_SECONDS
    for at in range(end, len(well) - BACK_SLICES + 1):
        # Of three slices together, since one alone depends on chance.
        following = [counted[each] for each in range(at, at + BACK_SLICES) if well[each]]
        if following and statistics.fmean(following) >= wanted:
            return (at - end) * SLICE_SECONDS
    return float("inf")


def command(program: str, bench: Bench, url: str) -> list[str]:
    words = [program, "serve", "--rules", str(HERE / "rules.yaml"), "--log-level", "fatal"]
    words += ["--grpc", f"127.0.0.1:{bench.port}", "--http", f"127.0.0.1:{bench.http_port}"]
    return [*words, "--max-counters", "3000000", "--store", url]


class Report:
    """The tables, and what broke a bound."""

    def __init__(self) -> None:
        self._loads: list[str] = []
        self._hiccups: list[str] = []
        self.broken: list[str] = []

    def load(
        self, name: str, connections: int, capacity: float, load: float, of: Seen, wrong: str
    ) -> None:
        where = f"{name}, {connections} connections, {load:g} times"
        told(f"{where}: {of}")
        shown = [of.counted, of.by_policy, of.late, of.refused, of.cancelled, of.never_sent]
        cells = " | ".join(f"{each:.2f}" for each in shown)
        wrong = wrong or ("held up" if of.void > 0.5 else "")
        self._loads.append(
            f"| {name} | {connections} | {capacity:,.0f} | {load:g} | {cells} "
            f"| {of.in_time:.2%} | {of.generator_cpu:.0%}, {1e3 * of.generator_lag:.1f} ms "
            f"| {of.redis_cpu:.0%}, {of.redis_waited:.0%} | {wrong} |"
        )
        if of.counted < LEAST_COUNTED:
            self.broken.append(
                f"{where}: only {of.counted:.0%} of what it can do is counted in time"
            )
        self._judge(where, of)

    def hiccup(self, name: str, connections: int, what: Hiccup, back: float, of: Seen) -> None:
        where = f"{name}, {connections} connections, {what.name}"
        told(f"{where}: back after {back:.1f} s, {of}")
        shown = f"{back:.1f} s" if back < float("inf") else "never"
        cells = f"{shown} | {of.counted:.2f} | {of.in_time:.2%}"
        self._hiccups.append(f"| {name} | {connections} | {what.name} | {cells} |")
        if not back <= MOST_SECONDS:
            self.broken.append(f"{where}: counting is back after {shown}")
        self._judge(where, of, hiccup=True)

    def _judge(self, where: str, of: Seen, *, hiccup: bool = False) -> None:
        if 1 - of.in_time > MOST_LATE and not hiccup:
            self.broken.append(f"{where}: {1 - of.in_time:.1%} of the answers came late")
        if of.failed:
            self.broken.append(f"{where}: calls failed")
        if of.lost:
            self.broken.append(f"{where}: {len(of.lost)} connections lost: {of.lost[0]}")

    def show(self) -> None:
        print(
            "\n| service | connections | can do, calls/s | load | counted | by policy | late",
            end="",
        )
        print(" | refused | cancelled | never sent | answers in time ", end="")
        print("| generator: core, lag | Redis: core, waited | no measure |")
        print("|---" * 14 + "|")
        print("\n".join(self._loads))
        if self._hiccups:
            print("\n| service | connections | hiccup | counted again after | counted | in time |")
            print("|---" * 6 + "|")
            print("\n".join(self._hiccups))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-bounds", action="store_true", help="Only measure.")
    parser.add_argument("--only", choices=STORES, action="append", help="These stores.")
    parser.add_argument("--build", choices=("interpreted", "compiled"), action="append")
    parser.add_argument("--connections", type=int, action="append")
    parser.add_argument("--no-loads", action="store_true", help="Only hiccups.")
    parser.add_argument("--no-hiccups", action="store_true")
    shape_flags(parser)
    chosen = parser.parse_args()
    SHAPE.choose(chosen)
    report = Report()
    os.sched_setaffinity(0, {int(LOAD_CORE)})  # so all Redis servers are there as well
    with ahead():
        measure(chosen, report)
    report.show()
    if report.broken and not chosen.no_bounds:
        raise SystemExit("\n".join(["", *report.broken]))


def measure(chosen: argparse.Namespace, report: Report) -> None:
    """All that was chosen."""
    programs = {"interpreted": RATELIMIT, "compiled": str(COMPILED)}
    for build in chosen.build or programs:
        if not Path(programs[build]).exists():
            told(f"{build}: not there")
            continue
        for store in chosen.only or STORES:
            with ExitStack() as stack:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                servers = stack.enter_context(STORES[store](directory))
                bench = Bench(str(directory))
                words = command(programs[build], bench, servers.url)
                process = stack.enter_context(running(SERVER_CORE, words, bench.port))
                case = Case(bench, process, servers)
                name = f"{build}, {store}"
                case.warm_up(CONNECTIONS[0])
                for connections in chosen.connections or CONNECTIONS:
                    for load in [] if chosen.no_loads else LOADS:
                        capacity, found, wrong = case.load(load, connections)
                        report.load(name, connections, capacity, load, found, wrong)
                    for hiccup in [] if chosen.no_hiccups else HICCUPS:
                        if hiccup.what != "redis" or servers.stop:
                            capacity = case.capacity(connections)
                            back, found = case.hiccup(hiccup, capacity, connections)
                            report.hiccup(name, connections, hiccup, back, found)


if __name__ == "__main__":
    main()
