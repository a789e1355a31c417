"""Redis' short way for plain hits counts and answers as the rule of passing does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_service import compiled
from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import SECOND_US, CounterSpec, Hit, Mode
from ratelimit_service.stores.redis import script
from ratelimit_service.stores.redis.batch import Background
from tests.servers.redis import RedisServer
from tests.stores.cases import T

pytestmark = pytest.mark.skipif(compiled(), reason="no short way can be taken away from it")

# The package's table is replaced by one of the same length.
SETTLED = [(count | 0x8000).to_bytes(2, "big") for count in range(script._MOST_LEADS)]
"""The first bytes of requests that say of themselves that they are to be settled."""

HOUR = CounterSpec(ALGORITHMS["fixed_window"], 5, 3_600 * SECOND_US)
SPECS = (
    HOUR,
    CounterSpec(ALGORITHMS["fixed_window"], 3, 3_600 * SECOND_US),
    CounterSpec(ALGORITHMS["fixed_window"], 5, SECOND_US),
    CounterSpec(ALGORITHMS["sliding_window"], 4, 60 * SECOND_US),
)
HITS = st.tuples(
    st.sampled_from(SPECS),
    st.sampled_from("ab"),
    st.sampled_from([1, 1, 1, 2, 5, 0]),
    st.sampled_from([Mode.ENFORCED, Mode.ENFORCED, Mode.SHADOW, Mode.QUOTA]),
    st.sampled_from([False, False, False, True]),
).map(lambda each: Hit(f"{{1}}{each[0].key}:{each[1]}".encode(), *(each[0], *each[2:])))
KEYS = [f"{{1}}{spec.key}:{name}" for spec in (HOUR, *SPECS[2:]) for name in "ab"]
REQUESTS = st.lists(HITS, min_size=1, max_size=4)
CALL = st.tuples(
    st.sampled_from([0, 1, 700_000, SECOND_US, 3_600 * SECOND_US, -1, -2 * SECOND_US, -(10**14)]),
    st.lists(REQUESTS, min_size=1, max_size=5),
)
"""How far the clock goes before it, and what is asked."""


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(CALL, min_size=1, max_size=6), st.sampled_from([b"", b"no number", b"1e9", b"-3"]))
def test_plain_hits_are_counted_alike(
    redis_server: RedisServer, calls: Sequence[tuple[int, Sequence[Sequence[Hit]]]], odd: bytes
) -> None:
    """Any requests, also on keys with something odd in them, get the same replies and states."""
    short = counted(redis_server, calls, odd)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(script, "_LEADS", SETTLED)
        assert counted(redis_server, calls, odd) == short


def counted(
    server: RedisServer, calls: Sequence[tuple[int, Sequence[Sequence[Hit]]]], odd: bytes
) -> tuple[list[object], list[bytes | None]]:
    """The replies to script calls, and what is in the keys afterwards."""
    with redis.Redis(port=server.port) as client:
        client.flushdb()
        if odd:
            client.set(KEYS[0], odd)
        replies: list[object] = []
        now_us = T
        for step_us, requests in calls:
            now_us += step_us
            call = script.ScriptCall(1, now_us)
            assert call.add(Background(requests), range(len(requests))) == len(requests)
            count, *words = call.arguments(judge=True)
            replies.append(client.eval(script.SCRIPT, int(count), *words, 1))
        return replies, client.mget(KEYS)
