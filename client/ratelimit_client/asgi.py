"""Middleware for ASGI applications: FastAPI, Starlette, Django, Quart and others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ratelimit_client.describe import Description, HTTPRequest, described
from ratelimit_client.descriptors import request_of
from ratelimit_client.limiter import Lease, Limiter
from ratelimit_client.responses import DECISION, UNASKED, Response, allowed_headers, denial

__all__ = ["RateLimitMiddleware"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_NO_HEADERS: Iterable[tuple[bytes, bytes]] = ()


class RateLimitMiddleware:
    """Asks before each HTTP request and WebSocket, and answers those that are denied."""

    def __init__(
        self, app: App, limiter: Limiter, description: Description, *, close: bool = True
    ) -> None:
        """`description` says what is asked about (`ratelimit_client.describe`).

        With `close` the limiter is closed when the application shuts down.
        """
        self._app = app
        self._limiter = limiter
        self._description = description
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection of the application."""
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                if self._close:
                    await self._limiter.close()
            return
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        http_request = _request(scope)
        descriptors = described(self._description, http_request)
        if not descriptors:
            scope[DECISION] = UNASKED
            await self._app(scope, receive, send)
            return
        decision = await self._limiter.check(*descriptors)
        if not decision:
            await _refuse(scope, receive, send, denial(decision, http_request.method))
            return
        scope[DECISION] = decision
        added = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in allowed_headers(decision)
        ]

        async def sending(message: Message) -> None:
            if added and message["type"] in {"http.response.start", "websocket.accept"}:
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        # What a rule with `concurrency` hands out is held until the response has ended.
        request = request_of(self._limiter.domain, tuple(descriptors), {}, 1)
        async with Lease(self._limiter, request, decision):
            await self._app(scope, receive, sending)


def _request(scope: Scope) -> HTTPRequest:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope.get("headers", _NO_HEADERS):
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    client = scope.get("client")
    return HTTPRequest(
        scope.get("method", "GET"), scope["path"], client[0] if client else "", headers, scope
    )


async def _refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers
    ]
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1013})  # try again later
            return
        kind = "websocket.http.response"
    await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": response.body})
