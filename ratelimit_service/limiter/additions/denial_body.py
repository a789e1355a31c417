"""The body of a denial: text, JSON, problem details (RFC 9457), or a rule's own template.

Nothing in it comes from the request: a caller cannot write into an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.limiter.additions.addition import (
    CountedAddition,
    DecisionContext,
    ResponseExtras,
)
from ratelimit_service.limiter.additions.names import policy_name, window_text
from ratelimit_service.limiter.compiled import Kind
from ratelimit_service.model import (
    SECOND_US,
    AnswerStyle,
    Body,
    Code,
    Header,
    Limit,
    whole_seconds,
)
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["DenialBody"]

_NO_STYLE: Final = AnswerStyle()
_BY_SETTING: Final = {str(each): each for each in Body}
_QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def _style_of(settings: Settings, rule: Rule | None) -> AnswerStyle:
    """How a denial by this rule looks: what the rule says, then the settings."""
    own = rule.answer if rule is not None and rule.answer is not None else _NO_STYLE
    return own.with_defaults(AnswerStyle(body=_BY_SETTING[settings.denial_body]))


class _Denied(NamedTuple):
    """What a body can say. Without a count there is no limit, and a wait only for a ban's end."""

    limit: Limit | None
    retry_after: int | None
    style: AnswerStyle
    banned: bool

    @property
    def message(self) -> str:
        """A sentence for people."""
        limit = self.limit
        if limit is not None:
            text = f"The limit is {limit.requests_per_unit} {_how_often(limit)}."
        elif self.banned:
            text = "Requests are denied."
        else:
            return "Requests are denied for a moment."
        return text if self.retry_after is None else f"{text} Try again in {self.retry_after} s."


def _how_often(limit: Limit) -> str:
    if ALGORITHMS[limit.algorithm].leases:
        return "at a time"
    return f"in {window_text(limit)}" if limit.multiplier > 1 else f"in 1 {window_text(limit)}"


class DenialBody(CountedAddition):
    """Says why, when to come back, and what the rule has to say to people."""

    covers_bans = True

    def applies_to(self, settings: Settings, rule: Rule | None, limits: Sequence[Limit]) -> bool:
        """Of what can be denied, where a body is asked for."""
        style = _style_of(settings, rule)
        return bool(limits) and (bool(style.template) or style.body is not Body.NONE)

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Says nothing of a request that passes. The first descriptor that is over speaks."""
        if context.passes:
            return
        for planned, status in zip(context.plans, context.statuses(), strict=True):
            if status.code is Code.OVER_LIMIT:
                style = _style_of(context.settings, planned.declared)
                reset_us = status.reset_us
                wait = None if reset_us is None else whole_seconds(reset_us)
                banned = planned.rule.kind is Kind.BANNED
                content_type, body = _body(_Denied(status.limit, wait, style, banned))
                extras.body = body.encode()
                if content_type and body:
                    extras.response_headers.append(Header("content-type", content_type))
                return


def _body(denied: _Denied) -> tuple[str, str]:
    """A content type and a body. Envoy's own type is text/plain."""
    style = denied.style
    if style.template:
        return style.content_type, style.template.format_map(_placeholders(denied))
    if style.body is Body.JSON:
        return "application/json", _json(denied)
    if style.body is Body.PROBLEM:
        return "application/problem+json", _problem(denied)
    if style.body is Body.TEXT:
        return "", _text(denied)
    return "", ""


def _placeholders(denied: _Denied) -> Mapping[str, str]:
    limit = denied.limit
    return {
        "limit": str(limit.requests_per_unit) if limit else "",
        "unit": window_text(limit) if limit else "",
        "window_seconds": str(limit.window_us // SECOND_US) if limit else "",
        "retry_after": "" if denied.retry_after is None else str(denied.retry_after),
        "name": policy_name(limit) if limit else "",
        "description": denied.style.description,
        "link": denied.style.link,
    }


def _text(denied: _Denied) -> str:
    parts = (denied.style.description, denied.message, denied.style.link)
    return " ".join(part for part in parts if part)


def _json(denied: _Denied) -> str:
    fields: dict[str, object] = {"error": "rate_limited", "message": denied.message}
    if denied.limit is not None:
        fields["policy"] = policy_name(denied.limit)
        fields["limit"] = denied.limit.requests_per_unit
    return json.dumps(fields | _wait(denied) | _for_people(denied))


def _problem(denied: _Denied) -> str:
    fields: dict[str, object] = {
        "type": _QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "detail": denied.message,
    }
    if denied.limit is not None:
        fields["violated-policies"] = [policy_name(denied.limit)]
    return json.dumps(fields | _wait(denied) | _for_people(denied))


def _wait(denied: _Denied) -> dict[str, object]:
    return {} if denied.retry_after is None else {"retry_after": denied.retry_after}


def _for_people(denied: _Denied) -> dict[str, object]:
    style = denied.style
    return {
        key: text
        for key, text in (("description", style.description), ("link", style.link))
        if text
    }
