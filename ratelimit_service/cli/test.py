"""`ratelimit test`: whether rules do what their tests say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ratelimit_service.cli.counted import counting_denied
from ratelimit_service.cli.paths import PathArgument
from ratelimit_service.cli.say import in_color, say
from ratelimit_service.model import CountDenied

__all__ = ["test"]


@click.command()
@click.argument("cases", nargs=-1, required=True, type=PathArgument())
@click.option(
    "--format",
    "shape",
    default="text",
    show_default=True,
    type=click.Choice(["text", "github", "junit"]),
    help="For people, for GitHub Actions, or JUnit's XML.",
)
@click.option("--coverage", is_flag=True, help="Name the rules that no case meets.")
@click.option(
    "--min-coverage",
    default=0.0,
    metavar="PERCENT",
    type=click.FloatRange(0, 100),
    help="Fail if fewer of the rules are met.",
)
@in_color
@counting_denied
def test(
    cases: Sequence[Path],
    shape: str,
    coverage: bool,
    min_coverage: float,
    count_denied: CountDenied | None,
) -> int:
    """Run tests of rules on a clock of their own.

    A test file NAME.test.yaml holds cases; of a directory all such files are run. Each case
    starts with no hits counted, and asks the real limiter what its steps ask, at their times.
    Nothing is asked of a service and no time passes. Settings in a file count above --count-denied.

    Exits 0 if everything was as expected, 1 if not, 2 if a file has problems.

    Example: ratelimit test rules/
    """
    from ratelimit_service.cli.results import FORMATS, coverage_text  # noqa: PLC0415
    from ratelimit_service.rule_lab.simulation.cases import (  # noqa: PLC0415
        CasesError,
        find_case_files,
        read_cases,
    )
    from ratelimit_service.rule_lab.simulation.rule_test_run import RuleTestRun  # noqa: PLC0415
    from ratelimit_service.settings import Settings  # noqa: PLC0415

    test_run = RuleTestRun()
    try:
        settings = Settings(count_denied=count_denied)
        files = [read_cases(path, settings) for path in find_case_files(cases)]
        results = [result for file in files for result in test_run.run(file)]
    except CasesError as error:
        say(str(error), err=True)
        return 2
    colours = {f"{failed.step.source}:": "red" for failed in results if failed.step is not None}
    colour = (colours | {"-": "red", "+": "green"}).get if shape == "text" else None
    for line in FORMATS[shape](results):
        say(line, colour=colour)
    for name, text in test_run.notes.items():
        say(f"hint: {name}: {text}", err=True)
    covered = test_run.coverage
    few = covered.percent < min_coverage
    if coverage or few:
        for line in coverage_text(covered):
            say(line, err=True)
    if few:
        say(f"--min-coverage {min_coverage:g} is not reached", err=True)
    return int(few or not all(result.passed for result in results))
