"""Addresses of host names, looked up beside the event loop.

The system's own lookup blocks, for half a minute where no resolver answers. Event loops do it in a
few threads that all names share: one that hangs would keep the others waiting, and the end of the
process as well. Here each name that is asked for has a thread of its own, for which nobody waits at
the end. However often a name is asked for meanwhile, it is looked up once. What must not live here:
what is done with an address.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

__all__ = ["Addresses", "Names", "shared_names"]

Addresses = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""

_MOST: Final = 64
"""Names that are looked up at the same time: each is a thread."""

_NUMBERS: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class Names:
    """The lookups of one event loop."""

    def __init__(self, look_up: Callable[..., Addresses] = socket.getaddrinfo) -> None:
        self.loop = asyncio.get_running_loop()
        self._look_up = look_up
        self._under_way: dict[tuple[str, int, int], asyncio.Future[Addresses]] = {}

    async def addresses(self, host: str, port: int, kind: int = socket.SOCK_STREAM) -> Addresses:
        """The addresses for sockets of a kind, those to be tried first before the others.

        Raises OSError if there is none. Waits as long as its caller lets it.
        """
        with suppress(OSError, ValueError):
            return socket.getaddrinfo(host, port, type=kind, flags=_NUMBERS)
        key = host, port, kind
        future = self._under_way.get(key)
        if future is None:
            if len(self._under_way) >= _MOST:
                raise OSError(f"{_MOST} other names are looked up already")
            future = self._under_way[key] = self.loop.create_future()
            threading.Thread(target=self._ask, args=key, name="names", daemon=True).start()
        return await asyncio.shield(future)

    def _ask(self, host: str, port: int, kind: int) -> None:
        """In a thread."""
        answer: Addresses | OSError
        try:
            answer = self._look_up(host, port, type=kind)
        except OSError as error:
            answer = error
        except ValueError:
            answer = OSError(f"{host!r} is no host name")
        with suppress(RuntimeError):  # the loop may have ended
            self.loop.call_soon_threadsafe(self._answered, (host, port, kind), answer)

    def _answered(self, key: tuple[str, int, int], answer: Addresses | OSError) -> None:
        future = self._under_way.pop(key)
        if isinstance(answer, OSError):
            future.set_exception(answer)
            future.exception()  # nobody may wait for it any more
        else:
            future.set_result(answer)


_SHARED: Final[list[Names]] = []


def shared_names() -> Names:
    """The lookups that everything on the running event loop shares."""
    if not _SHARED or _SHARED[0].loop is not asyncio.get_running_loop():
        _SHARED[:] = [Names()]
    return _SHARED[0]
