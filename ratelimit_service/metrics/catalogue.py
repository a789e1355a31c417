"""The metrics of the service, as data: name, kind, labels, help, and where the numbers are.

Whoever exports metrics walks `CATALOGUE`; nothing here knows a format. docs/metrics.md has the
same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ratelimit_service.metrics.reading import Reading, WorkerFigures
from ratelimit_service.model import FailurePolicy, OverrideKind
from ratelimit_service.observability.stats import Histogram, Tally

__all__ = ["CATALOGUE", "RULE_TALLIES", "Metric", "MetricKind", "Sample"]


class MetricKind(StrEnum):
    """What becomes of a number over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Sample(NamedTuple):
    """One number, or one histogram, with the values of its metric's labels."""

    labels: tuple[str, ...]
    value: float | Histogram


class Metric(NamedTuple):
    """One metric. `read` is lazy; it gives None where the metric makes no sense.

    A counter's name is without `_total`, which some formats add.
    """

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    read: Callable[[Reading], Iterable[Sample] | None]


RULE_TALLIES: dict[str, tuple[str, Callable[[Tally], int]]] = {
    "hits": ("Hits that the rule matched.", attrgetter("hits")),
    "over_limit": ("Hits without room.", attrgetter("over")),
    "near_limit": (
        "Hits with room, above the near-limit ratio of the limit.",
        attrgetter("near"),
    ),
    "within_limit": ("Hits with room that were counted.", attrgetter("within")),
    "shadow_mode": (
        "Hits without room that the rule's shadow mode let through.",
        attrgetter("shadow"),
    ),
    "uncharged": (
        "Hits with room that were not counted, since another descriptor denied the request.",
        attrgetter("uncharged"),
    ),
    "refunded": ("Hits given back.", attrgetter("refunded")),
    "by_policy": (
        "Hits that the failure policy decided instead of a count.",
        attrgetter("by_policy"),
    ),
    "held": ("Hits that reservations have held.", attrgetter("held")),
    "settled": ("Held hits that were used.", attrgetter("settled")),
    "released": (
        "Held hits that were settled without being used.",
        attrgetter("released"),
    ),
    "overrun": ("Hits that were used beyond those that their hold had.", attrgetter("overrun")),
}
"""What is counted of each rule: its help, and the number in a tally."""


def _of_rules(name: str) -> Metric:
    text, number = RULE_TALLIES[name]

    def read(reading: Reading) -> Iterator[Sample]:
        return (Sample(series.labels, number(series.tally)) for series in reading.known)

    labels = ("domain", "rule", "value")
    return Metric(f"ratelimit_rule_{name}", MetricKind.COUNTER, labels, text, read)


def _labelled(
    name: str, text: str, label: str, known: Sequence[str], attribute: str, *, workers: bool = False
) -> Metric:
    """A counter with one label, whose known values are there from the start.

    `attribute` is that of `Stats`. With `workers` it is there only where there are some.
    """

    def read(reading: Reading) -> Iterable[Sample] | None:
        if workers and reading.workers is None:
            return None
        counts = getattr(reading.stats, attribute)
        values = dict.fromkeys([*map(str, known), *map(str, list(counts))])
        return [Sample((value,), counts.get(value, 0)) for value in values]

    return Metric(f"ratelimit_{name}", MetricKind.COUNTER, (label,), text, read)


def _plain(name: str, text: str, attribute: str) -> Metric:
    """A counter without labels; `attribute` is that of `Stats`."""

    def read(reading: Reading) -> Iterable[Sample]:
        return (Sample((), getattr(reading.stats, attribute)),)

    return Metric(f"ratelimit_{name}", MetricKind.COUNTER, (), text, read)


def _of_workers(
    name: str, kind: MetricKind, text: str, number: Callable[[WorkerFigures], float]
) -> Metric:
    def read(reading: Reading) -> Iterable[Sample] | None:
        if reading.workers is None:
            return None
        return [Sample((str(worker.number),), number(worker)) for worker in reading.workers]

    return Metric(f"ratelimit_worker_{name}", kind, ("worker",), text, read)


def _limits(reading: Reading) -> Iterator[Sample]:
    for domain, rule in reading.limited:
        for number, limit in enumerate(rule.limits, 1):
            unit = limit.unit.name.lower()
            unit = unit if limit.multiplier == 1 else f"{limit.multiplier} {unit}s"
            yield Sample((domain, rule.path, str(number), unit), limit.requests_per_unit)


def _latency(reading: Reading) -> Iterable[Sample]:
    return (Sample((), reading.stats.latency),)


def _degraded(reading: Reading) -> Iterable[Sample]:
    faults = reading.health.faults
    names = sorted({"rules", "store"} | faults.keys())
    return [Sample((name,), int(name in faults)) for name in names]


def _memory(reading: Reading) -> Iterable[Sample] | None:
    return None if reading.live_counters is None else (Sample((), reading.live_counters),)


def _unmatched(reading: Reading) -> Iterator[Sample]:
    return (Sample((domain.domain,), domain.descriptors) for domain in reading.unmatched)


def _loaded_at(reading: Reading) -> Iterable[Sample] | None:
    return None if reading.loaded is None else (Sample((), reading.loaded.at_us / 1_000_000),)


def _revision(reading: Reading) -> Iterable[Sample] | None:
    return None if reading.loaded is None else (Sample((reading.loaded.revision,), 1),)


def _overrides(reading: Reading) -> Iterable[Sample]:
    known = reading.stats.overrides
    return [Sample((str(kind),), known.get(kind, 0)) for kind in OverrideKind]


def _workers(reading: Reading) -> Iterable[Sample] | None:
    return None if reading.workers is None else (Sample((), len(reading.workers)),)


CATALOGUE: tuple[Metric, ...] = (
    *map(_of_rules, RULE_TALLIES),
    Metric(
        "ratelimit_rule_limit",
        MetricKind.GAUGE,
        ("domain", "rule", "limit", "unit"),
        "Requests that a limit of the rule allows in its unit of time.",
        _limits,
    ),
    _labelled(
        "decision_log_records",
        "Decisions for the decision log, written or dropped.",
        "outcome",
        (
            "written",
            "dropped_busy",
            "dropped_overload",
            "dropped_unsent",
            "dropped_slow",
            "dropped_error",
        ),
        "decision_log",
    ),
    _labelled(
        "queued_requests",
        "Denied requests for the queues of rules, written or dropped.",
        "outcome",
        (
            "written",
            "dropped_oldest",
            "dropped_busy",
            "dropped_large",
            "dropped_error",
            "dropped_no_redis",
        ),
        "queued",
    ),
    _labelled("decisions", "Requests decided.", "code", ("ok", "over_limit"), "decisions"),
    Metric(
        "ratelimit_decision_duration_seconds",
        MetricKind.HISTOGRAM,
        (),
        "Time from a request's bytes to its answer's, in this process.",
        _latency,
    ),
    _labelled(
        "refused_requests",
        "Requests answered with an error instead of a decision.",
        "reason",
        (
            "abandoned",
            "addend_too_large",
            "amount",
            "bad_multiplier",
            "batch",
            "domain_too_long",
            "framing",
            "internal",
            "json",
            "malformed",
            "no_descriptors",
            "no_domain",
            "no_key",
            "policy",
            "refund",
            "reservation_id",
            "too_large",
            "too_many_descriptors",
            "too_many_entries",
            "too_many_limits",
            "ttl",
            "unknown_unit",
        ),
        "refusals",
    ),
    _labelled(
        "reservations",
        "Reservations by what became of them.",
        "result",
        (
            "by_policy",
            "denied",
            "extended",
            "held",
            "late",
            "overrun",
            "settled",
            "too_large",
            "unknown",
        ),
        "reservations",
    ),
    _labelled(
        "policy_decisions",
        "Descriptors decided by failure policy instead of a count.",
        "policy",
        tuple(FailurePolicy),
        "policy_decisions",
    ),
    Metric(
        "ratelimit_overrides",
        MetricKind.GAUGE,
        ("kind",),
        "Overrides that are in force.",
        _overrides,
    ),
    _labelled(
        "override_decisions",
        "Descriptors in whose decision an override took part.",
        "kind",
        tuple(OverrideKind),
        "override_decisions",
    ),
    _labelled(
        "overloaded_calls",
        "Calls that there was no time to count.",
        "answer",
        ("denied", "hurried", "refused"),
        "overloaded",
    ),
    _labelled(
        "store_errors",
        "Hits that the store gave no answer for.",
        "reason",
        (
            "disconnected",
            "circuit_open",
            "timeout",
            "overloaded",
            "refused",
            "unknown",
            "internal",
        ),
        "store_errors",
    ),
    _labelled(
        "leased_hits",
        "Hits of leased limits that were counted ahead, and what became of them.",
        "event",
        ("advanced", "spent", "refunded", "handed_back", "lost"),
        "leased_hits",
    ),
    _labelled(
        "leased_sent",
        "Hits, advances and hand-backs of leased limits that Redis has answered.",
        "what",
        ("hit", "advance", "hand_back"),
        "leased_sent",
    ),
    _labelled(
        "local_cache",
        "Requests by whether the local cache knew all of their keys to be over.",
        "result",
        ("hit", "miss"),
        "local_cache",
    ),
    _plain(
        "given_back_hits",
        "Hits that one shard had counted when another denied their request.",
        "given_back",
    ),
    _labelled(
        "lost_give_backs",
        "Hits that were to be given back and may still be counted.",
        "reason",
        ("overflow", "unknown", "refused", "internal"),
        "lost_give_backs",
    ),
    _labelled(
        "evicted_counters",
        "Counters put out of a full memory store; live ones admit too much.",
        "state",
        ("expired", "live"),
        "evictions",
    ),
    _plain(
        "damaged_counters",
        "Counters that started anew, since they were last used more than a window ahead.",
        "damaged",
    ),
    _labelled(
        "closed_connections",
        "gRPC connections that were ended for what their clients did.",
        "reason",
        (
            "flood_frames",
            "flood_headers",
            "flood_parts",
            "flood_records",
            "flood_resets",
            "flood_settings",
            "flood_windows",
            "flood_memory",
            "memory",
            "protocol",
            "stuck",
            "timeout",
        ),
        "closed_connections",
    ),
    _labelled(
        "paused_reads",
        "Pauses in which a gRPC client was not read from.",
        "reason",
        ("unread",),
        "paused_reads",
    ),
    _labelled(
        "refused_connections",
        "gRPC connections that were closed before they were served.",
        "reason",
        ("handshake", "max_connections", "max_connections_per_peer", "no_files", "no_worker"),
        "refused_connections",
    ),
    _labelled(
        "rule_loads",
        "Loads of changed rules; error means that something kept its last good version.",
        "result",
        ("success", "error"),
        "rule_loads",
    ),
    _labelled(
        "tls_reloads",
        "Changed TLS files that were read anew; error means that the old content stays.",
        "result",
        ("success", "error"),
        "tls_reloads",
    ),
    _labelled(
        "http_closed_connections",
        "Connections of the HTTP port that were slow, too many, or failed to speak TLS.",
        "reason",
        ("slow", "crowded", "handshake"),
        "http_closed",
    ),
    Metric(
        "ratelimit_rules_loaded_timestamp_seconds",
        MetricKind.GAUGE,
        (),
        "When all rules were last loaded without an error, in seconds since 1970; 0 for never.",
        _loaded_at,
    ),
    Metric(
        "ratelimit_rules_info",
        MetricKind.GAUGE,
        ("revision",),
        "1; the revision is the same wherever the same rules are in force.",
        _revision,
    ),
    Metric(
        "ratelimit_unmatched_descriptors",
        MetricKind.COUNTER,
        ("domain",),
        "Descriptors that no rule of their domain matches.",
        _unmatched,
    ),
    _plain("unknown_domain", "Descriptors of domains that no rule file names.", "unknown_domains"),
    _plain(
        "not_addresses",
        "Descriptors with a value that is grouped by its network, but is no address.",
        "not_addresses",
    ),
    _plain(
        "global_shadow_mode",
        "Requests over their limit that the global shadow mode let through.",
        "global_shadow_mode",
    ),
    Metric(
        "ratelimit_degraded",
        MetricKind.GAUGE,
        ("component",),
        "1 while the component is degraded.",
        _degraded,
    ),
    Metric(
        "ratelimit_memory_counters", MetricKind.GAUGE, (), "Counters in the memory store.", _memory
    ),
    Metric("ratelimit_workers", MetricKind.GAUGE, (), "Workers that take connections.", _workers),
    _of_workers(
        "connections", MetricKind.GAUGE, "A worker's gRPC connections.", attrgetter("connections")
    ),
    _of_workers(
        "cpu_seconds",
        MetricKind.COUNTER,
        "CPU time that a worker has used.",
        lambda worker: worker.cpu_us / 1_000_000,
    ),
    _of_workers(
        "resident_bytes",
        MetricKind.GAUGE,
        "Memory that a worker uses.",
        attrgetter("resident_bytes"),
    ),
    _labelled(
        "worker_ends",
        "Workers that have ended while the service went on.",
        "reason",
        ("died", "hung", "replaced"),
        "worker_ends",
        workers=True,
    ),
    _labelled(
        "restarts",
        "Rolling restarts; error means that the old version serves on.",
        "result",
        ("success", "error"),
        "restarts",
        workers=True,
    ),
)
