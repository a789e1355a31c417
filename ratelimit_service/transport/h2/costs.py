"""What frames and their contents cost: one table, in microseconds of one core.

`python -m benchmarks.costs` measures each unit, and fails if one declares less than it costs: the
CPU time of the dearest kind of its work, interpreted, on a core that counts some 60,000 calls a
second. A frame is taken as one that comes in a read of its own, with what the system does for it
and its answer. Values are rounded up; compiled all of it costs less. Budgets and allowances (the
first two, and what headers may cost for nothing) are choices: what real clients need, with room.
What must not live here: what is done about it (`account`).
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

FREE_HEADERS_US: Final = 300
"""What the headers of a call may cost for nothing: a thousand may come before the first answer.
Some 80 fields and a few hundred bytes of Huffman codes, which clients do send."""

PART_US: Final = 5
"""A small piece of a message."""

SETTING_US: Final = 1
"""An entry of a SETTINGS frame."""

VISIT_US: Final = 3
"""A stream that must be looked at because a window has changed."""

RESET_US: Final = 20
"""A stream that we reset for what a client does wrong. That costs a fifth of it; the rest is for
the headers that opened the stream for nothing."""

FIELD_NS: Final = 3_000
"""A field of a header block that must be walked; in nanoseconds."""

HUFFMAN_BYTE_NS: Final = 250
"""A byte of a Huffman-coded text that must be decoded; in nanoseconds."""

PIECE_US: Final = 10
"""What one unit of `Connection.receive`'s `most` stands for: a usual call on memory, or a frame."""
