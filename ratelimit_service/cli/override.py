"""`ratelimit ban`, `exempt`, `limit`, `grant` and `reset`: what decides in place of the rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ratelimit_service.cli.admin import AS_JSON, asks_admin
from ratelimit_service.cli.say import say_line
from ratelimit_service.cli.words import duration, moment, parse_descriptor, utf8
from ratelimit_service.errors import TransportError
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.model import SECOND_US, time_text
from ratelimit_service.text.descriptors import override_text

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient

__all__ = [
    "REASON",
    "ban",
    "checked_answer",
    "exempt",
    "grant",
    "limit",
    "overrides_taking",
    "reset",
    "say_removed",
    "unban",
    "warn",
]


def _for(context: click.Context, flag: click.Parameter, text: str | None) -> float | None:
    """A duration in seconds."""
    return None if text is None else duration(context, flag, text) / SECOND_US


def _until(_: click.Context, flag: click.Parameter, text: str | None) -> str | None:
    """A moment as the service reads it."""
    if text is None:
        return None
    now = now_us()
    at_us = moment(flag.opts[0], text, now)
    if at_us <= now:
        raise click.UsageError(f"{flag.opts[0]} {text!r} is over")
    return time_text(at_us)


_NAME = click.option(
    "--limit", type=utf8, metavar="NAME", help="Only the limit of this name; else all."
)
_FOR = click.option(
    "--for",
    "for_seconds",
    metavar="DURATION",
    callback=_for,
    help="It ends after so long, as 30m or 2h; else it stays until it is removed.",
)
_UNTIL = click.option(
    "--until",
    metavar="TIME",
    callback=_until,
    help="It ends then, in UTC: monday, 2026-01-31 or 2026-01-31T14:03Z.",
)
REASON = click.option(
    "--reason", type=utf8, metavar="TEXT", help="Why, for whoever reads it later."
)


def _about(domain: str, descriptor: str, **fields: object) -> dict[str, object]:
    """What a route is told; what is not said is left out."""
    entries = [list(entry) for entry in parse_descriptor(descriptor).entries]
    given = {name: value for name, value in fields.items() if value is not None}
    return {"domain": domain, "descriptor": entries, **given}


def _added(admin: AdminClient, about: dict[str, object], *, as_json: bool) -> int:
    """Adds an override, and says so."""
    answer = checked_answer(admin.post("/overrides", about))
    if as_json:
        say_line(json.dumps(answer))
        return 0
    say_line(override_text(answer["override"]))
    for override in answer["replaced"]:
        say_line(f"instead of {override_text(override)}")
    warn(answer)
    if "until" not in answer["override"]:
        say_line("note: it has no end: it holds until it is removed", err=True)
    return 0


def warn(answer: dict[str, Any]) -> None:
    """Says what whoever changed something should know."""
    for note in [*answer.get("notes", ()), *([answer["warning"]] if "warning" in answer else [])]:
        say_line(f"note: {note}", err=True)


def checked_answer(answer: object) -> dict[str, Any]:
    """An answer of the admin listener. Raises TransportError if it is none."""
    if not isinstance(answer, dict):
        raise TransportError("the admin listener answers something else: is it another version?")
    return answer


def overrides_taking(admin: AdminClient, domain: str, text: str) -> list[dict[str, Any]]:
    """The overrides that take a descriptor, the first one first. Raises TransportError."""
    query = {"domain": domain, "descriptor": text}
    overrides: list[dict[str, Any]] = checked_answer(admin.get("/overrides", query))["overrides"]
    return overrides


_Command = Callable[..., int]
_Option = Callable[[_Command], _Command]


def _of_descriptor(*options: _Option) -> _Option:
    """What is asked of the admin listener about a descriptor, with these options."""
    every: list[_Option] = [
        click.argument("domain", type=utf8),
        click.argument("descriptor"),
        *options,
    ]

    def given(command: _Command) -> _Command:
        asking: _Command = AS_JSON(asks_admin(command))
        for decorate in reversed(every):
            asking = decorate(asking)
        return asking

    return given


def _adds(*options: _Option) -> Callable[[Callable[[], None]], click.Command]:
    """A command that adds an override of the kind that is its name; the function only tells it."""

    def made(described: Callable[[], None]) -> click.Command:
        @_of_descriptor(*options, _NAME, _FOR, _UNTIL, REASON)
        def command(
            admin: AdminClient, domain: str, descriptor: str, as_json: bool, **fields: object
        ) -> int:
            if fields["until"] is not None and fields["for_seconds"] is not None:
                text = "--for and --until both say when it ends: write one of them"
                raise click.UsageError(text)
            about = {**_about(domain, descriptor, **fields), "kind": described.__name__}
            return _added(admin, about, as_json=as_json)

        return click.command(described.__name__, help=described.__doc__)(command)

    return made


@_adds()
def ban() -> None:
    """Deny whoever sends a descriptor, and count nothing.

    A descriptor is written key=value,key=value; each * in a value stands for any characters or
    none. It holds in all processes within a second, and over restarts.

    Example: ratelimit ban api user=eve --for 2h --reason 'scrapes the catalogue'
    """


@_adds()
def exempt() -> None:
    """Let whoever sends a descriptor pass, and count nothing.

    A descriptor is written key=value,key=value; each * in a value stands for any characters or
    none. It holds in all processes within a second, and over restarts.

    Example: ratelimit exempt api user=alice --until monday
    """


@_adds(
    click.option("--requests", type=int, required=True, metavar="N", help="In the limit's window.")
)
def limit() -> None:
    """Give whoever sends a descriptor another number of requests.

    What was counted stays: who has used 3 of 5 has used 3 of 20. A descriptor is written
    key=value,key=value; each * in a value stands for any characters or none.

    Example: ratelimit limit api user=alice --requests 100 --for 2h
    """


@_adds(click.option("--hits", type=int, required=True, metavar="N", help="For each caller."))
def grant() -> None:
    """Give whoever sends a descriptor extra hits now.

    They are spent before the limit's own, and gone with the window. A descriptor is written
    key=value,key=value; each * in a value stands for any characters or none.

    Example: ratelimit grant api user=alice --hits 50
    """


@click.command()
@_of_descriptor(_NAME, REASON)
def unban(admin: AdminClient, domain: str, descriptor: str, as_json: bool, **fields: object) -> int:
    """End the bans of a descriptor, written as they were.

    Example: ratelimit unban api user=eve
    """
    about = {**_about(domain, descriptor, **fields), "kind": "ban"}
    return say_removed(admin.post("/overrides/remove", about), as_json=as_json)


def say_removed(response: object, *, as_json: bool) -> int:
    """Says which overrides were ended."""
    removed = checked_answer(response)
    if as_json:
        say_line(json.dumps(removed))
        return 0
    for override in removed["removed"]:
        say_line(f"removed {override_text(override)}")
    warn(removed)
    return 0


@click.command()
@_of_descriptor(_NAME, REASON)
def reset(admin: AdminClient, domain: str, descriptor: str, as_json: bool, **fields: object) -> int:
    """Let the counters of a descriptor start again.

    Each is reset atomically, whatever its algorithm. Limits outside of their times are left alone.

    Example: ratelimit reset api user=alice
    """
    answer = checked_answer(admin.post("/reset", _about(domain, descriptor, **fields)))
    if as_json:
        say_line(json.dumps(answer))
        return 0
    for limit in answer["reset"]:
        name = f"limit {limit['limit']}" if limit["limit"] else "the counter"
        count = "" if limit["count"] is None else f", it had counted {limit['count']}"
        say_line(f"{name} starts again{count}")
    warn(answer)
    return 0
