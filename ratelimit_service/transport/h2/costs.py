"""What frames and their contents cost: one table, in microseconds of one core.

Measured interpreted on a core that counts some 60,000 calls a second, rounded up, with what the
system does for a frame and its answer. Compiled all of it costs less. What must not live here: what
is done about it (`account`).
"""

from __future__ import annotations

from typing import Final

BUDGET_US: Final = 20_000
"""What a connection may cost in a second beyond what its answered calls make up for: 2 % of a
core."""

ANSWERED_US: Final = 100
"""What an answered call makes up for: clients say several things with each, grpcio some three."""

FRAME_US: Final = 10
"""Any frame that is no part of a call: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA, …"""

HEADERS_US: Final = 10
"""A HEADERS frame, without its fields."""

FREE_HEADERS_US: Final = 60
"""What the headers of a call may cost for nothing: a thousand may come before the first answer."""

PART_US: Final = 5
"""A small piece of a message."""

SETTING_US: Final = 1
"""An entry of a SETTINGS frame."""

VISIT_US: Final = 3
"""A stream that must be looked at because a window has changed."""

RESET_US: Final = 20
"""A stream that is reset, by whomever, for whatever a client does wrong."""

FIELD_NS: Final = 700
"""A field of a header block that must be walked; in nanoseconds."""

HUFFMAN_BYTE_NS: Final = 150
"""A byte of a Huffman-coded text that must be decoded; in nanoseconds."""

PIECE_US: Final = 10
"""What one unit of `Connection.receive`'s `most` stands for: a usual call or a frame."""
