"""Header blocks: what they say, held against an oracle, and what they may cost."""

from __future__ import annotations

from collections.abc import Sequence

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import (
    Calls,
)
from ratelimit_service.grpc.h2.fields import BlockError
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    ErrorCode,
    FrameType,
)
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.model.request import LEAST_TIMEOUT_US
from tests.grpc.h2_client import HEADERS, PATH, Client, messages, refused

NAMES = st.sampled_from(["x-request-id", "traceparent", "user-agent", "grpc-timeout", "x-a"])

UNITS_US = {"n": 0.001, "u": 1.0, "m": 1e3, "S": 1e6, "M": 6e7, "H": 3.6e9}

VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)

EXTRA = st.lists(st.tuples(NAMES, VALUES), max_size=6)


@given(st.lists(st.tuples(EXTRA, st.integers(0, 4_096), st.booleans()), max_size=12))
def test_headers_against_the_oracle(
    blocks: list[tuple[list[tuple[str, str]], int, bool]],
) -> None:
    """Whatever a client indexes, evicts and resizes, each block reads as the hpack package does."""
    reader, encoder, oracle = HeaderReader(), hpack.Encoder(), hpack.Decoder()
    for number, (extra, size, huffman) in enumerate(blocks):
        if number == len(blocks) // 2:
            reader.without_table()
            encoder.header_table_size = 0
        elif number < len(blocks) // 2:
            encoder.header_table_size = size
        block = encoder.encode([*HEADERS, *extra], huffman=huffman)

        head = reader.read(block)

        decoded = dict(oracle.decode(block, raw=True))
        assert (head.path, head.method) == (decoded[b":path"], decoded[b":method"])
        assert head.content_type == decoded[b"content-type"]
        assert not head.malformed
        timeout = decoded.get(b"grpc-timeout", b"").decode()
        readable = timeout[:-1].isdigit() and timeout[-1:] in UNITS_US and len(timeout) < 10
        us = int(timeout[:-1]) * UNITS_US[timeout[-1:]] if readable else 0
        assert (head.timeout_us is not None) == (us >= LEAST_TIMEOUT_US + 1)


@given(st.binary(max_size=60))
def test_any_block_without_table(block: bytes) -> None:
    """Arbitrary bytes are a header block or an error, the same as for the oracle."""
    reader, oracle = HeaderReader(), hpack.Decoder()
    for each in (reader, oracle):
        size_zero = b"\x20"
        _ = each.read(size_zero) if isinstance(each, HeaderReader) else each.decode(size_zero)
    oracle.max_allowed_table_size = 0
    expected: object = None
    try:
        expected = dict(oracle.decode(block, raw=True)).get(b":path", b"")
    except (hpack.HPACKError, IndexError, ValueError):
        expected = None

    try:
        found: object = reader.read(block).path
    except BlockError:
        found = None

    # Values that do not matter are not decoded, so that faults in them may go unseen.
    assert found == expected or expected is None


def test_header_bomb() -> None:
    """A few bytes that stand for many headers end the connection."""
    client = Client()
    encoder = hpack.Encoder()
    block = encoder.encode([*HEADERS, ("x-bomb", "x" * 3_000)])
    client.connection.receive(frames.frame(FrameType.HEADERS, END_HEADERS, 1, block))
    # 0xbe is the newest entry of the dynamic table.
    client.connection.receive(
        frames.frame(FrameType.HEADERS, END_HEADERS, 3, encoder.encode(HEADERS) + b"\xbe" * 10_000)
    )

    assert client.goaway == ErrorCode.COMPRESSION_ERROR


def large(client: Client, extra: Sequence[tuple[str, str]], *, huffman: bool) -> bytes:
    """The frames of a call with many headers, whose block is cut into pieces."""
    client.stream_id += 2
    block = client.encoder.encode([*HEADERS, *extra], huffman=huffman)
    pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    kinds = [FrameType.HEADERS] + [FrameType.CONTINUATION] * (len(pieces) - 1)
    flags = [0] * (len(pieces) - 1) + [END_HEADERS]
    return b"".join(
        frames.frame(kind, flag, client.stream_id, piece)
        for kind, flag, piece in zip(kinds, flags, pieces, strict=True)
    )


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    "extra",
    [
        [("x-large", "x" * 20_000)],
        [("grpc-timeout", "x" * 20_000)],
        [(f"x-{number}", "x" * 1_000) for number in range(20)],
        [(f"x-{number}", "y") for number in range(500)],
        [("x", "")] * 500,
    ],
    ids=["value", "value that matters", "values", "names", "repeated"],
)
def test_call_with_too_many_headers(
    extra: list[tuple[str, str]], settled: bool, huffman: bool
) -> None:
    """A call with more headers than announced is refused; its neighbours' are read as before."""
    client = Client()
    if settled:
        client.settle()
    before = client.headers([("x-before", "1")]) + client.data()
    call = large(client, extra, huffman=huffman) + client.data()
    after = client.headers([("x-before", "1"), ("x-0", "x" * 1_000)]) + client.data()

    handed_on = messages(client.connection.receive(before + call + after))

    assert [stream_id for stream_id, _ in handed_on] == [
        client.stream_id - 4,
        client.stream_id,
    ]
    assert refused(client) == {client.stream_id - 2: "8"}
    assert not client.connection.closing


@pytest.mark.parametrize("settled", [False, True])
def test_block_without_end(settled: bool) -> None:
    """A header block above all measure ends the connection before it is read."""
    client = Client()
    if settled:
        client.settle()

    client.connection.receive(large(client, [("x", "x" * 70_000)], huffman=False))

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


BLOCKS = {
    "indexed fields": (b"\x82" * 16_100, 2_000),
    "dynamic fields": (b"\x40\x01x\x01y" + b"\xbe" * 16_000, 2_000),
    "a Huffman path": (b"\x04\xff\x81\x7c" + b"\xaa" * 16_000, 2),
    "Huffman names": ((b"\x00\xfe" + b"\x1f" * 126 + b"\x00") * 120, 120),
}


@pytest.mark.parametrize(("block", "most"), BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("settled", [False, True])
def test_cost_of_a_block(block: bytes, most: int, settled: bool) -> None:
    """The fields that are read, and the Huffman codes that are decoded, have bounds for any block.

    The bound is what 5 ms of CPU allow.
    """
    reader = HeaderReader()
    if settled:
        reader.without_table()
        reader.read(b"\x20")

    try:
        head = reader.read(block)
    except BlockError:
        pass
    else:
        assert head.oversized or head.malformed

    assert reader._fields.count <= (min(most, 400) if settled else most)
    assert reader._fields.unhuffed <= 32_768
    assert reader.cost_us <= 5_000


TIMEOUTS = st.tuples(st.integers(0, 99_999_999), st.sampled_from("nnnuumS"))


@given(
    st.lists(
        st.tuples(
            st.lists(TIMEOUTS, max_size=2), st.integers(0, 1 << 64), st.booleans(), st.booleans()
        ),
        max_size=12,
    )
)
def test_deadlines_that_differ_from_call_to_call(
    blocks: list[tuple[list[tuple[int, str]], int, bool, bool]],
) -> None:
    """Many clients say how much time is left, to the nanosecond. Each call's own is kept.

    A sixteenth of it at most is lost, where it is said so exactly.
    """
    reader, encoder = settled_reader(), hpack.Encoder()
    encoder.header_table_size = 0
    encoded = []
    for timeouts, trace, traced, huffman in blocks:
        extra = [("grpc-timeout", f"{number}{unit}") for number, unit in timeouts]
        extra += [("traceparent", f"{trace:x}")] * traced
        encoded.append(encoder.encode([*HEADERS, *extra], huffman=huffman))
        said_us = [number * UNITS_US[unit] for number, unit in timeouts[-1:]]

        head = reader.read(encoded[-1])

        assert head.path == PATH.encode()
        if not said_us or int(said_us[0]) <= 2_000:  # nobody could answer so soon
            assert head.timeout_us is None
        elif timeouts[-1][1] in "nu":
            assert int(said_us[0]) * 15 <= 16 * (head.timeout_us or 0) <= 16 * said_us[0]
        else:
            assert head.timeout_us == said_us[0]


def test_deadlines_are_read_without_reading_the_block() -> None:
    """To read all headers of each call would take longer than to decide about it."""
    reader, encoder = settled_reader(), hpack.Encoder()
    encoder.header_table_size = 0
    read = 0
    for number in range(100):
        left = 19_999_999 - number * number
        reader.read(encoder.encode([*HEADERS, ("grpc-timeout", f"{left}n")]))
        read += reader.cost_us > 0

    assert read <= 2


def settled_reader() -> HeaderReader:
    """A reader for a client that uses no table any more."""
    reader = HeaderReader()
    reader.without_table()
    reader.read(b"\x20" + hpack.Encoder().encode(HEADERS))
    return reader


def test_tracing_clients() -> None:
    """Blocks that differ only in headers that do not matter are told apart from others."""
    client = Client()
    client.settle()
    calls = b"".join(
        client.headers([("traceparent", f"00-{number:032x}-{number:016x}-01"), ("grpc-timeout", t)])
        + client.data()
        for number, t in enumerate(["20m", "20m", "20m", "21m", "21m", "21m"])
    )

    events = client.connection.receive(calls)

    assert [event.head.timeout_us for event in events if isinstance(event, Calls)] == [
        20_000,
        21_000,
    ]
    assert len(messages(events)) == 6
