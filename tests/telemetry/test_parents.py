"""To which trace a call belongs, by each way of saying it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.service import CALLER_HEADERS
from ratelimit_service.telemetry.parents import (
    Parent,
    parent_of,
)

TRACE, SHORT, SPAN = "0af7651916cd43dd8448eb211c80319c", "8448eb211c80319c", "b7ad6b7169203331"
LONG = SHORT.zfill(32)


@pytest.mark.parametrize(
    ("headers", "parent"),
    [
        ({"traceparent": f"00-{TRACE}-{SPAN}-01"}, Parent(TRACE, SPAN, True)),
        ({"traceparent": f"00-{TRACE}-{SPAN}-00"}, Parent(TRACE, SPAN, False)),
        ({"traceparent": f"00-{TRACE}-{SPAN}-03"}, Parent(TRACE, SPAN, True)),
        ({"traceparent": f"cc-{TRACE}-{SPAN}-01-more"}, Parent(TRACE, SPAN, True)),
        ({"traceparent": f" 00-{TRACE}-{SPAN}-01 "}, Parent(TRACE, SPAN, True)),
        (
            {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1,b=2"},
            Parent(TRACE, SPAN, True, "a=1,b=2"),
        ),
        ({"b3": f"{TRACE}-{SPAN}-1"}, Parent(TRACE, SPAN, True)),
        ({"b3": f"{SHORT}-{SPAN}-0"}, Parent(LONG, SPAN, False)),
        ({"b3": f"{TRACE}-{SPAN}-d-{SPAN}"}, Parent(TRACE, SPAN, True)),
        ({"b3": f"{TRACE}-{SPAN}"}, Parent(TRACE, SPAN, None)),
        ({"b3": "0"}, Parent(sampled=False)),
        ({"b3": "d"}, Parent(sampled=True)),
        (
            {"x-b3-traceid": TRACE, "x-b3-spanid": SPAN, "x-b3-sampled": "1"},
            Parent(TRACE, SPAN, True),
        ),
        (
            {"x-b3-traceid": SHORT.upper(), "x-b3-spanid": SPAN, "x-b3-flags": "1"},
            Parent(LONG, SPAN, True),
        ),
        ({"x-b3-traceid": TRACE, "x-b3-spanid": SPAN}, Parent(TRACE, SPAN, None)),
        ({"x-b3-sampled": "0"}, Parent(sampled=False)),
        (
            {"traceparent": f"00-{TRACE}-{SPAN}-01", "b3": f"{TRACE[::-1]}-{SPAN}-0"},
            Parent(TRACE, SPAN, True),
        ),
        ({"traceparent": f"00-{TRACE}-{SPAN}-01-more"}, Parent()),
        ({"traceparent": f"ff-{TRACE}-{SPAN}-01"}, Parent()),
        ({"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, Parent()),
        ({"traceparent": f"00-{TRACE}-{'0' * 16}-01"}, Parent()),
        ({"traceparent": f"00-{TRACE.upper()}-{SPAN}-01"}, Parent()),
        ({"traceparent": "nonsense"}, Parent()),
        ({"traceparent": "nonsense", "b3": f"{TRACE}-{SPAN}-1"}, Parent(TRACE, SPAN, True)),
        ({"x-b3-traceid": TRACE}, Parent()),
        ({}, Parent()),
    ],
)
def test_parents(headers: dict[str, str], parent: Parent) -> None:
    """A parent is what the W3C's header says, else what B3's say, else nobody."""
    answer = [(name.encode(), text.encode()) for name, text in headers.items()]
    assert parent_of(answer) == parent


@given(st.lists(st.tuples(st.sampled_from(sorted(CALLER_HEADERS)), st.binary(max_size=80))))
def test_any_bytes_are_read(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever callers send, ids are hexadecimal or missing, both of them or neither."""
    parent = parent_of(headers)

    assert bool(parent.trace_id) == bool(parent.span_id)
    if parent.trace_id:
        assert (len(parent.trace_id), len(parent.span_id)) == (32, 16)
        assert int(parent.trace_id, 16)
        assert int(parent.span_id, 16)
