"""`ratelimit why`: why a descriptor was denied, from the decision log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain

import click

from ratelimit_service.cli.say import say
from ratelimit_service.cli.words import format_descriptor, parse_descriptor
from ratelimit_service.text import count

__all__ = ["why"]


@click.command()
@click.argument("domain")
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
@click.option("--json", "as_json", is_flag=True, help="The decision as JSON.")
def why(
    domain: str, descriptor: str, at: str, paths: Sequence[str], key_file: str, as_json: bool
) -> int:
    """Tell why a descriptor was denied.

    It is the first denial at that time; without --at the last ones. A descriptor is written
    key=value,key=value. The decision log is what serve writes with --decision-log. If several
    instances count together, name the logs of all of them.

    Exits 0 if there is a denial, 1 if there is none.

    Example: ratelimit why api user=alice --at 14:03 --log decisions.jsonl
    """
    from ratelimit_service.replay.denials import (  # noqa: PLC0415
        decisions_about,
        denial_of,
        log_files,
        sentence,
    )
    from ratelimit_service.service.decision_key import hash_of, read_key  # noqa: PLC0415

    asked = parse_descriptor(descriptor)
    hashed = hash_of(read_key(key_file))
    each = [decisions_about(log_files(path), domain, asked.entries, hashed) for path in paths]
    found = sorted(chain(*[decisions for decisions, _ in each]), key=lambda one: one.at_us)
    need_key = any(needs for _, needs in each)
    denial = denial_of(found, at)
    if denial is None:
        when = f" at {at}" if at else ""
        known = sum(decision.times for decision in found)
        hint = "; its values are hashed: name the key with --key-file" if need_key else ""
        if len(paths) == 1:
            none, have = f"{paths[0]} has no denial", "it has"
        else:
            none, have = f"none of these {len(paths)} logs has a denial", "they have"
        say(
            f"{none} of {format_descriptor(asked)} in {domain}{when}; {have} "
            f"{count(known, 'decision')} about it{hint}",
            err=True,
        )
        return 1
    if as_json:
        told = {**denial.decision.fields, "further_denials": denial.further}
        click.echo(json.dumps(told))
    else:
        say(sentence(denial, asked.entries))
    return 0
