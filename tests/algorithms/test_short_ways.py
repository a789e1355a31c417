"""What algorithms do by a short way, where hits fit, is what they do the long way."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service import compiled
from ratelimit_service.algorithms import level, sliding_log, sliding_window, spec_of
from ratelimit_service.model import CounterSpec, Limit, State, Step, Unit
from tests.stores.cases import T

pytestmark = pytest.mark.skipif(compiled(), reason="no short way can be taken away from it")


def specs(limit: Limit) -> list[CounterSpec]:
    """Counters as this, of a few hits, and of many."""
    return [
        spec_of(limit._replace(requests_per_unit=hits, unit=unit))
        for hits in (1, 3, 300)
        for unit in (Unit.SECOND, Unit.MINUTE)
    ]


WAYS = [
    (
        sliding_window,
        "_in_small_buckets",
        specs(Limit(1, Unit.DAY, algorithm="sliding_window", buckets=6)),
    ),
    (
        sliding_window,
        "_in_small_buckets",
        specs(Limit(1, Unit.DAY, algorithm="sliding_window", buckets=360)),
    ),
    (sliding_log, "_noting_one", specs(Limit(1, Unit.DAY, algorithm="sliding_log"))),
    (level, "_leaking_on", specs(Limit(1, Unit.DAY, algorithm="token_bucket"))),
    (level, "_leaking_on", specs(Limit(1, Unit.DAY, algorithm="leaky_bucket", burst=9))),
]
PAUSES = st.sampled_from([0, 1, 1_000, 130_000, 1_000_000, 9_000_000, 70_000_000, -500_000])
STEPS = st.tuples(
    PAUSES, st.sampled_from([1, 1, 1, 2, 90, 256, 0]), st.integers(0, 9), st.integers(0, 5)
)
"""How long after the last one, hits, what else happens, and which limit the rule has then."""


def never(*_: object) -> None:
    """A short way that is none."""


@pytest.mark.parametrize(("module", "way", "limits"), WAYS)
@given(st.lists(STEPS, max_size=60))
def test_short_ways_count_alike(
    module: ModuleType,
    way: str,
    limits: list[CounterSpec],
    steps: list[tuple[int, int, int, int]],
) -> None:
    """Any hits, with refunds and changed limits between them, come to the same step and state."""
    charge: Callable[..., Step] = module.charge
    state: State | None = None
    now = T
    for pause, hits, chance, number in steps:
        now += pause
        spec = limits[number if chance == 2 else 4]
        short = charge(state, now, hits, spec, chance == 1, b"")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, way, never)
            assert charge(state, now, hits, spec, chance == 1, b"") == short
        state = short.state
        if chance == 0:
            state = module.refund(state, now, 2, spec, b"", None).state
