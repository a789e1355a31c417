"""The table of cases that every store must answer alike: time and hits in, outcomes out.

It is long because it is one table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

from ratelimit_service.algorithms import ALGORITHMS, DEFAULT
from ratelimit_service.model import (
    MAX_ADDEND,
    Algorithm,
    CounterForm,
    CounterSpec,
    Hit,
    Mode,
    Outcome,
    Step,
)
from ratelimit_service.stores import Done, Outcomes, Settled, Store, judge
from ratelimit_service.stores.keys import grant_key

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY
"""A window that a test on a real clock may take: a shorter one can end between two of its steps."""
T = 1_700_000_040_000_000
"""A moment at which a minute begins."""


async def charged(store: Store, requests: Sequence[Sequence[Hit]]) -> list[Outcomes]:
    """Charges, and waits for the outcomes, which must come to the verdict that the store says."""
    future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
    store.charge(requests, future.set_result)
    settled = await future
    for hits, one in zip(requests, settled, strict=True):
        if one.outcomes:
            judged = judge(hits, one.outcomes)
            assert (one.verdict, one.by) == (judged.verdict, judged.by)
    return [list(one.outcomes) for one in settled]


def hearing(hear: Callable[[list[Outcomes]], object]) -> Done:
    """Hears the outcomes alone."""

    def done(settled: list[Settled]) -> None:
        hear([list(one.outcomes) for one in settled])

    return done


class Charge(NamedTuple):
    now_us: int
    hits: Sequence[Hit]
    outcomes: Sequence[Outcome]


class Case(NamedTuple):
    rule: str
    charges: Sequence[Charge]


def hit(
    addend: int = 1,
    *,
    key: str = "a",
    limit: int = 5,
    window_us: int = MINUTE,
    mode: Mode = Mode.ENFORCED,
    count_denied: bool = False,
) -> Hit:
    return Hit(
        b"{%08x}%b" % (crc32(key.encode()), key.encode()),
        CounterSpec(DEFAULT, limit, window_us),
        addend,
        mode=mode,
        count_denied=count_denied or mode is Mode.QUOTA,
    )


def grant(name: str, addend: int = 1, *, limit: int = 5, of: str = "a") -> Hit:
    """A hit on a grant of a counter, which lies where that counter does."""
    one = hit(addend, key=of, limit=limit, mode=Mode.GRANT)
    return one._replace(key=grant_key(one.key, name))


def queued(addend: int = 1, *, limit: int = 5) -> Hit:
    """A hit on a queue that lets one pass each second."""
    spec = CounterSpec(ALGORITHMS["leaky_bucket"], limit, SECOND, 1, form=CounterForm(queue=True))
    return hit(addend, key="q")._replace(spec=spec)


def refund(one: Hit) -> Hit:
    return one._replace(refund=True)


def _broken(*_: object) -> Step:
    raise KeyError("none")


BROKEN = CounterSpec(Algorithm("none", "?", _broken, _broken), 5, MINUTE)
"""Of an algorithm with a fault, that no store knows."""


def pot(addend: int = 1, *, key: str = "a", limit: int = 5, mode: Mode = Mode.ENFORCED) -> Hit:
    """A hit on a counter that lies in one home with all others of these."""
    return hit(addend, key=key, limit=limit, mode=mode)._replace(key=b"{00000007}" + key.encode())


def in_turn(*hits: Hit) -> list[Hit]:
    """Hits of one descriptor of which the first that has room pays for all."""
    mode, last = hits[0].mode, len(hits) - 1
    return [
        each._replace(
            addend=0 if index else each.addend,
            mode=mode if index == last else Mode.IN_TURN,
            joined=index > 0,
            count_denied=False,
        )
        for index, each in enumerate(hits)
    ]


def ok(remaining: int, charged: int = 1, reset_us: int = MINUTE) -> Outcome:
    return Outcome(False, remaining, reset_us, charged)


def over(remaining: int, charged: int = 0, reset_us: int = MINUTE) -> Outcome:
    return Outcome(True, remaining, reset_us, charged)


_TIERS = [pot(2, key="tier"), pot(key="team", limit=3), pot(key="credits", limit=9)]
TURN = in_turn(*_TIERS)
"""Two hits, on the tier, else on the team's reserve, else on credits."""

CASES = [
    Case(
        "of limits that pay in turn the first with room for all hits pays, and no other",
        [
            Charge(T, TURN, [ok(3, 2), ok(3, 0), ok(9, 0)]),
            Charge(T, TURN, [ok(1, 2), ok(3, 0), ok(9, 0)]),
            Charge(T, TURN, [ok(1, 0), ok(1, 2), ok(9, 0)]),
            Charge(T, TURN, [ok(1, 0), ok(1, 0), ok(7, 2)]),
            Charge(T, [pot(1, key="tier")], [ok(0)]),
            Charge(T + MINUTE, TURN, [ok(3, 2), ok(3, 0), ok(9, 0)]),
        ],
    ),
    Case(
        "limits that pay in turn deny only if none has room, and count nothing then",
        [
            Charge(T, in_turn(pot(6, key="c"), pot(key="d", limit=5)), [over(5), over(5)]),
            Charge(T, [pot(0, key="c"), pot(0, key="d")], [ok(5, 0), ok(5, 0)]),
        ],
    ),
    Case(
        "limits that pay in turn charge nothing where another descriptor denies",
        [
            Charge(T, [hit(5, key="full")], [ok(0, 5)]),
            Charge(T, [*TURN, hit(key="full")], [ok(5, 0), ok(3, 0), ok(9, 0), over(0)]),
            Charge(T, [hit(key="full"), *TURN], [over(0), ok(5, 0), ok(3, 0), ok(9, 0)]),
        ],
    ),
    Case(
        "limits that pay in turn see what the same request has charged before",
        [
            Charge(
                T,
                [pot(4, key="tier"), *TURN, *TURN],
                [ok(1, 4), ok(1, 0), ok(1, 2), ok(9, 0), ok(1, 0), ok(1, 0), ok(7, 2)],
            )
        ],
    ),
    Case(
        "limits in shadow mode pay in turn, and pass uncounted if none has room",
        [
            Charge(
                T,
                in_turn(pot(7, key="s", mode=Mode.SHADOW), pot(key="t", limit=7)),
                [ok(5, 0), ok(0, 7)],
            ),
            Charge(
                T,
                [*in_turn(pot(6, key="s", mode=Mode.SHADOW), pot(key="t", limit=7)), hit()],
                [over(5), over(0), ok(4)],
            ),
        ],
    ),
    Case(
        "a counter beyond its limit is passed over by limits that pay in turn",
        [
            Charge(T, [pot(5, key="b")], [ok(0, 5)]),
            Charge(T, in_turn(pot(1, key="b", limit=2), pot(key="e")), [ok(0, 0), ok(4)]),
            Charge(T, in_turn(pot(1, key="e"), pot(key="b", limit=2)), [ok(3), ok(0, 0)]),
        ],
    ),
    Case(
        "a limit of two admits two hits and no third",
        [
            Charge(T, [hit(limit=2)], [ok(1)]),
            Charge(T, [hit(limit=2)], [ok(0)]),
            Charge(T, [hit(limit=2)], [over(0)]),
        ],
    ),
    Case(
        "a window ends at a multiple of its length, to the microsecond",
        [
            Charge(T, [hit(5)], [ok(0, 5)]),
            Charge(T + MINUTE - 1, [hit()], [over(0, reset_us=1)]),
            Charge(T + MINUTE, [hit()], [ok(4)]),
        ],
    ),
    Case(
        "more hits than are left are denied whole, fewer still pass",
        [
            Charge(T, [hit(3)], [ok(2, 3)]),
            Charge(T, [hit(3)], [over(2)]),
            Charge(T, [hit(2)], [ok(0, 2)]),
        ],
    ),
    Case(
        "more hits than the limit never pass",
        [Charge(T, [hit(6)], [over(5)]), Charge(T, [hit(5)], [ok(0, 5)])],
    ),
    Case(
        "a peek counts nothing, and is over only when the count exceeds the limit",
        [
            Charge(T, [hit(0)], [ok(5, 0)]),
            Charge(T, [hit(5)], [ok(0, 5)]),
            Charge(T, [hit(0)], [ok(0, 0)]),
            Charge(T, [hit(0, limit=4)], [over(0)]),
        ],
    ),
    Case(
        "a limit of zero denies every hit and no peek",
        [Charge(T, [hit(limit=0)], [over(0)]), Charge(T, [hit(0, limit=0)], [ok(0, 0)])],
    ),
    Case(
        "a changed limit keeps the count",
        [
            Charge(T, [hit(4)], [ok(1, 4)]),
            Charge(T, [hit(limit=3)], [over(0)]),
            Charge(T, [hit(limit=9)], [ok(4)]),
        ],
    ),
    Case(
        "a denied request charges nothing in any descriptor, and shows what is left uncharged",
        [
            Charge(T, [hit(key="full", limit=1)], [ok(0)]),
            Charge(T, [hit(2), hit(key="full", limit=1)], [ok(5, 0), over(0)]),
            Charge(T, [hit(key="full", limit=1), hit(2)], [over(0), ok(5, 0)]),
            Charge(T, [hit(5)], [ok(0, 5)]),
        ],
    ),
    Case(
        "a grant takes hits before its limit, and all of them or none",
        [
            Charge(T, [grant("g", 2, limit=3), hit(2)], [ok(1, 2), ok(5, 0)]),
            Charge(T, [grant("g", 2, limit=3), hit(2)], [ok(1, 0), ok(3, 2)]),
            Charge(T, [grant("g", 1, limit=3), hit(1)], [ok(0, 1), ok(3, 0)]),
            Charge(T, [grant("g", 4, limit=3), hit(4)], [ok(0, 0), over(3)]),
        ],
    ),
    Case(
        "of several grants the first with room takes the hits",
        [
            Charge(T, [grant("g", limit=1)._replace(mode=Mode.ENFORCED)], [ok(0)]),
            Charge(
                T,
                [
                    *(grant(key, limit=2) for key in "gfe"),
                    hit(),
                ],
                [ok(0), ok(2, 0), ok(2, 0), ok(5, 0)],
            ),
            Charge(
                T,
                [
                    *(grant(key, 2, limit=2) for key in "gfe"),
                    hit(2),
                ],
                [ok(0, 0), ok(0, 2), ok(2, 0), ok(5, 0)],
            ),
        ],
    ),
    Case(
        "a denied request charges no grant, and counts denied hits only of what is no grant's",
        [
            Charge(T, [hit(key="full", limit=1)], [ok(0)]),
            Charge(
                T,
                [
                    grant("g", limit=1),
                    hit(count_denied=True),
                    hit(key="full", limit=1),
                ],
                [ok(1, 0), ok(5, 0), over(0)],
            ),
            Charge(
                T,
                [
                    grant("g", 2, limit=1),
                    hit(2, count_denied=True),
                    hit(key="full", limit=1),
                ],
                [ok(1, 0), ok(3, 2), over(0)],
            ),
        ],
    ),
    Case(
        "the same grant twice in a request is charged twice",
        [
            Charge(
                T,
                [grant("g", limit=1), hit()] * 2,
                [ok(0), ok(5, 0), ok(0, 0), ok(4)],
            ),
        ],
    ),
    Case(
        "a limit that is full beyond its number still has the room of its grant",
        [
            Charge(T, [hit(5)], [ok(0, 5)]),
            Charge(T, [grant("g"), hit(limit=3)], [ok(4), ok(0, 0)]),
            Charge(T, [grant("g", 6), hit(6, limit=3)], [ok(4, 0), over(0)]),
        ],
    ),
    Case(
        "a hit that a grant took is told how full its queue is, not when that has room",
        [
            Charge(T, [queued(4)], [ok(1, 4, 4 * SECOND)]),
            Charge(T, [grant("g", of="q"), queued(limit=3)], [ok(4), ok(0, 0, 4 * SECOND)]),
        ],
    ),
    Case(
        "limits of one descriptor in shadow mode charge their grants together, or not at all",
        [
            Charge(
                T,
                [
                    grant("g", 2),
                    hit(2, mode=Mode.SHADOW),
                    hit(2, key="b", limit=1, mode=Mode.SHADOW)._replace(joined=True),
                ],
                [ok(5, 0), ok(5, 0), over(1)],
            ),
            Charge(
                T,
                [
                    grant("g", 2),
                    hit(2, mode=Mode.SHADOW),
                    grant("h", 2, of="b")._replace(joined=True),
                    hit(2, key="b", limit=1, mode=Mode.SHADOW)._replace(joined=True),
                ],
                [ok(3, 2), ok(5, 0), ok(3, 2), ok(1, 0)],
            ),
        ],
    ),
    Case(
        "a quota with room in a grant is not over",
        [
            Charge(T, [hit(5, key="q", mode=Mode.QUOTA)], [ok(0, 5)]),
            Charge(
                T,
                [
                    grant("g", limit=1, of="q"),
                    hit(key="q", mode=Mode.QUOTA),
                    hit(6, mode=Mode.QUOTA),
                ],
                [ok(0), ok(0, 0), over(5, 6)],
            ),
        ],
    ),
    Case(
        "one counter twice in a request is charged twice",
        [Charge(T, [hit(2), hit(3)], [ok(3, 2), ok(0, 3)])],
    ),
    Case(
        "one counter twice in a request is charged not at all when both do not fit",
        [
            Charge(T, [hit(2), hit(4)], [ok(5, 0), over(3)]),
            Charge(T, [hit(5)], [ok(0, 5)]),
        ],
    ),
    Case(
        "a shadow hit without room neither denies nor is charged",
        [
            Charge(T, [hit(4, key="s")], [ok(1, 4)]),
            Charge(T, [hit(2, key="s", mode=Mode.SHADOW), hit()], [over(1), ok(4)]),
            Charge(T, [hit(1, key="s")], [ok(0, 1)]),
        ],
    ),
    Case(
        "a shadow hit with room is charged",
        [Charge(T, [hit(2, mode=Mode.SHADOW)], [ok(3, 2)]), Charge(T, [hit(3)], [ok(0, 3)])],
    ),
    Case(
        "quota hits deny only when all of them are over, and are counted in any case",
        [
            Charge(T, [hit(5, key="q", mode=Mode.QUOTA)], [ok(0, 5)]),
            Charge(
                T,
                [hit(key="q", mode=Mode.QUOTA), hit(key="r", mode=Mode.QUOTA), hit()],
                [over(0, 1), ok(4, 1), ok(4)],
            ),
            Charge(T, [hit(key="q", mode=Mode.QUOTA), hit()], [over(0, 1), ok(4, 0)]),
            Charge(T, [hit(0, key="q", limit=7)], [ok(0, 0)]),
        ],
    ),
    Case(
        "quota hits are charged although an enforced hit denies",
        [
            Charge(T, [hit(6), hit(2, key="q", mode=Mode.QUOTA)], [over(5), ok(3, 2)]),
            Charge(T, [hit(0, key="q")], [ok(3, 0)]),
        ],
    ),
    Case(
        "with count_denied a token budget is over at the peek after it was exceeded",
        [
            charge
            for used in (0, 300, 600, 900)
            for charge in (
                Charge(
                    T,
                    [hit(0, limit=1000, count_denied=True)],
                    [ok(1000 - used, 0)],
                ),
                Charge(
                    T,
                    [hit(300, limit=1000, count_denied=True)],
                    [ok(700 - used, 300) if used < 900 else over(100, 300)],
                ),
            )
        ]
        + [Charge(T, [hit(0, limit=1000, count_denied=True)], [over(0)])],
    ),
    Case(
        "count_denied counts in a request that another descriptor denies",
        [
            Charge(T, [hit(6), hit(2, key="c", count_denied=True)], [over(5), ok(3, 2)]),
            Charge(T, [hit(0, key="c")], [ok(3, 0)]),
        ],
    ),
    Case(
        "counts stop at 2^32-1, where a counter is over",
        [
            Charge(T, [hit(MAX_ADDEND, count_denied=True)], [over(5, MAX_ADDEND)]),
            Charge(T, [hit(MAX_ADDEND, count_denied=True)], [over(0, MAX_ADDEND)]),
            Charge(T, [hit(0, limit=MAX_ADDEND)], [over(0)]),
            Charge(T, [refund(hit(1, limit=MAX_ADDEND))], [ok(1, 1)]),
            Charge(T, [hit(0, limit=MAX_ADDEND)], [ok(1, 0)]),
        ],
    ),
    Case(
        "the largest limit in the longest unit counts exactly",
        [
            Charge(
                YEAR * 60,
                [hit(MAX_ADDEND - 1, limit=MAX_ADDEND, window_us=YEAR)],
                [ok(1, MAX_ADDEND - 1, YEAR)],
            ),
            Charge(
                YEAR * 61 - 1,
                [hit(1, limit=MAX_ADDEND, window_us=YEAR)],
                [ok(0, 1, 1)],
            ),
            Charge(
                YEAR * 61 - 1,
                [hit(1, limit=MAX_ADDEND, window_us=YEAR)],
                [over(0, 0, 1)],
            ),
        ],
    ),
    Case(
        "a refund gives back down to nothing",
        [
            Charge(T, [hit(3)], [ok(2, 3)]),
            Charge(T, [refund(hit(2))], [ok(4, 2)]),
            Charge(T, [refund(hit(2))], [ok(5, 1)]),
            Charge(T, [hit(5)], [ok(0, 5)]),
        ],
    ),
    Case(
        "a refund touches the current window only",
        [
            Charge(T, [hit(5)], [ok(0, 5)]),
            Charge(T + MINUTE, [refund(hit(3))], [ok(5, 0)]),
            Charge(T + MINUTE, [hit(5)], [ok(0, 5)]),
        ],
    ),
    Case(
        "a refund is applied first and always, whatever the other descriptors say",
        [
            Charge(T, [hit(5)], [ok(0, 5)]),
            Charge(T, [hit(2), refund(hit(1))], [over(1), ok(1, 1)]),
            Charge(T, [hit(), refund(hit(1))], [ok(1), ok(2, 1)]),
        ],
    ),
    Case(
        "a refund of nothing and one on a new counter are allowed and change nothing",
        [
            Charge(T, [refund(hit(0))], [ok(5, 0)]),
            Charge(T, [refund(hit(7))], [ok(5, 0)]),
            Charge(T, [hit(5)], [ok(0, 5)]),
        ],
    ),
    Case(
        "a clock that steps back by less than a window resets nothing",
        [
            Charge(T, [hit(5)], [ok(0, 5)]),
            Charge(T - 1, [hit()], [over(0, reset_us=MINUTE + 1)]),
            Charge(T + 1, [hit()], [over(0, reset_us=MINUTE - 1)]),
        ],
    ),
    Case(
        "a count from further in the future than a window is damage, and starts anew",
        [
            Charge(T + 2 * MINUTE, [hit(5)], [ok(0, 5)]),
            Charge(T, [hit(5)], [ok(0, 5)]),
        ],
    ),
    Case(
        "counters are apart by key",
        [Charge(T, [hit(5)], [ok(0, 5)]), Charge(T, [hit(5, key="b")], [ok(0, 5)])],
    ),
]
