"""Runs of calls that are alike, walked at once, and runs of refusals.

A client's calls nearly always have the same headers, so those of one read are such a run. So this
only looks where each call ends and whether it is like the one before. Anything unusual ends the
run, and is left to the code that handles single frames (`receiving`), which comes to the same. No
state. What must not live here: what becomes of calls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.grpc.h2.costs import USUAL_BYTES
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    HEADERS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    STREAM_AT,
    WHOLE_HEADERS,
    ErrorCode,
    head_start,
    rst_stream,
    split_head,
)
from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.grpc.h2.messages import PREFIX_BYTES

__all__ = ["refusals", "usual_calls", "varied_calls"]

_REFUSAL: Final = rst_stream(0, ErrorCode.ENHANCE_YOUR_CALM)
_REFUSAL_HEAD: Final = _REFUSAL[:5]
_REFUSAL_END: Final = _REFUSAL[9:]
_refusal: Final = struct.Struct(">5sI4s").pack

_MOST_BYTES: Final = USUAL_BYTES - FRAME_HEAD_BYTES
"""A longer message may have many descriptors."""

_Fields = tuple[bytes, int, bytes, int, int, int, int, int]
"""What `usual_calls` unpacks. The type lets the compiler do so without generic objects."""

_FEW: Final = 12
"""So many refusals are sooner made one by one."""


def usual_calls(
    data: bytes, start: int, block: bytes, last_stream_id: int, most: int
) -> tuple[int, list[int], list[bytes]]:
    """Walks at most so many usual calls from `start` on: their messages are short, and not packed.

    Each is a HEADERS frame with this block, which opens a new stream above the last one, and a DATA
    frame that ends it. Returns where the run ends, the streams, and the messages.
    """
    usual_head, usual_block, size, unpack = _beginning(block)
    at, end, last = start, len(data), last_stream_id
    streams: list[int] = []
    messages: list[bytes] = []
    while at + size <= end and len(streams) < most:
        fields: _Fields = unpack(data, at)
        head, stream, its_block, length, kind_and_flags, its_stream, packed, bytes_ = fields
        begin = at + size
        after = begin + bytes_
        if (
            its_block != usual_block
            or kind_and_flags != END_STREAM
            or its_stream != stream
            or packed
            or length != PREFIX_BYTES + bytes_
            or length > _MOST_BYTES
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


def varied_calls(
    data: bytes,
    start: int,
    head_of: Callable[[bytes], Head | None],
    head: Head,
    last_stream_id: int,
    most: int,
) -> tuple[int, list[int], list[bytes], list[bytes]]:
    """As `usual_calls`, with any header blocks that have this head, as those of callers who trace.

    `head_of` tells the head of a block that can be told without reading it. Returns the blocks,
    too.
    """
    at, end, last = start, len(data), last_stream_id
    streams: list[int] = []
    messages: list[bytes] = []
    blocks: list[bytes] = []
    while at + FRAME_HEAD_BYTES <= end and len(streams) < most:
        numbers: tuple[int, int, int, int] = split_head(data, at)
        high, length, kind_and_flags, stream = numbers
        begin = at + FRAME_HEAD_BYTES
        stop = begin + length
        if (
            kind_and_flags != WHOLE_HEADERS
            or high
            or stop + _MESSAGE_HEAD.size > end
            or not last < stream <= MAX_WINDOW
            or not stream & 1
        ):
            break
        fields: tuple[int, int, int, int, int, int] = _MESSAGE_HEAD.unpack_from(data, stop)
        its_high, its_length, its_kind_and_flags, its_stream, packed, size = fields
        begins, after = stop + _MESSAGE_HEAD.size, stop + _MESSAGE_HEAD.size + size
        block = data[begin:stop]
        if (
            its_kind_and_flags != END_STREAM
            or its_stream != stream
            or its_high
            or packed
            or its_length != PREFIX_BYTES + size
            or its_length > _MOST_BYTES
            or after > end
            or length > MAX_FRAME_SIZE
            or head_of(block) is not head
        ):
            break
        streams.append(stream)
        messages.append(data[begins:after])
        blocks.append(block)
        last, at = stream, after
    return at, streams, messages, blocks


_MESSAGE_HEAD: Final = struct.Struct(">BHHIBI")
"""The head of a DATA frame, and of the message in it."""


@lru_cache(maxsize=64)
def _beginning(block: bytes) -> tuple[bytes, bytes, int, Callable[[bytes, int], _Fields]]:
    """How usual calls with this block begin: with this head and block, and so many bytes in all.

    The last is what unpacks these.
    """
    usual_block = block + b"\0"  # and the high byte of the DATA frame's size, which is 0
    shape = struct.Struct(f">{STREAM_AT}sI{len(usual_block)}sHHIBI")
    return head_start(len(block), HEADERS, END_HEADERS), usual_block, shape.size, shape.unpack_from


def refusals(streams: Sequence[int]) -> bytes:
    """RST_STREAM frames that tell callers to calm down."""
    if len(streams) < _FEW:
        return b"".join([_refusal(_REFUSAL_HEAD, stream, _REFUSAL_END) for stream in streams])
    made, numbers = bytearray(_REFUSAL * len(streams)), _four_bytes_each(streams)
    for index in range(4):
        made[STREAM_AT + index :: len(_REFUSAL)] = numbers[index::4]
    return bytes(made)


def _four_bytes_each(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)
