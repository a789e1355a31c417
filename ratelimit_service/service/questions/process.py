"""`process`: which process answers, and what it holds."""

from __future__ import annotations

import os

from ratelimit_service import __version__, compiled
from ratelimit_service.service.questions.question import About, Deciding, Question

__all__ = ["QUESTION"]


async def _told(deciding: Deciding, _: About) -> object:
    counters = deciding.live_counters
    return {
        "pid": os.getpid(),
        "version": __version__,
        "compiled": compiled(),
        "counters": counters() if counters is not None else None,
        "faults": deciding.health.faults,
        "shards": [each._asdict() for each in deciding.shard_states()],
    }


QUESTION = Question("process", _told)
