"""Overrides and counters, changed by those who run the service; and what they have changed.

* `overrides`: some of those that are in force, the oldest first, `after` one that was
  told before; or the `newest` ones; or those that take a `descriptor` in a `domain`, the first one
  first. Of `count` in all there may be more.
* `override`: adds one, about `kind`, `domain`, `descriptor`, `requests` or `hits`, `limit`,
  `for_seconds` or `until`, `reason`.
* `remove_override`: ends one by its `id`, or those of a `kind` for a `domain` and a `descriptor`.
* `reset`: sets the counters of a `domain` and a `descriptor` to nothing, or of one `limit` there.
* `audit`: the last changes, `most` of them but some at a time: those `after` the
  `place` that the answer before has named, which is a cursor.

All that change something are told `who` asks, and from where (`from`). They answer with what they
have changed and, as `audit`, with the line that was kept of it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, permutations
from os import urandom
from typing import Final

from ratelimit_service.errors import OverrideError, StatusCode
from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.limiter import DomainOverrides, Plan, grant_end
from ratelimit_service.model import (
    MAX_PATTERNS,
    SECOND_US,
    Descriptor,
    Hit,
    Limit,
    Override,
    OverrideKind,
    read_override,
    reason_of,
    time_text,
    too_many_patterns,
)
from ratelimit_service.model.override import FORMAT
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.match import may_match
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.service.overrides.following import age
from ratelimit_service.service.questions.changing import audit_line, change
from ratelimit_service.service.questions.inspection import counters_of, descriptor_of
from ratelimit_service.service.questions.question import About, Deciding, Question, QuestionError
from ratelimit_service.text.descriptors import format_descriptor
from ratelimit_service.text.display import in_seconds

__all__ = ["MOST_LISTED", "QUESTIONS", "ending_of", "lost_by", "new_override_id", "notes_of"]

MOST_LISTED: Final = 100
"""So many overrides are told at a time, so that nobody has to wait for it."""

_MOST_AUDITED: Final = 1_000
_AUDITED_AT_ONCE: Final = 50
_MOST_LOOKED_AT: Final = 1_000
_MOST_NAMED: Final = 5
_MOST_REORDERED: Final = 4
"""Entries of which every order is tried: 24 then."""

_ID_BYTES: Final = 5
_LONGEST_SECONDS: Final = 10 * 365 * 86_400


async def _listed(deciding: Deciding, about: About) -> object:
    if "domain" in about:
        domain, descriptor = descriptor_of(about)
        found = deciding.service.overrides.meeting(
            domain, descriptor.entries, deciding.overrides.clock()
        )
        return {"overrides": [each.fields() for each in found]}
    found = deciding.overrides.in_force()
    count = len(found)
    newest, after = about.get("newest"), about.get("after")
    if newest is not None:
        if not isinstance(newest, int) or not 0 < newest <= MOST_LISTED:
            raise QuestionError(f"newest must be a number from 1 to {MOST_LISTED}")
        found = found[-newest:]
    elif isinstance(after, list):
        made_us, name = after
        found = found[bisect_right(found, (made_us, name), key=age) :]
    found = found[:MOST_LISTED]
    last = list(age(found[-1])) if found else None
    return {"overrides": [each.fields() for each in found], "count": count, "last": last}


async def _add(deciding: Deciding, about: About) -> object:
    async with deciding.overrides.changing():
        return await _add_now(deciding, about)


async def _add_now(deciding: Deciding, about: About) -> object:
    override = await ending_of(deciding, _made(deciding, about))
    if not override.exact and deciding.overrides.patterns >= MAX_PATTERNS:
        raise too_many_patterns()
    notes = await notes_of(deciding, override)
    alike = deciding.overrides.alike(override.domain, override.entries)
    replaced = [each for each in alike if each.identity == override.identity]
    notes += lost_by(override, replaced)
    audit = audit_line(deciding, about, "override", replaced, [override])
    await change(deciding, [override], [each.id for each in replaced], audit)
    return {
        "override": override.fields(),
        "replaced": [each.fields() for each in replaced],
        "notes": notes,
        "audit": audit,
    }


def new_override_id() -> str:
    """An id that no other override has."""
    return urandom(_ID_BYTES).hex()


def _made(deciding: Deciding, about: About) -> Override:
    domain, descriptor = descriptor_of(about)
    now_us = deciding.overrides.clock()
    fields: dict[str, object] = {
        "v": FORMAT,
        "id": new_override_id(),
        "kind": about.get("kind"),
        "domain": domain,
        "entries": [list(entry) for entry in descriptor.entries],
        "made": time_text(now_us),
        "who": about.get("who", ""),
        **{name: about[name] for name in ("requests", "hits", "limit", "reason") if name in about},
    }
    seconds, until = about.get("for_seconds"), about.get("until")
    if until is not None:
        if seconds is not None:
            raise OverrideError("for_seconds and until both say when it ends: write one of them")
        fields["until"] = until
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise OverrideError("for_seconds must be a number")
        if not 1 / SECOND_US <= seconds <= _LONGEST_SECONDS:
            raise OverrideError("for_seconds must be above 0, and ten years at most")
        fields["until"] = time_text(now_us + int(seconds * SECOND_US))
    override = read_override(fields)
    if not override.holds(now_us):
        raise OverrideError(f"until {until!r} is over")
    return override


async def notes_of(deciding: Deciding, override: Override) -> list[str]:
    """What who adds an override should know. Raises QuestionError if it could do nothing."""
    if not override.exact:
        return await _notes_of_pattern(deciding, override)
    limits = _limits(deciding, override)
    if override.limit and limits and override.limit not in {each.name for each in limits}:
        raise QuestionError(_no_such_name(override.limit, limits))
    notes = []
    if not limits:
        notes.append(_unlimited(deciding, override))
    if override.kind is OverrideKind.GRANT:
        meant = [each for each in limits if override.limit in {"", each.name}]
        notes += [
            f"it ends at {in_seconds(time_text(grant_end(each, override)))}"
            + (f" for the limit {each.name}" if each.name else "")
            for each in meant
        ]
    return notes


def lost_by(override: Override, replaced: Sequence[Override]) -> list[str]:
    """Says which overrides would have held for longer than the one that takes their place."""
    if override.until_us is None:
        return []
    ends = in_seconds(time_text(override.until_us))
    return [
        f"{each.kind} {each.id}, which it replaces, would have held "
        f"{_until(each)}: from {ends} on neither holds"
        for each in replaced
        if each.until_us is None or each.until_us > override.until_us
    ]


def _until(override: Override) -> str:
    end_us = override.until_us
    return "until it is removed" if end_us is None else f"until {in_seconds(time_text(end_us))}"


def _limits(deciding: Deciding, override: Override) -> list[Limit]:
    """The limits that the descriptor of an exact override meets now."""
    planned = counters_of(deciding, override.domain, Descriptor(override.entries))
    return [each.limit for each in planned.rule.limits]


def _no_such_name(name: object, limits: Iterable[Limit]) -> str:
    """Says that none of these limits has this name, and which names they have."""
    names = ", ".join(each.name for each in limits if each.name)
    only = f"only {names}" if names else "none of them has a name"
    return f"no limit there is called {name!r}, {only}"


def _unlimited(deciding: Deciding, override: Override) -> str:
    """Says why nothing limits what the override takes."""
    why = _why(deciding, override.domain, Descriptor(override.entries))
    return f"nothing limits it now: {why}{_meant(deciding, override)}"


def _meant(deciding: Deciding, override: Override) -> str:
    """Which order of keys was meant, if one has a limit; else nothing."""
    if not override.exact or len(override.entries) > _MOST_REORDERED:
        return ""
    for entries in islice(permutations(override.entries), 1, None):
        descriptor = Descriptor(entries)
        if counters_of(deciding, override.domain, descriptor).rule.limits:
            return f"; did you mean {format_descriptor(descriptor)}?"
    return ""


async def ending_of(deciding: Deciding, override: Override) -> Override:
    """The same; a grant with the end of the last window that it can be spent in."""
    if override.kind is not OverrideKind.GRANT:
        return override
    limits: Iterable[Limit] = (
        _limits(deciding, override) if override.exact else await _limits_of_all(deciding, override)
    )
    ends = [grant_end(each, override) for each in limits if override.limit in {"", each.name}]
    return replace(override, until_us=max(ends)) if ends else override


async def _limits_of_all(deciding: Deciding, override: Override) -> set[Limit]:
    """The limits that the descriptors of a pattern can meet."""
    domain = deciding.snapshot().domains.get(override.domain)
    found: set[Limit] = set()
    if domain is not None:
        async for rule in slowly(may_match(domain.root, override.entries)):
            if rule is not None:
                found.update(rule.limits)
    return found


async def _notes_of_pattern(deciding: Deciding, override: Override) -> list[str]:
    """Says if no limit can meet the pattern, and which exact overrides it does not touch.

    Of these as far as they are looked at.
    """
    notes = [] if await _limits_of_all(deciding, override) else [_unlimited(deciding, override)]
    alone = DomainOverrides()
    alone.add(override)
    exact = (
        each
        for each in deciding.overrides.in_force()
        if each.domain == override.domain and each.exact
    )
    beaten = [
        f"{each.kind} {each.id}"
        for each in islice(exact, _MOST_LOOKED_AT)
        if alone.meeting(each.entries, override.made_us)
    ]
    if not beaten:
        return notes
    more = f" and {len(beaten) - _MOST_NAMED} more" if len(beaten) > _MOST_NAMED else ""
    return [*notes, f"exact overrides come before it: {', '.join(beaten[:_MOST_NAMED])}{more}"]


async def _remove(deciding: Deciding, about: About) -> object:
    async with deciding.overrides.changing():
        return await _remove_now(deciding, about)


async def _remove_now(deciding: Deciding, about: About) -> object:
    reason_of(about)  # it is kept in the audit
    name = about.get("id")
    if name is not None:
        if besides := [each for each in ("domain", "descriptor", "limit", "kind") if each in about]:
            raise QuestionError(f"an id says which one: leave {besides[0]} out")
        found = deciding.overrides.find(str(name))
        if found is None:
            raise QuestionError(
                f"there is no override {name!r}: `ratelimit overrides` lists them",
                StatusCode.NOT_FOUND,
            )
        removed = [found]
    else:
        removed = _alike(deciding, about)
    audit = audit_line(deciding, about, "remove", removed, [])
    await change(deciding, [], [each.id for each in removed], audit)
    return {"removed": [each.fields() for each in removed], "audit": audit}


def _alike(deciding: Deciding, about: About) -> list[Override]:
    domain, descriptor = descriptor_of(about)
    kind, limit = about.get("kind"), about.get("limit")
    found = [
        each
        for each in deciding.overrides.alike(domain, descriptor.entries)
        if kind in (None, each.kind) and limit in (None, each.limit)
    ]
    if not found:
        raise QuestionError(
            f"there is no {kind or 'override'} for just this descriptor in {domain}: "
            "`ratelimit overrides` lists them",
            StatusCode.NOT_FOUND,
        )
    return found


def _why(deciding: Deciding, domain: str, descriptor: Descriptor) -> str:
    """Why a descriptor meets the rule it meets, or none."""
    now = at_moment(deciding.snapshot(), deciding.overrides.clock())
    return explain(now, domain, descriptor).why


async def _reset(deciding: Deciding, about: About) -> object:
    domain, descriptor = descriptor_of(about)
    reason_of(about)  # it is kept in the audit
    name = about.get("limit")
    planned = counters_of(deciding, domain, descriptor)
    hits = _hits(planned, name)
    if not hits:
        why = f"nothing counts it: {_why(deciding, domain, descriptor)}"
        if planned.hits:
            why = _no_such_name(name, [each.limit for each in planned.rule.limits])
        raise QuestionError(why, StatusCode.NOT_FOUND)
    before = await _counts(deciding, planned, hits)
    audit = audit_line(deciding, about, "reset", before, [])
    await deciding.forget(hits)
    await change(deciding, [], [], audit)
    told: dict[str, object] = {"reset": before, "audit": audit}
    if any("*" in entry.value for entry in descriptor.entries):
        told["notes"] = ["a * stands for itself here: one caller is reset, and no pattern"]
    return told


def _hits(planned: Plan, name: object) -> list[Hit]:
    return [
        hit
        for limit, hit in zip(planned.rule.limits, planned.hits, strict=True)
        if name in (None, "", limit.limit.name)
    ]


async def _counts(
    deciding: Deciding, planned: Plan, hits: Sequence[Hit]
) -> list[dict[str, object]]:
    """What the counters hold, as far as their servers say."""
    names = {
        hit.key: limit.limit.name
        for limit, hit in zip(planned.rule.limits, planned.hits, strict=True)
    }
    peeks = [Hit(hit.key, hit.spec.as_counted(), 0) for hit in hits]
    looks = await deciding.look_at(peeks)
    return [
        {
            "limit": names[peek.key] or None,
            "key": peek.key.decode("utf-8", "backslashreplace"),
            "count": None if look is None else peek.spec.limit - look.outcome.remaining,
        }
        for peek, look in zip(peeks, looks, strict=True)
    ]


async def _audited(deciding: Deciding, about: About) -> object:
    most, after = about.get("most", 100), about.get("after", "")
    if not isinstance(most, int) or not 0 < most <= _MOST_AUDITED:
        raise QuestionError(f"most must be a number from 1 to {_MOST_AUDITED}")
    if not isinstance(after, str):
        raise QuestionError("after must be a place that an answer has named")
    found = []
    lines, cursor = await deciding.overrides.kept.audited(min(most, _AUDITED_AT_ONCE), after)
    for line in lines:
        try:
            told = json.loads(line)
            json.dumps(told)  # what can be read need not be shallow enough to be written
        except (ValueError, RecursionError):  # a stranger's line
            continue
        if isinstance(told, dict):
            found.append(told)
    return {"audit": found, "looked_at": len(lines), "place": cursor}


QUESTIONS: Final = (
    Question("overrides", _listed),
    Question("override", _add),
    Question("remove_override", _remove),
    Question("reset", _reset),
    Question("audit", _audited),
)
