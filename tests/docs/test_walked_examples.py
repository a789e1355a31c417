"""The walked examples of CONTRIBUTING.md are complete: built from its text alone, all is well.

They are built together, in a copy of this checkout: what is shown of a file that is not there is
that file, and what is shown of a registry are lines for it. Then come the commands of CONTRIBUTING,
and those tests that a part of some kind could disturb.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import need

TOP = Path(__file__).parents[2]
CONTRIBUTING = (TOP / "CONTRIBUTING.md").read_text()

COUNTS = {
    "A source of rules": 4,
    "A matcher": 4,
    "An exporter": 3,
    "An algorithm": 5,
    "A header set": 4,
}
"""How many files are changed by hand, at most."""

WORDS = {3: "Three", 4: "Four", 5: "Five"}

THOSE_THERE = "    # those that are there\n"

MADE = {
    "docs/rules.md",
    "docs/rules.schema.json",
    "ratelimit_service/rules/rules.schema.json",
}
"""What `make docs` writes for these examples."""

TESTS = (
    "tests/algorithms/penalty_window/loaded.py",
    "tests/algorithms/test_laws.py",
    "tests/cli/test_size.py",
    "tests/docs/test_docs.py",
    "tests/docs/test_playground.py",
    "tests/limiter",
    "tests/metrics",
    "tests/rules/test_from_command.py",
    "tests/rules/test_json_schema.py",
    "tests/rules/test_matchers.py",
    "tests/rules/test_mistakes.py",
    "tests/rules/test_prefix.py",
    "tests/rules/test_schema.py",
    "tests/rules/test_sources.py",
    "tests/runtime/test_memory.py",
    "tests/service/test_beside_statuses.py",
    "tests/settings",
    "tests/stores/test_cases.py",
    "tests/stores/test_memory.py",
)
"""Those that know what registries hold, and those of the examples."""


class Step(NamedTuple):
    """One file to change: where it is, what is shown of it, and where all of the example's is."""

    path: str
    shown: str
    source: str
    under: str
    """The heading of the document that a text belongs below."""


def section(title: str) -> str:
    return CONTRIBUTING.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def steps(title: str) -> list[Step]:
    """What an example lists, in order."""
    found = []
    for text in re.split(r"^\d+\. ", section(title), flags=re.MULTILINE)[1:]:
        path = re.match(r"`([^`]+)`", text)
        assert path
        source = re.match(r"`[^`]+`\s+\(\[the example's\]\(([^)]+)\)\)", text)
        shown = re.search(r"```\w+\n(.*?)```", text, re.DOTALL)
        under = re.search(r'^`[^`]+`, under "([^"]+)"', text)
        cells = [each[1] if each else "" for each in (shown, source, under)]
        found.append(Step(path[1], *cells))
    return found


def inserted(text: str, before: str, added: str) -> str:
    """The text with a part of it added, unless somebody has followed the example for good."""
    if added in text:
        return text
    assert text.count(before) == 1
    return text.replace(before, added + before)


def registered(text: str, shown: str) -> str:
    """A registry with the lines that are shown: imports below its own, and the rest at its end."""
    imports, opening, lines = re.fullmatch(
        rf"((?:from .*\n)*)\n?(\S.*\n){THOSE_THERE}((?: .*\n)+)\S+\n", shown
    ).groups()  # type: ignore[union-attr]
    before, table = text.split(opening, 1)
    if imports and imports not in before:
        head, last, tail = before.rpartition("\nfrom ")
        line, rest = tail.split("\n", 1)
        before = f"{head}{last}{line}\n{imports}{rest}"
    rows, closing, after = re.split(r"^(\S.*\n)", table, maxsplit=1, flags=re.MULTILINE)
    return before + opening + (rows if lines in rows else rows + lines) + closing + after


def documented(text: str, step: Step) -> str:
    """A document with what is shown at the end of the section that is named."""
    before, heading, rest = re.split(
        rf"^(#+ {re.escape(step.under)}\n)", text, maxsplit=1, flags=re.MULTILINE
    )
    own, more, after = rest.partition("\n#")
    return f"{before}{heading}{own.rstrip()}\n\n{step.shown}{more}{after}"


def take(top: Path, step: Step, module: str) -> None:
    """Changes one file as a step says. `module` is that of the example's first step."""
    path = top / step.path
    if step.path == "docs/rules.md" and step.source:
        row, text = (TOP / step.source).read_text().split("\n\n", 1)
        whole = inserted(path.read_text(), "\n### fixed_window\n", f"{row}\n")
        path.write_text(inserted(whole, "## Networks as callers\n", f"{text}\n"))
    elif step.under:
        path.write_text(documented(path.read_text(), step))
    elif THOSE_THERE in step.shown:
        path.write_text(registered(path.read_text(), step.shown))
    elif step.source:
        text = (TOP / step.source).read_text()
        assert step.shown in text
        own = re.search(rf"\btests(?:\.\w+)+\.{module.rpartition('.')[2]}\b", text)
        path.write_text(text.replace(own[0], module) if own else text)
    else:
        path.write_text(step.shown)


def files(top: Path) -> dict[str, bytes]:
    names = ("ratelimit_service", "docs", "tests", "pyproject.toml", "setup.py", "Makefile")
    paths = [path for name in names for path in (top / name, *(top / name).rglob("*"))]
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }


def changed(top: Path, before: dict[str, bytes]) -> set[str]:
    return {name for name, data in files(top).items() if before.get(name) != data}


def done(top: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a program on the copy, which goes before what is installed."""
    environment = {**os.environ, "PYTHONPATH": str(top)}
    return subprocess.run(
        command, cwd=top, env=environment, capture_output=True, text=True, check=False
    )


def make(top: Path, *verbs: str) -> subprocess.CompletedProcess[str]:
    """Runs verbs of the copy's Makefile with what is installed here."""
    ready = f"{sys.prefix}/.developing"
    return done(top, "make", "-o", ready, f"VENV={sys.prefix}", *verbs)


def pytest_in(top: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return done(top, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of this checkout in which all examples are built."""
    top = tmp_path_factory.mktemp("walked") / "top"
    ignored = (".git", ".tools", ".venv*", ".site", "build", "dist", "__pycache__", "*.so")
    shutil.copytree(TOP, top, ignore=shutil.ignore_patterns(*ignored))
    if (TOP / ".tools").exists():
        (top / ".tools").symlink_to(TOP / ".tools")
    for title in COUNTS:
        before = files(top)
        walked = steps(title)
        module = walked[0].path.removesuffix(".py").replace("/", ".")
        for step in walked:
            take(top, step, module)
        assert changed(top, before) <= {step.path for step in walked}
    yield top
    shutil.rmtree(top)


@pytest.mark.parametrize("title", COUNTS)
def test_files_are_counted(title: str) -> None:
    """No example changes more files than promised, and the text says how many."""
    listed = {step.path for step in steps(title)}

    assert len(listed) == len(steps(title)) <= COUNTS[title]
    assert re.search(rf"\b{WORDS[len(listed)]}\s+files[:;]", section(title))


@pytest.mark.parametrize(
    "path", ["rules/from_command.py", "rules/prefix.py", "limiter/policy_header.py"]
)
def test_what_other_tests_run_is_shown(path: str) -> None:
    """CONTRIBUTING shows the very source, matcher and header set that tests have."""
    assert f"```python\n{(TOP / 'tests' / path).read_text()}```" in CONTRIBUTING


@pytest.mark.timeout(600)
def test_lint(top: Path) -> None:
    """`make format` only puts imports in order, `make docs` writes tables, `make lint` passes."""
    before = files(top)

    formatted = make(top, "format")
    assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    assert {Path(name).name for name in changed(top, before)} <= {
        Path(step.path).name for title in COUNTS for step in steps(title)
    }
    before = files(top)
    ran = make(top, "docs", "lint")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert changed(top, before) <= MADE


@pytest.mark.timeout(600)
def test_tests(top: Path) -> None:
    """Tests pass, of which the examples' own are some. Those that need a browser may be skipped."""
    need("redis-server", "sudo apt install redis-server")

    make(top, "docs")
    ran = pytest_in(top, *TESTS, "-rpsfE")

    assert ran.returncode == 0, re.sub("^PASSED .*\n", "", ran.stdout, flags=re.MULTILINE)
    for store in ("memory", "redis"):
        assert f"\nPASSED tests/stores/test_cases.py::test_table_of_cases[{store}]" in ran.stdout
    for path in TESTS:
        assert re.search(rf"^(PASSED|SKIPPED \[\d+\]) {re.escape(path)}", ran.stdout, re.MULTILINE)


def test_what_is_missing(top: Path) -> None:
    """Without its documents, cases or Lua file, what `make lint` runs tells so of an algorithm."""
    lint = "tests/algorithms/test_declared.py"
    name = "penalty_window"
    paths = {
        "docs/rules.md": f"test_documents[{name}]",
        f"ratelimit_service/algorithms/lua/{name}.lua": f"test_lua[{name}]",
        f"tests/algorithms/ways/{name}.py": (
            f"tests.algorithms.ways.{name} is missing: see CONTRIBUTING.md"
        ),
    }
    for path, told in paths.items():
        there = (top / path).read_text()
        if path == "docs/rules.md":
            (top / path).write_text(there.replace(f"\n### {name}\n", "\n"))
        else:
            (top / path).unlink()
        assert told in pytest_in(top, lint).stdout
        (top / path).write_text(there)
