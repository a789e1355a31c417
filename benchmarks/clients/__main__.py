"""Real gRPC clients against the service: each call must get an answer, and its own.

    .venv/bin/python -m benchmarks.clients [CLIENT...]

Builds the clients that this machine has the tools for, names what is missing, and lets each of them
call in every scenario over both transports. Prints a table; fails if an answer is another call's,
or if a call fails that should not. docs/real-clients.md tells the method.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.by_policy import too_many
from benchmarks.clients.calling import KEYS
from benchmarks.clients.clients import CLIENTS, Client, MissingError
from benchmarks.run import told
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND, ServiceProcess

RESTARTS = 3
PAUSE_SECONDS = 0.5
MOST_TEXTS = 3
"""Of the texts with which calls of a client fail in a scenario the most frequent are shown."""

CLIENT_SECONDS = 180
RULES = "domain: clients\ndescriptors:\n" + "".join(
    f"- {{key: key, value: '{key}', "
    f"rate_limit: {{name: <{key}>, unit: year, requests_per_unit: 1000000000}}}}\n"
    for key in range(KEYS)
)
"""Each key has a limit with a name of its own, which an answer repeats."""


class Scenario(NamedTuple):
    """What a client is asked to do; the numbers are for its command line."""

    name: str
    numbers: dict[str, int]
    service: str = "memory"
    transports: tuple[str, ...] = ("h2", "grpcio")
    sent_away: bool = False
    """Whether connections are ended meanwhile, always without hurry."""

    endless: bool = False
    """Whether calls go on until the service has been restarted."""


BUSY = {"calls": 3_000, "concurrency": 50}
EASY = {"calls": 3_000, "concurrency": 8, "pause": 10}
SCENARIOS = [
    Scenario("plain", BUSY),
    Scenario("given up", BUSY | {"cancel": 200, "deadline": 100}),
    Scenario("many headers", BUSY | {"headers": 80, "header_bytes": 20, "cancel": 20}),
    Scenario("large headers", BUSY | {"headers": 4, "header_bytes": 3_000}, transports=("h2",)),
    Scenario("large headers", BUSY | {"headers": 4, "header_bytes": 1_500}, transports=("grpcio",)),
    Scenario(
        "cold connections", {"calls": 600, "concurrency": 600, "headers": 2, "header_bytes": 3_000}
    ),
    Scenario("too large headers", BUSY | {"calls": 2_000, "oversized": 20}),
    Scenario("no table", BUSY | {"table": 0, "headers": 5, "cancel": 20}),
    Scenario("small table", BUSY | {"table": 256, "headers": 5, "cancel": 20}),
    Scenario("connection age", EASY | {"cancel": 20}, service="age", sent_away=True),
    Scenario(
        "restarts",
        EASY | {"calls": 10**9, "cancel": 20, "headers": 5, "header_bytes": 20},
        service="workers",
        transports=("h2",),
        sent_away=True,
        endless=True,
    ),
]


class Result(NamedTuple):
    """What became of the calls of one client in one scenario."""

    client: str
    transport: str
    scenario: str
    tally: Counter[str]
    asked: int
    """How many calls it was to make; 0 for as many as it likes."""

    def count(self, what: str) -> int:
        """Calls that ended so; of `failed` and `own fault` whatever the text."""
        return sum(number for key, number in self.tally.items() if key.partition(":")[0] == what)

    def problems(self) -> Iterator[str]:
        """What should not be."""
        where = f"{self.client}, {self.transport}, {self.scenario}"
        calls = self.tally.total()
        if self.count("right") == 0:
            yield f"{where}: no call was answered"
        if self.count("wrong"):
            yield f"{where}: {self.count('wrong')} of {calls} answers were another call's"
        if wrong := too_many(calls, self.count("policy")):
            yield f"{where}: {wrong}"
        if calls < self.asked:
            yield f"{where}: {calls} of {self.asked} calls ended"
        failed = {key: n for key, n in self.tally.items() if n and key.startswith("failed")}
        for key in sorted(failed, key=failed.__getitem__)[: -MOST_TEXTS - 1 : -1]:
            yield f"{where}: {failed[key]} of {calls} {key}"


def flags(service: str, transport: str, redis_url: str) -> list[str]:
    """How `ratelimit serve` is started for scenarios of this kind."""
    if service == "memory":
        return ["--store", "memory"]
    chosen = ["--store", redis_url]
    if transport == "h2":
        chosen += ["--workers", "2"]
    return [*chosen, "--max-connection-age", "1s"] if service == "age" else chosen


@contextmanager
def serving(service: str, transport: str, redis_url: str) -> Iterator[ServiceProcess]:
    with tempfile.TemporaryDirectory() as place:
        rules = Path(place, "rules.yaml")
        rules.write_text(RULES)
        process = ServiceProcess(
            Path(place),
            *("--rules", str(rules), "--transport", transport, "--log-level", "warning"),
            *flags(service, transport, redis_url),
        )
        process.start()
        try:
            yield process
        finally:
            if "Traceback" in process.log:
                told(process.log)
            process.kill()


def restarted(service: ServiceProcess, client: subprocess.Popen[str]) -> None:
    """Restarts the service some times while a client calls."""
    deadline = time.monotonic() + 30
    while connections(service) == 0 and client.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(RESTARTS):
        time.sleep(PAUSE_SECONDS)
        command = [COMMAND, "restart", "--http", f"127.0.0.1:{service.http_port}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    time.sleep(PAUSE_SECONDS)


def connections(service: ServiceProcess) -> int:
    shown = json.loads(service.get("/processes").text)
    return sum(each["connections"] for each in shown["workers"])


def called(client: Client, scenario: Scenario, service: ServiceProcess) -> Counter[str]:
    """Lets a client call; what it says of its calls, with what is its own fault marked so."""
    command = client.command(service.address, scenario.numbers)
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            ["timeout", str(CLIENT_SECONDS), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env={**os.environ, **client.environment},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if scenario.endless:
            restarted(service, process)
            process.stdin.close()
        written = process.stdout.read()
        process.stdin.close()
        if process.wait() != 0:
            complaints.seek(0)
            why = f"the client ended with {process.returncode}: {complaints.read()[-200:].strip()}"
            return Counter({f"failed: {why}": 1})
    tally = Counter[str]()
    for text, number in client.read(written).items():
        key = re.sub(r"\d+(\.\d+)?", "#", text)
        forgiven = scenario.sent_away and any(fault in key for fault in client.own_faults)
        tally[f"own fault: {key}" if forgiven else key] += number
    return tally


def measured(clients: list[Client], transport: str, redis_url: str) -> Iterator[Result]:
    for kind in ("memory", "age", "workers"):
        scenarios = [s for s in SCENARIOS if s.service == kind and transport in s.transports]
        if not scenarios:
            continue
        with serving(kind, transport, redis_url) as service:
            for client in clients:
                for scenario in scenarios:
                    if not client.knows(scenario.numbers):
                        continue
                    tally = called(client, scenario, service)
                    told(f"{transport}, {scenario.name}, {client.name}: {dict(tally)}")
                    asked = 0 if scenario.endless else client.calls or scenario.numbers["calls"]
                    yield Result(client.name, transport, scenario.name, tally, asked)


def built(chosen: list[str]) -> list[Client]:
    """The clients that can run here; says which cannot, and why."""
    found = []
    for client in CLIENTS:
        if chosen and client.name not in chosen:
            continue
        try:
            client.build()
        except MissingError as missing:
            print(f"{client.name} was not run: {missing}")
        else:
            found.append(client)
    return found


OUTCOMES: dict[str, Callable[[Result], int]] = {
    "calls": lambda result: result.tally.total(),
    **{
        title: lambda result, what=what: result.count(what)  # type: ignore[misc]
        for title, what in {
            "right": "right",
            "cancelled": "cancelled",
            "out of time": "late",
            "refused": "refused",
            "by policy": "policy",
            "its own fault": "own fault",
            "failed": "failed",
            "another's": "wrong",
        }.items()
    },
}


def report(results: list[Result], versions: dict[str, str]) -> None:
    print("\n| client | transport | scenarios |", " | ".join(OUTCOMES), "|")
    print("|---" * (len(OUTCOMES) + 3) + "|")
    for client, version in versions.items():
        for transport in ("h2", "grpcio"):
            own = [each for each in results if (each.client, each.transport) == (client, transport)]
            cells = [f"{sum(map(count, own)):,}" for count in OUTCOMES.values()]
            if own:
                print(f"| {client} {version} | {transport} | {len(own)} |", " | ".join(cells), "|")


def main() -> None:
    names = [client.name for client in CLIENTS]
    if unknown := [name for name in sys.argv[1:] if name not in names]:
        raise SystemExit(f"no client {unknown[0]!r}: choose of {', '.join(names)}")
    clients = built(sys.argv[1:])
    if not clients:
        raise SystemExit("no client can be run here")
    with tempfile.TemporaryDirectory() as place:
        server = RedisServer(Path(place))
        server.start()
        try:
            results = [
                *measured(clients, "h2", server.url),
                *measured(clients, "grpcio", server.url),
            ]
        finally:
            server.kill()
    report(results, {client.name: client.version() for client in clients})
    problems = [problem for result in results for problem in result.problems()]
    if problems:
        raise SystemExit("\n".join(["", "what should not be:", *problems]))
    print("\nEvery call got its own answer.")


if __name__ == "__main__":
    main()
