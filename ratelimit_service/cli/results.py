"""How results of tests of rules are shown: for people, for GitHub, and as JUnit's XML.

What must not live here: what passes (`rule_test_run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from xml.etree import ElementTree as ET

from ratelimit_service.cli.github import annotation
from ratelimit_service.rule_lab.simulation.rule_test_run import Coverage, Result
from ratelimit_service.settings import duration_text
from ratelimit_service.text.display import count

__all__ = ["FORMATS", "coverage_text"]


def _text(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.step is not None:
            yield f"{result.step.source}: {result.case.name}: {_where(result)}"
            yield from (f"  {line}" for line in _lines(result))
    yield _summary(results)


def _github(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.step is not None:
            text = "\n".join([_where(result), *_lines(result)])
            yield annotation("error", result.step.source, result.case.name, text)
    yield _summary(results)


def _junit(results: Sequence[Result]) -> Iterator[str]:
    suites = ET.Element("testsuites")
    for path in dict.fromkeys(result.path for result in results):
        own = [result for result in results if result.path == path]
        failures = sum(not result.passed for result in own)
        about = {"name": str(path), "tests": str(len(own)), "failures": str(failures)}
        suite = ET.SubElement(suites, "testsuite", about)
        for result in own:
            about = {
                "name": _xml(result.case.name),
                "classname": str(path),
                "file": str(path),
                "line": str(result.case.source.line),
            }
            case = ET.SubElement(suite, "testcase", about)
            if not result.passed:
                failure = ET.SubElement(case, "failure", {"message": _xml(_where(result))})
                failure.text = _xml("\n".join(_lines(result)))
    ET.indent(suites)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield from ET.tostring(suites, encoding="unicode").split("\n")


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


FORMATS: Mapping[str, Callable[[Sequence[Result]], Iterator[str]]] = {
    "text": _text,
    "github": _github,
    "junit": _junit,
}
"""The ways to show results, each as lines."""


def coverage_text(coverage: Coverage) -> Iterator[str]:
    """How many rules were met, and which were not."""
    for rule in coverage.uncovered:
        yield f"{rule.source}: no case meets rule {rule.path} of domain {rule.domain}"
    covered, rules = len(coverage.covered), len(coverage.rules)
    yield f"{covered} of {rules} rules met: {coverage.percent:.0f} %"


def _summary(results: Sequence[Result]) -> str:
    failed = sum(not result.passed for result in results)
    cases = count(len(results), "case")
    return f"{cases}, {failed} failed" if failed else f"{cases} passed"


def _where(result: Result) -> str:
    assert result.step is not None  # noqa: S101 -- only of results that failed
    number = result.case.steps.index(result.step) + 1
    of = f", request {result.request} of {result.step.times}" if result.step.times > 1 else ""
    return f"step {number} at {duration_text(result.step.at_us)}{of}: {result.why}"


def _lines(result: Result) -> Iterator[str]:
    for each in result.differences:
        yield f"- {each.key}: {each.expected}"
        yield f"+ {each.key}: {each.got}"
