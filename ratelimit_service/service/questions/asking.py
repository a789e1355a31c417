"""Questions on their way: put into bytes by who asks, answered, and read again.

What is asked crosses between processes of two versions only as JSON.
"""

from __future__ import annotations

import json

from ratelimit_service.errors import RateLimitError, StatusCode, StoreError
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.service.questions.question import About, Deciding, QuestionError
from ratelimit_service.service.questions.registry import QUESTIONS

__all__ = ["answered", "asked", "told", "unanswered"]

_bugs = Bugs()


def asked(name: str, about: About) -> bytes:
    """A question as `answered` takes it."""
    return json.dumps({"question": name, "about": about}).encode()


async def answered(deciding: Deciding, question: bytes) -> bytes:
    """The answer, as `told` reads it; raises nothing."""
    try:
        said = json.loads(question)
        known = QUESTIONS.get(said["question"])
        if known is None:
            return unanswered(f"nobody here answers {said['question']!r}", StatusCode.UNIMPLEMENTED)
        answer = await known.answer(deciding, said["about"])
        return json.dumps({"answer": answer}).encode()
    except QuestionError as error:
        return unanswered(str(error), error.code)
    except StoreError as error:
        return unanswered(str(error), StatusCode.UNAVAILABLE)
    except RateLimitError as error:
        return unanswered(str(error), StatusCode.INVALID_ARGUMENT)
    except Exception as error:
        _bugs.note("a question of the admin listener could not be answered", error)
        return unanswered("a fault of the service: see its log", StatusCode.INTERNAL)


def unanswered(why: str, code: StatusCode) -> bytes:
    """An answer that says why there is none."""
    return json.dumps({"error": why, "code": int(code)}).encode()


def told(answer: bytes) -> object:
    """What was answered. Raises QuestionError if it says why there is no answer."""
    said = json.loads(answer)
    if "error" in said:
        raise QuestionError(said["error"], StatusCode(said["code"]))
    found: object = said["answer"]
    return found
