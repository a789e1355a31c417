"""How the command speaks: lines that are safe for a terminal, and mistakes in one sentence."""

from __future__ import annotations

import click

from ratelimit_service.text.display import printable

__all__ = ["fail", "mistake", "say", "say_line"]

_ERROR = 2


def say(text: str, *, err: bool = False) -> None:
    """Prints lines; of what others have written nothing reaches the terminal that acts there."""
    for line in text.split("\n"):
        click.echo(printable(line), err=err)


def say_line(text: str, *, err: bool = False) -> None:
    """Prints one line: a line end in what others have written begins no other one."""
    click.echo(printable(text), err=err)


def mistake(error: click.ClickException) -> str:
    """What is wrong; of words that the command does not know, or misses, also where they are."""
    said = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    unknown = isinstance(error, (click.MissingParameter, click.NoSuchOption))
    unknown = unknown or said.startswith("Got unexpected extra argument")
    said = said.replace("is not a valid integer range", "is not a valid integer")
    if isinstance(error, click.MissingParameter):
        said = " ".join(said.split())  # choices stand on lines of their own
    if context is None or not (unknown or isinstance(context.command, click.Group)):
        return said
    return f"{said.removesuffix('.')} (see {context.command_path} --help)"


def fail(message: str) -> int:
    """Says why the command cannot be done; returns its exit code."""
    say(f"ratelimit: {message}", err=True)
    return _ERROR
