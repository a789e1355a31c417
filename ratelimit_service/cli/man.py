"""`ratelimit man`: the manual page, made of what the commands say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ratelimit_service import __version__
from ratelimit_service.cli.manual import Described, describe, paragraphs
from ratelimit_service.cli.say import say

__all__ = ["man"]


@click.command()
def man() -> int:
    """Print the manual page, for man.

    It has every command with all of its flags. `man` finds it in any directory named man1 below
    one of those that `manpath` prints.

    Example: ratelimit man > ~/.local/share/man/man1/ratelimit.1
    """
    group = click.get_current_context().find_root().command
    if isinstance(group, click.Group):
        for line in _page(group):
            say(line)
    return 0


def _page(group: click.Group) -> Iterator[str]:
    commands = list(describe(group, "ratelimit"))
    yield f'.TH RATELIMIT 1 "" "ratelimit-service {__version__}"'
    yield from (".SH NAME", r"ratelimit \- decides whether requests may pass")
    yield from (".SH SYNOPSIS", r"\fBratelimit\fR COMMAND [ARGUMENTS]")
    yield ".SH DESCRIPTION"
    for paragraph in paragraphs(group):
        yield from (".PP", _text(paragraph))
    yield ".SH COMMANDS"
    for command in commands:
        yield from (".TP", rf"\fB{_text(command.name)}\fR", _text(command.short))
    for command in commands:
        yield from _command(command)
    yield from (".SH EXIT STATUS", "0 if it is done; 2, and one line on standard error, if not.")
    yield "What else a command exits with, its section says."


def _command(command: Described) -> Iterator[str]:
    yield f'.SH "{_text(command.name).upper()}"'
    yield rf"\fB{_text(command.usage)}\fR"
    for paragraph in command.paragraphs:
        yield from (".PP", _text(paragraph))
    if command.example:
        yield from (".PP", "Example:", ".PP", ".nf", rf"    {_text(command.example)}", ".fi")
    for section in command.sections:
        if len(command.sections) > 1:
            yield f'.SS "{_text(section.title)}"'
        for flag, meaning in section.flags:
            yield from (".TP", rf"\fB{_text(flag)}\fR", _text(meaning))


def _text(text: str) -> str:
    """A text that roff shows as it is: a line must not begin as a command does."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq").strip()
    return rf"\&{escaped}" if escaped[:1] in {".", "'"} else escaped
