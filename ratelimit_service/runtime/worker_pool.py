"""What is asked of workers: decisions, questions of the admin listener, and what they have counted.

What must not live here: which workers there are, and who starts and ends them (`workers`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from ratelimit_service import __version__
from ratelimit_service.errors import StatusCode
from ratelimit_service.runtime.channel import MessageKind
from ratelimit_service.runtime.worker_process import WorkerProcess
from ratelimit_service.service import Answer, CallOrigin, Refusal
from ratelimit_service.service.questions import unanswered

__all__ = ["AskedWorkers"]

log = logging.getLogger(__name__)

_REPORT_SECONDS = 1.0
_DECIDE_SECONDS = 30.0
_ASK_SECONDS = 10.0


class AskedWorkers:
    """Workers that can be asked; who starts them fills the list."""

    def __init__(self) -> None:
        self._all: list[WorkerProcess] = []
        self._number = 0
        """Of the last thing that was asked; its answer brings it back."""
        self._collecting: asyncio.Task[None] | None = None
        self._collecting_next: asyncio.Task[None] | None = None
        """The report that workers make now, and the one after it for who has come meanwhile."""

    async def decide(
        self, bodies: Sequence[bytes], *, origins: Sequence[CallOrigin] | None = None
    ) -> list[Answer]:
        """Does what `Service.decide` does, in one of the workers."""
        each: Sequence[CallOrigin | None] = origins or [None] * len(bodies)
        return [await self._decide(*pair) for pair in zip(bodies, each, strict=True)]

    async def ask(self, question: bytes) -> bytes:
        """The answer of one worker that is well to a question of the admin listener."""
        able = [worker for worker in self._all if worker.serves and worker.version == __version__]
        if not able:
            return unanswered("no worker serves: see the log", StatusCode.UNAVAILABLE)
        return await self._ask(min(able, key=lambda worker: worker.silent), question)

    async def ask_all(self, question: bytes) -> list[bytes]:
        """The answers of all workers; one that does not answer says so, unless it has ended."""
        able = [
            worker
            for worker in self._all
            if worker.ready.is_set() and not worker.lost.is_set() and worker.version == __version__
        ]
        answers = await asyncio.gather(*(self._ask(worker, question) for worker in able))
        pairs = zip(able, answers, strict=True)
        return [answer for worker, answer in pairs if not worker.ended.is_set()]

    async def _ask(self, worker: WorkerProcess, question: bytes) -> bytes:
        number = self._next_number()
        told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        worker.questions[number] = told
        worker.send(MessageKind.ASK, number + question)
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await told
        except TimeoutError:
            why = f"worker {worker.number} did not answer within {_ASK_SECONDS:g} s: see the log"
            return unanswered(why, StatusCode.UNAVAILABLE)
        finally:
            worker.questions.pop(number, None)

    async def collect(self) -> None:
        """Has all workers report their counts until now; waits for two seconds at most.

        Whoever asks while workers report shares the next report with all others who do.
        """
        shared = self._collecting_next
        if shared is None:
            shared = asyncio.create_task(self._collect_after(self._collecting))
            self._collecting_next = shared
        await asyncio.shield(shared)

    async def _collect_after(self, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        self._collecting, self._collecting_next = self._collecting_next, None
        await self._collect()
        if self._collecting_next is None:
            self._collecting = None

    async def _collect(self) -> None:
        number = self._next_number()
        reports = []
        for worker in self._all:
            if worker.ready.is_set() and worker.version == __version__:
                reports.append(worker.reports.setdefault(number, asyncio.Event()))
                worker.send(MessageKind.REPORT, number)
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                for report in reports:
                    await report.wait()
        except TimeoutError:
            log.warning("a worker did not say in time what it has counted")
        for worker in self._all:
            worker.reports.pop(number, None)

    async def _decide(self, body: bytes, caller: CallOrigin | None) -> Answer:
        serving = [worker for worker in self._all if worker.serves]
        if not serving:
            return Refusal(StatusCode.UNAVAILABLE, "no worker serves: see the log")
        worker = min(serving, key=lambda worker: worker.load)
        number = self._next_number()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        worker.asked[number] = answer
        if caller is None or worker.version != __version__:
            worker.send(MessageKind.DECIDE, number + body)
        else:
            pairs = caller.headers
            told = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
            text = json.dumps([caller.peer, told]).encode()
            size = len(text).to_bytes(4, "big")
            worker.send(MessageKind.DECIDE_FOR, number + size + text + body)
        try:
            async with asyncio.timeout(_DECIDE_SECONDS):
                return await answer
        except TimeoutError:
            return Refusal(StatusCode.UNAVAILABLE, "the worker did not answer: see the log")
        finally:
            worker.asked.pop(number, None)

    def _next_number(self) -> bytes:
        self._number = (self._number + 1) % (1 << 32)
        return self._number.to_bytes(4, "big")
