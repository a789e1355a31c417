"""One worker's process as the supervisor sees it, where the system is short of something."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratelimit_service.errors import RateLimitError
from ratelimit_service.net.accepting import ConnectionLimiter
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.runtime.channel import MessageKind
from ratelimit_service.runtime.worker_process import WorkerProcess
from ratelimit_service.runtime.workers import Listeners, Totals, Workers
from ratelimit_service.settings import Settings
from tests.runtime.seen import REDIS, stand_in
from tests.waiting import PATIENCE_SECONDS

WHY = "a worker cannot be started: Too many open files"


def one() -> Workers:
    return Workers(
        Settings(store=REDIS),
        1,
        Totals(Stats(), Health(), Rulebook()),
        ConnectionLimiter(),
        Listeners(),
    )


def open_files() -> list[int]:
    return [int(each.name) for each in Path("/proc/self/fd").iterdir()]


@contextmanager
def files(more: int) -> Iterator[None]:
    """Lets this process open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(open_files())
    gaps = [os.dup(0)]
    while gaps[-1] <= highest:
        gaps.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (gaps[-1] + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in gaps:
            os.close(each)


@pytest.mark.parametrize("more", range(4))
async def test_no_more_files(more: int) -> None:
    """Where files are short, a start and a restart say so, and leave none open."""
    before = len(open_files())
    with files(more):
        assert await one().replace() == WHY
        with pytest.raises(RateLimitError, match=WHY):
            await one().start()

    assert len(open_files()) == before


async def test_no_thread_is_free() -> None:
    """The end of a worker is seen while all threads of this process wait for something else."""
    free = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    waiting = loop.run_in_executor(None, free.wait)
    worker = WorkerProcess.spawn(1, beside=False)
    await worker.listen(lambda *_: None)
    os.kill(worker.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker.exited()
    finally:
        free.set()
        await waiting

    assert worker.bury() == "was killed by SIGKILL"


async def test_nothing_is_said_between_two_images() -> None:
    """Once a worker is handed over, no part of a message is sent: the next image says it all."""
    (ours, its), (connections, taken) = socket.socketpair(), socket.socketpair()
    worker = WorkerProcess(1, os.getpid(), ours, connections)
    worker.ready.set()
    workers = one()
    stand_in(workers, worker)
    await worker.listen(lambda *_: None)
    worker.send(MessageKind.TLS, b"before")

    (inherited,) = await workers.hand_over()
    worker.send(MessageKind.RULES, bytes(8 << 20))
    for _ in range(10):
        await asyncio.sleep(0)

    assert inherited["number"] == 1
    its.setblocking(False)
    assert its.recv(1 << 20).endswith(b"before")
    with pytest.raises(BlockingIOError):
        its.recv(1)
    worker.close()
    await asyncio.sleep(0)
    for end in (its, taken):
        end.close()
