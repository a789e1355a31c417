"""Bytes to model and back, held against Envoy's published classes."""

from __future__ import annotations

import json
import struct
from collections.abc import Generator
from typing import TypeVar

import pytest
from envoy.service.ratelimit.v3 import rls_pb2
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.model import (
    MAX_ADDEND,
    Code,
    Decision,
    Descriptor,
    Entry,
    Header,
    Limit,
    Outcome,
    Request,
    Status,
    Unit,
)
from ratelimit_service.wire import (
    decode_decision,
    decode_request,
    encode_decision,
    encode_limit,
    encode_request,
    encode_within,
    plain_descriptor,
    plain_entries,
    split_request,
)
from ratelimit_service.wire.json import requests_from_json
from ratelimit_service.wire.messages import RateLimitRequest

ADDEND = st.integers(0, MAX_ADDEND)
NUMBERS = st.tuples(ADDEND, st.sampled_from(Unit), st.integers(1, 200))
LIMIT = NUMBERS.map(lambda numbers: Limit(*numbers))
ENTRY = st.builds(Entry, st.text(min_size=1, max_size=9), st.text(max_size=9))
DESCRIPTOR = st.builds(
    Descriptor,
    st.lists(ENTRY, max_size=3).map(tuple),
    st.none() | LIMIT,
    st.none() | ADDEND,
    st.booleans(),
)
REQUEST = st.builds(
    Request,
    st.text(min_size=1, max_size=9),
    st.lists(DESCRIPTOR, min_size=1, max_size=3).map(tuple),
    ADDEND,
)
PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=9)
STATUS = st.builds(
    Status,
    st.sampled_from(Code),
    st.none()
    | st.tuples(ADDEND, st.sampled_from(Unit), st.integers(1, 9), PLAIN).map(
        lambda numbers: Limit(*numbers)
    ),
    ADDEND,
    st.none() | st.integers(1, 10**9).map(lambda seconds: seconds * 1_000_000),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=9,
)
DECISION = st.builds(
    Decision,
    st.sampled_from(Code),
    st.lists(STATUS, max_size=3).map(tuple),
    st.lists(st.builds(Header, st.just("x-a"), PLAIN), max_size=2).map(tuple),
    st.lists(st.builds(Header, st.just("x-b"), PLAIN), max_size=2).map(tuple),
    st.binary(max_size=9),
    st.none() | st.dictionaries(st.text(), JSON, max_size=3),
    holds_us=st.just(0),  # `encode_quota` writes it
)


@given(REQUEST)
def test_request_round_trip(request: Request) -> None:
    """What is encoded is decoded to the same."""
    assert decode_request(encode_request(request)) == request


@given(REQUEST)
def test_requests_read_alike_elsewhere(request: Request) -> None:
    """Envoy's published class reads our requests as we mean them."""
    published = rls_pb2.RateLimitRequest.FromString(encode_request(request))

    assert published.domain == request.domain
    assert published.hits_addend == request.hits_addend
    for theirs, ours in zip(published.descriptors, request.descriptors, strict=True):
        assert [(entry.key, entry.value) for entry in theirs.entries] == list(ours.entries)
        assert theirs.HasField("limit") == (ours.limit is not None)
        assert theirs.HasField("hits_addend") == (ours.hits_addend is not None)
        assert theirs.hits_addend.value == (ours.hits_addend or 0)


@given(DECISION)
def test_decision_round_trip(decision: Decision) -> None:
    """What is encoded is decoded to the same."""
    assert decode_decision(encode_decision(decision)) == decision


@given(DECISION)
def test_decisions_read_alike_elsewhere(decision: Decision) -> None:
    """Envoy's published class reads our decisions as we mean them, and never UNKNOWN."""
    published = rls_pb2.RateLimitResponse.FromString(encode_decision(decision))

    assert published.overall_code == decision.code
    for theirs, ours in zip(published.statuses, decision.statuses, strict=True):
        assert theirs.code == ours.code
        assert theirs.limit_remaining == ours.remaining
        assert theirs.HasField("current_limit") == (ours.limit is not None)
        assert theirs.duration_until_reset.seconds == (ours.reset_us or 0) // 1_000_000
        if ours.limit:
            assert theirs.current_limit.unit == rls_pb2.RateLimitResponse.RateLimit.Unit.Value(
                ours.limit.unit.name
            )


@given(REQUEST)
def test_parts_of_a_request(request: Request) -> None:
    """A request's parts are requests of one descriptor each, and together it."""
    split = split_request(encode_request(request))

    assert split is not None
    assert (split.domain, split.addend) == (request.domain, request.hits_addend)
    assert [decode_request(part) for part in split.parts] == [
        Request(request.domain, (descriptor,), request.hits_addend)
        for descriptor in request.descriptors
    ]
    for part, descriptor in zip(split.parts, request.descriptors, strict=True):
        entries = plain_entries(part, split.descriptor_at)
        assert entries is None or descriptor == Descriptor(entries)


def test_a_long_domain_is_left_to_the_decoder() -> None:
    """A domain stands in each part, so a request is parted only if it has a short one."""
    entries = (Descriptor((Entry("a", "b"),)),)

    assert split_request(encode_request(Request("d" * 4_096, entries))) is not None
    assert split_request(encode_request(Request("d" * 4_097, entries))) is None
    assert decode_request(encode_request(Request("é" * 4_096, entries))).domain == "é" * 4_096


@given(st.binary(max_size=60) | REQUEST.map(encode_request).map(lambda body: body[1:-1]))
def test_parts_of_any_bytes(body: bytes) -> None:
    """Bytes that are parted put together what the decoder reads, or what it refuses as well."""
    split = split_request(body)

    if split is not None:
        try:
            expected = [decode_request(part) for part in split.parts]
        except BadRequestError:
            expected = []
        try:
            whole = decode_request(body)
        except BadRequestError:
            whole = Request("", ())
        assert list(whole.descriptors) == [each.descriptors[0] for each in expected]
        assert all(whole.hits_addend == each.hits_addend for each in expected)
        for part, each in zip(split.parts, expected, strict=False):
            entries = plain_entries(part, split.descriptor_at)
            assert entries is None or each.descriptors == (Descriptor(entries),)


PIECES = st.lists(st.binary(max_size=4) | st.sampled_from([b"\x0a\x03\x0a\x01k", b"\x12\x01v"]))


@given(PIECES.map(b"".join))
def test_entries_of_any_bytes(descriptor: bytes) -> None:
    """Entries that are read without protobuf are those that it reads, and nothing else is there."""
    part = b"\x0a\x01d\x12" + bytes((len(descriptor),)) + descriptor

    entries = plain_entries(part, 3)

    if entries is not None:
        assert decode_request(part) == Request("d", (Descriptor(entries),))
        assert plain_descriptor(entries) in {b"", part[3:]}


@given(REQUEST)
def test_bytes_of_a_descriptor(request: Request) -> None:
    """The bytes of a descriptor are those that a client writes, or not known."""
    split = split_request(encode_request(request))
    assert split is not None
    for part, descriptor in zip(split.parts, request.descriptors, strict=True):
        plain = plain_descriptor(descriptor.entries)
        entries = plain_entries(part, split.descriptor_at)
        if entries is not None and all(key and value for key, value in entries):
            at = split.descriptor_at
            assert plain == part[at : at + 2 + part[at + 1]]
        elif entries is not None:
            assert not plain


@given(st.lists(st.tuples(LIMIT, st.integers(0, MAX_ADDEND), st.integers(0, 2**52)), max_size=4))
def test_answers_without_anybody_over(counted: list[tuple[Limit, int, int]]) -> None:
    """The most frequent kind of answer, written in one go, is the same as any other way."""
    decision = Decision(
        Code.OK,
        tuple(Status(Code.OK, limit, remaining, reset) for limit, remaining, reset in counted),
    )

    encoded = encode_within(
        [encode_limit(limit) for limit, _, _ in counted],
        [Outcome(False, remaining, reset, 1) for _, remaining, reset in counted],
    )

    assert encoded == encode_decision(decision)


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    """Arbitrary bytes are a request or a bad request, and nothing else."""
    refused = ""
    domain = ""
    try:
        domain = decode_request(body).domain
    except BadRequestError as error:
        refused = str(error)

    assert bool(domain) != bool(refused)


T = TypeVar("T")


def one(domain: str = "d", **descriptor: object) -> bytes:
    """A request with one descriptor in proto3 JSON, serialized."""
    text = json.dumps({"domain": domain, "descriptors": [descriptor]}).encode()
    return read(text)


def read(text: bytes) -> bytes:
    """A single request in proto3 JSON, serialized."""
    batch = result_of(requests_from_json(text, refunds=True))
    assert not batch.listed
    (body,) = batch.requests
    return body


def result_of(work: Generator[None, None, T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


UNITS = "allowed are 1 (second), 2 (minute), 3 (hour), 4 (day), 5 (month), 6 (year) and 7 (week)"
WINDOW = "the window must have at least one unit and at most 285 years"
A = {"key": "a", "value": "b"}


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        (b"\xff\xff", "malformed", "the request is no RateLimitRequest"),
        (b"\x0a\x02\xff\xfe", "malformed", "the request is no RateLimitRequest"),
        (b"", "no_domain", "domain is empty: name the domain of the rules to apply"),
        (
            one("d" * 4_097, entries=[A]),
            "domain_too_long",
            "domain has 4097 characters: at most 4096 are allowed",
        ),
        (b"\x0a\x01d", "no_descriptors", "descriptors is empty: at least one is needed"),
        (
            b"\x0a\x01d" + b"\x12\x00" * 257,
            "too_many_descriptors",
            "descriptors has 257: at most 256 are allowed",
        ),
        (
            one(entries=[A] * 1_025),
            "too_many_entries",
            "descriptors have 1025 entries together: at most 1024 are allowed",
        ),
        (
            one(entries=[A, {"value": "x"}]),
            "no_key",
            "descriptors[0].entries[1].key is empty: every entry needs a key",
        ),
        (
            one(entries=[A], hitsAddend=2**32),
            "addend_too_large",
            "descriptors[0].hits_addend is 4294967296: at most 4294967295 is allowed",
        ),
        (
            one(entries=[A], limit={"requestsPerUnit": 1}),
            "unknown_unit",
            f"descriptors[0].limit.unit is 0: {UNITS}",
        ),
        (
            one(entries=[A], limit={"requestsPerUnit": 1, "unit": 8}),
            "unknown_unit",
            f"descriptors[0].limit.unit is 8: {UNITS}",
        ),
        (
            one(entries=[A], limit={"unit": "DAY", "unitMultiplier": 0}),
            "bad_multiplier",
            f"descriptors[0].limit.unit_multiplier is 0: {WINDOW}",
        ),
        (
            one(entries=[A], limit={"unit": "YEAR", "unitMultiplier": 286}),
            "bad_multiplier",
            f"descriptors[0].limit.unit_multiplier is 286: {WINDOW}",
        ),
    ],
)
def test_bad_requests(body: bytes, reason: str, message: str) -> None:
    """A request that cannot be decided is refused with a sentence that names the field."""
    with pytest.raises(BadRequestError) as refused:
        decode_request(body)

    assert (refused.value.code, refused.value.reason, str(refused.value)) == (
        StatusCode.INVALID_ARGUMENT,
        reason,
        message,
    )


def test_too_large() -> None:
    """More than 64 KiB are refused before they are read."""
    with pytest.raises(BadRequestError) as refused:
        decode_request(b"\xff" * 65_537)

    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert str(refused.value) == "the request has 65537 bytes: at most 65536 are allowed"


def test_largest_that_is_allowed() -> None:
    """256 descriptors, an addend of 2^32-1, a week and 285 years are all fine."""
    last = Descriptor((Entry("a", "b"),), Limit(1, Unit.YEAR, 285), MAX_ADDEND)
    week = Descriptor((Entry("a", "b"),), Limit(MAX_ADDEND, Unit.WEEK))

    request = Request("d", (last, *(week,) * 255))

    assert decode_request(encode_request(request)) == request


def test_unknown_fields_are_ignored() -> None:
    """Fields of a later version do no harm."""
    body = one(entries=[A]) + b"\xfa\x3e" + struct.pack("B", 3) + b"new"

    assert decode_request(body).domain == "d"
    assert RateLimitRequest.FromString(body).domain == "d"


@pytest.mark.parametrize(
    ("value", "sent"),
    [("a\r\nset-cookie: x", "a??set-cookie: x"), ("naïve", "na?ve"), ("a\tb ~", "a\tb ~")],
)
def test_header_values_are_made_safe(value: str, sent: str) -> None:
    """What would break a header or smuggle in another becomes a question mark."""
    decision = Decision(Code.OK, (), (Header("x-a", value),))

    assert decode_decision(encode_decision(decision)).response_headers == (Header("x-a", sent),)


@pytest.mark.parametrize("key", ["", ":status", "a b", "a\r\n", "ä"])
def test_header_names_must_be_tokens(key: str) -> None:
    """A header name that is no token is a mistake of ours, and is not sent."""
    with pytest.raises(ValueError, match="is no header name"):
        encode_decision(Decision(Code.OK, (), (), (Header(key, "x"),)))


@pytest.mark.parametrize(
    "body",
    [b"\xff\xff", b"", b"\x08\x07", b"\x08\x01\x12\x04\x08\x01\x12\x00"],
    ids=["no message", "UNKNOWN", "an undefined code", "an undefined unit"],
)
def test_answers_that_cannot_be_read(body: bytes) -> None:
    """An answer of another's making that cannot be read is a ValueError, whatever is wrong."""
    with pytest.raises(ValueError, match=r"is no RateLimitResponse|is not a valid Code"):
        decode_decision(body)
