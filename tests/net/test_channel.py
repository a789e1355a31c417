"""What is read from a client and written to it, over real sockets, plain and with TLS."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ratelimit_service.grpc.tls import TLSFiles
from ratelimit_service.net.channel import READ_BYTES, PlainChannel, TlsChannel
from tests.grpc.test_addresses import Files
from tests.servers.tls_records import TlsRecords

MOST_AT_ONCE = 32
"""So many records of TLS are opened in a read."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end and the client's."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def other(ends: tuple[socket.socket, socket.socket]) -> socket.socket:
    """The client's end."""
    return ends[1]


@pytest.fixture
def plain(ends: tuple[socket.socket, socket.socket]) -> PlainChannel:
    return PlainChannel(ends[0])


def received(end: socket.socket) -> bytes:
    """All that has come."""
    found = b""
    with suppress(BlockingIOError):
        while data := end.recv(1 << 20):
            found += data
    return found


def read_all(channel: PlainChannel | TlsChannel) -> bytes:
    found = b""
    while channel.more:
        found += channel.read()
    return found


def test_reads(plain: PlainChannel, other: socket.socket) -> None:
    """A read brings what has come; one that does not fill its room has emptied the socket."""
    data = bytes(range(256)) * 300
    other.send(data)
    plain.more = True

    first = plain.read()
    assert first == data[:READ_BYTES]
    assert plain.more
    assert plain.left() == len(data) - READ_BYTES
    second = plain.read()

    assert first + second == data
    assert not plain.more
    assert plain.left() == 0
    assert not plain.gone


def test_a_read_of_nothing(plain: PlainChannel) -> None:
    """Where nothing has come after all there is nothing to be read, and nobody has gone."""
    plain.more = True

    assert plain.read() == b""
    assert not plain.more
    assert not plain.gone


@pytest.mark.parametrize("size", [1, READ_BYTES])
def test_the_end_after_data(plain: PlainChannel, other: socket.socket, size: int) -> None:
    """What was said before the other end was closed is read, and then that it has gone."""
    other.send(bytes(size))
    other.close()
    plain.more = True
    plain.end_comes()

    assert len(plain.read()) == size
    assert plain.more
    assert not plain.gone
    assert plain.read() == b""
    assert plain.gone
    assert not plain.more


def test_what_the_system_does_not_take(plain: PlainChannel, other: socket.socket) -> None:
    """It waits, and goes out in order behind what went before as the other end reads."""
    parts = [bytes((number,)) * 100_000 for number in range(20)]
    for each in parts:
        plain.write(each)
    assert plain.unsent
    plain.write(b"the last")

    found = received(other)
    while plain.unsent:
        plain.write_on()
        found += received(other)
    found += received(other)

    assert found == b"".join(parts) + b"the last"
    assert not plain.gone


@pytest.mark.parametrize("waiting", [True, False])
def test_writes_to_who_has_gone(plain: PlainChannel, other: socket.socket, waiting: bool) -> None:
    """Nobody hears them; the channel has gone, and nothing is raised."""
    if waiting:
        plain.write(bytes(10_000_000))
    other.close()

    if waiting:
        plain.write_on()
    else:
        plain.write(b"hello?")

    assert plain.gone


def test_reset() -> None:
    """A client that resets the connection has gone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setblocking(False)
    channel = PlainChannel(ours)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    channel.more = True
    channel.end_comes()

    assert channel.read() == b""

    assert channel.gone
    channel.close()
    assert channel.left() == 0


class TlsClient:
    """The client's side of TLS by Python's ssl, a step at a time."""

    def __init__(self, end: socket.socket, files: Files) -> None:
        context = ssl.create_default_context(cafile=str(files.ca))
        context.set_alpn_protocols(["h2"])
        self.end = end
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake(self) -> None:
        """The next step of the handshake."""
        self.incoming.write(received(self.end))
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.flush()

    def say(self, data: bytes) -> None:
        self.tls.write(data)
        self.flush()

    def flush(self) -> None:
        if self.outgoing.pending:
            self.end.send(self.outgoing.read())

    def hear(self) -> bytes:
        self.incoming.write(received(self.end))
        found = b""
        with suppress(ssl.SSLWantReadError):
            while data := self.tls.read(1 << 16):
                found += data
        return found


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def tls(ends: tuple[socket.socket, socket.socket], files: Files) -> TlsChannel:
    context = TLSFiles(files.cert, files.key).read().context()
    return TlsChannel(ends[0], context)


@pytest.fixture
def client(tls: TlsChannel, other: socket.socket, files: Files) -> TlsClient:
    """One that has shaken hands."""
    client = TlsClient(other, files)
    while not tls.agreed:
        client.shake()
        tls.more = True
        assert read_all(tls) == b""
    return client


def test_tls_both_ways(tls: TlsChannel, client: TlsClient) -> None:
    """Once both sides have agreed, each hears what the other says."""
    client.say(b"hello")
    tls.more = True
    assert read_all(tls) == b"hello"
    assert tls.empty == 0

    tls.write(b"hello yourself")

    assert client.hear() == b"hello yourself"
    assert not tls.gone


def test_first_bytes_together_with_the_handshake(
    tls: TlsChannel, other: socket.socket, files: Files
) -> None:
    """What a client says right behind its last step of the handshake is read."""
    client = TlsClient(other, files)
    client.shake()
    tls.more = True
    assert read_all(tls) == b""
    assert not tls.agreed
    client.shake()
    client.say(b"at once")

    tls.more = True

    assert read_all(tls) == b"at once"
    assert tls.agreed


def test_tls_in_any_pieces(tls: TlsChannel, client: TlsClient) -> None:
    """Records are opened when they are whole, a few at once, in order, however they come."""
    chance, found, sent = random.Random(7), b"", b""
    for _ in range(50):
        for _ in range(chance.randrange(60)):
            data = chance.randbytes(chance.choice((1, 2, 300, 16_384)))
            client.tls.write(data)
            sent += data
        data = client.outgoing.read()
        while data:
            size = chance.choice((1, 3, 700, 40_000, 65_536))
            client.end.send(data[:size])
            data = data[size:]
            tls.more = True
            if chance.random() < 0.5 or tls.left() > 100_000:
                found += read_all(tls)
    found += read_all(tls)

    assert found == sent
    assert tls.left() == 0


def test_few_records_at_once(tls: TlsChannel, client: TlsClient) -> None:
    """However many small records have come, a read opens a few of them, and knows of the rest."""
    for _ in range(100):
        client.tls.write(b"x")
    client.flush()
    tls.more = True

    reads = []
    while tls.more:
        reads.append(len(tls.read()))

    assert max(reads) == MOST_AT_ONCE
    assert sum(reads) == 100


def test_tls_goodbye(tls: TlsChannel, client: TlsClient) -> None:
    """A client that says goodbye has gone, once all that it said before was read."""
    client.say(b"last words")
    with suppress(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.flush()
    tls.more = True

    assert read_all(tls) == b"last words"
    assert tls.gone
    assert not tls.more


def test_our_goodbye(tls: TlsChannel, client: TlsClient) -> None:
    """The client hears all that was said, and that it is over."""
    tls.write(b"last words")
    tls.end()

    client.incoming.write(received(client.end))
    assert client.tls.read(100) == b"last words"
    assert client.tls.read(100) == b""


def test_tls_that_hangs_up(tls: TlsChannel, client: TlsClient) -> None:
    """A client that hangs up without a goodbye has gone, after what it said was read."""
    client.say(b"last words")
    client.end.close()
    tls.more = True
    tls.end_comes()

    assert read_all(tls) == b"last words"
    assert tls.gone


def test_tls_write_that_the_system_does_not_take(tls: TlsChannel, client: TlsClient) -> None:
    """It goes out in order as the client reads."""
    data = random.Random(7).randbytes(3_000_000)
    tls.write(data)
    tls.write(b"the last")
    assert tls.unsent

    found = client.hear()
    while tls.unsent:
        tls.write_on()
        found += client.hear()

    assert found == data + b"the last"


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\3\1\xff\xff" + bytes(100)])
def test_what_is_no_tls(tls: TlsChannel, other: socket.socket, said: bytes) -> None:
    """What cannot become a record ends the connection at once; nobody has agreed then."""
    other.send(said)
    tls.more = True

    assert read_all(tls) == b""

    assert tls.gone
    assert not tls.agreed


def test_a_damaged_record(tls: TlsChannel, client: TlsClient) -> None:
    """A record that was changed on its way ends the connection; those before it are read."""
    client.say(b"whole")
    client.tls.write(b"changed")
    data = bytearray(client.outgoing.read())
    data[-1] ^= 1
    client.end.send(data)
    tls.more = True

    assert read_all(tls) == b"whole"
    assert tls.gone


async def test_changes_of_keys(tls: TlsChannel, other: socket.socket, files: Files) -> None:
    """Records of which nothing comes are counted in each read, and no others are."""
    shaking = asyncio.create_task(TlsRecords.agreed(other, files.ca))
    while not (shaking.done() and tls.agreed):
        await asyncio.sleep(0)
        tls.more = True
        read_all(tls)
    records = shaking.result()
    other.send(b"".join(records.key_update() for _ in range(100)) + records.data(b"data"))
    tls.more = True

    empty, found = [], b""
    while tls.more:
        found += tls.read()
        empty.append(tls.empty)

    assert found == b"data"
    assert sum(empty) == 100
    assert max(empty) == MOST_AT_ONCE
