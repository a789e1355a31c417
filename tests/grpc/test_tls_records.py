"""What clients send over TLS is opened in turns, a few records in each."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from ratelimit_service.grpc.h2.frames import PREFACE, settings
from ratelimit_service.net.handshakes import Handshakes, Sealed, empty_records
from tests.grpc.ends import Ends, Wire, held_back
from tests.grpc.h2_client import Client
from tests.grpc.places import Place, until
from tests.servers.tls_records import TlsRecords

KEY_UPDATE_BYTES = 27
RECORDS_AT_ONCE = 32


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
        while place.server._handshakes._line or not hearing.hears():
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


async def test_many_changes_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records that change the keys come at once, a piece opens a few of them."""
    pieces: list[int] = []
    open_some = Sealed.open_some

    def noted(sealed: Sealed, most: int = RECORDS_AT_ONCE) -> tuple[int, int]:
        records, size = open_some(sealed, most)
        pieces.append(records)
        return records, size

    place = Place(tmp_path, given=True, tls=True, guests=None)
    client = await Hearing.of(place)
    monkeypatch.setattr(Sealed, "open_some", noted)
    count = 400  # the last one is answered with what is said next

    client.records.end.send(b"".join(client.records.key_update() for _ in range(count + 1)))
    async with asyncio.timeout(30):
        while client.heard < count * KEY_UPDATE_BYTES:
            await asyncio.sleep(0)
            client.hears()

    assert sum(pieces) == count + 1
    assert max(pieces) <= RECORDS_AT_ONCE
    client.records.end.close()
    await place.server.stop(0)


@pytest.mark.parametrize("asks", [True, False])
async def test_changes_of_keys_without_end(tmp_path: Path, asks: bool) -> None:
    """A client that does nothing but change its keys is told to calm down, and thrown out."""
    place = Place(tmp_path, given=True, tls=True, guests=None)
    client = await Hearing.of(place)

    data = b"".join(client.records.key_update(asks=asks) for _ in range(3_000))
    while data and not client.closed:
        with suppress(BlockingIOError, ConnectionError):
            data = data[client.records.end.send(data) :]
        await asyncio.sleep(0)
        client.hears()

    await until(lambda: place.server.connections == 0, "its end")
    assert place.stats.closed_connections == {"flood_records": 1}
    client.records.end.close()
    await place.server.stop(0)


async def test_calls_in_tiny_records(tmp_path: Path) -> None:
    """A call whose bytes come one in each record, with changes of keys between, is answered."""
    place = Place(tmp_path, given=True, tls=True, guests=None)
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
    async with asyncio.timeout(30):
        while client.heard <= updates * KEY_UPDATE_BYTES:
            await asyncio.sleep(0.001)
            client.hears()

    assert place.stats.closed_connections == {}
    assert place.server.connections == 1
    records.end.close()
    await until(lambda: place.server.connections == 0, "its end")
    await place.server.stop(0)


class Opened(asyncio.BufferedProtocol):
    """Stands for TLS: keeps what it is handed."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._room = bytearray(1 << 18)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.parts.append(bytes(self._room[:nbytes]))


class Below(Wire):
    """A socket whose bytes are for TLS."""

    def __init__(self, tls: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol = tls

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


def sealed_with(tls: asyncio.BufferedProtocol, handshakes: Handshakes) -> Sealed:
    """What stands before this TLS."""
    wire = Below(tls)
    sealed = Sealed(handshakes)
    sealed.connection_made(wire)
    sealed.stand_before_tls()
    return sealed


async def test_whole_records() -> None:
    """Only whole records are opened, a few at once, in order, however they have come."""
    chance = random.Random(7)
    for _ in range(200):
        tls = Opened()
        sealed = sealed_with(tls, Handshakes(held_back()))
        sizes = [chance.choice((0, 1, 22, 300, 16_400)) for _ in range(chance.randrange(1, 80))]
        records = [b"\x17\3\3" + size.to_bytes(2, "big") + bytes(size) for size in sizes]
        data, opened, came_us = b"".join(records), 0, 0
        while data:
            size = chance.choice((1, 3, 700, 40_000))
            came_us += 1
            sealed.put(came_us, data[:size])
            data = data[size:]
            while sealed.ready and chance.random() < 0.8:
                assert sealed.came_us <= came_us
                number, size = sealed.open_some()
                assert number <= RECORDS_AT_ONCE
                if number:
                    assert tls.parts[-1] == b"".join(records[opened : opened + number])
                    assert size == len(tls.parts[-1])
                opened += number
        while sealed.ready:
            opened += sealed.open_some()[0]

        assert opened == len(records)
        assert b"".join(tls.parts) == b"".join(records)
        assert sealed.size == 0


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"\x16\3\1\xff\xff" + bytes(100)])
async def test_what_is_no_tls(said: bytes) -> None:
    """What cannot become a record is handed on at once, so that TLS can refuse it."""
    tls = Opened()
    sealed = sealed_with(tls, Handshakes(held_back()))

    sealed.put(0, said)
    sealed.open_some()

    assert tls.parts == [said]


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


class FullOfData(Opened):
    """TLS that hands on a byte of each record."""

    def __init__(self, ends: Ends) -> None:
        super().__init__()
        self._ends = ends

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self._ends.protocol.data_received(b"x")


async def test_a_client_whose_bytes_wait_is_not_read_from() -> None:
    """What waits to be opened has a bound, above which nothing more is read."""
    ends = Ends()
    sealed = sealed_with(FullOfData(ends), Handshakes(held_back()))
    ends.protocol._sealed = ends.protocol.pauses.source = sealed
    sealed._opener = ends.protocol
    record = b"\x17\3\3" + (16_384).to_bytes(2, "big") + bytes(16_384)

    sent = 0
    assert isinstance(sealed._raw, Wire)
    while sealed._raw.reading:
        sealed.received(record)
        sent += len(record)

    assert 262_144 < sent <= 262_144 + len(record)
