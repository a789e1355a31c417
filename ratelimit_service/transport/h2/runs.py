"""Runs of frames that are alike, walked at once.

A client's calls nearly always have the same headers, so those of one read are such a run. And under
a lasting overload most calls cannot be counted, and clients take back what was not answered: to
refuse a call must cost next to nothing. So this only looks where each frame ends and whether it is
like the one before. Anything unusual ends the run, and is left to the code that handles single
frames. No state. What must not live here: what becomes of calls.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.transport.h2.costs import USUAL_BYTES
from ratelimit_service.transport.h2.frames import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    RST_STREAM,
    RST_STREAM_BYTES,
    ErrorCode,
    rst_stream,
)
from ratelimit_service.transport.h2.messages import PREFIX_BYTES

__all__ = ["calls", "refusals", "resets", "usual_calls"]

_LEAST_ALIKE: Final = 32
_MOST_ALIKE: Final = 512
"""So many calls of the same length are looked at together: first few, then four times as many each
time, as long as all are alike."""

_FRAME_HEAD_BYTES: Final = 9
_ODD: Final = bytes(range(1, 256, 2))
_frame_head: Final = struct.Struct(">xHBB").pack

_match_resets: Final = re.compile(
    # The first byte of a stream's number is at most 127.
    b"(?:%b[\0-\x7f].{7})*" % re.escape(_frame_head(RST_STREAM_BYTES, RST_STREAM, 0)),
    re.DOTALL,
).match
_reset_streams: Final = struct.Struct(f">5xI{RST_STREAM_BYTES}x").iter_unpack

_REFUSAL: Final = rst_stream(0, ErrorCode.ENHANCE_YOUR_CALM)
_REFUSAL_HEAD: Final = _REFUSAL[:5]
_REFUSAL_END: Final = _REFUSAL[9:]
_refusal: Final = struct.Struct(">5sI4s").pack

_FEW: Final = 12
"""So many refusals are sooner made one by one."""

_STREAM_AT: Final = 5
"""The offset in a frame at which its stream's number stands."""


def usual_calls(
    data: bytes, start: int, block: bytes, last_stream_id: int, most: int
) -> tuple[int, list[int], list[bytes]]:
    """Walks at most so many usual calls from `start` on: their messages are short, and not packed.

    Else as `calls`. Returns where the run ends, the streams, and the messages.
    """
    usual_head = _frame_head(len(block), HEADERS, END_HEADERS)
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
            or length > USUAL_BYTES - _FRAME_HEAD_BYTES
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


def calls(data: bytes, start: int, block: bytes, last_stream_id: int) -> tuple[int, list[int]]:
    """Walks whole calls from `start` on; each opens a new stream above the last one.

    Each call is a HEADERS frame with this block and a DATA frame that ends the stream. Returns
    where the run ends, and the streams.
    """
    usual_head = _frame_head(len(block), HEADERS, END_HEADERS)
    usual_block = block + b"\0"  # and the high byte of the DATA frame's size, which is 0
    shape = _shape(len(usual_block))
    unpack, size = shape.unpack_from, shape.size
    at, end, last = start, len(data), last_stream_id
    together, last_start = _LEAST_ALIKE, len(data) - size
    streams: list[int] = []
    while at <= last_start:
        # The type lets the compiler unpack the tuple without generic objects.
        found: tuple[bytes, int, bytes, int, int, int] = unpack(data, at)
        head, stream, its_block, length, kind_and_flags, its_stream = found
        after = at + size + length
        if (
            its_block != usual_block
            or kind_and_flags != END_STREAM
            or its_stream != stream
            or not last < stream <= MAX_WINDOW
            or not stream & 1
            or head != usual_head
            or after > end
            or length > MAX_FRAME_SIZE
        ):
            break
        streams.append(stream)
        last = stream
        stride = after - at
        # The next calls may be as long as this one.
        while (count := min(together, (end - after) // stride)) > 1:
            alike = _alike(data[after : after + count * stride], count, usual_head, block, last)
            if alike:
                streams += alike
                last = alike[-1]
                after += stride * len(alike)
            if len(alike) < count:
                together = _LEAST_ALIKE
                break
            together = min(4 * together, _MOST_ALIKE)
        at = after
    return at, streams


@lru_cache(maxsize=64)
def _shape(block_bytes: int) -> struct.Struct:
    """The layout of a call: its HEADERS frame, and its DATA frame up to the message."""
    return struct.Struct(f">{_STREAM_AT}sI{block_bytes}sHHI")


@lru_cache(maxsize=64)
def _message_shape(block_bytes: int) -> struct.Struct:
    """The same with the prefix of the message."""
    return struct.Struct(f">{_STREAM_AT}sI{block_bytes}sHHIBI")


@lru_cache(maxsize=64)
def _columns(block_bytes: int, stride: int) -> struct.Struct:
    """The layout of calls of one length: what is the same in all of them, and their streams."""
    second = block_bytes + _STREAM_AT
    rest = stride - 2 * _FRAME_HEAD_BYTES - block_bytes
    return struct.Struct(f">{_STREAM_AT}sI{second}sI{rest}x")


def _alike(
    data: bytes, count: int, head: bytes, block: bytes, last_stream_id: int
) -> Sequence[int]:
    """The streams of the first of so many calls of one length that are alike."""
    stride = len(data) // count
    length = stride - 2 * _FRAME_HEAD_BYTES - len(block)
    second = block + _frame_head(length, 0, END_STREAM)
    shape = _columns(len(block), stride)
    heads, streams, seconds, their_streams = zip(*shape.iter_unpack(data), strict=True)
    if heads.count(head) != count or seconds.count(second) != count or streams != their_streams:
        count = min(
            _first_other(map(head.__eq__, heads), count),
            _first_other(map(second.__eq__, seconds), count),
            _first_other(map(int.__eq__, streams, their_streams), count),
        )
        streams = streams[:count]
    if (
        not streams
        or streams[0] <= last_stream_id
        or streams[-1] > MAX_WINDOW
        or sorted(set(streams)) != list(streams)
        or data[_STREAM_AT + 3 : count * stride : stride].translate(None, _ODD)
    ):
        return ()
    return streams


def _first_other(alike: Iterable[bool], count: int) -> int:
    """The place of the first of so many that is not alike; `count` if there is none."""
    found = list(alike)
    return found.index(False) if False in found else count


def resets(data: bytes, start: int) -> tuple[int, list[int]]:
    """Walks RST_STREAM frames from `start` on; returns where they end, and the streams."""
    found = _match_resets(data, start)
    end = found.end() if found else start
    return end, [stream for (stream,) in _reset_streams(data[start:end])]


def refusals(streams: Sequence[int]) -> bytes:
    """RST_STREAM frames that tell callers to calm down."""
    if len(streams) < _FEW:
        return b"".join([_refusal(_REFUSAL_HEAD, stream, _REFUSAL_END) for stream in streams])
    made, numbers = bytearray(_REFUSAL * len(streams)), _four_bytes_each(streams)
    for place in range(4):
        made[_STREAM_AT + place :: len(_REFUSAL)] = numbers[place::4]
    return bytes(made)


def _four_bytes_each(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)
