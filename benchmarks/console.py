"""What ten open pages of the console cost: the time of all processes, with them and without.

    .venv/bin/python -m benchmarks.console

The service has two workers over Redis. First nothing is asked of it, then some calls come all the
time. The pages are streams of `/events` that are read. The supervisor is the process that serves
them. docs/console.md has the figures.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array

from benchmarks.by_policy import hold
from benchmarks.cpu import cpu_seconds, processes
from benchmarks.load import SHAPES, Caller
from benchmarks.profile import RULES
from benchmarks.run import RATELIMIT, free_port, running

PAGES, SECONDS, TIMES = 10, 20.0, 2
CALLS_A_SECOND = (0, 200)


async def watch(port: int, heard: list[int]) -> None:
    """A page that reads its stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    try:
        while data := await reader.read(65_536):
            heard[0] += len(data)
    finally:
        writer.close()


async def caller_of(port: int) -> Caller:
    calls, latencies = SHAPES["zipf"](), array("d")
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(lambda: Caller(calls, latencies), "127.0.0.1", port)
    return caller


async def call_on(caller: Caller, calls_a_second: int) -> None:
    while True:
        caller.call([time.perf_counter()] * (calls_a_second // 20))
        await asyncio.sleep(0.05)


async def used(pids: list[int]) -> tuple[float, float]:
    """The shares of a core that these processes use, and the first one alone."""
    began, before = time.perf_counter(), [cpu_seconds(pid) for pid in pids]
    await asyncio.sleep(SECONDS)
    spent = [cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
    passed = time.perf_counter() - began
    return 100 * sum(spent) / passed, 100 * spent[0] / passed


async def measure(pid: int, grpc: int, admin: int) -> None:
    print("| calls a second | pages | % of a core | the supervisor | kB a second to a page |")
    print("|---|---|---|---|---|")
    for calls in CALLS_A_SECOND:
        caller = await caller_of(grpc)
        calling = asyncio.create_task(call_on(caller, calls))
        await asyncio.sleep(2)
        pids = processes(pid)
        for _ in range(TIMES):
            every, first = await used(pids)
            print(f"| {calls} | 0 | {every:.2f} | {first:.2f} | |", flush=True)
            heard = [0]
            pages = [asyncio.create_task(watch(admin, heard)) for _ in range(PAGES)]
            await asyncio.sleep(2)
            before = heard[0]
            every, first = await used(pids)
            sent = (heard[0] - before) / PAGES / SECONDS / 1_000
            print(f"| {calls} | {PAGES} | {every:.2f} | {first:.2f} | {sent:.1f} |", flush=True)
            for page in pages:
                page.cancel()
            await asyncio.gather(*pages, return_exceptions=True)
            await asyncio.sleep(6)  # who watches denials is forgotten only then
        calling.cancel()
        hold(f"console.py: {calls} calls a second", caller.ended, caller.by_policy)


def main() -> None:
    grpc, http, admin, redis = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory() as directory:
        store = ["redis-server", "--port", str(redis), "--save", "", "--dir", directory]
        serve = [RATELIMIT, "serve", "--rules", str(RULES), "--log-level", "error"]
        serve += ["--grpc", f"127.0.0.1:{grpc}", "--http", f"127.0.0.1:{http}", "--workers", "2"]
        serve += ["--admin", f"127.0.0.1:{admin}", "--store", f"redis://127.0.0.1:{redis}/0"]
        with running("0,1", store, redis), running("0,1", serve, grpc) as service:
            asyncio.run(measure(service.pid, grpc, admin))


if __name__ == "__main__":
    main()
