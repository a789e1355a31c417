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

from ratelimit_service.errors import StatusCode
from ratelimit_service.eventloop.slices import pause
from ratelimit_service.http.access import Access, Refused, set_session
from ratelimit_service.http.connections import BODY_SECONDS
from ratelimit_service.http.console import PAGE_HEADERS, console_files
from ratelimit_service.http.port import SAFE_HEADERS, Port, shown
from ratelimit_service.http.route import Actor, AdminRequest, Operating, Role, Route, Written
from ratelimit_service.http.routes.registry import routes
from ratelimit_service.http.session import COOKIE, Session
from ratelimit_service.service.questions import QuestionError
from ratelimit_service.text.json_slips import json_slip

__all__ = ["AdminListener"]

_MAX_BODY_BYTES = 1 << 16

_HTTP_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.NOT_FOUND: 404,
    StatusCode.UNAVAILABLE: 503,
}


class AdminListener(Port):
    """Serves every route of `routes.registry` to who may ask."""

    def __init__(self, operating: Operating) -> None:
        settings = operating.settings
        super().__init__(
            settings.admin_hosts,
            operating.stats.http_closed,
            most_bytes=_MAX_BODY_BYTES,
            flag="--admin-hosts",
            strict=not (settings.admin_token_file or settings.admin_tls_client_ca),
        )
        self.access = Access(operating.settings, operating.health)
        self._ending = operating.ending
        self._routes = list(routes(operating))
        self._console = console_files()
        for path in self._console:
            self.show(path, self._page)
        self.show("/session", self._session)
        self.route("POST", "/session", self._log_in)
        self.route("DELETE", "/session", self._log_out)
        for route in self._routes:
            self.route(route.method, route.path, partial(self._answer, route))
        self.route("*", "/{tail:.*}", self._not_found)

    async def close(self) -> None:
        """Ends streams, then closes as every port."""
        self._ending.set()
        await super().close()

    async def _answer(self, route: Route, request: web.Request) -> web.StreamResponse:
        changes = route.role is Role.WRITE
        actor = self.access.actor(request, changes=changes)
        if isinstance(actor, Refused):
            return _failed(*actor)

        def may_still_ask() -> bool:
            return not isinstance(self.access.actor(request, changes=changes), Refused)

        try:
            body = {} if route.method == "GET" else await _body(request)
            query = dict(request.query)
            admin_request = AdminRequest(actor, query, body, request, may_still_ask)
            outcome = await route.handler(admin_request)
        except QuestionError as error:
            return _failed(_HTTP_STATUS.get(error.code, 500), str(error))
        if isinstance(outcome, web.StreamResponse):
            return outcome
        await pause()  # many may have been answered at once
        return _written(200, outcome.text) if isinstance(outcome, Written) else _json(200, outcome)

    async def _page(self, request: web.Request) -> web.Response:
        """A file of the console: it is no secret."""
        if refused := self.access.may_see_page(request):
            return _failed(*refused)
        file = self._console[request.path]
        return web.Response(
            body=file.content,
            headers={**SAFE_HEADERS, **PAGE_HEADERS, "Content-Type": file.content_type},
        )

    async def _session(self, request: web.Request) -> web.Response:
        """The browser's session, which begins by itself where no token is needed."""
        actor = self.access.actor(request, changes=False)
        if isinstance(actor, Refused):
            return _failed(*actor)
        session = self.access.session(request)
        if session is None:
            return self._begun(request, self.access.log_in(request, ""))
        return _json(200, _session_fields(actor, session))

    async def _log_in(self, request: web.Request) -> web.Response:
        try:
            token = (await _body(request)).get("token", "")
        except QuestionError as error:
            return _failed(400, str(error))
        return self._begun(request, self.access.log_in(request, str(token)))

    async def _log_out(self, _: web.Request) -> web.Response:
        response = _json(200, {})
        response.del_cookie(COOKIE, path="/")
        return response

    def _begun(self, request: web.Request, begun: tuple[Actor, Session] | Refused) -> web.Response:
        if isinstance(begun, Refused):
            return _failed(*begun)
        response = _json(200, _session_fields(*begun))
        set_session(response, request, begun[1])
        return response

    async def _not_found(self, request: web.Request) -> web.Response:
        actor = self.access.actor(request, changes=False)
        if isinstance(actor, Refused):
            return _failed(*actor)
        known = [f"{route.method} {route.path}: {route.does}" for route in self._routes]
        return _json(404, {"error": f"{shown(request.path)} is not here", "here": known})


def _session_fields(actor: Actor, session: Session) -> object:
    """What a page of ours is told of its session."""
    return {"name": actor.name, "role": actor.role, "csrf": session.csrf}


async def _body(request: web.Request) -> Mapping[str, object]:
    """The JSON object that was sent. Raises QuestionError."""
    if request.content_type != "application/json":
        raise QuestionError("send a JSON object as Content-Type: application/json")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            text = await request.read()
        body = json.loads(text or b"{}")
    except TimeoutError as error:
        raise QuestionError(f"the body did not come within {BODY_SECONDS:g} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise QuestionError(f"the body is too large: at most {_MAX_BODY_BYTES} bytes") from error
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"the body is no JSON: {json_slip(error)}") from error
    if not isinstance(body, dict):
        raise QuestionError("the body is no JSON object: write {…}")
    return body


def _json(status: int, content: object) -> web.Response:
    return _written(status, json.dumps(content))


def _written(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, text=f"{text}\n", content_type="application/json", headers=SAFE_HEADERS
    )


def _failed(status: int, why: str) -> web.Response:
    response = _json(status, {"error": why})
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    response.force_close()  # a body that is not read costs nothing
    return response
