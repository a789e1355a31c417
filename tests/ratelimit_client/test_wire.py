"""The client's messages are the service's."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ratelimit_client.errors import BadRequestError
from ratelimit_client.json_form import from_json, to_json
from ratelimit_client.model import Decision, Descriptor, Limit, Reason, Request, Status, Unit
from ratelimit_client.wire import decode, encode
from ratelimit_service import model, wire
from ratelimit_service.wire.json import decision_to_json, requests_from_json
from tests.examples import up_to

T = TypeVar("T")
NUMBERS = some.integers(0, 2**32 - 1)
TEXTS = some.text(max_size=12)
LIMITS = some.builds(Limit, NUMBERS, some.sampled_from(list(Unit)), some.integers(1, 9))
DESCRIPTORS = some.builds(
    Descriptor,
    some.lists(some.tuples(some.text(min_size=1, max_size=12), TEXTS), min_size=1, max_size=3).map(
        tuple
    ),
    some.none() | NUMBERS,
    some.none() | LIMITS,
    some.booleans(),
)
REQUESTS = some.builds(
    Request,
    some.text(min_size=1, max_size=12),
    some.lists(DESCRIPTORS, min_size=1, max_size=3).map(tuple),
    NUMBERS,
)


def finished(work: Generator[None, None, T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: T = ended.value
            return result


def meant(request: Request) -> model.Request:
    """The same request as the service has it."""
    descriptors = []
    for each in request.descriptors:
        limit = None
        if each.limit is not None:
            unit = model.Unit[each.limit.unit.name]
            limit = model.Limit(each.limit.requests, unit, each.limit.multiplier)
        own = 0 if each.cost is None and not request.cost else each.cost
        entries = tuple(model.Entry(key, value) for key, value in each.entries)
        descriptors.append(model.Descriptor(entries, limit, own, each.refund))
    cost = request.cost if request.cost > 1 else 0  # unset means 1
    return model.Request(request.domain, tuple(descriptors), cost)


@settings(max_examples=up_to(20))
@given(REQUESTS)
def test_requests(request: Request) -> None:
    """The service reads of a request what was meant, as protobuf and as JSON."""
    assert wire.decode_request(encode(request)) == meant(request)
    (as_json,) = finished(requests_from_json(to_json(request), refunds=True)).requests
    assert wire.decode_request(as_json) == meant(request)


HEADERS = some.lists(
    some.tuples(
        some.text("abc-", min_size=1, max_size=9),
        some.text(some.characters(min_codepoint=32, max_codepoint=126), max_size=12),
    ),
    max_size=2,
)
JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-9, 9).map(float) | TEXTS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
STATUSES = some.builds(
    model.Status,
    some.sampled_from(model.Code),
    some.none()
    | some.builds(
        model.Limit,
        NUMBERS,
        some.sampled_from(list(model.Unit)),
        some.integers(1, 9),
        some.text("abc", max_size=9),
    ),
    NUMBERS,
    some.none() | some.integers(1, 10**9).map(lambda seconds: seconds * model.SECOND_US),
)
DECISIONS = some.builds(
    model.Decision,
    some.sampled_from(model.Code),
    some.lists(STATUSES, max_size=3).map(tuple),
    HEADERS.map(lambda each: tuple(model.Header(*pair) for pair in each)),
    HEADERS.map(lambda each: tuple(model.Header(*pair) for pair in each)),
    some.binary(max_size=20),
    some.none() | some.dictionaries(TEXTS, JSON, max_size=3),
)


@settings(max_examples=up_to(20))
@given(DECISIONS)
def test_answers(decision: model.Decision) -> None:
    """The client reads of an answer what the service said, as protobuf and as JSON."""
    body = wire.encode_decision(decision)

    read = decode(body)

    assert read.allowed == (decision.code is model.Code.OK)
    assert read.statuses == tuple(
        Status(
            each.code is model.Code.OK,
            each.limit
            and Limit(
                each.limit.requests_per_unit,
                Unit[each.limit.unit.name],
                each.limit.multiplier,
                each.limit.name,
            ),
            each.remaining,
            None if each.reset_us is None else each.reset_us / model.SECOND_US,
        )
        for each in decision.statuses
    )
    assert read.headers == decision.response_headers
    assert read.request_headers == decision.request_headers
    assert read.body == decision.raw_body
    assert read.metadata == (decision.metadata or {})
    assert read.denied_until is None
    assert from_json(finished(decision_to_json(body))) == read


@settings(max_examples=up_to(20))
@given(DECISIONS, some.integers(0, 253402300799_999_999))
def test_how_long_denials_hold(decision: model.Decision, until_us: int) -> None:
    """The client reads the moment until which a denial holds, to the microsecond."""
    body = wire.encode_decision(decision) + wire.encode_quota(until_us)

    read = decode(body)

    denied = decision.code is model.Code.OVER_LIMIT
    assert read.denied_until == (until_us / model.SECOND_US if denied else None)
    assert from_json(finished(decision_to_json(body))) == read


@settings(max_examples=up_to(20))
@given(some.binary(max_size=60))
def test_what_is_no_answer(body: bytes) -> None:
    """Any bytes are an answer or a ValueError, in either form."""
    for read in (decode, from_json):
        with suppress(ValueError):
            assert isinstance(read(body), Decision)


@settings(max_examples=up_to(20))
@given(DECISIONS, some.data())
def test_answers_that_are_cut_or_changed(decision: model.Decision, data: some.DataObject) -> None:
    """An answer with a byte changed, or without its end, is another answer or a ValueError."""
    body = bytearray(wire.encode_decision(decision))
    index = data.draw(some.integers(0, len(body) - 1))
    body[index] ^= data.draw(some.integers(1, 255))
    for changed in (bytes(body), bytes(body[:index])):
        with suppress(ValueError):
            assert isinstance(decode(changed), Decision)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Descriptor.of({}), "has no entries"),
        (lambda: Descriptor.of({"": "a"}), "an entry has no key"),
        (lambda: Descriptor.of({"a": None}), "'a' is None: give a text or a whole number"),  # type: ignore[arg-type]
        (lambda: Descriptor.of({"a": True}), "'a' is True"),
        (lambda: Descriptor.of({"a": "\udcff"}), "no Unicode text"),
        (lambda: Descriptor.of({"a": 1}, cost=-1), "the cost is -1"),
        (lambda: Request("", (Descriptor.of({"a": 1}),)), "the domain is empty"),
        (lambda: Request("d", ()), "nothing is asked about"),
        (lambda: Request("d", (Descriptor.of({"a": 1}),), 2**32), "the cost is 4294967296"),
        (lambda: encode(Request("d", (Descriptor.of({"a": "b" * 70_000}),))), "at most 65536"),
    ],
)
def test_what_is_not_sent(build: object, message: str) -> None:
    """What the service would refuse is refused here, with what is wrong."""
    assert callable(build)
    with pytest.raises(BadRequestError, match=message):
        build()


def test_why() -> None:
    """A decision says why: its limit, no limit, or the failure policy."""
    limit = model.Limit(3, model.Unit.DAY)
    within = model.Decision(model.Code.OK, (model.Status(model.Code.OK, limit, 1, 10**6),))
    over = model.Decision(
        model.Code.OVER_LIMIT, (model.Status(model.Code.OVER_LIMIT, limit, 0, 10**6),)
    )
    none = model.Decision(model.Code.OK, (model.Status(model.Code.OK),))
    policy = none._replace(metadata={"by_policy": [{"descriptor": 0, "policy": "open"}]})

    reasons = [decode(wire.encode_decision(each)).reason for each in (within, over, none, policy)]

    assert reasons == [
        Reason.WITHIN_LIMIT,
        Reason.OVER_LIMIT,
        Reason.NO_LIMIT,
        Reason.FAILURE_POLICY,
    ]
