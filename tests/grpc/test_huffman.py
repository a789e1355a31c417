"""Huffman-coded texts."""

from __future__ import annotations

from hpack import HPACKDecodingError
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.grpc.h2.fields import BlockError, unhuffed
from ratelimit_service.grpc.h2.hpack_tables import CODE_BITS, STATIC_FIELDS, codes

BITS = {byte: f"{REQUEST_CODES[byte]:0{REQUEST_CODES_LENGTH[byte]}b}" for byte in range(256)}


def padded(bits: str) -> bytes:
    """Bits as a text's, with ones up to whole bytes."""
    bits += "1" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def test_tables() -> None:
    """The fields that all know and Huffman's codes are those of the hpack package."""
    assert HeaderTable.STATIC_TABLE == STATIC_FIELDS
    assert tuple(REQUEST_CODES_LENGTH) == CODE_BITS
    assert codes() == REQUEST_CODES


def oracle(text: bytes) -> bytes | None:
    try:
        return decode_huffman(text)
    except HPACKDecodingError:
        return None


def alone(text: bytes) -> bytes | None:
    try:
        return unhuffed(text)
    except BlockError:
        return None


def test_characters_in_pairs() -> None:
    """Each byte is read behind each other, wherever in a byte the first one's code ends."""
    for first in range(256):
        for second in range(256):
            pair = bytes((first, second))
            assert unhuffed(padded(BITS[first] + BITS[second])) == pair


TAILS = st.sampled_from(["", "0", "1", "1" * 7, "1" * 8, "1" * 9, "1" * 29, "1" * 30, "1" * 31])


@given(st.binary(max_size=6), TAILS, st.binary(max_size=3))
def test_any_text_against_the_oracle(text: bytes, tail: str, rest: bytes) -> None:
    """Texts that are coded right or wrong, filled up well or not, read as the oracle says."""
    bits = padded("".join(BITS[each] for each in text) + tail) + rest

    assert alone(bits) == oracle(bits)
