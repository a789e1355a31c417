"""`ratelimit top`: the callers that are over, near or busy, as a page that is refreshed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ratelimit_service.cli.admin import asks_admin
from ratelimit_service.cli.say import in_color, say_line
from ratelimit_service.cli.words import duration, format_descriptor, utf8
from ratelimit_service.errors import RateLimitError
from ratelimit_service.text.display import printable

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient
    from ratelimit_service.cli.terminal import Screen

__all__ = ["top", "watch"]

_ORDERS = {"o": "over", "n": "near", "h": "hits"}
_SAID = {
    "over": "furthest over their limit first",
    "near": "nearest to their limit first",
    "hits": "busiest first",
}
_KEYS = "o over   n near   h hits   m minute or hour   q quit"
_HEAD = ("OVER", "NEAR", "HITS", "LEFT", "LIMIT", "RULE", "CALLER")
_NUMBERS = 4
"""So many columns are set to the right."""

_MOST_WIDE = 40
"""Characters of a limit or rule."""


@click.command()
@click.option("--domain", type=utf8, default="", metavar="DOMAIN", help="Only of this domain.")
@click.option(
    "--rule", type=utf8, default="", metavar="PATH", help="Only of the rule with this path."
)
@click.option(
    "--order",
    type=click.Choice(["over", "near", "hits"]),
    default="over",
    show_default=True,
    help="Who comes first.",
)
@click.option(
    "--window",
    type=click.Choice(["minute", "hour"]),
    default="minute",
    show_default=True,
    help="Of which time.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="How many callers.",
)
@click.option(
    "--every",
    "every_us",
    default="2s",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="How often the page is refreshed.",
)
@click.option("--once", is_flag=True, help="Print it once, as when the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, once.")
@in_color
@asks_admin
def top(
    domain: str,
    rule: str,
    order: str,
    window: str,
    limit: int,
    every_us: int,
    once: bool,
    as_json: bool,
    admin: AdminClient,
) -> int:
    """Show which callers are over, near or busy, for every rule.

    In a terminal the page is refreshed. The keys o, n and h choose who comes first, m the time, and
    q ends it. Numbers are hits: OVER had no room, NEAR passed with little left, HITS is all. LEFT
    is what was left of the limit when the caller was nearest to it.

    Example: ratelimit top --order near
    """
    from ratelimit_service.cli.terminal import is_terminal, terminal  # noqa: PLC0415

    base = {"domain": domain, "rule": rule, "order": order, "window": window, "limit": limit}

    def ask(order: str, window: str) -> Any:
        query = {**base, "order": order, "window": window}
        return admin.get("/counters", {key: value for key, value in query.items() if value})

    if as_json:
        click.echo(json.dumps(ask(order, window)))
    elif once or not is_terminal():
        answer = ask(order, window)
        for line in page(answer):
            say_line(line, colour=_colour)
        if "note" in answer:
            say_line(f"note: {answer['note']}", err=True)
    else:
        answer = ask(order, window)  # if the first question fails, that is an error
        with terminal(_colour) as screen:
            watch(ask, answer, screen, every_us / 1_000_000)
    return 0


def _colour(word: str) -> str:
    """Red for how often a caller was over its limit."""
    number = word.removeprefix("~")
    return "red" if number.isdigit() and number != "0" else ""


def watch(ask: Callable[[str, str], Any], answer: Any, screen: Screen, seconds: float) -> None:
    """Shows the page until `q` is pressed; a service that is away for a moment is said to be."""
    order, window = answer["order"], answer["window"]
    lines = _with_note(answer)
    try:
        while True:
            now = f"{datetime.now(UTC):%H:%M:%S}"
            screen.show([f"{now}  {lines[0]}", *lines[1:], "", _KEYS])
            key = screen.key(seconds)
            if key == "q":
                return
            order = _ORDERS.get(key, order)
            if key == "m":
                window = "hour" if window == "minute" else "minute"
            try:
                lines = _with_note(ask(order, window))
            except RateLimitError as error:
                lines = [str(error), *lines[1:]]
    except KeyboardInterrupt:
        return


def _with_note(answer: Any) -> list[str]:
    """The page, and below it what whoever asks should know."""
    return [*page(answer), *([f"note: {answer['note']}"] if "note" in answer else [])]


def page(answer: Any) -> list[str]:
    """The page's lines: what it is of, and a table."""
    callers = answer["callers"]
    lines = [f"the last {answer['window']}, {_SAID[answer['order']]}, {_scope(answer)}"]
    if answer["left_out"]:
        lines.append(f"{answer['left_out']} hits are of rules for which there is no room here")
    if not callers:
        return [*lines, "nobody"]
    return [*lines, *_table([_HEAD, *map(_cells, callers)])]


def _scope(answer: Any) -> str:
    """Of how many processes that decide the page is."""
    here, elsewhere = answer["here"], answer["elsewhere"]
    of_here = "of one process" if here == 1 else f"of {here} workers"
    return f"{of_here} and {elsewhere} elsewhere" if elsewhere else of_here


def _cells(row: Any) -> tuple[str, ...]:
    remaining = row["remaining"]
    caller = row["caller"]
    return (
        *(_number(row, order) for order in ("over", "near", "hits")),
        f"{remaining} of {row['capacity']}" if remaining is not None else "",
        _short(row["limit"]),
        _short(printable(f"{row['domain']}: {row['rule']}")),
        _caller(caller) if caller is not None else printable(f"counter {row['key']}"),
    )


def _short(text: str) -> str:
    return text if len(text) <= _MOST_WIDE else f"{text[: _MOST_WIDE - 1]}…"


def _number(row: Any, order: str) -> str:
    """A number of hits; with a ~ where it may be higher."""
    return f"{'~' if row[f'{order}_error'] else ''}{row[order]}"


def _caller(entries: Sequence[Sequence[str]]) -> str:
    from ratelimit_service.model import Descriptor, Entry  # noqa: PLC0415

    named = [Entry(key or "pool", value) for key, value in entries]
    return printable(format_descriptor(Descriptor(tuple(named))))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index < _NUMBERS else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
