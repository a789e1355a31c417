"""All questions, by name: a file each."""

from __future__ import annotations

from typing import Final

from ratelimit_service.service.questions import (
    callers,
    denials,
    importing,
    inspection,
    overrides,
    process,
    queues,
)
from ratelimit_service.service.questions.question import Question

__all__ = ["QUESTIONS"]

QUESTIONS: Final[dict[str, Question]] = {
    each.name: each
    for each in (
        callers.QUESTION,
        denials.QUESTION,
        importing.QUESTION,
        inspection.QUESTION,
        process.QUESTION,
        queues.QUESTION,
        *overrides.QUESTIONS,
    )
}
