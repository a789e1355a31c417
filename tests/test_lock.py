"""The lock files are those of the project: `make lock` writes them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
WANTED = PROJECT["project"]["dependencies"]
DEV = [each for each in PROJECT["dependency-groups"]["dev"] if isinstance(each, str)]


def locked(name: str) -> dict[str, set[str]]:
    """The versions of each package in a lock file; a package may have one for each platform."""
    found: dict[str, set[str]] = {}
    for line in (TOP / name).read_text().splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^ ;\\]+)", line)
        if match:
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("requirements.txt", WANTED), ("requirements-dev.txt", WANTED + DEV)],
    ids=["runs", "tests"],
)
def test_lock_has_what_the_project_wants(name: str, wanted: list[str]) -> None:
    """Each dependency of the project is in the lock file, in versions that it allows."""
    versions = locked(name)
    for text in wanted:
        requirement = Requirement(text)
        found = versions.get(canonicalize_name(requirement.name))
        assert found, f"{name} has no {requirement.name}: run make lock"
        for version in found:
            assert requirement.specifier.contains(version, prereleases=True), (
                f"{name} has {requirement.name} {version}, not {requirement.specifier}: "
                "run make lock"
            )


def test_tests_run_what_runs() -> None:
    """What runs has the same versions in both lock files."""
    runs, tests = locked("requirements.txt"), locked("requirements-dev.txt")

    assert {name: tests.get(name) for name in runs} == runs


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_lock_has_hashes(name: str) -> None:
    """Each version in a lock file has hashes, so that pip can be told to demand them."""
    text = (TOP / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert lines
    assert all("--hash=sha256:" in line for line in lines)
