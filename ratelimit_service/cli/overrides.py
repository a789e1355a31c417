"""`ratelimit overrides`: lists overrides, ends one, and takes all of them elsewhere and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Final

import click

from ratelimit_service.cli.admin import AS_JSON, asks_admin
from ratelimit_service.cli.override import REASON, checked_answer, say_removed, warn
from ratelimit_service.cli.say import say_line
from ratelimit_service.cli.words import utf8
from ratelimit_service.errors import OverrideError, RateLimitError
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.model import (
    MAX_OVERRIDES,
    MAX_PATTERNS,
    read_override,
    time_text,
    too_many_patterns,
)
from ratelimit_service.model.override import FORMAT
from ratelimit_service.text.descriptors import override_text
from ratelimit_service.text.display import count
from ratelimit_service.text.display import reason as because
from ratelimit_service.text.json_slips import json_slip

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient

__all__ = ["overrides"]

_ROUTE: Final = "/overrides/import"
_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 48_000
"""So many, and about so large, are made by one change: the listener takes no more."""

_MOST_NOTES: Final = 5
_COUNTED: Final = ("added", "replaced", "unchanged", "ended")

_Fields = dict[str, Any]


@click.command()
@click.argument(
    "action", type=click.Choice(["remove", "import", "export"]), metavar="[ACTION]", required=False
)
@click.argument("what", type=utf8, metavar="[ID|FILE]", required=False)
@click.option("--check", is_flag=True, help="Of import: change nothing, say what would be done.")
@REASON
@AS_JSON
@asks_admin
def overrides(
    admin: AdminClient,
    action: str | None,
    what: str | None,
    check: bool,
    reason: str | None,
    as_json: bool,
) -> int:
    """List the overrides that are in force, end one, or take all of them elsewhere.

    remove ID ends one, by its id as the list has it. export prints all of them, as a line of JSON
    each. import FILE adds those of a file, or of standard input with -, as export and --json print
    them. If one of them cannot be added none is. They are added by 100 at a time; if the store goes
    away in between, import the same file again.

    Example: ratelimit overrides remove 5d1f02ab31
    """
    if action != "import" and check:
        raise click.UsageError("--check belongs to import")
    if action != "remove" and reason is not None:
        raise click.UsageError("--reason belongs to remove: an override in a list has its own")
    if action == "remove":
        if what is None:
            raise click.UsageError("write which one: ratelimit overrides remove ID")
        about = {"id": what} if reason is None else {"id": what, "reason": reason}
        return say_removed(admin.post("/overrides/remove", about), as_json=as_json)
    if action == "import":
        if what is None:
            raise click.UsageError("write what: ratelimit overrides import FILE, or - for stdin")
        return _import(admin, _read(what), check=check, as_json=as_json)
    if what is not None:
        raise click.UsageError(f"{what!r} is too much: export prints, so write > FILE")
    return _list(admin, export=action == "export", as_json=as_json)


def _list(admin: AdminClient, *, export: bool, as_json: bool) -> int:
    """Prints those in force: in words, as one JSON object, or as a line of JSON each."""
    answer = checked_answer(admin.get("/overrides"))
    overrides: list[_Fields] = answer["overrides"]
    if as_json and not export:
        say_line(json.dumps(answer))
        return 0
    for override in overrides:
        say_line(json.dumps(override) if export else override_text(override))
    if not overrides:
        say_line("no override is in force", err=True)
    return 0


def _read(path: str) -> list[_Fields]:
    """The overrides of a file, each as JSON has it. Raises RateLimitError, which says where."""
    try:
        with click.open_file(path, encoding="utf-8-sig", errors="strict") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise RateLimitError(f"{path} is no UTF-8, so it is no list of overrides") from error
    except OSError as error:
        raise RateLimitError(f"{path} cannot be read: {because(error)}") from error
    overrides: list[_Fields] = []
    numbers: dict[object, int] = {}
    for number, fields in enumerate(_listed(text), 1):
        where = f"override {number}"
        if not isinstance(fields, dict):
            raise RateLimitError(f"{where} is no JSON object")
        try:
            named = {"id": _name_of(fields), **fields}
            override = read_override({"v": FORMAT, "made": time_text(now_us()), **named})
        except OverrideError as error:
            raise RateLimitError(f"{where} cannot be read: {error}") from error
        for same in (override.id, override.identity):
            if same in numbers:
                raise RateLimitError(f"{where} is about the same as override {numbers[same]}")
            numbers[same] = number
        overrides.append(named)
    return overrides


def _name_of(fields: _Fields) -> str:
    """An id for one that has none: the same one whenever the same list is imported."""
    return blake2s(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()


def _listed(text: str) -> list[object]:
    """What is listed: lines of JSON, or one object that has them as `overrides`."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        lines = enumerate(text.split("\n"), 1)  # only these end lines of JSON
        return [_line(number, line) for number, line in lines if line.strip()]
    if isinstance(whole, dict) and isinstance(whole.get("overrides"), list):
        listed: list[object] = whole["overrides"]
        return listed
    return [whole]


def _line(number: int, line: str) -> object:
    try:
        parsed: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = json_slip(error, one_line=True)
        raise RateLimitError(f"line {number} is no JSON: {why}") from error
    return parsed


def _import(admin: AdminClient, overrides: Sequence[_Fields], *, check: bool, as_json: bool) -> int:
    """Has all of them looked at, then all of them added."""
    bodies = ({"overrides": part, "check": True} for part in _parts(overrides))
    answers = [checked_answer(admin.post(_ROUTE, body)) for body in bodies]
    _fits(answers)
    if not check:
        answers = _added(admin, overrides)
    sums: Counter[str] = Counter()
    for answer in answers:
        sums.update({name: answer[name] for name in _COUNTED})
    notes = [note for answer in answers for note in answer["notes"]]
    warnings = list(dict.fromkeys(answer["warning"] for answer in answers if "warning" in answer))
    if as_json:
        counted = {name: sums[name] for name in _COUNTED}
        say_line(json.dumps({**counted, "notes": notes, "warnings": warnings}))
        return 0
    would = "would be " if check else ""
    parts = [f"{sums[name]} {would}{name}" for name in ("added", "replaced") if sums[name]]
    parts += [f"{sums['unchanged']} there already"] if sums["unchanged"] else []
    parts += [f"{sums['ended']} had ended"] if sums["ended"] else []
    say_line(f"{count(len(overrides), 'override')}: {', '.join(parts) or 'nothing to do'}")
    more = len(notes) - _MOST_NOTES
    warn({"notes": [*notes[:_MOST_NOTES], *([f"and {more} more"] if more > 0 else []), *warnings]})
    return 0


def _fits(answers: Sequence[_Fields]) -> None:
    """Raises OverrideError if there would be too many."""
    if not answers:
        return
    there = answers[-1]["in_force"]
    more = {name: sum(answer["more"][name] for answer in answers) for name in there}
    if more["overrides"] > 0 and there["overrides"] + more["overrides"] > MAX_OVERRIDES:
        raise OverrideError(
            f"there are {there['overrides']} overrides, these are {more['overrides']} more, and "
            f"{MAX_OVERRIDES} is the most; nothing was added: remove some "
            "(ratelimit overrides remove ID), or let one pattern take many callers"
        )
    if more["patterns"] > 0 and there["patterns"] + more["patterns"] > MAX_PATTERNS:
        raise too_many_patterns()


def _added(admin: AdminClient, overrides: Sequence[_Fields]) -> list[_Fields]:
    """Has all of them added. Raises RateLimitError, which says how far it came."""
    answers: list[_Fields] = []
    done = 0
    for part in _parts(overrides):
        try:
            answers.append(checked_answer(admin.post(_ROUTE, {"overrides": part})))
        except RateLimitError as error:
            raise RateLimitError(
                f"{error}; {done} of {count(len(overrides), 'override')} are in force: import "
                "the same file again, what is there already stays"
            ) from error
        done += len(part)
    return answers


def _parts(overrides: Sequence[_Fields]) -> Iterator[list[_Fields]]:
    """As many at a time as one change takes."""
    part: list[_Fields] = []
    size = 0
    for override in overrides:
        length = len(json.dumps(override))
        if part and (len(part) == _AT_ONCE or size + length > _BYTES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(override)
        size += length
    if part:
        yield part
