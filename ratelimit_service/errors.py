"""The errors this package raises on purpose.

Every message is written for the person who reads it: what is wrong, where, what is
allowed and what to do next. Foreign exceptions are translated into these at the one
package that may import the foreign library. Nothing here logs, exits or formats output.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "BadRequestError",
    "OverrideError",
    "PolicyError",
    "RateLimitError",
    "RulesError",
    "SettingsError",
    "StatusCode",
    "StoreError",
    "TransportError",
]


class StatusCode(IntEnum):
    """The gRPC status codes this service answers with (grpc/doc/statuscodes.md)."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RateLimitError(Exception):
    """The root of all errors below; its text may be shown to a user as it is."""


class SettingsError(RateLimitError):
    """A flag or an environment variable has a value that cannot be used."""


class RulesError(RateLimitError):
    """The rules cannot be used as a whole, for example because the path does not exist."""


class StoreError(RateLimitError):
    """A store cannot be reached or refused a command."""


class TransportError(RateLimitError):
    """A port cannot be opened, or a server cannot be reached."""


class BadRequestError(RateLimitError):
    """A caller's request cannot be decided; the text names the field.

    `code` is what goes onto the wire, `reason` the short word under which it is counted.
    """

    def __init__(
        self, reason: str, message: str, code: StatusCode = StatusCode.INVALID_ARGUMENT
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code


class OverrideError(RateLimitError):
    """An override that cannot be read, or cannot be made."""


class PolicyError(RateLimitError):
    """A request was not counted, and the failure policy `error` leaves it to the caller."""
