"""What the HTTP port answers. It shows and passes on; nothing is decided here.

Connections, and who may ask, are `port`'s business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.eventloop.slices import pause, stepwise
from ratelimit_service.http.connections import BODY_SECONDS
from ratelimit_service.http.pages import rules_page
from ratelimit_service.http.peers import is_local
from ratelimit_service.http.port import Port, refused, shown, streamed
from ratelimit_service.model import Code, CountDenied, Decision, whole_seconds
from ratelimit_service.net.accepting import unmapped
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import CALLER_HEADERS, Answer, CallOrigin, Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.wire import decode_decision
from ratelimit_service.wire.json import decision_to_json, requests_from_json
from ratelimit_service.wire.reservations import marked
from ratelimit_service.wire.reservations_json import (
    commit_from_json,
    committed_to_dict,
    reserve_from_json,
    reserved_to_dict,
)

__all__ = ["HttpPort", "Shown"]

_MAX_BODY_BYTES = 1 << 17
"""JSON is wordier than protobuf; the message itself is held to its own bound, half of this."""

_PROBES = frozenset({"/healthcheck", "/livez", "/readyz"})
"""Answered under any name."""

_HTTP_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.RESOURCE_EXHAUSTED: 400,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.UNIMPLEMENTED: 501,
}


class Decide(Protocol):
    """Answers serialized requests, which may come with who made them."""

    def __call__(
        self, bodies: Sequence[bytes], *, origins: Sequence[CallOrigin] | None = None
    ) -> Awaitable[list[Answer]]:
        """As `Service.decide`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the port shows of the service."""

    snapshot: Callable[[], Snapshot]
    metrics: Callable[[str], tuple[str, AsyncIterator[bytes]]]
    """Content type and page for a scraper's Accept header."""
    processes: Callable[[], object]


class HttpPort(Port):
    """Serves `/json`, probes, `/metrics`, `/rlconfig` and `/processes`."""

    def __init__(
        self,
        settings: Settings,
        decide: Decide,
        health: Health,
        stats: Stats,
        shown: Shown,
    ) -> None:
        """`decide` answers serialized requests."""
        super().__init__(
            settings.http_hosts, stats.http_closed, probes=_PROBES, most_bytes=_MAX_BODY_BYTES
        )
        self._settings = settings
        self._decide = decide
        self._health = health
        self._stats = stats
        self.shown = shown
        self._rules = rules_page(shown.snapshot)
        if not settings.no_json:
            self.route("*", "/json", self._json)
            self.route("*", "/json/reserve", self._reserve)
            self.route("*", "/json/settle", self._settle)
        self.show("/healthcheck", self._healthcheck)
        self.show("/livez", self._livez)
        self.show("/readyz", self._readyz)
        self.show("/metrics", self._metrics)
        if not settings.no_public_config:
            self.show("/rlconfig", self._rlconfig)
        self.show("/processes", self._show_processes)
        self.route("*", "/{tail:.*}", self._not_found)

    async def _json(self, request: web.Request) -> web.StreamResponse:
        """One decision: 200 OK, 429 over limit, 400 a bad request, 503 the policy `error`.

        Or a list of them: 200, whatever becomes of each.
        """
        text = await self._body_of(request)
        if not isinstance(text, bytes):
            return text
        try:
            refunds = self._settings.json_refunds
            batch = await stepwise(requests_from_json(text, refunds=refunds))
        except BadRequestError as error:
            return self._misread(error)
        wanted = self._settings.otel_traces or self._settings.decision_log
        origins = [_caller(request)] * len(batch.requests) if wanted else None
        answers = await self._decide(batch.requests, origins=origins)
        await pause()
        if batch.listed:
            return await streamed(request, "application/json", _list_of(answers))
        return await _response_of(answers[0])

    async def _reserve(self, request: web.Request) -> web.StreamResponse:
        """Holds hits: 200 OK with an id, 429 if there is no room."""
        answer = await self._asked(request, "Reserve", reserve_from_json)
        if not isinstance(answer, bytes):
            return answer
        passes, fields = reserved_to_dict(answer)
        return web.json_response(fields, status=200 if passes else 429)

    async def _settle(self, request: web.Request) -> web.StreamResponse:
        """Counts what was used, and ends what was held: 200 OK."""
        answer = await self._asked(request, "Commit", commit_from_json)
        if not isinstance(answer, bytes):
            return answer
        return web.json_response(committed_to_dict(answer))

    async def _body_of(self, request: web.Request) -> bytes | web.StreamResponse:
        """The JSON that a caller has sent, or what is said instead."""
        if refusal := _why_not_json(request):
            return refusal
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await request.read()
        except TimeoutError:
            return refused(408, f"the body did not come within {BODY_SECONDS:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _too_large()
        except ConnectionError:
            return refused(400, "the caller has gone")
        except web.RequestPayloadError as error:
            self._stats.refusals["json"] += 1
            return web.Response(status=400, text=f"the body cannot be read: {error}\n")

    def _misread(self, error: BadRequestError) -> web.Response:
        self._stats.refusals[error.reason] += 1
        return web.Response(status=400, text=f"{error}\n")

    async def _asked(
        self,
        request: web.Request,
        method: str,
        read: Callable[[bytes], Generator[None, None, bytes]],
    ) -> bytes | web.StreamResponse:
        """The answer to a request that reserves or settles, or what is said instead."""
        text = await self._body_of(request)
        if not isinstance(text, bytes):
            return text
        try:
            message = await stepwise(read(text))
        except BadRequestError as error:
            return self._misread(error)
        wanted = self._settings.otel_traces or self._settings.decision_log
        origins = [_caller(request)] if wanted else None
        (answer,) = await self._decide([marked(method, message)], origins=origins)
        if isinstance(answer, bytes):
            return answer
        status = _HTTP_STATUS.get(answer.code, 500)
        return web.Response(status=status, text=f"{answer.message}\n")

    async def _healthcheck(self, _: web.Request) -> web.Response:
        """200 while requests are answered, also degraded; 500 before and after."""
        if not self._health.serving:
            return web.Response(status=500, text=f"{self._health.why_not}\n")
        faults = self._health.faults
        lines = [f"{component}: {reason}" for component, reason in faults.items()]
        counted = self._settings.denied_counted
        if counted is not CountDenied.NONE:
            lines.append(f"count_denied: {counted}")
        lines += [f"note: {name}: {text}" for name, text in self._health.notes.items()]
        if not lines:
            return web.Response(text="OK")
        return web.Response(text="\n".join(["degraded" if faults else "OK", *lines]) + "\n")

    async def _livez(self, _: web.Request) -> web.Response:
        """200 for as long as anything is answered, also before and after it serves."""
        return web.Response(text="OK")

    async def _readyz(self, _: web.Request) -> web.Response:
        """200 while requests are welcome, also degraded; 503 before and after."""
        ready = self._health.serving
        return web.Response(
            status=200 if ready else 503, text="OK" if ready else f"{self._health.why_not}\n"
        )

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        content_type, pages = self.shown.metrics(request.headers.get("Accept", ""))
        return await streamed(request, content_type, pages)

    async def _rlconfig(self, request: web.Request) -> web.StreamResponse:
        return await streamed(request, *self._rules(""))

    async def _show_processes(self, request: web.Request) -> web.Response:
        if not is_local(request):
            return refused(403, "only callers on this machine may see its processes")
        return web.json_response(self.shown.processes())

    async def _not_found(self, request: web.Request) -> web.Response:
        json = "" if self._settings.no_json else "/json /json/reserve /json/settle "
        rules = "" if self._settings.no_public_config else "/rlconfig "
        paths = f"/healthcheck /livez /readyz {json}/metrics {rules}/processes"
        return web.Response(status=404, text=f"{shown(request.path)} is not here: {paths} are\n")


async def _response_of(answer: Answer) -> web.Response:
    if isinstance(answer, Refusal):
        status = _HTTP_STATUS.get(answer.code, 500)
        return web.Response(status=status, text=f"{answer.message}\n")
    decision = decode_decision(answer)
    return web.Response(
        status=429 if decision.code is Code.OVER_LIMIT else 200,
        body=await stepwise(decision_to_json(answer)),
        content_type="application/json",
        headers=_headers(decision),
    )


async def _list_of(answers: Sequence[Answer]) -> AsyncIterator[bytes]:
    """A list, in the order of the requests. What was refused says so in its place."""
    mark = b"["
    for answer in answers:
        if isinstance(answer, Refusal):
            refusal = {"code": answer.code.name, "message": answer.message}
            yield mark + json.dumps({"error": refusal}).encode()
        else:
            yield mark + await stepwise(decision_to_json(answer))
        mark = b", "
    yield b"]" if answers else b"[]"


def _headers(decision: Decision) -> dict[str, str]:
    """The answer's own headers, and how long a denied caller is to wait.

    What it says of its body's type is left out: that body is inside of this one, which is JSON.
    """
    headers = {
        key: value for key, value in decision.response_headers if key.lower() != "content-type"
    }
    resets_us = [
        status.reset_us
        for status in decision.statuses
        if status.code is Code.OVER_LIMIT and status.reset_us is not None
    ]
    if decision.code is Code.OVER_LIMIT and resets_us:
        headers.setdefault("Retry-After", str(whole_seconds(max(resets_us))))
    return headers


def _caller(request: web.Request) -> CallOrigin:
    """Who made a call."""
    pairs = (
        (name.lower().encode(), value.encode(errors="surrogateescape"))
        for name, value in request.headers.items()
    )
    peer = unmapped(request.remote or "")
    return CallOrigin(peer, [pair for pair in pairs if pair[0] in CALLER_HEADERS])


def _why_not_json(request: web.Request) -> web.Response | None:
    """Why a request for a decision is refused before its body is read; None if it is not."""
    if "Origin" in request.headers:
        return refused(403, "web pages cannot ask for decisions: this has an Origin header")
    if request.method in ("GET", "HEAD"):
        return web.Response(
            status=405, text="send the request as the body of a POST\n", headers={"Allow": "POST"}
        )
    if request.content_type != "application/json":
        return refused(415, "send the request as Content-Type: application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        return refused(415, "send the body as it is, without Content-Encoding")
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        return _too_large()
    return None


def _too_large() -> web.Response:
    return refused(413, f"the body is too large: at most {_MAX_BODY_BYTES} bytes are read")
