"""Each mistake in a rule file, in a file of its own, beside what its author is told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.schema import parse

MISTAKES = Path(__file__).parent / "mistakes"

TOLERATED = {
    "duplicate_key",
    "misplaced_key",
    "misplaced_key_at_top",
    "name",
    "no_effect",
    "queue",
    "replaces_nobody",
    "requests_missing",
    "second_document",
    "soft_too_small",
    "unlimited_with_misspelt_unit",
    "unlimited_with_requests",
}
"""What envoyproxy/ratelimit accepts: an error in `lint`, a warning in `serve`."""


@cache
def problems(path: Path) -> Sequence[Problem]:
    return lint([path]).problems


@pytest.mark.parametrize("path", sorted(MISTAKES.glob("*.yaml")), ids=lambda path: path.stem)
def test_mistake(path: Path) -> None:
    """Every problem is told with its place, what is wrong and what is allowed."""
    told = [str(problem).replace(f"{MISTAKES}/", "") for problem in problems(path)]

    assert "\n".join(told) + "\n" == path.with_suffix(".txt").read_text()


@pytest.mark.parametrize("path", sorted(MISTAKES.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_tolerated(path: Path) -> None:
    """A file is bad unless envoyproxy/ratelimit accepts it."""
    bad = any(not problem.tolerated for problem in problems(path))

    assert bad == (path.stem not in TOLERATED)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"domain: edge\ndescriptors: []\n# \xff", "f:3:3: the file is not UTF-8 [yaml]"),
        (b"domain: a\x00b", "f:1:10: this is no YAML: the character 0x0 cannot stand here"),
        (b"\xef\xbb\xbf# \xc3\xa9\r\n\xc3\xa9: \x07", "f:2:4: this is no YAML: the character 0x7 "),
        (b"a: b\nc: [d,\n  e\n\n", "f:2:4: this is no YAML: what begins here does not end: "),
        (b"a: 'b\n# c\n", "f:1:4: this is no YAML: what begins here does not end: "),
        (b"a: [\n", "f:1:4: this is no YAML: "),
        (b"a: &", "f:1:4: this is no YAML: "),
        (b"{" * 100_000, "f:1:101: nested more than 100 deep [too_deep]"),
        (b"- " * 100_000, "f:1:201: nested more than 100 deep [too_deep]"),
        # With a tag a collection is composed in another way.
        (b"!!seq [" * 150, "f:1:701: nested more than 100 deep [too_deep]"),
        (b"!!map {a: " * 150, "f:1:1001: nested more than 100 deep [too_deep]"),
        (b"!mine [" * 150, "f:1:701: nested more than 100 deep [too_deep]"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, message: str) -> None:
    """Bytes that are no YAML at all are one problem, and never an exception."""
    (problem,) = parse("f", data).problems

    assert str(problem).startswith(message)


def test_domain_of_a_file_that_cannot_be_read() -> None:
    """The domain is told as well as it can be, so that its requests follow the failure policy."""
    assert parse("f", b"# rules\ndomain: 'edge' # ours\ndescriptors: [").domain == "edge"


def test_long_texts_are_one_value() -> None:
    """Only values are counted against the most that a file may have, not their characters."""
    text = (
        "domain: edge\ndescriptors: [{key: a, rate_limit: {unlimited: true}, metadata: {a: '@'}}]"
    )

    assert not parse("f", text.replace("@", "x" * 2_000_001).encode()).problems


def test_the_same_mistake_in_many_limits() -> None:
    """Limits that read the same are read once, but what is wrong with them is told of each."""
    limit = "rate_limit: {unit: day, requests_per_unit: x}"
    lines = "\n".join(f"- {{key: k, value: {value}, {limit}}}" for value in "abc")

    problems = parse("f", f"domain: edge\ndescriptors:\n{lines}".encode()).problems

    assert [problem.source.line for problem in problems] == [3, 4, 5]
