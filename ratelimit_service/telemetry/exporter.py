"""The program that sends spans and metrics over OTLP, in a process of its own.

Its parent (`otlp`) gives it frames of JSON: its task, then what is to be sent. OpenTelemetry's own
library sends it, and reads the variables `OTEL_…` that say where and how.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from opentelemetry import trace
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ratelimit_service import __version__
from ratelimit_service.processes.pipes import read_frame_at_once

__all__ = ["LogHandler", "main"]

_NAME = "ratelimit_service"
_SERVICE = "ratelimit"
_UNKNOWN = "unknown_service"
"""How the library begins the name of a service that nobody has named."""

_SPAN = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

_MOST_METRICS_WAITING = 1_000
"""Parts of metrics that wait to be sent; what comes then is left out."""

_MOST_SAID = 1_000
"""Characters of a line of the library's; what a collector answers may be a whole page."""

_SHORT_DELAY_MS = "1000"


class LogHandler(logging.Handler):
    """Hands what the library logs to the parent, a line of JSON each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]}"
        _say(record.levelno, text)


def _say(level: int, text: str) -> None:
    text = " ".join(text[: 2 * _MOST_SAID].split())
    if len(text) > _MOST_SAID:
        text = f"{text[:_MOST_SAID]}…"
    line = json.dumps({"level": level, "text": text})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Spans:
    """Makes OpenTelemetry's spans of those that the service has told."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(_NAME, __version__)

    def send(self, spans: Sequence[Mapping[str, Any]]) -> None:
        """Takes them; they are sent in batches."""
        for fields in spans:
            context = None
            if fields["trace"]:
                parent = trace.SpanContext(
                    int(fields["trace"], 16),
                    int(fields["parent"], 16),
                    is_remote=True,
                    trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
                    trace_state=trace.TraceState.from_header([fields["state"]]),
                )
                context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
            span = self._tracer.start_span(
                _SPAN,
                context,
                trace.SpanKind.SERVER,
                fields["attributes"],
                start_time=fields["start_us"] * 1_000,
                record_exception=False,
            )
            if fields["error"]:
                span.set_status(trace.Status(trace.StatusCode.ERROR, fields["error"]))
            span.end(fields["end_us"] * 1_000)

    def end(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()


class _Metrics:
    """Sends metrics as they come, in a thread: it waits for the collector."""

    def __init__(self, exporter: MetricExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._resource = resource
        self._scope = InstrumentationScope(_NAME, __version__)
        self._parts: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_MOST_METRICS_WAITING)
        self._thread = threading.Thread(target=self._keep_sending)
        self._thread.start()

    def send(self, part: Mapping[str, Any]) -> None:
        """Takes some."""
        try:
            self._parts.put_nowait(part)
        except queue.Full:
            _say(logging.WARNING, "metrics are left out: the collector takes too long")

    def end(self) -> None:
        """Sends what is left."""
        self._parts.put(None)
        self._thread.join()
        self._exporter.shutdown()

    def _keep_sending(self) -> None:
        while (part := self._parts.get()) is not None:
            times = part["start_us"] * 1_000, part["now_us"] * 1_000
            metrics = [_metric(metric, *times) for metric in part["metrics"]]
            scoped = ScopeMetrics(self._scope, metrics, "")
            self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scoped], "")]))


def _metric(metric: Mapping[str, Any], start_ns: int, now_ns: int) -> Metric:
    points: list[Any] = []
    cumulative = AggregationTemporality.CUMULATIVE
    for values, number in metric["samples"]:
        attributes = dict(zip(metric["labels"], values, strict=True))
        if metric["kind"] == "histogram":
            points.append(
                HistogramDataPoint(
                    attributes,
                    start_ns,
                    now_ns,
                    sum(number["buckets"]),
                    number["sum"],
                    number["buckets"],
                    metric["bounds"],
                    min=None,  # type: ignore[arg-type,unused-ignore]  # what is not known
                    max=None,  # type: ignore[arg-type,unused-ignore]
                )
            )
        else:
            points.append(NumberDataPoint(attributes, start_ns, now_ns, number))
    data: Sum | Gauge | Histogram
    if metric["kind"] == "histogram":
        data = Histogram(points, cumulative)
    elif metric["kind"] == "gauge":
        data = Gauge(points)
    else:
        data = Sum(points, cumulative, is_monotonic=True)
    return Metric(metric["name"], metric["help"], metric["unit"], data)


def _exporters(protocol: str, *, metrics: bool) -> tuple[SpanExporter, MetricExporter | None]:
    """Imported late: one of the two may not be installed, and grpc is large."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import (  # noqa: PLC0415
            metric_exporter as grpc_metrics,
        )
        from opentelemetry.exporter.otlp.proto.grpc import (  # noqa: PLC0415
            trace_exporter as grpc_traces,
        )

        spans: SpanExporter = grpc_traces.OTLPSpanExporter()
        return spans, grpc_metrics.OTLPMetricExporter() if metrics else None
    from opentelemetry.exporter.otlp.proto.http import (  # noqa: PLC0415
        metric_exporter as http_metrics,
    )
    from opentelemetry.exporter.otlp.proto.http import (  # noqa: PLC0415
        trace_exporter as http_traces,
    )

    return http_traces.OTLPSpanExporter(), http_metrics.OTLPMetricExporter() if metrics else None


def _resource(given: Mapping[str, str]) -> Resource:
    """What is told of the service: as the settings say, else the library's variables."""
    resource = Resource.create({"service.version": __version__, **given})
    if str(resource.attributes["service.name"]).startswith(_UNKNOWN):
        resource = resource.merge(Resource({"service.name": _SERVICE}))
    return resource


def _run(frames: IO[bytes]) -> None:
    task = json.loads(read_frame_at_once(frames) or b"null")
    if task is None:
        return
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", _SHORT_DELAY_MS)
    spans_exporter, metrics_exporter = _exporters(task["protocol"], metrics=task["metrics"])
    resource = _resource(task["resource"])
    spans = _Spans(spans_exporter, resource)
    metrics = _Metrics(metrics_exporter, resource) if metrics_exporter else None
    while frame := read_frame_at_once(frames):
        message = json.loads(frame)
        if "spans" in message:
            spans.send(message["spans"])
        elif metrics is not None:
            metrics.send(message["metrics"])
    spans.end()
    if metrics is not None:
        metrics.end()


def main() -> None:
    """The process: it ends when its parent hangs up, once all is sent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for its parent
    logging.basicConfig(level=logging.WARNING, handlers=[LogHandler()])
    logging.getLogger(trace.TraceState.__module__).setLevel(logging.ERROR)  # callers' headers
    try:
        _run(sys.stdin.buffer)
    except Exception as error:
        _say(logging.ERROR, f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(0)  # nobody waits for threads whose collector does not answer
