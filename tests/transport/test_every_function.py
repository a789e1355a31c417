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
from ratelimit_service.clock import elapsed_us
from ratelimit_service.health import Health
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.observer import Stats
from ratelimit_service.stores import Store
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.transport.h2 import frames
from ratelimit_service.transport.h2.frames import FrameType
from tests.servers.process import PATIENCE_SECONDS
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, Timed, descriptor
from tests.stores.redis_store import started
from tests.transport.served_ends import Ends, rounds

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
    *(f"transport/h2/{name}.py" for name in ("calls", "gathered", "overload", "sending")),
]
"""Where a fault is a call's own. A fault in reading frames ends their connection: nobody knows
where the next one begins."""

LAST_RESORTS = {
    "Backlog.caught_up_us",
    "Batches._landed",
    "Batches._replied",
    "Gathered.answer",
    "Gathered.submit",
    "Haste.concerns",
    "LocalCache._learn",
    "LocalCache._settled",
    "Pending.end",
    "RedisStore._all_read",
    "RedisStore._rung",
    "Service._charge",
    "Service._settled",
    "Service._tell",
    "ServiceCalls._decide_alone",
    "ServiceCalls._submit",
    "ServiceCalls.handle",
    "ServiceCalls.haste",
    "ServiceCalls.wants_origins",
    "Telling.wants_origins",
    "_decided",
}
"""These contain the faults of others, or are so small that there is nothing to contain."""


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
        self._message = wire.encode_request(Request("edge", tuple(descriptors)))
        self._waited_us = waited_us

    async def call(self, look: Callable[[CodeType], None], *, fresh: bool = False) -> list[int]:
        """Makes a call; returns the types of the frames that are its answer."""
        ends, waited_us = self.ends, 0 if fresh else self._waited_us
        data = ends.client.headers([("grpc-timeout", "100S")]) + ends.client.data(self._message)
        ends.receive(frames.window_update(0, 10_000))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        with profiled(look):
            ends.protocol.data_received(data)
            chunks = ends.protocol._inbox.chunks
            chunks[0] = (elapsed_us() - waited_us, chunks[0][1])
            ends.turn()
            while not (ends.wire.written or ends.wire.closed) and loop.time() < deadline:
                await asyncio.sleep(0)
            await rounds()
        return ends.wire.kinds()

    async def is_counted_again(self) -> bool:
        """Makes calls until the store has counted one; returns whether all were answered."""
        while True:
            errors = self.errors.total()
            if FrameType.DATA not in await self.call(ignore, fresh=True):
                return False
            if self.errors.total() == errors:
                return True

    async def settle(self) -> None:
        """Makes calls until everything that can be remembered of them is."""
        await self.call(ignore, fresh=True)
        self.ends.client.encoder.header_table_size = 0
        self.ends.receive(self.ends.client.ack())
        for _ in range(6):
            await self.call(ignore, fresh=True)
        self.ends.protocol.backlog.late_us = elapsed_us()


def ignore(_: CodeType) -> None: ...


@pytest.fixture(params=["memory", "large", "late", "hurried", "refused", "redis", "ring, denied"])
async def client(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> AsyncIterator[Client]:
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
    rules = tmp_path / "rules"
    rules.mkdir()
    asking = Asking(rules, RULES, store=LocalCache(store, 1 << 20, stats))
    asked = [descriptor(f"many={value}") for value in range(200 if kind == "large" else 4)]
    if "denied" in request.param:
        asked.append(descriptor("few=a", addend=5))
    waited_us = {"late": 3_000_000, "hurried": 50_000_000, "refused": 80_000_000}.get(kind, 0)
    client = Client(Ends(asking), asked, waited_us, stats.store_errors)
    await client.settle()
    yield client
    await store.close()


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
        ends.protocol.backlog.late_us = elapsed_us()
        failed: list[str] = []

        def fail(called: CodeType, code: CodeType = code, failed: list[str] = failed) -> None:
            if called is code and not failed:
                failed.append(code.co_qualname)
                raise FaultError(code.co_qualname)

        name = f"{code.co_qualname} in {code.co_filename}"
        assert await client.call(fail), name
        assert await client.is_counted_again(), name
        assert not ends.wire.closed, name
        assert ends.protocol.undecided == 0, name

    assert functions
    await rounds()
    assert not any(ends.calls._pending._since_us)


def _is_looked_at(code: CodeType) -> bool:
    file = Path(code.co_filename)
    if not file.is_relative_to(PACKAGE) or code.co_qualname in LAST_RESORTS:
        return False
    return str(file.relative_to(PACKAGE)).startswith(tuple(LOOKED_AT))
