"""An algorithm is five files: held by one that is not shipped, built as CONTRIBUTING says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import need

TOP = Path(__file__).parents[2]
NAME = "penalty_window"
FIXTURE = TOP / "tests" / "algorithms" / NAME

SHOWN = (
    (TOP / "CONTRIBUTING.md").read_text().partition("## An algorithm\n")[2].partition("\n## ")[0]
)
FILES = re.findall(r"^\d+\. `([^`]+)`(?:\s+\(\[the example's\]\(([^)]+)\)\))?", SHOWN, re.MULTILINE)
"""What CONTRIBUTING lists: each file to touch, and where the example's is."""


def inserted(text: str, before: str, added: str) -> str:
    assert text.count(before) == 1
    return text.replace(before, added + before)


def built(top: Path) -> Path:
    """A checkout with the example in it, made of the listed files and of nothing else."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", "*.so")
    for name in ("ratelimit_service", "tests", "docs"):
        shutil.copytree(TOP / name, top / name, ignore=ignored)
    for name in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(TOP / name, top / name)
    for target, source in FILES:
        path = top / target
        if path.name == "registry.py":
            path.write_text(inserted(path.read_text(), ')\n"""The places', f'    "{NAME}",\n'))
        elif path.name == "rules.md":
            parameter, algorithm, section = (TOP / source).read_text().split("\n\n", 2)
            text = inserted(path.read_text(), "| `soft` |", f"{parameter}\n")
            text = inserted(text, "\n### fixed_window\n", f"{algorithm}\n")
            path.write_text(inserted(text, "## Several limits\n", f"{section}\n"))
        else:
            assert not path.exists()
            shutil.copy(TOP / source, path)
    return top


def pytest_in(top: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(top)}
    return subprocess.run(
        command, cwd=top, env=environment, capture_output=True, text=True, check=False
    )


def test_five_files() -> None:
    """CONTRIBUTING lists five files, and shows of the first what the example declares."""
    (block,) = re.findall(r"```python\n(.*?)```", SHOWN, re.DOTALL)

    assert len(FILES) == 5
    assert block in (FIXTURE / f"{NAME}.py").read_text()


def test_walked_example(tmp_path: Path) -> None:
    """Built from these files it passes the table of cases on memory and Redis, read from rules.

    Without its documents, or without its cases, what `make lint` runs fails and says so.
    """
    need("redis-server", "sudo apt install redis-server")
    top = built(tmp_path / "top")
    lint = "tests/algorithms/test_declared.py"
    its_own = "declared or loaded or (table and (memory or redis))"

    done = pytest_in(
        top,
        *(lint, f"tests/algorithms/{NAME}/loaded.py", "tests/stores/test_cases.py"),
        *("-k", its_own, "-rp"),
    )

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("\nPASSED tests/stores/test_cases.py::test_table_of_cases") == 2
    assert f"\nPASSED tests/algorithms/{NAME}/loaded.py" in done.stdout
    assert f"\nPASSED {lint}" in done.stdout

    shutil.copy(TOP / "docs" / "rules.md", top / "docs" / "rules.md")
    undocumented = pytest_in(top, lint)
    (top / "tests" / "algorithms" / "ways" / f"{NAME}.py").unlink()
    untested = pytest_in(top, lint)

    assert f"test_documents[{NAME}]" in undocumented.stdout
    assert f"tests.algorithms.ways.{NAME} is missing: see CONTRIBUTING.md" in untested.stdout
