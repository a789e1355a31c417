"""`ratelimit inspect`: how the counters of a descriptor stand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ratelimit_service.cli.admin import AS_JSON, asks_admin
from ratelimit_service.cli.override import overrides_taking
from ratelimit_service.cli.say import say_line
from ratelimit_service.cli.words import format_descriptor, parse_descriptor, utf8
from ratelimit_service.text.descriptors import override_text
from ratelimit_service.text.display import count, lasting

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient

__all__ = ["inspect", "standing"]

_MOST_LINES = 20
"""Leases or hits of a counter that are shown, the newest; and holds, the first to end."""

_SET_ASIDE = {"ban": "denies every hit", "exempt": "lets every hit pass, and none is counted"}
"""What overrides do that let no limit decide."""


@click.command()
@click.argument("domain", type=utf8)
@click.argument("descriptor")
@AS_JSON
@asks_admin
def inspect(domain: str, descriptor: str, as_json: bool, admin: AdminClient) -> int:
    """Show how the counters of a descriptor stand. Nothing is counted by that.

    A descriptor is written key=value,key=value; a comma, an equals sign or a backslash in a key
    or value stands behind a backslash. Shown is each limit of the rule that it meets: how many
    hits its counter holds in the store, how many remain and until when; of concurrency its leases,
    of a sliding_log its hits, what each reservation holds and until when, and what is left of
    grants. Numbers are those
    that hold now: where an override sets or sets aside a limit of the rule, that is said. Overrides
    that take the descriptor are listed below.

    Example: ratelimit inspect demo user=alice
    """
    text = format_descriptor(parse_descriptor(descriptor))
    answer: Any = admin.get("/inspect", {"domain": domain, "descriptor": text})
    overridden = overrides_taking(admin, domain, text)
    if as_json:
        click.echo(json.dumps({**answer, "overrides": overridden}))
    else:
        for line in _lines(answer):
            say_line(line)
        for override in overridden:
            say_line(f"override: {override_text(override)}")
    return 0


def standing(answer: Any) -> Iterator[str]:
    """A line for each counter: how it stands, as `/inspect` has told; or why there is none."""
    for counter in answer["counters"]:
        yield _standing(counter)
    if not answer["counters"]:
        yield answer["why"]


def _standing(counter: Any) -> str:
    name = f"{counter['name']}: " if counter["name"] else ""
    if "unknown" in counter:
        return f"{name}{counter['limit']}: {counter['unknown']}"
    ends = counter["ends_seconds"]
    until = "" if ends is None else f"; ends in {_seconds(ends)}, at {counter['ends']}"
    over = ", none left" if counter["over"] else f", {counter['remaining']} left"
    used = f"{counter['count']} used{_held(counter)}{_reserved(counter)}"
    return f"{name}{counter['limit']}: {used}{over}{until}"


def _reserved(counter: Any) -> str:
    """What is to be said of a limit beside which reservations hold hits."""
    if not counter.get("held"):
        return ""
    by = f" by {count(counter['held_by'], 'reservation')}" if "held_by" in counter else ""
    return f", {counter['held']} held{by}"


def _held(counter: Any) -> str:
    """What is to be said of a leased limit: how many hits are counted, and not spent."""
    if "held_here" not in counter:
        return ""
    held = counter["held_here"]
    if held is None:
        return " (exact: counters in memory are not leased)"
    return f" ({held} of them held by the process that was asked)"


def _lines(answer: Any) -> Iterator[str]:
    if not answer["counters"]:
        yield answer["why"]
        return
    yield f"{answer['domain']}: rule {answer['rule']} ({answer['source']})"
    for counter in answer["counters"]:
        yield _standing(counter)
        if "unknown" in counter:
            continue
        where = f" in {counter['shard']}" if counter["shard"] else ""
        yield f"  counter {counter['key']}{where}"
        yield from _overridden(counter)
        yield from _one_by_one(counter)
        yield from _holds(counter)
        for grant in counter.get("grants", ()):
            remaining = grant.get("remaining", "an unknown number")
            yield (
                f"  grant {grant['id']}: {remaining} of {count(grant['hits'], 'hit')} left, "
                f"until {grant['ends']}"
            )


def _overridden(counter: Any) -> Iterator[str]:
    """Which overrides decide in the place of the rule's limit."""
    for override in counter.get("by_override", ()):
        named = f"{override['kind']} {override['id']}"
        if override["kind"] in _SET_ASIDE:
            yield f"  set aside: {named} {_SET_ASIDE[override['kind']]}"
        else:
            yield f"  set by {named}; the rule has {counter['rule_limit']}"


def _one_by_one(counter: Any) -> Iterator[str]:
    """The leases or hits of a counter."""
    items = counter.get("leases", counter.get("log", []))
    earlier = counter.get("held_in_all", 0) - len(items[-_MOST_LINES:])
    if earlier > 0:
        yield f"  {earlier} older"
    for item in items[-_MOST_LINES:]:
        lease = f"lease {item['lease']}, " if "lease" in item else ""
        yield (
            f"  {lease}{count(item['hits'], 'hit')}, {_seconds(item['age_seconds'])} old, "
            f"ends in {_seconds(item['ends_seconds'])}"
        )


def _holds(counter: Any) -> Iterator[str]:
    """What each reservation holds beside a counter."""
    holds = counter.get("holds", [])[:_MOST_LINES]
    for hold in holds:
        ends = _seconds(hold["ends_seconds"])
        yield f"  reservation {hold['id']}: {count(hold['hits'], 'hit')} held, ends in {ends}"
    more = counter.get("held_by", 0) - len(holds)
    if more:
        yield f"  and {count(more, 'more reservation')}"


def _seconds(seconds: float) -> str:
    """A duration as people say it."""
    return lasting(seconds) if seconds >= 10 else f"{seconds:.1f} s"
