"""What the units of `grpc/h2/costs.py` cost, measured in this process.

    .venv/bin/python -m benchmarks.costs

A connection gets frames of one kind, many in a read and then one in a read of its own, over a pair
of sockets that stands for the client. Counted is the CPU time of receiving, handling and sending
the answer, user's and system's, but not what the client does. The table has the least of several
runs for each kind, and holds the dearest kind of a unit against what the unit declares. Times are
those of the machine for which costs are declared: a fixed piece of work beside each measurement
tells how much slower this one is just now. Measure interpreted: compiled code is cheaper. Ends with
1 if a unit declares less than it costs.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import trustme

from benchmarks.profile import Process
from benchmarks.run import told
from ratelimit_service import compiled
from ratelimit_service.grpc.calls import METHODS
from ratelimit_service.grpc.h2 import costs, frames
from ratelimit_service.grpc.h2.connection import Connection
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PREFACE,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.wire import METHOD, SERVICE
from tests.servers.tls_records import TlsRecords

NOMINAL_MS = 1.8
"""What `slowness` works for on the machine for which costs are declared, when that is idle."""

RUNS = 10
FRAMES = 900
"""As many as there may be streams, or hardly fewer."""

SETTINGS = 2_000
"""Entries of a SETTINGS frame."""

FIELDS = 300
BLOCKS = 8
HUFFMAN_BYTES = 10_000
CODED = int("0000000001" * 80, 2).to_bytes(100, "big")
"""160 letters of the shortest codes, which have five bits."""

CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/{METHOD}".encode()),
        (b":authority", b"ratelimit"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
"""A usual call's header block."""

AT_ONCE = costs.BUDGET_US // (costs.FRAME_US + costs.RESET_US + costs.HEADERS_US) - 1
"""After so many frames a new second begins for the connection, or it would be told to calm down."""

STREAMS = range(5, 5 + 2 * FRAMES, 2)
"""Those that a settled client opens next."""


class Row(NamedTuple):
    """A kind of work, in the unit that is declared for it."""

    unit: str
    kind: str
    declared: float
    together: float
    """Each of many in a read."""
    alone: float | None = None
    """Each in a read of its own."""


class Client:
    """A client whose blocks use no table, with its end of a connection."""

    def __init__(self, *, tables: bool = False) -> None:
        """With `tables` it has made no call yet, so its blocks may use the dynamic table."""
        self.connection = Connection(METHODS)
        self.ours, self.theirs = socket.socketpair()
        self.untimed(PREFACE + frames.settings({}) + frames.frame(FrameType.SETTINGS, ACK, 0, b""))
        if not tables:
            self.untimed(call(1))
            self.connection.sender.answer(1, b"")
            acknowledged = frames.frame(FrameType.SETTINGS, ACK, 0, b"")
            self.untimed(acknowledged + call(3, b"\x20" + CALL))
            self.connection.sender.answer(3, b"")

    def untimed(self, data: bytes) -> None:
        """What comes before what is measured."""
        self.connection.receive(data)
        self.connection.take_output()

    def together(self, parts: Sequence[bytes]) -> float:
        """The CPU seconds of frames that come together."""
        connection, spent = self.connection, 0.0
        for start in range(0, len(parts), AT_ONCE):
            data = b"".join(parts[start : start + AT_ONCE])
            connection.tick()
            started = time.process_time()
            connection.receive(data)
            connection.take_output()
            spent += time.process_time() - started
        return spent

    def alone(self, parts: Sequence[bytes]) -> float:
        """The CPU seconds of frames that come one by one, with what the system does for them."""
        connection, ours, theirs = self.connection, self.ours, self.theirs
        spent = 0.0
        for number, part in enumerate(parts):
            theirs.send(part)
            if not number % AT_ONCE:
                connection.tick()
            started = time.process_time()
            connection.receive(ours.recv(65_536))
            output = connection.take_output()
            if output:
                ours.send(output)
            spent += time.process_time() - started
            if output:
                theirs.recv(65_536)
        return spent

    def close(self) -> None:
        """Checks that all was handled, or nothing would have been measured."""
        assert not self.connection.closing, self.connection.reason
        self.ours.close()
        self.theirs.close()


def call(stream_id: int, block: bytes = CALL) -> bytes:
    head = frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, block)
    return head + frames.frame(FrameType.DATA, END_STREAM, stream_id, b"\0\0\0\0\0")


def slowness() -> float:
    """How much slower than that machine this one is just now; at least 1."""
    found = []
    for _ in range(20):
        started, seen, at = time.thread_time(), {}, 0
        for number in range(20_000):
            at = (at + number * number) % 1_013
            seen[at] = number
        found.append((time.thread_time() - started) * 1000)
    return max(1.0, sorted(found)[len(found) // 2] / NOMINAL_MS)


def least(
    prepare: Callable[[], Client],
    parts: Sequence[bytes],
    handle: Callable[[Client, Sequence[bytes]], float],
) -> float:
    """The CPU seconds of the best of several runs, each on a new connection."""
    found, slow = [], slowness()
    for _ in range(RUNS):
        client = prepare()
        found.append(handle(client, parts))
        client.close()
    return min(found) / min(slow, slowness())


def settled() -> Client:
    return Client()


def opened() -> Client:
    """With open streams whose messages have just begun."""
    client = Client()
    begun = b"\0\0\0\xff\xff"
    for stream_id in STREAMS:
        head = frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, CALL)
        client.untimed(head + frames.frame(FrameType.DATA, 0, stream_id, begun))
        if stream_id % 1_000 == 1:
            client.connection.tick()
    client.connection.tick()
    return client


def shut() -> Client:
    """With an answer on each stream that waits for the stream's window."""
    client = Client()
    client.untimed(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    for stream_id in STREAMS:
        client.untimed(call(stream_id))
        client.connection.sender.answer(stream_id, b"x" * 100)
    client.connection.tick()
    return client


def each(prepare: Callable[[], Client], parts: Sequence[bytes]) -> tuple[float, float]:
    """The microseconds of each frame: together, and alone."""
    together = least(prepare, parts, Client.together)
    alone = least(prepare, parts, Client.alone)
    return together / len(parts) * 1e6, alone / len(parts) * 1e6


def frame_rows() -> Iterable[Row]:
    """Frames that are no part of a call, and parts of calls."""
    empty = frames.frame(FrameType.DATA, 0, STREAMS[0], b"")
    kinds: dict[str, tuple[Callable[[], Client], list[bytes]]] = {
        "PING": (settled, [frames.ping(b"12345678", ack=False)] * FRAMES),
        "SETTINGS without entries": (settled, [frames.settings({})] * FRAMES),
        "PRIORITY": (
            settled,
            [frames.frame(FrameType.PRIORITY, 0, at, bytes(5)) for at in STREAMS],
        ),
        "WINDOW_UPDATE of the connection": (settled, [frames.window_update(0, 1)] * FRAMES),
        "WINDOW_UPDATE of a stream": (opened, [frames.window_update(at, 1) for at in STREAMS]),
        "WINDOW_UPDATE by a byte, an answer waits": (
            shut,
            [frames.window_update(at, 1) for at in STREAMS],
        ),
        "empty DATA": (opened, [empty] * FRAMES),
        "DATA of a stream that is over": (
            settled,
            [frames.frame(FrameType.DATA, 0, 3, b"")] * FRAMES,
        ),
        "RST_STREAM": (opened, [frames.rst_stream(at, ErrorCode.CANCEL) for at in STREAMS]),
    }
    for kind, (prepare, parts) in kinds.items():
        yield Row("FRAME_US", kind, costs.FRAME_US, *each(prepare, parts))
    heads = [frames.frame(FrameType.HEADERS, END_HEADERS, at, CALL) for at in STREAMS]
    yield Row("HEADERS_US", "HEADERS with a known block", costs.HEADERS_US, *each(settled, heads))
    small = [frames.frame(FrameType.DATA, 0, at, b"x" * 10) for at in STREAMS]
    yield Row("PART_US", "DATA of 10 bytes", costs.PART_US, *each(opened, small))


def reset_rows() -> Iterable[Row]:
    """Resets, without the frame that provokes each."""
    plain = each(opened, [frames.window_update(at, 1) for at in STREAMS])
    nothing = [frames.window_update(at, 0) for at in STREAMS]
    provoked = each(opened, nothing)
    yield Row(
        "RESET_US",
        "a stream reset for a WINDOW_UPDATE of nothing",
        costs.RESET_US,
        provoked[0] - plain[0],
        provoked[1] - plain[1],
    )


def setting_rows() -> Iterable[Row]:
    """Entries of SETTINGS, without the frame."""
    bare = least(settled, [frames.settings({})], Client.together)
    entries: dict[str, bytes] = {
        "INITIAL_WINDOW_SIZE": SettingId.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + b"\0\0\xff\xff",
        "HEADER_TABLE_SIZE": SettingId.HEADER_TABLE_SIZE.to_bytes(2, "big") + b"\0\0\x10\0",
        "MAX_FRAME_SIZE": SettingId.MAX_FRAME_SIZE.to_bytes(2, "big") + b"\0\0\x40\0",
        "ENABLE_PUSH": SettingId.ENABLE_PUSH.to_bytes(2, "big") + bytes(4),
        "one that is not known": b"\0\x63" + bytes(4),
    }
    for kind, entry in entries.items():
        frame = frames.frame(FrameType.SETTINGS, 0, 0, entry * SETTINGS)
        spent = (least(settled, [frame], Client.together) - bare) / SETTINGS
        yield Row("SETTING_US", kind, costs.SETTING_US, spent * 1e6)


def visit_rows() -> Iterable[Row]:
    """Streams that are looked at, since what all windows begin with has changed."""
    wider = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 1})
    spent = least(shut, [wider], Client.together) / FRAMES
    yield Row("VISIT_US", "an answer waits, and a byte may go", costs.VISIT_US, spent * 1e6)

    def credited() -> Client:
        client = opened()
        client.untimed(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
        # The widest stream is gone by then, so all others are looked at.
        widest = STREAMS[0]
        client.untimed(frames.window_update(widest, (1 << 31) - 1))
        client.untimed(frames.rst_stream(widest, ErrorCode.CANCEL))
        return client

    frame = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 1})
    spent = least(credited, [frame], Client.together) / FRAMES
    yield Row("VISIT_US", "nothing waits", costs.VISIT_US, spent * 1e6)


def in_blocks(fields: Callable[[int], bytes]) -> list[bytes]:
    """HEADERS of several blocks, each with fields of its own."""
    return [
        frames.frame(FrameType.HEADERS, END_HEADERS, at, CALL + fields(number))
        for number, at in enumerate(STREAMS[:BLOCKS])
    ]


def field_rows() -> Iterable[Row]:
    """Fields of header blocks that are not known, and Huffman-coded texts among them."""

    def by_tables() -> Client:
        return Client(tables=True)

    def walked(prepare: Callable[[], Client], fields: Callable[[int], bytes]) -> float:
        """The seconds of a block."""

        def one_by_one(client: Client, parts: Sequence[bytes]) -> float:
            return sum(client.together([part]) for part in parts)

        return least(prepare, in_blocks(fields), one_by_one) / BLOCKS

    def kept(number: int) -> bytes:
        names = (b"%d.%d" % (number, each) for each in range(FIELDS))
        return b"".join(b"\x40%c%b\1v" % (len(name), name) for name in names)

    def written(number: int) -> bytes:
        return b"".join(literal(b"x-%d" % each, b"%d" % number) for each in range(FIELDS))

    kinds: dict[str, tuple[Callable[[], Client], Callable[[int], bytes]]] = {
        "indexed": (settled, lambda number: b"\x90" * (FIELDS + number)),
        "written out": (settled, written),
        "written out, tables in use": (by_tables, written),
        "put into the table": (by_tables, kept),
    }
    for kind, (prepare, fields) in kinds.items():
        spent = (walked(prepare, fields) - walked(prepare, lambda _: b"")) / FIELDS
        yield Row("FIELD_NS", kind, costs.FIELD_NS, spent * 1e9)

    def coded(number: int) -> bytes:
        return b"".join(
            b"\x00\x01x%c%b" % (0x80 | len(CODED), CODED)
            for _ in range(HUFFMAN_BYTES // len(CODED))
        ) + literal(b"x-block", b"%d" % number)

    spent = walked(by_tables, coded) - walked(by_tables, lambda _: b"")
    yield Row(
        "HUFFMAN_BYTE_NS",
        "of texts of 100 bytes, with their fields",
        costs.HUFFMAN_BYTE_NS,
        spent / HUFFMAN_BYTES * 1e9,
    )


def record_row() -> Row:
    """TLS records that change the keys, and ask for the same, without the system's work."""

    async def changed(directory: Path) -> float:
        """The seconds for one of many."""
        authority, trusted = trustme.CA(), directory / "ca"
        authority.cert_pem.write_to_path(trusted)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        context.set_alpn_protocols(["h2"])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        ours, its = socket.socketpair()
        ours.setblocking(False)
        its.setblocking(False)

        async def shake_hands() -> None:
            while True:
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    return
                its.send(outgoing.read())
                incoming.write(await asyncio.get_running_loop().sock_recv(its, 65_536))

        records, _ = await asyncio.gather(TlsRecords.agreed(ours, trusted), shake_hands())
        incoming.write(b"".join(records.key_update() for _ in range(FRAMES)))
        started = time.process_time()
        with suppress(ssl.SSLWantReadError):
            tls.read(1)
        spent = time.process_time() - started
        ours.close()
        its.close()
        return spent / FRAMES

    with tempfile.TemporaryDirectory() as directory:
        slow = slowness()
        found = [asyncio.run(changed(Path(directory))) for _ in range(RUNS)]
        spent = min(found) / min(slow, slowness())
    return Row(
        "RECORD_US", "a change of the keys, which asks for ours", costs.RECORD_US, spent * 1e6
    )


def usual_row() -> Row:
    """A call with one rule on the memory store, from its bytes to its answer's."""
    process = Process("hot")
    found, slow = [], slowness()
    for _ in range(RUNS * 4):
        data = process.frames(50)
        started = time.process_time()
        process.read(data)
        found.append((time.process_time() - started) / 50)
        process.connection.receive(frames.window_update(0, len(data)))
    least_us = min(found) / min(slow, slowness()) * 1e6
    return Row("", "for comparison: a usual call, on memory", costs.ANSWERED_US, least_us)


def main() -> None:
    gc.disable()
    rows = [
        *frame_rows(),
        *reset_rows(),
        *setting_rows(),
        *visit_rows(),
        *field_rows(),
        record_row(),
        usual_row(),
    ]
    print("| unit | kind | declared | together | each in a read of its own |")
    print("|---|---|---|---|---|")
    short = []
    for row in rows:
        alone = "" if row.alone is None else f"{row.alone:.1f}"
        print(f"| {row.unit} | {row.kind} | {row.declared} | {row.together:.1f} | {alone} |")
        if max(row.together, row.alone or 0.0) > row.declared:
            short.append(row.unit)
    told("compiled" if compiled() else "interpreted")
    if short:
        told(f"declared too low: {', '.join(sorted(set(short)))}")
    sys.exit(bool(short))


if __name__ == "__main__":
    main()
