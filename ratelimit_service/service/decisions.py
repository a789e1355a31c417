"""The log of decisions, at level debug: what was asked, and what was answered.

Only so many lines a second, since a log that is slower than the service would hold it up.
Callers choose what stands in a request, so their text is escaped and cut.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial

from ratelimit_service import wire
from ratelimit_service.clock import Clock, elapsed_us
from ratelimit_service.errors import BadRequestError
from ratelimit_service.model import SECOND_US, Descriptor, Status, whole_seconds
from ratelimit_service.service.refusal import Answer

__all__ = ["LINES_A_SECOND", "DecisionLog"]

log = logging.getLogger(__name__)

LINES_A_SECOND = 100
_MOST_CHARACTERS = 100
"""Of one text of a caller's."""

_MOST_DESCRIPTORS = 20

AnswersDone = Callable[[list[Answer]], None]


class DecisionLog:
    """Writes a line for each decision, as long as there are few."""

    def __init__(self, clock: Clock = elapsed_us) -> None:
        self._clock = clock
        self._second_us = 0
        self._written = self._left_out = 0

    @classmethod
    def if_wanted(cls) -> DecisionLog | None:
        """One if the log's level is debug, else None: then decisions cost nothing here."""
        return cls() if log.isEnabledFor(logging.DEBUG) else None

    def before(self, done: AnswersDone, bodies: Sequence[bytes]) -> AnswersDone:
        """What writes the answers to these requests down, and hands them on to `done`."""
        return partial(self._write, done, bodies)

    def _write(self, done: AnswersDone, bodies: Sequence[bytes], answers: list[Answer]) -> None:
        done(answers)
        now = self._clock()
        if now - self._second_us >= SECOND_US:
            if self._left_out:
                log.debug("%d more decisions were not written", self._left_out)
            self._second_us, self._written, self._left_out = now, 0, 0
        for body, answer in zip(bodies, answers, strict=True):
            if self._written < LINES_A_SECOND:
                self._written += 1
                log.debug("%s", _line(body, answer))
            else:
                self._left_out += 1


def _line(body: bytes, answer: Answer) -> str:
    descriptors: Sequence[Descriptor] = ()
    try:
        request = wire.decode_request(body)
    except BadRequestError:
        asked = f"a request of {len(body)} bytes that cannot be read"
    else:
        asked, descriptors = _text(request.domain), request.descriptors
    if not isinstance(answer, bytes):
        return f"refused, {answer.code.name}: {asked}: {_text(answer.message)}"
    decision = wire.decode_decision(answer)
    pairs = list(zip(descriptors, decision.statuses, strict=True))
    metadata = decision.metadata or {}
    by_policy = ", by failure policy" if "by_policy" in metadata else ""
    if isinstance(overrides := metadata.get("by_override"), list):
        by_policy += ", by " + ", ".join(f"{each['kind']} {each['id']}" for each in overrides)
    told = "; ".join(_told(*pair) for pair in pairs[:_MOST_DESCRIPTORS])
    more = f"; and {len(pairs) - _MOST_DESCRIPTORS} more" if len(pairs) > _MOST_DESCRIPTORS else ""
    return f"decided {decision.code.name}{by_policy}: {asked}: {told}{more}"


def _told(descriptor: Descriptor, status: Status) -> str:
    entries = ",".join(f"{_text(key)}={_text(value)}" for key, value in descriptor.entries)
    if status.limit is None or status.reset_us is None:
        how = "unlimited" if status.remaining else "not counted"
    else:
        remaining = f"{status.remaining} of {status.limit.requests_per_unit} left"
        how = f"{remaining}, resets in {whole_seconds(status.reset_us)} s"
    return f"{entries} {status.code.name}, {how}"


def _text(text: str) -> str:
    """A caller's text: as it is if it is short and plain, else cut, escaped and quoted."""
    if len(text) <= _MOST_CHARACTERS and text.isascii() and text.isprintable():
        return text
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
    return json.dumps(cut)
