"""Workflow commands of GitHub Actions: what marks a line in a pull request."""

from __future__ import annotations

from ratelimit_service.rules.paths import Source

__all__ = ["annotation"]


def annotation(level: str, source: Source, title: str, text: str) -> str:
    """Marks a line; `level` is error, warning or notice. The text may have several lines."""
    location = f"file={_property(source.file)},line={source.line or 1},col={source.column or 1}"
    return f"::{level} {location},title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
