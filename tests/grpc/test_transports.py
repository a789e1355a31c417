"""What a gRPC client sees of the server, over real sockets and both transports."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterable, AsyncIterator
from importlib import import_module
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from ratelimit_service.errors import TransportError
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import Code, Request
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.wire import METHOD, SERVICE, decode_decision, encode_request
from ratelimit_service.wire.reservations import RESERVING_SERVICE
from tests.grpc.transports import TRANSPORTS
from tests.service.asking import Asking, Busy, Timed, descriptor
from tests.waiting import PATIENCE_SECONDS

RULES = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]"
ReflectionRequest = reflection_pb2.ServerReflectionRequest
HealthRequest = health_pb2.HealthCheckRequest
HealthStatus = health_pb2.HealthCheckResponse


class Server:
    """A running server with a client's channel to it."""

    def __init__(self, asking: Asking, transport: str) -> None:
        self.asking = asking
        self.transport = transport
        self.health = Health()
        self.server = TRANSPORTS[transport]("127.0.0.1:0", asking.service, self.health)

    async def start(self) -> None:
        port = await self.server.start()
        self.address = f"127.0.0.1:{port}"
        self.channel = grpc.aio.insecure_channel(self.address)

    async def call(self, body: bytes, method: str = METHOD) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            f"/{SERVICE}/{method}"
        )
        return await call(body, timeout=PATIENCE_SECONDS)

    def reflect(
        self, questions: list[ReflectionRequest], version: str
    ) -> AsyncIterable[reflection_pb2.ServerReflectionResponse]:
        call = self.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=ReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        return call(iter(questions))

    async def check(self, name: str) -> int:
        call: grpc.aio.UnaryUnaryMultiCallable[HealthRequest, HealthStatus]
        call = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthRequest.SerializeToString,
            response_deserializer=HealthStatus.FromString,
        )
        return (await call(HealthRequest(service=name))).status


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def server(tmp_path: Path, transport: str) -> AsyncIterator[Server]:
    server = Server(Asking(tmp_path, RULES), transport)
    await server.start()
    server.health.enter(Phase.SERVING)
    yield server
    await server.channel.close()
    await server.server.stop(0)


async def test_decides(server: Server) -> None:
    """ShouldRateLimit takes a serialized request and gives a serialized response."""
    body = encode_request(Request("edge", (descriptor("a=x"),)))

    answers = [decode_decision(await server.call(body)) for _ in range(2)]

    assert [answer.code for answer in answers] == [Code.OK, Code.OVER_LIMIT]


def still_wanted(busy: Busy) -> list[bool]:
    """Of each request that waits, whether its caller still does; several may be one batch."""
    return [wanted(place) for requests, _, wanted in busy.waiting for place in range(len(requests))]


async def test_abandoned_call_is_not_charged(tmp_path: Path, transport: str) -> None:
    """A call that its caller gives up, or whose time is over, before its turn is not counted."""
    busy = Busy()
    server = Server(Asking(tmp_path, RULES, store=busy), transport)
    await server.start()
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = server.channel.unary_unary(
        f"/{SERVICE}/{METHOD}"
    )
    body = encode_request(Request("edge", (descriptor("a=x"),)))
    await server.channel.channel_ready()  # so that the call comes before its time is over
    cancelled, late, patient = (
        call(body, timeout=60),
        call(body, timeout=0.8),
        call(body, timeout=60),
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(still_wanted(busy)) < 3:
            await asyncio.sleep(0.001)
        cancelled.cancel()
        while sum(still_wanted(busy)) > 1:
            await asyncio.sleep(0.001)

    busy.go_on()

    assert decode_decision(await patient).code is Code.OK
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await late
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert server.asking.stats.refusals["abandoned"] == 2
    await server.channel.close()
    await server.server.stop(0)


async def test_caller_s_deadline_is_the_store_s(tmp_path: Path, transport: str) -> None:
    """A store has four fifths of the time that its caller waits, whatever the transport."""
    timed = Timed()
    server = Server(Asking(tmp_path, RULES, store=timed), transport)
    await server.start()
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = server.channel.unary_unary(
        f"/{SERVICE}/{METHOD}"
    )
    asked_us = elapsed_us()

    await call(encode_request(Request("edge", (descriptor("a=x"),))), timeout=60)

    (deadline_us,) = timed.deadlines_us
    await server.channel.close()
    await server.server.stop(0)
    patience_us = 48_000_000
    # grpcio rounds what it sends up.
    assert asked_us + patience_us - 1_000_000 < deadline_us < elapsed_us() + patience_us + 1_000_000


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b"\xff", grpc.StatusCode.INVALID_ARGUMENT, "the request is no RateLimitRequest"),
        (b"", grpc.StatusCode.INVALID_ARGUMENT, "domain is empty: name the domain of the rules"),
        (b"\0" * 65_537, grpc.StatusCode.RESOURCE_EXHAUSTED, "the request has 65537 bytes"),
    ],
)
async def test_bad_requests(
    server: Server, body: bytes, code: grpc.StatusCode, message: str
) -> None:
    """A bad request gets its gRPC status and a sentence, and the next one is answered."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.call(body)

    assert refused.value.code() is code
    assert (refused.value.details() or "").startswith(message)
    assert await server.call(encode_request(Request("edge", (descriptor("b=x"),))))


async def test_gzip(server: Server) -> None:
    """A message that the client has compressed is read, and so is one without a body of its own."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = server.channel.unary_unary(
        f"/{SERVICE}/{METHOD}"
    )
    body = encode_request(Request("edge", (descriptor("a=" + "x" * 2_000),)))

    answer = await call(body, compression=grpc.Compression.Gzip)

    assert decode_decision(answer).code is Code.OK


async def test_text_of_a_refusal_may_be_any(server: Server) -> None:
    """What goes into grpc-message is coded so that every character arrives."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.call(b"", method="Größe%20\u2713")

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_unknown_method(server: Server) -> None:
    """A method that is not served is UNIMPLEMENTED."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.call(b"", method="ShouldNotRateLimit")

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_unknown_method_as_an_open_stream(server: Server) -> None:
    """A method that is not served is UNIMPLEMENTED before its caller has sent any message."""
    call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = server.channel.stream_stream("/a.B/C")
    asked = call()

    async with asyncio.timeout(PATIENCE_SECONDS):
        code = await asked.code()

    assert code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("name", ["", "ratelimit", SERVICE])
async def test_health_check(server: Server, name: str) -> None:
    """All three names follow the process's phase; degraded is still SERVING."""
    statuses = [await server.check(name)]
    server.health.degrade("store", "away")
    statuses.append(await server.check(name))
    server.health.enter(Phase.DRAINING)
    statuses.append(await server.check(name))

    assert statuses == [HealthStatus.SERVING, HealthStatus.SERVING, HealthStatus.NOT_SERVING]


async def test_health_check_of_an_unknown_name(server: Server) -> None:
    """A name that is none of ours is NOT_FOUND."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.check("other")

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("phase", "last"),
    [(Phase.DRAINING, [HealthStatus.NOT_SERVING]), (Phase.LEAVING, [])],
)
async def test_health_watch(server: Server, phase: Phase, last: list[int]) -> None:
    """A watch tells each change once; it ends with the process, which may be one of several."""
    call: grpc.aio.UnaryStreamMultiCallable[HealthRequest, HealthStatus]
    call = server.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=HealthRequest.SerializeToString,
        response_deserializer=HealthStatus.FromString,
    )
    told = []
    async for answer in call(HealthRequest()):
        told.append(answer.status)
        server.health.degrade("store", "away")
        server.health.enter(phase)

    assert told == [HealthStatus.SERVING, *last]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_no_reflection(tmp_path: Path, transport: str) -> None:
    """Without reflection its methods are unknown, and all others are served."""
    asking = Asking(tmp_path, RULES)
    server = TRANSPORTS[transport]("127.0.0.1:0", asking.service, Health(), reflection=False)
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for version in ("v1", "v1alpha"):
            reflect: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            )
            assert await reflect(b"").code() is grpc.StatusCode.UNIMPLEMENTED
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/grpc.health.v1.Health/Check"
        )
        assert await check(b"")
    await server.stop(0)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection(server: Server, version: str) -> None:
    """A client without proto files learns services, methods and messages from the server."""
    questions = [
        ReflectionRequest(list_services=""),
        ReflectionRequest(file_containing_symbol=SERVICE),
        ReflectionRequest(file_containing_symbol=f"{SERVICE}.{METHOD}"),
        ReflectionRequest(file_containing_symbol=f"grpc.reflection.{version}.ServerReflection"),
        ReflectionRequest(file_containing_symbol="grpc.health.v1.Health.Check"),
        ReflectionRequest(file_containing_symbol=f"{RESERVING_SERVICE}.Reserve"),
        ReflectionRequest(file_containing_symbol=f"{SERVICE}.Nothing"),
    ]

    listed, *found, nothing = [answer async for answer in server.reflect(questions, version)]

    assert {service.name for service in listed.list_services_response.service} == {
        SERVICE,
        "grpc.health.v1.Health",
        RESERVING_SERVICE,
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    texts = [b"unit_multiplier", b"unit_multiplier", b"list_services", b"SERVING", b"amount"]
    for answer, text in zip(found, texts, strict=True):
        assert any(text in file for file in answer.file_descriptor_response.file_descriptor_proto)
    assert [answer.original_request for answer in found] == questions[1:-1]
    assert nothing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_garbage(server: Server, path: str) -> None:
    """A message that cannot be read is INVALID_ARGUMENT, and the connection goes on."""
    call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = server.channel.stream_stream(path)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        _ = [answer async for answer in call(iter([b"\xff\xff"]))]

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the request is no " in (refused.value.details() or "")
    assert await server.check("") == HealthStatus.SERVING


async def test_port_in_use(server: Server) -> None:
    """A port that is taken is an error that names it and the flag."""
    other = TRANSPORTS[server.transport](server.address, server.asking.service, Health())

    with pytest.raises(TransportError) as refused:
        await other.start()

    assert server.address in str(refused.value)
    assert "--grpc" in str(refused.value)


@pytest.mark.parametrize(("clients", "limit"), [(50, 20)])
async def test_exactly_the_limit_passes(
    tmp_path: Path, transport: str, clients: int, limit: int
) -> None:
    """Of many concurrent calls exactly as many pass as the rule allows."""
    rule = f"{{key: a, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}"
    server = Server(Asking(tmp_path, f"domain: edge\ndescriptors: [{rule}]"), transport)
    await server.start()
    body = encode_request(Request("edge", (descriptor("a=x"),)))

    answers = await asyncio.gather(*(server.call(body) for _ in range(clients)))

    await server.channel.close()
    await server.server.stop(0)
    passed = [decode_decision(answer).code is Code.OK for answer in answers]
    assert passed.count(True) == limit


async def test_client_that_goes_while_it_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What grpcio says of it is no line in the log; every other fault of a task still is."""
    server = Server(Asking(tmp_path, RULES), "grpcio")
    await server.start()

    async def failing(error: Exception) -> None:
        raise error

    its_own = import_module("grpc._cython.cygrpc").ExecuteBatchError
    for error in (its_own("Failed grpc_call_start_batch"), ValueError("else")):
        task = asyncio.create_task(failing(error))
        await asyncio.wait([task])
        del task
        gc.collect()

    records = [each for each in caplog.records if each.levelno > logging.DEBUG]
    assert [str(each.exc_info[1]) for each in records if each.exc_info] == ["else"]
    assert len(records) == 1
    await server.channel.close()
    await server.server.stop(0)
