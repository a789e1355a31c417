"""Frames of several calls at once, put in order: those of each call together.

Some clients send the HEADERS of several calls before their DATA; others end a stream by an empty
DATA frame, or widen windows in between. Everything that is quick about calls (`runs`, and the short
way of `connection`) knows only calls of two frames: HEADERS, and DATA that ends the stream. So this
says the same in that order. What must not live here: anything that takes a call, or ends one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ratelimit_service.grpc.h2.frames import (
    END_STREAM,
    FLAGS_AT,
    FRAME_HEAD_BYTES,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    RESET,
    RST_STREAM_BYTES,
    UPDATE,
    WHOLE_HEADERS,
    split_head,
)

__all__ = ["InOrder", "ends_within", "in_order"]

_SHORT: Final = frozenset({RESET, UPDATE})
"""Types and flags of frames with four bytes that may stand among those of calls."""

_NOTHING: Final = frozenset({bytes(4), b"\x80\0\0\0"})
"""A wider window by this is a fault. A reset with this code is rare."""

_END_FLAG: Final = bytes((END_STREAM,))

_MOST_FRAMES: Final = 512
_MOST_HELD_BYTES: Final = 65_536
"""So many frames are put in order at once, and calls wait for more of them if they have so few
bytes."""


class InOrder(NamedTuple):
    """What frames say, in order."""

    said: bytes
    """Empty if they stand in order as they are."""
    until: int
    """Where these frames end in the data."""
    ready: int
    """How many of the bytes that are `said` are in order for good: the calls behind may go on in
    what comes next."""


class _Frames:
    """The frames of some calls, by what they belong to, as far as all of them are usual."""

    __slots__ = ("at", "calls", "full", "older", "orderly", "updates")

    def __init__(self, data: bytes, at: int, last_stream_id: int) -> None:
        self.older: list[bytes] = []
        """Those of older streams, and what widens the connection's window."""
        self.calls: dict[int, list[bytes]] = {}
        """Those of each new call."""
        self.updates: list[bytes] = []
        """What widens windows of new calls."""
        self.orderly = True
        """Whether they stand in that order, each call's together."""
        self.at = at
        """Where the first one begins that is unusual or not whole, or the first of too many."""
        self.full = self._read(data, last_stream_id)
        """Whether it is too many."""

    def _read(self, data: bytes, last_stream_id: int) -> bool:
        """Sorts frames as far as they are usual; returns whether there are too many."""
        at, end, last = self.at, len(data), last_stream_id
        older, calls, updates = self.older, self.calls, self.updates
        orderly, frames = True, 0
        while frames < _MOST_FRAMES and end - at >= FRAME_HEAD_BYTES:
            # The type lets the compiler unpack the tuple without generic objects.
            head: tuple[int, int, int, int] = split_head(data, at)
            high, length, kind_and_flags, stream = head
            start = at + FRAME_HEAD_BYTES
            stop = start + length
            if high or stop > end or length > MAX_FRAME_SIZE:
                break
            if kind_and_flags == WHOLE_HEADERS:
                if not last < stream <= MAX_WINDOW or not stream & 1:
                    break
                calls[stream] = [data[at:stop]]
                last, orderly = stream, orderly and not updates
            elif stream in calls and kind_and_flags <= END_STREAM:
                calls[stream].append(data[at:stop])
                its_last = stream == last and (length > 0 or len(calls[stream]) != 3)
                orderly = orderly and its_last and not updates
            elif kind_and_flags > END_STREAM and (
                kind_and_flags not in _SHORT
                or length != RST_STREAM_BYTES
                or data[start:stop] in _NOTHING
            ):
                break  # also what could end the connection, which must come to its turn
            elif kind_and_flags == UPDATE and stream in calls:
                updates.append(data[at:stop])
            elif (0 < stream <= last_stream_id and stream & 1) or (
                kind_and_flags == UPDATE and not stream
            ):
                older.append(data[at:stop])
                orderly = orderly and not calls
            else:
                break  # an even number is faulty, too: clients open streams with odd ones
            at = stop
            frames += 1
        self.at, self.orderly = at, orderly
        return frames == _MOST_FRAMES


def in_order(data: bytes, start: int, last_stream_id: int, *, followed: bool) -> InOrder:
    """Puts the frames of each call together, of those that follow from `start` on.

    Each call is said as if it had come at once: HEADERS, and DATA that ends the stream. In front is
    what belongs to older streams, up to `last_stream_id`, and what widens the connection's window;
    behind is what widens windows of the calls.

    The frames end before the first that is neither DATA nor a usual HEADERS, RST_STREAM or
    WINDOW_UPDATE, or that is not whole, or after some hundreds. Calls at the end may go on behind
    them, also behind the data if other bytes have `followed` it.
    """
    frames = _Frames(data, start, last_stream_id)
    until = frames.at
    said, ready = frames.older, -1
    older = sum(map(len, said))
    ended = until == len(data) or ends_within(data, until)
    full = frames.full and not ended
    waits = (full or (ended and followed)) and until - start <= _MOST_HELD_BYTES
    for its in frames.calls.values() if waits or not frames.orderly else ():
        if waits and ready < 0 and not its[-1][FLAGS_AT] & END_STREAM:
            ready = sum(map(len, said))
        if len(its) == 3 and _ends_apart(its[1], its[2]):
            its[1:] = [its[1][:FLAGS_AT], _END_FLAG, its[1][FLAGS_AT + 1 :]]
        said += its
    if frames.orderly and ready < 0:
        return InOrder(b"", until, 0)
    made = b"".join(said + frames.updates)
    # Where there are too many, and no call among them goes on, they are not put in order again.
    return InOrder(made, until, len(made) if ready < 0 or (full and ready <= older) else ready)


def ends_within(data: bytes, at: int) -> bool:
    """Whether the data ends in the middle of the frame that begins there."""
    rest = len(data) - at
    if rest < FRAME_HEAD_BYTES:
        return rest > 0
    length = int.from_bytes(data[at : at + 3], "big")
    return rest < FRAME_HEAD_BYTES + length and length <= MAX_FRAME_SIZE


def _ends_apart(message: bytes, end: bytes) -> bool:
    """Whether a DATA frame is followed by an empty one that ends the stream."""
    return not message[FLAGS_AT] and len(end) == FRAME_HEAD_BYTES and end[FLAGS_AT] == END_STREAM
