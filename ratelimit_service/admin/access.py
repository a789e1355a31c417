"""Who may ask the admin listener.

Without tokens those may who are on this machine: they come from a loopback address or over a Unix
socket, and by no proxy. What must not live here: what is answered.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

from aiohttp import web

from ratelimit_service.admin.route import Actor, Role

__all__ = ["Access", "address_of", "is_local"]

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")
"""Headers by which a proxy says that the caller is somebody else."""


class Access:
    """Lets in, or says why not."""

    def actor(self, request: web.Request) -> Actor | str:
        """Who asks, or why they may not."""
        if not is_local(request):
            return (
                "only callers on this machine may ask here: give others tokens with "
                "--admin-token-file"
            )
        return Actor("local", Role.WRITE, address_of(request))


def is_local(request: web.Request) -> bool:
    """Whether a request comes from this machine, as far as anybody can tell."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    address = address_of(request)
    return address == "unix" or (bool(address) and ip_address(address).is_loopback)


def address_of(request: web.Request) -> str:
    """The caller's IP address, `unix` for a Unix socket, "" if the caller is gone."""
    connection = request.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        return "unix"
    address = request.get_extra_info("peername")
    return str(address[0]).partition("%")[0] if address else ""
