"""What answers say beside their statuses: headers and metadata, one file each."""

from ratelimit_service.limiter.additions.addition import Addition, Said, Told
from ratelimit_service.limiter.additions.registry import ADDITIONS, say, speaking, wanted

__all__ = ["ADDITIONS", "Addition", "Said", "Told", "say", "speaking", "wanted"]
