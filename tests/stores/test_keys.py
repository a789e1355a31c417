"""Keys name counters, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import ALGORITHMS, DEFAULT, spec_of
from ratelimit_service.model import SECOND_US, Anchor, Calendar, CounterSpec, Limit, Unit
from ratelimit_service.stores.keys import CounterNames, entries_of, is_digest

TEXT = st.text("0123:=~#{}ab*\x00é", max_size=6) | st.text(max_size=120)
IDENTITY = st.lists(st.tuples(TEXT, TEXT, st.booleans()), max_size=4)
WINDOW = st.sampled_from([1, 6, 60, 604_800])
COUNTED = st.tuples(TEXT, IDENTITY, WINDOW)


def key_of(counted: tuple[str, list[tuple[str, str, bool]], int]) -> bytes:
    domain, identity, seconds = counted
    shared = [place for place, (_, _, is_pattern) in enumerate(identity) if is_pattern]
    entries = [(key, value) for key, value, _ in identity]
    spec = CounterSpec(DEFAULT, 5, seconds * SECOND_US)
    return CounterNames(domain, spec).key(entries, shared)


@given(COUNTED, COUNTED)
def test_no_two_counters_share_a_key(
    one: tuple[str, list[tuple[str, str, bool]], int],
    other: tuple[str, list[tuple[str, str, bool]], int],
) -> None:
    """Keys are equal exactly when domain, typed entries and window are."""
    assert (key_of(one) == key_of(other)) == (one == other)


@given(COUNTED)
def test_keys_tell_what_they_count(counted: tuple[str, list[tuple[str, str, bool]], int]) -> None:
    """A key that is no digest says its entries again, however they are written."""
    domain, identity, _ = counted
    key = key_of(counted)
    found = entries_of(key, domain)
    if found is None:
        assert is_digest(key)
    else:
        assert found == [(name, value) for name, value, _ in identity]


@given(TEXT, st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), TEXT)
def test_stems_name_the_same_counters(
    domain: str, entries: list[tuple[str, str]], value: str
) -> None:
    """What is written of all but the last value is written for every one of them alike."""
    names = CounterNames(domain, CounterSpec(DEFAULT, 5, SECOND_US))

    key = names.stem(entries).key(value.encode())

    assert key == names.key([*entries[:-1], (entries[-1][0], value)])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), TEXT), min_size=1, max_size=4),
    st.none() | st.frozensets(st.sampled_from("abc"), max_size=2),
    TEXT,
)
def test_stems_place_the_same(
    entries: list[tuple[str, str]], by: frozenset[str] | None, value: str
) -> None:
    """Also what places counters is written alike for every last value."""
    names = CounterNames("edge", CounterSpec(DEFAULT, 5, SECOND_US), by)

    key = names.stem(entries).key(value.encode())

    assert key == names.key([*entries[:-1], (entries[-1][0], value)])


def tag(shard_by: frozenset[str] | None, *entries: tuple[str, str]) -> bytes:
    """What places a counter, and how many counters there are."""
    key = CounterNames("edge", CounterSpec(DEFAULT, 5, SECOND_US), shard_by).key(entries)
    return key[:10]


def test_what_places_a_counter() -> None:
    """The named entries if all are there, else all; none for the domain; others do not matter."""
    user, path, method = ("user", "ann"), ("path", "/"), ("method", "GET")
    by_user, by_both = frozenset({"user"}), frozenset({"user", "path"})

    assert tag(by_user, user, path) == tag(by_user, user, method) == tag(by_user, user)
    assert tag(by_user, user) != tag(by_user, ("user", "bob"))
    assert tag(by_both, user, path, method) == tag(by_both, user, path)
    assert tag(by_both, user, method) == tag(None, user, method) != tag(by_both, user)
    assert tag(frozenset(), user, path) == tag(frozenset(), method)


KINDS = [
    spec_of(limit)
    for limit in (
        *(Limit(5, unit) for unit in (Unit.HOUR, Unit.DAY)),
        *(Limit(5, Unit.HOUR, algorithm=algorithm) for algorithm in ALGORITHMS),
        Limit(5, Unit.HOUR, anchor=Anchor.FIRST_HIT),
        *(
            Limit(5, unit, anchor=Calendar(unit, zone))
            for unit in (Unit.DAY, Unit.WEEK, Unit.MONTH, Unit.YEAR)
            for zone in ("UTC", "Europe/Berlin")
        ),
        Limit(5, Unit.WEEK, anchor=Calendar(Unit.WEEK, week_start=6)),
        *(Limit(5, Unit.HOUR, algorithm="sliding_window", buckets=count) for count in (2, 60)),
        Limit(5, Unit.HOUR, algorithm="token_bucket", stepped=True),
    )
]


def test_each_way_to_count_has_keys_of_its_own() -> None:
    """Limits share a counter exactly if they differ in numbers of hits only."""
    others = [spec.with_numbers(9, 7) for spec in KINDS]

    assert [spec.key for spec in KINDS] == [other.key for other in others]
    assert len({spec.key for spec in KINDS}) == len(KINDS) - 1  # one stands there twice


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
