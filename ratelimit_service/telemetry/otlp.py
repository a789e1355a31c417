"""The program that sends over OTLP (`exporter`), as its parent sees it.

It takes frames of JSON: first its task, then spans and metrics. Nothing waits for it: what it
does not take is lost, and the log says so. What must not live here: what is told, and when.
"""

from __future__ import annotations

import json
import logging
import subprocess
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from typing import Final

from ratelimit_service.errors import SettingsError
from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.observability.log_throttle import LogThrottle
from ratelimit_service.processes.pipes import FedProcess, start
from ratelimit_service.settings import Settings, split_pairs
from ratelimit_service.telemetry.budget import Budget
from ratelimit_service.text.display import printable

__all__ = ["Otlp", "check_installed"]

log = logging.getLogger(__name__)

_EXPORTER: Final = "ratelimit_service.telemetry.exporter"
_END_SECONDS: Final = 2.0
"""How long it may take to send what is left."""

_LOG_EVERY_US: Final = 60_000_000


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
    """What sends, if the settings ask for it."""

    def __init__(self, settings: Settings, clock: Clock = elapsed_us) -> None:
        self._wanted = settings.otel_traces or settings.otel_metrics
        task = {
            "protocol": settings.otel_protocol,
            "resource": split_pairs(settings.otel_resource),
            "metrics": settings.otel_metrics,
        }
        endpoint = settings.otel_endpoint
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} if endpoint else {}
        self._process = FedProcess(
            partial(start, _EXPORTER, subprocess.DEVNULL, environment),
            json.dumps(task).encode(),
            _say,
            _log_pause,
            _END_SECONDS,
        )
        self._budget = Budget(settings.otel_spans_per_second, clock)
        self._lost = 0
        self._saying = LogThrottle(_LOG_EVERY_US)

    def send_spans(self, spans: bytes) -> None:
        """Sends a list of spans, in JSON; of those that are too many in this second none."""
        decoded = json.loads(spans)
        if most := self._budget.take(len(decoded)):
            self._send({"spans": decoded[:most]})

    def send_metrics(self, metrics: object) -> None:
        """Sends metrics, as `metrics/otlp` makes them."""
        self._send({"metrics": metrics})

    def running(self) -> AbstractAsyncContextManager[FedProcess]:
        """Runs until the end of the block, or until `stop`."""
        return self._process.running(self._wanted)

    async def stop(self) -> None:
        """Lets it send what is left, for a moment, and ends it. A second call does nothing."""
        await self._process.stop()

    def _send(self, message: object) -> None:
        if self._process.give(json.dumps(message).encode()):
            return
        self._lost += 1
        if self._wanted and self._saying.take():
            log.warning(
                "what was to be sent over OTLP is lost, %d pieces until now: the process that "
                "sends it is slow or not there",
                self._lost,
            )


def _log_pause(seconds: float, why: str) -> None:
    log.warning("nothing is sent over OTLP for %.1f s: %s", seconds, why)


def _say(line: bytes) -> None:
    """Writes what the exporter has to say into our log."""
    try:
        record = json.loads(line)
        log.log(record["level"], "OTLP: %s", printable(record["text"]))
    except (ValueError, KeyError, TypeError):
        log.warning("OTLP: %s", printable(line.decode("utf-8", "replace").strip()))
