"""The environment as a whole: what holds below our own names, and what is to be said of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.declared import Settings, settings
from ratelimit_service.settings.reference import (
    REFERENCE,
    Treatment,
    is_service_link,
    set_in,
)
from ratelimit_service.settings.translation import from_reference
from ratelimit_service.settings.values import SWITCH, checked, is_on

__all__ = [
    "HANDOVER",
    "defaults",
    "from_environment",
    "inherited",
    "refuse_incomplete",
    "remarks",
]

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

_OF_A_STORE = re.compile("REDIS|STORE")
"""Such a name below `RATELIMIT_` asks for a store, though no setting has it."""

_NEAR = 0.75
"""How alike a name must be to be a misspelling of another, from 0 to 1."""

_THEIRS = re.compile("(REDIS|GRPC|RUNTIME|CONFIG|USE|LOCAL_CACHE|EXPIRATION)_")
"""How families of envoyproxy/ratelimit's names begin: who sets such a name means the service."""

_NEAR_THEIRS = 0.85
"""The same for their names, of which others may set some: REDIS_HOST is no misspelling."""

_OF_GRPC = re.compile(
    "GRPC_(VERBOSITY|TRACE|STACKTRACE_MINLOGLEVEL|DNS_RESOLVER|POLL_STRATEGY|EXPERIMENT|ENABLE_"
    "|DEFAULT_SSL|NOT_USE_SYSTEM|SYSTEM_SSL|SSL_|GO_|PYTHON_|PROXY_EXP|XDS_|ABORT_ON_|BINARY_LOG_"
    "|BUILD_|LB_|ALTS_|CLIENT_CHANNEL_|ARENA_|FORK_|HEALTH_|CONFIG_)"
)
"""Names that gRPC's own libraries read, in this process or beside it."""


def inherited() -> int | None:
    """The descriptor of what a former program of this process has left; told once."""
    number = os.environ.pop(HANDOVER, "")
    return int(number) if number else None


def from_environment(environ: Mapping[str, str], prefix: str, **given: object) -> Settings:
    """Settings for a command that takes only those with this prefix from the environment.

    Raises SettingsError for what cannot be used.
    """
    below = defaults(environ)
    values = {}
    for setting in settings():
        text = environ.get(setting.environment) or below.get(setting.name)
        if setting.name.startswith(prefix) and text:
            values[setting.name] = setting.parse(checked(setting.environment, text, setting.parse))
    return Settings(**(values | given))  # type: ignore[arg-type]  # each was read by its parser


def defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """What holds where neither a flag nor `RATELIMIT_…` says something, by field name.

    That is what envoyproxy/ratelimit's names say and, below them, `RATELIMIT_DEFAULT_…`, by which
    an image has defaults of its own. Raises SettingsError for what cannot be used.
    """
    values = {}
    for setting in settings():
        if text := environ.get(setting.default_environment):
            values[setting.name] = checked(setting.default_environment, text, setting.parse)
    return values | from_reference(environ)


def refuse_incomplete(environ: Mapping[str, str], given: Settings, *, store_named: bool) -> None:
    """Raises SettingsError if a store or a protection was asked for and lacks what it needs.

    `store_named` says that somebody chose where to count, so memory is meant.
    """
    if is_on(environ, "GRPC_SERVER_USE_TLS") and not (given.tls_cert and given.tls_key):
        raise SettingsError(
            "GRPC_SERVER_USE_TLS is on, but GRPC_SERVER_TLS_CERT or GRPC_SERVER_TLS_KEY is not "
            "set: set both, or GRPC_SERVER_USE_TLS=false for no TLS"
        )
    if given.store != "memory" or store_named:
        return
    for name in ("RATELIMIT_STORE", "REDIS_URL"):
        if name in environ:
            raise SettingsError(
                f"{name} is empty, so each process would count for itself in memory: set it to a "
                "Redis, or take it out and say RATELIMIT_STORE=memory"
            )
    asking = [
        name
        for variable, name, value in set_in(environ)
        if (name == "BACKEND_TYPE" or variable.name.startswith("REDIS_")) and not _is_off(value)
    ]
    asking += [name for name in _strange(environ) if environ[name] and _OF_A_STORE.search(name)]
    if asking:
        raise SettingsError(
            f"{', '.join(asking)} set, but not REDIS_URL, so each process would count for itself "
            "in memory: set REDIS_URL, or say RATELIMIT_STORE=memory"
        )


def remarks(environ: Mapping[str, str]) -> list[str]:
    """What a start says of variables that are set and do nothing, a line each.

    Raises SettingsError for a misspelt name of ours or of envoyproxy/ratelimit's.
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
    short = {each.removeprefix(_OURS): each for each in _known()}
    unknown = _strange(environ)
    for name in unknown:
        near = get_close_matches(name.removeprefix(_OURS), short, n=1, cutoff=_NEAR)
        if near:
            raise SettingsError(f"{name} is no name of a setting: did you mean {short[near[0]]}?")
    return unknown + _unknown_of_theirs(environ)


def _known() -> set[str]:
    """The names below `RATELIMIT_` that mean something."""
    return {
        name
        for setting in settings()
        for name in (setting.environment, setting.default_environment)
    } | {*_OTHERS}


def _strange(environ: Mapping[str, str]) -> list[str]:
    """The names below `RATELIMIT_` that mean nothing, and that Kubernetes has not set."""
    known = _known()
    return [
        name
        for name in sorted(environ)
        if name.startswith(_OURS) and name not in known and not _SERVICE_LINKS.fullmatch(name)
    ]


def _unknown_of_theirs(environ: Mapping[str, str]) -> list[str]:
    honoured = [variable.name for variable in REFERENCE if variable.treatment is Treatment.HONOURED]
    unknown = []
    for name in sorted(environ):
        family = _THEIRS.match(name)
        if (
            not (family and environ[name])
            or is_service_link(name, environ[name])
            or any(variable.is_for(name) for variable in REFERENCE)
        ):
            continue
        alike = [variable for variable in honoured if variable.startswith(family[0])]
        if near := get_close_matches(name, alike, n=1, cutoff=_NEAR_THEIRS):
            raise SettingsError(f"{name} is no name of a setting: did you mean {near[0]}?")
        if not _OF_GRPC.match(name):
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
