"""Notes of a release, and what belongs to a project that others can join."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

TOP = Path(__file__).parents[2]
CHANGELOG = """\
# Changelog

## Unreleased

New: [rules](rules.md#times), [a file](../SECURITY.md) and [a site](https://example.com).

## 0.2.0 (2027-01-31)

### Mended

* Less.

## 0.1.0 (2026-11-22)

The first.
"""


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("release_notes", TOP / "docs" / "release_notes.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "release_notes", module)
    spec.loader.exec_module(module)
    return module


def test_notes_of_a_version(release: ModuleType) -> None:
    """The notes are what stands under the version, and their links lead to the repository."""
    blob = f"{release.SOURCE}/blob/main"

    assert release.notes(CHANGELOG, "0.2.0") == "### Mended\n\n* Less."
    assert release.notes(CHANGELOG, "0.1.0") == "The first."
    assert release.notes(CHANGELOG, "Unreleased") == (
        f"New: [rules]({blob}/docs/rules.md#times), [a file]({blob}/SECURITY.md) "
        "and [a site](https://example.com)."
    )


def test_version_without_notes(release: ModuleType) -> None:
    """A version that is not there is told, with those that are."""
    with pytest.raises(
        SystemExit, match=r"no version 0\.3\.0: it has Unreleased, 0\.2\.0, 0\.1\.0"
    ):
        release.notes(CHANGELOG, "0.3.0")


def test_changelog_is_dated(release: ModuleType) -> None:
    """Every version of the changelog has its date, but for what is not released yet."""
    text = (TOP / "docs" / "changelog.md").read_text()

    assert len(release.sections(text)) == len(re.findall("^## ", text, re.MULTILINE))


def test_issue_templates() -> None:
    """Each form has what GitHub asks of one: a name, a description, and fields with ids."""
    forms = sorted((TOP / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    config, *others = sorted(forms, key=lambda path: path.name != "config.yml")

    assert yaml.safe_load(config.read_text())["contact_links"]
    for form in others:
        content = yaml.safe_load(form.read_text())
        assert content["name"]
        assert content["description"]
        fields = [each for each in content["body"] if each["type"] != "markdown"]
        assert all(each["id"] and each["attributes"]["label"] for each in fields)
