"""What an exporter is: a page that others fetch, or something that is sent now and then.

Both are made of a reading. Who opens ports, takes readings and keeps time is `runtime/exporting`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ratelimit_service.metrics.reading import Reading
from ratelimit_service.settings import Settings

__all__ = ["Exporter", "Page", "Push"]


@dataclass(frozen=True, slots=True)
class Page:
    """A page on a port of its own, which several pages may share.

    `flag` is that of the setting with the `address`. Where the port cannot be opened, the service
    does not start; it logs that and goes on if the page is `optional`.
    """

    flag: str
    address: str
    path: str
    content_type: str
    render: Callable[[Reading], AsyncIterator[bytes]]
    optional: bool = False


class Push(Protocol):
    """Something that is sent every so often, and once more at the end."""

    @property
    def every_us(self) -> int:
        """The time between two of them."""

    async def begin(self, reading: Reading) -> None:
        """Is given what was counted before the first one: nobody wants to hear that again."""

    async def send(self, reading: Reading) -> None:
        """Sends what has changed. Must not wait otherwise than with `await`, and raises nothing."""


Exporter = Callable[[Settings], Iterable[Page | Push]]
"""What the settings ask for: nothing, where they do not."""
