"""The rules that hold now as text, for `/rlconfig`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ratelimit_service.algorithms import ALGORITHMS, value_of
from ratelimit_service.model import WHOLE_PPM, Limit, Reservations
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.texts import grouping_text, moment_text, schedule_text
from ratelimit_service.rules.tree import Domain, Node, Rule, Snapshot, ways
from ratelimit_service.text.display import printable
from ratelimit_service.text.durations import duration_text

__all__ = ["dump"]


def dump(snapshot: Snapshot) -> Iterator[str]:
    """One line a rule, domains by name, rules as declared.

    It begins as envoyproxy/ratelimit's does: the joined key, unit, requests_per_unit and the
    shadow and quota flags; the rest of what holds for it follows, where the files say it.
    """
    for name in sorted(snapshot.domains):
        domain = snapshot.domains[name]
        for way in ways(domain.root.nodes):
            yield printable(_line(domain, way)) + "\n"
    for name in sorted(snapshot.unserved):
        yield printable(f"{name}: not served, its rules never loaded") + "\n"


def _line(domain: Domain, way: tuple[Node, ...]) -> str:
    rule = way[-1].rule
    assert rule is not None  # noqa: S101 -- `ways` ends at rules
    key = ".".join(
        [domain.name, *(f"{node.key}_{node.value}" if node.value else node.key for node in way)]
    )
    if rule.unlimited:
        parts = [f"{key}: unlimited: true"]
    else:
        first, *others = rule.limits
        parts = [
            f"{key}: unit={first.unit.name} requests_per_unit={first.requests_per_unit}",
            f"shadow_mode: {str(rule.shadow_mode).lower()}",
            f"quota_mode: {str(rule.quota_mode).lower()}",
            *_rest(first),
        ]
        for other in others:
            parts.append(f"and unit={other.unit.name} requests_per_unit={other.requests_per_unit}")
            parts += _rest(other)
    parts += [*_of_rule(rule), *_of_way(domain, way), f"at {rule.source}"]
    return ", ".join(parts)


def _of_rule(rule: Rule) -> Iterator[str]:
    """What a rule says beside its limits."""
    if rule.unlimited and rule.names:
        yield f"name: {' '.join(sorted(rule.names))}"
    if rule.replaces:
        yield f"replaces: {' '.join(sorted(rule.replaces))}"
    if rule.failure_policy:
        yield f"failure_policy: {rule.failure_policy}"
    if rule.detailed_metric:
        yield "detailed_metric: true"
    if rule.metadata:
        yield f"metadata: {json.dumps(rule.metadata, ensure_ascii=False)}"
    if rule.answer:
        style = {name: value for name, value in rule.answer._asdict().items() if value}
        yield f"answer: {json.dumps(style, ensure_ascii=False)}"
    if rule.in_turn:
        yield "charge: first"
    if rule.enqueue:
        yield "on_limit: enqueue"


def _of_way(domain: Domain, way: tuple[Node, ...]) -> Iterator[str]:
    """What holds for a rule because of where it stands, with the descriptors that say it."""
    for name in ("share_threshold", "value_to_metric"):
        nodes = [path_text([(node.key, node.value)]) for node in way if getattr(node, name)]
        if nodes:
            yield f"{name}: {' '.join(nodes)}"
    for node in way:
        if node.valid_until is not None:
            text = path_text([(node.key, node.value)])
            yield f"valid_until: {text} {moment_text(node.valid_until)}"
        if node.grouping is not None:
            text = path_text([(node.key, node.value)])
            yield f"group: {text} {grouping_text(node.grouping)}"
    if domain.shard_by is not None:
        yield f"shard_by: {' '.join(sorted(domain.shard_by)) or 'domain'}"


def _rest(limit: Limit) -> Iterator[str]:
    """What a limit says beside its number and unit, by the names of the rule files."""
    if limit.multiplier != 1:
        yield f"unit_multiplier: {limit.multiplier}"
    yield from _of_algorithm(limit)
    if limit.soft_ppm:
        yield f"soft: {limit.soft_ppm / 10_000:g}%"
    if limit.grouping is not None:
        yield f"group: {grouping_text(limit.grouping)}"
    yield from _of_sharing(limit)
    if limit.schedule is not None:
        yield f"when: {schedule_text(limit.schedule)}"
    if limit.count_denied:
        yield "count_denied: true"
    if limit.advances:
        yield "sync: leased"
    yield from _of_reservations(limit.reservations)
    if limit.name:
        yield f"name: {limit.name}"


def _of_sharing(limit: Limit) -> Iterator[str]:
    if limit.pool:
        yield f"pool: {limit.pool}"
    if limit.reserved:
        yield f"reserve: {limit.reserved}"
    if limit.count_by:
        yield f"count_by: {' '.join(limit.count_by)}"


def _of_reservations(reservations: Reservations | None) -> Iterator[str]:
    if reservations is None:
        return
    yield "reservations: true"
    if reservations.most_ppm != WHOLE_PPM:
        yield f"max_reservation: {reservations.most_ppm / 10_000:g}%"
    if reservations.ttl_us:
        yield f"max_reservation_ttl: {duration_text(reservations.ttl_us)}"
    if reservations.charged:
        yield "on_expiry: charge"


def _of_algorithm(limit: Limit) -> Iterator[str]:
    yield f"algorithm: {limit.algorithm}"
    for parameter in ALGORITHMS[limit.algorithm].parameters:
        if text := parameter.text(limit, value_of(limit, parameter)):
            yield f"{parameter.name}: {text}"
