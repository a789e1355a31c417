"""Which calls are counted when there is no time for all.

What a call has waited when it is looked at, in percent of its caller's patience:

     0                                        65               100
     |-----------------------------------------|----------------|-------> time
     | counted, the newest ones first,         | refused, or denied if its
     | as many as can be decided until here    | caller is known to be over

An example: Envoy waits for 20 ms. Of a hundred calls that came evenly in the last 26 ms, those of
the last 13 ms can be answered in time, and the others are refused. If a thousand others came
together with them, and to decide a call takes 10 us, then 650 are counted: refusing takes as long.

Where calls wait for a store, what they will wait for it is taken off. The idea is CoDel's (RFC
8289): what matters is how long one waits, not how many do. What must not live here: what is done
with those that are not counted.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FRESH_US", "NEVER_US", "in_time", "refused", "too_slow"]

FRESH_US: Final = 500
"""A call that has waited for less is counted, unless its client's calls were late just before."""

NEVER_US: Final = 1 << 60
"""For so long callers wait who name no deadline."""

_TIMELY: Final = 65
"""The part of the patience, in percent, in which calls must be decided, with what they wait for a
store. The rest is for the way to their callers, and for what comes between. With less of it less is
counted; with more of it answers come too late as soon as a machine is busy."""

_OTHER_WORK: Final = 2
"""Where calls are refused, reading and refusing them takes about as long as deciding the others. So
of the time that is left half is for deciding. With more of it answers come too late."""


def in_time(
    calls: int, oldest_us: int, newest_us: int, each_us: int, patience_us: int, store_us: int
) -> int:
    """How many of the newest of so many calls can be answered in time.

    They have waited for between `newest_us` and `oldest_us`, evenly, and to decide each takes
    `each_us`. New calls wait in the store for `store_us`.
    """
    longest_us = patience_us * _TIMELY // 100 - store_us
    left_us = longest_us - newest_us
    if left_us <= 0:
        return 0
    counted = calls
    if oldest_us > longest_us:
        counted = calls * left_us // (oldest_us - newest_us)
    return min(counted, max(1, left_us // (_OTHER_WORK * each_us)))


def too_slow(us: int, patience_us: int) -> bool:
    """Whether a call that has waited so long for us and for the store together would be late."""
    return 100 * us > patience_us * _TIMELY


def refused(calls: int, before: int, total: int, counted: int) -> int:
    """How many of so many calls are not counted: they are the oldest of these.

    So many came `before` them in this visit. Of the `total` the newest `counted` ones are counted.
    """
    return min(calls, max(0, total - counted - before))
