"""HTTP/2 frames (RFC 9113, sections 4, 6 and 7): their numbers, and how they are written.

No state and no I/O.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

__all__ = [
    "ACK",
    "DEFAULT_WINDOW",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_HEAD_BYTES",
    "HEADERS",
    "MAX_FRAME_SIZE",
    "MAX_WINDOW",
    "PADDED",
    "PREFACE",
    "PRIORITY",
    "RESET",
    "RST_STREAM",
    "RST_STREAM_BYTES",
    "STREAM_AT",
    "UPDATE",
    "WHOLE_HEADERS",
    "WINDOW_UPDATE",
    "WINDOW_UPDATE_BYTES",
    "ErrorCode",
    "FrameType",
    "SettingId",
    "frame",
    "goaway",
    "head_start",
    "ping",
    "rst_stream",
    "settings",
    "split_head",
    "window_update",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (section 3.4)."""

FRAME_HEAD_BYTES: Final = 9
"""In front of each payload: its length, the frame's type, flags and stream (section 4.1)."""

STREAM_AT: Final = 5
"""The offset in a frame at which its stream's number stands."""

split_head: Final = struct.Struct(">BHHI").unpack_from
"""The parts of a frame's head: of the length the high byte and the rest, type and flags as one
number, and the stream."""

head_start: Final = struct.Struct(">xHBB").pack
"""What a frame begins with, up to its stream: its length (below 65,536), type and flags."""

MAX_FRAME_SIZE: Final = 16_384
"""The largest payload that everybody must take; we announce no larger one (section 4.2)."""

DEFAULT_WINDOW: Final = 65_535
"""The size of a flow-control window until a setting changes it (section 6.9.2)."""

MAX_WINDOW: Final = 2**31 - 1
"""The largest flow-control window (section 6.9.1)."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
WINDOW_UPDATE: Final = 0x8
"""These types as plain integers, because every frame is compared with them."""

RST_STREAM_BYTES: Final = 4
WINDOW_UPDATE_BYTES: Final = 4
"""The sizes of these frames' payloads (sections 6.4 and 6.9)."""

WHOLE_HEADERS: Final = HEADERS << 8 | END_HEADERS
RESET: Final = RST_STREAM << 8
UPDATE: Final = WINDOW_UPDATE << 8
"""Type and flags of these frames as one number, as `split_head` gives them."""


class FrameType(IntEnum):
    """The types of frames (section 6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class SettingId(IntEnum):
    """The settings that matter to a server (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


SET_TABLE: Final = 0x1
SET_PUSH: Final = 0x2
SET_WINDOW: Final = 0x4
SET_FRAME_SIZE: Final = 0x5
"""Some of these as plain numbers: one frame may have thousands of entries to compare with them."""


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


def frame(kind: FrameType, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Any frame."""
    return b"%b%c%c%b%b" % (
        len(payload).to_bytes(3, "big"),
        kind,
        flags,
        stream_id.to_bytes(4, "big"),
        payload,
    )


def settings(values: dict[SettingId, int]) -> bytes:
    """A SETTINGS frame."""
    payload = b"".join(
        key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()
    )
    return frame(FrameType.SETTINGS, 0, 0, payload)


def ping(payload: bytes, *, ack: bool) -> bytes:
    """A PING frame; `payload` is 8 bytes."""
    return frame(FrameType.PING, ACK if ack else 0, 0, payload)


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """An RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """A GOAWAY frame with a line for whoever looks at the wire."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()
    return frame(FrameType.GOAWAY, 0, 0, payload)
