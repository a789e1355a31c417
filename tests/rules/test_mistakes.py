"""Each mistake in a rule file, in a file of its own, beside what its author is told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from ratelimit_service.algorithms import ALGORITHMS, PARAMETERS, with_parameter
from ratelimit_service.model import Denied
from ratelimit_service.rules.lint import lint, lint_text
from ratelimit_service.rules.matchers.registry import keys
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.schema import parse
from ratelimit_service.text import yaml_slips

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


_MATCHERS = [key for key in keys() if key != "value"]

LISTED = {
    "algorithms": list(ALGORITHMS),
    "matchers": _MATCHERS,
    "parameters": list(PARAMETERS),
    **{
        f"with {name}": [algorithm.name for algorithm in with_parameter(name)]
        for name in PARAMETERS
    },
    "with count_denied": [
        name for name, each in ALGORITHMS.items() if each.denied >= Denied.COUNTED
    ],
}
"""What files write as `{algorithms}`: words of registries. So nobody who adds one edits them."""


def expected(path: Path) -> str:
    """What the author of a file is told."""
    text = path.with_suffix(".txt").read_text()
    for name, words in LISTED.items():
        text = text.replace(f"{{{name}}}", ", ".join(words))
    *others, last = _MATCHERS
    return text.replace("{one of the matchers}", f"{', '.join(others)} or {last}")


@cache
def problems(path: Path) -> Sequence[Problem]:
    return lint([path]).problems


@pytest.mark.parametrize("path", sorted(MISTAKES.glob("*.yaml")), ids=lambda path: path.stem)
def test_mistake(path: Path) -> None:
    """Every problem is told with its place, what is wrong and what is allowed."""
    lines = [str(problem).replace(f"{MISTAKES}/", "") for problem in problems(path)]

    assert "\n".join(lines) + "\n" == expected(path)


def test_what_is_listed() -> None:
    """The lists that are filled in begin with what is shipped."""
    shipped = {
        "algorithms": (
            "fixed_window sliding_window sliding_log token_bucket leaky_bucket concurrency"
        ),
        "matchers": "one_of cidr regex",
        "parameters": "per time_zone week_start anchor buckets burst refill max_wait",
        "with anchor": "fixed_window",
        "with buckets": "sliding_window",
        "with burst": "token_bucket leaky_bucket",
        "with count_denied": "fixed_window sliding_window sliding_log",
        "with max_wait": "leaky_bucket",
        "with per": "fixed_window",
        "with refill": "token_bucket",
    }

    for name, words in shipped.items():
        assert LISTED[name][: len(words.split())] == words.split(), name


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


HEAD = "domain: a\ndescriptors:\n- key: a\n"
QUOTES = "must stand in quotes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "  value: *.example # all", f"4:10: begins with * {QUOTES}, as '*.example'"),
        (HEAD + "  value: **", f"4:10: begins with * {QUOTES}, as '**'"),
        (HEAD + "  value: *x*", f"4:10: begins with * {QUOTES}, as '*x*'"),
        (HEAD + "  value: *example\n", f"4:10: begins with * {QUOTES}, as '*example'"),
        (HEAD + "  value: */a b", f"4:10: begins with * {QUOTES}"),
        (HEAD + "  value: */it's", f"4:10: begins with * {QUOTES}"),
        (HEAD + "  one_of: [*.x, b]", f"4:12: begins with * {QUOTES}, as '*.x'"),
        ("domain: a\ndescriptors: [{key: a, value: *}]", f"2:31: begins with * {QUOTES}"),
        (HEAD + "  value: &/b", f"4:10: begins with & {QUOTES}, as '&/b'"),
        (HEAD + "  value: !x!", f"4:10: begins with ! {QUOTES}, as '!x!'"),
        (HEAD + "  value: !<x", f"4:10: begins with ! {QUOTES}, as '!<x'"),
        (HEAD + "  value: %x", f"4:10: begins with % {QUOTES}, as '%x'"),
        (HEAD + "  value: @x", f"4:10: begins with @ {QUOTES}, as '@x'"),
        (HEAD + "  value: `x`", f"4:10: begins with ` {QUOTES}, as '`x`'"),
        (HEAD + "  value: [x, y", "4:10: what begins here does not end: "),
    ],
)
def test_texts_that_want_quotes(text: str, message: str) -> None:
    """A text that begins with a sign of YAML's is told at its begin, and how to write it."""
    (problem,) = parse("f", text.encode()).problems
    location, _, wanted = message.partition(" ")

    assert str(problem).startswith(f"f:{location} this is no YAML: ")
    assert wanted in problem.message
    assert problem.message.endswith(wanted) or QUOTES not in wanted


@pytest.mark.parametrize(
    ("text", "location", "example"),
    [
        ("domain:a\ndescriptors:\n- key: a\n", "1:7", "domain: a"),
        ("# ours\r\ndomain:a\r\n\r\n# b: c\r\ndescriptors: []", "2:7", "domain: a"),
        ("domain: a\ndescriptors:\n- key:a\n  value: b", "3:6", "key: a"),
        (HEAD + "  value:b\n  rate_limit: {unit: day}\n", "4:8", "value: b"),
        (HEAD + "  rate_limit:\n    unit:day\n    requests_per_unit: 1", "5:9", "unit: day"),
        (HEAD + "  one_of:[a, b]\n  rate_limit: {unit: day}", "4:9", "one_of: …"),
    ],
)
def test_colons_without_a_space(text: str, location: str, example: str) -> None:
    """It is told where the colon stands, not in the line below, where YAML finds it."""
    (problem,) = parse("f", text.encode()).problems

    wants = f"a colon wants a space behind it, as '{example}'"
    assert str(problem) == f"f:{location}: this is no YAML: {wants} [yaml]"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (HEAD + "  value: b: c", "4:11"),
        (HEAD + "  value: http://b\n   c: d", "5:5"),
        (HEAD + "  http://b\n   c: d", "5:5"),
        ("domain: a: b", "1:10"),
        ("a:b: c: d", "1:7"),
    ],
)
def test_colons_that_are_no_slip(text: str, at: str) -> None:
    """What YAML says of a colon stays where none lacks a space."""
    (problem,) = parse("f", text.encode()).problems

    assert "wants a space" not in problem.message
    assert str(problem).startswith(f"f:{at}: this is no YAML: ")


@pytest.mark.parametrize(
    ("descriptor", "messages"),
    [
        ("- {key: a, value: [x, y]}", ["value must be text: for several there is one_of"]),
        ("- {key: a, value: {x: y}}", ["value must be text"]),
        ("- user:", ["'user' is no key of a descriptor: write 'key: user'"]),
        ("- user: x", ["'user' is no key of a descriptor: write 'key: user' and 'value: x'"]),
        ("- {user: , value: x}", ["'user' is no key of a descriptor: write 'key: user'"]),
        ("- {key: a, rate_limit: {unit:day, requests_per_unit: 1}}",
         ["'unit:day' is no key: a colon wants a space behind it"]),
        ("- key: a\n  rate_limit:{unit: day}",
         ["'rate_limit:{unit' is no key: a colon wants a space behind it"]),
    ],
)  # fmt: skip
def test_what_to_write_instead(descriptor: str, messages: list[str]) -> None:
    """Where it is known what is meant, one problem says how that is written."""
    problems = parse("f", f"domain: a\ndescriptors:\n{descriptor}".encode()).problems

    assert [each.message for each in problems] == messages


@pytest.mark.parametrize("descriptor", ["- kye: a", "- {user: , path: }", "- unit: day", "- {}"])
def test_keys_that_are_not_known_are_told_as_others(descriptor: str) -> None:
    """Only one unknown word in place of `key` is taken for it, and none that is like it."""
    problems = parse("f", f"domain: a\ndescriptors:\n{descriptor}".encode()).problems

    assert all("is no key of a descriptor" not in each.message for each in problems)
    assert problems


def test_domain_of_a_file_that_cannot_be_read() -> None:
    """The domain is told as well as it can be, so that its requests follow the failure policy."""
    assert parse("f", b"# rules\ndomain: 'edge' # ours\ndescriptors: [").domain == "edge"


def test_long_texts_are_one_value() -> None:
    """Only values are counted against the most that a file may have, not their characters."""
    text = (
        "domain: edge\ndescriptors: [{key: a, rate_limit: {unlimited: true}, metadata: {a: '@'}}]"
    )

    (problem,) = parse("f", text.replace("@", "x" * 2_000_001).encode()).problems

    assert problem.message == "metadata has 2000010 characters as JSON: 4096 are allowed"


def test_the_same_mistake_in_many_limits() -> None:
    """Limits that read the same are read once, but what is wrong with them is told of each."""
    limit = "rate_limit: {unit: day, requests_per_unit: x}"
    lines = "\n".join(f"- {{key: k, value: {value}, {limit}}}" for value in "abc")

    problems = parse("f", f"domain: edge\ndescriptors:\n{lines}".encode()).problems

    assert [problem.source.line for problem in problems] == [3, 4, 5]


def test_many_comments_behind_a_slip_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that is to blame is looked for upwards, and no line is cut out again and again."""
    text = "domain:a\n" + "# a comment\n" * 1_000 + "descriptors: []\n"
    read = 0

    def counted(part: str) -> list[str]:
        nonlocal read
        read += len(part)
        return part.splitlines()

    monkeypatch.setattr(yaml_slips, "lines_of", counted)
    (problem,) = parse("a.yaml", text.encode()).problems

    assert (problem.source.line, "wants a space" in problem.message) == (1, True)
    assert read < 3 * len(text)


_RULES = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n"


@pytest.mark.parametrize(
    "after",
    ["---\n", "---\n...\n", "---\n# Source: a chart\n", "---\nnull\n", "---\r\n", "---\n---\n"],
)
def test_empty_documents_are_none(after: str) -> None:
    """A document that says nothing, as charts leave it behind the rules, is no second one."""
    empty = lint_text("a.yaml", (_RULES + after).encode())
    real = lint_text("a.yaml", (_RULES + after.rstrip(".\n") + "\n---\ndomain: e\n").encode())

    assert empty.problems == ()
    assert [each.kind for each in real.problems] == ["second_document"]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("requests_per_unit: 1e+06", "Helm writes large numbers so: write 1000000"),
        ("requests_per_unit: '{{ .Values.x }}'", "a template that was not filled in"),
        ("requests_per_unit: '${LIMIT}'", "a variable that was not put in its place"),
        ("requests_per_unit: \u201c5\u201d", "these quotes come from a word processor"),
        ("bucket_size: 5", "did you mean 'burst'?"),
        ("capacity: 5", "did you mean 'burst'?"),
        ("queue_size: 5", "did you mean 'burst'?"),
        ("refill_rate: 5", "did you mean 'requests_per_unit'?"),
        ("leak_rate: 5", "did you mean 'requests_per_unit'?"),
        ("limit: 5", "did you mean 'requests_per_unit'?"),
        ("requests_per_unit: 5, algorithm: sliding_window_log", "did you mean 'sliding_log'?"),
        (
            "requests_per_unit: 5, soft: '10'",
            "soft '10' is none: write a part of the limit up to 100%, as 10%",
        ),
        ("requests_per_unit: 5, soft: '25'", "as 25%"),
    ],
)
def test_words_of_others(limit: str, message: str) -> None:
    """What a tool has left, and what others call our keys, is told with what to write."""
    text = f"domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: day, {limit}}}}}]\n"

    reported = lint_text("a.yaml", text.encode()).problems

    assert any(message in each.message for each in reported)


def test_limits_that_are_not_indented() -> None:
    """A limit's keys beside rate_limit, or a limit beside its descriptor: how to indent it."""
    beside = "domain: d\ndescriptors:\n- key: a\n  rate_limit:\n  unit: day\n"
    outside = "domain: d\ndescriptors:\n- key: a\nrate_limit: {unit: day}\n"

    reported = [lint_text("a.yaml", text.encode()).problems for text in (beside, outside)]

    assert "indent it further than the rate_limit above it" in str(reported[0])
    assert "indent it as far as the key of its descriptor" in str(reported[1])


def test_an_object_of_kubernetes() -> None:
    """A ConfigMap given as rules is one mistake, with what of it to take."""
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rules}\ndata: {a.yaml: x}\n"

    (problem,) = lint_text("a.yaml", text.encode()).problems

    assert "of a ConfigMap take what stands under data" in problem.message


def test_short_files_have_few_values() -> None:
    """Aliases of aliases in a short file are refused long before those of a long one."""
    lines = ["domain: d", "descriptors:", "- {key: a, descriptors: &l0 [{key: k}, {key: l}]}"]
    keys = [f"k{number}" for number in range(9)]
    for level in range(1, 8):
        nodes = ", ".join(f"{{key: {key}, descriptors: *l{level - 1}}}" for key in keys)
        lines.append(f"- {{key: m{level}, descriptors: &l{level} [{nodes}]}}")

    (problem,) = lint_text("a.yaml", "\n".join(lines).encode()).problems

    assert (problem.kind, problem.message.partition(",")[0]) == (
        "too_large",
        "more than 100000 values",
    )
