"""Every bound and every wait of a gRPC connection: one table.

Bounds are announced where HTTP/2 has a setting for them. What must not live here: what frames cost
(`costs`), and what happens when a bound is met.
"""

from __future__ import annotations

from typing import Final

# How long a client may take, in seconds.

HANDSHAKE_SECONDS: Final = 5.0
"""To agree on TLS, and to close it."""

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
"""To open its windows for at least some of the answers that wait for them."""

PING_SECONDS: Final = 30.0
"""To be silent before we ask whether it is still there; and then to answer."""

# How much there may be.

MAX_STREAMS: Final = 4_000
"""Calls in flight on one connection; announced. A client with more keeps them on its own side, and
sends them in order when others end. Then they are old, and that cannot be seen here: in a flood all
would be counted too late. So these are as many as come in the 20 ms that callers wait, at
200,000 calls a second on one connection. Each has a place for its answer while windows hold that
back, so no decision is taken back because there is no place."""

MAX_WATCHES: Final = 32
"""Calls on one connection that wait for changes of health. Each is a task of its own."""

MAX_MESSAGE_BYTES: Final = 65_536
"""A message above this is refused as gRPC's RESOURCE_EXHAUSTED."""

MAX_BLOCK_BYTES: Final = 65_536
"""A header block of more coded bytes ends the connection. If only the decoded list is above the
announced size (`fields.MAX_LIST_BYTES`), its call alone is refused."""

MAX_CONTINUATIONS: Final = 32
"""Frames of one header block."""

MAX_TEXT_BYTES: Final = 512
"""The sentence with which a call is refused, so that its header block fits into one frame."""

STREAM_WINDOW: Final = 131_072
"""What a client may send on a stream before we have read it; announced."""

CONNECTION_WINDOW: Final = 16_777_216

HELD_BYTES: Final = 8_388_608
"""What one connection may make us keep: messages that are not whole, answers that wait."""

ALL_HELD_BYTES: Final = 67_108_864
"""The same for all connections of a process together. Above it connections are ended that make us
keep more than their share."""

STREAM_BYTES: Final = 1_024
"""What an open stream counts beside its bytes."""
