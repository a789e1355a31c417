"""Exporters of metrics beside `/metrics`: opens their ports, and runs them on time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from ratelimit_service.errors import TransportError
from ratelimit_service.http import Content, Pages, rules_page
from ratelimit_service.metrics import EXPORTERS, OtlpMetrics, Page, Push, Sources
from ratelimit_service.net import listening
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.runtime.channel import sockets
from ratelimit_service.runtime.signals import log
from ratelimit_service.settings import Settings
from ratelimit_service.telemetry.otlp import Otlp

__all__ = ["Exporting", "check_free"]


def check_free(settings: Settings) -> None:
    """Raises TransportError if a port that is not optional cannot be opened now; opens none."""
    for exporter in EXPORTERS:
        for export in exporter(settings):
            if isinstance(export, Page) and not export.optional:
                listening.check_free(export.address, export.flag.removeprefix("--"))


class Exporting:
    """The exporters that the settings ask for; they run from `start` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        snapshot: Callable[[], Snapshot],
        closed: Counter[str],
        collect: Callable[[], Awaitable[None]],
        otlp: Otlp,
    ) -> None:
        """`collect` fetches the counts of other processes, before metrics are read.

        `closed` counts connections that were closed for their client.
        """
        self._settings = settings
        self._sources = sources
        self._closed = closed
        self._collect = collect
        self._pages: dict[tuple[str, str], dict[str, Content]] = {}
        self._pushes: list[Push] = []
        for exporter in EXPORTERS:
            for export in exporter(settings):
                if isinstance(export, Page):
                    port = self._pages.setdefault((export.flag, export.address), {})
                    port[export.path] = self._content(export)
                else:
                    self._pushes.append(export)
        if settings.otel_metrics:
            self._pushes.append(OtlpMetrics(settings, otlp.send_metrics))
        if settings.debug:
            self._pages["--debug", settings.debug]["/rlconfig"] = rules_page(snapshot)
        self._bugs = Bugs()
        self._ports: list[Pages] = []
        self._open: dict[str, list[socket.socket]] = {}
        """What listens, by address: of the former program until `start`, then our own."""
        self._tasks: list[asyncio.Task[None]] = []

    def inherit(self, former: Mapping[str, Sequence[int]]) -> None:
        """Takes over the ports that a former program of this process has left open."""
        self._open = {address: sockets(descriptors) for address, descriptors in former.items()}

    def leave(self) -> dict[str, list[socket.socket]]:
        """The ports for the next program, by address. They stay open when this one stops."""
        return {address: [port.dup() for port in some] for address, some in self._open.items()}

    async def start(self) -> None:
        """Opens ports and begins to send. The log names a port that cannot be opened any more."""
        inherited, self._open = self._open, {}
        for (flag, address), pages in self._pages.items():
            try:
                opened = inherited.pop(address, None)
                opened = opened or listening.listen(address, flag.removeprefix("--"))
            except TransportError as error:
                log.error("%s", error)
                continue
            port = Pages(pages, self._settings.http_hosts, self._closed)
            self._ports.append(port)
            self._open[address] = opened
            await port.start(opened)
        for each in [each for some in inherited.values() for each in some]:
            each.close()  # nobody asks for this port any more
        for push in self._pushes:
            await push.begin(await self._sources.read())
            self._tasks.append(asyncio.create_task(self._keep_sending(push)))

    async def stop(self) -> None:
        """Sends what is left and closes the ports. A second call does nothing."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            for push in self._pushes:
                try:
                    await push.send(await self._sources.read())
                except Exception as error:  # what else ends must not stop here
                    self._bugs.note("the last numbers could not be sent", error)
        ports, self._ports = self._ports, []
        for port in ports:
            await port.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From start to stop."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    async def _keep_sending(self, push: Push) -> None:
        while True:
            await asyncio.sleep(push.every_us / 1_000_000)
            try:
                await self._collect()
                await push.send(await self._sources.read())
            except Exception as error:  # the next numbers may be sent all the same
                self._bugs.note("numbers could not be sent", error)

    def _content(self, page: Page) -> Content:
        async def parts() -> AsyncIterator[bytes]:
            await self._collect()
            async for part in page.render(await self._sources.read()):
                yield part

        return lambda _accept: (page.content_type, parts())
