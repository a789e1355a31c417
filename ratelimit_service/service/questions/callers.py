"""`callers`: who was over, near or busy, as this process knows it; and as others have left it.

About `window` (`minute` or `hour`), and `domain` and `rule` where only these are asked for. With
`known`, a list of processes, it is about what all others have left in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.errors import StatusCode
from ratelimit_service.eventloop.slices import pause
from ratelimit_service.service.caller_history import WINDOWS
from ratelimit_service.service.questions.question import About, Deciding, Question, QuestionError

__all__ = ["QUESTION"]

_MOST: Final = 300
"""Callers of each kind that are told, those with the most hits."""


async def _told(deciding: Deciding, about: About) -> object:
    history = deciding.history
    if history is None:
        raise QuestionError(
            "no callers are kept in mind: the service runs with --no-callers", StatusCode.NOT_FOUND
        )
    period = WINDOWS.get(str(about.get("window")))
    if period is None:
        raise QuestionError(f"the window is one of {', '.join(WINDOWS)}")
    known = about.get("known")
    if isinstance(known, Sequence):
        found, processes = await history.elsewhere(period, {str(each) for each in known})
    else:
        found, processes = await history.window(period), {history.id}
    parts = []
    for part in found.told(str(about.get("domain", "")), str(about.get("rule", "")), _MOST):
        parts.append(part)
        await pause()
    return {"processes": sorted(processes), "left_out": found.left_out, "rules": parts}


QUESTION: Final = Question("callers", _told)
