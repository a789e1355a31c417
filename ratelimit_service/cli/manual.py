"""What the commands say of themselves, as data: for `ratelimit man` and for docs/cli.md.

It reads what `--help` prints, so there is no second text that could differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import click

__all__ = ["Described", "FlagGroup", "describe", "paragraphs"]

_EXAMPLE = "Example: "


class FlagGroup(NamedTuple):
    """Flags under one heading: each as it is written, and what it does."""

    title: str
    flags: list[tuple[str, str]]


class Described(NamedTuple):
    """What one command does, and how it is called."""

    name: str
    usage: str
    short: str
    paragraphs: list[str]
    example: str
    sections: list[FlagGroup]


def describe(group: click.Group, program: str) -> Iterator[Described]:
    """Every command of a group, in its order."""
    with click.Context(group, info_name=program) as outer:
        for name in group.list_commands(outer):
            command = group.get_command(outer, name)
            assert command is not None  # noqa: S101 -- it is listed
            with click.Context(command, info_name=name, parent=outer) as context:
                yield _described(command, context)


def paragraphs(command: click.Command) -> list[str]:
    """What a command says it does, each paragraph on one line."""
    text = inspect.cleandoc(command.help or "")
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _described(command: click.Command, context: click.Context) -> Described:
    text = paragraphs(command)
    example = text.pop().removeprefix(_EXAMPLE) if text[-1].startswith(_EXAMPLE) else ""
    recorder = _Recorder()
    command.format_options(context, recorder)
    return Described(
        context.command_path,
        " ".join([context.command_path, *command.collect_usage_pieces(context)]),
        command.get_short_help_str(limit=200),
        text,
        example,
        recorder.sections,
    )


class _Recorder(click.HelpFormatter):
    """Keeps what a command lists, and lays nothing out."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[FlagGroup] = []

    def write_heading(self, heading: str) -> None:
        """A heading, behind which its flags follow."""
        self.sections.append(FlagGroup(heading, []))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """The flags of the last heading; the widths are for others."""
        del col_max, col_spacing
        self.sections[-1].flags.extend(rows)
