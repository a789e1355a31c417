"""The admin listener: for those who run the service, and for nobody else.

What it answers is in `routes`, and who may ask is `access`' business. All that it answers but pages
is JSON; what is wrong is `{"error": TEXT}` with a status that fits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial

from aiohttp import web

from ratelimit_service.admin.access import Access
from ratelimit_service.admin.doors import BODY_SECONDS
from ratelimit_service.admin.port import Port, shown
from ratelimit_service.admin.route import AdminRequest, Operating, Role, Route
from ratelimit_service.admin.routes.registry import routes
from ratelimit_service.errors import StatusCode
from ratelimit_service.service.questions import QuestionError

__all__ = ["AdminListener"]

_MAX_BODY_BYTES = 1 << 16

_HTTP_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.NOT_FOUND: 404,
    StatusCode.UNAVAILABLE: 503,
}

_SAFE_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class AdminListener(Port):
    """Serves every route of `routes.registry` to who may ask."""

    def __init__(self, operating: Operating) -> None:
        super().__init__(
            operating.settings.admin_hosts,
            operating.stats.http_closed,
            most_bytes=_MAX_BODY_BYTES,
            flag="--admin-hosts",
        )
        self._access = Access()
        self._routes = list(routes(operating))
        for route in self._routes:
            self.app.router.add_route(route.method, route.path, partial(self._answer, route))
        self.app.router.add_route("*", "/{tail:.*}", self._not_found)

    async def _answer(self, route: Route, request: web.Request) -> web.StreamResponse:
        actor = self._access.actor(request)
        if isinstance(actor, str):
            return _failed(403, actor)
        if route.role is Role.WRITE and actor.role is Role.READ:
            return _failed(403, f"{actor.name} may read, and change nothing")
        try:
            body = {} if route.method == "GET" else await _body(request)
            query = dict(request.query)
            found = await route.handler(AdminRequest(actor, query, body, request))
        except QuestionError as error:
            return _failed(_HTTP_STATUS.get(error.code, 500), str(error))
        if isinstance(found, web.StreamResponse):
            return found
        return _json(200, found)

    async def _not_found(self, request: web.Request) -> web.Response:
        if isinstance(why := self._access.actor(request), str):
            return _failed(403, why)
        known = [f"{route.method} {route.path}: {route.does}" for route in self._routes]
        return _json(404, {"error": f"{shown(request.path)} is not here", "here": known})


async def _body(request: web.Request) -> Mapping[str, object]:
    """The JSON object that was sent. Raises QuestionError."""
    if request.content_type != "application/json" and request.can_read_body:
        raise QuestionError("send a JSON object as Content-Type: application/json")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            text = await request.read()
        found = json.loads(text or b"{}")
    except TimeoutError as error:
        raise QuestionError(f"the body did not come within {BODY_SECONDS:g} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise QuestionError(f"the body is too large: at most {_MAX_BODY_BYTES} bytes") from error
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise QuestionError("the body is no JSON object: write {…}")
    return found


def _json(status: int, found: object) -> web.Response:
    text = json.dumps(found) + "\n"
    return web.Response(
        status=status, text=text, content_type="application/json", headers=_SAFE_HEADERS
    )


def _failed(status: int, why: str) -> web.Response:
    response = _json(status, {"error": why})
    response.force_close()  # a body that is not read costs nothing
    return response
