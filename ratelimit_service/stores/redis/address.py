"""What a store URL says: where Redis is, in how many shards, and how to be let in.

Opens no connection. Passwords and TLS files that lie in files are read by whoever connects,
each time, so that they may be replaced.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ratelimit_service.errors import SettingsError, StoreError
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.net.pem import client_context
from ratelimit_service.text.display import reason
from ratelimit_service.text.durations import parse_duration

__all__ = [
    "Address",
    "Cluster",
    "Login",
    "Member",
    "RedisTLSFiles",
    "Ring",
    "Sentinels",
    "parse_store",
    "without",
]

SCHEMES = (
    "redis://host:port/db, rediss://host:port/db, redis+unix:///path?db=0, "
    "redis+ring://host:port,host:port/db, redis+cluster://host:port,host:port, "
    "redis+sentinel://host:port,host:port/name, and the last three over TLS as rediss+ring://…"
)
_ALLOWED = f"allowed are memory, {SCHEMES}, and file:SHARDS.yaml"
_SCHEME = re.compile(r"[A-Za-z0-9+.-]*")
_DATABASE = re.compile(r"[0-9]{1,9}")
_PORT = 6379
_SENTINEL_PORT = 26379
_LOGIN = ("username", "password", "password_file")
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CHECK_HOSTNAME = "ssl_check_hostname"
_TLS = (*_TLS_FILES, _CHECK_HOSTNAME)
_SLOTS = "slots"
_TIMEOUT = "timeout"
_SENTINEL = ("sentinel_username", "sentinel_password", "sentinel_password_file")


_LEAST_SHOWN = 8
"""The beginning of a password is hidden as well, if it has at least so many characters."""


def without(password: str, text: str) -> str:
    """A server's text without the password, also if the server cut the password off."""
    for size in range(len(password), min(len(password), _LEAST_SHOWN) - 1, -1):
        if size and password[:size] in text:
            return text.replace(password[:size], "***")
    return text


@dataclass(frozen=True, slots=True)
class Login:
    """The user, and the password or the file that has it. Its repr has no password."""

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""

    def read(self) -> tuple[str, str]:
        """The user and the password that hold now. Raises StoreError if their file cannot be read.

        A file may name the user, too, as user:password; a user outside of it counts more.
        """
        if not self.password_file:
            return self.username, self.password
        try:
            text = read_whole(self.password_file).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise StoreError(f"the password file cannot be read: {reason(error)}") from error
        if self.username or ":" not in text:
            return self.username, text
        user, _, password = text.partition(":")
        return user, password


@dataclass(frozen=True, slots=True)
class RedisTLSFiles:
    """The PEM files of TLS. Without `ca` the system's authorities are trusted.

    Without `check_hostname` a server's certificate may be for another host.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """The files as they are now. Raises StoreError if they cannot be used."""
        try:
            context = client_context(self.ca, self.cert, self.key)
            context.check_hostname = self.check_hostname
        except (OSError, ValueError) as error:
            files = zip(_TLS_FILES, (self.ca, self.cert, self.key), strict=True)
            names = ", ".join(f"{name}={path}" for name, path in files if path)
            raise StoreError(
                f"the store's TLS files cannot be used ({names}): {reason(error)}"
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis server: host and port, or the path of a Unix socket."""

    host: str = "localhost"
    port: int = _PORT
    path: str = ""
    db: int = 0
    login: Login = Login()
    tls: RedisTLSFiles | None = None
    slots: bool = False
    """Whether it is known to enforce a cluster's slots, though it is asked as one server."""

    def __str__(self) -> str:
        endpoint = self.path or f"{self.host}:{self.port}"
        return f"{endpoint}/{self.db}"


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The Sentinels to ask for a master's address, and the rest of that address."""

    endpoints: tuple[tuple[str, int], ...]
    name: str
    master: Address
    login: Login = Login()

    def __str__(self) -> str:
        endpoints = ",".join(f"{host}:{port}" for host, port in self.endpoints)
        return f"{self.name} (by Sentinel at {endpoints})"


@dataclass(frozen=True, slots=True)
class Member:
    """A shard of a ring. Which counters it has depends on its name and its weight only."""

    name: str
    endpoint: Address | Sentinels
    timeout_us: int | None = None
    """How long it may take to answer, if its URL says so."""
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Ring:
    """Shards that share the counters out; a single server is a ring of one."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of a Redis Cluster that know the others; login and TLS are the same for all."""

    seeds: tuple[Address, ...]
    timeout_us: int | None = None
    """How long a node may take to answer, if the URL says so."""


def parse_store(url: str) -> Ring | Cluster:
    """Reads a store URL.

    Raises SettingsError for anything that cannot be used; its text holds no password.
    """
    scheme = url.partition("://")[0]
    if not _SCHEME.fullmatch(scheme):  # not shown: it may hold a password
        raise SettingsError(f"the store has no scheme, as redis:// is one: {_ALLOWED}")
    if scheme not in _READERS:
        raise SettingsError(f"store scheme {scheme!r} is unknown: {_ALLOWED}")
    try:
        return _READERS[scheme](_Read(url))
    except _UnreadableError as error:
        raise SettingsError(
            f"the store URL cannot be read: {error}: allowed are {SCHEMES}; "
            "a mark in a password is written as %XX: ? as %3F, # as %23, @ as %40, / as %2F"
        ) from error
    except StoreError as error:
        raise SettingsError(str(error)) from error


class _UnreadableError(Exception):
    """What is wrong with a URL. It quotes none of it: any part may be that of a password."""


class _Read:
    """A URL in its parts. Raises _UnreadableError if it is not one."""

    def __init__(self, url: str) -> None:
        parts = _split(url)
        if parts.fragment:  # most likely the rest of a password
            raise _UnreadableError("it has a #")
        self.scheme = parts.scheme
        login, _, self.hosts = parts.netloc.rpartition("@")
        self.path = unquote(parts.path)
        try:
            self.options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        except ValueError as error:
            before = "@" in parts.query
            raise _UnreadableError(
                "it has a ? before an @" if before else "an option is not NAME=VALUE"
            ) from error
        port = self.hosts.rpartition(":")[2]
        no_port = ":" in self.hosts and not login and not port.removesuffix("]").isdecimal()
        if any("@" in name for name in self.options) or ("@" in parts.query and no_port):
            raise _UnreadableError("it has a ? before an @")  # that is, in a password
        username, _, password = map(unquote, login.partition(":"))
        if username:
            self.options.setdefault("username", username)
        if password:
            self.options.setdefault("password", password)

    def check(self, *known: Collection[str]) -> None:
        """Raises SettingsError if there is any other option than these."""
        allowed = [name for names in (*known, (_TIMEOUT,)) for name in names]
        if unknown := sorted(set(self.options) - set(allowed)):
            shown = ", ".join(allowed)
            raise SettingsError(f"store URL option {unknown[0]!r} is unknown: allowed are {shown}")

    def endpoints(self, default_port: int) -> tuple[tuple[str, int], ...]:
        return tuple(_endpoint(host, default_port) for host in self.hosts.split(","))

    def database(self) -> int:
        """The database: from the path, or from the option if the path says something else."""
        return _database(self.options.get("db") or self.path.strip("/"))

    def login(self, prefix: str = "") -> Login:
        return Login(*(self.options.get(prefix + name, "") for name in _LOGIN))

    def timeout_us(self) -> int | None:
        """How long a server may take to answer; None if the URL does not say."""
        if _TIMEOUT not in self.options:
            return None
        try:
            timeout_us = parse_duration(self.options[_TIMEOUT])
        except SettingsError as error:
            raise SettingsError(f"store URL option {_TIMEOUT!r}: {error}") from error
        if not timeout_us:
            raise SettingsError(f"store URL option {_TIMEOUT!r} is 0: write a time, as in 300ms")
        return timeout_us

    def tls(self) -> RedisTLSFiles | None:
        """The TLS files, tried once; None without any, unless the scheme says TLS."""
        if not self.scheme.startswith("rediss") and not any(name in self.options for name in _TLS):
            return None
        check = self.options.get(_CHECK_HOSTNAME, "true")
        if check not in {"true", "false"}:
            raise SettingsError(f"store URL option {_CHECK_HOSTNAME!r} is neither true nor false")
        ca, cert, key = (self.options.get(name, "") for name in _TLS_FILES)
        files = RedisTLSFiles(ca, cert, key, check == "true")
        files.context()
        return files


def _single(read: _Read) -> Ring:
    read.check(("db",), _LOGIN, _TLS, (_SLOTS,))
    if read.options.get(_SLOTS, "yes") != "yes":
        raise SettingsError(
            f"store URL option {_SLOTS!r} can only be yes: without it the server is asked"
        )
    if read.scheme != "rediss":
        for name in _TLS:
            if name in read.options:
                raise SettingsError(f"store URL option {name!r} needs rediss://")
    (host, port), *others = read.endpoints(_PORT)
    if others:
        raise _UnreadableError("it names several servers, as a ring or a cluster has")
    slots = _SLOTS in read.options
    address = Address(host, port, "", read.database(), read.login(), read.tls(), slots)
    return Ring((Member(f"{host}:{port}", address, read.timeout_us()),))


def _unix(read: _Read) -> Ring:
    read.check(("db",), _LOGIN)
    if not read.path:
        raise _UnreadableError("it names no path")
    database = _database(read.options.get("db", ""))
    address = Address(path=read.path, db=database, login=read.login())
    return Ring((Member(read.path, address, read.timeout_us()),))


def _ring(read: _Read) -> Ring:
    read.check(("db",), _LOGIN, _TLS)
    endpoints, database, login, tls, timeout_us = (
        read.endpoints(_PORT),
        read.database(),
        read.login(),
        read.tls(),
        read.timeout_us(),
    )
    if len(set(endpoints)) < len(endpoints):
        raise SettingsError("a shard is named twice in the store URL")
    return Ring(
        tuple(
            Member(f"{host}:{port}", Address(host, port, "", database, login, tls), timeout_us)
            for host, port in endpoints
        )
    )


def _cluster(read: _Read) -> Cluster:
    read.check(_LOGIN, _TLS)
    if read.database():
        raise SettingsError("a Redis Cluster has database 0 only: leave it out of the store URL")
    login, tls = read.login(), read.tls()
    return Cluster(
        tuple(Address(host, port, login=login, tls=tls) for host, port in read.endpoints(_PORT)),
        read.timeout_us(),
    )


def _sentinel(read: _Read) -> Ring:
    read.check(("db",), _LOGIN, _TLS, _SENTINEL)
    name = read.path.strip("/")
    if not name:
        raise _UnreadableError("its last part, the name of the master, is missing")
    if not read.hosts:
        raise _UnreadableError("it names no Sentinel")
    if re.search(r":\d+$", name):
        raise SettingsError(
            "the last part of the store URL is the name of the master, not an address: write "
            "redis+sentinel://HOST:PORT,HOST:PORT/NAME"
        )
    database = _database(read.options.get("db", ""))
    master = Address(db=database, login=read.login(), tls=read.tls())
    sentinels = Sentinels(read.endpoints(_SENTINEL_PORT), name, master, read.login("sentinel_"))
    return Ring((Member(name, sentinels, read.timeout_us()),))


_READERS: dict[str, Callable[[_Read], Ring | Cluster]] = {
    "redis": _single,
    "rediss": _single,
    "redis+unix": _unix,
    "redis+ring": _ring,
    "redis+cluster": _cluster,
    "redis+sentinel": _sentinel,
    "rediss+ring": _ring,
    "rediss+cluster": _cluster,
    "rediss+sentinel": _sentinel,
}


def _database(text: str) -> int:
    if text and not _DATABASE.fullmatch(text):
        raise _UnreadableError("the database is no number")
    return int(text or 0)


def _endpoint(text: str, default_port: int) -> tuple[str, int]:
    parts = _split(f"//{text}")
    try:
        port = parts.port
    except ValueError as error:
        raise _UnreadableError("a port is no number up to 65535") from error
    return parts.hostname or "localhost", port or default_port


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise _UnreadableError("a host is none") from error
