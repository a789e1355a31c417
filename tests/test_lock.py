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
COMPILE = PROJECT["dependency-groups"]["compile"]
DEV = [each for each in PROJECT["dependency-groups"]["dev"] if isinstance(each, str)]
BUILD = PROJECT["build-system"]["requires"]

LOCKS = {
    "requirements.txt": WANTED,
    "requirements-build.txt": BUILD,
    "requirements-compile.txt": COMPILE,
    "requirements-dev.txt": WANTED + COMPILE + DEV + BUILD,
}
"""The lock files, and what each must have."""


def locked(name: str) -> dict[str, set[str]]:
    """The versions of each package in a lock file; a package may have one for each platform."""
    found: dict[str, set[str]] = {}
    for line in (TOP / name).read_text().splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^ ;\\]+)", line)
        if match:
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_what_the_project_wants(name: str) -> None:
    """Each dependency of the project is in the lock file, in versions that it allows."""
    versions = locked(name)
    for text in LOCKS[name]:
        requirement = Requirement(text)
        found = versions.get(canonicalize_name(requirement.name))
        assert found, f"{name} has no {requirement.name}: run make lock"
        for version in found:
            assert requirement.specifier.contains(version, prereleases=True), (
                f"{name} has {requirement.name} {version}, not {requirement.specifier}: "
                "run make lock"
            )


@pytest.mark.parametrize("name", LOCKS)
def test_tests_run_what_runs(name: str) -> None:
    """What runs, builds or compiles has the same versions where it is tested."""
    mine, tested = locked(name), locked("requirements-dev.txt")

    assert {package: tested.get(package) for package in mine} == mine


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_hashes(name: str) -> None:
    """Each version in a lock file has hashes, so that pip can be told to demand them."""
    text = (TOP / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert lines
    assert all("--hash=sha256:" in line for line in lines)


@pytest.mark.parametrize("name", ["Makefile", "docker/Dockerfile"])
def test_what_is_installed_is_locked(name: str) -> None:
    """Whatever pip gets is held against the hashes; else it installs or builds the project alone.

    What writes the lock files has its version pinned.
    """
    text = (TOP / name).read_text().replace("\\\n", " ")
    commands = re.findall(r"\bpip\b(?: --\S+)* (?:install|wheel)\b[^&\n]*", text)

    assert commands
    for command in commands:
        alone = "--no-deps" in command and ("--no-build-isolation" in command or ".whl" in command)
        assert "--require-hashes" in command or alone or re.search(r" uv==\S+$", command), command
