"""Every bound and every wait of a gRPC connection: one table.

Bounds are announced where HTTP/2 has a setting for them. What must not live here: what frames cost
(`costs`), and what happens when a bound is met.
"""

from __future__ import annotations

from typing import Final

# How long a client may take, in seconds.

HANDSHAKE_SECONDS: Final = 5.0
"""To agree on TLS, and to take its leave."""

GREETING_SECONDS: Final = 10.0
"""To speak HTTP/2 at all: preface and SETTINGS."""

FRAME_SECONDS: Final = 30
"""To send the rest of a frame, or of a header block, that it has begun."""

BODY_SECONDS: Final = 30
"""To send the one message of a unary call."""

IDLE_STREAM_SECONDS: Final = 300
"""To send the next message on an open stream."""

ACK_SECONDS: Final = 60
"""To acknowledge our SETTINGS."""

BLOCKED_SECONDS: Final = 30.0
"""To let some of the answers through that wait for its windows."""

PING_SECONDS: Final = 30.0
"""To be silent before it is asked whether it is there, and to answer that."""

# How much there may be.

MAX_STREAMS: Final = 1_000
"""Calls in flight on one connection; announced."""

MAX_MESSAGE_BYTES: Final = 65_536
"""A message above this is refused as gRPC's RESOURCE_EXHAUSTED."""

MAX_BLOCK_BYTES: Final = 65_536
"""A header block that is coded in more bytes ends the connection; its call alone is refused if its
list is above what is announced (`fields.MAX_LIST_BYTES`)."""

MAX_CONTINUATIONS: Final = 32
"""Frames of one header block."""

MAX_TEXT_BYTES: Final = 512
"""Of the sentence with which a call is refused: no header block of ours is longer than a frame."""

STREAM_WINDOW: Final = 131_072
"""What a client may send on a stream before it is read; announced."""

CONNECTION_WINDOW: Final = 16_777_216

HELD_BYTES: Final = 8_388_608
"""What one connection may make us keep: messages that are not whole, answers that wait."""

ALL_HELD_BYTES: Final = 67_108_864
"""The same of all connections of a process. Above it those are cut that keep more than their
share."""

INBOX_BYTES: Final = 262_144
"""A client of which so much waits to be handled is not read from."""

STREAM_BYTES: Final = 1_024
"""What an open stream takes beside its bytes."""
