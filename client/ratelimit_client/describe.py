"""Descriptors from HTTP requests: what both middlewares ask about.

A description is a list of mappings, one for each descriptor. A value is a text, or a function of
the request, as those below. Where one of them finds nothing, its descriptor is left out, as Envoy
leaves it out; a request of which nothing is left is not limited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ratelimit_client.descriptors import Described
from ratelimit_client.model import Value

__all__ = ["Description", "HTTPRequest", "Part", "address", "described", "header", "method", "path"]


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """What both gateways know of a request. `raw` is the scope, or the environ."""

    method: str
    path: str
    address: str
    headers: Mapping[str, str]
    raw: Mapping[str, object]

    def header(self, name: str) -> str | None:
        """A header's value; that of several with this name joined by commas."""
        return self.headers.get(name.lower())


Part = Value | Callable[[HTTPRequest], Value | None]
Description = (
    Sequence[Mapping[str, Part]] | Callable[[HTTPRequest], Sequence[Described] | Described | None]
)
"""Mappings as above, or a function that makes descriptors of the request, None for no limit."""


def described(description: Description, request: HTTPRequest) -> list[Described]:
    """The descriptors of a request; none if it is not to be limited."""
    if callable(description):
        result = description(request)
        if result is None:
            return []
        return list(result) if isinstance(result, Sequence) else [result]
    descriptors: list[Described] = []
    for parts in description:
        entries: dict[str, Value] = {}
        for key, part in parts.items():
            value = part(request) if callable(part) else part
            if value is None:
                break
            entries[key] = value
        else:
            descriptors.append(entries)
    return descriptors


def header(name: str) -> Callable[[HTTPRequest], str | None]:
    """The value of a header. Nothing if the request does not have it, or has it empty."""
    lower = name.lower()
    return lambda request: request.headers.get(lower) or None


def address(request: HTTPRequest) -> str | None:
    """The address of whoever has connected: behind a proxy that is the proxy."""
    return request.address or None


def path(request: HTTPRequest) -> str:
    """The path, without the query."""
    return request.path


def method(request: HTTPRequest) -> str:
    """GET, POST and so on."""
    return request.method
