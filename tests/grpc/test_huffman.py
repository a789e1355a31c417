"""Huffman-coded texts that are decoded together."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import pytest
from hpack import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.grpc.h2.fields import BlockError, unhuffed
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.grpc.h2.hpack_tables import CODE_BITS, STATIC_FIELDS, codes
from ratelimit_service.grpc.h2.huffman import unhuffed_together
from tests.grpc.h2_client import Client

coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode

SHORT = bytes(byte for byte in range(256) if REQUEST_CODES_LENGTH[byte] <= 15 and byte != ord("}"))
BITS = {byte: f"{REQUEST_CODES[byte]:0{REQUEST_CODES_LENGTH[byte]}b}" for byte in range(256)}
STOP = "1" * 15
GOOD = [b"", b"0", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"id-7", SHORT]


def padded(bits: str) -> bytes:
    """Bits as a text's, with ones up to whole bytes."""
    bits += "1" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def in_deflate(text: bytes) -> str:
    """Bits that write a text in a block of DEFLATE's fixed codes, and end it."""
    made = zlib.compressobj(9, zlib.DEFLATED, -15, strategy=zlib.Z_FIXED)
    data = made.compress(text) + made.flush()
    return "".join(f"{byte:08b}"[::-1] for byte in data)


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


def test_texts_come_out_as_they_went_in() -> None:
    """Texts of all lengths and usual characters are what they were, however many there are."""
    chance = random.Random(3)
    for count in (1, 2, 300):
        texts = [bytes(chance.choices(SHORT, k=chance.randrange(70))) for _ in range(count)]
        assert unhuffed_together([coded(text) for text in texts]) == texts


HOSTILE: dict[str, bytes] = {
    "cut short": coded(b"0000")[:-1],
    "padded with a byte": coded(b"id") + b"\xff",
    "padded with zeros": padded(BITS[ord("a")] + "000"),
    "ones alone": b"\xff" * 9,
    "what ends all": coded(b"{a}"),
    "rare characters": coded("\u00fc\\".encode()),
    "a stop of its own": padded(BITS[ord("a")] + STOP + BITS[ord("b")]),
    "texts of others": padded(
        (BITS[ord("x")] + f"{int.from_bytes(bytes.fromhex('fffe0ffd7fff'), 'big'):048b}") * 3
    ),
    "other codes behind the end": padded(
        BITS[ord("}")] + in_deflate(b"forged\xff0@\xff" * len(GOOD) * 2)
    ),
}


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("at", range(len(GOOD) + 1))
def test_a_text_changes_no_other(bad: bytes, at: int) -> None:
    """With one that is coded wrong, or has a rare character, none is told."""
    all_coded = [coded(text) for text in GOOD]
    all_coded.insert(at, bad)

    assert unhuffed_together(all_coded) is None


def test_whatever_comes_changes_no_other() -> None:
    """Among any bytes each text that is coded right comes out right, or none comes out."""
    chance = random.Random(5)
    told = 0
    for _ in range(3_000):
        good = {chance.randrange(6): coded(chance.choice(GOOD)) for _ in range(3)}
        pieces = [chance.randbytes(3), coded(b"ab"), bytes.fromhex("fffe0ffd7fff"), b"\xff\xff"]
        all_coded = [
            good.get(place, b"".join(chance.choices(pieces, k=chance.randrange(4))))
            for place in range(6)
        ]
        texts = unhuffed_together(all_coded)
        if texts is not None:
            told += 1
            for place, one in enumerate(all_coded):
                try:
                    assert texts[place] == unhuffed(one)
                except BlockError:
                    assert place not in good
    assert told > 10


@pytest.mark.parametrize("spoil", [lambda block: block, lambda block: block[:-3] + b"\xff\xff\xff"])
@pytest.mark.parametrize("spoiled", [5, 28])
def test_headers_of_many_blocks_are_those_of_each(
    spoiled: int, spoil: Callable[[bytes], bytes]
) -> None:
    """What many blocks tell of their callers is what each tells alone."""
    client = Client()
    client.settle()
    blocks = []
    for number in range(60):
        extra = [("traceparent", f"00-{number:032x}-{number:016x}-01")] if number > 9 else []
        extra.append(("x-request-id", f"{{{number}}}" if 40 < number < 45 else f"id-{number}"))
        blocks.append(
            client.encoder.encode(
                [(":method", "POST"), (":scheme", "http"), (":path", "/a"), *extra]
            )
        )
    blocks[spoiled] = spoil(blocks[spoiled])
    together, alone = reader(), reader()
    told: list[list[tuple[bytes, bytes]]] = []
    in_columns = 0
    for at in range(0, 60, 10):
        some = blocks[at : at + 10]
        columns = together.callers_columns(some)
        if columns is None:
            told += [list(together.read_caller(block)) for block in some]
        else:
            in_columns += 1
            rows = zip(*columns.values(), strict=True)
            told += [list(zip(columns, row, strict=True)) for row in rows]
    assert told == [list(alone.read_caller(block)) for block in blocks]
    assert [value for name, value in told[9] if name == b"x-request-id"] == [b"id-9"]
    assert in_columns > 1


def test_columns_take_short_values_as_they_are() -> None:
    """Values that are not Huffman-coded stand beside those that are; cut blocks tell nothing."""
    path = b"\x20\x83\x86\x04\x02/a"
    blocks = [
        path + b"\x00\x0cx-request-id" + written + b"\x00\x01a\x01b"
        for written in (b"\x01a", b"\x83" + coded(b"id-7"), b"\x05other", b"\x00")
    ]
    made = reader()
    for block in blocks[:2]:
        made.read_caller(block)
    assert made.callers_columns(blocks) == {b"x-request-id": [b"a", b"id-7", b"other", b""]}
    for bad in (b"", path, blocks[0][:-1], blocks[0] + b"\x82", blocks[0].replace(b"/a", b"/b")):
        assert made.callers_columns([*blocks, bad]) is None


def reader() -> HeaderReader:
    made = HeaderReader()
    made.without_table()
    made.read(b"\x20")
    return made
