"""Calls are handed on with their trace's headers, if somebody asks for these."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from ratelimit_service import compiled
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc.h2.connection import Calls
from ratelimit_service.model import Code, Request
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.service import CallOrigin, DecidedBy, DecisionRecord, Headers, Traced
from ratelimit_service.wire import METHOD, SERVICE, decode_decision, encode_request
from tests.grpc.counted_work import work_of
from tests.grpc.h2_client import Client
from tests.grpc.transports import TRANSPORTS
from tests.service.asking import Asking, Heard, descriptor

RULES = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]"
BODY = encode_request(Request("edge", (descriptor("a"),)))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-{:016x}-01"


class Keeping:
    """Wants every call, and keeps what it hears."""

    def __init__(self) -> None:
        self.open = True
        self.heard: list[tuple[Headers, DecisionRecord]] = []
        self.took_us: list[int] = []

    def choose(self, callers: Sequence[CallOrigin]) -> Sequence[Traced]:
        return [Traced(place, list(each.headers)) for place, each in enumerate(callers)]

    def decided(self, traced: Traced, record: DecisionRecord) -> None:
        assert isinstance(traced.parent, list)
        self.heard.append((traced.parent, record))
        self.took_us.append(record.took_us)


class Failing(Keeping):
    """Fails where it is told."""

    def decided(self, traced: Traced, record: DecisionRecord) -> None:
        raise KeyError("a fault of the tracer")


@pytest.fixture(params=TRANSPORTS)
async def server(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Asking, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]]]:
    asking, health = Asking(tmp_path, RULES), Health()
    server = TRANSPORTS[request.param]("127.0.0.1:0", asking.service, health)
    port = await server.start()
    health.enter(Phase.SERVING)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield asking, channel.unary_unary(f"/{SERVICE}/{METHOD}")
    await server.stop(0)


async def test_each_call_brings_its_own_parent(
    server: tuple[Asking, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]],
) -> None:
    """Each call is told with the headers of its own trace and what was decided, over any transport.

    Calls that differ in nothing else are one batch to us.
    """
    asking, call = server
    asking.service.events.tracer = tracer = Keeping()
    began_us = elapsed_us()
    for number in range(1, 6):
        await call(
            BODY, timeout=60, metadata=[("traceparent", PARENT.format(number)), ("x-other", "1")]
        )
    await call(BODY, timeout=60, metadata=[("b3", "1-2-0"), ("tracestate", "a=b")])
    await call(BODY, timeout=60)

    assert [headers for headers, _ in tracer.heard] == [
        *([(b"traceparent", PARENT.format(number).encode())] for number in range(1, 6)),
        [(b"b3", b"1-2-0"), (b"tracestate", b"a=b")],
        [],
    ]
    records = [record for _, record in tracer.heard]
    assert [record.by for record in records] == [DecidedBy.COUNT] * 7
    assert records[0].rule == "a"
    assert records[0].hit is not None
    codes = [decode_decision(record.answer).code for record in records]  # type: ignore[arg-type]
    assert codes == [Code.OK, *[Code.OVER_LIMIT] * 6]
    assert all(0 <= took <= elapsed_us() - began_us for took in tracer.took_us)


async def test_closed_tracer_hears_nothing(
    server: tuple[Asking, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]],
) -> None:
    """Headers are read for a tracer only while it is open."""
    asking, call = server
    asking.service.events.tracer = tracer = Keeping()
    for number, tracer.open in enumerate((True, False, False, True)):
        await call(BODY, timeout=60, metadata=[("traceparent", PARENT.format(number))])

    assert [headers[0][1] for headers, _ in tracer.heard] == [
        PARENT.format(number).encode() for number in (0, 3)
    ]


async def test_listener_hears_who_called(
    server: tuple[Asking, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]],
) -> None:
    """Who listens hears from which address a call came, what it calls itself, and its duration."""
    asking, call = server
    heard = Heard(asking.service)
    began_us = elapsed_us()
    for number in range(3):
        await call(
            BODY, timeout=60, metadata=[("x-request-id", f"id-{number}"), ("traceparent", PARENT)]
        )
    await call(BODY, timeout=60)

    callers = [each.caller for each in heard if each.caller is not None]
    assert [each.peer for each in callers] == ["127.0.0.1"] * 4
    assert [dict(each.headers).get(b"x-request-id") for each in callers] == [
        b"id-0",
        b"id-1",
        b"id-2",
        None,
    ]
    assert all(0 <= each.took_us <= elapsed_us() - began_us for each in heard)


async def test_fault_of_a_tracer_costs_no_answer(
    server: tuple[Asking, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]],
) -> None:
    """A call is answered also where its tracer fails."""
    asking, call = server
    asking.service.events.tracer = Failing()

    assert decode_decision(await call(BODY, timeout=60)).code is Code.OK


async def test_refused_requests_are_told_too(
    server: tuple[Asking, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]],
) -> None:
    """A request that cannot be read has a span as well: it says why it was refused."""
    asking, call = server
    asking.service.events.tracer = tracer = Keeping()
    with pytest.raises(grpc.aio.AioRpcError):
        await call(b"\xff", timeout=60, metadata=[("b3", "0")])

    ((headers, record),) = tracer.heard
    assert headers == [(b"b3", b"0")]
    assert record.by is DecidedBy.NOTHING
    assert not isinstance(record.answer, bytes)


def traces(client: Client, data: bytes) -> list[Headers]:
    """Those of all calls in this data."""
    found: list[Headers] = []
    for event in client.connection.receive(data):
        assert isinstance(event, Calls)
        assert event.origins is not None
        found += [list(each.headers) for each in event.origins]
    return found


def test_parents_are_read_with_and_without_a_table() -> None:
    """A parent is read from Huffman-coded values, from the client's table, and without one."""
    client = Client()
    client.connection.callers.wanted = True
    extra = [("traceparent", PARENT.format(7)), ("x-b3-sampled", "1")]
    told = [(name.encode(), value.encode()) for name, value in extra]
    with_table = [client.headers(extra) + client.data() for _ in range(3)]

    assert traces(client, b"".join(with_table)) == [told] * 3

    client.settle()
    without = [client.headers(extra) + client.data() for _ in range(3)]
    assert traces(client, b"".join(without)) == [told] * 3


def test_parents_of_blocks_that_are_alike() -> None:
    """Of blocks that differ in a value or two each is read as if it came alone."""
    client = Client()
    client.settle()
    client.connection.callers.wanted = True
    told, data = [], b""
    for number in range(40):
        extra = [("x-request-id", f"id-{number}"), ("traceparent", PARENT.format(number % 7))]
        if number > 30:
            extra[:1] = [("tracestate", "same")]
        elif number > 20:
            extra.append(("tracestate", f"a={number}" if number % 3 else ""))
            extra.append(("tracestate", "b"))
        elif number > 10:
            extra.append(("tracestate", "same"))
        told.append([(name.encode(), value.encode()) for name, value in extra])
        data += client.headers(extra) + client.data()

    assert traces(client, data) == told


@pytest.mark.skipif(compiled(), reason="its calls cannot be counted")
def test_to_hear_who_traces_takes_few_steps() -> None:
    """Calls with a trace each are taken together, also where somebody asks who makes them."""
    work = []
    for wanted in (False, True):
        client = Client()
        client.settle()
        calls = [
            client.headers([("traceparent", PARENT.format(number))]) + client.data()
            for number in range(110)
        ]
        client.connection.receive(b"".join(calls[:10]))
        client.connection.callers.wanted = wanted
        work.append(work_of(lambda: client.connection.receive(b"".join(calls[10:]))))  # noqa: B023
    assert work[1] - work[0] <= 4 * 100


def test_a_parent_that_is_not_coded_right() -> None:
    """Nothing is told of a caller whose headers cannot be decoded; its call is as any other."""
    client = Client()
    client.settle()
    client.connection.callers.wanted = True
    calls = [
        client.headers([("traceparent", PARENT.format(number))]) + client.data()
        for number in range(4)
    ]
    coder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    good = coder.encode(PARENT.format(3).encode())
    calls[3] = calls[3].replace(good, b"\xff" * len(good))

    found = traces(client, b"".join(calls))
    assert [bool(headers) for headers in found] == [True, True, True, False]


def test_calls_of_one_read_keep_their_order() -> None:
    """Calls of which only some are asked for their trace are not mixed up."""
    client = Client()
    client.settle()
    client.connection.callers.wanted = True
    data = b""
    for number in range(20):
        extra = [("traceparent", PARENT.format(number))] if number % 3 else []
        data += client.headers(extra) + client.data(b"%d" % number)

    told: dict[bytes, Headers] = {}
    for event in client.connection.receive(data):
        assert isinstance(event, Calls)
        assert event.origins is not None
        headers = [list(each.headers) for each in event.origins]
        told |= dict(zip(event.messages, headers, strict=True))
    assert told == {
        b"%d" % number: [(b"traceparent", PARENT.format(number).encode())] if number % 3 else []
        for number in range(20)
    }
