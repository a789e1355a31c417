"""Requests and answers as proto3 JSON, as `/json` has them."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import BadRequestError
from ratelimit_service.model import Code, Decision, Limit, Status, Unit
from ratelimit_service.wire import encode_decision
from ratelimit_service.wire.json import decision_to_json, requests_from_json
from ratelimit_service.wire.json_steps import MOST_DEPTH, read_json
from ratelimit_service.wire.messages import POOL, RateLimitRequest, RateLimitResponse
from tests.wire.test_messages import A, one, read, result_of


def test_json_decision() -> None:
    """/json answers in proto3 JSON: lowerCamelCase, names of enums, zero fields left out."""
    status = Status(Code.OVER_LIMIT, Limit(5, Unit.WEEK, 1, "n"), 0, 35_000_000)

    body = result_of(decision_to_json(encode_decision(Decision(Code.OVER_LIMIT, (status,)))))

    assert json.loads(body) == {
        "overallCode": "OVER_LIMIT",
        "statuses": [
            {
                "code": "OVER_LIMIT",
                "currentLimit": {"requestsPerUnit": 5, "unit": "WEEK", "name": "n"},
                "durationUntilReset": "35s",
            }
        ],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the body is empty: send a RateLimitRequest in JSON"),
        (b"null", "the body is no RateLimitRequest in JSON"),
        (b"[1]", "the body is no RateLimitRequest in JSON"),
        (b"\xff", "the body is no RateLimitRequest in JSON: it has text that is no UTF-8"),
        (b'{"domain": "\\ud800"}', "it has text that is no UTF-8"),
        (
            b'{"domian": "x"}',
            "RateLimitRequest has no field 'domian': allowed are domain, descriptors, hitsAddend",
        ),
        (
            b'{"descriptors": [{"entry": 1}]}',
            "RateLimitDescriptor has no field 'entry': allowed are entries, limit, hitsAddend, ",
        ),
        *(
            (
                b'{"hitsAddend": %b}' % value,
                "hitsAddend must be a whole number from 0 to 4294967295",
            )
            for value in (b'"abc"', b"-1", b"1.5", b"4294967296", b"[1]", b"true", b"1e400", b"{}")
        ),
        (b'{"hits_addend": "x"}', "hits_addend must be a whole number from 0 to 4294967295"),
        *(
            (
                b'{"descriptors": [{"limit": %b}]}' % value,
                'limit must be as {"requestsPerUnit": 10, "unit": "MINUTE"}, with ',
            )
            for value in (b"3", b'{"unit": "FORTNIGHT"}', b'{"requestsPerUnit": "1e"}')
        ),
        (b'{"descriptors": [{"isNegativeHits": "yes"}]}', "isNegativeHits must be true or false"),
        (b'{"domain": 3}', "domain must be a text"),
        (b'{"descriptors": [{"entries": [{"key": 5}]}]}', "the key of an entry must be a text"),
        (b'[{"descriptors": [{"entries": [{"k": ""}]}]}]', "[0]: an entry has key and value, and"),
        (b"[" * 100_000, "the body is no RateLimitRequest in JSON"),
        (b'{"domain": ', "in JSON: line 1, column 12: a value must stand here: an object"),
        (b'{\n "domain" "x"}', "in JSON: line 2, column 11: a colon must stand here"),
        (b'{"x": ' * 2_000 + b"1" + b"}" * 2_000, "in JSON: line 1, column "),
        (b"[" * 999 + b"]" * 999, "it is nested too deep"),
        (b'{"x":' * 499 + b"1" + b"}" * 499, "it is nested too deep"),
    ],
)
def test_json_that_is_no_request(text: bytes, message: str) -> None:
    """JSON that is no request is refused on one line that says why."""
    with pytest.raises(BadRequestError) as refused:
        read(text)

    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{a", "2: a name in double quotes must stand here"),
        (b"{'a': 1}", "2: a name in double quotes must stand here"),
        (b'{"a" 1}', "6: a colon must stand here, between a name and its value"),
        (b'{"a": 1 "b"}', "9: a comma must stand here, or the end of the object or list"),
        (b'[1 "b"]', "4: a comma must stand here, or the end of the object or list"),
        (b'{"a": }', "7: a value must stand here: an object, a list, a text in double quotes, "),
        (b'{"a": 1} x', "10: nothing may stand behind the value"),
        (b'{"a": "b}', "7: the text that begins here has no double quote at its end"),
        (b'["\t"]', "3: a line end or tab in a text must be written as \\n or \\t"),
        (b'["\\x"]', '3: behind a backslash must stand one of " \\ / b f n r t u'),
        (b'["\\u12"]', "4: \\u must have four hexadecimal digits behind it"),
        (b"\xef\xbb\xbf{}", "1: a byte order mark stands here: leave it out"),
    ],
)
def test_json_that_is_none(text: bytes, said: str) -> None:
    """What is wrong is said in words of ours, and where, also of a body that is read in steps."""
    long = b"[" + b"1," * 2_000
    if text.startswith(b"\xef") or text.endswith(b"x"):
        long = b""
    for before in (b"", long):
        with pytest.raises(BadRequestError) as refused:
            read(before + text)

        column, _, what = said.partition(": ")
        place = f"line 1, column {len(before) + int(column)}: {what}"
        assert f"the body is no RateLimitRequest in JSON: {place}" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"{}," * 5_000 + b"{}]",
        b'{"descriptors": [' + b'{"x":' * 6_000 + b"1" + b"}" * 6_000 + b"]}",
        b"{" + b",".join(b'"%d":1' % number for number in range(6_000)) + b"}",
        b"[" + b"1," * 10_000 + b"1]",
    ],
)
def test_json_of_many_parts(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """More objects, lists, names and values than any request has are refused before they are read.

    Python would read them in one go, for tens of milliseconds.
    """
    monkeypatch.setattr(json, "JSONDecoder", None)  # whoever reads, fails

    with pytest.raises(BadRequestError, match="it has more than 10,000 objects, lists, names"):
        read(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[" + "1.5," * 9_000 + "1.5]", 9_002),
        ("[" + '{"a":"b"},' * 3_000 + "{}]", 6_002),
        ('{"domain":"d","descriptors":[' + "[{}]," * 4_000 + "{}]}", 8_004),
    ],
)
def test_json_of_as_many_parts_as_are_read(text: str, values: int) -> None:
    """What has many values is read 128 of them at a time, whatever these are."""
    decoder = json.JSONDecoder()

    assert len(list(read_json(text, decoder))) == values // 128
    assert result_of(read_json(text, decoder)) == json.loads(text)


@pytest.mark.parametrize(
    "value", ["," * 60_000, '{"a": 1, "b": "c"}' * 3_000, "\\" * 60_000, '"' * 9]
)
def test_json_of_long_texts(value: str) -> None:
    """A text may have any length and any characters; it is read as protobuf reads it."""
    result = {"domain": value[:90], "descriptors": [{"entries": [{"key": "a", "value": value}]}]}
    whole = RateLimitRequest()
    ParseDict(result, whole, descriptor_pool=POOL)

    assert read(json.dumps(result).encode()) == whole.SerializeToString()
    whole = RateLimitRequest(domain=value)
    assert read(json.dumps({"domain": value}).encode()) == whole.SerializeToString()


@pytest.mark.parametrize("digits", ["9" * 21, "9" * 100_000, "1." + "3" * 30, "-1" + "0" * 4_300])
def test_json_of_long_numbers(digits: str) -> None:
    """A number of more than 20 digits is refused unread; one that a field takes is read."""
    with pytest.raises(BadRequestError, match="digits: at most 20 are allowed"):
        read(b'{"domain": "d", "hitsAddend": %s}' % digits.encode())

    body = read(b'{"domain": "d%s", "hitsAddend": 4294967295}' % digits.encode())
    assert RateLimitRequest.FromString(body).hits_addend == 4_294_967_295


@pytest.mark.parametrize(
    "entry",
    [{"key": 1}, {"key": "a", "x": "y" * 500}, {"x" * 500: 1}, [], 1, None, {"key": "\ud800"}],
)
def test_json_of_odd_entries(entry: object) -> None:
    """An entry that has anything but a key and a value is refused, with a short reason."""
    with pytest.raises(BadRequestError) as refused:
        one(entries=[{"key": "a"}, entry])

    assert len(str(refused.value)) < 400
    assert one(entries=[{"key": "a", "value": None}]) == one(entries=[{"key": "a"}])


def test_large_json_is_read_and_written_in_steps() -> None:
    """A request or an answer of any size is worked on for a few dozen of its parts at a time."""
    entries = [{"key": "k", "value": str(number)} for number in range(1_000)]
    text = {"domain": "d", "hitsAddend": 2, "descriptors": [{"entries": entries}, *[{}] * 200]}
    steps = list(requests_from_json(json.dumps(text).encode(), refunds=True))
    body = read(json.dumps(text).encode())

    assert len(steps) > 1_000 / 32 + 200
    whole = RateLimitRequest()
    ParseDict(text, whole, descriptor_pool=POOL)
    assert body == whole.SerializeToString()
    status = Status(Code.OK, Limit(5, Unit.WEEK, 1, "n"), 3, 35_000_000)
    answer = encode_decision(Decision(Code.OK, (status,) * 256))
    assert len(list(decision_to_json(answer))) > 256 / 32
    shown = MessageToDict(RateLimitResponse.FromString(answer), descriptor_pool=POOL)
    assert json.loads(result_of(decision_to_json(answer))) == shown


def test_json_with_too_many_descriptors_is_refused_first() -> None:
    """More descriptors than are allowed are refused before one of them is read."""
    text = json.dumps({"domain": "d", "descriptors": [{"kye": 1}] * 257}).encode()

    with pytest.raises(BadRequestError, match="descriptors has 257: at most 256 are allowed"):
        read(text)


def test_list_of_requests() -> None:
    """A list has its requests in their order, also if it is only one."""
    requests = [{"domain": f"d{number}", "descriptors": [{"entries": [A]}]} for number in range(3)]
    for count in (1, 3):
        batch = result_of(requests_from_json(json.dumps(requests[:count]).encode(), refunds=False))
        assert batch.listed
        assert batch.requests == [read(json.dumps(each).encode()) for each in requests[:count]]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "the list has 0 requests: 1 to 100 are allowed"),
        ([{}] * 101, "the list has 101 requests: 1 to 100 are allowed"),
        ([{}, {"domian": "d"}], "[1]: RateLimitRequest has no field 'domian'"),
        ([{}, 1], "[1]: it must be an object"),
        ([{}, {"descriptors": [{"isNegativeHits": True}]}], "[1]: refunds (isNegativeHits)"),
        ([{"descriptors": [{}] * 150}] * 2, "have 300 descriptors together: at most 256"),
        (
            [{"descriptors": [{"entries": [{"key": "a"}] * 400}]}] * 3,
            "have 1200 entries together: at most 1024",
        ),
    ],
)
def test_list_that_is_refused(requests: list[object], message: str) -> None:
    """A list is refused whole: for one request that is none, or for more than one may have."""
    with pytest.raises(BadRequestError) as refused:
        result_of(requests_from_json(json.dumps(requests).encode(), refunds=False))

    assert message in str(refused.value)


_NAMES = [
    *("domain", "descriptors", "hitsAddend", "hits_addend", "entries", "key", "value", "limit"),
    *("requestsPerUnit", "unit", "isNegativeHits", "unitMultiplier", "x"),
]
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4)
    ),
)


@given(st.builds(json.dumps, _VALUES) | st.text(max_size=50))
def test_any_json(text: str) -> None:
    """Whatever JSON comes, it is a request or a refusal."""
    with suppress(BadRequestError):
        result_of(requests_from_json(text.encode("utf-8", "surrogatepass"), refunds=False))


@given(
    st.builds(json.dumps, _VALUES, indent=st.sampled_from([None, 1])),
    st.integers(0, 200),
    st.text('{}[]",:1.e-+ \n\tnul', max_size=3),
)
def test_json_in_steps_is_the_same(text: str, index: int, other: str) -> None:
    """In steps a text says what it says in one go, or it is no JSON either way."""
    index %= len(text) + 1
    for result in (text, text[:index] + other + text[index:], text[:index] + other):
        outcome, whole = (_said(result, in_steps) for in_steps in (True, False))
        assert outcome == whole


def _said(text: str, in_steps: bool) -> str:
    decoder = json.JSONDecoder(object_pairs_hook=list)
    try:
        result = result_of(read_json(text, decoder)) if in_steps else decoder.decode(text)
    except ValueError:
        return "no JSON"
    return repr(result)  # tells NaN, and 1 from True


def test_json_in_steps_has_a_depth() -> None:
    """Objects and lists lie in each other to a depth that no request has."""
    decoder = json.JSONDecoder()

    for depth in (MOST_DEPTH, MOST_DEPTH + 1):
        text = "[" * depth + "]" * depth
        if depth == MOST_DEPTH:
            assert result_of(read_json(text, decoder)) == json.loads(text)
        else:
            with pytest.raises(ValueError, match="more than 16 objects and lists lie in each"):
                result_of(read_json(text, decoder))
