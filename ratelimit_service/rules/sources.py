"""Every source of rules, by what stands before `://` in `--rules`."""

from __future__ import annotations

from ratelimit_service.errors import SettingsError
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.from_xds import FromXds
from ratelimit_service.rules.source import RuleSource
from ratelimit_service.settings import Settings

__all__ = ["SOURCES", "source_of"]

SOURCES: dict[str, type[RuleSource]] = {
    "": FromFiles,
    "xds": FromXds,
}
"""A path has no `://`."""


def source_of(settings: Settings) -> RuleSource:
    """The source that the settings name. Raises SettingsError if there is none of that kind."""
    if not settings.rules:  # an unset variable in a shell; as a path it would be the directory here
        raise SettingsError("--rules is empty: name a file or a directory")
    scheme, separator, _ = settings.rules.partition("://")
    if not separator:
        scheme = ""
    if scheme not in SOURCES:
        known = ", ".join(f"{each}://…" for each in SOURCES if each)
        raise SettingsError(
            f"--rules {settings.rules}: write a path" + (f", or one of {known}" if known else "")
        )
    return SOURCES[scheme].of(settings)
