"""Tests of rules: what `ratelimit test` reads, asks, compares and prints.

It is long because most tests have a file of rules, a file of cases, and what is printed of them.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ratelimit_service.cli.results import FORMATS, coverage_text
from ratelimit_service.errors import RulesError
from ratelimit_service.rule_lab.simulation.cases import CasesError, find_case_files, read_cases
from ratelimit_service.rule_lab.simulation.rule_test_run import Result, RuleTestRun

DOCUMENT = Path(__file__).parents[3] / "docs" / "testing-rules.md"

RULES = """domain: api
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 20}
- key: address
  rate_limit: {unit: second, requests_per_unit: 5, name: per-address}
- key: client
  rate_limit: {unit: day, per: calendar, time_zone: Europe/Berlin, requests_per_unit: 1}
- key: job
  rate_limit: {unit: minute, requests_per_unit: 2, algorithm: concurrency}
- key: spare
  rate_limit: {unlimited: true}
"""


def run(directory: Path, cases: str, rules: str = RULES) -> tuple[list[Result], RuleTestRun]:
    """Runs a file's cases against rules beside it."""
    (directory / "api.yaml").write_text(rules)
    path = directory / "api.test.yaml"
    path.write_text(textwrap.dedent(cases))
    test_run = RuleTestRun()
    return list(test_run.run(read_cases(path))), test_run


def text_of(results: Sequence[Result], shape: str = "text") -> str:
    """What is printed of results."""
    return "\n".join(FORMATS[shape](results))


def documented() -> str:
    """The example in the documents."""
    example = re.search(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example
    return example[1]


def test_documented_example(tmp_path: Path) -> None:
    """The example in the documents passes, and fails as shown there if the rule says 10."""
    results, _ = run(tmp_path, documented())
    assert text_of(results) == "1 case passed"
    results, _ = run(tmp_path, documented(), RULES.replace("20}", "10}"))
    shown = re.search(r"the answer is:\n\n(.*?)\n\nThe line", DOCUMENT.read_text(), re.DOTALL)
    assert shown
    assert text_of(results).replace(str(tmp_path), "rules") == textwrap.dedent(shown[1])


def problems(directory: Path, cases: str) -> list[str]:
    """What is said of a file that cannot be run, without its path."""
    with pytest.raises(CasesError) as raised:
        run(directory, cases)
    return str(raised.value).replace(f"{directory}/", "").split("\n")


def test_documented_keys(tmp_path: Path) -> None:
    """The documents list every key that a file, a case and a step may have, and no other."""
    rows = re.findall(r"^\| (`[^|]*`) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    lines = problems(tmp_path, "cases: [{nope: 1, name: a, steps: [{nope: 1}]}]\nnope: 1")
    allowed = {
        word
        for line in lines
        for words in re.findall(r"is no key: (?:did.*\? A|a)llowed are ([\w, ]*)", line)
        for word in words.strip().split(", ")
    }
    assert allowed == documented


def test_hits_and_overrides(tmp_path: Path) -> None:
    """Each descriptor may charge another number of hits, and bring a limit of its own."""
    results, _ = run(
        tmp_path,
        """\
        cases:
        - name: hits
          steps:
          - {domain: api, descriptors: [{user: a}, {address: b}], hits: [3, 5], expect: OK}
          - {descriptors: [{user: a}], hits: 0, expect: OK, remaining: 17}
          - {descriptors: [{address: b}], expect: OVER_LIMIT, rule: per-address}
        - name: a limit of its own
          steps:
          - domain: api
            descriptors: [{user: a}]
            override: {unit: minute, unit_multiplier: 2, requests_per_unit: 1}
            expect: OK
            rule: none
            limit: 1
            reset: 2m
        """,
    )
    assert text_of(results) == "2 cases passed"


STREAMS = """\
domain: llm
reservations: true
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1000}
- key: half
  rate_limit: {unit: hour, requests_per_unit: 1000, max_reservation: 50%, max_reservation_ttl: 10s}
- key: model
  rate_limit: {unit: hour, requests_per_unit: 1000, reservations: false}
- key: watched
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 10}
- key: quota
  quota_mode: true
  rate_limit: {unit: hour, requests_per_unit: 10}
- key: place
  rate_limit: {unit: hour, requests_per_unit: 1, algorithm: concurrency}
"""


def test_documented_reservations(tmp_path: Path) -> None:
    """The example of reservations in the documents passes, and fails where it says too little."""
    example = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[1]
    (tmp_path / "llm.yaml").write_text(STREAMS)
    results, test_run = run(tmp_path, example)
    assert text_of(results) == "1 case passed"
    assert "user" not in {rule.path for rule in test_run.coverage.uncovered}

    results, _ = run(tmp_path, example.replace("released: 150", "held: 900, overrun: 1"))
    assert text_of(results).replace(f"{tmp_path}/", "") == (
        "api.test.yaml:7:5: room beside what is held: step 3 at 30s: it met rule user at "
        "llm.yaml:5:3 of domain llm\n"
        "  - held: 900\n"
        "  + held: 800\n"
        "  - overrun: 1\n"
        "  + overrun: 0\n"
        "1 case, 1 failed"
    )
    results, _ = run(tmp_path, example.replace("300,", "200,"))
    assert text_of(results).split("\n")[1:-1] == ["  - expect: OVER_LIMIT", "  + expect: OK"]


def test_reservations(tmp_path: Path) -> None:
    """They are held and settled as by the service: by its limits, once, and until they end."""
    results, _ = run(
        tmp_path,
        """\
        cases:
        - name: a settle counts once, also where the hold has ended
          steps:
          - {domain: llm, descriptors: [{user: a}], reserve: a, hits: 800, ttl: 10s, expect: OK}
          - {reserve: b, descriptors: [{user: a}], hits: 200, expect: OK}
          - {at: 10s, settle: a, hits: 100, held: 0, released: 0, overrun: 0}
          - {settle: a, hits: 100}
          - {settle: b, hits: 250, held: 200, released: 0, overrun: 50}
          - {descriptors: [{user: a}], hits: 0, remaining: 650}
        - name: the same name extends
          steps:
          - {domain: llm, descriptors: [{user: a}], reserve: a, hits: 800, ttl: 10s, expect: OK}
          - {at: 9s, descriptors: [{user: a}], reserve: a, hits: 900, ttl: 10s, expect: OK}
          - {at: 18s, settle: a, hits: 0, held: 900, released: 900}
          - {descriptors: [{user: a}], hits: 0, remaining: 1000}
        - name: bounds of a limit, and of the settings
          settings: {max_reservation_ttl: 5s}
          steps:
          - {domain: llm, descriptors: [{half: a}], reserve: a, hits: 501, expect: OVER_LIMIT}
          - {descriptors: [{half: a}], reserve: a, hits: 500, ttl: 10s, expect: OK}
          - {at: 4s, descriptors: [{half: a}], hits: 0, remaining: 500}
          - {at: 5s, descriptors: [{half: a}], hits: 0, remaining: 1000}
        - name: not held, only settled
          steps:
          - domain: llm
            descriptors: [{watched: a}, {quota: a}, {model: a}]
            reserve: a
            hits: 8
            expect: OK
          - {descriptors: [{watched: a}], hits: 0, remaining: 10}
          - {descriptors: [{quota: a}], hits: 0, remaining: 10}
          - {descriptors: [{model: a}], hits: 0, remaining: 1000}
          - {settle: a, hits: 3, held: 0}
          - {descriptors: [{watched: a}], hits: 0, remaining: 7}
          - {descriptors: [{quota: a}], hits: 0, remaining: 7}
          - {descriptors: [{model: a}], hits: 0, remaining: 997}
        - name: one place each
          steps:
          - {domain: llm, descriptors: [{place: a}], reserve: a, hits: 8, expect: OK}
          - {descriptors: [{place: a}], reserve: b, hits: 8, expect: OVER_LIMIT}
          - {settle: a, hits: 8}
          - {descriptors: [{place: a}], reserve: b, hits: 8, expect: OK}
        - name: who reserves again takes no other place, and who was denied takes one
          steps:
          - {domain: llm, descriptors: [{place: a}], reserve: a, hits: 8, expect: OK}
          - {descriptors: [{place: a}], reserve: a, hits: 8, expect: OK}
          - {descriptors: [{place: a}], reserve: b, hits: 8, expect: OVER_LIMIT}
          - {settle: a, hits: 8}
          - {descriptors: [{place: a}], reserve: b, hits: 8, expect: OK}
          - {descriptors: [{place: a}], reserve: c, hits: 8, expect: OVER_LIMIT}
        """,
        STREAMS,
    )
    assert text_of(results) == "6 cases passed"


def test_reservations_that_cannot_be_read(tmp_path: Path) -> None:
    """What is wrong with them is said where it stands."""
    lines = problems(
        tmp_path,
        """\
        cases:
        - name: one
          steps:
          - {settle: a, hits: 1}
          - {domain: llm, descriptors: [{user: a}], reserve: a, ttl: 0s, times: 2}
          - {descriptors: [{user: a}], reserve: "", hits: [1], rule: user, expect: OK}
          - {settle: b, hits: 1, expect: OK}
          - {settle: a, domain: llm}
          - {descriptors: [{user: a}], reserve: a, hits: 1, expect: OK}
          - {descriptors: [{user: a}], ttl: 5s, expect: OK}
          - {descriptors: [{user: a}], settle: a, reserve: c, hits: 1}
        """,
    )
    to_reserve = "allowed are at, reserve, domain, descriptors, hits, ttl, expect"
    to_settle = "allowed are at, settle, hits, held, released, overrun"
    assert [re.sub(r" \[\w+\]$", "", line) for line in lines] == [
        "api.test.yaml:4:14: nothing is reserved as 'a' above: write reserve in a step above",
        "api.test.yaml:5:5: expect is missing: write OK or OVER_LIMIT",
        "api.test.yaml:5:5: hits is missing: write how many are held",
        "api.test.yaml:5:62: ttl must be more than 0: leave it out for the longest",
        f"api.test.yaml:5:66: times is no key of a step that reserves: {to_reserve}",
        "api.test.yaml:6:32: reserve is empty: give the reservation a name",
        "api.test.yaml:6:51: hits must be a whole number from 0 to 4294967295, without quotes",
        f"api.test.yaml:6:56: rule is no key of a step that reserves: {to_reserve}",
        "api.test.yaml:7:14: nothing is reserved as 'b' above: reserved are a",
        f"api.test.yaml:7:26: expect is no key of a step that settles: {to_settle}",
        "api.test.yaml:8:5: hits is missing: write how many are used",
        f"api.test.yaml:8:17: domain is no key of a step that settles: {to_settle}",
        "api.test.yaml:9:41: 'a' is settled above: take another name",
        "api.test.yaml:10:32: ttl is no key of a step that neither reserves nor settles: allowed "
        "are at, domain, descriptors, hits, override, times, expect, statuses, rule, limit, "
        "remaining, reset, retry_after, headers, paid",
        f"api.test.yaml:11:6: descriptors is no key of a step that settles: {to_settle}",
        f"api.test.yaml:11:43: reserve is no key of a step that settles: {to_settle}",
    ]


def test_hits_and_overrides_that_cannot_be_read(tmp_path: Path) -> None:
    """What is wrong with hits and overrides is said where it stands."""
    lines = problems(
        tmp_path,
        """\
        cases:
        - name: one
          steps:
          - {domain: api, descriptors: [{user: a}, {user: b}], hits: [1], expect: OK}
          - {descriptors: [{user: a}], hits: [many], expect: OK}
          - {descriptors: [{user: a}], override: {unit: fortnight}, expect: OK}
          - descriptors: [{user: a}]
            override: {unit: year, unit_multiplier: 286, requests_per_unit: 1}
            expect: OK
        """,
    )
    assert [re.sub(r" \[\w+\]$", "", line) for line in lines] == [
        "api.test.yaml:4:62: hits must have a number for each of 2 descriptors, not 1",
        "api.test.yaml:5:39: hits must be whole numbers from -1000000 to 4294967295, without "
        "quotes",
        "api.test.yaml:6:42: requests_per_unit is missing: write both, as {unit: minute, "
        "requests_per_unit: 20}",
        "api.test.yaml:6:49: unit 'fortnight' is unknown: allowed are second, minute, hour, day, "
        "week, month, year",
        "api.test.yaml:8:45: the window must be shorter than 285 years",
    ]


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    """A file that cannot be run says all that is wrong with it, each by line and column."""
    lines = problems(
        tmp_path,
        """\
        start: yesterday
        cases:
        - name: one
          steps:
          - {at: 5s, domain: api, descriptors: [{user: a}], expect: NO}
          - {at: 4s, descriptors: {user: a}, expect: OK, times: 0}
          - {at: soon, descriptors: [[a]]}
        - {name: one, settings: {near_limit_ratio: 7, grpc: x}}
        """,
    )
    assert [re.sub(r" \[\w+\]$", "", line) for line in lines] == [
        "api.test.yaml:1:8: start must be a time with its offset from UTC, as 2026-01-01T00:00:00Z",
        "api.test.yaml:5:61: expect must be OK or OVER_LIMIT",
        "api.test.yaml:6:10: a step cannot be before the one above it: at counts from the case's "
        "start",
        "api.test.yaml:6:27: descriptors must be a list of mappings",
        "api.test.yaml:6:57: times must be a whole number from 1 to 1000000, without quotes",
        "api.test.yaml:7:5: nothing is expected: write one of expect, statuses, rule, limit, "
        "remaining, reset, retry_after, headers, paid",
        "api.test.yaml:7:10: at: 'soon' is no duration: write a number and us, ms, s, m, h, d or "
        "w: 10ms",
        "api.test.yaml:7:31: descriptors: write {key: value} here",
        "api.test.yaml:8:3: steps are missing: write what is asked, and when",
        "api.test.yaml:8:10: a case at api.test.yaml:3:3 has the same name",
        "api.test.yaml:8:44: near_limit_ratio: '7' is no number from 0 to 1",
        "api.test.yaml:8:47: 'grpc' is no key: allowed are failure_policy, count_denied, "
        "reservations, max_reservation_ttl, shadow_mode, quota_mode, near_limit_ratio, "
        "headers, denial_body, "
        "limit_response_headers, limit_header, remaining_header, "
        "reset_header, reset_value, dynamic_metadata, decision_metadata, denial_quota",
    ]


def test_a_misspelt_key_is_told_once(tmp_path: Path) -> None:
    """A step that says `expects` is told of that word, and not that it expects nothing."""
    (line,) = problems(
        tmp_path,
        """\
        cases:
        - name: one
          steps:
          - {at: 0s, domain: api, descriptors: [{user: a}], expects: OK}
        """,
    )

    assert "'expects' is no key: did you mean 'expect'? Allowed are at, domain" in line


@pytest.mark.parametrize(
    ("start", "at", "problem"),
    [
        ("9999-12-31T23:59:59Z", "0s", "1:8: start is too late"),
        ("9999-12-31T23:59:59-14:00", "0s", "1:8: start is too late"),
        ("0001-01-01T00:00:00+14:00", "0s", "1:8: start is too early"),
        ("1969-12-31T23:59:59Z", "0s", "1:8: start is too early"),
        ("2255-06-05T00:00:00Z", "1d", "5:10: this step is too late"),
    ],
)
def test_times_that_counters_do_not_know(tmp_path: Path, start: str, at: str, problem: str) -> None:
    """A time that is no time of the service's is told where it stands."""
    (line,) = problems(
        tmp_path,
        f"""\
        start: {start}
        cases:
        - name: one
          steps:
          - {{at: {at}, domain: api, descriptors: [{{user: a}}], expect: OK}}
        """,
    )
    assert problem in line
    assert "counters know times from 1970 to the year 2255" in line


@pytest.mark.parametrize(
    ("descriptors", "problem"),
    [
        ("[]", "descriptors is empty: at least one is needed"),
        ("[{user: a}, {'': a}]", "a key is empty: every entry needs one"),
        ("[[{user: a}, {~: a}, {'': b}]]", "a key is empty: every entry needs one"),
    ],
)
def test_what_the_service_refuses(tmp_path: Path, descriptors: str, problem: str) -> None:
    """What nobody can ask is no step."""
    (line,) = problems(
        tmp_path,
        f"""\
        cases:
        - name: one
          steps:
          - {{domain: api, descriptors: {descriptors}, expect: OK}}
        """,
    )
    assert problem in line


def test_what_can_be_expected(tmp_path: Path) -> None:
    """Each thing that a step may expect is compared, and shown in the file's own words."""
    results, _ = run(
        tmp_path,
        """\
        settings: {limit_response_headers: true}
        cases:
        - name: all as it is
          steps:
          - domain: api
            descriptors: [{user: a}, {address: b}, {nobody: c}]
            statuses: [OK, OK, OK]
            expect: OK
            rule: per-address
            limit: 5
            remaining: 4
            reset: 1s
            headers: {ratelimit-limit: "5"}
          - {descriptors: [{address: b}], hits: 0, remaining: 4}
          - {descriptors: [{address: b}], hits: -1, remaining: 5}
          - {descriptors: [{address: b}], hits: 6, expect: OVER_LIMIT, retry_after: 1s}
          - {descriptors: [{nobody: c}], rule: none}
        - name: nothing as it is
          steps:
          - domain: api
            descriptors: [{user: a}]
            statuses: [OVER_LIMIT]
            expect: OVER_LIMIT
            rule: per-address
            limit: 5
            remaining: 4
            reset: 1h
            retry_after: 1s
            headers: {RateLimit-Limit: "5", other: "1"}
        """,
    )
    assert results[0].passed
    assert [(each.key, each.expected, each.got) for each in results[1].differences] == [
        ("expect", "OVER_LIMIT", "OK"),
        ("statuses", "[OVER_LIMIT]", "[OK]"),
        ("rule", "per-address", "user"),
        ("limit", "5", "20"),
        ("remaining", "4", "19"),
        ("reset", "1h", "1m"),
        ("retry_after", "1s", "none"),
        ("headers.RateLimit-Limit", "5", "20"),
        ("headers.other", "1", "none"),
    ]


def test_time_passes_only_in_the_file(tmp_path: Path) -> None:
    """Calendars, leases and windows follow the case's start and its steps, in each case anew."""
    results, _ = run(
        tmp_path,
        """\
        cases:
        - name: midnight in Berlin
          start: 2026-03-28T22:59:00Z
          steps:
          - {domain: api, descriptors: [{client: a}], expect: OK, retry_after: 1s}
        - name: a day of 23 hours
          start: 2026-03-28T23:00:00Z
          steps:
          - {domain: api, descriptors: [{client: a}], expect: OK, reset: 23h}
          - {at: 22h59m59s, descriptors: [{client: a}], expect: OVER_LIMIT, retry_after: 1s}
          - {at: 23h, descriptors: [{client: a}], expect: OK, reset: 1d}
        - name: leases live for a minute, or until they are given back
          steps:
          - {domain: api, descriptors: [{job: a}], times: 2, expect: OK, remaining: 0}
          - {at: 30s, descriptors: [{job: a}], expect: OVER_LIMIT, retry_after: 30s}
          - {at: 30s, descriptors: [{job: a}], hits: -1, expect: OK}
          - {at: 30s, descriptors: [{job: a}], expect: OK}
          - {at: 60s, descriptors: [{job: a}], expect: OK}
        """,
    )
    assert [result.passed for result in results] == [False, True, True]
    assert [each.key for each in results[0].differences] == ["retry_after"]


def test_times_are_requests(tmp_path: Path) -> None:
    """Of `times` requests each must be answered as expected; the first that is not is named."""
    results, _ = run(
        tmp_path,
        """\
        cases:
        - name: more than there is
          steps:
          - {at: 90s, domain: api, descriptors: [{user: a}], times: 30, expect: OK, remaining: 0}
        """,
    )
    assert "step 1 at 1m30s, request 21 of 30: it met rule user at" in text_of(results)


def test_coverage(tmp_path: Path) -> None:
    """Coverage names the rules that no case has met."""
    _, test_run = run(
        tmp_path,
        """\
        cases:
        - name: some
          steps:
          - {domain: api, descriptors: [{user: a}, {spare: a}], expect: OK}
        """,
    )
    lines = [line.replace(f"{tmp_path}/", "") for line in coverage_text(test_run.coverage)]
    assert lines == [
        "api.yaml:6:3: no case meets rule address of domain api",
        "api.yaml:8:3: no case meets rule client of domain api",
        "api.yaml:10:3: no case meets rule job of domain api",
        "2 of 5 rules met: 40 %",
    ]


def test_formats(tmp_path: Path) -> None:
    """GitHub's commands and JUnit's XML say the same, whatever stands in a name."""
    results, _ = run(
        tmp_path,
        """\
        cases:
        - name: "100 %, <all>: of\\u0007 it"
          steps:
          - {domain: api, descriptors: [{user: a}], expect: OVER_LIMIT}
        """,
    )
    first, last = text_of(results, "github").split("\n")
    assert last == "1 case, 1 failed"
    assert first.startswith(f"::error file={tmp_path}/api.test.yaml,line=4,col=5,title=100 %25%2C")
    assert first.endswith("%0A- expect: OVER_LIMIT%0A+ expect: OK")
    suites = ET.fromstring(text_of(results, "junit"))
    case = suites.find("testsuite/testcase")
    assert case is not None
    assert case.get("name") == "100 %, <all>: of\ufffd it"
    assert case.findtext("failure") == "- expect: OVER_LIMIT\n+ expect: OK"


def test_rules_are_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule below the working directory is named by its path from there, as its test file is."""
    monkeypatch.chdir(tmp_path)
    Path("rules").mkdir()
    cases = "rules: ../rules/api.yaml\ncases: " + documented().partition("cases:")[2]

    results, test_run = run(Path("rules"), cases, RULES.replace("20}", "10}"))

    shown = re.search(r"the answer is:\n\n(.*?)\n\nThe line", DOCUMENT.read_text(), re.DOTALL)
    assert shown
    assert text_of(results) == textwrap.dedent(shown[1])
    assert next(coverage_text(test_run.coverage)).startswith("rules/api.yaml:6:3: no case meets")


def test_rules_with_problems_are_not_tested(tmp_path: Path) -> None:
    """Tests of rules that do not load say what is wrong with the rules."""
    with pytest.raises(CasesError, match=r"api\.yaml:2:46: user: unit 'no' is unknown"):
        run(
            tmp_path,
            documented(),
            "domain: api\ndescriptors: [{key: user, rate_limit: {unit: no}}]",
        )


@pytest.mark.parametrize(
    ("tests", "advice"),
    [
        ([], "write tests of them into {0}/api.test.yaml and run that, or look for mistakes with "
         "ratelimit lint {0}/api.yaml"),
        (["api.test.yaml"], "their tests are run by ratelimit test {0}/api.test.yaml"),
    ],
)  # fmt: skip
def test_rules_are_no_cases(tmp_path: Path, tests: list[str], advice: str) -> None:
    """Who names a rule file is told what to do, also where it has mistakes."""
    for name in tests:
        (tmp_path / name).touch()
    path = tmp_path / "api.yaml"
    for text in ("domain: api\ndescriptors: []", "domain: api\ndescriptors: [{key: }]\nx: 1"):
        path.write_text(text)

        with pytest.raises(RulesError) as raised:
            read_cases(path)

        assert str(raised.value) == f"{path} holds rules: {advice.format(tmp_path)}"


def test_files_are_found(tmp_path: Path) -> None:
    """Of a directory all test files are run; without any, or without the path, that is said."""
    with pytest.raises(RulesError, match="there is no file"):
        find_case_files([tmp_path])
    with pytest.raises(RulesError, match="no such file"):
        find_case_files([tmp_path / "nope"])
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    for name in ("x.test.yaml", "x.yaml"):
        (below / name).touch()
    assert find_case_files([tmp_path]) == [below / "x.test.yaml"]


def test_a_thousand_steps_are_little_work(tmp_path: Path) -> None:
    """However many steps there are, each costs at most 400 calls of functions.

    So 1,000 steps take less than a second: a slow processor makes a million calls a second.
    """
    few, many = calls_of(tmp_path, 100), calls_of(tmp_path, 1_000)

    assert (many - few) / 900 < 400


def calls_of(directory: Path, steps: int) -> int:
    """How many functions are called to read and run so many steps in ten cases, and to say it."""
    lines = ["rules: api.yaml", "cases:"]
    for case in range(10):
        lines += [f"- name: case {case}", "  steps:"]
        for step in range(steps // 10):
            user, hits = f"u{step % 5}", step // 5 + 1
            expected = f"expect: OK, rule: user, remaining: {20 - hits}"
            lines.append(
                f"  - {{at: {step}00ms, domain: api, descriptors: [{{user: {user}}}], {expected}}}"
            )
    calls = 0

    def count(_frame: object, event: str, _about: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        results, _ = run(directory, "\n".join(lines))
        output = text_of(results)
    finally:
        sys.setprofile(before)
    assert output == "10 cases passed"
    return calls
