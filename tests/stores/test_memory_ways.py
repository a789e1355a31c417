"""The memory store's usual way settles requests as the one for any request does."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service import compiled
from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Anchor, Hit, Limit, Mode, State, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Settled
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.memory_counter import UNSETTLED
from tests.stores.cases import T

pytestmark = pytest.mark.skipif(compiled(), reason="no short way can be taken away from it")

SPECS = [
    spec_of(limit)
    for limit in (
        Limit(3, Unit.SECOND),
        Limit(2, Unit.SECOND),
        Limit(3, Unit.MINUTE, anchor=Anchor.FIRST_HIT),
        Limit(4, Unit.MINUTE, algorithm="sliding_window"),
        Limit(4, Unit.MINUTE, algorithm="sliding_window", buckets=6),
        Limit(40, Unit.MINUTE, algorithm="sliding_log"),
        Limit(4, Unit.MINUTE, algorithm="token_bucket", burst=2),
        Limit(4, Unit.MINUTE, algorithm="leaky_bucket", burst=2),
        Limit(2, Unit.MINUTE, algorithm="concurrency"),
    )
]
HITS = st.builds(
    lambda spec, name, addend, mode, force, refund, lease: Hit(
        f"{spec.key}:{name}".encode(), spec, addend, mode, force, refund, lease
    ),
    st.sampled_from(SPECS),
    st.sampled_from("abcde"),
    st.sampled_from([1, 1, 1, 1, 2, 5, 0]),
    st.sampled_from([Mode.ENFORCED, Mode.ENFORCED, Mode.SHADOW, Mode.QUOTA]),
    st.sampled_from([False] * 5 + [True]),
    st.sampled_from([False] * 9 + [True]),
    st.sampled_from([b"", b"lease--1", b"lease--2"]),
)
WAITS = st.sampled_from([0, 0, 1, 300_000, 1_000_000, 70_000_000, -1, -2_000_000])
FORWARD = st.sampled_from([0, 0, 1, 300_000, 1_000_000, 70_000_000, -1])


class Settling(MemoryStore):
    """A store that settles each request by the rule of passing."""

    def _charge(self, hits: Sequence[Hit], now: int) -> Settled:
        return self._settle(hits, now)


class Counted:
    """A store, its clock, and what it has put out."""

    def __init__(self, kind: type[MemoryStore], counters: int) -> None:
        self.now_us = T
        self.stats = Stats()
        self.store = kind(counters, self.stats, Health(logging.DEBUG), lambda: self.now_us)

    def charge(self, now_us: int, hits: Sequence[Hit]) -> Settled:
        self.now_us = now_us
        found: list[Settled] = []
        self.store.charge((hits,), found.extend)
        return found[0]

    def kept(self, keys: Sequence[bytes]) -> tuple[object, ...]:
        """All that is in the store."""
        states: list[State | None] = [self.store.state(key) for key in keys]
        return dict(self.stats.evictions), len(self.store), self.store._bulk, states


@given(st.sampled_from([6, 2_000]), st.lists(st.tuples(WAITS, HITS), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_one_hit_is_settled_alike(counters: int, asked: Sequence[tuple[int, Hit]]) -> None:
    """All ways say the same of any hit, and leave the same counters, also in a full store."""
    usual, settling = Counted(MemoryStore, counters), Counted(Settling, counters)
    known = Counted(MemoryStore, counters)
    keys = sorted({hit.key for _, hit in asked})
    now_us = T
    for wait_us, hit in asked:
        now_us += wait_us
        settled = settling.charge(now_us, [hit])
        assert usual.charge(now_us, [hit]) == settled
        (outcome,) = settled.outcomes
        remaining = UNSETTLED
        if not (hit.refund or hit.count_denied):
            remaining = known.store.charge_hit(*hit[:3], hit.lease, now_us)[0]
        if remaining == UNSETTLED:
            assert known.charge(now_us, [hit]) == settled
        elif outcome is not None:
            over = -1 - remaining if remaining < 0 else remaining
            assert (outcome.over, outcome.remaining) == (remaining < 0, over)
        assert known.kept(keys) == settling.kept(keys)
        assert usual.kept(keys) == settling.kept(keys)


@given(
    st.lists(st.tuples(FORWARD, st.lists(HITS, min_size=1, max_size=4)), min_size=1, max_size=40)
)
@settings(max_examples=60, deadline=None)
def test_several_hits_are_settled_alike(asked: Sequence[tuple[int, Sequence[Hit]]]) -> None:
    """Both ways say the same of any request, also behind one that was taken back.

    What each has dropped because it counts no more may differ, so nobody looks at states.
    """
    usual, settling = Counted(MemoryStore, 2_000), Counted(Settling, 2_000)
    now_us = T
    for wait_us, hits in asked:
        now_us += wait_us
        assert usual.charge(now_us, hits) == settling.charge(now_us, hits)
    for hit in {hit.key: hit for _, hits in asked for hit in hits}.values():
        peek = [Hit(hit.key, hit.spec, 0)]
        assert usual.charge(now_us, peek) == settling.charge(now_us, peek)
    kept = [counter for table in usual.store._tables for counter in table.values()]
    assert (len(usual.store), usual.store._bulk) == (len(kept), 0)
