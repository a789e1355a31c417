"""What envoyproxy/ratelimit's environment names stand for here.

They rank below our own, so that this service can stand in for it as it is started today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.addresses import split_address
from ratelimit_service.settings.declared import Settings, settings
from ratelimit_service.settings.values import SWITCH

__all__ = ["checked", "from_reference"]


def from_reference(environ: Mapping[str, str]) -> dict[str, str]:
    """The values that envoyproxy/ratelimit's environment names stand for, by field name.

    Raises SettingsError for what this service cannot stand in for.
    """
    found = {}
    for each in settings():
        if text := environ.get(each.reference):
            found[each.name] = checked(each.reference, text, each.parse)
    if not SWITCH.parse(
        checked("GRPC_SERVER_USE_TLS", environ.get("GRPC_SERVER_USE_TLS") or "false", SWITCH.parse)
    ):
        for name in ("tls_cert", "tls_key", "tls_client_ca", "tls_client_san"):
            found.pop(name, None)
    if path := environ.get("GRPC_UDS"):
        found["grpc"] = f"unix:{path}"
    if any(environ.get(name) for name in _RUNTIME):
        found["rules"] = str(
            Path(*(environ.get(name, default) for name, default in _RUNTIME.items()))
        )
    for name, host, port in (("http", "HOST", "PORT"), ("grpc", "GRPC_HOST", "GRPC_PORT")):
        if name not in found and (environ.get(host) or environ.get(port)):
            default_host, default_port = split_address(str(getattr(Settings(), name)))
            place = environ.get(host) or default_host
            place = f"[{place}]" if ":" in place else place
            text = f"{place}:{environ.get(port) or default_port}"
            found[name] = checked(f"{host} and {port}", text, split_address)
    backend = environ.get("BACKEND_TYPE") or "redis"
    if backend != "redis":
        raise SettingsError(
            f"BACKEND_TYPE={backend} is not supported: use redis, or --store memory"
        )
    if environ.get("REDIS_URL"):
        found["store"] = _reference_store(environ, "REDIS_")
        per_second = environ.get("REDIS_PERSECOND") or "false"
        if SWITCH.parse(checked("REDIS_PERSECOND", per_second, SWITCH.parse)) and environ.get(
            "REDIS_PERSECOND_URL"
        ):
            found["second_store"] = _reference_store(environ, "REDIS_PERSECOND_")
    return found


def checked(name: str, text: str, parse: Callable[[str], object]) -> str:
    """The text, if it can be read; else the error names the variable."""
    try:
        parse(text)
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from error
    return text


_RUNTIME = {
    "RUNTIME_ROOT": "/srv/runtime_data/current",
    "RUNTIME_SUBDIRECTORY": "",
    "RUNTIME_APPDIRECTORY": "config",
}


def _reference_store(environ: Mapping[str, str], prefix: str) -> str:
    kind = (environ.get(f"{prefix}TYPE") or "single").lower()
    if kind not in {"single", "sentinel", "cluster"}:
        raise SettingsError(f"{prefix}TYPE={kind} is unknown: use single, sentinel or cluster")
    url = environ[f"{prefix}URL"]
    auth = environ.get(f"{prefix}AUTH", "")
    user, _, password = auth.partition(":") if ":" in auth else ("", "", auth)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
    tls = SWITCH.parse(
        checked(f"{prefix}TLS", environ.get(f"{prefix}TLS") or "false", SWITCH.parse)
    )
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
