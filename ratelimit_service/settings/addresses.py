"""Addresses as people write them: taken apart, and shown without their passwords."""

from __future__ import annotations

from urllib.parse import unquote

from ratelimit_service.errors import SettingsError

__all__ = ["redacted", "split_address", "unix_path"]


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    if "://" in text:
        raise SettingsError(f"{text!r} has a scheme: write HOST:PORT alone, as in 127.0.0.1:8081")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise SettingsError(f"{text!r} is no address: write HOST:PORT, as in 127.0.0.1:8081")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise SettingsError(f"{text!r}: write an IPv6 host in brackets, as in [::]:8081")
    return host.strip("[]"), int(port)


def unix_path(address: str) -> str | None:
    """The path of `unix:PATH`, None for any other address. Raises SettingsError without a path."""
    kind, _, path = address.partition(":")
    if kind != "unix":
        return None
    if not path:
        raise SettingsError(f"{address!r} names no socket: write unix:/run/ratelimit.sock")
    return path.removeprefix("//")


def redacted(url: str) -> str:
    """A store URL fit for a log: without its passwords, also where they are not encoded."""
    scheme, slashes, rest = url.partition("://")
    head, mark, query = rest.partition("?")
    login, at, target = head.rpartition("@")
    if (
        not at and "@" in query and "=" not in query.partition("@")[0]
    ):  # the ? belongs to a password
        login, at, target = rest.rpartition("@")
        target, mark, query = target.partition("?")
    user, colon, _ = login.partition(":")
    options = "&".join(map(_without_password, query.split("&")))
    return f"{scheme}{slashes}{user}{colon and ':***'}{at}{target}{mark}{options}"


def _without_password(option: str) -> str:
    name, equals, _ = option.partition("=")
    return f"{name}=***" if equals and unquote(name).endswith("password") else option
