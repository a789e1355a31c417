"""What clients say that make many calls at once, in all the ways in which clients say it."""

from __future__ import annotations

from collections.abc import Sequence

import hpack

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import END_HEADERS, END_STREAM, FrameType
from tests.grpc.h2_client import HEADERS, PATH

BLOCK = b"the block of all calls"
TRACE = "00-{:032x}-{:016x}-01"


def call(stream_id: int, message: bytes = b"12345", block: bytes = BLOCK) -> bytes:
    headers = frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, block)
    return headers + frames.frame(FrameType.DATA, END_STREAM, stream_id, message)


def split(said: bytes) -> tuple[bytes, bytes]:
    """The HEADERS of a call, and the rest."""
    stop = 9 + int.from_bytes(said[:3], "big")
    return said[:stop], said[stop:]


def message(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big") + bytes(size)


def block(timeout: str, path: str = PATH, **others: str) -> bytes:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    listed = [*(dict(HEADERS) | {":path": path}).items(), ("grpc-timeout", timeout)]
    listed += others.items()
    return encoder.encode(listed)


BLOCKS = [
    block("20m"),
    block("90m"),
    block("20m", "/grpc.health.v1.Health/Check"),
    *[block("20m", traceparent=TRACE.format(number, number)) for number in range(9)],
    block("90m", traceparent=TRACE.format(1, 1)),
]


def plain(number: int) -> bytes:
    return BLOCKS[0]


def traced(number: int) -> bytes:
    """The header block of a caller that traces: no two of them are alike, nor of one length."""
    return block("20m", traceparent=TRACE.format(number**9, number**5))


def impatient(number: int) -> bytes:
    """The header block of a caller that says to the nanosecond how much time is left."""
    return block(f"{19_999_999 - number * number}n")


def as_envoy(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """Each call's frames together; messages differ in length."""
    return b"".join(
        call(each, message(each * each % 11), block)
        for each, block in zip(streams, blocks, strict=True)
    )


def as_go(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """The HEADERS of several calls, then their DATA."""
    said = b""
    for at in range(0, len(streams), 20):
        pairs = [
            split(as_envoy([each], [block]))
            for each, block in zip(streams[at : at + 20], blocks[at : at + 20], strict=True)
        ]
        said += b"".join(headers for headers, _ in pairs) + b"".join(data for _, data in pairs)
    return said


def as_grpcio(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """Each call widens its own window, and then that of the connection."""
    said = b""
    for each, block in zip(streams, blocks, strict=True):
        headers, data = split(as_envoy([each], [block]))
        said += headers + frames.window_update(each, 5) + data + frames.window_update(0, 5)
    return said


def as_tonic(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """The end of each stream in a frame of its own."""
    said = b""
    for each, block in zip(streams, blocks, strict=True):
        headers, data = split(as_envoy([each], [block]))
        said += headers + data[:4] + b"\0" + data[5:]
        said += frames.frame(FrameType.DATA, END_STREAM, each, b"")
    return said
