"""A collector of OTLP, over HTTP and over gRPC, that keeps what it is told."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest

from tests.servers.process import wait_until

pytest.importorskip("opentelemetry.proto", reason="pip install 'ratelimit-service[otel]'")

from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2 as metrics_pb2,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2

_TRACES = ("/v1/traces", "opentelemetry.proto.collector.trace.v1.TraceService")
_METRICS = ("/v1/metrics", "opentelemetry.proto.collector.metrics.v1.MetricsService")


class Span:
    """A span as it was sent."""

    def __init__(self, sent: Any, resource: Mapping[str, object]) -> None:
        self.name: str = sent.name
        self.trace_id: str = sent.trace_id.hex()
        self.span_id: str = sent.span_id.hex()
        self.parent: str = sent.parent_span_id.hex()
        self.state: str = sent.trace_state
        self.start_ns: int = sent.start_time_unix_nano
        self.end_ns: int = sent.end_time_unix_nano
        self.failed: bool = sent.status.code == 2
        self.said: str = sent.status.message
        self.attributes = _values(sent.attributes)
        self.resource = resource


class Collector:
    """Listens on a free port of the loopback interface."""

    def __init__(self, *, over_grpc: bool = False) -> None:
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._metrics: dict[tuple[str, frozenset[tuple[str, object]]], Any] = {}
        self.headers: list[Mapping[str, str]] = []
        if over_grpc:
            self._server = grpc.server(ThreadPoolExecutor(2))
            for path, service in (_TRACES, _METRICS):
                handler: Any = grpc.unary_unary_rpc_method_handler(self._called(path))
                self._server.add_generic_rpc_handlers(
                    (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
                )
            self.port = self._server.add_insecure_port("127.0.0.1:0")
            self._server.start()
        else:
            self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
            self.port = self._http.server_address[1]
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        self._over_grpc = over_grpc

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        if self._over_grpc:
            self._server.stop(None)
        else:
            self._http.shutdown()
            self._http.server_close()

    @property
    def spans(self) -> list[Span]:
        with self._lock:
            return list(self._spans)

    def wait_for_spans(self, count: int) -> list[Span]:
        """All of them, once there are so many."""
        wait_until(lambda: len(self.spans) >= count, f"{count} spans")
        return self.spans

    def metric(self, name: str, **labels: object) -> Any:
        """The last point of a metric; None before there is one."""
        with self._lock:
            return self._metrics.get((name, frozenset(labels.items())))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.headers.append(dict(self.headers.items()))
                answer = collector.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        return Handler

    def _called(self, path: str) -> Any:
        return lambda body, _context: self.take(path, body)

    def take(self, path: str, body: bytes) -> bytes:
        with self._lock:
            if path == _TRACES[0]:
                self._spans += _spans(trace_pb2.ExportTraceServiceRequest.FromString(body))
                return trace_pb2.ExportTraceServiceResponse().SerializeToString()
            found = metrics_pb2.ExportMetricsServiceRequest.FromString(body)
            self._metrics |= dict(_points(found))
            return metrics_pb2.ExportMetricsServiceResponse().SerializeToString()


def _spans(sent: Any) -> Iterator[Span]:
    for resource in sent.resource_spans:
        told = _values(resource.resource.attributes)
        for scope in resource.scope_spans:
            yield from (Span(each, told) for each in scope.spans)


def _points(sent: Any) -> Iterator[tuple[tuple[str, frozenset[tuple[str, object]]], Any]]:
    for resource in sent.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points:
                    labels = frozenset(_values(point.attributes).items())
                    yield (metric.name, labels), point


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
