"""A fault of ours at every seam of a request's way: it is refused, and nothing else suffers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from ratelimit_service import compiled
from ratelimit_service.errors import StatusCode
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc import calls
from ratelimit_service.grpc.h2 import runs
from ratelimit_service.grpc.h2.frames import ErrorCode, FrameType, rst_stream
from ratelimit_service.model import Code, Hit, Outcome, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import CallbackBatch, Refusal
from ratelimit_service.stores import NEVER, Done, Settled, Verdict, Wanted, always, judge
from ratelimit_service.wire import METHOD, SERVICE, decode_decision, encode_request
from tests.grpc.served_ends import Ends
from tests.grpc.transports import TRANSPORTS
from tests.http.serving import http_port
from tests.http_client import http
from tests.nearby import Listener
from tests.service.asking import Asking, Away, descriptor

RULES = """
domain: edge
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100}}
"""


class Broken(Away):
    """A store, and rules before it, that fail at one seam while they are told to."""

    def __init__(self) -> None:
        self.seam = ""
        self.late: list[Callable[[], None]] = []

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        if self.seam == "plan":
            raise KeyError("no rules")
        return snapshot

    def wait_us(self, priority: int) -> int:
        if self.seam == "wait":
            raise ZeroDivisionError("nobody knows")
        return 0

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        seam = self.seam
        found = [judge(hits, [Outcome(False, 1, 1, 1) for _ in hits]) for hits in requests]
        if seam == "charge":
            raise KeyError("no counter")
        if seam == "charge, then an answer all the same":
            self.late.append(lambda: done(found))
            raise KeyError("no counter")
        if seam == "settle: too few outcomes":
            done(found[1:])
        elif seam == "answer: what is no outcome":
            done([Settled(["over"], Verdict.WITHIN) for _ in requests])  # type: ignore[list-item]
        elif seam == "encode: what is no number":
            odd = Outcome(False, None, 1, 1)  # type: ignore[arg-type]
            done([Settled([odd], Verdict.WITHIN) for _ in requests])
        else:
            done(found)
        if seam == "charge, after the answer":
            raise KeyError("no counter")


REFUSED = [
    "plan",
    "charge",
    "charge, then an answer all the same",
    "settle: too few outcomes",
    "answer: what is no outcome",
    "encode: what is no number",
]


@pytest.fixture
def broken() -> Broken:
    return Broken()


@pytest.fixture
def asking(tmp_path: Path, broken: Broken) -> Asking:
    asking = Asking(tmp_path, RULES, store=broken)
    asking.service._snapshot = lambda: broken(asking.rules.snapshot)
    return asking


BODY = encode_request(Request("edge", (descriptor("a=x"),)))


@pytest.mark.parametrize("seam", REFUSED)
async def test_refused_once(asking: Asking, broken: Broken, seam: str) -> None:
    """Every request of a batch is refused and counted, once; those after it are decided."""
    told: list[Sequence[object]] = []
    broken.seam = seam

    asking.service.submit(CallbackBatch([BODY, BODY], told.append))
    for late in broken.late:
        late()
    broken.seam = ""
    asking.service.submit(CallbackBatch([BODY, BODY], told.append))

    (refused, decided) = told
    assert [one.code for one in refused if isinstance(one, Refusal)] == [StatusCode.INTERNAL] * 2
    assert asking.stats.refusals["internal"] == 2
    assert [decode_decision(one).code for one in decided if isinstance(one, bytes)] == [Code.OK] * 2


async def test_fault_after_the_answer(
    asking: Asking, broken: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails once the answers are given changes none of them, and is logged."""
    told: list[Sequence[object]] = []
    broken.seam = "charge, after the answer"

    with caplog.at_level(logging.ERROR):
        asking.service.submit(CallbackBatch([BODY], told.append))

    ((answer,),) = told
    assert isinstance(answer, bytes)
    assert "no counter" in caplog.text
    assert asking.stats.refusals["internal"] == 0


async def test_large_call_that_is_taken_back_at_once(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    """A call whose reset comes in the same read is nobody's fault, however large it is."""
    ends = Ends(asking)
    ends.settle()
    request = Request("edge", tuple(descriptor(f"user={number}") for number in range(99)))
    data = ends.client.headers() + ends.client.data(encode_request(request))

    with caplog.at_level(logging.ERROR):
        ends.receive(data + rst_stream(ends.client.stream_id, ErrorCode.CANCEL))

    assert caplog.text == ""
    assert asking.stats.refusals["internal"] == 0
    assert ends.served.undecided == 0
    assert ends.call()


async def test_unknown_wait(
    asking: Asking, broken: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    """If the store cannot say how long requests would wait, late calls are counted all the same."""
    ends = Ends(asking)
    ends.settle()
    broken.seam = "wait"
    pending: Any = ends.pending[0]
    pending[ends] = elapsed_us()  # as if others were under way

    with caplog.at_level(logging.ERROR):
        assert ends.call(waited_us=10_000_000)

    assert "nobody knows" in caplog.text
    assert asking.stats.refusals["internal"] == 0
    assert not ends.wire.closed


@pytest.mark.skipif(compiled(), reason="its methods cannot be replaced then")
async def test_fault_in_a_turn_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large call that fails in the turn of its own is refused, and its connection goes on."""
    ends = Ends(Asking(tmp_path, RULES, store=Away()))
    ends.settle()
    many = Request("edge", tuple(descriptor(f"user={value}") for value in range(200)))
    large = ends.client.headers() + ends.client.data(encode_request(many))

    def failing(undecided: int) -> int:
        raise KeyError(undecided)

    with monkeypatch.context() as patched:
        patched.setattr(calls, "priority_of", failing)
        assert ends.receive(large) == [FrameType.HEADERS]

    assert ends.stats.refusals["internal"] == 1
    assert not ends.wire.closed
    assert ends.call()


@pytest.mark.skipif(compiled(), reason="its functions cannot be replaced then")
async def test_fault_in_refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that cannot be reset, for which there is no time, is refused in another way."""
    ends = Ends(Asking(tmp_path, RULES, store=Away()))
    ends.settle()
    head = ends.client.headers([("grpc-timeout", "100S"), ("x-seen", "never")])

    def failing(streams: Sequence[int]) -> bytes:
        raise KeyError(streams)

    with monkeypatch.context() as patched:
        patched.setattr(runs, "refusals", failing)
        said = ends.receive(head + ends.client.data(BODY), 90_000_000)

    assert said == [FrameType.HEADERS]
    assert ends.stats.refusals["internal"] == 1
    assert not ends.wire.closed
    assert ends.call()


async def test_fault_of_who_is_told(asking: Asking, caplog: pytest.LogCaptureFixture) -> None:
    """A caller that fails with its answers is called once, and is no fault of the store."""
    calls = []

    def done(answers: object) -> None:
        calls.append(answers)
        raise KeyError("no stream")

    with caplog.at_level(logging.ERROR):
        asking.service.submit(CallbackBatch([BODY], done))

    assert len(calls) == 1
    assert "no stream" in caplog.text


async def test_neighbours_that_need_no_store(asking: Asking, broken: Broken) -> None:
    """In a batch whose charge fails, a bad request and an unlimited one have their own answers."""
    broken.seam = "charge"
    free = encode_request(Request("edge", (descriptor("free=x"),)))

    counted, bad, unlimited = await asking.service.decide([BODY, b"\xff", free])

    assert isinstance(counted, Refusal)
    assert counted.code is StatusCode.INTERNAL
    assert isinstance(bad, Refusal)
    assert bad.code is StatusCode.INVALID_ARGUMENT
    assert isinstance(unlimited, bytes)


async def test_one_traceback_a_second(
    asking: Asking, broken: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    """However many requests fail, the log has one traceback of them in a second."""
    broken.seam = "charge"

    with caplog.at_level(logging.ERROR):
        await asking.service.decide([BODY] * 50)

    assert caplog.text.count("Traceback") == 1
    assert asking.stats.refusals["internal"] == 50


@pytest.fixture(params=TRANSPORTS)
async def channel(
    request: pytest.FixtureRequest, asking: Asking
) -> AsyncIterator[grpc.aio.Channel]:
    server = TRANSPORTS[request.param]("127.0.0.1:0", asking.service, Health())
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


@pytest.mark.parametrize("seam", REFUSED)
async def test_same_connection_goes_on(
    channel: grpc.aio.Channel, broken: Broken, seam: str
) -> None:
    """Over gRPC the call ends with INTERNAL, and the same connection answers the next ones."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    call = channel.unary_unary(f"/{SERVICE}/{METHOD}")
    await call(BODY, timeout=60)
    states = []

    for _ in range(3):
        broken.seam = seam
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(BODY, timeout=60)
        states.append(refused.value.code())
        broken.seam = ""
        assert decode_decision(await call(BODY, timeout=60)).code is Code.OK

    assert states == [grpc.StatusCode.INTERNAL] * 3
    assert channel.get_state() is grpc.ChannelConnectivity.READY


@pytest.mark.parametrize("seam", REFUSED)
async def test_json_goes_on(asking: Asking, broken: Broken, seam: str) -> None:
    """Over /json the request ends with 500 and a sentence, and the next one is decided."""
    admin = http_port(asking)
    listener = Listener()
    await admin.start([listener])
    url = f"http://127.0.0.1:{listener.port}/json"
    body = {"domain": "edge", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}

    broken.seam = seam
    refused = await asyncio.to_thread(http, url, body)
    broken.seam = ""
    decided = await asyncio.to_thread(http, url, body)

    assert refused.status == 500
    assert refused.text == "the service failed to decide this request: see its log\n"
    assert decided.status == 200
    await admin.close()
