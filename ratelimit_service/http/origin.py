"""Who may ask over HTTP: programs, by a name of this service, and no web page.

A browser inside the network sends requests for whatever page it shows. A page of another site can
send a form or plain text to any address (so `/json` takes JSON only), and by a name of its own that
it turns to this address (DNS rebinding) it can even read the answers. So a request must name this
service by an address, or by a name that nobody outside can have.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Set as AbstractSet
from ipaddress import ip_address

__all__ = ["is_ours"]

_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")

_PRIVATE = ("localhost", "local", "internal", "svc")
"""Last labels that public DNS does not have."""


def is_ours(host: str, allowed: AbstractSet[str], *, strict: bool = False) -> bool:
    """Whether a Host header names this service: an address, a name without a dot, a private one.

    `strict` is for ports that only this machine should reach. There a name without a dot and a
    private one are nobody's: anybody in the network can claim them (mDNS, LLMNR). Only `localhost`
    and the machine's own name stay. `allowed` are further names, in lower case; `*` allows all.
    """
    parts = _HOST.fullmatch(host)
    if "*" in allowed:
        return True
    if parts is None:
        return False
    name = parts[1].rstrip(".").lower()
    if name in {"", "localhost", socket.gethostname().lower()} or name in allowed:
        return True
    if not strict and "." not in name and ":" not in name:
        return True
    try:
        ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        return not strict and name.rpartition(".")[2] in _PRIVATE
    return True
