"""`ratelimit lint`: every problem in rule files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ratelimit_service.cli.say import count, say

__all__ = ["lint"]


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
def lint(paths: Sequence[Path]) -> int:
    """Check rule files and directories.

    Prints every problem as file:line:column, place in the tree, what is wrong and what is
    allowed; and hints, which are none. Exits 0 if there is no problem, 1 if there are some, 2
    if a path cannot be read.

    Example: ratelimit lint rules/
    """
    from ratelimit_service.rules.lint import lint as problems_in  # noqa: PLC0415

    found = problems_in(paths)
    for problem in found:
        say(str(problem))
    problems = [problem for problem in found if not problem.hint]
    if problems:
        say(f"{count(len(problems), 'problem')} found", err=True)
        return 1
    say("no problems found", err=True)
    return 0
