"""What a store URL says: where Redis is and how to be let in. Opens nothing."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio.connection import parse_url

from ratelimit_service.errors import SettingsError

__all__ = ["Address", "Sentinels", "parse_address"]

_SCHEMES = (
    "redis://host:port/db, rediss://host:port/db, redis+unix:///path?db=0, "
    "redis+sentinel://host:port,host:port/name"
)
_SENTINEL_PORT = 26379
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = {"host", "port", "db", "username", "password", "path", "connection_class", *_TLS_OPTIONS}


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis server: host and port, or the path of a Unix socket. Shown without password."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        place = self.path or f"{self.host}:{self.port}"
        return f"{place}/{self.db}"


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Whom to ask for the address of a master that may move, and all of it but host and port."""

    places: tuple[tuple[str, int], ...]
    name: str
    master: Address
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls_files: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        places = ",".join(f"{host}:{port}" for host, port in self.places)
        return f"{self.name} (by Sentinel at {places})"


def parse_address(url: str) -> Address | Sentinels:
    """Reads a store URL; the TLS files go into its query (`?ssl_ca_certs=/path`).

    Raises SettingsError for anything that cannot be used; its text holds no password.
    """
    scheme = url.partition("://")[0]
    if scheme not in {"redis", "rediss", "redis+unix", "redis+sentinel"}:
        raise SettingsError(f"store scheme {scheme!r} is unknown: allowed are memory, {_SCHEMES}")
    try:
        if scheme == "redis+sentinel":
            return _sentinels(url)
        options = {key: str(value) for key, value in parse_url(url.removeprefix("redis+")).items()}
    except ValueError as error:
        # The library's text may quote the URL, and with it a password.
        raise SettingsError(f"the store URL cannot be read: allowed are {_SCHEMES}") from error
    _check_options(options, _OPTIONS, ("db", *_TLS_OPTIONS))
    files = _tls_files(options)
    if files and scheme != "rediss":
        raise SettingsError(f"store URL option {files[0][0]!r} needs rediss://")
    return Address(
        host=options.get("host", "localhost"),
        port=int(options.get("port", 6379)),
        path=options.get("path", ""),
        db=int(options.get("db", 0)),
        username=options.get("username", ""),
        password=options.get("password", ""),
        tls=_context(dict(files)) if scheme == "rediss" else None,
    )


def _sentinels(url: str) -> Sentinels:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = map(unquote, login.partition(":"))
    options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    allowed = ("db", "sentinel_username", "sentinel_password", *_TLS_OPTIONS)
    _check_options(options, allowed, allowed)
    name = unquote(parts.path.strip("/"))
    if not hosts or not name:
        raise ValueError(url)
    files = _tls_files(options)
    tls = _context(dict(files)) if files else None
    return Sentinels(
        tuple(_place(host) for host in hosts.split(",")),
        name,
        Address(db=int(options.get("db", 0)), username=username, password=password, tls=tls),
        options.get("sentinel_username", ""),
        options.get("sentinel_password", ""),
        files,
    )


def _place(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or _SENTINEL_PORT


def _check_options(options: Iterable[str], known: Collection[str], shown: Iterable[str]) -> None:
    if unknown := sorted(set(options) - set(known)):
        allowed = ", ".join(shown)
        raise SettingsError(f"store URL option {unknown[0]!r} is unknown: allowed are {allowed}")


def _tls_files(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, options[name]) for name in _TLS_OPTIONS if name in options)


def _context(files: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca_certs"))
        if "ssl_certfile" in files:
            context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"))
    except OSError as error:
        names = ", ".join(f"{name}={path}" for name, path in files.items())
        raise SettingsError(f"the store's TLS files cannot be used ({names}): {error}") from error
    return context
