"""`denials`: what was denied since this was last asked, for those who watch."""

from __future__ import annotations

from ratelimit_service.eventloop.slices import pause
from ratelimit_service.service.decision_line import Circumstances, line_of
from ratelimit_service.service.questions.question import About, Deciding, Question

__all__ = ["QUESTION"]


async def _told(deciding: Deciding, _: About) -> object:
    store = deciding.settings.store.partition(":")[0]
    lines = []
    for at_us, record in deciding.tail.take():
        shard = deciding.shard_of(record.hit) if record.hit is not None else ""
        caller = record.caller.peer if record.caller is not None else ""
        lines.append(
            line_of(record, at_us, circumstances=Circumstances(caller, "", "", store, shard))
        )
        await pause()
    return lines


QUESTION = Question("denials", _told)
