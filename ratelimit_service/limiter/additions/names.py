"""How answers call a limit. No callers' values are in it."""

from __future__ import annotations

from ratelimit_service.model import Limit

__all__ = ["policy_name", "window_text"]


def window_text(limit: Limit) -> str:
    """A limit's window in words: `minute`, `5 minutes`."""
    unit = limit.unit.name.lower()
    return unit if limit.multiplier == 1 else f"{limit.multiplier} {unit}s"


def policy_name(limit: Limit) -> str:
    """The limit's name, which has no quotes (`rules.limits`); without one it says its window."""
    return limit.name or f"per-{window_text(limit).replace(' ', '-')}"
