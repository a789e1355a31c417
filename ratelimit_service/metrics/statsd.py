"""statsd and DogStatsD over UDP, with the names of envoyproxy/ratelimit.

Nothing waits for it: what the socket does not take at once is lost, as UDP is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.metrics.exporter import Push
from ratelimit_service.metrics.reading import Reading
from ratelimit_service.metrics.reference import RESPONSE_TIME, clean, totals
from ratelimit_service.net.names import shared_names
from ratelimit_service.observability.stats import LATENCY_BOUNDS_US
from ratelimit_service.settings import Settings, split_address

__all__ = ["exports"]

log = logging.getLogger(__name__)

_MOST_BYTES = 1_432
"""Of a datagram: what fits into one Ethernet frame on the way."""

_NAME_SECONDS = 1.0
"""How long to wait for the host's address. At the end of the service somebody waits for this."""

_MOST_AT_ONCE = 32
"""Datagrams between two pauses for requests."""


def exports(settings: Settings) -> Iterator[Push]:
    """What is sent, if there is somebody to send it to."""
    if settings.statsd:
        yield _Statsd(settings)


class _Statsd:
    """Sends by how much counters have grown, and how long answers took."""

    def __init__(self, settings: Settings) -> None:
        self.every_us = settings.statsd_interval_us
        self._host, self._port = split_address(settings.statsd)
        tags = [pair.partition(":") for pair in settings.statsd_tags.split(",") if pair]
        if settings.statsd_format == "dogstatsd":
            text = ",".join(f"{clean(key)}:{clean(value)}" for key, _, value in tags)
            self._name_end, self._line_end = "", f"|#{text}" if text else ""
        else:  # where tags are part of the name, as the reference writes them
            self._name_end = "".join(
                f".__{clean(key)}={clean(value)}" for key, _, value in sorted(tags)
            )
            self._line_end = ""
        self._sent: Counter[str] = Counter()
        self._sent_buckets: list[int] = []
        self._failing = False

    async def begin(self, reading: Reading) -> None:
        """What a former program of this process has sent is not sent again."""
        self._sent = await totals(reading)
        self._sent_buckets = list(reading.stats.latency.buckets)

    async def send(self, reading: Reading) -> None:
        """Sends what has grown since the last time; keeps it if the host has no address."""
        now, buckets = await totals(reading), list(reading.stats.latency.buckets)
        names = shared_names()
        try:
            async with asyncio.timeout(_NAME_SECONDS):
                addresses = await names.addresses(self._host, self._port, socket.SOCK_DGRAM)
        except TimeoutError:
            self._fails(OSError("no resolver answers"))
            return
        except OSError as error:
            self._fails(error)
            return
        family, kind, protocol, _, address = addresses[0]
        failed: OSError | None = None
        with socket.socket(family, kind, protocol) as sender:
            sender.setblocking(False)
            async for datagram in self._datagrams(now, buckets):
                try:
                    sender.sendto(datagram, address)
                except OSError as error:  # nobody listens, or there is no room for it just now
                    failed = error
        self._sent, self._sent_buckets = now, buckets
        if failed:
            self._fails(failed)
        else:
            self._failing = False

    def _fails(self, error: OSError) -> None:
        if not self._failing:
            log.warning(
                "numbers for statsd at %s:%d are lost: %s",
                self._host,
                self._port,
                error.strerror or error,
            )
        self._failing = True

    async def _datagrams(self, now: Counter[str], buckets: list[int]) -> AsyncIterator[bytes]:
        """As many lines in each as there is room for."""
        datagram, count = b"", 0
        async for line in slowly(self._lines(now, buckets)):
            if datagram and len(datagram) + 1 + len(line) > _MOST_BYTES:
                yield datagram
                datagram, count = b"", count + 1
                if count % _MOST_AT_ONCE == 0:
                    await asyncio.sleep(0)
            datagram += b"\n" + line if datagram else line
        if datagram:
            yield datagram

    def _lines(self, now: Counter[str], buckets: list[int]) -> Iterator[bytes]:
        for name, number in now.items():
            grown = number - self._sent[name]
            if grown > 0:  # it is less than before if a rule of the same name is gone
                yield self._line(name, f"{grown}|c")
        before = self._sent_buckets or [0] * len(buckets)
        bounds = [*LATENCY_BOUNDS_US, LATENCY_BOUNDS_US[-1]]
        for bound, number, old in zip(bounds, buckets, before, strict=True):
            if grown := number - old:
                # One line stands for many answers that took as long: a rate says how many.
                rate = f"|@{1 / grown:.9f}" if grown > 1 else ""
                yield self._line(RESPONSE_TIME, f"{bound / 1_000:g}|ms{rate}")

    def _line(self, name: str, value: str) -> bytes:
        return f"{name}{self._name_end}:{value}{self._line_end}".encode()
