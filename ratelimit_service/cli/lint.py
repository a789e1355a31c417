"""`ratelimit lint`: every problem in rule files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ratelimit_service.cli.paths import PathArgument
from ratelimit_service.cli.say import in_color, say
from ratelimit_service.text.display import count

__all__ = ["lint"]


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PathArgument(allow_dash=True))
@click.option(
    "--format",
    "shape",
    default="text",
    show_default=True,
    type=click.Choice(["text", "json", "github", "sarif"]),
    help="For people, for programs, for GitHub Actions, or SARIF for code scanning.",
)
@in_color
def lint(paths: Sequence[Path], shape: str) -> int:
    """Check rule files and directories; - is what comes in on standard input.

    Prints every problem as file:line:column, place in the tree, what is wrong and what is
    allowed, with the line; and hints, which are none. Exits 0 if there is no problem, 1 if there
    are some, 2 if a path cannot be read.

    Example: ratelimit lint rules/
    """
    from ratelimit_service.cli.problems import FORMATS  # noqa: PLC0415
    from ratelimit_service.rules.lint import SKIPPED, lint_text  # noqa: PLC0415
    from ratelimit_service.rules.lint import lint as lint_paths  # noqa: PLC0415

    if _STDIN in paths:
        if len(paths) > 1:
            raise click.UsageError("- stands alone: standard input is one file")
        linted = lint_text("<stdin>", sys.stdin.buffer.read())
    else:
        linted = lint_paths(paths)
    colours = {
        f"{reported.source}:": "cyan" if reported.hint else "red" for reported in linted.problems
    }
    colour = (colours | {"^": "yellow"}).get if shape == "text" else None
    for line in FORMATS[shape](linted):
        say(line, colour=colour)
    problems = sum(not problem.hint for problem in linted.problems)
    hints = sum(problem.hint and problem.kind != SKIPPED for problem in linted.problems)
    summary = f"{count(problems, 'problem') if problems else 'no problems'} found"
    say(f"{summary}, {count(hints, 'hint')}" if hints else summary, err=True)
    return 1 if problems else 0


_STDIN = Path("-")
