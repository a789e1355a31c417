"""A warning where a limit is passed in its soft part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.model import Header, Limit
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["Soft"]

_WARNING: Final = Header("x-ratelimit-warning", "soft")


class Soft:
    """Warns the caller, and tells the request's destination."""

    needs_request = False

    def wanted(self, settings: Settings) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def speaks_of(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,  # noqa: ARG002
        limits: Sequence[Limit],
    ) -> bool:
        """Of limits with a soft part."""
        return any(limit.soft_ppm for limit in limits)

    def add(self, told: Told, said: Said) -> None:
        """Says nothing of what is counted here alone: a share says nothing of the limit."""
        for limit, _, outcome in told.passed():
            if outcome.remaining < limit.soft and not outcome.local:
                said.response_headers.append(_WARNING)
                said.request_headers.append(_WARNING)
                said.metadata["soft"] = True
                return
