"""`make faults`: real servers fail under a steady load, and every answer is looked at.

For each fault: two thousand requests a second for some seconds before it, while it lasts, and
after it; what came late, what was decided by policy, what was admitted beyond the limits, how
the counters compare with an independent tally of the answers, and how long until all was
normal. Each fault has a row with exact and one with leased limits, of which the counters also hold
what processes hold. `python -m benchmarks.faults WORD…` runs those whose names have one of these
words, such as `leased`; docs/redis.md has the table.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import redis

from benchmarks.by_policy import hold
from benchmarks.run import LOAD_CORE, SERVER_CORE, free_port, told, wait_for
from benchmarks.steady import DOMAIN, ROOMY, TIGHT, Answer
from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Limit, Unit
from ratelimit_service.stores.keys import CounterNames
from tests.servers.cluster import RedisCluster
from tests.servers.process import listens, wait_until
from tests.servers.redis import RedisServer
from tests.servers.sentinel import Watched

HERE = Path(__file__).parent
FIGURES = HERE / "faults.json"
"""What each row found when it last ran."""

RATELIMIT = str(Path(sys.executable).with_name("ratelimit"))
RATE = 2_000
BEFORE = 5.0
DURING = float(os.environ.get("FAULT_SECONDS", "30"))
AFTER = 6.0
LATE_SECONDS = 0.02
MOST_LATE = 6
"""Of a dead or hung store, beyond what a server that decides nothing shows."""
MOST_SECONDS = 2.0
"""Until all is normal."""
LIMIT = int(0.6 * RATE * (BEFORE + DURING + AFTER) / TIGHT)
"""Of the counters that fill up: they do while the fault lasts."""


class Site(NamedTuple):
    """A store, how it fails, and who can be asked for the counters afterwards."""

    url: str
    fail: Callable[[], None]
    """Lasts as long as the fault; returns when commands are served again."""
    clients: Callable[[], list[redis.Redis]]
    loses: bool = False
    """Whether counters may be lost."""


class Result(NamedTuple):
    late: int
    errors: int
    by_policy: int
    over: int
    """The most that any counter admitted beyond its limit: by count, and under `local` in all."""
    uncounted: int
    """Hits that were allowed by count, and are not in the counters."""
    untold: int
    """Hits that are in the counters, and were decided by policy."""
    normal_seconds: float
    loses: bool
    """Whether counters may be lost."""


def for_a_while(act: Callable[[], object], every: float) -> None:
    """Does something again and again for as long as a fault lasts."""
    end = time.monotonic() + DURING
    while time.monotonic() < end:
        act()
        time.sleep(every)


def serves(server: RedisServer) -> bool:
    with suppress(redis.RedisError):
        return bool(redis.Redis(port=server.port, socket_timeout=0.2).ping())
    return False


@contextmanager
def single(directory: Path, *flags: str) -> Iterator[RedisServer]:
    server = RedisServer(directory, *flags)
    server.start()
    try:
        yield server
    finally:
        server.cont()
        server.kill()


@contextmanager
def killed(directory: Path) -> Iterator[Site]:
    with single(directory) as server:

        def fail() -> None:
            server.kill()
            time.sleep(DURING)
            server.start()

        yield Site(server.url, fail, lambda: [redis.Redis(port=server.port)], loses=True)


@contextmanager
def hung(directory: Path) -> Iterator[Site]:
    with single(directory) as server:

        def fail() -> None:
            server.stop()
            time.sleep(DURING)
            server.cont()
            wait_until(lambda: serves(server), "Redis")

        yield Site(server.url, fail, lambda: [redis.Redis(port=server.port)])


@contextmanager
def proxied(directory: Path, act: Callable[[Callable[[str], None]], None]) -> Iterator[Site]:
    """Redis behind the proxy; `act` has what tells the proxy what to do."""
    with single(directory) as server:
        port = free_port()
        command = [sys.executable, "-m", "tests.servers.proxy", str(port), str(server.port)]
        process = subprocess.Popen(["taskset", "-c", LOAD_CORE, *command], stdin=subprocess.PIPE)
        wait_for(port)
        pipe = process.stdin
        assert pipe is not None

        def tell(line: str) -> None:
            pipe.write(f"{line}\n".encode())
            pipe.flush()

        def fail() -> None:
            act(tell)
            tell("clear")

        try:
            url = f"redis://127.0.0.1:{port}/0"
            yield Site(url, fail, lambda: [redis.Redis(port=server.port)])
        finally:
            process.kill()
            process.wait()


def slow(tell: Callable[[str], None]) -> None:
    tell("delay 50")
    time.sleep(DURING)


def half_open(tell: Callable[[str], None]) -> None:
    tell("hold")
    time.sleep(DURING)


def cut(tell: Callable[[str], None]) -> None:
    for_a_while(lambda: tell("cut"), 1.0)


@contextmanager
def password(directory: Path) -> Iterator[Site]:
    """The password changes, connections are killed, and its file follows a second later."""
    with single(directory, "--requirepass", "old") as server:
        file = directory / "password"
        file.write_text("old")
        known = ["old"]

        def change() -> None:
            client = redis.Redis(port=server.port, password=known[-1])
            known.append(f"new-{len(known)}")
            client.config_set("requirepass", known[-1])
            client.client_kill_filter(_type="normal", skipme=True)
            time.sleep(1)
            file.write_text(known[-1])

        yield Site(
            f"{server.url}?password_file={file}",
            lambda: for_a_while(change, 9.0),
            lambda: [redis.Redis(port=server.port, password=known[-1])],
        )


@contextmanager
def flushed(directory: Path) -> Iterator[Site]:
    with single(directory) as server:
        client = redis.Redis(port=server.port)
        yield Site(server.url, lambda: for_a_while(client.script_flush, 0.1), lambda: [client])


@contextmanager
def full(directory: Path) -> Iterator[Site]:
    with single(directory) as server:
        client = redis.Redis(port=server.port)

        def fail() -> None:
            client.config_set("maxmemory", "1")
            time.sleep(DURING)
            client.config_set("maxmemory", "0")

        yield Site(server.url, fail, lambda: [client])


@contextmanager
def watched(directory: Path, *, kill: bool) -> Iterator[Site]:
    """A master that Sentinel replaces: since it died, or since it was asked to (READONLY)."""
    servers = Watched(directory)
    servers.start()

    def fail() -> None:
        before = servers.master
        if kill:
            servers.lose_master(1_000)
            wait_until(lambda: servers.master != before, "the failover")
        else:
            servers.fail_over()
        told("  the master is another")

    try:
        yield Site(servers.url, fail, lambda: [redis.Redis(port=servers.master)], loses=True)
    finally:
        servers.kill()


@contextmanager
def migrating(directory: Path) -> Iterator[Site]:
    """Slots with their keys move from node to node and back."""
    cluster = RedisCluster(directory)
    cluster.start()

    def fail() -> None:
        def move() -> None:
            for key in keys():
                cluster.move_slot(cluster.slot(key))

        for_a_while(move, 0.0)

    try:
        yield Site(cluster.url, fail, lambda: [cluster.client(number) for number in range(3)])
    finally:
        cluster.kill()


@contextmanager
def node_lost(directory: Path) -> Iterator[Site]:
    cluster = RedisCluster(directory, "--cluster-require-full-coverage", "no", replicas=3)
    cluster.start()

    def fail() -> None:
        lost = cluster.servers[0].port
        cluster.lose(0)
        wait_until(lambda: cluster.owner_port(0, ask=1) != lost, "the replica to take over")
        told("  the replica has taken over")

    def alive() -> list[redis.Redis]:
        return [cluster.client(number) for number in range(1, 6)]

    try:
        yield Site(cluster.url, fail, alive, loses=True)
    finally:
        cluster.kill()


@contextmanager
def shard_lost(directory: Path) -> Iterator[Site]:
    """One of three shards dies, and is back after a while, empty."""
    servers = []
    for number in range(3):
        (directory / str(number)).mkdir()
        servers.append(RedisServer(directory / str(number)))
        servers[-1].start()

    def fail() -> None:
        servers[0].kill()
        time.sleep(DURING)
        servers[0].start()

    places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    try:
        yield Site(
            f"redis+ring://{places}/0",
            fail,
            lambda: [redis.Redis(port=server.port) for server in servers],
            loses=True,
        )
    finally:
        for server in servers:
            server.kill()


FAULTS: dict[str, tuple[Callable[[Path], AbstractContextManager[Site]], str]] = {
    "killed, policy closed": (killed, "closed"),
    "killed, policy open": (killed, "open"),
    "killed, policy local": (killed, "local"),
    "hung, policy closed": (hung, "closed"),
    "hung, policy open": (hung, "open"),
    "hung, policy local": (hung, "local"),
    "half-open connection": (lambda directory: proxied(directory, half_open), "closed"),
    "50 ms slow": (lambda directory: proxied(directory, slow), "closed"),
    "reset in the middle of replies": (lambda directory: proxied(directory, cut), "closed"),
    "password changed": (password, "closed"),
    "SCRIPT FLUSH": (flushed, "closed"),
    "out of memory": (full, "closed"),
    "Sentinel: asked for (READONLY)": (lambda d: watched(d, kill=False), "closed"),
    "Sentinel: master killed": (lambda d: watched(d, kill=True), "closed"),
    "Cluster: slots migrate": (migrating, "closed"),
    "Cluster: node lost": (node_lost, "closed"),
    "ring: a shard lost": (shard_lost, "closed"),
}
LEASED = ", leased"
"""What the names of rows end with in which processes hold counted parts of the limits."""
FAULTS |= {name + LEASED: fault for name, fault in FAULTS.items()}


def rules(directory: Path, sync: str) -> Path:
    file = directory / "rules.yaml"
    file.write_text(
        f"domain: {DOMAIN}\ndescriptors:\n"
        f"- {{key: roomy, rate_limit: {{unit: year, requests_per_unit: 1000000, sync: {sync}}}}}\n"
        f"- {{key: tight, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, sync: {sync}}}}}\n"
    )
    return file


def key(name: str, number: int) -> bytes:
    spec = spec_of(Limit(LIMIT, Unit.YEAR))
    return CounterNames(DOMAIN, spec).key([(name, str(number))])


def keys() -> list[bytes]:
    return [key("roomy", n) for n in range(ROOMY)] + [key("tight", n) for n in range(TIGHT)]


def counted(clients: list[redis.Redis]) -> Counter[bytes]:
    """What the counters hold."""
    found: Counter[bytes] = Counter()
    for one in keys():
        for client in clients:
            with suppress(redis.RedisError):
                state = client.get(one)
                if isinstance(state, bytes):
                    found[one] += int(state) & 0xFFFFFFFF
                    break
    return found


def load(port: int, seconds: float, record: Path) -> subprocess.Popen[bytes]:
    command = ["taskset", "-c", LOAD_CORE, sys.executable, "-m", "benchmarks.steady", str(port)]
    flags = ["--seconds", str(seconds), "--rate", str(RATE), "--record", str(record)]
    return subprocess.Popen([*command, *flags], cwd=HERE.parent)


def answers(process: subprocess.Popen[bytes], record: Path) -> list[Answer]:
    if process.wait() != 0:
        raise SystemExit("faults.py: the load failed")
    return [Answer(*each) for each in pickle.loads(record.read_bytes())]


def serving(flags: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The service and its port; another, if somebody has taken the one that was free."""
    port = free_port()
    places = ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
    command = ["taskset", "-c", SERVER_CORE, RATELIMIT, "serve", *flags, *places]
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until(lambda: service.poll() is not None or listens(port), "the service")
    return (service, port) if service.poll() is None else serving(flags)


def run(name: str) -> Result:
    """One fault from beginning to end."""
    begin, policy = FAULTS[name]
    with tempfile.TemporaryDirectory() as place, begin(Path(place)) as site:
        directory = Path(place)
        written = rules(directory, "leased" if name.endswith(LEASED) else "exact")
        flags = ["--rules", str(written), "--store", site.url]
        service, port = serving([*flags, "--failure-policy", policy, "--log-level", "error"])
        try:
            time.sleep(1.5)  # the processes that count have heard of each other
            record = directory / "record"
            seconds = BEFORE + DURING + AFTER
            process = load(port, seconds, record)
            time.sleep(BEFORE)
            begun = time.perf_counter()
            site.fail()
            healed = time.perf_counter()
            found = answers(process, record)
            before = [each.by_policy for each in found if each.due + LATE_SECONDS < begun]
            hold(f"faults.py: {name}, before the fault", len(before), sum(before))
            time.sleep(1)
            local = policy == "local"
            return result(found, counted(site.clients()), healed, loses=site.loses, local=local)
        finally:
            service.terminate()
            service.wait(20)


def result(
    found: list[Answer], counts: Counter[bytes], healed: float, *, loses: bool, local: bool
) -> Result:
    admitted: Counter[int] = Counter()
    tally: Counter[bytes] = Counter()
    for each in found:
        if each.said == 1 and not each.by_policy:
            tally[key("roomy", each.roomy)] += 1
            tally[key("tight", each.tight)] += 1
        if each.said == 1 and (local or not each.by_policy):
            admitted[each.tight] += 1
    policy = [each for each in found if each.by_policy]
    last = max((each.due + each.waited for each in policy), default=healed)
    return Result(
        sum(each.waited > LATE_SECONDS for each in found),
        sum(not each.said for each in found),
        len(policy),
        max(0, max(admitted.values()) - LIMIT),
        sum(max(0, tally[one] - counts[one]) for one in keys()),
        sum(max(0, counts[one] - tally[one]) for one in keys()),
        max(0.0, last - healed),
        loses,
    )


def broken(name: str, found: Result, control_late: int) -> list[str]:
    """The bounds that a fault has broken."""
    bounds = {
        f"{found.errors} errors": found.errors == 0,
        f"normal after {found.normal_seconds:.1f} s": found.normal_seconds <= MOST_SECONDS,
        f"{found.over} beyond the limit": found.over <= LIMIT * (found.loses + ("local" in name)),
    }
    if not found.loses:
        bounds[f"{found.uncounted} hits lost"] = found.uncounted == 0
    if name.startswith(("killed", "hung", "half-open")):
        bounds[f"{found.late} late"] = found.late <= MOST_LATE + control_late
    return [what for what, holds in bounds.items() if not holds]


def control() -> int:
    """How many answers of a server that decides nothing come late."""
    with tempfile.TemporaryDirectory() as place:
        port = free_port()
        command = [sys.executable, str(HERE / "noop.py"), f"127.0.0.1:{port}"]
        server = subprocess.Popen(["taskset", "-c", SERVER_CORE, *command])
        try:
            wait_for(port)
            record = Path(place) / "record"
            found = answers(load(port, DURING, record), record)
        finally:
            server.terminate()
            server.wait(20)
    return sum(each.waited > LATE_SECONDS for each in found)


def main() -> None:
    words = sys.argv[1:] or [""]
    chosen = [name for name in FAULTS if any(word in name for word in words)]
    if not chosen:
        raise SystemExit(f"faults.py: no fault {words[0]!r}: choose of {'; '.join(FAULTS)}")
    late = control()
    told(f"{late} late of a server that decides nothing")
    results = {}
    for name in chosen:
        results[name] = run(name)
        told(f"{name}: {results[name]}")
    figures = {name: each._asdict() for name, each in results.items()}
    kept = json.loads(FIGURES.read_text())
    if kept["limit"] == LIMIT:  # shorter faults tell something else
        rows = {name: figures.get(name) or kept["faults"].get(name) for name in FAULTS}
        kept["faults"] = {name: row for name, row in rows.items() if row}
        kept["late of the no-op server"] = late
        FIGURES.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"\n{RATE:,} requests a second, {DURING:g} s of fault, a limit of {LIMIT}; ", end="")
    print(f"late of a server that decides nothing: {late}\n")
    print("| fault | late | errors | by policy | over | lost | counted, by policy | normal after |")
    print("|---|---|---|---|---|---|---|---|")
    for name, each in results.items():
        *cells, seconds, _ = each
        print(f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} | {seconds:.2f} s |")
    problems = [
        f"{name}: {what}" for name, each in results.items() for what in broken(name, each, late)
    ]
    if problems:
        raise SystemExit("\n".join(["", "bounds that do not hold:", *problems]))
    print("\nEvery bound holds.")


if __name__ == "__main__":
    main()
