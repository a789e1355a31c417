"""`ratelimit why`: why a descriptor was denied, from the decision log and the counters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ratelimit_service.cli.admin import asks_admin
from ratelimit_service.cli.inspect import standing
from ratelimit_service.cli.say import say_line
from ratelimit_service.cli.words import format_descriptor, parse_descriptor, utf8
from ratelimit_service.model import time_text
from ratelimit_service.text.display import count, in_seconds

if TYPE_CHECKING:
    from ratelimit_service.client.admin import AdminClient
    from ratelimit_service.rule_lab.replay.denials import Evidence

__all__ = ["why"]


@click.command()
@click.argument("domain", type=utf8)
@click.argument("descriptor")
@click.option("--at", default="", metavar="TIME", help="When, in UTC: 14:03, 14:03:07 or RFC 3339.")
@click.option(
    "--log",
    "paths",
    envvar="RATELIMIT_DECISION_LOG",
    required=True,
    multiple=True,
    type=click.Path(),
    metavar="PATH",
    help="A decision log, given once for each instance; rotated files are read too.",
)
@click.option(
    "--key-file",
    default="",
    envvar="RATELIMIT_DECISION_LOG_KEY_FILE",
    metavar="FILE",
    help="The key that values in the log are hashed with.",
)
@click.option("--now", is_flag=True, help="Tell as well how its counters stand now.")
@click.option("--json", "as_json", is_flag=True, help="The decision as JSON.")
@asks_admin
def why(
    domain: str,
    descriptor: str,
    at: str,
    paths: Sequence[str],
    key_file: str,
    now: bool,
    as_json: bool,
    admin: AdminClient,
) -> int:
    """Tell why a descriptor was denied.

    It is the first denial at that time; without --at the last ones. A descriptor is written
    key=value,key=value. The decision log is what serve writes with --decision-log. If several
    instances count together, name the logs of all of them. With --now the admin listener is asked
    how many hits the counters hold by now, and when they end.

    Exits 0 if there is a denial, 1 if there is none.

    Example: ratelimit why api user=alice --at 14:03 --log decisions.jsonl --now
    """
    from ratelimit_service.eventloop.clock import now_us  # noqa: PLC0415
    from ratelimit_service.rule_lab.replay.denials import (  # noqa: PLC0415
        decisions_about,
        denial_of,
        sentence,
    )
    from ratelimit_service.service.decision_key import hash_of, read_key  # noqa: PLC0415

    asked = parse_descriptor(descriptor)
    query = {"domain": domain, "descriptor": format_descriptor(asked)}
    standing_now: Any = admin.get("/inspect", query) if now else None
    hashed = hash_of(read_key(key_file))
    found = decisions_about(paths, domain, asked.entries, hashed)
    denial = denial_of(found.decisions, at)
    if denial is None:
        about = f"{format_descriptor(asked)} in {domain}" + (f" at {at}" if at else "")
        say_line(_none(paths, about, found, bool(key_file)), err=True)
    elif as_json:
        told = {
            **denial.decision.fields,
            "further_denials": denial.further,
            "further_denials_by": dict(denial.further_by),
        }
        if now:
            told["now"] = standing_now["counters"]
        click.echo(json.dumps(told))
    else:
        say_line(sentence(denial, asked.entries, now_us(), hashed))
    if now and not (as_json and denial):
        for line in standing(standing_now):
            say_line(f"now: {line}", err=as_json)
    return 0 if denial else 1


def _none(paths: Sequence[str], about: str, found: Evidence, with_key: bool) -> str:
    """That there is no denial, and what logs have instead."""
    one = len(paths) == 1
    none = f"{paths[0]} has no" if one else f"none of these {len(paths)} logs has a"
    known = sum(decision.times for decision in found.decisions)
    has, its = ("it has", "its") if one else ("they have", "their")
    said = f"{none} denial of {about}; {has} {count(known, 'decision')} about it"
    if found.last_us:
        first, last = (in_seconds(time_text(us)) for us in (found.first_us, found.last_us))
        said += f"; {its} lines are from {first} to {last}"
    if found.hashed and not known:
        said += (
            f"; {its} values are hashed, with another key if it is there at all"
            if with_key
            else f"; {its} values are hashed: name the key with --key-file"
        )
    return said
