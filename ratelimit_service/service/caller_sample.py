"""Which requests of a batch are looked at for the callers of their rules.

What must not live here: what is known of callers (`limiter.callers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter import TopCallers, tally_sample
from ratelimit_service.model.refusal import Answer
from ratelimit_service.service.batch import Batch
from ratelimit_service.service.faults import Faults
from ratelimit_service.service.planned import PlannedRequest
from ratelimit_service.stores import Settled

__all__ = ["note_callers"]


def note_callers(
    batch: Batch,
    settled: Sequence[Settled],
    answers: Sequence[Answer],
    callers: TopCallers,
    faults: Faults,
) -> None:
    """Keeps those of a batch that are of the sample, and says who has no name yet.

    Nothing is `settled` if callers have heard of each outcome already. It raises nothing.
    """
    try:
        index = len(batch.bodies) + callers.until
        while index < len(batch.bodies):
            planned = batch.planned[index]
            plans = planned.plans if isinstance(planned, PlannedRequest) else ()
            tallied = settled and isinstance(answers[index], bytes)
            outcomes = settled[index].outcomes if tallied else ()
            if callers.keep(batch.bodies[index], plans, outcomes):
                tally_sample(callers)
            index += callers.step(len(plans))
        callers.until = index - len(batch.bodies)
        if callers.unnamed:
            for index, planned in enumerate(batch.planned):
                if isinstance(planned, PlannedRequest):
                    callers.name(batch.bodies[index], planned.plans)
            callers.unnamed.clear()
    except Exception as error:
        callers.until = 0
        callers.sample.clear()
        callers.unnamed.clear()
        faults.note("callers could not be noted", error)
