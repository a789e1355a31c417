"""Reloads the rules when their files change. What a load does is `load`'s business."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from watchfiles import awatch

from ratelimit_service.rules.load import Rules
from ratelimit_service.text import printable

__all__ = ["watch", "watched"]

_LOOK_MS = 5_000
"""The longest time until a change is seen that the system does not tell of.

That happens on network file systems, and when a link above the watched directory is turned.
A look compares bytes; nothing is parsed that has not changed.
"""

_RETRY_SECONDS = 1.0


async def watch(rules: Rules) -> None:
    """Reloads after every change under the rules' path, until cancelled.

    Sees edits, files that are replaced, added or removed, and the turned link of a Kubernetes
    ConfigMap; bursts of changes become one reload.
    """
    while True:
        target = rules.path.parent if rules.path.is_file() else rules.path
        try:
            async for _ in awatch(
                target, watch_filter=None, rust_timeout=_LOOK_MS, yield_on_timeout=True
            ):
                rules.watched_by("")
                await rules.reload(keep_vanished=True)
        except FileNotFoundError:
            await rules.reload(keep_vanished=True)
        except Exception as error:  # the system's means can end in many ways; rules must not freeze
            rules.watched_by(
                f"the system does not tell of changed rules, looking every {_LOOK_MS // 1_000} s: "
                f"{printable(str(error) or type(error).__name__)}"
            )
            await rules.reload(keep_vanished=True)
            await asyncio.sleep(_LOOK_MS / 1_000 - _RETRY_SECONDS)
        await asyncio.sleep(_RETRY_SECONDS)


@asynccontextmanager
async def watched(rules: Rules) -> AsyncIterator[None]:
    """Reloads changed rules for as long as the context lasts."""
    task = asyncio.create_task(watch(rules))
    await asyncio.sleep(0)  # its first step sets the watch up: no change after this is missed
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
