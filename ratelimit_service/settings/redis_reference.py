"""What envoyproxy/ratelimit's `REDIS_…` variables come to: the URL of a store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.values import checked, is_on
from ratelimit_service.text.addresses import split_address, tidy

__all__ = ["second_store_of", "store_of"]


def store_of(environ: Mapping[str, str]) -> str:
    """The store's URL; empty if no `REDIS_URL` names one. Raises SettingsError."""
    return _url(environ, "REDIS_") if environ.get("REDIS_URL") else ""


def second_store_of(environ: Mapping[str, str]) -> str:
    """The URL of the store for counters of a second; empty if there is none.

    Raises SettingsError.
    """
    if not is_on(environ, "REDIS_PERSECOND"):
        return ""
    if not environ.get("REDIS_PERSECOND_URL"):
        raise SettingsError(
            "REDIS_PERSECOND is on, but REDIS_PERSECOND_URL is not set: set it, or "
            "REDIS_PERSECOND=false to count seconds in the one store"
        )
    return _url(environ, "REDIS_PERSECOND_")


def _url(environ: Mapping[str, str], prefix: str) -> str:
    kind = _one_of(environ, f"{prefix}TYPE", ("single", "sentinel", "cluster"), "single")
    socket = _one_of(environ, f"{prefix}SOCKET_TYPE", ("tcp", "unix"), "unix")
    url = tidy(checked(f"{prefix}URL", environ[f"{prefix}URL"], tidy))
    if "://" in url and not url.startswith(("redis://", "rediss://")):
        raise SettingsError(
            f"{prefix}URL has a scheme that is neither redis:// nor rediss://: name the store with "
            "--store, or leave the scheme out and set "
            f"{prefix}TYPE"
        )
    user, password = _login(environ, f"{prefix}AUTH")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
    tls = is_on(environ, f"{prefix}TLS")
    redis = "rediss" if tls else "redis"
    file = _login_file(environ, prefix)
    options = (_tls_options(environ, prefix) if tls else {}) | file
    if kind == "sentinel":
        options |= _sentinel_login(environ, prefix)
        name, hosts = _master_and_sentinels(url, prefix)
        return f"{redis}+sentinel://{login}{hosts}/{name}{_query(options)}"
    if kind == "cluster":
        return f"{redis}+cluster://{login}{url}{_query(options)}"
    if url.startswith(("redis://", "rediss://")):
        scheme, _, rest = url.partition("://")
        login = "" if "@" in rest else login
        if scheme == "rediss":
            options = _tls_options(environ, prefix) | file
        return f"{redis if tls else scheme}://{login}{rest}{_query(options, rest)}"
    if socket == "unix":
        _check_path(url, prefix, tls=tls)
        return f"redis+unix://{login}{url}{_query(options)}"
    return f"{redis}://{login}{url}{_query(options)}"


def _one_of(environ: Mapping[str, str], name: str, known: tuple[str, ...], default: str) -> str:
    value = (environ.get(name) or default).lower()
    if value not in known:
        words = f"{', '.join(known[:-1])} or {known[-1]}"
        raise SettingsError(f"{name}={value} is unknown: use {words}")
    return value


def _master_and_sentinels(url: str, prefix: str) -> tuple[str, str]:
    name, _, hosts = url.partition(",")
    if not hosts or _is_address(name):
        raise SettingsError(
            f"{prefix}URL lacks the name of the master, which comes before the Sentinels: "
            "write NAME,HOST:PORT,HOST:PORT"
        )
    return name, hosts


def _check_path(url: str, prefix: str, *, tls: bool) -> None:
    """Raises SettingsError for what is no path of a Unix socket, or is to speak TLS."""
    if _is_address(url):
        raise SettingsError(
            f"{prefix}URL is taken for the path of a Unix socket: if it is HOST:PORT, set "
            f"{prefix}SOCKET_TYPE=tcp"
        )
    if tls:
        raise SettingsError(
            f"{prefix}TLS is on, but {prefix}URL is the path of a Unix socket, which has no "
            f"TLS: set {prefix}SOCKET_TYPE=tcp, or {prefix}TLS=false"
        )


def _is_address(text: str) -> bool:
    try:
        split_address(text)
    except SettingsError:
        return False
    return "/" not in text


def _login(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """User and password of `password` or `user:password`.

    A line end behind it is left out: files and secrets often end with one.
    """
    auth = environ.get(name, "").rstrip("\r\n")
    checked(name, auth, _as_password)
    user, _, password = auth.partition(":") if ":" in auth else ("", "", auth)
    if user and not password:
        raise SettingsError(f"{name} has no password behind the colon: write USER:PASSWORD")
    return user, password


def _login_file(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    file = environ.get(f"{prefix}AUTH_FILE", "")
    if file and environ.get(f"{prefix}AUTH"):
        raise SettingsError(
            f"{prefix}AUTH and {prefix}AUTH_FILE are both set: leave one of them out"
        )
    return {"password_file": file} if file else {}


def _as_password(text: str) -> None:
    if any(not character.isprintable() for character in text):
        raise SettingsError("it holds a line end or a sign that nobody can type: take it out")
    if re.fullmatch(r"\$\(\w+\)|\$\{\w+\}|.*\{\{.*\}\}.*", text):
        raise SettingsError("it is the name of a variable, not its value: it was not replaced")


def _sentinel_login(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    user, password = _login(environ, f"{prefix}SENTINEL_AUTH")
    given = {"sentinel_username": user, "sentinel_password": password}
    return {name: value for name, value in given.items() if value}


def _tls_options(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """What is unset for the store of seconds is as for the other."""

    def named(name: str) -> str:
        return f"{prefix}{name}" if environ.get(f"{prefix}{name}") else f"REDIS_{name}"

    options = {
        option: environ[named(name)]
        for option, name in (
            ("ssl_ca_certs", "TLS_CACERT"),
            ("ssl_certfile", "TLS_CLIENT_CERT"),
            ("ssl_keyfile", "TLS_CLIENT_KEY"),
        )
        if environ.get(named(name))
    }
    if is_on(environ, named("TLS_SKIP_HOSTNAME_VERIFICATION")):
        options["ssl_check_hostname"] = "false"
    return options


def _query(options: Mapping[str, str], url: str = "") -> str:
    """Options as they stand behind a URL, which may have some of its own."""
    mark = "&" if "?" in url else "?"
    return mark + urlencode(options) if options else ""
