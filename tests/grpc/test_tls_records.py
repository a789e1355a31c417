"""What clients send over TLS is opened in visits, a few records in each."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from ratelimit_service.grpc.h2.frames import PREFACE, ping, settings
from ratelimit_service.net.channel import empty_records
from tests.grpc.h2_client import Client
from tests.grpc.places import Place
from tests.servers.tls_records import TlsRecords
from tests.waiting import PATIENCE_SECONDS, until

KEY_UPDATE_BYTES = 27


class Hearing:
    """A client over TLS, and how much the server has said to it."""

    def __init__(self, records: TlsRecords) -> None:
        self.records = records
        self.heard = 0
        self.closed = False

    @classmethod
    async def of(cls, place: Place) -> Hearing:
        end = await place.client()
        end.setblocking(False)
        hearing = cls(await TlsRecords.agreed(end, place.files.ca))
        hello = PREFACE + settings({}) + Client.ack()
        end.send(hearing.records.data(hello))
        while not hearing.hears():
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
            hearing.hears()
        hearing.heard = 0
        return hearing

    def hears(self) -> int:
        """How many bytes have come since."""
        size = -1
        with suppress(BlockingIOError):
            try:
                size = len(self.records.end.recv(1 << 18))
            except ConnectionError:
                size = 0
        self.closed = self.closed or size == 0
        self.heard += max(0, size)
        return max(0, size)


async def test_many_changes_of_keys(tmp_path: Path) -> None:
    """A client may change its keys many times at once: it hears of ours each time, and stays."""
    place = Place(tmp_path, given=True, tls=True, limiter=None)
    client = await Hearing.of(place)
    count = 400  # the last one is answered with what is said next

    client.records.end.send(b"".join(client.records.key_update() for _ in range(count + 1)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while client.heard < count * KEY_UPDATE_BYTES:
            await asyncio.sleep(0)
            client.hears()

    assert place.server.connections == 1
    client.records.end.close()
    await place.server.stop(0)


async def test_others_beside_changes_of_keys(tmp_path: Path) -> None:
    """However many records that change the keys come at once, another is answered in between."""
    place = Place(tmp_path, given=True, tls=True, limiter=None)
    client, other = await Hearing.of(place), await Hearing.of(place)
    updates = b"".join(client.records.key_update(asks=False) for _ in range(1_500))

    sent = client.records.end.send(updates)
    other.records.end.send(other.records.data(ping(b"12345678", ack=False)))
    rounds = 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not other.hears():
            await asyncio.sleep(0)
            rounds += 1

    assert sent > 1_000 * KEY_UPDATE_BYTES
    assert rounds <= 10
    assert place.stats.closed_connections == {}
    for each in (client, other):
        each.records.end.close()
    await until(lambda: place.server.connections == 0)
    await place.server.stop(0)


@pytest.mark.parametrize("asks", [True, False])
async def test_changes_of_keys_without_end(tmp_path: Path, asks: bool) -> None:
    """A client that does nothing but change its keys is told to calm down, and thrown out."""
    place = Place(tmp_path, given=True, tls=True, limiter=None)
    client = await Hearing.of(place)

    data = b"".join(client.records.key_update(asks=asks) for _ in range(3_000))
    while data and not client.closed:
        with suppress(BlockingIOError, ConnectionError):
            data = data[client.records.end.send(data) :]
        await asyncio.sleep(0)
        client.hears()

    await until(lambda: place.server.connections == 0)
    assert place.stats.closed_connections == {"flood_records": 1}
    client.records.end.close()
    await place.server.stop(0)


async def test_calls_in_tiny_records(tmp_path: Path) -> None:
    """A call whose bytes come one in each record, with changes of keys between, is answered."""
    place = Place(tmp_path, given=True, tls=True, limiter=None)
    client, speaker = await Hearing.of(place), Client()
    records = client.records
    parts = []
    for number, byte in enumerate(speaker.headers() + speaker.data(b"")):
        parts.append(records.data(bytes((byte,))))
        if number % 8 == 0:
            parts.append(records.key_update())

    data = b"".join(parts)
    updates = sum(len(part) == KEY_UPDATE_BYTES for part in parts)
    for at in range(0, len(data), 1_000):
        records.end.send(data[at : at + 1_000])
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while client.heard <= updates * KEY_UPDATE_BYTES:
            await asyncio.sleep(0.001)
            client.hears()

    assert place.stats.closed_connections == {}
    assert place.server.connections == 1
    records.end.close()
    await until(lambda: place.server.connections == 0)
    await place.server.stop(0)


@pytest.mark.parametrize(
    ("version", "records", "size", "contents", "empty"),
    [
        ("TLSv1.3", 3, 81, 0, 3),
        ("TLSv1.3", 2, 27 + 122, 100, 1),
        ("TLSv1.3", 1, 122, 100, 0),
        ("TLSv1.3", 1, 16_000, 0, 1),
        ("TLSv1.3", 1, 24, 0, 0),
        ("TLSv1.2", 2, 258, 200, 0),
        ("TLSv1.2", 2, 58, 0, 2),
    ],
)
def test_empty_records(version: str, records: int, size: int, contents: int, empty: int) -> None:
    """Records of which nothing came are told from their sizes, padded ones as well."""
    assert empty_records(version, records, size, contents) == empty
