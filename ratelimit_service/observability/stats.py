"""Plain integers that the hot path adds to and that metrics read.

Kept free of any metrics library: adding to an attribute is all that a decision pays. What
must not live here: names of metrics, labels' escaping, formats.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypedDict

__all__ = [
    "LATENCY_BOUNDS_US",
    "MAX_SERIES",
    "MAX_VALUES_BYTES",
    "MAX_VALUE_BYTES",
    "OTHER",
    "Histogram",
    "Stats",
    "Taken",
    "Tallies",
    "Tally",
]

MAX_SERIES: Final = 1_000
"""The most values one rule may have series of its own for."""

MAX_VALUE_BYTES: Final = 1_024
MAX_VALUES_BYTES: Final = 65_536
"""How long one value may be, and all values of a rule together, to have series of their own."""

OTHER: Final = "other"
"""The value under which a rule counts all others."""

LATENCY_BOUNDS_US: Final[tuple[int, ...]] = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    500_000,
)
"""Upper bounds of the latency histogram's buckets; 20 ms is what Envoy waits."""


class Tally:
    """What became of the hits that one rule matched, all in hits.

    `hits` is everything matched; `over` had no room; `near` and `within` had, above and up to
    the near-limit threshold together with it; `shadow` was over but let through by
    `shadow_mode`; `uncharged` had room but another descriptor denied the request; `refunded`
    was given back; `by_policy` was decided without a count. Beside all these `held` was reserved:
    of that `settled` was used, and `released` was not; `overrun` was used beyond it.
    """

    __slots__ = (
        "by_policy",
        "held",
        "hits",
        "near",
        "over",
        "overrun",
        "refunded",
        "released",
        "settled",
        "shadow",
        "uncharged",
        "within",
    )

    def __init__(self) -> None:
        self.hits = 0
        self.over = 0
        self.near = 0
        self.within = 0
        self.shadow = 0
        self.uncharged = 0
        self.refunded = 0
        self.by_policy = 0
        self.held = 0
        self.settled = 0
        self.released = 0
        self.overrun = 0

    def take(self) -> list[int]:
        """The numbers, for `add` in another process; here they start at 0 again.

        None at all if nothing was counted.
        """
        if not (self.hits or self.refunded or self.held or self.settled or self.released):
            return []
        taken = [getattr(self, name) for name in _TALLIED]
        for name in _TALLIED:
            setattr(self, name, 0)
        return taken

    def add(self, taken: Sequence[int]) -> None:
        """Adds what another one has counted, except what only later versions count."""
        for name, number in zip(_TALLIED, taken, strict=False):
            setattr(self, name, getattr(self, name) + number)


_TALLIED: Final[tuple[str, ...]] = (
    "hits",
    "over",
    "near",
    "within",
    "shadow",
    "uncharged",
    "refunded",
    "by_policy",
    "held",
    "settled",
    "released",
    "overrun",
)
"""Their order holds between versions: a new one comes last."""


class Tallies:
    """The tallies of one rule: one, or one for each value where the rule opts in.

    Bounded in number and bytes: all values beyond share one tally. `domain` and `path` name the
    rule.
    """

    __slots__ = ("_by_value", "_bytes", "domain", "path")

    def __init__(self, domain: str = "", path: str = "") -> None:
        self.domain = domain
        self.path = path
        self._by_value: dict[str, Tally] = {}
        self._bytes = 0
        """Of all values."""

    def of(self, value: str = "") -> Tally:
        """The tally for a value; "" is the rule's own."""
        tally = self._by_value.get(value)
        if tally is None:
            size = len(value.encode("utf-8", "surrogatepass"))
            if value and (
                len(self._by_value) >= MAX_SERIES
                or size > MAX_VALUE_BYTES
                or self._bytes + size > MAX_VALUES_BYTES
            ):
                value = OTHER
            elif value not in self._by_value:
                self._bytes += size
            tally = self._by_value.setdefault(value, Tally())
        return tally

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._by_value)

    def items(self) -> Iterator[tuple[str, Tally]]:
        """Every value with its tally, safe against additions meanwhile."""
        return iter(list(self._by_value.items()))


class Histogram:
    """Counts of durations by bucket, and their sum, both in microseconds."""

    __slots__ = ("buckets", "sum_us")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_US) + 1)
        self.sum_us = 0

    def add(self, duration_us: int, count: int) -> None:
        """Adds `count` observations of the same duration."""
        self.buckets[bisect_left(LATENCY_BOUNDS_US, duration_us)] += count
        self.sum_us += duration_us * count

    def take(self) -> list[int]:
        """The sum and all buckets, for `add_taken`; here they start at 0 again."""
        taken = [self.sum_us, *self.buckets]
        self.sum_us = 0
        self.buckets = [0] * len(self.buckets)
        return taken

    def add_taken(self, taken: Sequence[int]) -> None:
        """Adds what another one has counted, if it has the same bounds."""
        sum_us, *buckets = taken
        if len(buckets) != len(self.buckets):
            return
        self.sum_us += sum_us
        self.buckets = [mine + its for mine, its in zip(self.buckets, buckets, strict=True)]


class Taken(TypedDict):
    """What `Stats` have counted."""

    numbers: dict[str, int]
    labelled: dict[str, dict[str, int]]
    latency: list[int]


class Stats:
    """What the process counts, apart from the rules' own tallies."""

    def __init__(self) -> None:  # noqa: PLR0915 -- a statement for each number
        self._labelled: dict[str, Counter[str]] = {}
        """All counts by label, by their names between processes."""
        self.latency = Histogram()
        self.decisions = self._by_label("decisions")
        """Answers by overall code: `ok`, `over_limit`."""
        self.refusals = self._by_label("refusals")
        """Requests answered with an error, by reason."""
        self.reservations = self._by_label("reservations")
        """Reservations by what became of them: `held`, `extended`, `denied`, `too_large`,
        `by_policy` (the store gave no answer), `settled`, `overrun` (of these, those that used more
        than was held), `late` (nothing was held any more) and `unknown` (no id of ours)."""
        self.policy_decisions = self._by_label("policy_decisions")
        """Statuses decided by failure policy instead of count, by policy."""
        self.overrides: dict[str, int] = {}
        """How many are in force, by kind: no count, so it is neither taken nor added."""
        self.override_decisions = self._by_label("override_decisions")
        """Descriptors for which an override took part, by its kind."""
        self.store_errors = self._by_label("store_errors")
        """Hits that a store gave no answer for, by reason."""
        self._uncounted_taken: Counter[str] = Counter()
        """Of `uncounted_so_far` what was taken away."""
        self.overloaded = self._by_label("overloaded")
        """Calls that there was no time to count: `denied` (the caller is known to be over) or
        `refused`."""
        self.leased_hits = self._by_label("leased_hits")
        """Hits of leased limits: advanced, spent, handed back, lost."""
        self.leased_sent = self._by_label("leased_sent")
        """What the store has answered of leased limits: hits, advances, hand-backs."""
        self.local_cache = self._by_label("local_cache")
        """Requests by what the local cache knew of them: `hit`, `miss`."""
        self.given_back = 0
        """Hits that one shard had counted when another denied their request."""
        self.lost_give_backs = self._by_label("lost_give_backs")
        """Hits that were to be given back and may still be counted, by reason."""
        self.evictions = self._by_label("evictions")
        """Counters put out of a full memory store: `expired`, `live`."""
        self.damaged = 0
        """Counters that started again from nothing, because their state was from the future."""
        self.rule_loads = self._by_label("rule_loads")
        """Loads of the rules: `success`, `error` (a file or domain kept its last good version)."""
        self.http_closed = self._by_label("http_closed")
        """Connections of the HTTP port that were closed for their client: `slow`, `crowded`,
        `handshake` (it spoke no TLS)."""
        self.worker_ends = self._by_label("worker_ends")
        """Workers that have ended: `died`, `hung`, `replaced`."""
        self.restarts = self._by_label("restarts")
        """Rolling restarts: `success`, `error` (there was none, the old version serves on)."""
        self.refused_connections = self._by_label("refused_connections")
        """gRPC connections that were not served: `handshake` (it failed, or took too long),
        `max_connections`, `max_connections_per_peer`, `no_files`."""
        self.closed_connections = self._by_label("closed_connections")
        """gRPC connections that were ended for what their clients did: `flood_…` by what flooded,
        `memory`, `timeout`, `stuck`, `protocol`."""
        self.paused_reads = self._by_label("paused_reads")
        """Pauses in which a gRPC client was not read from: `unread`, since it took no answers."""
        self.tls_reloads = self._by_label("tls_reloads")
        """Changed TLS files that were read again: `success`, `error` (the old ones' content stays
        in force)."""
        self.decision_log = self._by_label("decision_log")
        """Decisions that were written to the decision log, or dropped: `written`, `dropped_busy`
        (too many waited in the process that decides), `dropped_overload` (calls that it refused for
        lack of time), `dropped_unsent` (the supervisor did not take them), `dropped_slow` (the disk
        or reader is too slow, or the process that writes was killed), `dropped_error` (it takes
        none)."""
        self.queued = self._by_label("queued")
        """Denied requests for the queues of rules: `written`, `dropped_oldest` (written, then the
        queue was full and the oldest made room), `dropped_busy` (too many waited in the process
        that decides), `dropped_large` (the request has too many bytes), `dropped_error` (Redis was
        away or did not confirm it), `dropped_no_redis` (counters are not there, so no queue is)."""
        self.unknown_domains = 0
        """Descriptors that asked for a domain no rule file names."""
        self.not_addresses = 0
        """Descriptors with a value that is grouped by its network, but is no address."""
        self.global_shadow_mode = 0
        """Requests over their limit that the global shadow mode let through."""

    def _by_label(self, name: str) -> Counter[str]:
        """New counts by the value of a label, which `take` and `add` know by this name."""
        counts = self._labelled[name] = Counter[str]()
        return counts

    def uncounted_so_far(self) -> Counter[str]:
        """Why this process did not count hits.

        Unlike the other numbers it goes on when they are taken.
        """
        return self._uncounted_taken + self.store_errors

    def take(self) -> Taken:
        """The numbers, for `add` in another process; here they start at 0 again."""
        self._uncounted_taken = self.uncounted_so_far()
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        for name in _NUMBERS:
            setattr(self, name, 0)
        labelled: dict[str, dict[str, int]] = {}
        for name, counts in self._labelled.items():
            labelled[name] = dict(counts)
            counts.clear()
        return {"numbers": numbers, "labelled": labelled, "latency": self.latency.take()}

    def add(self, taken: Taken) -> None:
        """Adds what another one has counted, which may be of another version of the program.

        What is not known here is left out: a restart can go back to an older version.
        """
        for name in taken["numbers"].keys() & _NUMBERS:
            setattr(self, name, getattr(self, name) + taken["numbers"][name])
        for name in taken["labelled"].keys() & self._labelled.keys():
            self._labelled[name].update(taken["labelled"][name])
        self.latency.add_taken(taken["latency"])


_NUMBERS: Final[tuple[str, ...]] = (
    "given_back",
    "damaged",
    "unknown_domains",
    "not_addresses",
    "global_shadow_mode",
)
