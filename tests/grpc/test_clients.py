"""Other people's HTTP/2: Python's h2 as a client, and the frames of clients in other languages."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, TrailersReceived
from h2.settings import SettingCodes

from ratelimit_service.grpc.calls import METHODS
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import Calls, Connection
from ratelimit_service.grpc.h2.frames import ACK, END_HEADERS, FrameType, SettingId
from tests.grpc.h2_client import HEADERS, PATH, Client, messages


class PythonClient:
    """Python's h2 at the client's end, our connection at the server's; answers echo messages."""

    def __init__(self, settings: Mapping[int, int]) -> None:
        self.server = Connection(METHODS)
        self.client = H2Connection(H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.client.update_settings(dict(settings))
        self.events: list[Event] = []

    def exchange(self) -> None:
        """Carries bytes to and fro until neither side has anything to say."""
        while True:
            said = self.client.data_to_send()
            for stream_id, message in messages(self.server.receive(said) if said else []):
                self.server.sender.answer(stream_id, message)
            answered = self.server.take_output()
            if answered:
                self.events += self.client.receive_data(answered)
            elif not said:
                return

    def start(self, message: bytes = b"body") -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, HEADERS)
        body = b"\0" + len(message).to_bytes(4, "big") + message
        self.client.send_data(stream_id, body, end_stream=True)
        return stream_id

    def call(self, message: bytes = b"body") -> None:
        """One call whose answer must be whole and OK."""
        stream_id = self.start(message)
        self.exchange()
        mine = [event for event in self.events if getattr(event, "stream_id", 0) == stream_id]
        (begun,) = [event for event in mine if isinstance(event, ResponseReceived)]
        data = b"".join(event.data for event in mine if isinstance(event, DataReceived))
        (ended,) = [event for event in mine if isinstance(event, TrailersReceived)]
        assert dict(begun.headers)[b":status"] == b"200"
        assert data[5:] == message
        assert dict(ended.headers)[b"grpc-status"] == b"0"
        assert isinstance(mine[-1], StreamEnded)


@pytest.mark.parametrize("size", [0, 1, 100, 4_095, 4_096, 65_536])
def test_client_with_a_table_of_any_size(size: int) -> None:
    """Whatever table a client allows, it can read every answer (RFC 9113, section 4.3.1)."""
    client = PythonClient({SettingCodes.HEADER_TABLE_SIZE: size})

    for number in range(5):
        client.call(b"%d" % number)

    assert not client.server.closing


@pytest.mark.parametrize("sizes", [(0,), (0, 4_096), (50, 10), (4_096, 0, 100, 50)])
def test_client_that_changes_its_table(sizes: tuple[int, ...]) -> None:
    """A client may change the table that it allows between calls."""
    client = PythonClient({})
    client.call()
    client.call()

    for size in sizes:
        client.client.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
        client.start()
        client.exchange()
        client.call()

    assert not client.server.closing


def blocks(client: Client) -> list[bytes]:
    """The header blocks that the server has sent since."""
    return [payload for kind, _, _, payload in client.said() if kind == FrameType.HEADERS]


@pytest.mark.parametrize(
    "sizes", [{SettingId.HEADER_TABLE_SIZE: 0}, {SettingId.HEADER_TABLE_SIZE: 4_095}]
)
@pytest.mark.parametrize("settled", [False, True])
def test_first_block_after_a_smaller_table(sizes: dict[SettingId, int], settled: bool) -> None:
    """The first header block after the setting, and no other, begins with the table's new size."""
    client = Client()
    if settled:
        client.settle()
    client.connection.receive(frames.settings(sizes))
    calls = client.headers() + client.data() + client.headers() + client.data()

    for stream_id, message in messages(client.connection.receive(calls)):
        client.connection.sender.answer(stream_id, message)

    begun, *others = blocks(client)
    assert begun[:2] == b"\x20\x88"
    assert [block[0] == 0x20 for block in others] == [False] * 3


def test_smallest_table_between_two_blocks() -> None:
    """A table that was small for a moment between two blocks is told as well."""
    client = Client()
    size = SettingId.HEADER_TABLE_SIZE
    client.connection.receive(frames.settings({size: 10}) + frames.settings({size: 4_096}))

    for stream_id, message in messages(client.connection.receive(client.headers() + client.data())):
        client.connection.sender.answer(stream_id, message)

    assert blocks(client)[0][0] == 0x20


class OkHttp:
    """Header blocks as grpc-java's okhttp transport writes them.

    It acknowledges SETTINGS_HEADER_TABLE_SIZE, but goes on with its dynamic table of 4,096 bytes
    and never says that its size changes (grpc-java #12819).
    """

    LITERAL_PATH = b"\x04"
    HEADERS = (
        (":authority", b"\x41", b"127.0.0.1:8081"),
        ("user-agent", b"\x7a", b"grpc-java-okhttp/1.70.0"),
        ("content-type", b"\x5f", b"application/grpc"),
        ("te", b"\x40\x02te", b"trailers"),
        ("grpc-accept-encoding", b"\x40\x14grpc-accept-encoding", b"gzip"),
    )

    def __init__(self) -> None:
        self.client = Client()
        self.table: list[str] = []

    def block(self, extra: tuple[tuple[str, bytes], ...] = ()) -> bytes:
        coded = b"\x86\x83" + self._field(*self.HEADERS[0])
        coded += self.LITERAL_PATH + bytes((len(PATH),)) + PATH.encode()
        for name, start, value in self.HEADERS[1:]:
            coded += self._field(name, start, value)
        for name, value in extra:
            coded += b"\x40" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value
            self.table.insert(0, name)
        return coded

    def _field(self, name: str, start: bytes, value: bytes) -> bytes:
        if name in self.table:
            return bytes((0x80 | 62 + self.table.index(name),))
        self.table.insert(0, name)
        return start + bytes((len(value),)) + value

    def call(self, extra: tuple[tuple[str, bytes], ...] = ()) -> bytes:
        self.client.stream_id += 2
        frame = frames.frame(
            FrameType.HEADERS, END_HEADERS, self.client.stream_id, self.block(extra)
        )
        return frame + self.client.data()


def test_okhttp() -> None:
    """A client that acknowledges our second SETTINGS but keeps its table is served as any other."""
    okhttp = OkHttp()
    connection = okhttp.client.connection

    for number in range(20):
        calls = messages(connection.receive(okhttp.call((("x-trace", b"%d" % number),))))
        assert len(calls) == 1
        connection.sender.answer(*calls[0])
        if number == 0:
            connection.receive(frames.frame(FrameType.SETTINGS, ACK, 0, b""))

    assert not connection.closing


def test_table_that_is_given_up_late() -> None:
    """A client may keep its table for some calls and give it up then: from there on it is fast."""
    okhttp = OkHttp()
    client = okhttp.client
    client.connection.receive(okhttp.call())
    client.connection.sender.answer(1, b"")
    client.connection.receive(client.ack() + okhttp.call())
    client.connection.sender.answer(3, b"")
    client.encoder.header_table_size = 0

    for _ in range(3):
        calls = messages(client.connection.receive(client.headers() + client.data()))
        client.connection.sender.answer(*calls[0])

    assert client.connection._receiver._headers.recall(client.encoder.encode(HEADERS)) is not None
    assert not client.connection.closing


def test_clients_that_keep_their_tables() -> None:
    """Equal blocks of clients that keep their tables are each read by the client's own table."""
    asked, blocks_of = [PATH, "/grpc.health.v1.Health/Check"], []
    for path in asked:
        client, later = Client(), []
        for number in range(4):
            frame = client.headers(path=path)
            (calls,) = client.connection.receive(frame + client.data())
            assert isinstance(calls, Calls)
            assert calls.head.path == path.encode()
            client.connection.sender.answer(client.stream_id, b"")
            if number == 0:
                client.connection.receive(client.ack())
            else:
                later.append(frame[9:])
        blocks_of.append(later)

    assert blocks_of[0] == blocks_of[1]
