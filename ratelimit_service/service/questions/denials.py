"""`denials`: what was denied since this was last asked, for those who watch."""

from __future__ import annotations

from ratelimit_service.eventloop.slices import pause
from ratelimit_service.service.questions.question import About, Deciding, Question

__all__ = ["QUESTION"]


async def _told(deciding: Deciding, _: About) -> object:
    lines = []
    for at_us, record in deciding.tail.take():
        lines.append(deciding.line_of(record, at_us))
        await pause()
    return lines


QUESTION = Question("denials", _told)
