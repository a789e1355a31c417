"""Calls over HTTP to the service's `/json`, by httpx. This is its only door."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import suppress
from typing import Final

import httpx

from ratelimit_client.errors import BadRequestError, LimiterError, NotTakenError, UnavailableError
from ratelimit_client.json_form import from_json, to_json
from ratelimit_client.model import Call, Decision, Request
from ratelimit_client.tls import TLS
from ratelimit_client.wire import encode

__all__ = ["AsyncHttpCalls", "SyncHttpCalls"]

_HEADERS: Final = {"content-type": "application/json"}
_MAX_BYTES: Final = 1 << 20
_DECIDED: Final = {200, 429}
_REFUSED: Final = {400, 413, 415}
_NOT_TAKEN: Final = {404, 405, 501}
"""What a service answers that takes no reservations, or does not know of them."""

_PATHS: Final = {Call.DECIDE: "", Call.RESERVE: "/reserve", Call.SETTLE: "/settle"}
_LATER: Final = {429, 503}
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def _verify(address: str, tls: TLS | None) -> ssl.SSLContext | bool:
    if not address.startswith("https://"):
        if tls is not None:
            raise LimiterError(f"{address} speaks no TLS: give a URL that begins with https://")
        return False  # to make a context would take a tenth of a second
    if tls is None:
        return True
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise LimiterError(f"the files of {tls} cannot be used: {error}") from error
    return context


class AsyncHttpCalls:
    """A pool of connections, made by the event loop that asks first. Another loop gets another."""

    def __init__(self, address: str, tls: TLS | None) -> None:
        """`address` is the URL of the HTTP port, with or without `/json`."""
        self._url = _url(address)
        self._verify = _verify(address, tls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None

    async def ask(self, request: Request, seconds: float) -> Decision:
        """As `AsyncTransport.ask`."""
        body, url = _body(request), self._url + _PATHS[request.call]
        loop = asyncio.get_running_loop()
        if self._client is None or loop is not self._loop:
            self._client = httpx.AsyncClient(verify=self._verify, trust_env=False, headers=_HEADERS)
            self._loop = loop
        try:
            async with (
                asyncio.timeout(seconds),
                self._client.stream("POST", url, content=body, timeout=seconds) as answer,
            ):
                text = bytearray()
                async for part in answer.aiter_bytes():
                    _keep(url, text, part)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unavailable(url, error) from error
        return _decision(url, answer, bytes(text), request.call)

    async def close(self) -> None:
        """Closes the connections; a later call makes others."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()


class SyncHttpCalls:
    """A pool of connections for all threads."""

    def __init__(self, address: str, tls: TLS | None) -> None:
        """`address` is the URL of the HTTP port, with or without `/json`."""
        self._url = _url(address)
        self._client = httpx.Client(verify=_verify(address, tls), trust_env=False, headers=_HEADERS)

    def ask(self, request: Request, seconds: float) -> Decision:
        """As `SyncTransport.ask`. httpx bounds each step; here the whole is bounded as well."""
        body, url = _body(request), self._url + _PATHS[request.call]
        until = time.monotonic() + seconds
        try:
            with self._client.stream("POST", url, content=body, timeout=seconds) as answer:
                text = bytearray()
                for part in answer.iter_bytes():
                    _keep(url, text, part)
                    _in_time(until)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unavailable(url, error) from error
        return _decision(url, answer, bytes(text), request.call)

    def close(self) -> None:
        """Closes the connections, for good."""
        self._client.close()


def _url(address: str) -> str:
    base = address.rstrip("/")
    return base if base.endswith("/json") else f"{base}/json"


def _body(request: Request) -> bytes:
    encode(request)  # raises what the service would
    return to_json(request)


def _keep(url: str, text: bytearray, part: bytes) -> None:
    text += part
    if len(text) > _MAX_BYTES:
        raise UnavailableError(f"what answers at {url} is no rate limit service: it does not end")


def _in_time(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError


def _unavailable(url: str, error: Exception) -> UnavailableError:
    if isinstance(error, _NOT_SENT):
        return UnavailableError(f"no service answers at {url}: {error}", retriable=True)
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return UnavailableError(f"the service at {url} gave no answer in time")
    return UnavailableError(f"the service at {url} gave no answer: {error}")


def _decision(url: str, answer: httpx.Response, text: bytes, asked: Call) -> Decision:
    if answer.status_code in _DECIDED:
        with suppress(ValueError):
            return from_json(text, asked)
    reason = text[:200].decode(errors="replace").strip()
    if asked is not Call.DECIDE and answer.status_code in _NOT_TAKEN:
        raise NotTakenError(f"{url} answers {answer.status_code}: {reason}")
    if answer.status_code in _REFUSED:
        raise BadRequestError(f"the service refuses the request: {reason}")
    wait = answer.headers.get("retry-after", "")
    if answer.status_code in _LATER and wait.isdecimal():
        raise UnavailableError(
            f"{url} answers {answer.status_code}: {reason}", retriable=True, retry_after=float(wait)
        )
    if answer.status_code in _DECIDED:
        raise UnavailableError(f"what answers at {url} is no rate limit service")
    raise UnavailableError(f"{url} answers {answer.status_code}: {reason}")
