"""`regex`: what it takes, what goes before what, and what is refused."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import Code
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.matchers import automaton
from ratelimit_service.rules.matchers.regex import Regex
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Level, Node, Snapshot
from tests.rules.test_match import LIMIT, carried, domain, matched_rule
from tests.service.asking import Asking, descriptor

RULES = f"""
domain: edge
descriptors:
  - {{key: path, {LIMIT}}}
  - {{key: path, value: /a/1*, {LIMIT}}}
  - {{key: path, regex: "/a/[0-9]+", share_threshold: true, {LIMIT}}}
  - {{key: path, value: /a/2*, {LIMIT}}}
  - {{key: path, regex: "/a/2.*|/b", {LIMIT}}}
  - {{key: path, regex: "(?i)/É+", {LIMIT}}}
  - {{key: path, value: /a/77, {LIMIT}}}
  - {{key: path, cidr: 10.0.0.0/8, {LIMIT}}}
  - {{key: path, regex: "10[.].*", {LIMIT}}}
"""


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("path=/a/1", "path=/a/1*"),
        ("path=/a/2", 'path=regex("/a/[0-9]+")'),
        ("path=/a/2x", "path=/a/2*"),
        ("path=/b", 'path=regex("/a/2.\\u002a|/b")'),
        ("path=/bb", "path"),
        ("path=x/b", "path"),
        ("path=/éÉ", 'path=regex("(?i)/É+")'),
        ("path=/a/77", "path=/a/77"),
        ("path=/a/3\n", "path"),
        ("path=/a/3\0", "path"),
        ("path=\ud800", "path"),
        ("path=10.1.1.1", "path=cidr(10.0.0.0/8)"),
        ("path=10.1", 'path=regex("10[.].\\u002a")'),
    ],
)
def test_order(text: str, rule: str) -> None:
    """All of a value must match; regular expressions and patterns are asked in the file's order.

    Exact values and networks go before. It is the same after the way to a worker.
    """
    tree = domain(RULES)

    assert matched_rule(tree, text) == rule
    assert matched_rule(carried(tree), text) == rule


async def test_decisions(tmp_path: Path) -> None:
    """Each value has its own counter unless they share one, and explain says what matched."""
    asking = Asking(tmp_path, RULES)

    codes = [(await asking.ask(f"path={one}")).code for one in ("/a/3", "/a/4", "/b", "/a/2x")]

    assert codes == [Code.OK, Code.OVER_LIMIT, Code.OK, Code.OK]
    shown = str(explain(Snapshot(1, {"edge": domain(RULES)}), "edge", descriptor("path=/a/2")))
    assert "the shared regular expression matches: path=regex" in shown
    assert "path=/a/2* at f:7:5: its pattern matches too, but was declared later" in shown


def problem_of(pattern: str) -> str:
    file = parse("f", f"domain: a\ndescriptors:\n- {{key: k, regex: {pattern}, {LIMIT}}}".encode())
    (problem,) = file.problems
    assert (problem.source.line, problem.source.column) == (3, 19)
    return problem.message


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("'(a'", "regex '(a' is none: missing ): (a"),
        (r"'(a)\1'", "invalid escape sequence"),
        ("'(?=a)'", "without back-references and look-around"),
        ("'a{2000}'", "invalid repetition size: {2000}, at character 2"),
        ("'a[(]b(c(d)'", "missing ): a[(]b(c(d), at character 6"),
        (r"'(a)b\)c)'", ", at character 8"),
        ("'ab[c'", "missing ]: [c, at character 3"),
        ("'([a-z]{1,100}){1,9}'", "regex costs too much"),
        ("'((a{100}){100}){100}'", "is none"),
        (f"'{'a' * 1001}'", "regex is too long: at most 1000 characters"),
        ("''", "regex must be a text"),
    ],
)
def test_problems(pattern: str, problem: str) -> None:
    """A pattern that does not compile, or costs too much, is a problem at its place."""
    assert problem in problem_of(pattern)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing, a rule that needs it says what to install."""
    monkeypatch.setattr(automaton, "_library", lambda: None)

    assert "pip install 'ratelimit-service[regex]'" in problem_of("a.*")


def test_too_many() -> None:
    """A level has at most 1,000 for a key; in several files as well."""
    listed = ", ".join(f"{{key: k, regex: 'x{number}'}}" for number in range(1_001))
    file = parse("f", f"domain: a\ndescriptors: [{listed}]".encode())

    (problem,) = file.problems
    assert problem.message.startswith("more than 1000 of regex for one key at one level (see f:2:")


FRAGMENTS = st.lists(st.sampled_from(["a", "b", ".", "[ab]", "a*", "(ab|b)", "b?"]), max_size=4)


@given(
    st.lists(FRAGMENTS.map("".join), min_size=1, max_size=6, unique=True),
    st.text("ab", max_size=5),
    st.sampled_from([1, 1_000]),
)
def test_together(patterns: list[str], value: str, size: int) -> None:
    """All at once they say what each says by itself, whether they are built together or apart."""
    nodes = [Node("k", f"{at}", Regex(text, size), None, None) for at, text in enumerate(patterns)]
    matching = [at for at, one in enumerate(patterns) if re.fullmatch(one, value)]
    together = Regex.index()
    for at, text in enumerate(patterns):
        together.add(Regex(text, size), at)
    deque(together.completing())

    node = Level.of(nodes).matching["k"].find(value)

    assert (node and node.node and node.node.value) == (f"{matching[0]}" if matching else None)
    assert list(together.all(value)) == matching


@pytest.mark.parametrize(
    "pattern", ["a(?i)*b", "a(?s){0}b", "a+(?i)?b", r"a\Q\E*b", r"a+\Q\E?b", r"a+?\Q\E?b"]
)
def test_repeated_behind_nothing(pattern: str) -> None:
    """Flags and empty quotes are passed over: what is repeated behind them may be left out."""
    together = Regex.index()
    for position, text in enumerate([pattern, "c"]):
        together.add(Regex(text, 1_000), position)
    deque(together.completing())

    assert Regex(pattern).matches("b")
    assert list(together.all("b")) == [0]


def test_no_room() -> None:
    """An automaton that does not fit into memory is slower, and finds the same."""
    together = automaton.Automaton(["[a-c]{50}", "[a-b]{50}", "c.*"], 100)

    assert list(together.matching("a" * 50)) == [0, 1]
    assert list(together.matching("c" * 50)) == [0, 2]
    assert list(together.matching("d")) == []


class Building:
    """Google's library, which notes the patterns that are built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._library: Any = re2
        self.error, self.Options = self._library.error, self._library.Options
        self.Set = self
        self.texts: list[str] = []
        self.most_bytes: list[int] = []
        """That the states of each automaton may take."""
        monkeypatch.setattr(automaton, "_library", lambda: self)

    def compile(self, text: str, options: object) -> object:
        self.texts.append(text)
        return self._library.compile(text, options)

    def FullMatchSet(self, options: Any) -> object:  # noqa: N802 -- as it is called there
        self.most_bytes.append(options.max_mem)
        made, texts = self._library.Set.FullMatchSet(options), self.texts

        class Set:
            def Add(self, text: str) -> None:  # noqa: N802
                texts.append(text)
                made.Add(text)

            Compile, Match = made.Compile, made.Match

        return Set()


@pytest.mark.parametrize(
    ("pattern", "size"), [("/{}/[a-z]{{900}}", 910), ("/{}/.*a.{{90}}b", 740), ("/{}/[a-z]+", 12)]
)
def test_a_thousand_of_any_size(monkeypatch: pytest.MonkeyPatch, pattern: str, size: int) -> None:
    """A request waits for 1,000 instructions to be built at most, where a level has a million.

    If these do not fit into the memory that they may take, it does so twice. What does not begin
    like any pattern waits for nothing.
    """
    patterns = [pattern.format(number) for number in range(1_000, 2_000)]
    rules = "".join(f"  - {{key: k, regex: '{each}', {LIMIT}}}\n" for each in patterns)
    tree = domain(f"domain: edge\ndescriptors:\n{rules}")
    building = Building(monkeypatch)

    def built(value: str) -> int:
        before = len(building.texts)
        assert matched_rule(tree, f"k={value}") is None
        return sum(size for text in building.texts[before:] if text in patterns)

    assert automaton.CompiledPattern(patterns[0]).size == size
    assert built("1007") == built("/2007/a") == 0
    for value in ("/1007/0", "/1500/0", "/1999/0"):
        assert 0 < built(value) <= 2 * 1_000
        assert built(value) == 0


@pytest.mark.parametrize(("many", "megabytes"), [(1, 2), (5, 6), (1_000, 64)])
def test_memory_of_states(monkeypatch: pytest.MonkeyPatch, many: int, megabytes: int) -> None:
    """A level's states take 1 MiB for each expression at most, and one more, and 64 MiB in all."""
    patterns = [f"/{number}/[a-z]+" for number in range(1_000, 1_000 + many)]
    rules = "".join(f"  - {{key: k, regex: '{each}', {LIMIT}}}\n" for each in patterns)
    tree = domain(f"domain: edge\ndescriptors:\n{rules}")
    building = Building(monkeypatch)

    for number in range(1_000, 1_000 + many):
        assert matched_rule(tree, f"k=/{number}/a") is not None

    assert (megabytes - 1) << 20 < sum(building.most_bytes) <= megabytes << 20


@pytest.mark.parametrize("own", ["valid_until: 2030-01-01T00:00Z", "group: {ipv4: 24}"])
def test_many_that_end_or_group_are_asked_at_once(own: str) -> None:
    """None of many expressions is compiled for a request, also where they end or see networks."""
    rules = "".join(
        f"  - {{key: k, regex: '10[.]{number}[.].*', {own}, {LIMIT}}}\n" for number in range(70)
    )
    tree = domain(f"domain: edge\ndescriptors:\n{rules}")
    compiled = automaton.compiled.cache_info().misses

    for _ in range(2):
        assert matched_rule(tree, "k=10.69.1.2") == 'k=regex("10[.]69[.].\\u002a")'

    assert automaton.compiled.cache_info().misses == compiled


def test_too_much_for_one_value() -> None:
    """Expressions that begin alike may come to 1,000 instructions together, others to any."""

    def problems(patterns: list[str]) -> list[str]:
        listed = ", ".join(f"{{key: k, regex: '{each}'}}" for each in patterns)
        file = parse("f", f"domain: a\ndescriptors: [{listed}]".encode())
        return [str(each) for each in file.problems]

    hostile = [f".*a.{{90}}b{number}" for number in range(3)]
    (problem,) = problems(hostile)

    assert problem.startswith("f:2:1: the regular expressions of this level that begin as ")
    assert "instructions, of at most 1000: let them begin with different texts" in problem
    assert "(see f:2:15)" in problem
    assert problems([f"/{number}/{each}" for number, each in enumerate(hostile)]) == []
    assert problems([f"[{number}]{each}" for number, each in enumerate(hostile)]) == []
    assert problems([f"{number}?{each}" for number, each in enumerate(hostile)]) != []
    assert problems([f"{number}x|{each}" for number, each in enumerate(hostile)]) != []


def test_values_that_take_too_long() -> None:
    """A value too long for the level's instructions matches none of its regular expressions.

    It goes on to what comes after them, and `explain` says why.
    """
    tree = domain(
        "domain: edge\ndescriptors: "
        f"[{{key: k, regex: '.*a.{{90}}b', {LIMIT}}}, {{key: k, {LIMIT}}}]"
    )
    long = "a" * 3_000 + "b"

    assert matched_rule(tree, f"k={long[-500:]}") == 'k=regex(".\\u002aa.{90}b")'
    assert matched_rule(tree, f"k={long}") == "k"
    shown = str(explain(Snapshot(1, {"edge": tree}), "edge", descriptor(f"k={long}")))
    assert "its regular expression is not asked: the value is too long for those of this" in shown
