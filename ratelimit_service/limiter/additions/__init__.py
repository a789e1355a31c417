"""What answers say beside their statuses: headers and metadata, one file each."""

from ratelimit_service.limiter.additions.addition import Addition, DecisionContext, ResponseExtras
from ratelimit_service.limiter.additions.registry import (
    ADDITIONS,
    applicable,
    enabled,
    response_extras,
)

__all__ = [
    "ADDITIONS",
    "Addition",
    "DecisionContext",
    "ResponseExtras",
    "applicable",
    "enabled",
    "response_extras",
]
