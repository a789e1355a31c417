"""One word per idea: what docs/architecture.md says of words holds, and no retired name is used.

`make lint` runs this, since it takes neither a server nor time.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "ratelimit_service"
ARCHITECTURE = PROJECT / "docs" / "architecture.md"

RETIRED = {
    "Terms": "CompiledRule",
    "Counted": "CompiledLimit",
    "Stem": "PlanTemplate",
    "_Part": "ShardBatch",
    "_Spread": "CrossShardRequest",
    "Errand": "Background",
    "_Again": "Redirected",
    "Setup": "ShardConfig",
    "Slots": "ClusterRouter",
    "Signature": "Protocol",
    "_requite": "_credit",
    "calm": "_forgive",
    "Counters": "Stats",
    "Measure": "CounterSpec",
    "measure": "spec",
    "measure_of": "spec_of",
    "left": "remaining",
    "over_us": "expires_us",
    "placed": "tagged",
    "AdminPlace": "AdminAddress",
}
"""Names that were given up for a better word, and the name that takes the place of each."""


def test_no_class_shares_its_name() -> None:
    """No two classes or public type aliases of the package have the same name."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for name in type_names(ast.parse(path.read_text())):
            places[name].append(str(path.relative_to(PROJECT)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_retired_words_stay_away() -> None:
    """No code and no comment uses a retired name."""
    assert [
        f"{path.relative_to(PROJECT)}:{line}: {word} is retired, use {RETIRED[word]}"
        for path, found in [
            *((path, words(path)) for path in sources()),
            *((path, lua_words(path)) for path in sorted(PACKAGE.rglob("*.lua"))),
        ]
        for line, word in found
        if word in RETIRED
    ] == []


def test_retired_words_have_a_successor() -> None:
    """What takes the place of a retired name is there."""
    used = {word for path in sources() for _, word in words(path)}

    assert set(RETIRED.values()) <= used
    assert not RETIRED.keys() & set(RETIRED.values())


def test_words_are_sought_in_code_and_comments(tmp_path: Path) -> None:
    """A name is found where it is code, and in backticks where it is text."""
    path = tmp_path / "module.py"
    path.write_text('"""Of `One`, but not Two."""\nthree = 3  # `_four` and five\n')

    assert set(words(path)) == {(1, "One"), (2, "three"), (2, "_four")}

    script = tmp_path / "script.lua"
    script.write_text("-- Of `one`, but not two.\nlocal three = 3 -- `four` and five\n")

    assert set(lua_words(script)) == {(1, "one"), (2, "local"), (2, "three"), (2, "four")}


def test_glossary_is_in_order() -> None:
    """The glossary explains each word once, in alphabetical order."""
    terms = re.findall(r"^\| ([^|`]+?) \|", section("Words"), re.MULTILINE)[1:]

    assert len(terms) > 30
    assert terms == sorted(set(terms), key=str.casefold)


def sources() -> list[Path]:
    """The package's modules, without those that are generated."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "generated" not in path.parts]


def type_names(module: ast.Module) -> Iterator[str]:
    """The names of a module's classes, wherever they stand, and of its public type aliases."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if re.fullmatch("[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name):
                yield name


@cache
def words(path: Path) -> Sequence[tuple[int, str]]:
    """Every name in a module's code, and every name in backticks in its comments and strings."""
    found = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                found.append((token.start[0], token.string))
            elif token.type in (tokenize.COMMENT, tokenize.STRING):
                for each in re.finditer(r"`(\w+)`", token.string):
                    line = token.start[0] + token.string.count("\n", 0, each.start())
                    found.append((line, each[1]))
    return found


def lua_words(path: Path) -> Iterator[tuple[int, str]]:
    """Every name in a Lua file's code, and every name in backticks in its comments."""
    for line, text in enumerate(path.read_text().splitlines(), start=1):
        code, _, comment = text.partition("--")
        for word in re.findall(r"[A-Za-z_]\w*", code) + re.findall(r"`(\w+)`", comment):
            yield line, word


def section(title: str) -> str:
    """The text of one section of docs/architecture.md."""
    return ARCHITECTURE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
