"""Reloads the rules whenever their source says that they may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from ratelimit_service.rules.load import Rules
from ratelimit_service.text.display import printable

__all__ = ["watch", "watched"]

_RETRY_SECONDS = 1.0


async def watch(rules: Rules) -> None:
    """Reloads after every change that the rules' source tells of, until cancelled."""
    while True:
        try:
            async with aclosing(rules.source.changes()) as changes:
                async for fault in changes:
                    rules.watched_by(fault)
                    await rules.reload(keep_vanished=rules.source.keeps_vanished)
        except Exception as error:  # whatever becomes of a source, rules must not freeze
            why = printable(str(error) or type(error).__name__)
            rules.watched_by(f"changes of the rules are not seen at once: {why}")
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
        rules.end()
