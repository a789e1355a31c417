"""Calls of one turn of the loop that are decided together, whoever's connection they came on.

Many connections bring few calls each, and many small batches cost several times what a large one
does. Only calls of one priority are put together: whoever has few calls under way comes before
those that have many, also where calls wait for the store. What must not live here: which calls are
counted, and when (`calls`, `overload`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ratelimit_service.grpc.h2.client import Client
from ratelimit_service.grpc.h2.connection import Calls
from ratelimit_service.service import PRIORITIES, Answer, Batch, Service

__all__ = ["CallBatch", "Pending", "priority_of"]

_FEW: Final = 16
"""A connection with fewer undecided calls has priority 0, the first; each doubling is one more."""


def priority_of(undecided: int) -> int:
    """The priority of calls whose connection has so many undecided ones, with these."""
    return min(PRIORITIES - 1, (undecided // _FEW).bit_length()) if undecided >= _FEW else 0


class Pending:
    """The batches that wait for a service's store, by priority, in the order in which they came."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.since_us: list[dict[CallBatch, int]] = [{} for _ in range(PRIORITIES)]
        """When each was handed to the store. A batch that is answered takes itself out."""

    def oldest_us(self, now_us: int, priority: int) -> int:
        """For how long the oldest has waited of those up to this priority; 0 if there is none.

        The others do not stand before a call of this priority.
        """
        oldest_us = now_us
        for each in self.since_us[: priority + 1]:
            for since_us in each.values():
                oldest_us = min(oldest_us, since_us)
                break
        return now_us - oldest_us


class _Part(NamedTuple):
    """The calls of one connection among those that are decided together."""

    client: Client
    stream_ids: list[int]
    start: int
    """The index of its first call."""
    weight: int
    """How many usual calls these are worth."""


class CallBatch(Batch):
    """Calls of one priority whose callers wait about equally long, in order of their handling."""

    __slots__ = ("_answered", "_parts", "_pending", "then")

    divisible = True

    def __init__(
        self,
        pending: Pending,
        priority: int,
        client: Client,
        calls: Calls,
        deadline_us: int,
        weight: int,
    ) -> None:
        """Begins with calls of a connection that are worth so many usual ones."""
        super().__init__(calls.messages, deadline_us, priority, calls.origins)
        self._pending = pending
        self._answered = 0
        """How many calls were answered before the others."""
        self.then: Callable[[], None] | None = None
        """Called when all is decided."""
        self._parts = [_Part(client, calls.stream_ids, 0, weight)]
        client.undecided += weight

    def add(self, client: Client, calls: Calls, deadline_us: int, weight: int) -> None:
        """Adds calls of another read. The earliest deadline holds for all.

        Either all calls of a batch have `origins`, or none has.
        """
        self.deadline_us = min(self.deadline_us, deadline_us)
        self._parts.append(_Part(client, calls.stream_ids, len(self.bodies), weight))
        client.undecided += weight
        self.bodies += calls.messages
        if self.origins is not None and calls.origins is not None:
            self.origins += calls.origins

    def submit(self, now_us: int) -> None:
        """Has the calls decided; each is answered on its own connection.

        `now_us` is the present time by `elapsed_us`. If it raises, which only a fault of ours
        makes it do, `fail` answers them.
        """
        service = self._pending.service
        if service.waits:
            self._pending.since_us[self.priority][self] = now_us
        service.submit(self, now_us)

    def fail(self, error: Exception) -> None:
        """Refuses all calls after a fault of ours."""
        service = self._pending.service
        self.answer([service.bug(error) for _ in self.bodies])

    def wants(self, index: int) -> bool:
        """Whether the caller of a call still waits for its answer."""
        parts = self._parts
        place = bisect_right(parts, index, key=_start) - 1 if len(parts) > 1 else 0
        client, stream_ids, start, _ = parts[place]
        return client.connection.is_open(stream_ids[index - start])

    def answer(self, answers: list[Answer]) -> None:
        """Answers all calls. A fault with one of them costs no other its answer."""
        # First, since others wait for it. A method could fail, and would leave this here for good.
        self._pending.since_us[self.priority].pop(self, None)
        if self.then is not None:
            self._call_then(self.then)
        for client, stream_ids, start, weight in self._parts:
            client.undecided -= weight
            self._answer_on(client, stream_ids, answers, start)

    def answer_some(self, places: Sequence[int], answers: list[Answer]) -> None:
        """See `Batch`. All count as undecided until the last ones are answered."""
        self._answered += len(places)
        over = self._answered == len(self.bodies)
        if over:
            self._pending.since_us[self.priority].pop(self, None)
            if self.then is not None:
                self._call_then(self.then)
        first = 0
        for client, stream_ids, start, weight in self._parts:
            if over:
                client.undecided -= weight
            end = bisect_left(places, start + len(stream_ids), first)
            if first < end:
                its_ids = [stream_ids[place - start] for place in places[first:end]]
                self._answer_on(client, its_ids, answers, first)
            first = end

    def _call_then(self, then: Callable[[], None]) -> None:
        try:
            then()
        except Exception as error:
            self._pending.service.bug(error)
            then()  # else no large call would ever be decided again

    def _answer_on(
        self, client: Client, stream_ids: list[int], answers: list[Answer], start: int
    ) -> None:
        """Answers calls of one connection; `answers[start]` is that of the first."""
        service = self._pending.service
        done = 0
        try:
            done = client.connection.sender.answer_whole(stream_ids, answers, start)
            if done < len(stream_ids):
                answer_each(service, client, stream_ids, answers, start, done)
        except Exception as error:
            service.bug(error)
            answer_each(service, client, stream_ids, answers, start, done)
        try:
            if not client.flushing:
                client.flush_soon()
        except Exception as error:  # nothing more can be said to this client
            client.fail(error)


def _start(part: _Part) -> int:
    return part.start


def answer_each(
    service: Service,
    client: Client,
    stream_ids: list[int],
    answers: list[Answer],
    start: int = 0,
    done: int = 0,
) -> None:
    """Answers calls of one connection one by one, the first of which `done` are answered.

    `answers[start]` is that of the first. A fault with one of them costs no other its answer.
    """
    try:
        for index, stream_id in enumerate(stream_ids[done:], start + done):
            _answer_one(service, client, stream_id, answers[index])
    except Exception as error:  # nothing more can be said to this client
        client.fail(error)


def _answer_one(service: Service, client: Client, stream_id: int, answer: Answer) -> None:
    """Answers a call, if nobody has done so."""
    sender = client.connection.sender
    try:
        if isinstance(answer, bytes):
            sender.answer(stream_id, answer)
        else:
            sender.finish(stream_id, answer.code, answer.message)
    except Exception as error:
        refusal = service.bug(error)
        sender.finish(stream_id, refusal.code, refusal.message)
