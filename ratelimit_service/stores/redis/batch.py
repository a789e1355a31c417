"""What a shard is handed: a batch of requests, and who hears of their outcomes.

What must not live here: connections, and how a request in several shards is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from ratelimit_service.model import Hit, Outcome
from ratelimit_service.stores import NEVER, Outcomes, Wanted, always, wanted_at
from ratelimit_service.stores.keys import slot_of

__all__ = ["Background", "Batch", "Resync", "Retry", "Urgency"]


class Urgency:
    """By when a batch is to be sent and answered; times are by `elapsed_us`. Nobody changes it."""

    __slots__ = ("deadline_us", "priority", "since_us")

    def __init__(self, deadline_us: int, since_us: int = NEVER, priority: int = 0) -> None:
        self.deadline_us = deadline_us
        """From then on nobody waits for an answer.

        With NEVER a batch is held while its server is away, as what is given back must be.
        """
        self.since_us = since_us
        """Since when somebody waits; NEVER if nobody does."""
        self.priority = priority
        """Those of a smaller priority are sent first (`Store.charge`)."""

    def due_us(self, timeout_us: int) -> int:
        """When it has waited for as long as a server may take, or nobody waits any more."""
        return min(self.deadline_us, self.since_us + timeout_us)

    def patience_us(self, timeout_us: int) -> int:
        """If a server took so long by its own time, it is to blame for an answer too late.

        That is as long as it may take. Of a caller who waits for less than that, half is for the
        server.
        """
        wait_us = self.deadline_us - self.since_us
        return (wait_us + 1) // 2 if 0 < wait_us < timeout_us else timeout_us


_NO_DEADLINE: Final = Urgency(NEVER)


class Batch:
    """Requests for one server, from who has them charged to the outcomes of their hits."""

    __slots__ = ("requests", "sent", "urgency", "wanted")

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        urgency: Urgency = _NO_DEADLINE,
        wanted: Wanted = always,
    ) -> None:
        self.requests = list(requests)
        """What is to be charged, each on its own."""
        self.urgency = urgency
        """By when it is to be sent and answered."""
        self.wanted = wanted
        """Whether somebody waits for a request, by its index; asked just before it is sent."""
        self.sent = 0
        """How many requests have been sent, or were not wanted any more."""

    @property
    def finished(self) -> bool:
        """Whether nobody waits for any of it."""
        return False

    def has_answer(self, _index: int) -> bool:
        """Whether a request has an answer, or needs none."""
        return self.finished

    def dropped(self, indexes: Sequence[int]) -> None:
        """These requests were not sent, since they are not wanted."""

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcome | None], at_us: int, within: bool
    ) -> None:
        """Takes the outcomes of these requests' hits from `found`; `at_us` is the server's time.

        `within`: no hit of these is over, and each has an outcome.
        """
        raise NotImplementedError

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """These requests get no answer."""
        raise NotImplementedError

    def divided_by_slot(self, indexes: Sequence[int]) -> Sequence[Batch] | None:
        """These requests once more, each slot of their counters apart; None if that cannot be.

        The server enforces slots, and has counted nothing of these.
        """
        raise NotImplementedError


class Background(Batch):
    """A batch that no caller waits for: what is given back, or told to a server that was away."""

    __slots__ = ("_done",)

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[Outcomes | None], None] = lambda _: None,
        urgency: Urgency = _NO_DEADLINE,
    ) -> None:
        """`done` gets the outcomes of each request, or None if there are none."""
        super().__init__(requests, urgency)
        self._done = done

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcome | None], _at_us: int, _within: bool
    ) -> None:
        """Tells the outcomes."""
        for index in indexes:
            self._done(list(islice(found, len(self.requests[index]))))

    def failed(self, indexes: Sequence[int], _reason: str) -> None:
        """Tells that there are none."""
        for _ in indexes:
            self._done(None)

    def divided_by_slot(self, indexes: Sequence[int]) -> Sequence[Batch] | None:
        """A batch for each slot of each request: nothing of these counts together only."""
        return [
            batch
            for index in indexes
            for batch in _divided(self.requests[index], self._done, self.urgency)
        ]


def _divided(
    hits: Sequence[Hit], done: Callable[[Outcomes | None], None], urgency: Urgency
) -> list[Batch]:
    """A request as a batch for each of its slots; once all of them are told, the request is."""
    slots: dict[int, list[int]] = {}
    for index, hit in enumerate(hits):
        slots.setdefault(slot_of(hit.key), []).append(index)
    outcomes: Outcomes = [None] * len(hits)
    missing = set(slots)

    def slot_done(slot: int, slot_outcomes: Outcomes | None) -> None:
        for index, outcome in zip(slots[slot], slot_outcomes or (), strict=False):
            outcomes[index] = outcome
        missing.remove(slot)
        if not missing:
            done(outcomes)

    return [
        Background([[hits[index] for index in indexes]], partial(slot_done, slot), urgency)
        for slot, indexes in slots.items()
    ]


class Resync(Batch):
    """What was counted while a server was away and is to be told to it, until that is over."""

    __slots__ = ("_missing", "_settled", "expires_us", "uncounted", "weight")

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        weight: int,
        expires_us: int,
        settled: Callable[[Resync], None],
    ) -> None:
        """`settled` is called when every request was told or is in `uncounted`.

        From `expires_us` on, by the server's time, these hits no longer matter. Whoever sends the
        resync sets its urgency: until when the server may count it.
        """
        super().__init__(requests)
        self.weight = weight
        self.expires_us = expires_us
        self.uncounted: list[Sequence[Hit]] = []
        self._missing = len(requests)
        self._settled = settled

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcome | None], _at_us: int, _within: bool
    ) -> None:
        """The server has counted these."""
        for index in indexes:
            for _ in self.requests[index]:
                next(found)
        self._less(len(indexes))

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """The server has not counted these, or has not said so."""
        if reason != "internal":  # a fault of ours would only happen again
            self.uncounted += [self.requests[index] for index in indexes]
        self._less(len(indexes))

    def divided_by_slot(self, _indexes: Sequence[int]) -> Sequence[Batch] | None:
        """What is not told is told later."""
        return None

    def _less(self, count: int) -> None:
        self._missing -= count
        if not self._missing:
            self._settled(self)


class Retry(Batch):
    """Some requests of a batch that are sent once more.

    However often they are sent, these know the batch itself: a chain of hundreds would be too deep
    to tell it anything.
    """

    __slots__ = ("batch", "indexes")

    def __init__(self, batch: Batch, indexes: Sequence[int]) -> None:
        if isinstance(batch, Retry):
            indexes = [batch.indexes[index] for index in indexes]
            batch = batch.batch
        self.batch: Batch = batch
        self.indexes: Sequence[int] = indexes
        wanted = partial(wanted_at, batch.wanted, indexes)
        super().__init__([batch.requests[index] for index in indexes], batch.urgency, wanted)

    @property
    def finished(self) -> bool:
        """As the batch."""
        return self.batch.finished

    def dropped(self, indexes: Sequence[int]) -> None:
        """Tells the batch."""
        self.batch.dropped([self.indexes[index] for index in indexes])

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcome | None], at_us: int, within: bool
    ) -> None:
        """Tells the batch."""
        self.batch.answered([self.indexes[index] for index in indexes], found, at_us, within)

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """Tells the batch."""
        self.batch.failed([self.indexes[index] for index in indexes], reason)

    def divided_by_slot(self, indexes: Sequence[int]) -> Sequence[Batch] | None:
        """Asks the batch."""
        return self.batch.divided_by_slot([self.indexes[index] for index in indexes])
