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

__all__ = ["WorkerPool"]

log = logging.getLogger(__name__)

_REPORT_SECONDS = 1.0
_DECIDE_SECONDS = 30.0
_ASK_SECONDS = 10.0

_ENDED = "the worker ended before it answered"


class WorkerPool:
    """Workers that can be asked; who starts them fills the list."""

    def __init__(self) -> None:
        self.processes: list[WorkerProcess] = []
        self._collecting: asyncio.Task[None] | None = None
        self._collecting_next: asyncio.Task[None] | None = None
        """The report that workers make now, and the one after it for who has come meanwhile."""

    async def decide(
        self, bodies: Sequence[bytes], *, origins: Sequence[CallOrigin] | None = None
    ) -> list[Answer]:
        """Does what `Service.decide` does, in one of the workers."""
        callers: Sequence[CallOrigin | None] = origins or [None] * len(bodies)
        return [await self._decide(*pair) for pair in zip(bodies, callers, strict=True)]

    async def ask(self, question: bytes) -> bytes:
        """The answer of one worker that is well to a question of the admin listener."""
        able = [
            worker for worker in self.processes if worker.serves and worker.version == __version__
        ]
        if not able:
            return unanswered("no worker serves: see the log", StatusCode.UNAVAILABLE)
        return await self._ask(min(able, key=lambda worker: worker.silent), question)

    async def ask_all(self, question: bytes) -> list[bytes]:
        """The answers of all workers; one that does not answer says so, unless it has ended."""
        able = [
            worker
            for worker in self.processes
            if worker.ready.is_set() and not worker.lost.is_set() and worker.version == __version__
        ]
        answers = await asyncio.gather(*(self._ask(worker, question) for worker in able))
        pairs = zip(able, answers, strict=True)
        return [answer for worker, answer in pairs if not worker.ended.is_set()]

    async def _ask(self, worker: WorkerProcess, question: bytes) -> bytes:
        try:
            answer = await worker.ask(MessageKind.QUESTION, question, _ASK_SECONDS)
        except TimeoutError:
            why = f"worker {worker.number} did not answer within {_ASK_SECONDS:g} s: see the log"
            return unanswered(why, StatusCode.UNAVAILABLE)
        return unanswered(_ENDED, StatusCode.UNAVAILABLE) if answer is None else answer

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
        able = [one for one in self.processes if one.ready.is_set() and one.version == __version__]
        if not all(await asyncio.gather(*(self._report(worker) for worker in able))):
            log.warning("a worker did not say in time what it has counted")

    async def _report(self, worker: WorkerProcess) -> bool:
        """Has a worker report what it has counted; returns whether it did so in time, or ended."""
        try:
            await worker.ask(MessageKind.REPORT, b"", _REPORT_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _decide(self, body: bytes, caller: CallOrigin | None) -> Answer:
        serving = [worker for worker in self.processes if worker.serves]
        if not serving:
            return Refusal(StatusCode.UNAVAILABLE, "no worker serves: see the log")
        worker = min(serving, key=lambda worker: worker.connections.load)
        kind, message = MessageKind.DECIDE, body
        if caller is not None and worker.version == __version__:
            pairs = caller.headers
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
            text = json.dumps([caller.peer, headers]).encode()
            kind = MessageKind.DECIDE_FOR
            message = len(text).to_bytes(4, "big") + text + body
        try:
            answer = await worker.ask(kind, message, _DECIDE_SECONDS)
        except TimeoutError:
            return Refusal(StatusCode.UNAVAILABLE, "the worker did not answer: see the log")
        if answer is None:
            return Refusal(StatusCode.UNAVAILABLE, _ENDED)
        code, content = answer[0], answer[1:]
        return Refusal(StatusCode(code), content.decode()) if code else content
