"""What a request gets: an answer, or a refusal."""

from __future__ import annotations

from typing import NamedTuple

from ratelimit_service.errors import StatusCode

__all__ = ["Answer", "Refusal"]


class Refusal(NamedTuple):
    """An error instead of an answer: the gRPC status and a sentence for the caller."""

    code: StatusCode
    message: str


Answer = bytes | Refusal
"""A serialized RateLimitResponse, or why there is none."""
