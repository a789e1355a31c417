"""Lines of many decisions at once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.decision_log.line import HashValue, line_of
from ratelimit_service.decision_log.packets import Packer, PacketLines, decisions_in, packed
from ratelimit_service.grpc.h2.headers import HeaderReader, literal
from ratelimit_service.model import FailurePolicy, Request
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import CallOrigin, DecidedBatch, Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from tests.service.asking import Asking, Away, Heard, descriptor

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: account, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 1, name: p, algorithm: token_bucket}}
  - key: both
    rate_limits: [{unit: day, requests_per_unit: 3}, {unit: hour, requests_per_unit: 1}]
  - {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
"""
TRACE = "0af7651916cd43dd8448eb211c80319c"
_BLOCK = b"\x20" + b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/x"),
        (b"content-type", b"application/grpc"),
        (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()),
        (b"x-request-id", b"an id"),
    )
)
"""A header block of a client that uses no table."""

ORIGINS = (
    CallOrigin(),
    CallOrigin("10.0.0.7"),
    CallOrigin("10.0.0.8", [(b"x-request-id", b'"\x1b\\'), (b"b3", b"%b-b7ad6b7169203331" % b"1")]),
    CallOrigin("", [(b"x-request-id", b"7"), (b"b3", f"{TRACE}-b7ad6b7169203331".encode())]),
    CallOrigin("10.0.0.9", block=_BLOCK, read=HeaderReader().caller_headers),
)


class Batches(Heard):
    """The decisions of a service, as they were told."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.batches: list[tuple[int, DecidedBatch, Sequence[int]]] = []

    def hear(self, decided: DecidedBatch) -> None:
        moment = 1_760_000_000_000_000 + 1_000_003 * (len(self.batches) // 3)
        self.batches.append((moment, decided, range(len(decided.bodies))))

    @property
    def number(self) -> int:
        return len(list(self.each()))

    def each(self) -> Iterator[tuple[int, DecidedBatch, int]]:
        for moment, decided, indices in self.batches:
            for index in indices:
                yield moment, decided, index


@pytest.mark.parametrize("store", ["memory", "redis", "away"])
@pytest.mark.parametrize("hashed", [None, str.upper])
async def test_lines_of_many_are_the_lines_of_each(
    tmp_path: Path, store: str, hashed: HashValue | None
) -> None:
    """What decisions have in common is written once, and each line says what it says alone."""
    chance = random.Random(store)
    asking = Asking(tmp_path, RULES)
    service = asking.service
    if store == "redis":
        memory = MemoryStore(99, Stats(), asking.health, asking.clock)
        service = asking.served_by(LocalCache(memory, 1 << 20, Stats()), Settings())
    elif store == "away":
        service = asking.served_by(Away(), Settings(failure_policy=FailurePolicy.CLOSED))
    batches = Batches(service)
    keys = (
        "user=bob",
        "user=ü\u202e",
        "account=bob",
        "path=/a",
        "both=b",
        "seen=c",
        "free=d",
        "none=e",
    )
    for _ in range(60):
        bodies = [
            wire.encode_request(
                Request(
                    "edge", tuple(map(descriptor, chance.choices(keys, k=chance.choice([1, 2]))))
                )
            )
            if chance.random() < 0.9
            else b"\xff"
            for _ in range(chance.choice([1, 5]))
        ]
        origins = chance.choice([None, [chance.choice(ORIGINS) for _ in bodies]])
        asking.now_us += 1_000_000
        await service.decide(bodies, origins=origins)

    def shard_of(hit: object) -> str:
        return "" if store == "memory" else f"there:{hash(hit) % 2}"

    packer = Packer(0.5, 1, hashed, store, shard_of)
    groups = [group for batch in batches.batches for group in packer.groups(*batch)]
    packet = packed(batches.number, groups)
    assert decisions_in(packet) == batches.number
    lines = PacketLines(hashed).of(packet).decode()
    alone = []
    for at_us, decided, index in batches.each():
        record = decided.record(index)
        shard = "" if record.hit is None else shard_of(record.hit)
        share = 0.5 if record.denied else 1
        alone.append(line_of(record, at_us, share, hashed, store, shard) + "\n")
    assert lines.splitlines(keepends=True) == alone
    assert sum('"code":"OVER_LIMIT"' in line for line in alone) > 30


@pytest.mark.parametrize("indices", [range(6), range(2, 5), [0, 2, 3, 5], [1, 4]])
async def test_lines_of_some_say_who_asked(tmp_path: Path, indices: Sequence[int]) -> None:
    """Of a batch any decisions can be written down: each line has its own request and caller."""
    asking = Asking(tmp_path, RULES)
    users = ["bob", "ann", "bob"]
    bodies = [
        wire.encode_request(Request("edge", (descriptor(f"{key}={user}"),)))
        for key in ("user", "account")
        for user in users
    ]
    await asking.service.decide(bodies * 2)
    batches = Batches(asking.service)
    callers = [CallOrigin(f"10.0.0.{number // 2}") for number in range(len(bodies))]
    await asking.service.decide(bodies, origins=callers)

    moment, decided, _ = batches.batches[-1]
    packer = Packer(1, 1, None, "memory", lambda _: "")
    groups = [*packer.groups(moment, decided, indices)]
    packet = packed(len(indices), groups)
    assert len(groups) == 2  # one for each rule
    lines = [json.loads(line) for line in PacketLines(None).of(packet).splitlines()]

    result = [
        (*line["descriptors"][0]["entries"][0], line["code"], line["caller"]) for line in lines
    ]
    request = [(key, user) for key in ("user", "account") for user in users]
    assert result == [(*request[index], "OVER_LIMIT", callers[index].peer) for index in indices]
