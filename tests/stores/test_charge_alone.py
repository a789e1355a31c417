"""The memory store's way for requests of one hit settles them as the one for all requests does."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Anchor, Hit, Limit, Mode, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Settled, Verdict
from ratelimit_service.stores.memory import UNSETTLED, MemoryStore
from ratelimit_service.stores.memory_counter import MemoryCounter
from tests.stores.cases import T

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
    lambda spec, name, addend, mode, force, refund: Hit(
        f"{spec.key}:{name}".encode(), spec, addend, mode, force, refund
    ),
    st.sampled_from(SPECS),
    st.sampled_from("abcde"),
    st.sampled_from([1, 1, 1, 1, 2, 5, 0]),
    st.sampled_from([Mode.ENFORCED, Mode.ENFORCED, Mode.SHADOW, Mode.QUOTA]),
    st.sampled_from([False] * 5 + [True]),
    st.sampled_from([False] * 9 + [True]),
)
WAITS = st.sampled_from([0, 0, 1, 300_000, 1_000_000, 70_000_000, -1, -2_000_000])


class Counted:
    """A store, its clock, and what it has put out."""

    def __init__(self, counters: int) -> None:
        self.now_us = T
        self.stats = Stats()
        self.store = MemoryStore(counters, self.stats, Health(logging.DEBUG), lambda: self.now_us)

    def charge(self, hit: Hit) -> Settled:
        found: list[Settled] = []
        self.store.charge(((hit,),), found.extend)
        return found[0]

    def kept(self, keys: Sequence[bytes]) -> tuple[object, ...]:
        """All that is in the store."""
        return dict(self.stats.evictions), len(self.store), [self.store.state(key) for key in keys]


@given(st.sampled_from([6, 2_000]), st.lists(st.tuples(WAITS, HITS), min_size=1, max_size=60))
@settings(max_examples=80, deadline=None)
def test_one_hit_is_settled_alike(counters: int, asked: Sequence[tuple[int, Hit]]) -> None:
    """Both ways say the same of any hit, and leave the same counters, also in a full store.

    Counters that are held from the first hit on may be dropped meanwhile, and come back as others.
    """
    short, long = Counted(counters), Counted(counters)
    keys = sorted({hit.key for _, hit in asked})
    held: dict[bytes, MemoryCounter | None] = {}
    for wait_us, hit in asked:
        short.now_us = long.now_us = short.now_us + wait_us
        remaining = UNSETTLED
        if not (hit.refund or hit.count_denied):
            remaining = short.store.charge_alone(
                hit.key, hit.spec, hit.addend, short.now_us, held.get(hit.key)
            )
            held[hit.key] = held.get(hit.key) or short.store.counter(hit.key)
        settled = long.charge(hit)
        if remaining == UNSETTLED:
            assert short.charge(hit) == settled
        else:
            (outcome,) = settled.outcomes
            assert outcome is not None
            over = -1 - remaining if remaining < 0 else remaining
            assert (outcome.over, outcome.remaining) == (remaining < 0, over)
            assert (settled.verdict is Verdict.WITHIN) == (remaining >= 0)
        assert short.kept(keys) == long.kept(keys)
