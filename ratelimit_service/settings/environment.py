"""The environment as a whole: what holds below our own names, and what is to be said of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.declared import Settings, settings
from ratelimit_service.settings.reference import Treatment, set_in
from ratelimit_service.settings.translation import from_reference
from ratelimit_service.settings.values import SWITCH, checked, is_on

__all__ = ["HANDOVER", "defaults", "from_environment", "inherited", "remarks"]

_OURS = "RATELIMIT_"

HANDOVER = "RATELIMIT_HANDOVER"
"""Where a process that replaces its program tells the next one what it has left; no setting."""

_OTHERS = (HANDOVER, "RATELIMIT_ADDRESS", "RATELIMIT_ADMIN_TOKEN", "RATELIMIT_ADMIN_TLS_CA")
"""Names that no setting has: these are for `ratelimit hit` and whoever asks the admin listener."""

_SERVICE_LINKS = re.compile(
    r"RATELIMIT_(\w+_)?"
    r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes says of Services whose names begin with `ratelimit`."""

_NEAR = 0.75
"""How alike a name must be to be a misspelling of another, from 0 to 1."""


def inherited() -> int | None:
    """The descriptor of what a former program of this process has left; told once."""
    number = os.environ.pop(HANDOVER, "")
    return int(number) if number else None


def from_environment(environ: Mapping[str, str], prefix: str, **given: object) -> Settings:
    """Settings for a command that takes only those with this prefix from the environment.

    Raises SettingsError for what cannot be used.
    """
    below = defaults(environ)
    found = {}
    for each in settings():
        text = environ.get(each.environment) or below.get(each.name)
        if each.name.startswith(prefix) and text:
            found[each.name] = each.parse(checked(each.environment, text, each.parse))
    return Settings(**(found | given))  # type: ignore[arg-type]  # each was read by its parser


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


def remarks(environ: Mapping[str, str]) -> list[str]:
    """What a start says of variables that are set and do nothing, a line each.

    Raises SettingsError for a name of ours that is misspelt.
    """
    lines = []
    if unknown := _unknown(environ):
        lines.append(f"no setting has these names, so they do nothing: {', '.join(unknown)}")
    if ignored := _ignored(environ):
        lines.append(
            "ignored, since they tune only what envoyproxy/ratelimit is made of: "
            f"{', '.join(ignored)}; docs/migration.md says what holds instead"
        )
    return lines


def _unknown(environ: Mapping[str, str]) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 -- only at the start, not in workers

    known = set(_OTHERS)
    for each in settings():
        known |= {each.environment, each.default_environment}
    unknown = []
    for name in sorted(environ):
        if not name.startswith(_OURS) or name in known or _SERVICE_LINKS.fullmatch(name):
            continue
        short = {each.removeprefix(_OURS): each for each in known}
        near = get_close_matches(name.removeprefix(_OURS), short, n=1, cutoff=_NEAR)
        if near:
            raise SettingsError(f"{name} is no name of a setting: did you mean {short[near[0]]}?")
        unknown.append(name)
    return unknown


def _ignored(environ: Mapping[str, str]) -> list[str]:
    """A switch that is off asks for nothing."""
    return [
        name
        for variable, name, value in set_in(environ)
        if variable.treatment is Treatment.IGNORED
        and not _is_off(value)
        and (not variable.only_with or is_on(environ, variable.only_with))
    ]


def _is_off(value: str) -> bool:
    try:
        return not SWITCH.parse(value)
    except SettingsError:
        return False
