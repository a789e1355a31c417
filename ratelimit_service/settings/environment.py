"""The names in the environment that are ours, beside those of the settings themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ratelimit_service.settings.declared import settings
from ratelimit_service.settings.reference import checked, from_reference

__all__ = ["HANDOVER", "defaults", "inherited"]

HANDOVER = "RATELIMIT_HANDOVER"
"""Where a process that replaces its program tells the next one what it has left; no setting."""


def inherited() -> int | None:
    """The descriptor of what a former program of this process has left; told once."""
    left = os.environ.pop(HANDOVER, "")
    return int(left) if left else None


def defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """What holds where neither a flag nor `RATELIMIT_…` says something, by field name.

    That is what envoyproxy/ratelimit's names say and, below them, `RATELIMIT_DEFAULT_…`, by which
    an image has defaults of its own. Raises SettingsError for what cannot be used.
    """
    found = {}
    for each in settings():
        if text := environ.get(each.default_environment):
            found[each.name] = checked(each.default_environment, text, each.parse)
    return found | from_reference(environ)
