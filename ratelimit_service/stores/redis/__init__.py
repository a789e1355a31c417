"""Counters in Redis, shared by every process. The only package that knows Redis."""

from ratelimit_service.stores.redis.config import Layout
from ratelimit_service.stores.redis.store import RedisStore

__all__ = ["Layout", "RedisStore"]
