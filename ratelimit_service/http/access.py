"""Who may ask the admin listener.

With tokens, who shows one: in `Authorization: Bearer TOKEN`, or in a browser by a session. Without
tokens, whose certificate the listener's authorities vouch for; and where it asks for none, who is
on this machine: who comes from a loopback address or over a Unix socket, and by no proxy.

Pages of other sites may not ask at all. What must not live here: what is answered.
"""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.files.renewed import Renewed
from ratelimit_service.http.peers import address_of, is_local
from ratelimit_service.http.route import Actor, Role
from ratelimit_service.http.session import (
    COOKIE,
    CSRF_HEADER,
    SECONDS,
    Session,
    begin,
    resume,
    same,
)
from ratelimit_service.http.tokens import Token, read_tokens, token_of
from ratelimit_service.observability.health import Health
from ratelimit_service.settings import Settings

__all__ = ["Access", "Refused", "set_session"]


class Refused(NamedTuple):
    """Why somebody may not ask: 401 if a token is missing, else 403."""

    status: int
    why: str


class Access:
    """Lets in, or says why not."""

    def __init__(self, settings: Settings, health: Health) -> None:
        """Reads the tokens. Raises SettingsError if they cannot be used."""
        self._by_certificate = bool(settings.admin_tls_client_ca)
        self._key = secrets.token_bytes(32)
        """Of sessions without a token."""
        self.tokens: Renewed[tuple[Token, ...]] | None = None
        if path := settings.admin_token_file:
            self.tokens = Renewed(
                "admin tokens", [Path(path)], lambda: read_tokens(path), health, Counter()
            )

    def actor(self, request: web.Request, *, changes: bool) -> Actor | Refused:
        """Who asks, or why they may not. `changes` is whether they want to change something."""
        if refused := _foreign(request):
            return refused
        actor = self._known(request)
        if isinstance(actor, Refused) or not changes:
            return actor
        if actor.role is not Role.WRITE:
            return Refused(403, f"{actor.name} may read, and change nothing")
        if request.content_type != "application/json":
            return Refused(403, "changes are sent as Content-Type: application/json")
        if _is_browser(request):
            session = self.session(request)
            given = request.headers.get(CSRF_HEADER, "")
            if session is None or not same(given, session.csrf):
                return Refused(403, "this page's session is over: load it again")
        return actor

    def may_see_page(self, request: web.Request) -> Refused | None:
        """Why somebody may not have what is no secret: the console's own files."""
        if self.tokens is not None:
            return None  # so that a token can be asked for
        actor = self._known(request)
        return actor if isinstance(actor, Refused) else None

    def log_in(self, request: web.Request, text: str) -> tuple[Actor, Session] | Refused:
        """Begins a browser's session, with a token if these are needed."""
        if refused := _foreign(request):
            return refused
        if self.tokens is None:
            known = self._known(request)
            return known if isinstance(known, Refused) else (known, begin(self._key, _now()))
        token = token_of(self.tokens.value, text)
        if token is None:
            return Refused(401, "this is none of the tokens")
        actor = Actor(token.name, token.role, address_of(request))
        return actor, begin(token.text.encode(), _now())

    def session(self, request: web.Request) -> Session | None:
        """The session of a browser that has one."""
        return self._session(request)[0]

    def _session(self, request: web.Request) -> tuple[Session | None, Token | None]:
        cookie = _cookie(request)
        if not cookie:
            return None, None
        if self.tokens is None:
            return resume(cookie, self._key, _now()), None
        for token in self.tokens.value:
            if session := resume(cookie, token.text.encode(), _now()):
                return session, token
        return None, None

    def _known(self, request: web.Request) -> Actor | Refused:
        address = address_of(request)
        if self.tokens is not None:
            kind, _, text = request.headers.get("Authorization", "").partition(" ")
            if kind.lower() == "bearer":
                token = token_of(self.tokens.value, text.strip())
            else:
                token = self._session(request)[1]
            if token is None:
                return Refused(401, "a token is needed: Authorization: Bearer TOKEN")
            return Actor(token.name, token.role, address)
        if self._by_certificate:
            return Actor(_holder(request), Role.WRITE, address)
        if not is_local(request):
            return Refused(
                403,
                "only callers on this machine may ask here, and none behind a proxy: give others "
                "tokens with --admin-token-file",
            )
        return Actor("local", Role.WRITE, address)


def set_session(response: web.StreamResponse, request: web.Request, session: Session) -> None:
    """Gives a browser its session's cookie."""
    response.set_cookie(
        COOKIE,
        session.cookie,
        max_age=SECONDS,
        path="/",
        httponly=True,
        samesite="Strict",
        secure=request.secure,
    )


def _foreign(request: web.Request) -> Refused | None:
    """Why a page of another site may not ask; None if it is not one that asks."""
    origin = request.headers.get("Origin")
    ours = f"{'https' if request.secure else 'http'}://{request.headers.get('Host', '')}"
    site = request.headers.get("Sec-Fetch-Site", "none")
    if (origin is not None and origin != ours) or site not in {"same-origin", "none"}:
        return Refused(403, "pages of other sites may not ask here")
    return None


def _is_browser(request: web.Request) -> bool:
    return any(name in request.headers for name in ("Origin", "Sec-Fetch-Site", "Cookie"))


def _cookie(request: web.Request) -> str:
    """The session's cookie; "" if there is none.

    It needs no quotes. Python's own reader takes 0.1 s for some headers of 8 KB, and whoever may
    not ask can send one.
    """
    for pair in reversed(request.headers.get("Cookie", "").split(";")):
        name, _, value = pair.partition("=")
        if name.strip() == COOKIE:
            return value.strip()
    return ""


def _holder(request: web.Request) -> str:
    """What a caller's certificate is for, in words."""
    certificate = request.get_extra_info("peercert") or {}
    names = [value for pairs in certificate.get("subject", ()) for _, value in pairs]
    return str(names[-1]) if names else "certificate"


def _now() -> int:
    """Seconds since the epoch."""
    return now_us() // 1_000_000
