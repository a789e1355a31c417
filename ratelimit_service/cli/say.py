"""How the command speaks: lines that are safe for a terminal, and mistakes in one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ratelimit_service.text.display import printable

__all__ = ["Colour", "fail", "in_color", "mistake", "painted", "say", "say_line"]

_ERROR = 2

Colour = Callable[[str], str | None]
"""The colour of a line by its first word, as click names colours; None or "" for none."""

F = TypeVar("F", bound=Callable[..., Any])


def say(text: str, *, err: bool = False, colour: Colour | None = None) -> None:
    """Prints lines; of what others have written nothing reaches the terminal that acts there."""
    for line in text.split("\n"):
        say_line(line, err=err, colour=colour)


def say_line(text: str, *, err: bool = False, colour: Colour | None = None) -> None:
    """Prints one line: a line end in what others have written begins no other one."""
    click.echo(painted(text, colour), err=err)  # without a terminal it leaves colours out


def painted(text: str, colour: Colour | None) -> str:
    """A line that is safe for a terminal, with its first word in a colour.

    A first word of one character, as - and +, is a mark: it colours the whole line.
    """
    shown = printable(text)
    words = shown.split(maxsplit=1)
    name = colour(words[0]) if colour is not None and words else ""
    context = click.get_current_context(silent=True)
    if not name or (context is not None and context.color is False):
        return shown
    before, word, after = shown.partition(words[0])
    if len(word) == 1:
        return before + click.style(word + after, fg=name)
    return before + click.style(word, fg=name) + after


def in_color(command: F) -> F:
    """Adds `--color` to a command."""
    return click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=_choose_color,
        help="Colors: auto is in a terminal, if NO_COLOR is not set.",
    )(command)


def _choose_color(context: click.Context, _: click.Parameter, chosen: str) -> None:
    if chosen == "auto":
        context.color = False if os.environ.get("NO_COLOR") else None  # noqa: TID251 -- not ours
    else:
        context.color = chosen == "always"


def mistake(error: click.ClickException) -> str:
    """What is wrong; of words that the command does not know, or misses, also where they are."""
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    unknown = isinstance(error, (click.MissingParameter, click.NoSuchOption))
    unknown = unknown or message.startswith("Got unexpected extra argument")
    message = message.replace("is not a valid integer range", "is not a valid integer")
    if isinstance(error, click.MissingParameter):
        message = " ".join(message.split())  # choices stand on lines of their own
    if context is None or not (unknown or isinstance(context.command, click.Group)):
        return message
    return f"{message.removesuffix('.')} (see {context.command_path} --help)"


def fail(message: str) -> int:
    """Says why the command cannot be done; returns its exit code."""
    say(f"ratelimit: {message}", err=True)
    return _ERROR
