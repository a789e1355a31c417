"""Asks Sentinel where the master is: before each connection, and from time to time."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ratelimit_service.errors import StoreError
from ratelimit_service.net.names import shared_names
from ratelimit_service.stores.redis.address import Address, Sentinels, without
from ratelimit_service.text.display import reason

if TYPE_CHECKING:
    from redis.asyncio.sentinel import Sentinel

__all__ = ["find", "moved"]

_ASK_SECONDS = 0.3
"""How long one Sentinel may take before the next is asked."""

_LOOK_SECONDS = 0.5

_CLIENT = re.compile(r"<redis\.asyncio\.client\.Redis\(.*?\)>\)>\)> - ")
"""How redis-py names a Sentinel in an error: with all settings of the connection."""


async def find(endpoint: Address | Sentinels) -> Address:
    """The address to connect to now. Raises StoreError if no Sentinel knows one."""
    if isinstance(endpoint, Address):
        return endpoint
    async with _asking(endpoint, await _known(endpoint)) as sentinel:
        return await _master(sentinel, endpoint)


async def moved(sentinels: Sentinels, address: Address) -> None:
    """Returns once the master has another address.

    The old master may serve for ten more seconds before Sentinel makes it a replica. What it counts
    until then is lost, so its connection should be left at once.
    """
    async with _asking(sentinels, sentinels.endpoints) as sentinel:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with contextlib.suppress(StoreError):  # a Sentinel that cannot be reached says nothing
                if await _master(sentinel, sentinels) != address:
                    return


@asynccontextmanager
async def _asking(
    sentinels: Sentinels, endpoints: Sequence[tuple[str, int]]
) -> AsyncIterator[Sentinel]:
    from redis.asyncio.retry import Retry  # noqa: PLC0415 -- six megabytes: only who needs it
    from redis.asyncio.sentinel import Sentinel  # noqa: PLC0415 -- as above
    from redis.backoff import NoBackoff  # noqa: PLC0415 -- as above

    # Each is tried once, so that there is time to ask the next. Our caller tries all of them again.
    options: dict[str, object] = {"retry": Retry(NoBackoff(), 0)}
    if tls := sentinels.master.tls:
        options |= {"ssl": True, "ssl_check_hostname": tls.check_hostname}
        files = {"ssl_ca_certs": tls.ca, "ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
        options |= {name: path for name, path in files.items() if path}
    user, password = sentinels.login.read()
    options |= {"password": password} if password else {}
    options |= {"username": user} if user else {}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        list(endpoints),
        sentinel_kwargs={
            "socket_timeout": _ASK_SECONDS,
            "socket_connect_timeout": _ASK_SECONDS,
            **options,
        },
    )
    try:
        yield sentinel
    finally:
        for client in sentinel.sentinels:
            await client.aclose()


async def _known(sentinels: Sentinels) -> list[tuple[str, int]]:
    """The Sentinels whose names have addresses. Raises StoreError if none has.

    redis-py has the event loop look names up, which has few threads for that (`names`).
    """

    async def known(host: str, port: int) -> str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await shared_names().addresses(host, port)
        except TimeoutError:
            return f"{host}: no resolver answers"
        except OSError as error:
            return f"{host}: {reason(error)}"
        return ""

    faults = await asyncio.gather(*(known(*endpoint) for endpoint in sentinels.endpoints))
    pairs = zip(sentinels.endpoints, faults, strict=True)
    if reachable := [endpoint for endpoint, fault in pairs if not fault]:
        return reachable
    raise StoreError(f"no address for {sentinels}: {faults[0]}")


async def _master(sentinel: Sentinel, sentinels: Sentinels) -> Address:
    from redis.exceptions import RedisError  # noqa: PLC0415 -- as above

    try:
        host, port = await sentinel.discover_master(sentinels.name)
    except (RedisError, OSError) as error:
        text = without(sentinels.login.read()[1], _CLIENT.sub("", str(error)))
        raise StoreError(f"no address for {sentinels}: {text}") from error
    return replace(sentinels.master, host=host, port=int(port))
