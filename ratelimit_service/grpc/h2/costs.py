"""What frames and their contents cost: one table, in microseconds of one core.

`python -m benchmarks.costs` measures each unit, and fails if one declares less than it costs. A
unit's cost is the CPU time of the dearest kind of its work, interpreted, on a core that counts some
60,000 calls a second. A frame is measured as if it came in a read of its own, with its answer and
the system's work for both. Values are rounded up; compiled all of it costs less. Budgets and
allowances (the first three) are choices: what real clients need, with room. What must not live
here: what happens when a budget is spent (`budget`).

Callers that give up are no attackers. Envoy cancels a call after its timeout, and while something
hangs it cancels all that are under way, 4,000 at most. One costs 20 us if its headers are known,
some 80 us if they are not; so all of them cost no more than SAVED_US, which a connection has after
3,200 answered calls. After that an answered call makes up for a cancelled one. A call that we
refuse because there is no time for it counts as answered. A client that opens streams only to reset
them has nothing saved: the budget is gone after 1,000 of the cheapest, or 64 of the dearest.
"""

from __future__ import annotations

from typing import Final

BUDGET_US: Final = 20_000
"""What a connection may cost in a second beyond what its answered calls make up for: 2 % of a
core."""

ANSWERED_US: Final = 100
"""What an answered call makes up for: clients say several things with each, grpcio some three."""

SAVED_US: Final = 320_000
"""What answered calls may make up for in advance."""

FRAME_US: Final = 10
"""Any frame that is no part of a call: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA, …"""

RUN_FRAME_US: Final = 3
"""A reset or a wider window between usual calls: what it takes of a turn."""

HEADERS_US: Final = 10
"""A HEADERS frame, without its fields. What the headers of a call cost is charged only if the call
comes to nothing: the client resets it, we reset it for a fault of the client, or it is refused as
one too many, or as too large. A new client may send much with its first calls, and a thousand of
them may come before the first answer. Until it is charged, the client pays with its turns."""

PART_US: Final = 5
SMALL_PART_BYTES: Final = 256
"""A piece of a message that is smaller, and not its last."""

SETTING_US: Final = 1
"""An entry of a SETTINGS frame."""

VISIT_US: Final = 3
"""A stream that we must look at because a window has changed."""

RESET_US: Final = 10
"""A stream that we reset for a fault of the client, beside the headers that opened it."""

RECORD_US: Final = 30
"""A TLS record of which nothing comes: one that changes the keys, and asks us to do the same."""

FIELD_NS: Final = 3_000
"""A field of a header block that must be walked; in nanoseconds."""

HUFFMAN_BYTE_NS: Final = 250
"""A byte of a Huffman-coded text that must be decoded; in nanoseconds."""

UNPACK_US: Final = 100
"""A compressed message, which may become MAX_MESSAGE_BYTES. It is the call's own work, so it is not
charged; but it takes of a turn."""

REFLECT_US: Final = 40
"""A message of a streaming call: its answer describes a file, and all that it imports. It is the
call's own work, too."""

LONG_BYTES: Final = 512
"""A message above this may have so many descriptors, of eight bytes at least, that to decide it
takes a millisecond or more."""

USUAL_BYTES: Final = 128
"""A message above this is no usual call: it may have many descriptors, of a dozen bytes each."""

DESCRIPTORS_BYTES: Final = 64
"""So many bytes of such a message count as one more call in `most` of `Connection.receive`."""

USUAL_TAGS: Final = 4
"""So many descriptors and entries are a usual call's. Where there are more, they count as more
calls in what is left for the end of a turn."""

PIECE_US: Final = 10
"""The cost of one unit of `most` in `Connection.receive`: a usual call on memory, or a frame."""

RUN_BYTES: Final = 4_096
"""So many bytes of a run of usual frames count as one such unit."""
