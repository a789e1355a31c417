"""Calls of one turn of the loop that are decided together, whoever's connection they came on.

Many connections bring few calls each, and many small batches cost several times what a large one
does. What must not live here: which calls are counted, and when (`calls`, `overload`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from ratelimit_service.clock import elapsed_us
from ratelimit_service.service import NEVER, Answer, CallOrigin, Service
from ratelimit_service.transport.h2.connection import Calls
from ratelimit_service.transport.h2.protocol import Http2Protocol

__all__ = ["Gathered", "Pending"]


class Pending:
    """The batches that wait for the store, in the order in which they were handed to it."""

    def __init__(self) -> None:
        self._since_us: dict[Gathered, int] = {}

    def oldest_us(self, now_us: int) -> int:
        """For how long the oldest of them has waited; 0 if there is none."""
        for since_us in self._since_us.values():
            return now_us - since_us
        return 0

    def begin(self, gathered: Gathered) -> None:
        """Notes that a batch is handed to the store."""
        self._since_us[gathered] = elapsed_us()

    def end(self, gathered: Gathered) -> None:
        """Notes that a batch is answered."""
        self._since_us.pop(gathered, None)


class Gathered:
    """A batch of calls whose callers wait about equally long, in the order of their handling."""

    __slots__ = ("_deadline_us", "_messages", "_origins", "_parts", "_pending", "_starts", "_then")

    def __init__(self, pending: Pending, then: Callable[[], None] | None = None) -> None:
        """`then` is called when all is answered."""
        self._pending = pending
        self._then = then
        self._deadline_us = NEVER
        self._parts: list[tuple[Http2Protocol, list[int]]] = []
        """The connections of the calls, each with its streams, in the order of the messages."""
        self._starts: list[int] = []
        """The place of each part's first message."""
        self._messages: list[bytes] = []
        self._origins: list[CallOrigin] | None = None

    def add(self, protocol: Http2Protocol, calls: Calls, deadline_us: int) -> None:
        """Adds calls of a connection. The earliest deadline holds for the whole batch.

        Either all calls of a batch have `origins`, or none has.
        """
        self._deadline_us = min(self._deadline_us, deadline_us)
        self._starts.append(len(self._messages))
        self._parts.append((protocol, calls.stream_ids))
        self._messages += calls.messages
        if calls.origins is not None:
            self._origins = (self._origins or []) + calls.origins

    def submit(self, service: Service) -> None:
        """Has the calls decided; each is answered on its own connection."""
        self._pending.begin(self)
        try:
            service.submit(
                self._messages,
                partial(_decided, service, self),
                partial(_wanted, self),
                self._deadline_us,
                self._origins,
            )
        except Exception as error:  # `submit` raises nothing, unless there is a fault in itself
            self.answer(service, [service.bug(error) for _ in self._messages])

    def wants(self, place: int) -> bool:
        """Whether the caller of a call still waits for its answer."""
        part = bisect_right(self._starts, place) - 1
        protocol, stream_ids = self._parts[part]
        return protocol.connection.is_open(stream_ids[place - self._starts[part]])

    def answer(self, service: Service, answers: Sequence[Answer]) -> None:
        """Answers all calls."""
        self._pending.end(self)
        place = 0
        for protocol, stream_ids in self._parts:
            connection = protocol.connection
            for stream_id in stream_ids:
                answer = answers[place]
                place += 1
                try:
                    if isinstance(answer, bytes):
                        connection.answer(stream_id, answer)
                    else:
                        connection.finish(stream_id, answer.code, answer.message)
                except Exception as error:
                    refusal = service.bug(error)
                    connection.finish(stream_id, refusal.code, refusal.message)
            protocol.flush_soon()
        if self._then is not None:
            self._then()


# No closures: compiled, each would be a cycle, and the collector would have to find them.


def _wanted(gathered: Gathered, place: int) -> bool:
    return gathered.wants(place)


def _decided(service: Service, gathered: Gathered, answers: list[Answer]) -> None:
    gathered.answer(service, answers)
