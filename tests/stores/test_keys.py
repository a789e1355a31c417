"""Keys name counters, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import SECOND_US, Measure
from ratelimit_service.stores.keys import CounterNames

TEXT = st.text("0123:=~#{}ab*\x00é", max_size=6) | st.text(max_size=120)
IDENTITY = st.lists(st.tuples(TEXT, TEXT, st.booleans()), max_size=4)
WINDOW = st.sampled_from([1, 6, 60, 604_800])
COUNTED = st.tuples(TEXT, IDENTITY, WINDOW)


def key_of(counted: tuple[str, list[tuple[str, str, bool]], int]) -> bytes:
    domain, identity, seconds = counted
    shared = [place for place, (_, _, is_pattern) in enumerate(identity) if is_pattern]
    entries = [(key, value) for key, value, _ in identity]
    measure = Measure("fixed_window", 5, seconds * SECOND_US)
    return CounterNames(domain, measure).key(entries, shared)


@given(COUNTED, COUNTED)
def test_no_two_counters_share_a_key(
    one: tuple[str, list[tuple[str, str, bool]], int],
    other: tuple[str, list[tuple[str, str, bool]], int],
) -> None:
    """Keys are equal exactly when domain, typed entries and window are."""
    assert (key_of(one) == key_of(other)) == (one == other)


def test_parts_cannot_be_shifted_into_each_other() -> None:
    """Entries that read alike when joined have keys of their own."""
    keys = {
        key_of(("edge", [("a", "b", False), ("c", "d", False)], 60)),
        key_of(("edge", [("a", "b_c_d", False)], 60)),
        key_of(("edge", [("a_b", "c_d", False)], 60)),
        key_of(("edge_a", [("b", "c_d", False)], 60)),
        key_of(("edge", [("a", "b", False), ("c", "d", True)], 60)),
        key_of(("edge", [("a", "b", False), ("c", "d", False)], 61)),
    }

    assert len(keys) == 6


@given(COUNTED)
def test_keys_are_short_and_choose_their_own_slot(
    counted: tuple[str, list[tuple[str, str, bool]], int],
) -> None:
    """A key has at most 90 bytes, and its first braces hold a tag of ours."""
    key = key_of(counted)

    assert len(key) <= 90
    assert key.startswith(b"{")
    assert key.index(b"}") == 9


def test_limits_of_one_descriptor_share_a_tag() -> None:
    """Windows of the same entries lie in one Redis Cluster slot."""
    entries = [("user", "bob", False)]

    assert key_of(("edge", entries, 1))[:10] == key_of(("edge", entries, 3600))[:10]
