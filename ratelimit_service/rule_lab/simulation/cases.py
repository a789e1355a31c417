"""Tests of rules as people write them: from a `NAME.test.yaml` to cases and their steps.

What must not live here: how a case is run (`rule_test_run`). The file's form is told in
docs/testing-rules.md.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratelimit_service.errors import RateLimitError, RulesError, SettingsError
from ratelimit_service.model import MAX_EXACT, Code, Descriptor, Entry, Limit, Request, Unit
from ratelimit_service.rules.fields import Fields, document
from ratelimit_service.rules.files import TESTS, read_rule_files
from ratelimit_service.rules.paths import Source
from ratelimit_service.rules.problem import listed, quoted
from ratelimit_service.rules.reader import Reader, Unreadable
from ratelimit_service.rules.schema import parse
from ratelimit_service.settings import Settings, parse_duration, settings

__all__ = [
    "Case",
    "CaseFile",
    "CaseReservation",
    "CaseStep",
    "CasesError",
    "Expected",
    "find_case_files",
    "read_cases",
]

START = "2026-01-01T00:00:00Z"
"""When cases start that say nothing: a Thursday, at which windows of up to a week begin."""

_FILE_KEYS = ("rules", "settings", "start", "cases")
_CASE_KEYS = ("name", "start", "settings", "steps")
_SETTLED_KEYS = ("held", "released", "overrun")
_EXPECT_KEYS = (
    "expect",
    "statuses",
    "rule",
    "limit",
    "remaining",
    "reset",
    "retry_after",
    "headers",
    "paid",
)
_ASK_KEYS = ("at", "domain", "descriptors", "hits", "override", "times", *_EXPECT_KEYS)
_RESERVE_KEYS = ("at", "reserve", "domain", "descriptors", "hits", "ttl", "expect")
_SETTLE_KEYS = ("at", "settle", "hits", *_SETTLED_KEYS)
_STEP_KEYS = tuple(dict.fromkeys((*_ASK_KEYS, *_RESERVE_KEYS, *_SETTLE_KEYS)))
_OVERRIDE_KEYS = ("unit", "unit_multiplier", "requests_per_unit")
_OVERRIDE = "{unit: minute, requests_per_unit: 20}"
_POSITIONS = {
    key: position
    for position, keys in (
        ("in override", _OVERRIDE_KEYS),
        ("in a step", _STEP_KEYS),
        ("in a case", _CASE_KEYS),
        ("at the top of the file", _FILE_KEYS),
    )
    for key in keys
}
_WITHIN = "counters know times from 1970 to the year 2255"
_SETTING_GROUPS = ("Decisions", "Answers")
_MAX_TIMES = 1_000_000
_CODES = {"OK": Code.OK, "OVER_LIMIT": Code.OVER_LIMIT}


class CasesError(RateLimitError):
    """Case files that cannot be run; each line of the text is a problem."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a step says of the answer; None where it says nothing. Durations are microseconds."""

    code: Code | None = None
    statuses: tuple[Code, ...] | None = None
    rule: str | None = None
    limit: int | None = None
    remaining: int | None = None
    reset_us: int | None = None
    retry_after_us: int | None = None
    headers: Mapping[str, str] | None = None
    paid: str | None = None
    held: int | None = None
    released: int | None = None
    overrun: int | None = None


@dataclass(frozen=True, slots=True)
class CaseReservation:
    """Hits that a step holds under a name, or settles. A `ttl_us` of 0 is the longest."""

    name: str
    hits: int
    ttl_us: int = 0
    settles: bool = False


@dataclass(frozen=True, slots=True)
class CaseStep:
    """One request, asked `times` times at one moment; `at_us` counts from the case's start.

    With a `reservation` its hits are held or settled.
    """

    source: Source
    at_us: int
    request: Request
    times: int
    expected: Expected
    reservation: CaseReservation | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Steps that share counters, which are all new at the start (microseconds since 1970)."""

    name: str
    source: Source
    start_us: int
    settings: Settings
    steps: tuple[CaseStep, ...]


@dataclass(frozen=True, slots=True)
class CaseFile:
    """The cases of one file, and the rules that they are about."""

    path: Path
    rules: Path
    cases: tuple[Case, ...]


def find_case_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and of directories all `*.test.yaml` below.

    Raises RulesError if there are none.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = sorted(path.rglob(f"*{TESTS}"))
            if not below:
                raise RulesError(f"{path}: there is no file *{TESTS} in this directory")
            files += below
        elif path.exists():
            files.append(path)
        else:
            raise RulesError(f"{path}: there is no such file or directory")
    return files


def read_cases(path: Path, common: Settings | None = None) -> CaseFile:
    """Reads a case file; `common` are the settings where it says nothing.

    Raises CasesError with all that is wrong in it, and RulesError if it is none or cannot be read.
    """
    reader = Reader(str(path), needs="rules and cases")
    cases: tuple[Case, ...] = ()
    rules = path
    data = _bytes(path)
    try:
        root = document(reader, reader.composed(data), _FILE_KEYS, _POSITIONS)
        if "cases" not in root and parse(str(path), data).domain:
            raise RulesError(_of_rules(path))
        rules = _rules(root, path)
        cases = tuple(
            _cases(root, _start_us(root, _START_US), _settings(root, common or Settings()))
        )
        if not cases and not reader.problems:
            root.report("no_cases", "cases are missing: write what is asked and expected")
    except Unreadable:
        pass
    if problems := [problem for problem in reader.problems if not problem.hint]:
        raise CasesError("\n".join(map(str, sorted(problems))))
    return CaseFile(path, rules, cases)


def _of_rules(path: Path) -> str:
    """What to do with a rule file where one of cases is asked for."""
    tests = path.with_name(f"{path.stem}{TESTS}")
    if tests.exists():
        return f"{path} holds rules: their tests are run by ratelimit test {tests}"
    return (
        f"{path} holds rules: write tests of them into {tests} and run that, or look for "
        f"mistakes with ratelimit lint {path}"
    )


def _bytes(path: Path) -> bytes:
    """Read as a rule file is: only a regular file, of a bounded size."""
    read = read_rule_files(path)
    for name, why in read.unread.items():
        raise RulesError(f"{name} cannot be read: {why}")
    return read.files[str(path)]


def _rules(root: Fields, path: Path) -> Path:
    """The rules a file names, relative to itself; else those of its own name."""
    if root.given("rules"):
        rules = path.parent / root.text("rules")
        if not rules.exists():
            message = f"there are no rules at {quoted(str(rules))}: rules is relative to this file"
            root.report("rules", message, value="rules")
        return rules
    rules = path.with_name(path.name.removesuffix(TESTS) + ".yaml")
    if rules == path or not rules.exists():
        root.report("rules", "rules is missing: name the rule file or directory that is tested")
    return rules


def _cases(root: Fields, start_us: int, common: Settings) -> Iterator[Case]:
    names: dict[str, Source] = {}
    for fields in root.items("cases", _CASE_KEYS, deeper=False):
        name = fields.text("name")
        if not name:
            fields.report("name", "name is missing: say in a few words what the case proves")
        elif name in names:
            fields.report("name", f"a case at {names[name]} has the same name", value="name")
        names[name] = fields.source()
        begin_us = _start_us(fields, start_us)
        yield Case(
            name,
            fields.source(),
            begin_us,
            _settings(fields, common),
            tuple(_steps(fields, begin_us)),
        )


def _steps(case: Fields, start_us: int) -> Iterator[CaseStep]:
    if not case.given("steps"):
        case.report("steps", "steps are missing: write what is asked, and when")
    now_us, domain = 0, ""
    reserved: dict[str, Request] = {}
    settled: set[str] = set()
    for fields in case.items("steps", _STEP_KEYS, deeper=False):
        at_us = _duration_us(fields, "at")
        if at_us is not None and at_us < now_us:
            message = "a step cannot be before the one above it: at counts from the case's start"
            fields.report("at", message, value="at")
        elif at_us is not None and start_us + at_us >= MAX_EXACT:
            fields.report("at", f"this step is too late: {_WITHIN}", value="at")
        now_us = at_us if at_us is not None else now_us
        if "settle" in fields:
            _only(fields, _SETTLE_KEYS, "settles")
            yield _settling(fields, now_us, reserved)
            settled |= {fields.text("settle")} & reserved.keys()
            continue
        domain = fields.text("domain") or domain
        if not domain:
            fields.report("domain", "domain is missing; later steps may leave it out")
        if "reserve" in fields:
            _only(fields, _RESERVE_KEYS, "reserves")
            if fields.text("reserve") in settled:
                message = f"{quoted(fields.text('reserve'))} is settled above: take another name"
                fields.report("reserve", message, value="reserve")
            yield _reserving(fields, domain, now_us, reserved)
            continue
        _only(fields, _ASK_KEYS, "neither reserves nor settles")
        yield CaseStep(
            fields.source(),
            now_us,
            _request(fields, domain, _hits),
            fields.number("times", 1, _MAX_TIMES),
            _expected(fields),
        )


def _only(fields: Fields, keys: Sequence[str], does: str) -> None:
    """Notes what may stand in a step, but not in one that does this."""
    for name in fields.among(_STEP_KEYS):
        if name not in keys:
            message = f"{name} is no key of a step that {does}: allowed are {listed(keys)}"
            fields.report("key", message, key=name)


def _reserving(fields: Fields, domain: str, at_us: int, reserved: dict[str, Request]) -> CaseStep:
    """A step that holds hits; what it asks with is noted under its name."""
    name = fields.text("reserve")
    if not name:
        fields.report("reserve", "reserve is empty: give the reservation a name", key="reserve")
    if not fields.given("expect") and not fields.misspelt("expect"):
        fields.report("expect", "expect is missing: write OK or OVER_LIMIT")
    ttl_us = _duration_us(fields, "ttl")
    if ttl_us == 0:
        fields.report("ttl", "ttl must be more than 0: leave it out for the longest", value="ttl")
    request = _request(fields, domain, lambda _, count: [None] * count)
    if name:
        reserved[name] = request
    reservation = CaseReservation(name, _reserved_hits(fields, "held"), ttl_us or 0)
    expected = Expected(_code(fields, "expect"))
    return CaseStep(fields.source(), at_us, request, 1, expected, reservation)


def _settling(fields: Fields, at_us: int, reserved: Mapping[str, Request]) -> CaseStep:
    """A step that settles what a step above has reserved, by its name."""
    name = fields.text("settle")
    request = reserved.get(name)
    if request is None:
        known = f"reserved are {listed(reserved)}" if reserved else "write reserve in a step above"
        message = f"nothing is reserved as {quoted(name)} above: {known}"
        fields.report("settle", message, value="settle")
        request = Request("", ())
    expected = Expected(
        held=fields.number("held", 0) if fields.given("held") else None,
        released=fields.number("released", 0) if fields.given("released") else None,
        overrun=fields.number("overrun", 0) if fields.given("overrun") else None,
    )
    reservation = CaseReservation(name, _reserved_hits(fields, "used"), settles=True)
    return CaseStep(fields.source(), at_us, request, 1, expected, reservation)


def _reserved_hits(fields: Fields, are: str) -> int:
    if not fields.given("hits") and not fields.misspelt("hits"):
        fields.report("hits", f"hits is missing: write how many are {are}")
    return fields.number("hits", 0)


def _request(
    fields: Fields, domain: str, hits_of: Callable[[Fields, int], Sequence[int | None]]
) -> Request:
    """What the step asks with."""
    if not fields.given("descriptors"):
        fields.report("descriptors", "descriptors is missing: write [{key: value}]")
    elif fields.node("descriptors").value == []:
        message = "descriptors is empty: at least one is needed"
        fields.report("descriptors", message, value="descriptors")
    entries = fields.entries("descriptors")
    if any(not key for pairs in entries for key, _ in pairs):
        message = "descriptors: a key is empty: every entry needs one"
        fields.report("descriptors", message, value="descriptors")
    limit = _override(fields)
    descriptors = tuple(
        Descriptor(
            tuple(Entry(key, value) for key, value in pairs),
            limit,
            hits_addend=None if hits is None else abs(hits),
            is_negative_hits=hits is not None and hits < 0,
        )
        for pairs, hits in zip(entries, hits_of(fields, len(entries)), strict=True)
    )
    return Request(domain, descriptors)


def _hits(fields: Fields, descriptors: int) -> Sequence[int | None]:
    """The hits of each descriptor: 0 for a peek, below 0 to give back, None without a word."""
    if not fields.given("hits"):
        return [None] * descriptors
    several = fields.numbers("hits", -_MAX_TIMES)
    if several is None:
        return [fields.number("hits", -_MAX_TIMES)] * descriptors
    if len(several) != descriptors:
        message = (
            f"hits must have a number for each of {descriptors} descriptors, not {len(several)}"
        )
        fields.report("hits", message, value="hits")
        return [None] * descriptors
    return several


def _override(fields: Fields) -> Limit | None:
    """The limit that the descriptors bring themselves, if they do."""
    if not fields.given("override"):
        return None
    given = fields.mapping("override", _OVERRIDE_KEYS)
    for name in ("unit", "requests_per_unit"):
        if not given.given(name):
            given.report("override", f"{name} is missing: write both, as {_OVERRIDE}")
    units = {unit.name.lower(): unit for unit in Unit}
    unit = units[given.one_of("unit", units, "second")]
    limit = Limit(given.number("requests_per_unit", 0), unit, given.number("unit_multiplier", 1))
    if limit.window_us >= MAX_EXACT:
        message = "the window must be shorter than 285 years"
        given.report("override", message, value="unit_multiplier")
    return limit


def _expected(fields: Fields) -> Expected:
    if not any(fields.given(key) or fields.misspelt(key) for key in _EXPECT_KEYS):
        fields.report("expect", f"nothing is expected: write one of {listed(_EXPECT_KEYS)}")
    headers = dict(fields.text_pairs("headers")) if fields.given("headers") else None
    return Expected(
        _code(fields, "expect"),
        _statuses(fields),
        fields.text("rule") if fields.given("rule") else None,
        fields.number("limit", 0) if fields.given("limit") else None,
        fields.number("remaining", 0) if fields.given("remaining") else None,
        _duration_us(fields, "reset"),
        _duration_us(fields, "retry_after"),
        headers,
        fields.text("paid") if fields.given("paid") else None,
    )


def _code(fields: Fields, name: str) -> Code | None:
    if not fields.given(name):
        return None
    code = _CODES.get(fields.text(name).upper())
    if code is None:
        fields.report(name, f"{name} must be OK or OVER_LIMIT", value=name)
    return code


def _statuses(fields: Fields) -> tuple[Code, ...] | None:
    """A list of OK and OVER_LIMIT, one for each descriptor."""
    if not fields.given("statuses"):
        return None
    words = fields.texts("statuses")
    codes = [_CODES.get(word.upper()) for word in words or ()]
    if words is None or None in codes:
        message = "statuses is a list of OK and OVER_LIMIT, one for each descriptor"
        fields.report("statuses", message, value="statuses")
    return tuple(code for code in codes if code is not None)


def _duration_us(fields: Fields, name: str) -> int | None:
    if not fields.given(name):
        return None
    try:
        return parse_duration(fields.text(name))
    except SettingsError as error:
        fields.report(name, f"{name}: {error}", value=name)
        return None


def _start_us(fields: Fields, default_us: int) -> int:
    """A moment of RFC 3339 with its offset, as 2026-03-29T01:30:00+01:00."""
    if not fields.given("start"):
        return default_us
    try:
        start_us = _moment_us(fields.text("start"))
    except (ValueError, OverflowError):  # OverflowError: beyond the year 9999 in UTC, or before 1
        message = f"start must be a time with its offset from UTC, as {START}"
        fields.report("start", message, value="start")
        return default_us
    if not 0 <= start_us < MAX_EXACT:
        message = f"start is too {'early' if start_us < 0 else 'late'}: {_WITHIN}"
        fields.report("start", message, value="start")
        return default_us
    return start_us


def _moment_us(text: str) -> int:
    moment = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    if moment.tzinfo is None:
        raise ValueError(text)
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_START_US = _moment_us(START)


def _settings(fields: Fields, base: Settings) -> Settings:
    """`base` with the settings that a mapping names, as they are called in the rule service."""
    if not fields.given("settings"):
        return base
    known = {
        setting.flag.removeprefix("--").replace("-", "_"): setting
        for setting in settings()
        if setting.group in _SETTING_GROUPS
    }
    given = fields.mapping("settings", tuple(known))
    chosen: dict[str, Any] = {}  # each as its setting declares
    for name, setting in known.items():
        if given.given(name):
            try:
                chosen[setting.name] = setting.parse(given.text(name))
            except SettingsError as error:
                given.report("settings", f"{name}: {error}", value=name)
    return replace(base, **chosen)
