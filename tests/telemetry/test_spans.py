"""Which calls become spans, what spans tell, and that a collector gets them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.model import Request
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.service import CallOrigin, Headers
from ratelimit_service.settings import Settings
from ratelimit_service.telemetry.otlp import Otlp
from ratelimit_service.telemetry.spans import Spans
from ratelimit_service.wire import METHOD, SERVICE, encode_request
from tests.grpc.transports import TRANSPORTS
from tests.servers.collector import Collector
from tests.servers.process import descendants
from tests.service.asking import Asking, Away, descriptor

RULES = """
domain: edge
descriptors:
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 1}
    descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 5}}]
"""
BODY = encode_request(Request("edge", (descriptor("a=1"),)))
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED: Headers = [(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())]
UNSAMPLED: Headers = [(b"b3", f"{TRACE}-{SPAN}-0".encode())]


class Traced:
    """A service whose spans are kept."""

    def __init__(self, directory: Path, clock: Clock = elapsed_us, **set_to: object) -> None:
        self.asking = Asking(directory, RULES)
        self.sent: list[dict[str, object]] = []
        settings = Settings(rules="", otel_traces=True, **set_to)  # type: ignore[arg-type]
        self.spans = Spans(
            settings, lambda answer: self.sent.extend(json.loads(answer)), lambda _: "s", clock
        )
        self.asking.service.events.tracer = self.spans

    async def ask(self, *headers: Headers, body: bytes = BODY) -> list[dict[str, object]]:
        """Asks once for each of these; the spans of that."""
        for each in headers:
            await self.asking.service.decide([body], origins=[CallOrigin("", each)])
        self.spans.flush()
        sent, self.sent = self.sent, []
        return sent


async def test_sampled_as_the_parent_is(tmp_path: Path) -> None:
    """A call is sampled if its caller's span is, and not if that is not."""
    traced = Traced(tmp_path, otel_sampling_ratio=0.0)
    (span,) = await traced.ask(SAMPLED, UNSAMPLED, [])

    assert (span["trace"], span["parent"]) == (TRACE, SPAN)


async def test_ratio_is_for_calls_without_a_word(tmp_path: Path) -> None:
    """Of calls whose callers do not say the ratio is sampled."""
    traced = Traced(tmp_path, otel_sampling_ratio=1.0)

    assert [span["trace"] for span in await traced.ask([], UNSAMPLED)] == [""]


async def test_so_many_spans_a_second(tmp_path: Path) -> None:
    """A second has as many spans as the setting says; the next one has room again."""
    clock = [5_999_999]
    traced = Traced(tmp_path, lambda: clock[0], otel_spans_per_second=3)

    assert len(await traced.ask(*[SAMPLED] * 10)) == 3
    assert not traced.spans.open
    clock[0] += 1
    assert traced.spans.open
    assert len(await traced.ask(*[SAMPLED] * 10)) == 3


async def test_what_a_span_tells(tmp_path: Path) -> None:
    """A span tells rule, keys without values, outcome, store and shard."""
    traced = Traced(tmp_path, store="redis+ring://a,b")
    first, second = await traced.ask(SAMPLED, SAMPLED)

    assert first["attributes"] == {
        "rpc.system": "grpc",
        "rpc.service": SERVICE,
        "rpc.method": METHOD,
        "rpc.grpc.status_code": 0,
        "ratelimit.domain": "edge",
        "ratelimit.descriptors": ["a"],
        "ratelimit.rule": "a",
        "ratelimit.limit": 1,
        "ratelimit.unit": "minute",
        "ratelimit.remaining": 0,
        "ratelimit.code": "OK",
        "ratelimit.decided_by": "count",
        "ratelimit.store": "redis+ring",
        "ratelimit.shard": "s",
    }
    assert isinstance(second["attributes"], dict)
    assert second["attributes"]["ratelimit.code"] == "OVER_LIMIT"
    assert not second["error"]


async def test_values_only_if_asked_for(tmp_path: Path) -> None:
    """Values of descriptors are told only where the setting asks for them."""
    traced = Traced(tmp_path, otel_values=True)
    (span,) = await traced.ask(SAMPLED)

    assert isinstance(span["attributes"], dict)
    assert span["attributes"]["ratelimit.descriptors"] == ["a=1"]


async def test_texts_of_callers_are_bounded(tmp_path: Path) -> None:
    """A request of many long descriptors makes a small span."""
    traced = Traced(tmp_path, otel_values=True)
    many = tuple(descriptor(f"a={'x' * 500}") for _ in range(60))
    (span,) = await traced.ask(SAMPLED, body=encode_request(Request("edge" * 500, many)))

    assert isinstance(span["attributes"], dict)
    assert len(span["attributes"]["ratelimit.descriptors"]) == 20
    assert len(json.dumps(span)) < 8_000


async def test_refusals_of_ours_are_errors(tmp_path: Path) -> None:
    """A call that the failure policy `error` refused is a span with an error."""
    traced = Traced(tmp_path)
    rules = RULES.replace("requests_per_unit: 1}", "requests_per_unit: 1, failure_policy: error}")
    traced.asking = Asking(tmp_path, rules, store=Away())
    traced.asking.service.events.tracer = traced.spans
    (span,) = await traced.ask(SAMPLED)

    assert "the store gave no answer" in str(span["error"])
    assert isinstance(span["attributes"], dict)
    assert span["attributes"]["ratelimit.decided_by"] == "policy"
    assert span["attributes"]["rpc.grpc.status_code"] == 14


@pytest.fixture(params=["http", "grpc"])
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[str, Collector]]:
    collector = Collector(over_grpc=request.param == "grpc")
    yield request.param, collector
    collector.close()


@pytest.fixture
async def otlp(collector: tuple[str, Collector]) -> AsyncIterator[Otlp]:
    protocol, server = collector
    settings = Settings(
        rules="",
        otel_traces=True,
        otel_protocol=protocol,
        otel_endpoint=server.url,
        otel_resource="service.name=edge-limits",
        otel_spans_per_second=5,
    )
    otlp = Otlp(settings, lambda: 0)  # all within one second, however slow the machine is
    async with otlp.running():
        yield otlp


async def test_collector_gets_spans_over_both_transports(
    tmp_path: Path, collector: tuple[str, Collector], otlp: Otlp
) -> None:
    """A collector gets each call's span, below its caller's, over OTLP's two protocols.

    Each call came over gRPC, in both of our transports; it is sampled as its parent is.
    """
    _, server = collector
    asking = Asking(tmp_path, RULES)
    settings = Settings(rules="", otel_traces=True, otel_sampling_ratio=0.0)
    asking.service.events.tracer = spans = Spans(settings, otlp.send_spans, lambda _: "")
    for transport in TRANSPORTS:
        health = Health()
        ours = TRANSPORTS[transport]("127.0.0.1:0", asking.service, health)
        port = await ours.start()
        health.enter(Phase.SERVING)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary(f"/{SERVICE}/{METHOD}")
            for headers in ({}, {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "x=1"}):
                await call(BODY, timeout=60, metadata=list(headers.items()))
        await ours.stop(0)
    spans.flush()
    result = await asyncio.to_thread(server.wait_for_spans, 2)

    assert [(span.trace_id, span.parent, span.state) for span in result] == [
        (TRACE, SPAN, "x=1")
    ] * 2
    assert [span.attributes["ratelimit.code"] for span in result] == ["OVER_LIMIT"] * 2
    assert all(span.name == f"{SERVICE}/{METHOD}" and not span.failed for span in result)
    assert all(0 <= span.end_ns - span.start_ns < 60 * 10**9 for span in result)
    assert all(span.resource["service.name"] == "edge-limits" for span in result)


async def test_processes_together_send_no_more(
    collector: tuple[str, Collector], otlp: Otlp
) -> None:
    """All processes together send as many spans a second as the setting says."""
    _, server = collector
    span = {
        "trace": "",
        "parent": "",
        "state": "",
        "start_us": 1,
        "end_us": 2,
        "attributes": {},
        "error": "no",
    }
    for _ in range(4):
        otlp.send_spans(json.dumps([span] * 3).encode())
    await asyncio.to_thread(server.wait_for_spans, 5)
    await otlp.stop()

    result = server.spans
    assert len(result) == 5
    assert len({each.trace_id for each in result}) == 5
    assert (result[0].failed, result[0].said, result[0].parent) == (True, "no", "")


async def test_collector_away_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Where no collector is, spans are lost, the log says so, and to stop does not take long."""
    settings = Settings(rules="", otel_traces=True, otel_endpoint="http://127.0.0.1:9")
    otlp, before = Otlp(settings), descendants(os.getpid())
    otlp.send_spans(b"[{}]")

    assert "is lost" in caplog.text
    async with otlp.running():
        pass
    assert descendants(os.getpid()) == before
