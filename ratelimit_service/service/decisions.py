"""The log of decisions, at level debug: what was asked, and what was answered.

Only so many lines a second, since a log that is slower than the service would hold it up.
Callers choose what stands in a request, so their text is escaped and cut.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence

from ratelimit_service import wire
from ratelimit_service.errors import BadRequestError
from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.model import SECOND_US, Decision, Descriptor, Status, whole_seconds
from ratelimit_service.model.refusal import Answer

__all__ = ["LINES_A_SECOND", "DecisionLog"]

log = logging.getLogger(__name__)

LINES_A_SECOND = 100
_MOST_CHARACTERS = 100
"""Of one text of a caller's."""

_MOST_DESCRIPTORS = 20


class DecisionLog:
    """Writes a line for each decision, as long as there are few."""

    def __init__(self, known: Callable[[str], bool], clock: Clock = elapsed_us) -> None:
        """`known` says whether there are rules for a domain."""
        self._known = known
        self._clock = clock
        self._second_us = 0
        self._written = self._left_out = 0

    @classmethod
    def if_wanted(cls, known: Callable[[str], bool]) -> DecisionLog | None:
        """One if the log's level is debug, else None: then decisions cost nothing here."""
        return cls(known) if log.isEnabledFor(logging.DEBUG) else None

    def write(self, bodies: Sequence[bytes], answers: Sequence[Answer]) -> None:
        """Writes the answers to these requests down."""
        now = self._clock()
        if now - self._second_us >= SECOND_US:
            if self._left_out:
                log.debug("%d more decisions were not written", self._left_out)
            self._second_us, self._written, self._left_out = now, 0, 0
        for body, answer in zip(bodies, answers, strict=True):
            if self._written < LINES_A_SECOND:
                self._written += 1
                line, fields = _line(body, answer, self._known)
                log.debug("%s", line, extra={"fields": fields})
            else:
                self._left_out += 1


def _line(
    body: bytes, answer: Answer, known: Callable[[str], bool]
) -> tuple[str, dict[str, object]]:
    """A decision in words, and as fields."""
    descriptors: Sequence[Descriptor] = ()
    fields: dict[str, object] = {}
    why = _NO_RULE
    try:
        request = wire.decode_request(body)
    except BadRequestError:
        subject = f"a request of {len(body)} bytes that cannot be read"
    else:
        subject, descriptors = _text(request.domain), request.descriptors
        fields["domain"] = subject
        if not known(request.domain):
            why = "no rules for this domain"
    if not isinstance(answer, bytes):
        fields |= {"code": answer.code.name, "reason": _text(answer.message)}
        return f"refused, {answer.code.name}: {subject}: {_text(answer.message)}", fields
    decision = wire.decode_decision(answer)
    policies, overrides = _listed(decision, "by_policy"), _listed(decision, "by_override")
    reasons = {_index(each): f"failure policy {each['policy']}" for each in policies}
    reasons |= {_index(each): f"{each['kind']} {each['id']}" for each in overrides}
    described = [
        _described(*pair, reasons.get(index, why))
        for index, pair in enumerate(zip(descriptors, decision.statuses, strict=True))
        if index < _MOST_DESCRIPTORS
    ]
    fields |= {"code": decision.code.name, "descriptors": described}
    by = ", by failure policy" if policies else ""
    if overrides:
        by += ", by " + ", ".join(f"{each['kind']} {each['id']}" for each in overrides)
    more = len(descriptors) - _MOST_DESCRIPTORS
    rest = [f"and {more} more"] if more > 0 else []
    return f"decided {decision.code.name}{by}: {subject}: {'; '.join([*described, *rest])}", fields


_NO_RULE = "no rule matches, or another one replaces it"


def _listed(decision: Decision, name: str) -> list[Mapping[str, object]]:
    """What an answer's metadata list under a name, each with its descriptor's place."""
    listed = (decision.metadata or {}).get(name)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _index(listed: Mapping[str, object]) -> int:
    return int(str(listed["descriptor"]).partition(".")[0])


def _described(descriptor: Descriptor, status: Status, why: str) -> str:
    entries = ",".join(f"{_text(key)}={_text(value)}" for key, value in descriptor.entries)
    if status.limit is None or status.reset_us is None:
        how = "unlimited" if status.remaining else f"not counted: {why}"
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
