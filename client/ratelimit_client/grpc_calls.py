"""Calls over gRPC, by grpcio. This is its only door."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

import grpc
import grpc.aio

from ratelimit_client.errors import BadRequestError, LimiterError, NotTakenError, UnavailableError
from ratelimit_client.model import Call, Decision, Request
from ratelimit_client.tls import TLS
from ratelimit_client.wire import METHODS, decode, encode

__all__ = ["AsyncGrpcCalls", "SyncGrpcCalls"]

_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),
    # A service that is back is to be found again at once, not after a minute.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # which is how long an attempt may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
]

_NOT_SENT: Final = ("failed to connect", "errors resolving")
"""How grpcio's text begins if a call was never sent."""


def _credentials(tls: TLS) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(*tls.contents())


class AsyncGrpcCalls:
    """One channel, made by the event loop that asks first. Another loop gets another one."""

    def __init__(self, address: str, tls: TLS | None) -> None:
        """Nothing is connected before the first call."""
        self._address = address
        self._credentials = None if tls is None else _credentials(tls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None

    async def ask(self, request: Request, seconds: float) -> Decision:
        """As `AsyncTransport.ask`."""
        body = encode(request)
        loop = asyncio.get_running_loop()
        if self._channel is None or loop is not self._loop:
            self._channel, self._loop = self._new(), loop
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            METHODS[request.call]
        )
        try:
            answer = await call(body, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise _reason(self._address, request.call, error) from error
        return _decoded(self._address, answer, request.call)

    def _new(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        return grpc.aio.secure_channel(self._address, self._credentials, options=_OPTIONS)

    async def close(self) -> None:
        """Closes the channel; a later call makes another one."""
        channel, self._channel = self._channel, None
        if channel is not None and self._loop is asyncio.get_running_loop():
            await channel.close()


class SyncGrpcCalls:
    """One channel for all threads, made by the first call: so a server may fork before it."""

    def __init__(self, address: str, tls: TLS | None) -> None:
        """Nothing is connected before the first call."""
        self._address = address
        self._credentials = None if tls is None else _credentials(tls)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def ask(self, request: Request, seconds: float) -> Decision:
        """As `SyncTransport.ask`."""
        body = encode(request)
        with self._lock:
            if self._channel is None:
                self._channel = self._new()
            channel = self._channel
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            METHODS[request.call]
        )
        try:
            answer = call(body, timeout=seconds)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call):  # they are calls themselves
                raise _reason(self._address, request.call, error) from error
            raise UnavailableError(f"{self._address}: {error}") from error
        return _decoded(self._address, answer, request.call)

    def _new(self) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(self._address, options=_OPTIONS)
        return grpc.secure_channel(self._address, self._credentials, options=_OPTIONS)

    def close(self) -> None:
        """Closes the channel; a later call makes another one."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _reason(address: str, asked: Call, error: grpc.Call | grpc.aio.AioRpcError) -> LimiterError:
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED and asked is not Call.DECIDE:
        return NotTakenError(f"the service at {address} takes no reservations: {text}")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return BadRequestError(f"the service refuses the request: {text}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UnavailableError(f"the service at {address} gave no answer in time")
    not_sent = code is grpc.StatusCode.UNAVAILABLE and text.startswith(_NOT_SENT)
    if not_sent and "http1.x" in text:
        text = (
            f"it speaks HTTP/1, not gRPC: write http://{address} for HTTP, or name the gRPC port, "
            "8081 if nothing else was said"
        )
    if not_sent:
        return UnavailableError(f"no service answers at {address}: {text}", retriable=True)
    return UnavailableError(f"the service at {address} answers {code.name}: {text}")


def _decoded(address: str, answer: bytes, asked: Call) -> Decision:
    try:
        return decode(answer, asked)
    except ValueError as error:
        raise UnavailableError(
            f"what answers at {address} is no rate limit service: {error}"
        ) from error
