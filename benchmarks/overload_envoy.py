"""An overloaded service as Envoy's clients see it: counted, denied, or let through.

    .venv/bin/python -m benchmarks.overload_envoy [--rates 500 1000 2000 4000] [--seconds 3]

A real Envoy asks the service for each request, waits for 20 ms and lets requests pass if it hears
nothing (`failure_mode_deny: false`). Envoy and its clients share a core, so that they could ask for
no more than one core can count. So the service's core is made slow: another program takes most of
it, half a millisecond at a time. One request of ten is of a caller who is over its limit. Prints
what clients heard at each rate, and what Envoy counted; docs/benchmarks.md tells the
method.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, deque
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

import uvloop

from benchmarks.run import LOAD_CORE, RATELIMIT, SERVER_CORE, free_port, running
from tests.servers.envoy import Envoy, ratelimit_filter, shipped_config

RULES = """
domain: demo
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 100000000}}
  - {key: user, value: greedy, rate_limit: {unit: year, requests_per_unit: 1}}
"""

BURN = """
import time
while True:
    until = time.perf_counter() + 0.0005
    while time.perf_counter() < until: pass
    time.sleep({idle})
"""
"""What takes most of the service's core."""

CONNECTIONS = 256
TICK_SECONDS = 0.001
WARM_SECONDS = 1.0


class Http(asyncio.Protocol):
    """One connection of a client, which makes a request at a time."""

    def __init__(self, idle: deque[Http], heard: Counter[str], took: list[float]) -> None:
        self._idle, self._heard, self._took = idle, heard, took
        self._rest, self._due = b"", 0.0
        self._greedy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._idle.append(self)

    def ask(self, due: float, number: int) -> None:
        self._due, self._greedy = due, number % 10 == 0
        user = b"greedy" if self._greedy else b"u%d" % (number % 1_000)
        self._transport.write(  # type: ignore[attr-defined]  # uvloop's has it
            b"GET / HTTP/1.1\r\nhost: a\r\nx-user: %b\r\n\r\n" % user
        )

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if not found or (length and len(body) < int(length[1])):
            return
        self._rest = b""
        self._took.append(time.perf_counter() - self._due)
        told = "decided" if b"x-ratelimit-limit" in head else "let through"
        status = head[9:12].decode()
        self._heard[f"{'greedy' if self._greedy else 'usual'}, {status}, {told}"] += 1
        self._idle.append(self)


async def ask(port: int, rate: float, seconds: float) -> tuple[Counter[str], list[float]]:
    """Asks so often in a second; returns what was heard, and how long each answer took."""
    loop = asyncio.get_running_loop()
    idle: deque[Http] = deque()
    heard: Counter[str] = Counter()
    took: list[float] = []
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Http(idle, heard, took), "127.0.0.1", port)
    start = due = time.perf_counter()
    number, warm = 0, True
    while (now := time.perf_counter()) < start + WARM_SECONDS + seconds:
        if warm and now > start + WARM_SECONDS:
            warm = False
            heard.clear()
            took.clear()
        while due <= now:
            if idle:
                idle.popleft().ask(due, number)
            else:
                heard["no connection"] += 1
            number += 1
            due += 1 / rate
        await asyncio.sleep(TICK_SECONDS)
    return heard, took


def counters(envoy: Envoy) -> Counter[str]:
    """What Envoy has counted of its rate limit filter."""
    found = re.findall(r"cluster\.backend\.ratelimit\.(\w+): (\d+)", envoy.stats())
    return Counter({name: int(count) for name, count in found})


def refused(http_port: int) -> int:
    """How many calls the service has refused for want of time."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(r'ratelimit_overloaded_calls_total\{answer="refused"\} ([\d.e+]+)', text)
    return int(float(found[1])) if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=(500, 1_000, 2_000, 4_000))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--idle", type=float, default=0.00005, help="Seconds left to the service.")
    chosen = parser.parse_args()
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rules = directory / "rules.yaml"
        rules.write_text(RULES)
        port, http_port = free_port(), free_port()
        words = [RATELIMIT, "serve", "--rules", str(rules), "--log-level", "fatal"]
        words += ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http_port}"]
        stack.enter_context(running(SERVER_CORE, words, port))
        config = shipped_config()
        ratelimit_filter(config)["domain"] = "demo"
        envoy = Envoy(config, directory, {"ratelimit": port})
        envoy.start()
        stack.callback(envoy.kill)
        burn = ["taskset", "-c", SERVER_CORE, sys.executable, "-c", BURN.format(idle=chosen.idle)]
        burner = subprocess.Popen(burn)
        stack.callback(burner.kill)
        with contextlib.suppress(PermissionError):  # it comes before all else, where it may
            os.sched_setscheduler(burner.pid, os.SCHED_RR, os.sched_param(2))
        for rate in chosen.rates:
            before, refused_before = counters(envoy), refused(http_port)
            heard, took = uvloop.run(ask(envoy.port, rate, chosen.seconds))
            after = counters(envoy) - before
            times = [1e3 * each for each in quantiles(took, n=100)]
            print(f"{rate:g} requests a second, for {chosen.seconds:g} s: {dict(heard)}")
            print(f"  with the second before: Envoy counted {dict(after)}")
            print(f"  the service refused {refused(http_port) - refused_before}")
            print(f"  half were answered in {times[49]:.1f} ms, 99 % in {times[98]:.1f} ms")


if __name__ == "__main__":
    main()
