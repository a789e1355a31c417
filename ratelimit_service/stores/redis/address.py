"""What a store URL says: where Redis is and how to be let in. Opens nothing."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from redis.asyncio.connection import parse_url

from ratelimit_service.errors import SettingsError

__all__ = ["Address"]

_SCHEMES = "redis://host:port/db, rediss://host:port/db, redis+unix:///path?db=0"
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

    @classmethod
    def parse(cls, url: str) -> Address:
        """Reads a store URL; the TLS files go into its query (`?ssl_ca_certs=/path`).

        Raises SettingsError for anything that cannot be used; its text holds no password.
        """
        scheme = url.partition("://")[0]
        if scheme not in {"redis", "rediss", "redis+unix"}:
            raise SettingsError(
                f"store scheme {scheme!r} is unknown: allowed are memory, {_SCHEMES}"
            )
        try:
            options = dict(parse_url(url.removeprefix("redis+")))
        except ValueError as error:
            # The library's text may quote the URL, and with it a password.
            raise SettingsError(f"the store URL cannot be read: allowed are {_SCHEMES}") from error
        if unknown := sorted(options.keys() - _OPTIONS):
            allowed = ", ".join(("db", *_TLS_OPTIONS))
            raise SettingsError(
                f"store URL option {unknown[0]!r} is unknown: allowed are {allowed}"
            )
        files = {name: str(options[name]) for name in _TLS_OPTIONS if name in options}
        if files and scheme != "rediss":
            raise SettingsError(f"store URL option {min(files)!r} needs rediss://")
        return cls(
            host=str(options.get("host", "localhost")),
            port=int(str(options.get("port", 6379))),
            path=str(options.get("path", "")),
            db=int(str(options.get("db", 0))),
            username=str(options.get("username", "")),
            password=str(options.get("password", "")),
            tls=_context(files) if scheme == "rediss" else None,
        )


def _context(files: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca_certs"))
        if "ssl_certfile" in files:
            context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"))
    except OSError as error:
        names = ", ".join(f"{name}={path}" for name, path in files.items())
        raise SettingsError(f"the store's TLS files cannot be used ({names}): {error}") from error
    return context
