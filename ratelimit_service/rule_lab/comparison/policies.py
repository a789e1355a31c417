"""What changes where a rule stays in its place: its limits, its modes, and its counters.

Pure. Which rules stay, come and go is `compare`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, spec_of, value_of
from ratelimit_service.model import Grouping, Limit, Schedule
from ratelimit_service.rule_lab.comparison.changes import ChangeKind, Detail
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.texts import grouping_text, limit_text, moment_text, schedule_text
from ratelimit_service.rules.tree import Node, Rule
from ratelimit_service.text.display import count

__all__ = ["PlacedRule", "details", "ends", "policy_text", "shared_indices", "why_anew"]


class PlacedRule(NamedTuple):
    """A rule, and the nodes that lead to it, its own the last."""

    rule: Rule
    way: tuple[Node, ...]


def policy_text(rule: Rule | None) -> str:
    """What a rule allows, in words."""
    if rule is None:
        return "no rule"
    joint = ", else " if rule.in_turn else " and "
    limits = joint.join(map(limit_text, rule.limits)) or "unlimited"
    return f"{limits}, shadow" if rule.shadow_mode and not rule.unlimited else limits


def shared_indices(way: Sequence[Node]) -> tuple[int, ...]:
    """The places of the entries all of whose values share a counter."""
    return tuple(index for index, node in enumerate(way) if node.share_threshold)


def details(old: PlacedRule, new: PlacedRule) -> tuple[Detail, ...]:
    """What is another in meaning; nothing if both are the same."""
    return (
        *_of_limits(old.rule.limits, new.rule.limits, in_turn=new.rule.in_turn),
        *_of_sharing(old.way, new.way),
        *_of_grouping(old.way, new.way),
        *ends(old.way, new.way),
        *_of_modes(old.rule, new.rule),
        *_of_metrics(old, new),
    )


def why_anew(old: PlacedRule, new: PlacedRule) -> Iterator[str]:
    """Why counters start again from nothing although their limits stay, each reason once."""
    pairs, gone, come = _paired(old.rule.limits, new.rule.limits)
    was, now = shared_indices(old.way), shared_indices(new.way)
    if pairs and was != now:
        for index in sorted({*was, *now}):
            if (index in was) != (index in now):
                key = new.way[index].key
                if index in now:
                    yield f"all values of {key} share one counter now"
                else:
                    yield f"each value of {key} has a counter of its own now"
    for before, after in pairs:
        if _counter(before) != _counter(after):
            yield from _why_other_key(before, after)
    if pairs and _groupings(old.way) != _groupings(new.way):
        yield "addresses are grouped otherwise"
    if gone and come:
        yield "limits take the place of others"


def _why_other_key(old: Limit, new: Limit) -> Iterator[str]:
    if old.algorithm != new.algorithm:
        yield f"hits are counted by {new.algorithm}, not by {old.algorithm}"
        return
    if old.window_us != new.window_us:
        yield f"the window is {_window_text(new)}, not {_window_text(old)}"
    if old.grouping != new.grouping:
        yield f"it counts {_grouped(new)}, not {_grouped(old)}"
    if old.schedule != new.schedule:
        yield f"it holds {_times(new)}, not {_times(old)}"
    if old.count_by != new.count_by:
        yield f"it counts {_counted_by(new)}, not {_counted_by(old)}"
    if old.pool != new.pool:
        yield f"it counts {_pooled(new)}, not {_pooled(old)}"
    for parameter in ALGORITHMS[new.algorithm].parameters:
        field = parameter.field or "own"
        alone = old._replace(**{field: getattr(new, field)})
        if spec_of(alone).key == spec_of(old).key:
            continue
        before, after = (
            parameter.text(limit, value_of(limit, parameter)) or parameter.default
            for limit in (old, new)
        )
        if before != after:
            yield f"{parameter.name} is {after}, not {before}"


def _counter(limit: Limit) -> tuple[str, str, frozenset[str]]:
    """What tells the counters of a limit from those of others: two with the same share them."""
    return spec_of(limit).key + limit.scope, limit.pool, frozenset(limit.count_by)


def _grouped(limit: Limit) -> str:
    if limit.grouping is None:
        return "each address by itself"
    return f"addresses grouped by {grouping_text(limit.grouping)}"


def _times(limit: Limit) -> str:
    return f"when {schedule_text(limit.schedule)}" if limit.schedule is not None else "always"


def _counted_by(limit: Limit) -> str:
    return f"by {', '.join(limit.count_by)}" if limit.count_by else "by all entries"


def _pooled(limit: Limit) -> str:
    return f"pool {limit.pool}" if limit.pool else "each caller by itself"


def _groupings(way: Sequence[Node]) -> list[Grouping | None]:
    return [node.grouping for node in way]


def _window_text(limit: Limit) -> str:
    return count(limit.multiplier, limit.unit.name.lower())


def _paired(
    old: Sequence[Limit], new: Sequence[Limit]
) -> tuple[list[tuple[Limit, Limit]], list[Limit], list[Limit]]:
    """The limits that go on, those that are gone, and those that are new.

    A limit goes on where another counts on the same counter; and if one is left on both sides.
    """
    after = {_counter(limit): limit for limit in new}
    pairs, gone = [], []
    for limit in old:
        same = after.pop(_counter(limit), None)
        if same is None:
            gone.append(limit)
        else:
            pairs.append((limit, same))
    come = list(after.values())
    if len(gone) == len(come) == 1:
        return [*pairs, (gone[0], come[0])], [], []
    return pairs, gone, come


_Limits = tuple[Limit, ...]


@lru_cache(maxsize=64)
def _of_limits(old: _Limits, new: _Limits, *, in_turn: bool) -> tuple[Detail, ...]:
    """Many rules have the same limits, and often all of them change."""
    return tuple(_between(old, new, in_turn=in_turn))


def _between(old: _Limits, new: _Limits, *, in_turn: bool) -> Iterator[Detail]:
    if not (old and new):
        if old or new:
            kind = ChangeKind.LOOSENED if old else ChangeKind.TIGHTENED
            yield Detail(kind, _limits_text(old), _limits_text(new))
        return
    pairs, gone, come = _paired(old, new)
    for before, after in pairs:
        if _meaning(before) != _meaning(after):
            yield Detail(_direction(before, after), limit_text(before), limit_text(after))
        if before.name != after.name:
            yield Detail(ChangeKind.CHANGED, _named(before.name), _named(after.name))
    yield from _of_order(old, new, pairs)
    less, more = ChangeKind.LOOSENED, ChangeKind.TIGHTENED
    if in_turn:  # one more that can pay lets more through
        less, more = more, less
    for limit in gone:
        yield Detail(less, limit_text(limit), "")
    for limit in come:
        yield Detail(more, "", limit_text(limit))


def _of_order(old: _Limits, new: _Limits, pairs: Sequence[tuple[Limit, Limit]]) -> Iterator[Detail]:
    """That limits which go on stand in another order: callers are shown the first of equals."""
    before = sorted(pairs, key=lambda pair: old.index(pair[0]))
    after = sorted(pairs, key=lambda pair: new.index(pair[1]))
    if before != after:
        was = ", ".join([limit_text(limit) for limit, _ in before])
        now = ", ".join([limit_text(limit) for _, limit in after])
        yield Detail(ChangeKind.CHANGED, f"in this order: {was}", f"in this order: {now}")


def _limits_text(limits: Iterable[Limit]) -> str:
    return " and ".join(map(limit_text, limits)) or "unlimited"


def _named(name: str) -> str:
    return f"name {name}" if name else ""


def _meaning(limit: Limit) -> tuple[object, ...]:
    """All that a limit means except its name: two spellings of the same limit are equal."""
    rest = limit._replace(name="", requests_per_unit=0, burst=None, soft_ppm=0, max_wait_us=0)
    return spec_of(limit), capacity_of(limit), rest


def _direction(old: Limit, new: Limit) -> ChangeKind:
    """Whether a limit is tighter by all its numbers, looser by all, or neither."""
    before, after = spec_of(old), spec_of(new)
    was, now = _schedule(old), _schedule(new)
    others = [(was, now), (old.pool, new.pool)]
    if _form(old) != _form(new) or any(one and other and one != other for one, other in others):
        return ChangeKind.CHANGED
    signs = {
        _sign(after.limit - before.limit),
        _sign(capacity_of(new) - capacity_of(old)),
        _sign(new.requests_per_unit * old.window_us - old.requests_per_unit * new.window_us),
        _sign(old.count_denied - new.count_denied),
        _sign((was is None) - (now is None)),
        _sign(bool(old.pool) - bool(new.pool)),
    } - {0}
    if signs == {-1}:
        return ChangeKind.TIGHTENED
    return ChangeKind.LOOSENED if signs == {1} else ChangeKind.CHANGED


def _schedule(limit: Limit) -> Schedule | None:
    """The times at which a limit holds; None for always, also where that is written out."""
    schedule = limit.schedule
    return None if schedule is None or schedule.always else schedule


def _form(limit: Limit) -> tuple[object, ...]:
    """The way to count, without the numbers that can be more or less."""
    spec = spec_of(limit)
    form = spec.algorithm, spec.anchor, spec.buckets, spec.stepped, spec.form.queue, spec.own
    return *form, limit.grouping, limit.count_by


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _of_sharing(old: Sequence[Node], new: Sequence[Node]) -> Iterator[Detail]:
    was, now = shared_indices(old), shared_indices(new)
    if was == now:
        return
    kind = ChangeKind.CHANGED
    if set(was) < set(now):
        kind = ChangeKind.TIGHTENED
    elif set(now) < set(was):
        kind = ChangeKind.LOOSENED
    yield Detail(kind, _sharing(old, was), _sharing(new, now))


def _of_grouping(old: Sequence[Node], new: Sequence[Node]) -> Iterator[Detail]:
    for one, other in zip(old, new, strict=True):
        if one.grouping != other.grouping:
            yield Detail(ChangeKind.CHANGED, _grouping(one), _grouping(other))


def _grouping(node: Node) -> str:
    return f"{node.key} grouped by {grouping_text(node.grouping)}" if node.grouping else ""


def ends(old: Sequence[Node], new: Sequence[Node]) -> Iterator[Detail]:
    """Which of the nodes that lead to the same place end at another time, or not any more."""
    for one, other in zip(old, new, strict=True):
        if one.valid_until != other.valid_until:
            yield Detail(ChangeKind.CHANGED, _ending(one), _ending(other))


def _ending(node: Node) -> str:
    if node.valid_until is None:
        return ""
    return f"{path_text([(node.key, node.value)])} valid until {moment_text(node.valid_until)}"


def _sharing(way: Sequence[Node], indices: Iterable[int]) -> str:
    keys = ", ".join(way[index].key for index in indices)
    return f"one counter for all values of {keys}" if keys else "a counter for each value"


def _of_modes(old: Rule, new: Rule) -> Iterator[Detail]:
    """How rules deny, and what else they say. What is unlimited denies in no way."""
    shadows = [each.shadow_mode and not each.unlimited for each in (old, new)]
    if shadows[0] != shadows[1]:
        kind = ChangeKind.LOOSENED if shadows[1] else ChangeKind.TIGHTENED
        yield Detail(kind, *map(_denying, shadows))
    quotas = [each.quota_mode and not each.unlimited for each in (old, new)]
    if quotas[0] != quotas[1]:
        kind = ChangeKind.LOOSENED if quotas[1] else ChangeKind.TIGHTENED
        yield Detail(kind, *map(_quota, quotas))
    for name, before, after in (
        ("failure_policy", str(old.failure_policy or ""), str(new.failure_policy or "")),
        ("replaces", ", ".join(sorted(old.replaces)), ", ".join(sorted(new.replaces))),
        ("answer", _answer(old), _answer(new)),
        ("metadata", _json(old.metadata), _json(new.metadata)),
        ("on_limit", _on_limit(old), _on_limit(new)),
        ("charge", _charge(old), _charge(new)),
    ):
        if before != after:
            yield Detail(
                ChangeKind.CHANGED,
                f"{name} {before}" if before else "",
                f"{name} {after}" if after else "",
            )
    if old.unlimited and new.unlimited and old.names != new.names:
        before, after = (", ".join(sorted(each.names)) for each in (old, new))
        yield Detail(ChangeKind.CHANGED, _named(before), _named(after))


def _denying(shadow: bool) -> str:
    return "shadow: denies nobody" if shadow else "enforced"


def _quota(quota: bool) -> str:
    return "quota: denies only with all other quotas" if quota else "denies alone"


def _answer(rule: Rule) -> str:
    style = rule.answer._asdict() if rule.answer else {}
    return _json({name: value for name, value in style.items() if value} or None)


def _on_limit(rule: Rule) -> str:
    return "enqueue" if rule.enqueue and not rule.unlimited else ""


def _charge(rule: Rule) -> str:
    return "first" if rule.in_turn else ""


def _json(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _of_metrics(old: PlacedRule, new: PlacedRule) -> Iterator[Detail]:
    before, after = _in_metrics(old), _in_metrics(new)
    if before != after:
        yield Detail(ChangeKind.CHANGED, before, after)


def _in_metrics(of_rule: PlacedRule) -> str:
    """The entries whose values metrics show, in words."""
    keys = [
        node.key
        for node in of_rule.way
        if of_rule.rule.detailed_metric
        or (node.value_to_metric and (node.matcher is not None or not node.value))
    ]
    return f"metrics by {', '.join(keys)}" if keys else ""
