"""What a connection says about itself: SETTINGS, PING, windows, PRIORITY, and how it is left.

What must not live here: frames that carry a part of a call.
"""

from __future__ import annotations

import struct
from typing import Final

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.budget import Budget, ConnectionFaultError, expect
from ratelimit_service.grpc.h2.costs import FRAME_US, SETTING_US
from ratelimit_service.grpc.h2.fields import MAX_LIST_BYTES
from ratelimit_service.grpc.h2.frames import (
    ACK,
    DEFAULT_WINDOW,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    SET_FRAME_SIZE,
    SET_PUSH,
    SET_TABLE,
    SET_WINDOW,
    WINDOW_UPDATE_BYTES,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.grpc.h2.life import Leaving, Life, NoTable, Opening
from ratelimit_service.grpc.h2.limits import CONNECTION_WINDOW, MAX_STREAMS, STREAM_WINDOW
from ratelimit_service.grpc.h2.open_streams import OpenStreams
from ratelimit_service.grpc.h2.sending import Sender

__all__ = ["Control"]

_DEFAULT_TABLE_BYTES: Final = 4_096
_PING: Final = b"are you?"
_LAST_CALL: Final = b"lastcall"
_LAST_ROUND: Final = b"all over"

_SETTING: Final = struct.Struct(">HI")


class Control:
    """The half of a connection that agrees with the client on how they speak."""

    def __init__(
        self,
        sender: Sender,
        streams: OpenStreams,
        headers: HeaderReader,
        life: Life,
        budget: Budget,
    ) -> None:
        self._sender = sender
        self._output = sender.output
        self._streams = streams
        self._headers = headers
        self._life = life
        self._budget = budget
        self.last_accepted = MAX_WINDOW
        """The last stream that is taken. Once the client was told, no stream above it is."""
        self._output.append(
            frames.settings(
                {
                    SettingId.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    SettingId.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    SettingId.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
                }
            )
        )
        self._output.append(frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    def ping(self) -> None:
        """Asks the client for a sign of life. Any bytes are one."""
        self._output.append(frames.ping(_PING, ack=False))

    def shut_down(self) -> None:
        """Tells the client to open no more streams here; those that are open are finished.

        In steps (RFC 9113, section 6.8): streams that were under way when the first notice went
        out are still served. The answer to a ping says that the client has the notice. Some clients
        have streams in a queue of their own then (tonic), so a second round follows before the
        connection takes no more.
        """
        if self._life.leaving is Leaving.STAYING:
            self._life.enter(Leaving.LAST_CALL)
            self._output.append(frames.goaway(MAX_WINDOW, ErrorCode.NO_ERROR))
            self._output.append(frames.ping(_LAST_CALL, ack=False))

    def _heard_again(self, payload: bytes) -> None:
        """The next step of `shut_down`, if this is the answer to its last ping."""
        leaving = self._life.leaving
        if leaving is Leaving.LAST_CALL and payload == _LAST_CALL:
            self._life.enter(Leaving.LAST_ROUND)
            self._output.append(frames.ping(_LAST_ROUND, ack=False))
        elif leaving is Leaving.LAST_ROUND and payload == _LAST_ROUND:
            self._life.enter(Leaving.DRAINING)
            self.last_accepted = self._streams.latest
            self._output.append(frames.goaway(self._streams.latest, ErrorCode.NO_ERROR))
            self._streams.close_if_done()

    def take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Takes a frame that carries no part of a call."""
        if kind == FrameType.WINDOW_UPDATE:
            self.window_update(stream_id, payload)
        elif kind == FrameType.PING:
            self._ping(flags, stream_id, payload)
        elif kind == FrameType.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == FrameType.PRIORITY:
            self._priority(stream_id, payload)
        elif kind == FrameType.PUSH_PROMISE:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "clients do not push")
        else:  # GOAWAY asks nothing of us, and unknown types are to be ignored
            expect(kind != FrameType.GOAWAY or stream_id == 0, "GOAWAY on a stream")
            self._budget.spend(FRAME_US, "frames")

    def window_update(self, stream_id: int, payload: bytes) -> None:
        """Takes a wider window. Clients in C widen two with every call."""
        if len(payload) != WINDOW_UPDATE_BYTES:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        streams = self._streams
        self._budget.spend(FRAME_US, "windows")
        if stream_id == 0:
            expect(increment > 0, "a window update of nothing")
            self._sender.widen(increment)
        elif stream_id in streams.open or stream_id in streams.begun:
            if increment == 0:
                streams.reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            else:
                self._sender.widen_stream(stream_id, increment)
        else:
            expect(streams.was_opened(stream_id), "WINDOW_UPDATE on an idle stream")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        expect(stream_id == 0, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "PING has 8 bytes")
        self._budget.spend(FRAME_US, "frames")
        if not flags & ACK:
            self._output.append(frames.ping(payload, ack=True))
        else:
            self._heard_again(payload)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        expect(stream_id == 0, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "an ACK has no settings")
            self._life.unacknowledged -= 1
            expect(self._life.unacknowledged >= 0, "an ACK of nothing")
            if self._life.opening is Opening.OPEN and not self._life.unacknowledged:
                self._headers.without_table()
            return
        if len(payload) % 6:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a setting has 6 bytes")
        self._budget.spend(FRAME_US + len(payload) // 6 * SETTING_US, "settings")
        window = self._sender.first_window
        for key, value in _SETTING.iter_unpack(payload):
            if key == SET_TABLE:
                self._allow_table(value)
            elif key == SET_PUSH:
                expect(value <= 1, "ENABLE_PUSH is 0 or 1")
            elif key == SET_FRAME_SIZE:
                expect(MAX_FRAME_SIZE <= value < 1 << 24, "MAX_FRAME_SIZE is 2^14 to 2^24-1")
                self._sender.max_frame = value
            elif key == SET_WINDOW:
                if value > MAX_WINDOW:
                    text = "a window above 2^31-1"
                    raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, text)
                window = value
        if self._life.opening is Opening.SETTINGS:
            self._life.enter(Opening.FIRST_CALL)
        self._output.append(frames.frame(FrameType.SETTINGS, ACK, 0, b""))
        if window != self._sender.first_window:
            self._sender.start_windows(window)

    def _allow_table(self, size: int) -> None:
        """Takes how large a table our header blocks may use; we use none.

        The smallest value counts, whatever follows (RFC 7541, section 4.2). It is enough to
        announce our empty table once: no later value is smaller.
        """
        if size < _DEFAULT_TABLE_BYTES and self._life.no_table is NoTable.UNSAID:
            self._life.enter(NoTable.DUE)

    def _priority(self, stream_id: int, payload: bytes) -> None:
        expect(stream_id != 0, "PRIORITY without a stream")
        self._budget.spend(FRAME_US, "frames")
        if len(payload) != 5:
            self._streams.reset(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        elif int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream_id:
            self._streams.reset(stream_id, ErrorCode.PROTOCOL_ERROR)
