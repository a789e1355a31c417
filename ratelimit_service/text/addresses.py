"""Addresses as people write them: taken apart, and shown without their passwords."""

from __future__ import annotations

import re
from urllib.parse import unquote

from ratelimit_service.errors import SettingsError

__all__ = ["redacted", "split_address", "tidy", "unix_path"]

_LEFT_OVER = re.compile(r"\$\([^)]*\)?|\$\{[^}]*\}?|\{\{|\}\}")
"""What a shell, Kubernetes or a chart should have put a value in the place of."""

_NO_HOST = re.compile("[\"'`$<>\\\\]")


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    if "://" in text:
        raise SettingsError(f"{text!r} has a scheme: write HOST:PORT alone, as in 127.0.0.1:8081")
    if not host or re.search(r"\s", host) or not port.isdecimal() or int(port) > 65_535:
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


def tidy(text: str) -> str:
    """An address, a URL or a list of hosts, without the blanks around it and around its commas.

    Raises SettingsError for what its author cannot have meant; the text holds no password.
    """
    login, at, target = text.strip().rpartition("@")
    tidied = login + at + re.sub(r"\s*,\s*", ",", target)
    if left_over := _LEFT_OVER.search(tidied):
        raise SettingsError(
            f"{left_over[0]!r} was not replaced by its value: in a Pod declare that variable above "
            "this one, in a shell or a chart set it"
        )
    if tidied[:1] in {'"', "'", "`"} or tidied[-1:] in {'"', "'", "`"}:
        raise SettingsError("it stands in quotes, which belong to the shell: leave them out")
    if re.search(r"[\s\x00-\x1f\x7f]", tidied):
        raise SettingsError("it holds a blank or a line end: take it out; a password has it as %XX")
    if sign := _NO_HOST.search(target.partition("?")[0]):
        raise SettingsError(f"{sign[0]!r} cannot stand in the name of a host: take it out")
    return tidied


def redacted(url: str) -> str:
    """A store URL fit for a log: without its logins, also where they are not encoded.

    What stands for a user may be the first half of a password with a colon.
    """
    scheme, slashes, rest = url.partition("://")
    head, mark, query = rest.partition("?")
    login, at, target = head.rpartition("@")
    if (
        not at and "@" in query and "=" not in query.partition("@")[0]
    ):  # the ? belongs to a password
        login, at, target = rest.rpartition("@")
        target, mark, query = target.partition("?")
    shown = "***" if ":" in login else login
    options = "&".join(map(_without_password, query.split("&")))
    return f"{scheme}{slashes}{shown}{at}{target}{mark}{options}"


def _without_password(option: str) -> str:
    name, equals, _ = option.partition("=")
    return f"{name}=***" if equals and unquote(name).endswith("password") else option
