"""`ratelimit why`: why a descriptor was denied, from the decision log or the admin listener."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ratelimit_service.cli.admin import asks_admin
from ratelimit_service.cli.inspect import standing
from ratelimit_service.cli.override import overrides_taking
from ratelimit_service.cli.say import say_line
from ratelimit_service.cli.words import duration, format_descriptor, parse_descriptor, utf8
from ratelimit_service.errors import RateLimitError, TransportError
from ratelimit_service.model import SECOND_US, Entry, time_text
from ratelimit_service.text.descriptors import override_text
from ratelimit_service.text.display import count, in_seconds

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient
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
    multiple=True,
    type=click.Path(),
    metavar="PATH",
    help="A decision log, given once for each instance; rotated files are read too.",
)
@click.option(
    "--wait",
    "wait_us",
    default="5s",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="Without --log and --at: how long to watch for a denial, if none is known.",
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
    wait_us: int,
    key_file: str,
    now: bool,
    as_json: bool,
    admin: AdminClient,
) -> int:
    """Tell why a descriptor was denied.

    It is the first denial at that time, or else the nearest; without --at the last ones. Times are
    UTC. A descriptor is written key=value,key=value.

    Without --log the admin listener is asked for the last denials, which it notes while somebody
    asks or has the console open, and how the counters stand now. With --log it is the decision log,
    which is what serve writes with --decision-log. If several instances count together, name the
    logs of all of them. With --now the listener is asked about the counters as well.

    Exits 0 if there is a denial, at that time if one is named, else 1.

    Example: ratelimit why api user=alice --at 14:03 --log decisions.jsonl --now
    """
    from ratelimit_service.decision_log.key import hash_of, read_key  # noqa: PLC0415
    from ratelimit_service.eventloop.clock import now_us  # noqa: PLC0415
    from ratelimit_service.rule_lab.replay.denials import (  # noqa: PLC0415
        decisions_about,
        denial_of,
        nearest_denial,
        sentence,
    )

    wanted = parse_descriptor(descriptor)
    query = {"domain": domain, "descriptor": format_descriptor(wanted)}
    about = f"{query['descriptor']} in {domain}" + (f" at {at}" if at else "")
    now = now or not paths
    counters: list[Any] | None = None
    stand: list[str] = []
    if now:
        counters, stand = _standing_now(admin, query, with_overrides=not paths)
    hashed = hash_of(read_key(key_file)) if paths else None
    if paths:
        evidence = decisions_about(paths, domain, wanted.entries, hashed)
    else:
        evidence = _noted(admin, domain, wanted.entries, 0 if at else wait_us)
    denial = denial_of(evidence.decisions, at)
    if denial is None:
        none = (
            _none(paths, about, evidence, bool(key_file)) if paths else _none_noted(about, evidence)
        )
        nearest = nearest_denial(evidence.decisions, at) if at else None
        say_line(none + ("; the nearest:" if nearest else ""), err=True)
        if nearest and not as_json:
            say_line(sentence(nearest, wanted.entries, now_us(), hashed))
    elif as_json:
        fields = {
            **denial.decision.fields,
            "further_denials": denial.further,
            "further_denials_by": dict(denial.further_by),
        }
        if now:
            fields["now"] = counters
        click.echo(json.dumps(fields))
    else:
        say_line(sentence(denial, wanted.entries, now_us(), hashed))
    for line in [] if as_json and denial else stand:
        say_line(line, err=as_json)
    return 0 if denial else 1


def _standing_now(
    admin: AdminClient, query: Mapping[str, str], *, with_overrides: bool
) -> tuple[list[Any] | None, list[str]]:
    """The counters and overrides of a descriptor; of counters None while the store is away."""
    try:
        answer: Any = admin.get("/inspect", query)
    except TransportError:
        raise
    except RateLimitError as error:  # why it was denied can be told all the same
        counters, lines = None, [f"now: {error}"]
    else:
        counters, lines = answer["counters"], [f"now: {line}" for line in standing(answer)]
    if with_overrides:
        overrides = overrides_taking(admin, query["domain"], query["descriptor"])
        lines += [f"override: {override_text(override)}" for override in overrides]
    return counters, lines


def _noted(admin: AdminClient, domain: str, entries: Sequence[Entry], wait_us: int) -> Evidence:
    """What the listener has noted; if that has no such denial it is watched for so long."""
    from ratelimit_service.rule_lab.replay.denials import noted_about  # noqa: PLC0415

    until = time.monotonic() + wait_us / SECOND_US
    while True:
        answer: Any = admin.get("/denials")
        evidence = noted_about(answer["denials"], domain, entries)
        remaining = until - time.monotonic()
        if evidence.decisions or remaining <= 0:
            return evidence
        time.sleep(min(remaining, 1))


def _none_noted(about: str, evidence: Evidence) -> str:
    """That the listener knows of none, and what to switch on."""
    first, last = (in_seconds(time_text(us)) for us in (evidence.first_us, evidence.last_us))
    known = f"; those noted are from {first} to {last}" if evidence.last_us else ""
    return (
        f"the service has noted no denial of {about}{known}. It notes some while somebody "
        "asks: ask again with --wait 1m, or keep the console open. To know of earlier ones start "
        "it with --decision-log PATH, and name that with --log"
    )


def _none(paths: Sequence[str], about: str, evidence: Evidence, with_key: bool) -> str:
    """That there is no denial, and what logs have instead."""
    one = len(paths) == 1
    none = f"{paths[0]} has no" if one else f"none of these {len(paths)} logs has a"
    known = len(evidence.decisions)
    has, its = ("it has", "its") if one else ("they have", "their")
    text = f"{none} denial of {about}; {has} {count(known, 'decision')} about it"
    if evidence.last_us:
        first, last = (in_seconds(time_text(us)) for us in (evidence.first_us, evidence.last_us))
        text += f"; {its} lines are from {first} to {last}"
    if evidence.hashed and not known:
        text += (
            f"; {its} values are hashed, with another key if it is there at all"
            if with_key
            else f"; {its} values are hashed: name the key with --key-file"
        )
    return text
