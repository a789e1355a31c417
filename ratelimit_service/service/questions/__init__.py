"""What the processes that decide can be asked: see `question` for how to add one."""

from ratelimit_service.service.questions.asking import answered, asked, told, unanswered
from ratelimit_service.service.questions.question import (
    About,
    Deciding,
    Question,
    QuestionError,
    no_domain,
)

__all__ = [
    "About",
    "Deciding",
    "Question",
    "QuestionError",
    "answered",
    "asked",
    "no_domain",
    "told",
    "unanswered",
]
