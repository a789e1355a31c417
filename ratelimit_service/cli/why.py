"""`ratelimit why`: why a descriptor was denied, from the decision log."""

from __future__ import annotations

import json

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
    "path",
    envvar="RATELIMIT_DECISION_LOG",
    required=True,
    metavar="PATH",
    help="The decision log; its rotated files are read too.",
)
@click.option(
    "--key-file",
    default="",
    envvar="RATELIMIT_DECISION_LOG_KEY_FILE",
    metavar="FILE",
    help="The key that values in the log are hashed with.",
)
@click.option("--json", "as_json", is_flag=True, help="The decision as JSON.")
def why(domain: str, descriptor: str, at: str, path: str, key_file: str, as_json: bool) -> int:
    """Tell why a descriptor was denied.

    It is the first denial at that time; without --at the last ones. A descriptor is written
    key=value,key=value. The decision log is what serve writes with --decision-log.

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
    found, need_key = decisions_about(log_files(path), domain, asked.entries, hashed)
    denial = denial_of(found, at)
    if denial is None:
        when = f" at {at}" if at else ""
        known = sum(each.times for each in found)
        hint = "; its values are hashed: name the key with --key-file" if need_key else ""
        say(
            f"{path} has no denial of {format_descriptor(asked)} in {domain}{when}; it has "
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
