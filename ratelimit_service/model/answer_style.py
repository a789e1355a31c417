"""How a rule wants its answers to look. What an answer says of the count does not depend on it."""

from __future__ import annotations

import re
from enum import StrEnum
from string import Formatter
from typing import Final, NamedTuple

__all__ = [
    "HEADER_NAME",
    "PLACEHOLDERS",
    "AnswerStyle",
    "Body",
    "HeaderSet",
    "Reset",
    "unknown_placeholder",
]

HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A name of an HTTP header (RFC 9110, section 5.1)."""


class HeaderSet(StrEnum):
    """Which headers tell callers their limits."""

    NONE = "none"
    REFERENCE = "reference"
    """The three of envoyproxy/ratelimit, by the names in the settings."""
    X_RATELIMIT = "x-ratelimit"
    """`X-RateLimit-Limit`, `-Remaining`, `-Reset`, and `Retry-After` where denied."""
    IETF = "ietf"
    """`RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10, and
    `Retry-After` where denied."""


class Reset(StrEnum):
    """What the reset header of a set of three says. Both are whole seconds, rounded up."""

    SECONDS = "seconds"
    """How long it is until then."""
    UNIX = "unix"
    """When that is, as Unix time."""


class Body(StrEnum):
    """What the body of a denial is."""

    NONE = "none"
    TEXT = "text"
    JSON = "json"
    PROBLEM = "problem"
    """Problem details (RFC 9457) of the type `quota-exceeded`."""


PLACEHOLDERS: Final = (
    "limit",
    "unit",
    "window_seconds",
    "retry_after",
    "name",
    "description",
    "link",
)
"""What may stand in braces in a template."""


class AnswerStyle(NamedTuple):
    """What is not said is None or empty; then the settings hold.

    With a `template` the body is what that comes to, and `content_type` is its type.
    """

    headers: HeaderSet | None = None
    body: Body | None = None
    template: str = ""
    content_type: str = ""
    description: str = ""
    link: str = ""
    reset: Reset | None = None
    limit_header: str = ""
    remaining_header: str = ""
    reset_header: str = ""

    def with_defaults(self, defaults: AnswerStyle) -> AnswerStyle:
        """This style; where it says nothing, what `defaults` say."""
        own_body = self.body is not None or self.template
        body = self if own_body else defaults
        return AnswerStyle(
            defaults.headers if self.headers is None else self.headers,
            body.body,
            body.template,
            body.content_type,
            self.description or defaults.description,
            self.link or defaults.link,
            self.reset or defaults.reset,
            self.limit_header or defaults.limit_header,
            self.remaining_header or defaults.remaining_header,
            self.reset_header or defaults.reset_header,
        )


def unknown_placeholder(template: str) -> str | None:
    """The first placeholder of a template that means nothing; None if all do.

    Raises ValueError for braces that do not close.
    """
    for _, name, form, conversion in Formatter().parse(template):
        if name is not None and (name not in PLACEHOLDERS or form or conversion):
            return "{" + name + (f"!{conversion}" if conversion else "") + "}"
    return None
