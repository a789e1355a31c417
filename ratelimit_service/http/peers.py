"""Where a request comes from, as far as anybody can tell."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from aiohttp import web

__all__ = ["address_of", "is_local"]

_FORWARDED = (
    "Forwarded",
    "Via",
    "X-Real-IP",
    "X-Client-IP",
    "X-Cluster-Client-IP",
    "Client-IP",
    "True-Client-IP",
    "CDN-Loop",
    "CF-Connecting-IP",
    "CF-Connecting-IPv6",
    "Fastly-Client-IP",
    "Fly-Client-IP",
    "X-Appengine-User-IP",
    "X-Azure-ClientIP",
    "X-Azure-SocketIP",
    "X-Original-For",
    "X-Original-Forwarded-For",
    "X-ProxyUser-Ip",
    "X-Remote-Addr",
    "X-Remote-IP",
)
_FORWARDED_PREFIXES = ("x-forwarded", "x-envoy-")
"""Headers by which a proxy says that the caller is somebody else. Envoy as it is by default sends
no `X-Forwarded-For`, but others of these."""


def is_local(request: web.Request) -> bool:
    """Whether a request comes from this machine, and not through a proxy that says so.

    It comes over a Unix socket, from a loopback address, or from the very address that it came to,
    which no other machine has.
    """
    headers = request.headers
    if any(name in headers for name in _FORWARDED):
        return False
    if any(name.lower().startswith(_FORWARDED_PREFIXES) for name in headers):
        return False
    address = address_of(request)
    if address in {"", "unix"}:
        return address == "unix"
    own = request.get_extra_info("sockname")
    ip = ip_address(address)
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    return bool(mapped.is_loopback) or (bool(own) and address == _plain(own[0]))


def address_of(request: web.Request) -> str:
    """The caller's IP address, `unix` for a Unix socket, "" if the caller is gone."""
    connection = request.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        return "unix"
    address = request.get_extra_info("peername")
    return _plain(address[0]) if address else ""


def _plain(address: str) -> str:
    """Without its zone."""
    return address.partition("%")[0]
