"""What signals ask of the process that was started; a worker hears SIGTERM only."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

__all__ = ["NOT_FOR_WORKERS", "RELOAD", "RESTART", "Signals", "end_requested", "hold_signals"]

log = logging.getLogger(__name__)

RELOAD, RESTART = signal.SIGHUP, signal.SIGUSR2

NOT_FOR_WORKERS = (signal.SIGINT, RELOAD, RESTART)
"""A terminal or a script sends these to all processes, but only the supervisor acts on them.
Workers start with them held, because one may come before a worker has run its first line."""

_END = {signal.SIGTERM, signal.SIGINT}
_HANDLED = _END | {RELOAD, RESTART}

_ONE_WISH_SECONDS = 0.1
"""Two signals to end within this time are one wish: timeout(1), for example, signals a process and
then its whole group."""

Action = Callable[[], Coroutine[Any, Any, None]]


def hold_signals() -> int:
    """Keeps signals back until `Signals` handles them, also in a new program image.

    Only this thread can hold them back. The system may give one to any other thread, and it would
    be lost with this image. So those are noted. Returns a descriptor for `end_requested`, which the
    next image has to inherit.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    noted, notes = os.pipe()
    os.set_blocking(notes, False)
    signal.set_wakeup_fd(notes, warn_on_full_buffer=False)
    return noted


def end_requested(noted: int) -> bool:
    """Whether a signal to end is among those that were noted; closes the descriptor."""
    with os.fdopen(noted, "rb", buffering=0) as notes:
        os.set_blocking(noted, False)
        return not _END.isdisjoint(notes.read() or b"")


class Signals:
    """SIGTERM and SIGINT end it, a second one at once; SIGHUP reloads, SIGUSR2 restarts."""

    def __init__(
        self, reload: Action, restart: Action, force: Callable[[], None] = lambda: None
    ) -> None:
        """Takes the process's signals over. `force` is called before the process ends at once."""
        self._ended = asyncio.Event()
        self._end_requested_at = 0.0
        self._force = force
        self._tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.end)
        loop.add_signal_handler(signal.SIGINT, self.end)
        loop.add_signal_handler(RELOAD, self._do, "SIGHUP: reading the rules again", reload)
        loop.add_signal_handler(RESTART, self._do, "SIGUSR2: asked to restart", restart)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

    def ended(self) -> Awaitable[object]:
        """Waits until the process is to end."""
        return self._ended.wait()

    async def or_ended(self, other: Coroutine[Any, Any, None]) -> None:
        """Waits for something else, or until the process is to end."""
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(other), loop.create_task(self._wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()

    async def _wait(self) -> None:
        await self._ended.wait()

    @property
    def end_requested(self) -> bool:
        """Whether the process was told to end."""
        return self._ended.is_set()

    def end(self) -> None:
        """Ends the process; when called again a moment later it ends at once."""
        now = asyncio.get_running_loop().time()
        if not self._ended.is_set():
            self._ended.set()
            self._end_requested_at = now
        elif now - self._end_requested_at > _ONE_WISH_SECONDS:
            self._force()
            os._exit(1)

    def _do(self, text: str, action: Action) -> None:
        log.info(text)
        task = asyncio.get_running_loop().create_task(action())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
