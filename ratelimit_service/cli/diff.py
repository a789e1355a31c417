"""`ratelimit diff`: what a change of rules means."""

from __future__ import annotations

import click

from ratelimit_service.cli.say import in_color, say
from ratelimit_service.text.display import printable

__all__ = ["diff"]


@click.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "--format",
    "shape",
    default="text",
    show_default=True,
    type=click.Choice(["text", "json", "markdown"]),
    help="For people, for programs, or for a pull request's comment.",
)
@in_color
def diff(old: str, new: str, shape: str) -> int:
    """Tell what changes in meaning between two sets of rules.

    OLD and NEW are rule files, directories, or revisions of git: HEAD~1:rules, or main, which
    takes the path of the other side; if OLD had nothing there, all rules are new. Told are rules
    that come, go, get tighter or looser, with both numbers; counters that start again, and why; and
    callers who would meet another rule.
    Comments, files, lines, and the order of descriptors are never told, nor is what has ended
    (valid_until). Among the limits of one rule the order is told: it says which one is shown.

    Exits 0 if nothing changes, 1 if something does, 2 if rules have problems or are not there.

    Example: ratelimit diff main rules/
    """
    from ratelimit_service.cli.changes import FORMATS, summary  # noqa: PLC0415
    from ratelimit_service.eventloop.clock import now_us  # noqa: PLC0415
    from ratelimit_service.model import MINUTE_US  # noqa: PLC0415
    from ratelimit_service.rule_lab.comparison import RuleSetError, compare, read_rule_sets  # noqa: PLC0415

    try:
        before, after = read_rule_sets(old, new)
    except RuleSetError as error:
        say(str(error), err=True)
        return 2
    if not before.domains:
        say(f"{printable(before.name)}: there are no rules, so all are new", err=True)
    changes = compare(before.domains, after.domains, now_us() // MINUTE_US)
    for line in FORMATS[shape](changes):
        say(line, colour=_COLOURS.get if shape == "text" else None)
    say(summary(changes), err=True)
    return 1 if changes else 0


_COLOURS = {"-": "red", "+": "green", "tightened:": "red", "loosened:": "green"}
