"""What envoyproxy/ratelimit's `REDIS_…` variables come to: the URL of a store."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.values import is_on

__all__ = ["second_store_of", "store_of"]


def store_of(environ: Mapping[str, str]) -> str:
    """The store's URL; empty if no `REDIS_URL` names one. Raises SettingsError."""
    return _url(environ, "REDIS_") if environ.get("REDIS_URL") else ""


def second_store_of(environ: Mapping[str, str]) -> str:
    """The URL of the store for counters of a second; empty if there is none.

    Raises SettingsError.
    """
    if is_on(environ, "REDIS_PERSECOND") and environ.get("REDIS_PERSECOND_URL"):
        return _url(environ, "REDIS_PERSECOND_")
    return ""


def _url(environ: Mapping[str, str], prefix: str) -> str:
    kind = (environ.get(f"{prefix}TYPE") or "single").lower()
    if kind not in {"single", "sentinel", "cluster"}:
        raise SettingsError(f"{prefix}TYPE={kind} is unknown: use single, sentinel or cluster")
    url = environ[f"{prefix}URL"]
    auth = environ.get(f"{prefix}AUTH", "")
    user, _, password = auth.partition(":") if ":" in auth else ("", "", auth)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
    tls = is_on(environ, f"{prefix}TLS")
    if kind != "single":
        if tls:
            raise SettingsError(
                f"{prefix}TLS with {prefix}TYPE={kind} does not say which authorities to trust: "
                "write --store redis+…://…?ssl_ca_certs=FILE"
            )
        first, _, others = url.partition(",")
        hosts = f"{others}/{first}" if kind == "sentinel" else url
        return f"redis+{kind}://{login}{hosts}"
    if url.startswith(("redis://", "rediss://")):
        scheme, _, place = url.partition("://")
        login = "" if "@" in place else login
        return f"{'rediss' if tls else scheme}://{login}{place}"
    if environ.get(f"{prefix}SOCKET_TYPE", "unix") == "unix":
        return f"redis+unix://{login}{url}"
    return f"{'rediss' if tls else 'redis'}://{login}{url}"
