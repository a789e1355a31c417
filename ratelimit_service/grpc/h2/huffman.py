"""Many Huffman-coded texts (RFC 7541, appendix B) at once, decoded by zlib.

Codes of up to 15 bits are just those that DEFLATE makes of their lengths. So zlib decodes them, if
a block's head has told it the lengths. What must not live here: texts one by one (`fields`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from ratelimit_service.grpc.h2.hpack_tables import CODE_BITS, END_OF_TEXT

__all__ = ["unhuffed_together"]

_LONGEST: Final = 15
"""Bits of DEFLATE's longest codes. HPACK's longer ones all begin with so many ones."""

_STOP: Final = b"\xff"
"""What 15 ones stand for here. The code of this byte is longer, so it is in no text."""

_LAST_OF_14: Final = ord("}")
"""DEFLATE must have a code for a block's end. It gets that of this character, and reads no more."""

_BEHIND: Final = bytes.fromhex("fffe0ffd7fff")
"""Stands behind each text: 15 ones, then bits after which a code ends wherever the text has left
off, then 15 ones. So no text changes what is read of the next one."""

_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""HPACK begins with a byte's highest bit, DEFLATE with its lowest."""


def _head() -> bytes:
    """The head of a DEFLATE block with these codes (RFC 1951, section 3.2.7), in whole bytes."""
    lengths = [length if length <= _LONGEST else 0 for length in CODE_BITS[:END_OF_TEXT]]
    lengths[_LAST_OF_14], lengths[_STOP[0]] = 0, _LONGEST
    end_of_block = CODE_BITS[_LAST_OF_14]
    no_distances = [0, 0]
    empty_block = "010" + "0000000"  # it fills up to whole bytes
    counts = "00000" + "10000" + "1111"  # of codes of texts, of distances, of lengths
    four_bits_each = "000" * 3 + "001" * 16  # how lengths are written
    written = "".join(f"{each:04b}" for each in [*lengths, end_of_block, *no_distances])
    bits = empty_block + "101" + counts + four_bits_each + written
    return int(bits, 2).to_bytes(len(bits) // 8, "big").translate(_REVERSED)


_decoder: Final = zlib.decompressobj(-_LONGEST)
_decoder.decompress(_head())


def _parts(coded: Sequence[bytes]) -> list[bytes]:
    """For each what stands before its first stop, and behind it, if none has more stops.

    Nothing if a text has the character that ends all.
    """
    decoder = _decoder.copy()
    found = decoder.decompress((_BEHIND.join(coded) + _BEHIND).translate(_REVERSED))
    return [] if decoder.eof else found.split(_STOP)


_ENDS: Final = frozenset(
    _parts([((1 << ones) - 1).to_bytes(2 * ones, "big")])[1] for ones in range(8)
)
"""What stands behind the stop of a text that is padded with so many ones, as it must be."""


def unhuffed_together(coded: Sequence[bytes]) -> list[bytes] | None:
    """What these stand for, at least one; None if one is coded wrong or has a rare character.

    Each of those that are coded right comes out right, whatever the others are.
    """
    parts = _parts(coded)
    # Behind each text that is coded right there is one end. If another one has more or fewer stops
    # then some text stands where ends should, or an end where texts should.
    texts, ends = parts[:-1:2], parts[1::2]
    if len(parts) == 2 * len(coded) + 1 and _ENDS.issuperset(ends) and _ENDS.isdisjoint(texts):
        return texts
    return None
