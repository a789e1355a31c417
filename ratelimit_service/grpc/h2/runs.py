"""Runs of frames that are alike, walked at once.

A client's calls nearly always have the same headers, so those of one read are such a run. And
clients take back what was not answered, many calls at a time. So this only looks where each frame
ends and whether it is like the one before. Anything unusual ends the run, and is left to the code
that handles single frames. No state. What must not live here: what becomes of calls, and runs of
calls that nobody is to answer (`passing`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.grpc.h2.costs import USUAL_BYTES
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    HEADERS,
    MAX_WINDOW,
    RST_STREAM,
    RST_STREAM_BYTES,
    SHORT_FRAME_BYTES,
    STREAM_AT,
    WINDOW_UPDATE,
    WINDOW_UPDATE_BYTES,
    ErrorCode,
    head_start,
    rst_stream,
)
from ratelimit_service.grpc.h2.messages import PREFIX_BYTES

__all__ = [
    "RESET_HEAD",
    "refusals",
    "resets",
    "usual_calls",
    "window_updates",
]

_MOST_TOGETHER: Final = 512
"""So many short frames are looked at together."""

RESET_HEAD: Final = head_start(RST_STREAM_BYTES, RST_STREAM, 0)
"""What a RST_STREAM frame begins with, up to its stream's number."""

_match_resets: Final = re.compile(
    # The first byte of a stream's number is at most 127.
    b"(?:%b[\0-\x7f].{7})*" % re.escape(RESET_HEAD),
    re.DOTALL,
).match
_reset_streams: Final = struct.Struct(f">5xI{RST_STREAM_BYTES}x").iter_unpack

_match_updates: Final = re.compile(
    b"(?:%b[\0-\x7f].{7})*" % re.escape(head_start(WINDOW_UPDATE_BYTES, WINDOW_UPDATE, 0)),
    re.DOTALL,
).match
_updates: Final = struct.Struct(">5xII").iter_unpack

_REFUSAL: Final = rst_stream(0, ErrorCode.ENHANCE_YOUR_CALM)
_REFUSAL_HEAD: Final = _REFUSAL[:5]
_REFUSAL_END: Final = _REFUSAL[9:]
_refusal: Final = struct.Struct(">5sI4s").pack

_FEW: Final = 12
"""So many refusals are sooner made one by one."""


def usual_calls(
    data: bytes, start: int, block: bytes, last_stream_id: int, most: int
) -> tuple[int, list[int], list[bytes]]:
    """Walks at most so many usual calls from `start` on: their messages are short, and not packed.

    Each is a HEADERS frame with this block, which opens a new stream above the last one, and a DATA
    frame that ends it. Returns where the run ends, the streams, and the messages.
    """
    usual_head = head_start(len(block), HEADERS, END_HEADERS)
    usual_block = block + b"\0"  # and the high byte of the DATA frame's size, which is 0
    shape = _message_shape(len(usual_block))
    unpack, size = shape.unpack_from, shape.size
    at, end, last = start, len(data), last_stream_id
    streams: list[int] = []
    messages: list[bytes] = []
    while at + size <= end and len(streams) < most:
        # The type lets the compiler unpack the tuple without generic objects.
        found: tuple[bytes, int, bytes, int, int, int, int, int] = unpack(data, at)
        head, stream, its_block, length, kind_and_flags, its_stream, packed, bytes_ = found
        begin = at + size
        after = begin + bytes_
        if (
            its_block != usual_block
            or kind_and_flags != END_STREAM
            or its_stream != stream
            or packed
            or length != PREFIX_BYTES + bytes_
            or length > USUAL_BYTES - FRAME_HEAD_BYTES
            or not last < stream <= MAX_WINDOW
            or not stream & 1
            or head != usual_head
            or after > end
        ):
            break
        streams.append(stream)
        messages.append(data[begin:after])
        last, at = stream, after
    return at, streams, messages


@lru_cache(maxsize=64)
def _message_shape(block_bytes: int) -> struct.Struct:
    """The same with the prefix of the message."""
    return struct.Struct(f">{STREAM_AT}sI{block_bytes}sHHIBI")


def resets(data: bytes, start: int) -> tuple[int, list[int]]:
    """Walks RST_STREAM frames from `start` on; returns where they end, and the streams.

    That is some hundreds at most: a faulty one among them has all behind it walked again.
    """
    found = _match_resets(data, start, start + _MOST_TOGETHER * SHORT_FRAME_BYTES)
    end = found.end() if found else start
    return end, [stream for (stream,) in _reset_streams(data[start:end])]


def window_updates(data: bytes, start: int) -> tuple[int, list[tuple[int, int]]]:
    """Walks WINDOW_UPDATE frames from `start` on.

    Returns where they end, and of each the stream, 0 for the connection, and by how much its window
    grows; the highest bit of that means nothing. That is some hundreds at most.
    """
    found = _match_updates(data, start, start + _MOST_TOGETHER * SHORT_FRAME_BYTES)
    end = found.end() if found else start
    return end, list(_updates(data[start:end]))


def refusals(streams: Sequence[int]) -> bytes:
    """RST_STREAM frames that tell callers to calm down."""
    if len(streams) < _FEW:
        return b"".join([_refusal(_REFUSAL_HEAD, stream, _REFUSAL_END) for stream in streams])
    made, numbers = bytearray(_REFUSAL * len(streams)), _four_bytes_each(streams)
    for place in range(4):
        made[STREAM_AT + place :: len(_REFUSAL)] = numbers[place::4]
    return bytes(made)


def _four_bytes_each(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)
