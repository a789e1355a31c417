"""Where a master is that may move: asked of Sentinel, each time before connecting."""

from __future__ import annotations

from dataclasses import replace

from redis.asyncio.sentinel import Sentinel
from redis.exceptions import RedisError

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.redis.address import Address, Sentinels

__all__ = ["find"]

_ASK_SECONDS = 0.3
"""How long one of them may take before the next is asked."""


async def find(place: Address | Sentinels) -> Address:
    """The address to connect to now. Raises StoreError if no Sentinel knows one."""
    if isinstance(place, Address):
        return place
    options: dict[str, object] = {}
    if tls := place.master.tls:
        options["ssl"] = True
        files = {"ssl_ca_certs": tls.ca, "ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
        options |= {name: path for name, path in files.items() if path}
    if password := place.login.read():
        options["password"] = password
    if place.login.username:
        options["username"] = place.login.username
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        list(place.places),
        sentinel_kwargs={
            "socket_timeout": _ASK_SECONDS,
            "socket_connect_timeout": _ASK_SECONDS,
            **options,
        },
    )
    try:
        host, port = await sentinel.discover_master(place.name)
    except (RedisError, OSError) as error:
        raise StoreError(f"no address for {place}: {error}") from error
    finally:
        for client in sentinel.sentinels:
            await client.aclose()
    return replace(place.master, host=host, port=int(port))
