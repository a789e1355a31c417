"""What carries requests to a service, and what of it an address asks for."""

from __future__ import annotations

from typing import Protocol

from ratelimit_client.errors import MissingExtraError
from ratelimit_client.model import Decision, Request
from ratelimit_client.tls import TLS

__all__ = ["AsyncTransport", "SyncTransport", "async_transport", "sync_transport"]


class AsyncTransport(Protocol):
    """Asks a service from an event loop."""

    async def ask(self, request: Request, seconds: float) -> Decision:
        """The answer, within so many seconds.

        Raises UnavailableError if there is none, BadRequestError if the service refuses it.
        """

    async def close(self) -> None:
        """Closes its connections."""


class SyncTransport(Protocol):
    """Asks a service and blocks. Threads share one."""

    def ask(self, request: Request, seconds: float) -> Decision:
        """As `AsyncTransport.ask`."""

    def close(self) -> None:
        """Closes its connections."""


def async_transport(address: str, tls: TLS | None) -> AsyncTransport:
    """Speaks gRPC for `HOST:PORT` and `unix:PATH`, HTTP for a URL.

    Raises MissingExtraError, and ValueError for an address without a port.
    """
    if _is_url(address):
        try:
            from ratelimit_client.http_calls import AsyncHttpCalls  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise MissingExtraError(f"an address such as {address}", "http") from error
        return AsyncHttpCalls(address, tls)
    _check_has_port(address)
    try:
        from ratelimit_client.grpc_calls import AsyncGrpcCalls  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"an address such as {address}", "grpc") from error
    return AsyncGrpcCalls(address, tls)


def sync_transport(address: str, tls: TLS | None) -> SyncTransport:
    """As `async_transport`."""
    if _is_url(address):
        try:
            from ratelimit_client.http_calls import SyncHttpCalls  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise MissingExtraError(f"an address such as {address}", "http") from error
        return SyncHttpCalls(address, tls)
    _check_has_port(address)
    try:
        from ratelimit_client.grpc_calls import SyncGrpcCalls  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"an address such as {address}", "grpc") from error
    return SyncGrpcCalls(address, tls)


def _is_url(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def _check_has_port(address: str) -> None:
    """Otherwise grpcio would ask at 443, or not at all, and each request would be let through."""
    host, _, port = address.rpartition(":")
    named = "://" in address or address.startswith("unix")  # in gRPC's own words
    if not named and not (host and port.isdecimal()):
        raise ValueError(
            f"address {address!r} has no port: write HOST:PORT, as in localhost:8081, "
            "or a URL such as http://localhost:8080"
        )
