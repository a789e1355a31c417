"""`ratelimit queue`: how the queues of denied requests stand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ratelimit_service.cli.admin import AS_JSON, asks_admin
from ratelimit_service.cli.say import say_line
from ratelimit_service.cli.words import utf8
from ratelimit_service.text.display import count

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient

__all__ = ["queue"]


@click.command()
@click.argument("domain", type=utf8, required=False, default="")
@AS_JSON
@asks_admin
def queue(domain: str, as_json: bool, admin: AdminClient) -> int:
    """Show the queues of rules with on_limit: enqueue. Nothing is taken out of them.

    Shown is for each rule how many denied requests its queue holds, how old the oldest and the
    newest are, how many were dropped, and the key of the Redis Stream with its server. Without a
    domain those of all domains are shown. A queue whose rule is gone is shown as well, with how to
    remove it.

    Example: ratelimit queue mail
    """
    answer: Any = admin.get("/queues", {"domain": domain} if domain else {})
    if as_json:
        click.echo(json.dumps(answer))
        return 0
    for line in _lines(answer):
        say_line(line)
    return 0


def _lines(answer: Any) -> Iterator[str]:
    if not answer["queues"]:
        yield "no rule has a queue: write on_limit: enqueue beside its rate_limit"
    for entry in answer["queues"]:
        gone = entry.get("no_rule", False)
        where = "no rule has it any more" if gone else entry["source"]
        yield f"{entry['domain']}: rule {entry['rule']} ({where})"
        if "unknown" in entry:
            yield f"  {entry['unknown']}"
            continue
        ages = ""
        if entry["oldest_seconds"] is not None:
            oldest, newest = (_age(entry[f"{name}_seconds"]) for name in ("oldest", "newest"))
            ages = f", the oldest {oldest} old, the newest {newest}"
        waiting = f"{entry['length']} of {count(answer['most'], 'request')} at most"
        yield f"  {waiting}{ages}; {entry['dropped']} dropped"
        yield f"  stream {entry['key']} in {entry['shard']}"
        if gone:
            keys = " ".join(shlex.quote(f"{entry['key']}{part}") for part in ("", ".dropped"))
            yield f"  let workers empty it, then remove it: redis-cli DEL {keys}"
    if answer.get("unlisted"):
        yield f"queues of rules that are gone are not known: {answer['unlisted']}"
    if answer["left_out"]:
        yield f"and {answer['left_out']} more: name a domain"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def _age(seconds: float) -> str:
    """An age in its largest whole unit."""
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
