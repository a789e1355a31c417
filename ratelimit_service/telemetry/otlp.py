"""The program that sends over OTLP (`exporter`), as its parent sees it.

It takes frames of JSON: first its task, then spans and metrics. Nothing waits for it: what it
does not take is lost, and the log says so. What must not live here: what is told, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Final, Self

from ratelimit_service.errors import SettingsError
from ratelimit_service.observability.log_throttle import LogThrottle
from ratelimit_service.processes.pipes import ChildProcess, end, framed, keep_running, start
from ratelimit_service.settings import Settings, split_pairs
from ratelimit_service.telemetry.budget import Budget
from ratelimit_service.text.display import printable

__all__ = ["Otlp", "check_installed"]

log = logging.getLogger(__name__)

_EXPORTER: Final = "ratelimit_service.telemetry.exporter"
_MOST_BYTES: Final = 1 << 22
"""How much may wait until the exporter takes it; what comes then is lost."""

_END_SECONDS: Final = 2.0
"""How long it may take to send what is left."""

_SAY_EVERY_US: Final = 60_000_000


def check_installed(settings: Settings) -> None:
    """Raises SettingsError if something is to be sent, but what sends it is not installed."""
    if not (settings.otel_traces or settings.otel_metrics):
        return
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        flag = "--otel-traces" if settings.otel_traces else "--otel-metrics"
        raise SettingsError(
            f"{flag} needs OpenTelemetry, which is not installed: "
            "pip install 'ratelimit-service[otel]'"
        )


class Otlp:
    """What sends. It runs from `start` to `stop`, if the settings ask for it."""

    def __init__(self, settings: Settings) -> None:
        self._wanted = settings.otel_traces or settings.otel_metrics
        self._task = {
            "protocol": settings.otel_protocol,
            "resource": split_pairs(settings.otel_resource),
            "metrics": settings.otel_metrics,
        }
        endpoint = settings.otel_endpoint
        self._environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} if endpoint else {}
        self._budget = Budget(settings.otel_spans_per_second)
        self._pipe: asyncio.WriteTransport | None = None
        self._process: ChildProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self._lost = 0
        self._saying = LogThrottle(_SAY_EVERY_US)

    def send_spans(self, spans: bytes) -> None:
        """Sends a list of spans, in JSON; of those that are too many in this second none."""
        found = json.loads(spans)
        if most := self._budget.take(len(found)):
            self._send({"spans": found[:most]})

    def send_metrics(self, metrics: object) -> None:
        """Sends metrics, as `metrics/otlp` makes them."""
        self._send({"metrics": metrics})

    async def start(self) -> None:
        """Starts it, and another one whenever it ends."""
        if self._wanted:
            self._keeping = asyncio.create_task(keep_running(self._once, _tell_pause))

    async def stop(self) -> None:
        """Lets it send what is left, for a moment, and ends it. A second call does nothing."""
        self._stopping = True
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        if self._pipe is not None:
            self._pipe.close()  # it sends what it has been given, and then ends
            await asyncio.wait([keeping], timeout=_END_SECONDS)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """From start to stop."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    def _send(self, said: object) -> None:
        pipe = self._pipe
        if pipe is None or pipe.is_closing() or pipe.get_write_buffer_size() > _MOST_BYTES:
            self._lose()
        else:
            pipe.write(framed(json.dumps(said).encode()))

    def _lose(self) -> None:
        self._lost += 1
        if self._wanted and self._saying.take():
            log.warning(
                "what was to be sent over OTLP is lost, %d pieces until now: the process that "
                "sends it is slow or not there",
                self._lost,
            )

    async def _once(self) -> str | None:
        """Runs it once; says why it ended, or None if that was wanted."""
        try:
            await self._run()
            why = "it ended"
        except OSError as error:
            why = error.strerror or str(error)
        except ValueError as error:  # a line without end
            why = str(error)
        return None if self._stopping else why

    async def _run(self) -> None:
        """Runs it once, until it ends. Raises OSError if it cannot be started."""
        process = await asyncio.to_thread(start, _EXPORTER, subprocess.DEVNULL, self._environment)
        self._process = process
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        try:
            said, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stream), process.stdout
            )
            pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
            pipe.write(framed(json.dumps(self._task).encode()))
            self._pipe = pipe
            if self._stopping:
                pipe.close()
            try:
                while line := await stream.readline():
                    _say(line)
            finally:
                self._pipe = None
                pipe.close()
                said.close()
        finally:
            self._process = None
            await asyncio.shield(asyncio.to_thread(end, process))


def _tell_pause(seconds: float, why: str) -> None:
    log.warning("nothing is sent over OTLP for %.1f s: %s", seconds, why)


def _say(line: bytes) -> None:
    """Writes what the exporter has to say into our log."""
    try:
        said = json.loads(line)
        log.log(said["level"], "OTLP: %s", printable(said["text"]))
    except (ValueError, KeyError, TypeError):
        log.warning("OTLP: %s", printable(line.decode("utf-8", "replace").strip()))
