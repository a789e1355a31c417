"""Calls of one turn of the loop that are decided together, whoever's connection they came on.

Many connections bring few calls each, and many small batches cost several times what a large one
does. Only calls of one rank are put together: whoever has few calls under way comes before those
that have many, also where calls wait for the store. What must not live here: which calls are
counted, and when (`calls`, `overload`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final

from ratelimit_service.grpc.h2.client import Client
from ratelimit_service.grpc.h2.connection import Calls
from ratelimit_service.service import RANKS, Answer, Service
from ratelimit_service.stores import Wanted

__all__ = ["Gathered", "Pending", "rank_of"]

_FEW: Final = 16
"""A connection with fewer undecided calls is of the lowest rank; each doubling is one rank more."""


def rank_of(undecided: int) -> int:
    """The rank of calls whose connection has so many undecided ones, with these."""
    return min(RANKS - 1, (undecided // _FEW).bit_length()) if undecided >= _FEW else 0


class Pending:
    """The batches that wait for a service's store, by rank, in the order in which they came."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.since_us: list[dict[Gathered, int]] = [{} for _ in range(RANKS)]
        """When each was handed to the store. A batch that is answered takes itself out."""

    def oldest_us(self, now_us: int, rank: int) -> int:
        """For how long the oldest has waited of those up to this rank; 0 if there is none.

        The others do not stand before a call of this rank.
        """
        oldest_us = now_us
        for each in self.since_us[: rank + 1]:
            for since_us in each.values():
                oldest_us = min(oldest_us, since_us)
                break
        return now_us - oldest_us

    def begin(self, gathered: Gathered, now_us: int) -> None:
        """Notes that a batch is handed to the store."""
        self.since_us[gathered.rank][gathered] = now_us


class Gathered:
    """Calls of one rank whose callers wait about equally long, in the order of their handling."""

    __slots__ = (
        "_deadline_us",
        "_messages",
        "_origins",
        "_parts",
        "_pending",
        "_starts",
        "_weights",
        "rank",
        "then",
    )

    def __init__(
        self,
        pending: Pending,
        rank: int,
        client: Client,
        calls: Calls,
        deadline_us: int,
        weight: int,
    ) -> None:
        """Begins with calls of a connection that are worth so many usual ones."""
        self._pending = pending
        self.rank = rank
        self.then: Callable[[], None] | None = None
        """Called when all is decided."""
        self._deadline_us = deadline_us
        self._parts = [(client, calls.stream_ids)]
        """The connections of the calls, each with its streams, in the order of the messages."""
        self._starts = [0]
        """The place of each part's first message."""
        self._weights = [weight]
        """How many usual calls each part is worth."""
        self._messages = calls.messages
        self._origins = calls.origins
        client.undecided += weight

    def add(self, client: Client, calls: Calls, deadline_us: int, weight: int) -> None:
        """Adds calls of another read. The earliest deadline holds for all.

        Either all calls of a batch have `origins`, or none has.
        """
        self._deadline_us = min(self._deadline_us, deadline_us)
        self._starts.append(len(self._messages))
        self._parts.append((client, calls.stream_ids))
        self._weights.append(weight)
        client.undecided += weight
        self._messages += calls.messages
        if self._origins is not None and calls.origins is not None:
            self._origins += calls.origins

    def submit(self, now_us: int) -> None:
        """Has the calls decided; each is answered on its own connection. Raises nothing.

        `now_us` is the present time by `elapsed_us`.
        """
        service = self._pending.service
        try:
            if service.waits:
                self._pending.begin(self, now_us)
            wanted: Wanted = self.wants
            if len(self._parts) == 1:
                client, stream_ids = self._parts[0]
                wanted = partial(client.connection.awaits, stream_ids)
            service.submit(
                self._messages,
                self.answer,
                wanted,
                self._deadline_us,
                self._origins,
                self.rank,
                now_us,
            )
        except Exception as error:  # `submit` raises nothing, unless there is a fault in itself
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Refuses all calls after a fault of ours."""
        service = self._pending.service
        self.answer([service.bug(error) for _ in self._messages])

    def wants(self, place: int) -> bool:
        """Whether the caller of a call still waits for its answer."""
        part = bisect_right(self._starts, place) - 1
        client, stream_ids = self._parts[part]
        return client.connection.is_open(stream_ids[place - self._starts[part]])

    def answer(self, answers: list[Answer]) -> None:
        """Answers all calls. A fault with one of them costs no other its answer."""
        service = self._pending.service
        # First, since others wait for it. A method could fail, and would leave this here for good.
        self._pending.since_us[self.rank].pop(self, None)
        if self.then is not None:
            try:
                self.then()
            except Exception as error:
                service.bug(error)
                self.then()  # else no large call would ever be decided again
        for at, (client, stream_ids) in enumerate(self._parts):
            client.undecided -= self._weights[at]
            start, done = self._starts[at], 0
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
        for place, stream_id in enumerate(stream_ids[done:], start + done):
            _answer_one(service, client, stream_id, answers[place])
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
