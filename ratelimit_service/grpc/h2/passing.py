"""Calls that there is no time for, passed over many at once.

Under a lasting overload most calls cannot be counted: to refuse one must cost next to nothing. So
this only looks where their frames end, which streams they open, and whether their headers are those
of calls that may be refused. Clients that wait in vain take calls back between others, so their
resets are passed as well. Anything unusual ends the run, and is left to the code that handles
single frames. No state. What must not live here: what becomes of the calls (`hurrying`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ratelimit_service.grpc.h2 import runs
from ratelimit_service.grpc.h2.costs import SMALL_PART_BYTES
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    HEADERS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    RESET,
    SHORT_FRAME_BYTES,
    STREAM_AT,
    UPDATE,
    WHOLE_HEADERS,
    head_start,
    split_head,
)
from ratelimit_service.grpc.h2.runs import RESET_HEAD

__all__ = ["MOST_TAKEN_BACK", "Passed", "begun_calls", "calls", "varied_calls"]

_LEAST_TOGETHER: Final = 32
_MOST_TOGETHER: Final = 512
"""So many calls are looked at together: first few, then four times as many each time, as long as
most of them are alike."""

_FIRST_VARIED: Final = 4
"""The same, and fewer, where header blocks differ: of two kinds of calls by turns only one kind may
be passed."""

MOST_TAKEN_BACK: Final = 128
"""A run ends once it has so many resets: each makes work, and others must come to their turn."""

_MOST_OTHERS: Final = 2_048
_SHORT_WEIGHT: Final = 4
"""So many frames a run has at most that begin no call: DATA, or others that weigh so much each."""

_STREAM_BYTES: Final = 4
_LENGTH_BYTES: Final = 2
_DATA_HEAD: Final = struct.Struct(">HHI")
"""The head of a DATA frame, without the high byte of its length."""

_HEADS_BYTES: Final = 2 * FRAME_HEAD_BYTES
_ODD: Final = bytes(range(1, 256, 2))


class Passed(NamedTuple):
    """Calls that are passed over, and what came among them."""

    until: int
    """Where all of that ends."""
    streams: list[int]
    message_bytes: int
    """How many bytes their DATA frames have."""
    taken_back: list[int]
    """Streams that the client has reset, each after it had opened it or a later one."""
    updates: int = 0
    """How many frames widen windows."""
    wider: int = 0
    """By how much these widen the connection's window."""
    small_parts: int = 0
    """How many small DATA frames there are."""


def calls(data: bytes, start: int, block: bytes, last_stream_id: int) -> Passed:
    """Walks whole calls from `start` on; each opens a new stream above the last one.

    Each call is a HEADERS frame with this block and a DATA frame that ends the stream. Behind it
    may be resets: clients take calls back between others.
    """
    usual_head = head_start(len(block), HEADERS, END_HEADERS)
    usual_block = block + b"\0"  # and the high byte of the DATA frame's size, which is 0
    shape = _shape(len(usual_block))
    unpack, size = shape.unpack_from, shape.size
    at, end, last = start, len(data), last_stream_id
    together, last_start, alone = _LEAST_TOGETHER, len(data) - size, 0
    streams: list[int] = []
    taken_back: list[int] = []
    while at <= last_start and len(taken_back) < MOST_TAKEN_BACK:
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
        last, stride, at = stream, after - at, _behind(data, after, stream, taken_back)
        alone -= 1
        while (
            alone <= 0
            and data.startswith(usual_head, at)
            and data.startswith(usual_block, at + FRAME_HEAD_BYTES)
            and len(taken_back) < MOST_TAKEN_BACK
        ):
            piece = data[at : at + together * stride]
            alike, taken = _alike(piece, usual_head, usual_block, together, last, taken_back)
            if not alike:
                together = alone = _LEAST_TOGETHER  # else they are looked at in vain for each call
                break
            streams += alike
            last = alike[-1]
            at = _behind(data, at + taken, last, taken_back)
            most = min(4 * together, MOST_TAKEN_BACK if taken_back else _MOST_TOGETHER)
            together = most if 2 * taken > len(piece) else _LEAST_TOGETHER
    resets_bytes = len(taken_back) * SHORT_FRAME_BYTES
    message_bytes = at - start - len(streams) * size - resets_bytes
    return Passed(at, streams, message_bytes, taken_back)


def _behind(data: bytes, at: int, last_stream_id: int, taken_back: list[int]) -> int:
    """Takes the resets that stand there, up to a faulty one; returns where they end."""
    if not data.startswith(RESET_HEAD, at):
        return at
    end, found = runs.resets(data, at)
    for place, stream in enumerate(found):
        if not 0 < stream <= last_stream_id or not stream & 1:
            found, end = found[:place], at + place * SHORT_FRAME_BYTES
            break
    taken_back += found
    return end


class _Calls(NamedTuple):
    """Whole calls, and the resets behind them."""

    ends: list[int]
    """Where each ends, with the resets behind it."""
    streams: list[int]
    blocks: list[bytes]
    taken_back: list[int]
    """The streams that the client has reset."""
    resets: list[int]
    """How many of these there are up to the end of each call."""


def varied_calls(
    data: bytes, start: int, last_stream_id: int, alike: Callable[[Sequence[bytes]], int]
) -> Passed:
    """As `calls`, with any header blocks: `alike` tells how many of the first ones may be there."""
    at, together, message_bytes = start, _FIRST_VARIED, 0
    streams: list[int] = []
    taken_back: list[int] = []
    while True:
        found = _whole_calls(data, at, last_stream_id, together)
        count = alike(found.blocks) if found.blocks else 0
        if not count:
            return Passed(at, streams, message_bytes, taken_back)
        streams += found.streams[:count]
        resets_count, end = found.resets[count - 1], found.ends[count - 1]
        taken_back += found.taken_back[:resets_count]
        heads_bytes = count * _HEADS_BYTES + resets_count * SHORT_FRAME_BYTES
        message_bytes += end - at - sum(map(len, found.blocks[:count])) - heads_bytes
        last_stream_id = streams[-1]
        at = _behind(data, end, last_stream_id, taken_back) if count == len(found.ends) else end
        if count < together or len(taken_back) >= MOST_TAKEN_BACK:
            return Passed(at, streams, message_bytes, taken_back)
        together = min(4 * together, _MOST_TOGETHER)


def _whole_calls(data: bytes, at: int, last: int, most: int) -> _Calls:
    """At most so many whole calls that begin there."""
    end = len(data) - FRAME_HEAD_BYTES
    ends: list[int] = []
    streams: list[int] = []
    blocks: list[bytes] = []
    taken_back: list[int] = []
    resets: list[int] = []
    while at <= end and len(ends) < most:
        # The type lets the compiler unpack the tuples without generic objects.
        headers: tuple[int, int, int, int] = split_head(data, at)
        high, length, kind_and_flags, stream = headers
        if kind_and_flags == RESET and streams:
            after = _behind(data, at, last, taken_back)
            if after == at:
                break
            ends[-1], resets[-1], at = after, len(taken_back), after
            if resets[-1] >= MOST_TAKEN_BACK:
                break
            continue
        start = at + FRAME_HEAD_BYTES
        at = start + length
        if (
            kind_and_flags != WHOLE_HEADERS
            or high
            or at > end
            or not last < stream <= MAX_WINDOW
            or not stream & 1
            or length > MAX_FRAME_SIZE
        ):
            break
        message: tuple[int, int, int, int] = split_head(data, at)
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
        resets.append(len(taken_back))
        last = stream
    return _Calls(ends, streams, blocks, taken_back, resets)


@lru_cache(maxsize=64)
def _shape(block_bytes: int) -> struct.Struct:
    """The layout of a call: its HEADERS frame, and its DATA frame up to the message."""
    return struct.Struct(f">{STREAM_AT}sI{block_bytes}sHHI")


def _alike(
    data: bytes, head: bytes, block: bytes, most: int, last_stream_id: int, taken_back: list[int]
) -> tuple[Sequence[int], int]:
    """The streams of the first calls of the data, which starts with one, and where these end.

    At most so many; messages may have bytes that look like the head of a call. Resets between them
    are taken as well. All calls are looked at at once, which takes a third of the time that one by
    one does.
    """
    calls = data.split(head, most)[1:]
    size = _STREAM_BYTES + len(block) + _DATA_HEAD.size
    length = _length_of(calls[-1], size)
    if length < 0:
        calls.pop()  # it is cut off
    else:
        calls[-1] = calls[-1][: size + length]  # something else may follow
    behind = tuple([len(call) - size for call in calls])
    if not calls or min(behind) < 0:
        return (), 0
    count = len(calls)
    # What is in front of each message, as it is and as it would be if all calls were usual.
    fronts = b"".join([call[:size] for call in calls])
    usual = bytearray((bytes(_STREAM_BYTES) + block + _DATA_HEAD.pack(0, END_STREAM, 0)) * count)
    numbers, lengths = bytearray(_STREAM_BYTES * count), bytearray(_LENGTH_BYTES * count)
    for place in range(_STREAM_BYTES):
        column = fronts[place::size]
        numbers[place::_STREAM_BYTES] = column
        usual[place::size] = usual[size - _STREAM_BYTES + place :: size] = column
    for place in range(_LENGTH_BYTES):
        column = fronts[size - _DATA_HEAD.size + place :: size]
        lengths[place::_LENGTH_BYTES] = usual[size - _DATA_HEAD.size + place :: size] = column
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
    messages: tuple[int, ...] = struct.unpack_from(f">{count}H", lengths)
    if max(messages) > MAX_FRAME_SIZE:
        return (), 0
    before = len(taken_back)
    if behind != messages:
        count = _whole(calls, size, messages, streams, taken_back)
    resets_bytes = (len(taken_back) - before) * SHORT_FRAME_BYTES
    return streams[:count], sum(messages[:count]) + count * (len(head) + size) + resets_bytes


def _whole(
    calls: Sequence[bytes],
    size: int,
    messages: Sequence[int],
    streams: Sequence[int],
    taken_back: list[int],
) -> int:
    """How many of the first calls end with their messages, or with resets, which are taken.

    In front of each message, of these lengths, is so much. Behind the last may be something else.
    """
    for place, length in enumerate(messages):
        call, end = calls[place], size + length
        if len(call) < end:
            return place
        if len(call) > end:
            until = _behind(call, end, streams[place], taken_back)
            if until < len(call) or len(taken_back) >= MOST_TAKEN_BACK:
                return place + 1
    return len(messages)


def _follow(streams: Sequence[int]) -> bool:
    """Whether these streams are odd numbers, each the next one after that before it.

    Clients may leave out numbers. Then this says no, because millions may be missing.
    """
    first, last = streams[0], streams[-1]
    return (
        first % 2 == 1
        and last - first == 2 * (len(streams) - 1)
        and streams == tuple(range(first, last + 1, 2))
    )


def _length_of(call: bytes, size: int) -> int:
    """The length of the message behind a call's front of this size; -1 if the front is cut off."""
    at = size - _DATA_HEAD.size
    length = int.from_bytes(call[at : at + _LENGTH_BYTES], "big")
    return length if len(call) >= size + length else -1


def _as_usual(fronts: bytes, usual: bytes, size: int) -> int:
    """How many fronts, counted from the first, are usual; each has this size."""
    least, most = 0, len(fronts) // size
    while least < most:
        middle = (least + most + 1) // 2
        start, stop = least * size, middle * size
        if fronts[start:stop] == usual[start:stop]:
            least = middle
        else:
            most = middle - 1
    return least


class _Among:
    """What stands among the frames of calls, and belongs to none: resets, and wider windows."""

    __slots__ = ("taken_back", "unclosed", "updates", "wider")

    def __init__(self) -> None:
        self.unclosed: set[int] = set()
        """Streams of the calls that are not taken back yet."""
        self.taken_back: list[int] = []
        self.updates = self.wider = 0

    def takes(self, kind_and_flags: int, stream: int, payload: bytes, last_stream_id: int) -> bool:
        """Takes a frame with four bytes of payload, unless it is none of these, or faulty."""
        if kind_and_flags == RESET:
            if not 0 < stream <= last_stream_id or not stream & 1:
                return False
            self.taken_back.append(stream)
            self.unclosed.discard(stream)
            return True
        if kind_and_flags != UPDATE:
            return False
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        if not increment or (stream and stream not in self.unclosed):
            return False
        self.updates += 1
        self.wider += 0 if stream else increment
        return True


def begun_calls(
    data: bytes, start: int, last_stream_id: int, alike: Callable[[Sequence[bytes]], int]
) -> Passed:
    """Walks calls from `start` on whose frames are mixed with each other's, or are not all there.

    Each opens a new stream above the last one; `alike` tells how many of the first header blocks
    may be there. Resets, and updates of the connection's window, may stand anywhere.
    """
    at, end, last, others = start, len(data), last_stream_id, 0
    message_bytes = small_parts = 0
    together, among = _LEAST_TOGETHER, _Among()
    streams: list[int] = []
    blocks: list[bytes] = []
    """Those at which nobody has looked yet."""
    before: list[tuple[int, int, int, int, int, int]] = []
    """For each of these what was found before it."""
    while end - at >= FRAME_HEAD_BYTES and others < _MOST_OTHERS:
        # The type lets the compiler unpack the tuple without generic objects.
        head: tuple[int, int, int, int] = split_head(data, at)
        high, length, kind_and_flags, stream = head
        begin = at + FRAME_HEAD_BYTES
        stop = begin + length
        if high or stop > end or length > MAX_FRAME_SIZE:
            break
        if kind_and_flags == WHOLE_HEADERS:
            if not last < stream <= MAX_WINDOW or not stream & 1:
                break
            if len(blocks) == together:
                if together == _MOST_TOGETHER or alike(blocks) < together:
                    break
                blocks, before, together = [], [], 4 * together
            resets_count = len(among.taken_back)
            if resets_count >= MOST_TAKEN_BACK:
                break
            found = (at, message_bytes, resets_count, among.updates, among.wider, small_parts)
            before.append(found)
            blocks.append(data[begin:stop])
            streams.append(stream)
            among.unclosed.add(stream)
            last = stream
        elif kind_and_flags <= END_STREAM and stream in among.unclosed:
            message_bytes += length
            small_parts += length < SMALL_PART_BYTES
            others += 1
        elif at + SHORT_FRAME_BYTES == stop and among.takes(
            kind_and_flags, stream, data[begin:stop], last
        ):
            others += _SHORT_WEIGHT
        else:
            break
        at = stop
    unknown = len(blocks) - (alike(blocks) if blocks else 0)
    found = (at, message_bytes, len(among.taken_back), among.updates, among.wider, small_parts)
    if unknown:
        found = before[-unknown]
    at, message_bytes, resets_count, updates, wider, small_parts = found
    taken_back, known = among.taken_back[:resets_count], len(streams) - unknown
    return Passed(at, streams[:known], message_bytes, taken_back, updates, wider, small_parts)
