"""A batch: serialized requests that are decided together, from whoever brings them to the answers.

What must not live here: how they are planned, charged and answered (`service`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from ratelimit_service.model.call_origin import CallOrigin
from ratelimit_service.model.refusal import Answer
from ratelimit_service.service.planned import PlannedRequest
from ratelimit_service.service.tracer import Traced
from ratelimit_service.stores import NEVER

__all__ = ["AwaitedBatch", "Batch", "CallbackBatch", "PartOfBatch"]


class Batch:
    """Whoever brings requests says in a class of its own how they are answered."""

    __slots__ = (
        "bodies",
        "deadline_us",
        "failed",
        "finished",
        "origins",
        "planned",
        "priority",
        "started_us",
        "traced",
    )

    divisible: ClassVar[bool] = False
    """Whether `answer_some` takes answers before there are all."""

    def __init__(
        self,
        bodies: list[bytes],
        deadline_us: int = NEVER,
        priority: int = 0,
        origins: list[CallOrigin] | None = None,
    ) -> None:
        self.bodies = bodies
        self.deadline_us = deadline_us
        """Until when they may be counted, by `clock.elapsed_us` (`counted_until`)."""
        self.priority = priority
        """A store sends requests of a smaller priority first, as `Store.charge` says."""
        self.origins = origins
        """Who has made the calls; None where nobody has looked (`DecisionEvents.wants_origins`)."""
        self.started_us = 0
        """When the service got them, by `clock.elapsed_us`."""
        self.planned: list[PlannedRequest | Answer] = []
        """Their plans, or answers that need none."""
        self.finished = False
        self.failed = False
        """Whether a fault of ours has refused what was to be charged."""
        self.traced: Sequence[Traced] = ()
        """Which of them become spans."""

    def answer(self, answers: list[Answer]) -> None:
        """Takes the answers, in the order of the requests. It is called once."""
        raise NotImplementedError

    def answer_some(self, places: Sequence[int], answers: list[Answer]) -> None:
        """Takes the answers to the requests at these places; each request is answered once."""
        raise NotImplementedError

    def wants(self, index: int) -> bool:  # noqa: ARG002 -- that is for who knows
        """Whether somebody still waits for this answer."""
        return True


class PartOfBatch(Batch):
    """Some requests of a divisible batch, which are decided by themselves."""

    __slots__ = ("_places", "_whole")

    def __init__(self, whole: Batch, places: list[int]) -> None:
        """`whole` is planned, and these are the places of the requests in it."""
        origins = whole.origins
        super().__init__(
            [whole.bodies[place] for place in places],
            whole.deadline_us,
            whole.priority,
            None if origins is None else [origins[place] for place in places],
        )
        self._whole = whole
        self._places = places
        self.started_us = whole.started_us
        self.planned = [whole.planned[place] for place in places]
        if whole.traced:
            at = {place: index for index, place in enumerate(places)}
            self.traced = [
                Traced(at[one.place], one.parent) for one in whole.traced if one.place in at
            ]

    def answer(self, answers: list[Answer]) -> None:
        """See `Batch`."""
        self._whole.answer_some(self._places, answers)

    def wants(self, index: int) -> bool:
        """See `Batch`."""
        return self._whole.wants(self._places[index])


class AwaitedBatch(Batch):
    """Requests whose caller waits for the answers."""

    __slots__ = ("future",)

    def __init__(
        self,
        bodies: list[bytes],
        deadline_us: int,
        origins: list[CallOrigin] | None,
    ) -> None:
        super().__init__(bodies, deadline_us, 0, origins)
        self.future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def answer(self, answers: list[Answer]) -> None:
        """See `Batch`."""
        if not self.future.done():  # it is, if the task that waits for it was cancelled
            self.future.set_result(answers)

    def wants(self, index: int) -> bool:  # noqa: ARG002 -- all or none
        """See `Batch`."""
        return not self.future.done()


class CallbackBatch(Batch):
    """Requests whose answers a function takes."""

    __slots__ = ("_done",)

    def __init__(
        self,
        bodies: list[bytes],
        done: Callable[[list[Answer]], None],
        deadline_us: int = NEVER,
        origins: list[CallOrigin] | None = None,
    ) -> None:
        super().__init__(bodies, deadline_us, 0, origins)
        self._done = done

    def answer(self, answers: list[Answer]) -> None:
        """See `Batch`."""
        self._done(answers)
