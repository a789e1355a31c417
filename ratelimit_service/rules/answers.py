"""The fields of `answer`: from YAML to how a rule wants its answers to look."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

from ratelimit_service.model import (
    HEADER_NAME,
    PLACEHOLDERS,
    AnswerStyle,
    Body,
    HeaderSet,
    Reset,
    unknown_placeholder,
)
from ratelimit_service.rules.fields import Fields
from ratelimit_service.rules.language import ANSWER_KEYS, CONTENT_TYPE, LINK
from ratelimit_service.rules.problem import MAX_TEXT, did_you_mean, listed, quoted, too_long

__all__ = ["read_answer"]

_Word = TypeVar("_Word", bound=StrEnum)


def read_answer(fields: Fields, default: AnswerStyle | None = None) -> AnswerStyle | None:
    """What `answer` among these fields says, over a default; None if neither says anything."""
    if not fields.given("answer"):
        return default
    inside = fields.mapping("answer", ANSWER_KEYS)
    if not inside.readable:
        return default
    style = AnswerStyle(
        headers=_word(inside, "headers", HeaderSet, "none"),
        body=_word(inside, "body", Body, "none"),
        template=_template(inside),
        content_type=_content_type(inside),
        description=_text(inside, "description"),
        link=_link(inside),
        reset=_word(inside, "reset", Reset, "seconds"),
        limit_header=_header(inside, "limit_header"),
        remaining_header=_header(inside, "remaining_header"),
        reset_header=_header(inside, "reset_header"),
    )
    return style.with_defaults(default) if default else style


def _word(fields: Fields, name: str, kind: type[_Word], default: str) -> _Word | None:
    return kind(fields.one_of(name, list(map(str, kind)), default)) if fields.given(name) else None


def _text(fields: Fields, name: str) -> str:
    if not fields.given(name):
        return ""
    text = fields.text(name)
    if len(text) > MAX_TEXT:
        fields.report(name, too_long(name, text, MAX_TEXT), value=name)
        return ""
    return text


def _template(fields: Fields) -> str:
    template = _text(fields, "template")
    try:
        unknown = unknown_placeholder(template)
    except ValueError:
        message = "template has a brace that is not closed: write {{ and }} for braces themselves"
        fields.report("template", message, value="template")
        return ""
    if unknown is not None:
        name = unknown.strip("{}")
        hint = did_you_mean(name, PLACEHOLDERS)
        message = (
            f"template: {quoted(unknown)} means nothing: in braces are allowed "
            f"{listed(PLACEHOLDERS)}{hint}; write {{{{ and }}}} for braces themselves"
        )
        fields.report("template", message, value="template")
        return ""
    if template and fields.given("body"):
        message = "template and body exclude each other: leave one out"
        fields.report("template", message, key="template")
    return template


def _content_type(fields: Fields) -> str:
    content_type = _matching(
        fields, "content_type", CONTENT_TYPE, "one as text/html or application/json; charset=utf-8"
    )
    if content_type and not fields.given("template"):
        message = "content_type is of a template: body says by itself what it is"
        fields.report("content_type", message, key="content_type")
    return content_type


def _link(fields: Fields) -> str:
    allowed = "an address that begins with https:// or http://, without spaces"
    return _matching(fields, "link", LINK, allowed)


def _header(fields: Fields, name: str) -> str:
    return _matching(fields, name, HEADER_NAME, "the name of a header, as X-RateLimit-Reset")


def _matching(fields: Fields, name: str, pattern: re.Pattern[str], allowed: str) -> str:
    """A text of a form; "" if it is not given, or is none, which is reported."""
    if not fields.given(name):
        return ""
    text = fields.raw(name)
    if not pattern.fullmatch(text):
        fields.report(name, f"{name} must be {allowed}", value=name)
        return ""
    return text
