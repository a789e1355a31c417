"""The service as its users start it, with a collector beside it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ratelimit_service.errors import SettingsError
from ratelimit_service.model import Request
from ratelimit_service.settings import Settings
from ratelimit_service.telemetry import otlp
from ratelimit_service.wire import METHOD, SERVICE, encode_request
from tests.http_client import http
from tests.servers.collector import Collector
from tests.servers.process import descendants, wait_until
from tests.servers.redis import SharedRedis
from tests.servers.service import ServiceProcess
from tests.service.asking import descriptor

RULES = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 2}}]"
BODY = encode_request(Request("edge", (descriptor("a=1"),)))
JSON = {"domain": "edge", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}]}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def service(
    tmp_path: Path, collector: Collector, redis_server: SharedRedis
) -> Iterator[ServiceProcess]:
    """Two workers, in the environment that Envoy Gateway makes."""
    redis_server.flush()
    (tmp_path / "rules.yaml").write_text(RULES)
    environment = {
        "TRACING_ENABLED": "true",
        "TRACING_SERVICE_NAMESPACE": "ns",
        "TRACING_SERVICE_INSTANCE_ID": "pod-1",
        "TRACING_SAMPLING_RATE": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=edge",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }
    flags = ["--rules", str(tmp_path / "rules.yaml"), "--store", redis_server.url]
    service = ServiceProcess(tmp_path, *flags, "--workers", "2", environment=environment)
    service.start()
    yield service
    service.kill()


def call(service: ServiceProcess, parent: str) -> None:
    """One call over a connection of its own."""
    with grpc.insecure_channel(service.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        ask = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        ask(BODY, timeout=60, metadata=(("traceparent", parent),), wait_for_ready=True)


def test_workers_send_spans_and_metrics(
    service: ServiceProcess, collector: Collector, redis_server: SharedRedis
) -> None:
    """Spans of all workers and all metrics come to the collector, and go on after a restart.

    Counters begin anew then: what has been told once is not told again. The last hits come, too.
    """
    for _ in range(2):
        call(service, PARENT)
    assert (
        http(f"http://127.0.0.1:{service.http_port}/json", JSON, {"traceparent": PARENT}).status
        == 429
    )
    spans = collector.wait_for_spans(3)

    assert {(span.trace_id, span.parent) for span in spans} == {(TRACE, SPAN)}
    codes = sorted(str(span.attributes["ratelimit.code"]) for span in spans)
    assert codes == ["OK", "OK", "OVER_LIMIT"]
    address = f"127.0.0.1:{redis_server.port}"
    assert {
        (span.attributes["ratelimit.store"], span.attributes["ratelimit.shard"]) for span in spans
    } == {("redis", address)}
    resource = spans[0].resource
    assert resource["service.name"] == "RateLimit"
    assert resource["service.namespace"] == "ns"
    assert resource["service.instance.id"] == "pod-1"
    assert resource["deployment.environment"] == "test"
    assert collector.headers[0]["x-team"] == "edge"

    labels = {"domain": "edge", "rule": "a", "value": ""}
    hits = "ratelimit_rule_hits"

    def answer() -> int:
        point = collector.metric(hits, **labels)
        return 0 if point is None else int(point.as_double or point.as_int)

    wait_until(lambda: answer() == 3, "the hits over OTLP")
    began = collector.metric(hits, **labels).start_time_unix_nano
    latency = collector.metric("ratelimit_decision_duration_seconds")
    assert latency.count == sum(latency.bucket_counts) == 3
    assert collector.metric("ratelimit_rule_limit", **labels_of_limit()).as_int == 2

    service.signal(signal.SIGUSR2)
    wait_until(lambda: "restarted: version" in service.log, "the restart")
    wait_until(
        lambda: collector.metric(hits, **labels).start_time_unix_nano > began, "another start"
    )
    call(service, PARENT)
    assert len(collector.wait_for_spans(4)) == 4
    wait_until(lambda: answer() == 1, "the hits since the restart")

    call(service, PARENT)
    for pid in (service.pid, *descendants(service.pid)):  # as a service manager does it
        os.kill(pid, signal.SIGTERM)
    assert service.wait() == 0
    assert answer() == 2
    assert "lost" not in service.log


def labels_of_limit() -> dict[str, str]:
    return {"domain": "edge", "rule": "a", "limit": "1", "unit": "year"}


def test_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for traces without OpenTelemetry is told at the start what to install."""
    monkeypatch.setattr(otlp, "find_spec", lambda _: None)

    with pytest.raises(SettingsError, match=r"pip install 'ratelimit-service\[otel\]'"):
        otlp.check_installed(Settings(rules="", otel_traces=True))
    otlp.check_installed(Settings(rules=""))
