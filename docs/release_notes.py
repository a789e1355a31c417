"""Prints what changed in a version, for the page of its release: `make release-notes`.

    python docs/release_notes.py           of the version in pyproject.toml, or what is unreleased
    python docs/release_notes.py 0.1.0     of this version

The text is a section of docs/changelog.md. Its links lead to the repository, since a release has no
files beside it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]

_HEADING = re.compile(r"^## (Unreleased|(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\))$", re.MULTILINE)
"""How a version is headed: `## 0.1.0 (2026-11-22)`."""


def sections(changelog: str) -> dict[str, str]:
    """What changed, by version, newest first; `Unreleased` for what has none yet."""
    found = list(_HEADING.finditer(changelog))
    ends = [each.start() for each in found[1:]] + [len(changelog)]
    return {
        each[2] or each[1]: changelog[each.end() : end].strip()
        for each, end in zip(found, ends, strict=True)
    }


def notes(changelog: str, version: str) -> str:
    """The notes of one version, with absolute links. Raises SystemExit if there are none."""
    known = sections(changelog)
    if version not in known:
        raise SystemExit(f"docs/changelog.md has no version {version}: it has {', '.join(known)}")
    return re.sub(r"\]\((?!https?://|#)([^)]+)\)", _absolute, known[version])


def _absolute(link: re.Match[str]) -> str:
    path, mark, anchor = link[1].partition("#")
    target = (DOCS / path).resolve().relative_to(DOCS.parent)
    return f"]({SOURCE}/blob/main/{target}{mark}{anchor})"


def main() -> None:
    """Prints the notes."""
    changelog = (DOCS / "changelog.md").read_text()
    version = PROJECT["version"] if PROJECT["version"] in sections(changelog) else "Unreleased"
    print(notes(changelog, sys.argv[1] if len(sys.argv) > 1 else version))


if __name__ == "__main__":
    main()
