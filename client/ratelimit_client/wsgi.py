"""Middleware for WSGI applications: Flask, Django, Pyramid, Bottle and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from ratelimit_client.describe import Description, HTTPRequest, described
from ratelimit_client.descriptors import request_of
from ratelimit_client.responses import DECISION, UNASKED, allowed_headers, denial
from ratelimit_client.sync import SyncLease, SyncLimiter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

__all__ = ["RateLimitMiddleware"]

Environ = MutableMapping[str, Any]


class RateLimitMiddleware:
    """Asks before each request, and answers those that are denied."""

    def __init__(
        self, app: WSGIApplication, limiter: SyncLimiter, description: Description
    ) -> None:
        """`description` says what is asked about (`ratelimit_client.describe`)."""
        self._app = app
        self._limiter = limiter
        self._description = description

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serves one request."""
        http_request = _request(environ)
        descriptors = described(self._description, http_request)
        if not descriptors:
            environ[DECISION] = UNASKED
            return self._app(environ, start_response)
        decision = self._limiter.check(*descriptors)
        if not decision:
            response = denial(decision, http_request.method)
            start_response(f"{response.status} {response.phrase}", response.headers)
            return [response.body]
        environ[DECISION] = decision
        added = allowed_headers(decision)

        def starting(
            status: str, headers: list[tuple[str, str]], *rest: Any
        ) -> Callable[[bytes], object]:
            return start_response(status, [*headers, *added], *rest)

        # What a rule with `concurrency` hands out is held until the response has ended.
        request = request_of(self._limiter.domain, tuple(descriptors), {}, 1)
        lease = SyncLease(self._limiter, request, decision)
        try:
            parts = self._app(environ, starting)
        except BaseException:
            lease.release()
            raise
        return _Parts(parts, lease) if decision.lease else parts


class _Parts:
    """The parts of a response; the lease is given back when the server closes them."""

    def __init__(self, parts: Iterable[bytes], lease: SyncLease) -> None:
        self._parts = parts
        self._lease = lease

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts)

    def close(self) -> None:
        """Called by the server in any case (PEP 3333)."""
        try:
            if close := getattr(self._parts, "close", None):
                close()
        finally:
            self._lease.release()


def _request(environ: Environ) -> HTTPRequest:
    headers = {
        key[5:].replace("_", "-").lower(): str(value)
        for key, value in environ.items()
        if key.startswith("HTTP_")
    }
    for key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if key in environ:
            headers[key.replace("_", "-").lower()] = str(environ[key])
    path = str(environ.get("SCRIPT_NAME", "")) + str(environ.get("PATH_INFO", ""))
    # WSGI has the path's bytes as Latin-1.
    path = path.encode("latin-1", "replace").decode("utf-8", "replace")
    return HTTPRequest(
        str(environ.get("REQUEST_METHOD", "GET")),
        path,
        str(environ.get("REMOTE_ADDR", "")),
        headers,
        environ,
    )
