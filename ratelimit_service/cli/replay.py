"""`ratelimit replay`: what rules would have answered to requests that were recorded."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratelimit_service.cli.counted import counting_denied
from ratelimit_service.cli.paths import PathArgument
from ratelimit_service.cli.say import say
from ratelimit_service.model import CountDenied
from ratelimit_service.text.display import count, printable

if TYPE_CHECKING:
    from ratelimit_service.rule_lab.replay.logs import Log
    from ratelimit_service.rule_lab.replay.play import Replay
    from ratelimit_service.rule_lab.replay.recorded import Block

__all__ = ["replay"]


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--rules", required=True, type=PathArgument(), help="The rules that are tried.")
@click.option("--against", type=PathArgument(), help="The rules that they are compared with.")
@click.option(
    "--mapping",
    type=PathArgument(),
    help="Which fields of Envoy's access log make a descriptor.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.option(
    "--html",
    "page",
    type=PathArgument(dir_okay=False),
    help="Write the report to this file as well, as a page for browsers.",
)
@click.option(
    "--deny-at-most",
    "percent",
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    type=click.FloatRange(0, 100),
    help="Suggest limits that would have denied no more of the callers.",
)
@click.option(
    "--max-counters",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many counters each set of rules may hold at a time.",
)
@click.option("--skip-unreadable", is_flag=True, help="Lines that cannot be read are no problem.")
@counting_denied
def replay(
    logs: Sequence[str],
    rules: Path,
    against: Path | None,
    mapping: Path | None,
    as_json: bool,
    page: Path | None,
    percent: float,
    max_counters: int,
    skip_unreadable: bool,
    count_denied: CountDenied | None,
) -> int:
    """Ask recorded requests of rules before these serve.

    A LOG is a decision log of ratelimit, Envoy's access log in JSON (with --mapping), or CSV: a
    header, then in each row time, domain, and a column for each key of the descriptor. It may be
    compressed with gzip; - is standard input. Several are merged by time.

    Exits 0 if no request changes side, 1 if some do, 2 if a file has problems.

    Example: ratelimit replay --rules new/ --against rules/ requests.csv
    """
    from ratelimit_service.rule_lab.replay import page as pages  # noqa: PLC0415
    from ratelimit_service.rule_lab.replay import play, report, sources, text  # noqa: PLC0415
    from ratelimit_service.rule_lab.replay.logs import Log  # noqa: PLC0415
    from ratelimit_service.rule_lab.replay.recorded import merged  # noqa: PLC0415
    from ratelimit_service.rule_lab.replay.trace import Trace  # noqa: PLC0415
    from ratelimit_service.rule_lab.simulation.snapshots import snapshot_of  # noqa: PLC0415
    from ratelimit_service.settings import Settings  # noqa: PLC0415

    if page is not None and (why := _unwritable(page)):
        say(f"ratelimit: {printable(str(page))} cannot be written: {why}", err=True)
        return 2
    settings = Settings(count_denied=count_denied)
    new = Trace(snapshot_of(rules), settings, max_counters)
    old = None
    if against is not None:
        old = Trace(snapshot_of(against), settings, max_counters)
    played = play.Replay(new, old)
    readers = sources.Readers(mapping)
    with ExitStack() as stack:
        opened = [Log(path, stack, readers.reader_of) for path in logs]
        _play(played, merged([log.blocks() for log in opened]), opened)
    unread = _say_unread(opened)
    notes = list(dict.fromkeys(note for log in opened for note in log.notes()))
    if unread:
        notes.append(f"left out because unreadable: {count(unread, 'line')}")
    if not played.requests:
        say("ratelimit: the logs hold no request", err=True)
        return 2
    outcome = report.report_of(
        played,
        new=str(rules),
        old=str(against) if against else None,
        logs=[log.name for log in opened],
        percent=percent,
        notes=notes,
    )
    if page is not None:
        page.write_text(pages.page_of(outcome), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(report.as_json(outcome), indent=2))
    else:
        for line in text.lines_of(outcome):
            say(line)
    if unread and not skip_unreadable:
        left_out = count(unread, "line")
        say(f"{left_out} could not be read: --skip-unreadable lets that pass", err=True)
        return 2
    return int(outcome.changes)


def _unwritable(page: Path) -> str:
    """Why a file cannot be written, which is better known before a long run; "" if it can."""
    folder = page.parent
    if not folder.is_dir():
        return f"there is no directory {printable(str(folder))}"
    if not os.access(page if page.exists() else folder, os.W_OK):
        return "it is not allowed"
    return ""


def _play(played: Replay, blocks: Iterator[Block], opened: Sequence[Log]) -> None:
    """Plays to the end; on a terminal with a bar on standard error."""
    show = _bar(opened) if sys.stderr.isatty() else None
    gc.disable()  # nothing that is made for each request is in a cycle
    try:
        for block in blocks:
            played.play(block)
            if show is not None:
                show(played.requests)
    finally:
        gc.enable()
        if show is not None:
            click.echo("\r\x1b[K", nl=False, err=True)


def _bar(opened: Sequence[Log]) -> Callable[[int], None]:
    """What shows, ten times a second at most, how far a replay is."""
    whole = sum(log.size for log in opened) if all(log.size for log in opened) else 0
    began = shown = time.monotonic()

    def show(requests: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < 0.1:
            return
        shown = now
        text = f"{requests:,} requests, {requests / (now - began):,.0f} a second"
        if whole:
            done = min(1.0, sum(log.done for log in opened) / whole)
            filled = int(done * 30)
            wait = (now - began) * (1 - done) / done if done else 0
            text = f"[{'#' * filled}{'.' * (30 - filled)}] {done:4.0%} {text}, {wait:.0f} s to go"
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    return show


def _say_unread(opened: Sequence[Log]) -> int:
    """Says which lines could not be read, the first ones of each log; returns how many."""
    for log in opened:
        lines = log.lines
        for problem in lines.problems:
            say(problem, err=True)
        if more := lines.unread - len(lines.problems):
            say(f"{log.name}: {count(more, 'more line')} cannot be read", err=True)
    return sum(log.lines.unread for log in opened)
