"""Sessions of browsers at the admin listener.

A browser sends what it has of an address with every request for it, whoever's page makes it ask. So
its session is a cookie that pages of other sites do not send (SameSite=Strict) and scripts do not
see (HttpOnly); and who changes something must show, in a header, a second secret that only a page
of ours can read. Nothing is kept here: both are made of a key, which is the token that somebody has
shown. So a session outlives a restart, and ends when its token does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

__all__ = ["COOKIE", "CSRF_HEADER", "SECONDS", "Session", "begin", "resume", "same"]

COOKIE = "ratelimit_session"
CSRF_HEADER = "X-CSRF-Token"
SECONDS = 12 * 3600
"""How long a session lasts."""


class Session(NamedTuple):
    """The cookie's value, and what must stand in the header of changes."""

    cookie: str
    csrf: str


def begin(key: bytes, now: int) -> Session:
    """A new session; `now` is in seconds since the epoch."""
    content = f"{now + SECONDS}.{secrets.token_hex(16)}"
    return Session(f"{content}.{_mac(key, 'session', content)}", _mac(key, "csrf", content))


def resume(cookie: str, key: bytes, now: int) -> Session | None:
    """The session of a cookie that was made with this key, if it is not over."""
    content, _, mac = cookie.rpartition(".")
    if not same(mac, _mac(key, "session", content)):
        return None
    if int(content.partition(".")[0]) < now:
        return None
    return Session(cookie, _mac(key, "csrf", content))


def same(given: str, wanted: str) -> bool:
    """Whether somebody knows a secret; how long it takes says nothing of it.

    What comes in a header or in JSON may be no text, and has lone surrogates then.
    """
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def _mac(key: bytes, what: str, content: str) -> str:
    text = f"{what} {content}".encode("utf-8", "surrogatepass")
    return hmac.new(key, text, hashlib.sha256).hexdigest()
