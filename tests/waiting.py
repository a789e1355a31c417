"""How tests wait within an event loop for what a busy machine does late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["PATIENCE_SECONDS", "until"]

PATIENCE_SECONDS = 120.0
"""How long anything that a test waits for may take on a busy machine."""


async def until(condition: Callable[[], object]) -> None:
    """Returns once a condition holds. Raises TimeoutError if it never does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)
