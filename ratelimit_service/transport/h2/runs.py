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
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ratelimit_service.transport.h2.costs import USUAL_BYTES
from ratelimit_service.transport.h2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    HEADERS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    RST_STREAM,
    RST_STREAM_BYTES,
    WINDOW_UPDATE,
    WINDOW_UPDATE_BYTES,
    ErrorCode,
    rst_stream,
)
from ratelimit_service.transport.h2.messages import PREFIX_BYTES

__all__ = [
    "SHORT_FRAME_BYTES",
    "Begun",
    "begun_calls",
    "calls",
    "refusals",
    "resets",
    "usual_calls",
    "varied_calls",
    "window_updates",
]

_LEAST_TOGETHER: Final = 8
_MOST_TOGETHER: Final = 512
"""So many calls are looked at together: first few, then four times as many each time, as long as
most of them are alike."""

_STREAM_BYTES: Final = 4
_DATA_HEAD: Final = struct.Struct(">HHI")
"""The head of a DATA frame, but for the high byte of its length."""

_HEADS_BYTES: Final = 2 * FRAME_HEAD_BYTES
_frame: Final = struct.Struct(">BHHI").unpack_from
_WHOLE_HEADERS: Final = HEADERS << 8 | END_HEADERS
_UPDATE: Final = WINDOW_UPDATE << 8

_ODD: Final = bytes(range(1, 256, 2))
_frame_head: Final = struct.Struct(">xHBB").pack

SHORT_FRAME_BYTES: Final = FRAME_HEAD_BYTES + RST_STREAM_BYTES
"""The size of a frame of RST_STREAM or WINDOW_UPDATE."""

_match_resets: Final = re.compile(
    # The first byte of a stream's number is at most 127.
    b"(?:%b[\0-\x7f].{7})*" % re.escape(_frame_head(RST_STREAM_BYTES, RST_STREAM, 0)),
    re.DOTALL,
).match
_reset_streams: Final = struct.Struct(f">5xI{RST_STREAM_BYTES}x").iter_unpack

_match_updates: Final = re.compile(
    b"(?:%b[\0-\x7f].{7})*" % re.escape(_frame_head(WINDOW_UPDATE_BYTES, WINDOW_UPDATE, 0)),
    re.DOTALL,
).match
_updates: Final = struct.Struct(">5xII").iter_unpack

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
    together, last_start = _LEAST_TOGETHER, len(data) - size
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
        last, stride, at = stream, after - at, after
        while data.startswith(usual_head, at) and data.startswith(
            usual_block, at + FRAME_HEAD_BYTES
        ):
            piece = data[at : at + together * stride]
            alike, taken = _alike(piece, usual_head, usual_block, last)
            if not alike:
                together = _LEAST_TOGETHER
                break
            streams += alike
            last = alike[-1]
            at += taken
            most = min(4 * together, _MOST_TOGETHER)
            together = most if 2 * taken > len(piece) else _LEAST_TOGETHER
    return at, streams


def varied_calls(
    data: bytes, start: int, last_stream_id: int, alike: Callable[[Sequence[bytes]], int]
) -> tuple[int, list[int], int]:
    """As `calls`, with any header blocks: `alike` tells how many of the first ones may be there.

    Returns where the run ends, the streams, and how many bytes their messages take.
    """
    at, together, bytes_ = start, _LEAST_TOGETHER, 0
    streams: list[int] = []
    while True:
        ends, found, blocks = _whole_calls(data, at, last_stream_id, together)
        count = alike(blocks) if blocks else 0
        if not count:
            return at, streams, bytes_
        streams += found[:count]
        bytes_ += ends[count - 1] - at - sum(map(len, blocks[:count])) - count * _HEADS_BYTES
        at, last_stream_id = ends[count - 1], streams[-1]
        if count < together:
            return at, streams, bytes_
        together = min(4 * together, _MOST_TOGETHER)


def _whole_calls(
    data: bytes, at: int, last: int, most: int
) -> tuple[list[int], list[int], list[bytes]]:
    """Where each of at most so many whole calls ends, their streams, and their header blocks."""
    end = len(data) - FRAME_HEAD_BYTES
    ends: list[int] = []
    streams: list[int] = []
    blocks: list[bytes] = []
    while at <= end and len(ends) < most:
        # The type lets the compiler unpack the tuples without generic objects.
        headers: tuple[int, int, int, int] = _frame(data, at)
        high, length, kind_and_flags, stream = headers
        start = at + FRAME_HEAD_BYTES
        at = start + length
        if (
            kind_and_flags != _WHOLE_HEADERS
            or high
            or at > end
            or not last < stream <= MAX_WINDOW
            or not stream & 1
            or length > MAX_FRAME_SIZE
        ):
            break
        message: tuple[int, int, int, int] = _frame(data, at)
        its_high, its_length, its_kind_and_flags, its_stream = message
        block, at = data[start:at], at + FRAME_HEAD_BYTES + its_length
        if (
            its_stream != stream
            or its_kind_and_flags != END_STREAM
            or its_high
            or at > end + FRAME_HEAD_BYTES
            or its_length > MAX_FRAME_SIZE
        ):
            break
        ends.append(at)
        streams.append(stream)
        blocks.append(block)
        last = stream
    return ends, streams, blocks


@lru_cache(maxsize=64)
def _shape(block_bytes: int) -> struct.Struct:
    """The layout of a call: its HEADERS frame, and its DATA frame up to the message."""
    return struct.Struct(f">{_STREAM_AT}sI{block_bytes}sHHI")


@lru_cache(maxsize=64)
def _message_shape(block_bytes: int) -> struct.Struct:
    """The same with the prefix of the message."""
    return struct.Struct(f">{_STREAM_AT}sI{block_bytes}sHHIBI")


def _alike(
    data: bytes, head: bytes, block: bytes, last_stream_id: int
) -> tuple[Sequence[int], int]:
    """The streams of the first calls of the data, which starts with one, and where these end.

    All are looked at at once, which takes a third of the time that one by one does.
    """
    calls = data.split(head)[1:]
    size = _STREAM_BYTES + len(block) + _DATA_HEAD.size
    length = _length_of(calls[-1], size)
    if length < 0:
        calls.pop()  # it is cut off
    else:
        calls[-1] = calls[-1][: size + length]  # something else may follow
    lengths = [len(call) - size for call in calls]
    if not calls or min(lengths) < 0 or max(lengths) > MAX_FRAME_SIZE:
        return (), 0
    count = len(calls)
    # What is in front of each message, as it is and as it would be if all calls were usual.
    fronts = b"".join([call[:size] for call in calls])
    usual = bytearray((bytes(_STREAM_BYTES) + block + _DATA_HEAD.pack(0, END_STREAM, 0)) * count)
    numbers = bytearray(_STREAM_BYTES * count)
    for place in range(_STREAM_BYTES):
        column = fronts[place::size]
        numbers[place::_STREAM_BYTES] = column
        usual[place::size] = usual[size - _STREAM_BYTES + place :: size] = column
    sizes = struct.pack(f">{count}H", *lengths)
    for place in range(2):
        usual[_STREAM_BYTES + len(block) + place :: size] = sizes[place::2]
    if usual != fronts:
        count = _as_usual(fronts, bytes(usual), size)
    streams: tuple[int, ...] = struct.unpack_from(f">{count}I", numbers)
    if not streams or streams[0] <= last_stream_id or streams[-1] > MAX_WINDOW:
        return (), 0
    if not _follow(streams) and (
        sorted(set(streams)) != list(streams)
        or numbers[_STREAM_BYTES - 1 : _STREAM_BYTES * count : _STREAM_BYTES].translate(None, _ODD)
    ):
        return (), 0
    return streams, sum(lengths[:count]) + count * (len(head) + size)


def _follow(streams: Sequence[int]) -> bool:
    """Whether these are odd, and each the next one. A client may also leave millions out."""
    first, last = streams[0], streams[-1]
    return (
        first % 2 == 1
        and last - first == 2 * (len(streams) - 1)
        and streams == tuple(range(first, last + 1, 2))
    )


def _length_of(call: bytes, size: int) -> int:
    """The length of the message of a call that has its front of this size; -1 if it is cut off."""
    at = size - _DATA_HEAD.size
    length = int.from_bytes(call[at : at + 2], "big")
    return length if len(call) >= size + length else -1


def _as_usual(fronts: bytes, usual: bytes, size: int) -> int:
    """How many of the first fronts, each of this size, are usual."""
    least, most = 0, len(fronts) // size
    while least < most:
        middle = (least + most + 1) // 2
        start, stop = least * size, middle * size
        if fronts[start:stop] == usual[start:stop]:
            least = middle
        else:
            most = middle - 1
    return least


class Begun(NamedTuple):
    """Calls whose HEADERS have come, and what of their other frames has come behind those."""

    until: int
    """Where all of that ends."""
    streams: list[int]
    message_bytes: int
    """How many bytes their DATA frames have."""
    updates: int
    """How many of the frames widen windows."""
    wider: int
    """By how much these widen the connection's window."""


def begun_calls(
    data: bytes, start: int, last_stream_id: int, alike: Callable[[Sequence[bytes]], int]
) -> Begun:
    """Walks calls from `start` on whose frames are mixed with each other's, or are not all there.

    Each opens a new stream above the last one; `alike` tells how many of the first header blocks
    may be there. Updates of the connection's window may stand anywhere.
    """
    at, end, last = start, len(data), last_stream_id
    message_bytes = updates = wider = 0
    together = _LEAST_TOGETHER
    streams: list[int] = []
    mine: set[int] = set()
    blocks: list[bytes] = []
    """Those at which nobody has looked yet."""
    before: list[tuple[int, int, int, int]] = []
    """For each call what was found before it."""
    while end - at >= FRAME_HEAD_BYTES:
        # The type lets the compiler unpack the tuple without generic objects.
        head: tuple[int, int, int, int] = _frame(data, at)
        high, length, kind_and_flags, stream = head
        begin = at + FRAME_HEAD_BYTES
        stop = begin + length
        if high or stop > end or length > MAX_FRAME_SIZE:
            break
        if kind_and_flags == _WHOLE_HEADERS:
            if not last < stream <= MAX_WINDOW or not stream & 1:
                break
            if len(blocks) == together:
                if together == _MOST_TOGETHER or alike(blocks) < together:
                    break
                blocks, together = [], 4 * together
            before.append((at, message_bytes, updates, wider))
            blocks.append(data[begin:stop])
            streams.append(stream)
            mine.add(stream)
            last = stream
        elif kind_and_flags <= END_STREAM and stream in mine:
            message_bytes += length
        elif kind_and_flags == _UPDATE and length == WINDOW_UPDATE_BYTES:
            increment = int.from_bytes(data[begin:stop], "big") & MAX_WINDOW
            if not increment or (stream and stream not in mine):
                break
            updates += 1
            wider += 0 if stream else increment
        else:
            break
        at = stop
    count = len(streams) - len(blocks) + (alike(blocks) if blocks else 0)
    if count < len(streams):
        at, message_bytes, updates, wider = before[count]
    return Begun(at, streams[:count], message_bytes, updates, wider)


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
        made[_STREAM_AT + place :: len(_REFUSAL)] = numbers[place::4]
    return bytes(made)


def _four_bytes_each(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)
