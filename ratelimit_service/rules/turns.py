"""Lists whose limits pay in turn (`charge: first`): what makes no sense in them.

Their counters must lie in one home, so that one script call can ask them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.model import SECOND_US, Denied, Limit
from ratelimit_service.rules.fields import Fields
from ratelimit_service.rules.problem import listed, quoted
from ratelimit_service.rules.tree import Rule

__all__ = ["check_turns"]


def check_turns(descriptor: Fields, key: str, rule: Rule, shard_by: frozenset[str] | None) -> None:
    """Reports what is wrong with a descriptor's limits, which stand under `key`.

    `shard_by` are the keys that place the file's counters; None if it names none.
    """
    if not rule.in_turn:
        if any(limit.count_by for limit in rule.limits):
            message = "count_by needs charge: first beside rate_limits"
            descriptor.report("count_by", message, key=key)
        return
    if key == "rate_limit":
        message = "charge: first needs a list: write rate_limits"
        descriptor.report("charge", message, key="charge")
        return
    keys = [each for each, _ in descriptor.path]
    for message in (
        *_contradictions(rule),
        *_names(rule.limits),
        *_counters(rule.limits, keys),
        *_homes(rule.limits, keys, shard_by),
    ):
        descriptor.report("charge", message, key=key)


def _contradictions(rule: Rule) -> Iterator[str]:
    if rule.quota_mode:
        yield "quota_mode and charge: first exclude each other: remove one"
    for name, given in (
        ("count_denied", any(_counts_denied(limit) for limit in rule.limits)),
        ("max_wait", any(limit.max_wait_us for limit in rule.limits)),
        ("soft of a bucket", any(_soft_bucket(limit) for limit in rule.limits)),
    ):
        if given:
            yield f"{name} and charge: first exclude each other: remove one"
    if len({limit.reservations is None for limit in rule.limits}) > 1:
        yield (
            "some of these limits take reservations, and some do not, so what is held would depend "
            "on which one pays: write reservations: true for all of them, or for none"
        )


def _counts_denied(limit: Limit) -> bool:
    return limit.count_denied or ALGORITHMS[limit.algorithm].denied is Denied.ALWAYS_COUNTED


def _soft_bucket(limit: Limit) -> bool:
    """What is asked once without its soft part and once with it must read the same count."""
    return limit.soft_ppm > 0 and ALGORITHMS[limit.algorithm].refills


def _names(limits: Sequence[Limit]) -> Iterator[str]:
    names = [limit.name for limit in limits]
    if "" in names:
        yield "with charge: first each limit needs a name, by which answers say which one has paid"
    for name in dict.fromkeys(names):
        if "," in name:
            yield f"name {quoted(name)} has a comma: a header that names who paid could not be read"
        if name and names.count(name) > 1:
            yield f"two limits are named {quoted(name)}: nobody could tell which one has paid"


def _counters(limits: Sequence[Limit], keys: Sequence[str]) -> Iterator[str]:
    """Keys that the descriptor does not have, and counters that are asked twice."""
    seen: dict[object, Limit] = {}
    for limit in limits:
        unknown = [each for each in limit.count_by if each not in keys]
        if unknown:
            yield (
                f"count_by names {quoted(unknown[0])}, which is no key of this descriptor: "
                f"allowed are {listed(dict.fromkeys(keys))}"
            )
        counter = spec_of(limit).key + limit.scope, limit.pool, _counted_by(limit, keys)
        other = seen.setdefault(counter, limit)
        if other.count_by != limit.count_by:  # else the list itself says so
            yield (
                f"{quoted(limit.name)} counts on the same counter as {quoted(other.name)}: "
                "give it another window or algorithm, or remove one"
            )


def _counted_by(limit: Limit, keys: Sequence[str]) -> frozenset[str]:
    return frozenset(limit.count_by or keys)


def _homes(
    limits: Sequence[Limit], keys: Sequence[str], shard_by: frozenset[str] | None
) -> Iterator[str]:
    """Counters that may lie in several servers."""
    if len({each.window_us == SECOND_US for each in limits}) > 1:
        yield (
            "limits of one second can have a store of their own (--second-store), so the others "
            "could not be asked with them: write another window, as 2s"
        )
    if len({(_counted_by(each, keys), each.pool, each.grouping) for each in limits}) <= 1:
        return
    common = set(keys)
    for limit in limits:
        common &= _counted_by(limit, keys)
        if limit.pool or limit.grouping is not None:
            common.discard(keys[-1])
    if shard_by is None or not shard_by <= common:
        names = ", ".join(each for each in dict.fromkeys(keys) if each in common)
        yield (
            "these limits count by different entries, so their counters may lie in different "
            "servers, and no call could ask them in turn: write "
            f"shard_by: {f'[{names}]' if names else 'domain'} at the top of the file"
        )
