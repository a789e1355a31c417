"""Documents that can be read once: short sentences, and plain words. Words in code are plain, too.

CONTRIBUTING.md, "A page", says how to write, and lists the words. `make lint` runs this.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PAGES = [
    *(TOP / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md")),
    *sorted((TOP / "docs").rglob("*.md")),
]

MODULES = [
    path
    for package in ("ratelimit_service", "client")
    for path in sorted((TOP / package).rglob("*.py"))
    if "generated" not in path.parts
]

MOST_WORDS = 30
"""The longest that a sentence may be, or a part of it that ends in a colon or semicolon."""

_ITEM = re.compile(r"\s*(?:[*-]|\d+\.) ")
_END = re.compile(r"(?<=[.!?:;])\)?\**\s+\(?(?!\d)|(?<=\.\))\s+|\s+\((?=[A-Z])")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_sentences_are_short(page: Path) -> None:
    """No sentence is so long that its begin is forgotten at its end."""
    assert [
        f"{page.relative_to(TOP)}:{line}: {len(words)} words, make two sentences of it: "
        + " ".join(words[:8])
        for line, text in prose(page.read_text())
        for sentence in _END.split(text)
        if len(words := sentence.split()) > MOST_WORDS
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_words_are_plain(page: Path) -> None:
    """No page uses a word of the list in CONTRIBUTING.md that has a plainer one."""
    assert unplain(prose(page.read_text())) == []


def test_words_in_code_are_plain() -> None:
    """No comment and no docstring uses such a word either."""
    assert len(MODULES) > 300
    assert [
        f"{module.relative_to(TOP)}:{problem}"
        for module in MODULES
        for problem in unplain(said(module))
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_subjects_are_named(page: Path) -> None:
    """No sentence begins with `Who` but a question: "Callers who wait" says who they are."""
    assert [
        f"{page.relative_to(TOP)}:{line}: say who that is: {found[0]}"
        for line, text in prose(page.read_text())
        for found in re.finditer(r"(?:^|(?<=[.:;] )|(?<=\*\*))Who [a-z][^.?!]*[.!]", text)
    ] == []


def test_words_are_found(tmp_path: Path) -> None:
    """A word counts in docstrings and comments, also over the end of a line, and not as a name."""
    module = tmp_path / "module.py"
    module.write_text(
        '''\
"""Begun anew."""

def function(anew):
    """Of `anew` nothing is said.

    All, but
    for one.
    """
    field = "hardly"
    """Hardly used."""
    # Nothing, as
    # ever, is found.
    return field  # hardly
'''
    )

    assert [found.split(":")[0] for found in unplain(said(module))] == ["1", "4", "10", "11", "13"]
    assert unplain([(7, "Hardly ever.")]) == ["7: instead of 'Hardly' write rarely"]
    assert unplain(prose("Done\nanew, as `lest` is code.")) == ["1: instead of 'anew' write again"]


def test_prose_is_found() -> None:
    """Only what people read as sentences counts: no code, no tables, nothing that is generated."""
    page = """\
# One

First two
lines of `some code` and [a link](that#leads).

* Item. Another.
  Its end.
* Second item.

    code = 1

```yaml
code: 2
```

| a | table |
<!-- x: made by make docs -->
Made.
<!-- end -->
Last.
"""
    assert list(prose(page)) == [
        (3, "First two lines of CODE and a link."),
        (6, "Item. Another. Its end."),
        (8, "Second item."),
        (20, "Last."),
    ]


def test_sentences_end() -> None:
    """A sentence ends at its stop, also in brackets, and not at the stop of a number."""
    text = "One 1.5 two. Three: four; five (six). (Seven.) **Eight.** Nine (ten)? Eleven"

    assert [part.strip(" .:;?!()*") for part in _END.split(text)] == [
        *("One 1.5 two", "Three", "four", "five (six", "Seven", "Eight", "Nine (ten", "Eleven")
    ]


def prose(page: str) -> Iterator[tuple[int, str]]:
    """Each paragraph and each item of a list, with its line; code in it is one word."""
    page = re.sub(
        r"```.*?```|<!-- [^\n]*: made by make docs.*?<!-- end -->", _lines, page, flags=re.DOTALL
    )
    block: list[str] = []
    first = 0
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        begins = _ITEM.match(line)
        if block and (begins or not line.strip()):
            yield first, _read(" ".join(block))
            block = []
        if not line.strip() or line.lstrip().startswith(("#", "|", "<!--")):
            continue
        if not block:
            if line.startswith("    ") and not begins:
                continue
            first = number
        block.append(line[begins.end() :] if begins else line.strip())


def _lines(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _read(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "CODE", text))


def said(module: Path) -> Iterator[tuple[int, str]]:
    """Each docstring of a module and each block of comments, with its first line."""
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, _read(" ".join(text.split()))
    first = last = 0
    block: list[str] = []
    with module.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                alone = token.line.lstrip().startswith("#")
                if block and not (alone and token.start[0] == last + 1):
                    yield first, _read(" ".join(block))
                    block = []
                first = first if block else token.start[0]
                last = token.start[0]
                block.append(token.string.lstrip("# "))
    if block:
        yield first, _read(" ".join(block))


def unplain(texts: Iterable[tuple[int, str]]) -> list[str]:
    """The lines with words of the list in CONTRIBUTING.md, and what to write instead."""
    plainer = plainer_words()
    assert plainer
    listed = re.compile(rf"\b(?:{'|'.join(map(re.escape, plainer))})\b", re.IGNORECASE)
    return [
        f"{line}: instead of {found[0]!r} write {plainer[found[0].lower()]}"
        for line, text in texts
        for found in listed.finditer(text)
    ]


def plainer_words() -> dict[str, str]:
    """Each word of the list, and what to write instead."""
    section = (TOP / "CONTRIBUTING.md").read_text().split("\n## A page\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| ([^|`]+?) \| ([^|]+?) \|$", section, re.MULTILINE)[1:])
