"""A fault of ours in any function on the way of a call: it is answered or refused, and no more.

Each function that a call goes through raises once, in turn. `test_bugs` says of the seams what
becomes of the call; here is that none of them was forgotten.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from types import FrameType as PythonFrame

import pytest

import ratelimit_service
from ratelimit_service import compiled, wire
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.messages import PREFIX_BYTES
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Store
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from tests.grpc.ends import come
from tests.grpc.h2_client import HEADERS
from tests.grpc.served_ends import Ends, rounds
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, Timed, descriptor
from tests.stores.redis_store import started
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(compiled(), reason="its functions cannot be made to fail then")

RULES = """
domain: edge
descriptors:
  - {key: many, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: few, rate_limit: {unit: year, requests_per_unit: 2}}
"""

PACKAGE = Path(ratelimit_service.__file__).parent
LOOKED_AT = [
    *(f"{folder}/" for folder in ("service", "limiter", "wire", "stores", "algorithms", "model")),
    *(f"grpc/{name}.py" for name in ("calls", "call_batch", "overload", "h2/sending")),
]
"""Where a fault is a call's own."""

READING = "grpc/h2/"
"""Where a fault may end a connection: nobody knows where the next frame begins."""

ENDS_A_CONNECTION = {
    "Sender.blocked",
    "Sender.may_go_on",
    "ServiceCalls._decide_alone",
    "ServiceCalls._late",
    "ServiceCalls.handle",
    "ServiceCalls.wants_origins",
    "DecisionEvents.wants_origins",
}
"""What is called while frames are read, or takes what was read, so that the rest is lost."""

_OUTERMOST = "contains the faults of all that it calls; who calls it knows no calls"
_REPLIES = "a store's reply ends in it, and no other comes"

EXCUSED = {
    "Batches._replied": _REPLIES,
    "CallBatch._answer_on": _OUTERMOST,
    "CallBatch._call_then": _OUTERMOST,
    "CallBatch.answer": _OUTERMOST,
    "LocalCache._learn": _REPLIES,
    "LocalCache._settled": _REPLIES,
    "RedisStore._all_read": _REPLIES,
    "RedisStore._timer_fired": _REPLIES,
    "Service._charge": _OUTERMOST,
    "Service._settled": _REPLIES,
    "Service._tell": _OUTERMOST,
    "ServiceCalls._submit_all": "its calls are handed on with the next ones",
    "_decided": _REPLIES,
    "Client._do_step": "as the scheduler knows no calls, its connection waits until it is closed",
    "Client._flush_now": "what it was to write is written with the next visit",
}
"""What may fail at its first instruction only, and why nothing is there to contain that."""


class FaultError(Exception):
    """A fault of ours."""


@contextmanager
def profiled(look: Callable[[CodeType], None]) -> Iterator[None]:
    """Has each function looked at that begins meanwhile; what this raises, the function raises."""

    def called(frame: PythonFrame, event: str, _: object) -> None:
        if event == "call":
            look(frame.f_code)

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


class Client:
    """A client whose calls come after having waited for a while."""

    def __init__(
        self, ends: Ends, descriptors: list[Descriptor], waited_us: int, errors: Counter[str]
    ) -> None:
        """`errors` are those that the store has counted."""
        self.ends = ends
        self.errors = errors
        self.odd = False
        """Whether calls come in pieces."""
        self._odd_calls = 0
        self._message = wire.encode_request(Request("edge", tuple(descriptors)))
        self._waited_us = waited_us

    async def call(self, look: Callable[[CodeType], None], *, fresh: bool = False) -> list[int]:
        """Makes a call; returns the types of the frames that are its answer."""
        ends, waited_us = self.ends, 0 if fresh else self._waited_us
        data = ends.client.headers([("grpc-timeout", "100S")]) + ends.client.data(self._message)
        if self.odd:
            data = self._odd(data)
        ends.receive(frames.window_update(0, 10_000))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        with profiled(look):
            self._come(data, waited_us)
            ends.turn()
            while not (ends.wire.written or ends.wire.closed) and loop.time() < deadline:
                await asyncio.sleep(0)
            await rounds()
        return ends.wire.kinds()

    def _come(self, data: bytes, waited_us: int) -> None:
        """Has bytes come, as the scheduler does it: whom it cannot hear it drops."""
        served = self.ends.served
        try:
            come(served, data, waited_us)
        except FaultError as error:
            served.fail(error)

    def _odd(self, call: bytes) -> bytes:
        """The same call in pieces, between frames of all kinds."""
        ends, stream_id = self.ends, self.ends.client.stream_id
        self._odd_calls += 1
        block = ends.client.encoder.encode([*HEADERS, ("x-number", str(self._odd_calls))])
        head, rest = block[:3], block[3:]
        message = call[-len(self._message) - PREFIX_BYTES :]
        return b"".join(
            [
                frames.frame(FrameType.PING, 0, 0, b"are you?"),
                frames.settings({SettingId.INITIAL_WINDOW_SIZE: 65_536}),
                frames.frame(FrameType.HEADERS, 0, stream_id, head),
                frames.frame(FrameType.CONTINUATION, END_HEADERS, stream_id, rest),
                frames.frame(FrameType.PRIORITY, 0, stream_id, bytes(5)),
                frames.window_update(stream_id, 1_000),
                frames.frame(FrameType.DATA, PADDED, stream_id, b"\2" + message[:4] + bytes(2)),
                frames.frame(FrameType.DATA, END_STREAM, stream_id, message[4:]),
                ends.client.headers(end=False),
                frames.rst_stream(ends.client.stream_id, ErrorCode.CANCEL),
            ]
        )

    async def is_counted_again(self) -> bool:
        """Makes calls until the store has counted one; returns whether all were answered."""
        while True:
            errors = self.errors.total()
            if FrameType.DATA not in await self.call(ignore, fresh=True):
                return False
            if self.errors.total() == errors:
                return True

    async def connect(self) -> None:
        """Goes on with a connection of its own, beside what there was."""
        self.ends.begin()
        odd, self.odd = self.odd, False
        await self.settle()
        self.odd = odd

    async def settle(self) -> None:
        """Makes calls until everything that can be remembered of them is."""
        await self.call(ignore, fresh=True)
        self.ends.client.encoder.header_table_size = 0
        self.ends.receive(self.ends.client.ack())
        for _ in range(6):
            await self.call(ignore, fresh=True)


def ignore(_: CodeType) -> None: ...


@pytest.fixture(params=["memory", "large", "late", "refused", "redis", "ring, denied"])
async def client(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Client]:
    # What nothing else ends ends after the longest wait, once for each function.
    monkeypatch.setattr("ratelimit_service.stores.redis.store._LONGEST_US", 200_000)
    redis_server.flush()
    kind, stats = request.param.partition(",")[0], Stats()
    store: Store = Timed()
    if kind in ("memory", "large"):
        store = MemoryStore(1_000, stats, Health())
    elif kind == "redis":
        store = RedisStore(redis_server.url, 20_000, stats, Health())
    elif kind == "ring":
        store = RedisStore(f"file:{_ring(tmp_path, redis_server)}", 20_000, stats, Health())
    if isinstance(store, RedisStore):
        await started(store)
    yield await _client(tmp_path, store, stats, request.param)
    await store.close()


@pytest.fixture(params=["memory", "large", "late", "refused", "odd"])
async def reading(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    stats = Stats()
    counts = request.param in ("memory", "large", "odd")
    store: Store = MemoryStore(1_000, stats, Health()) if counts else Timed()
    client = await _client(tmp_path, store, stats, request.param)
    client.odd = request.param == "odd"
    return client


async def _client(directory: Path, store: Store, stats: Stats, param: str) -> Client:
    """A client of a service over this store, whose calls are of that kind."""
    kind, rules = param.partition(",")[0], directory / "rules"
    rules.mkdir()
    asking = Asking(rules, RULES, store=LocalCache(store, 1 << 20, stats))
    asked = [descriptor(f"many={value}") for value in range(200 if kind == "large" else 4)]
    if "denied" in param:
        asked.append(descriptor("few=a", addend=5))
    waited_us = {"late": 3_000_000, "refused": 80_000_000}.get(kind, 0)
    client = Client(Ends(asking), asked, waited_us, stats.store_errors)
    await client.settle()
    return client


def _ring(directory: Path, server: RedisServer) -> Path:
    base = server.url.removesuffix("0")
    lines = [f"- {{name: shard-{number}, store: '{base}{number}'}}" for number in range(3)]
    file = directory / "shards.yaml"
    file.write_text("\n".join(["shards:", *lines]))
    return file


async def test_each_function_fails_once(client: Client) -> None:
    """Whichever function fails, that call is answered or refused, and later ones are counted."""
    ends, met = client.ends, dict[CodeType, None]()

    def meet(code: CodeType) -> None:
        met[code] = None

    assert await client.call(meet)
    functions = [code for code in met if _is_looked_at(code)]

    for code in functions:
        failed: list[str] = []

        def fail(called: CodeType, code: CodeType = code, failed: list[str] = failed) -> None:
            if called is code and not failed:
                failed.append(code.co_qualname)
                raise FaultError(code.co_qualname)

        name = f"{code.co_qualname} in {code.co_filename}"
        said = await client.call(fail)
        assert said, name
        if ends.wire.closed:
            assert code.co_qualname in ENDS_A_CONNECTION, name
            assert FrameType.GOAWAY in said, name
            ends.served.abort()
            await client.connect()
        assert await client.is_counted_again(), name
        assert ends.served.undecided == 0, name
        assert not any(ends.pending), name

    assert functions


async def test_each_function_of_reading_fails_once(reading: Client) -> None:
    """A fault where frames are read ends that connection at most: with GOAWAY, and nothing is kept.

    It is counted, and the calls of others are counted all the same.
    """
    ends, met = reading.ends, dict[CodeType, None]()
    neighbour = ends.served, ends.wire, ends.client

    def meet(code: CodeType) -> None:
        met[code] = None

    await reading.connect()
    assert await reading.call(meet)
    functions = [code for code in met if _is_of_reading(code)]

    for code in functions:
        await reading.connect()
        served, faults = ends.served, ends.stats.refusals["internal"]
        failed: list[str] = []

        def fail(called: CodeType, code: CodeType = code, failed: list[str] = failed) -> None:
            if called is code and not failed:
                failed.append(code.co_qualname)
                raise FaultError(code.co_qualname)

        name = f"{code.co_qualname} in {code.co_filename}"
        said = await reading.call(fail)
        assert said, name
        if failed:
            assert ends.stats.refusals["internal"] > faults, name
        if ends.wire.closed:
            assert FrameType.GOAWAY in said, name
        else:
            assert await reading.is_counted_again(), name
        served.abort()
        await rounds()
        assert served.undecided == ends.memory.held == 0, name
        assert not any(ends.pending), name

        ends.served, ends.wire, ends.client = neighbour
        odd, reading.odd = reading.odd, False
        assert await reading.is_counted_again(), name
        reading.odd = odd

    assert functions


def test_what_is_looked_at_is_there() -> None:
    """A folder or a module that was renamed is not passed over."""
    assert [each for each in [*LOOKED_AT, READING] if not (PACKAGE / each).exists()] == []


def _is_of_reading(code: CodeType) -> bool:
    its_file = Path(code.co_filename)
    return its_file.is_relative_to(PACKAGE / READING) and code.co_qualname not in EXCUSED


def _is_looked_at(code: CodeType) -> bool:
    file = Path(code.co_filename)
    if not file.is_relative_to(PACKAGE) or code.co_qualname in EXCUSED:
        return False
    return str(file.relative_to(PACKAGE)).startswith(tuple(LOOKED_AT))
