"""What the errors of Redis servers, and of proxies before them, mean."""

from __future__ import annotations

from typing import Final

__all__ = ["crosses_slots", "did_nothing", "is_refused", "wants_password", "wants_reconnect"]


def is_refused(error: Exception) -> bool:
    """Whether a proxy does not have a command, or our user may not use it."""
    text = str(error)
    if text.startswith("OOM"):  # it says "not allowed", and means for now
        return False
    return text.startswith("NOPERM") or any(word in text for word in _NEVER)


_NEVER: Final = ("unknown", "unsupported", "not supported", "not allowed", "disabled")
"""How servers and proxies say that they do not have a command."""


def crosses_slots(error: str) -> bool:
    """Whether a command was refused, before it did anything, for keys in several slots.

    Redis says CROSSSLOT; some proxies say that keys must be in the same slot.
    """
    return "CROSSSLOT" in error or "same slot" in error


def wants_password(error: Exception) -> bool:
    """Whether an error is one to a client without a password; the second to a long command."""
    return str(error).startswith("NOAUTH") or "unauthenticated" in str(error)


def wants_reconnect(error: str) -> bool:
    """Whether a new connection helps: to whoever is master now, with a new password."""
    return error.startswith(_WANT_RECONNECT)


def did_nothing(error: str) -> bool:
    """Whether nothing of a script call has been done: it may be sent again."""
    return error.startswith(_NOTHING_DONE)


_WANT_RECONNECT: Final[tuple[str, ...]] = ("READONLY", "NOAUTH", "MASTERDOWN")

_NOTHING_DONE: Final[tuple[str, ...]] = (
    *_WANT_RECONNECT,
    "LOADING",
    "BUSY",
    "CLUSTERDOWN",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
)
