"""Why a descriptor was denied, from decision logs: the decision, and what came after it.

What must not live here: what a line of the log says (`decision_log.line`).
"""

from __future__ import annotations

import datetime
import glob
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from ratelimit_service.decision_log.line import (
    BadDecisionError,
    HashValue,
    LoggedDecision,
    NothingAskedError,
    read_limit,
    read_line,
)
from ratelimit_service.errors import SettingsError
from ratelimit_service.model import SECOND_US, Entry, whole_seconds
from ratelimit_service.rule_lab.replay.decision_log import DecisionLogReader
from ratelimit_service.rule_lab.replay.logs import Log, LogError
from ratelimit_service.rule_lab.replay.recorded import moment_us
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.text.display import in_seconds, lasting, printable

__all__ = [
    "Denial",
    "Evidence",
    "decisions_about",
    "denial_of",
    "in_log",
    "last_denials",
    "log_files",
    "nearest_denial",
    "noted_about",
    "sentence",
    "wanted_span",
]

_MOST_KEPT: Final = 100_000
"""Decisions about the descriptor; of more the newest are looked at."""

_MOST_RESET_SECONDS: Final = 285 * 366 * 86_400
"""No window is longer."""

_TRIES: Final = 10
"""So often the files of a log are opened, if they are rotated each time."""

_DAY_US: Final = 86_400 * SECOND_US
_LINE_AND_COLUMN: Final = re.compile(r"(:\d+):\d+$")
_TIME_OF_DAY: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d))?")


class Denial(NamedTuple):
    """A decision, the further denials until its limit had room again, and when the last came.

    They are counted by what decided them, as the log says it.
    """

    decision: LoggedDecision
    further_by: Mapping[str, int]
    last_us: int

    @property
    def further(self) -> int:
        """How many further denials there are."""
        return sum(self.further_by.values())


class Evidence(NamedTuple):
    """What logs have about a descriptor: its decisions, by time.

    The earliest and the latest of all decisions in the logs are `first_us` and `last_us`, 0 if
    there are none. Some have `hashed` values.
    """

    decisions: list[LoggedDecision]
    first_us: int
    last_us: int
    hashed: bool


def log_files(path: str) -> list[str]:
    """The log with its rotated files, the oldest first."""
    newest = Path(path)
    rotated = []
    for file in newest.parent.glob(f"{glob.escape(newest.name)}.*"):
        number = file.name[len(newest.name) + 1 :]
        if number.isascii() and number.isdigit():
            rotated.append((-int(number), str(file)))
    files = [name for _, name in sorted(rotated)]
    if newest.exists() or not files:  # there is none for a moment while it is rotated
        files.append(path)
    return files


def decisions_about(
    paths: Sequence[str], domain: str, entries: Sequence[Entry], hashed: HashValue | None
) -> Evidence:
    """What logs with their rotated files have about a descriptor.

    Lines that cannot be read are passed over. Raises LogError if a file cannot be read, or a log
    has lines and none of them is a decision.
    """
    return _about(chain.from_iterable(map(_decisions, paths)), domain, entries, hashed)


def noted_about(lines: Iterable[str], domain: str, entries: Sequence[Entry]) -> Evidence:
    """What lines that a service has told have about a descriptor; no value is hashed there."""
    return _about(_readable(lines), domain, entries, None)


def _readable(lines: Iterable[str]) -> Iterator[LoggedDecision]:
    for line in lines:
        with suppress(BadDecisionError, NothingAskedError):
            yield read_line(line, moment_us)


def _about(
    decisions: Iterable[LoggedDecision],
    domain: str,
    entries: Sequence[Entry],
    hashed: HashValue | None,
) -> Evidence:
    plain, in_hashes = tuple(entries), in_log(entries, hashed)
    matching: deque[LoggedDecision] = deque(maxlen=_MOST_KEPT)
    first_us = last_us = 0
    some_hashed = False
    for decision in decisions:
        first_us = min(first_us or decision.at_us, decision.at_us)
        last_us = max(last_us, decision.at_us)
        is_hashed = "hashed" in decision.fields
        some_hashed = some_hashed or is_hashed
        wanted, request = in_hashes if is_hashed else plain, decision.request
        if request.domain == domain and any(each.entries == wanted for each in request.descriptors):
            matching.append(decision)
    by_time = sorted(matching, key=lambda decision: decision.at_us)
    return Evidence(by_time, first_us, last_us, some_hashed)


def _decisions(path: str) -> Iterator[LoggedDecision]:
    """The decisions of a log with its rotated files. Raises LogError."""
    bad = good = 0
    with ExitStack() as stack:
        for log in _opened(path, stack):
            for line in log.lines:
                try:
                    decision = read_line(line, moment_us)
                except NothingAskedError:
                    good += 1
                except BadDecisionError:
                    bad += 1
                else:
                    good += 1
                    yield decision
    if bad and not good:
        raise LogError(f"{printable(path)} is no decision log: none of its lines is a decision")


def in_log(entries: Sequence[Entry], hashed: HashValue | None) -> tuple[Entry, ...]:
    """Entries as a log has them whose values are hashed."""
    if hashed is None:
        return tuple(entries)
    return tuple(Entry(key, hashed(value) if value else value) for key, value in entries)


def _opened(path: str, stack: ExitStack) -> list[Log]:
    """The files of a log that have anything in them, opened, the oldest first.

    If they are rotated meanwhile they are opened again: one would be missing, or there twice.
    Raises LogError.
    """
    for tries in range(1, _TRIES + 1):
        files = _files(path)
        try:
            logs = [
                Log(name, stack, lambda *_: DecisionLogReader())
                for name, (_, size) in files.items()
                if size
            ]
        except LogError:
            if tries == _TRIES or _inodes(_files(path)) == _inodes(files):
                raise
        else:
            if tries == _TRIES or _inodes(_files(path)) == _inodes(files):
                return logs
    raise AssertionError  # the last try has returned or raised


def _files(path: str) -> dict[str, tuple[int, int]]:
    """The files of a log with their inodes and sizes, the oldest first. Raises LogError."""
    stats = {}
    for name in log_files(path):
        try:
            stat = Path(name).stat()
        except OSError as error:
            raise LogError(f"{printable(name)} cannot be read: {error.strerror}") from error
        stats[name] = stat.st_ino, stat.st_size
    return stats


def _inodes(files: Mapping[str, tuple[int, int]]) -> list[int]:
    return [inode for inode, _ in files.values()]


def wanted_span(text: str, newest_us: int) -> tuple[int, int]:
    """The moments that `14:03`, `14:03:07` or a time of RFC 3339 means: from, and up to.

    A time of day, in UTC, is the last such before the newest decision. Raises SettingsError.
    """
    time_of_day = _TIME_OF_DAY.fullmatch(text)
    if time_of_day is None:
        try:
            at_us = moment_us(text)
        except ValueError as error:
            raise SettingsError(
                f"--at {text!r} is no time: write 14:03, 14:03:07 or 2026-01-31T14:03:07Z"
            ) from error
        return at_us, at_us + SECOND_US
    hours, minutes, seconds = (int(part or 0) for part in time_of_day.groups())
    if hours > 23 or minutes > 59 or seconds > 59:
        raise SettingsError(f"--at {text!r} is no time of day: the last is 23:59:59")
    at_us = newest_us // _DAY_US * _DAY_US + (hours * 3600 + minutes * 60 + seconds) * SECOND_US
    if at_us > newest_us:
        at_us -= _DAY_US
    return at_us, at_us + (SECOND_US if time_of_day[3] else 60 * SECOND_US)


def denial_of(decisions: Sequence[LoggedDecision], at: str = "") -> Denial | None:
    """The first denial at that time, else the last one of all; None if there is none.

    Raises SettingsError if `at` is no time.
    """
    indices = _denials(decisions)
    if at:
        start_us, end_us = wanted_span(at, decisions[-1].at_us if decisions else 0)
        indices = [index for index in indices if start_us <= decisions[index].at_us < end_us]
    elif indices:
        indices = [_first_of_its_run(decisions, indices)]
    return _denial(decisions, indices[0]) if indices else None


def nearest_denial(decisions: Sequence[LoggedDecision], at: str) -> Denial | None:
    """The denial that is nearest to that time; None if there is none at all.

    Raises SettingsError if `at` is no time.
    """
    indices = _denials(decisions)
    if not indices:
        return None
    wanted_us, _ = wanted_span(at, decisions[-1].at_us)
    return _denial(decisions, min(indices, key=lambda at: abs(decisions[at].at_us - wanted_us)))


def _denials(decisions: Sequence[LoggedDecision]) -> list[int]:
    """The places of those that denied."""
    return [index for index, each in enumerate(decisions) if _denied(each)]


def _denial(decisions: Sequence[LoggedDecision], index: int) -> Denial:
    """The denial there, with those that came after it."""
    decision = decisions[index]
    further, last_us = Counter[str](), decision.at_us
    until_us = decision.at_us + _reset_us(decision)
    for later in decisions[index + 1 :]:
        if not _denied(later) or later.at_us > until_us:
            break
        further[_decided_by(later)] += 1
        last_us = later.at_us
    return Denial(decision, further, last_us)


def _first_of_its_run(decisions: Sequence[LoggedDecision], indices: Sequence[int]) -> int:
    """The first of the denials that the last one belongs to: none passed in between."""
    first = indices[-1]
    for index in range(indices[-1] - 1, -1, -1):
        earlier = decisions[index]
        if not _denied(earlier) or earlier.at_us + _reset_us(earlier) < decisions[first].at_us:
            break
        first = index
    return first


def _denied(decision: LoggedDecision) -> bool:
    return decision.code != "OK"


def _reset_us(decision: LoggedDecision) -> int:
    if decision.fields.get("by") == "override":
        return _MOST_RESET_SECONDS * SECOND_US  # a ban holds until it is taken away
    reset = decision.fields.get("reset_seconds", 0)
    if not isinstance(reset, (int, float)) or not 0 <= reset <= _MOST_RESET_SECONDS:
        return 0
    return round(reset * SECOND_US)


def sentence(
    denial: Denial, entries: Sequence[Entry], now_us: int, hashed: HashValue | None = None
) -> str:
    """The denial in words. Times say that they are UTC; of another day than today it is told.

    `entries` are the entries that were asked about. `hashed` finds their values in a hashed log.
    """
    decision, further, last_us = denial.decision, denial.further, denial.last_us
    fields = decision.fields
    logged = in_log(entries, hashed if "hashed" in fields else None)
    at = _clock(decision.at_us, now_us)
    if decision.code != "OVER_LIMIT":
        text = f"answered {decision.code} at {at}: {_WHY.get(str(fields.get('by')), 'refused')}"
    elif "limit" not in fields:
        why = _overridden(fields) or _WHY.get(str(fields.get("by")), "no limit decided")
        text = f"denied at {at}: {why}"
    else:
        rule = _rule(decision, logged)
        for known, as_logged in zip(entries, logged, strict=True):
            if as_logged.value != known.value:  # whoever knows a value need not read its hash
                rule = rule.replace(as_logged.value, printable(known.value))
        text = f"denied at {at} by {rule}: {_in_turn(fields)}{_count(decision)}"
        if overridden := _overridden(fields):
            text += f", {overridden}"
    if further:
        verb = f"{further} further denial{'' if further == 1 else 's'}"
        text += f"; {verb} until {_clock(last_us, decision.at_us)}"
        if denial.further_by.keys() != {_decided_by(decision)}:
            listed = [
                f"{number} {_DECIDED_BY.get(by, f'by {printable(by)}')}"
                for by, number in denial.further_by.items()
            ]
            text += f" ({', '.join(listed)})"
    return text


def last_denials(lines: Sequence[str], most: int, now_us: int) -> list[str]:
    """The last denials in lines that a service has told, in words, the newest first.

    Of each caller there is only the last.
    """
    by_caller: dict[tuple[object, ...], str] = {}
    for decision in reversed(list(_readable(lines))):
        index = decision.fields.get("descriptor", 0)
        descriptors = decision.request.descriptors
        known = isinstance(index, int) and 0 <= index < len(descriptors)
        entries = descriptors[index if known else 0].entries if descriptors else ()
        caller = (decision.request.domain, entries)
        if caller not in by_caller:
            denial = Denial(decision, Counter(), decision.at_us)
            words = f"{path_text(entries)}: {sentence(denial, entries, now_us)}"
            by_caller[caller] = printable(f"{decision.request.domain} {words}")
            if len(by_caller) == most:
                break
    return list(by_caller.values())


def _decided_by(decision: LoggedDecision) -> str:
    return str(decision.fields.get("by", "count"))


_DECIDED_BY: Final = {
    "count": "by count",
    "local_cache": "by the local cache",
    "policy": "by failure policy",
    "override": "by override",
    "nothing": "before they were counted",
}
"""What has decided, in words, by what the log calls it."""


_WHY: Final = {
    "policy": "the failure policy decided, because the store gave no answer in time",
    "nothing": "the request was refused before it was counted",
}


def _overridden(fields: Mapping[str, object]) -> str:
    """Which overrides took part, in words; empty if none did."""
    overrides = fields.get("overrides")
    texts = []
    for override in overrides if isinstance(overrides, list) else []:
        if isinstance(override, dict):
            until = f" until {in_seconds(str(override['until']))}" if "until" in override else ""
            reason = f": {override['reason']}" if "reason" in override else ""
            who = f" by {override['who']}" if "who" in override else ""
            texts.append(f"{override.get('kind')} {override.get('id')}{until}{who}{reason}")
    return printable(f"by override ({'; '.join(texts)})") if texts else ""


def _rule(decision: LoggedDecision, entries: Sequence[Entry]) -> str:
    fields = decision.fields
    rule = f"`{fields['rule']}`" if "rule" in fields else "the limit that the caller brought"
    if source := str(fields.get("source", "")):
        where = _LINE_AND_COLUMN.sub(r"\1", source)
        rule += f" ({where})"
    index = fields.get("descriptor", 0)
    descriptors = decision.request.descriptors
    if isinstance(index, int) and 0 <= index < len(descriptors) and len(descriptors) > 1:
        other = descriptors[index]
        if other.entries and other.entries != tuple(entries):
            rule += f", for {path_text(other.entries)} in the same request"
    return rule


def _in_turn(fields: Mapping[str, object]) -> str:
    """Which limits had no room, where each was asked in its turn."""
    names = fields.get("in_turn")
    if not isinstance(names, list) or not names:
        return ""
    limit = fields.get("limit")
    first = limit.get("name") if isinstance(limit, dict) else None
    has_again = f"; {printable(str(first))} has again first: " if first else ": "
    return f"none of {printable(', '.join(map(str, names)))} has room{has_again}"


def _count(decision: LoggedDecision) -> str:
    fields = decision.fields
    try:
        limit = read_limit(fields["limit"])
        text = limit_text(limit)
        if limit.multiplier == 1:
            text = text.replace(" per ", " an " if limit.unit.name == "HOUR" else " a ", 1)
    except (KeyError, TypeError, ValueError, AttributeError):
        text = "a limit"
    reserve, limit_fields = fields.get("reserve"), fields["limit"]
    if isinstance(reserve, dict) and reserve.get("too_large"):
        return f"{text}, of which one reservation may not hold {reserve.get('hits')}"
    if "used" not in fields:
        return f"{text}, {_WHY['policy']}"
    wait = lasting(whole_seconds(_reset_us(decision)))
    known = ", known without asking the store" if fields.get("by") == "local_cache" else ""
    held = isinstance(limit_fields, dict) and limit_fields.get("reservations")
    used = "used or held" if held else "used"
    return f"{text}, {fields['used']} {used}, {wait} to wait{known}"


def _clock(at_us: int, day_us: int) -> str:
    """A time of day, with its day if that is another one than this one."""
    moment = datetime.datetime.fromtimestamp(at_us // SECOND_US, datetime.UTC)
    same = at_us // _DAY_US == day_us // _DAY_US
    return f"{moment:%H:%M:%S} UTC" if same else f"{moment:%H:%M:%S} UTC on {moment:%Y-%m-%d}"
