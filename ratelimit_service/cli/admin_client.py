"""A client of the admin listener: for commands that see or change what the service does."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlencode

from ratelimit_service.errors import RateLimitError, SettingsError, TransportError
from ratelimit_service.net.pem import client_context
from ratelimit_service.text.addresses import split_address, unix_path
from ratelimit_service.text.display import reason

__all__ = ["AdminAddress", "AdminClient"]

_SECONDS = 15.0
_MOST_BYTES = 1 << 28


class AdminAddress(NamedTuple):
    """Where an admin listener is, and what it must be shown.

    `endpoint` is HOST:PORT or unix:PATH. `tls_ca` is a PEM file: the authorities that vouch for it;
    without it no TLS is spoken. `tls_cert` and `tls_key` are what it asks of us.
    """

    endpoint: str
    token: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


class AdminClient:
    """Asks one admin listener; every question is a connection of its own."""

    def __init__(self, address: AdminAddress) -> None:
        """Raises SettingsError for what is no address, or no token."""
        token = address.token.strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise SettingsError(
                "what is in RATELIMIT_ADMIN_TOKEN is no token: it is ASCII, one word"
            )
        self.address = address._replace(token=token)
        self._path = unix_path(address.endpoint)
        if self._path is None:
            split_address(address.endpoint)

    def get(self, path: str, query: Mapping[str, object] | None = None) -> object:
        """What a route tells, as JSON has it. Raises RateLimitError."""
        return self._exchange("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> object:
        """Has a route change something. Raises RateLimitError."""
        return self._exchange("POST", path, body or {})

    def _exchange(self, method: str, path: str, body: Mapping[str, object] | None = None) -> object:
        endpoint = self.address.endpoint
        headers = {"Host": "localhost"} if self._path is not None else {}
        if self.address.token:
            headers["Authorization"] = f"Bearer {self.address.token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        sent = None if body is None else json.dumps(body).encode()
        try:
            with closing(self._connection()) as connection:
                connection.request(method, path, sent, headers)
                answer = connection.getresponse()
                status, text = answer.status, answer.read(_MOST_BYTES)
        except (OSError, HTTPException, UnicodeError) as error:  # of a host that is none
            raise TransportError(_why_not(self.address, error)) from error
        if len(text) == _MOST_BYTES:
            raise TransportError(f"{endpoint} answers more than {_MOST_BYTES} bytes")
        try:
            answered = json.loads(text)
        except ValueError:
            answered = None
        if status == 200 and answered is not None:
            return answered
        raise self._refused(status, answered)

    def _refused(self, status: int, answered: object) -> RateLimitError:
        endpoint = self.address.endpoint
        if not isinstance(answered, dict) or not isinstance(answered.get("error"), str):
            return TransportError(
                f"what answers at {endpoint} is no admin listener: name it with --admin HOST:PORT"
            )
        if status == 401:
            what = "another" if self.address.token else "one"
            return RateLimitError(
                f"the service at {endpoint} asks for a token: give {what} in RATELIMIT_ADMIN_TOKEN"
            )
        if status == 404 and "here" in answered:
            return RateLimitError(
                f"the service at {endpoint} is of another version: it does not know what was asked"
            )
        return RateLimitError(answered["error"])

    def _connection(self) -> HTTPConnection:
        if self._path is not None:
            return _UnixConnection(self._path)
        host, port = split_address(self.address.endpoint)
        if not self.address.tls_ca:
            return HTTPConnection(host, port, timeout=_SECONDS)
        return HTTPSConnection(host, port, timeout=_SECONDS, context=self._context())

    def _context(self) -> ssl.SSLContext:
        address = self.address
        try:
            return client_context(address.tls_ca, address.tls_cert, address.tls_key)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.filename:
                raise RateLimitError(f"{error.filename} cannot be read: {reason(error)}") from error
            raise RateLimitError(f"the TLS files cannot be used: {reason(error)}") from error


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Called by http.client."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self._path)


def _is_unwelcome(error: OSError | HTTPException | UnicodeError) -> bool:
    """Whether the other end of a TLS connection may have ended it for the client's certificate.

    With TLS 1.3 it does so once the client has finished its handshake.
    """
    if isinstance(error, ssl.SSLError):
        return "ALERT" in (error.reason or "")
    return isinstance(error, ConnectionResetError | BrokenPipeError)


def _why_not(address: AdminAddress, error: OSError | HTTPException | UnicodeError) -> str:
    endpoint = address.endpoint
    if isinstance(error, TimeoutError):
        return (
            f"{endpoint} has not answered within {_SECONDS:.0f} s; what was asked may be done all "
            "the same, so look before you ask again"
        )
    if address.tls_ca and _is_unwelcome(error):
        demand = (
            "does not take this client certificate: give another"
            if address.tls_cert
            else ("asks for a client certificate: give one")
        )
        return (
            f"the admin listener at {endpoint} has ended the connection after the handshake, so it "
            f"{demand} with --admin-tls-cert FILE"
        )
    if isinstance(error, ssl.SSLError):
        return (
            f"no TLS with the admin listener at {endpoint}: {error.reason or error}; its "
            "certificate must be one of --admin-tls-ca's authorities"
        )
    if isinstance(error, HTTPException):
        return (
            f"what answers at {endpoint} is no admin listener, or speaks TLS: name it with "
            "--admin HOST:PORT, and its authorities with --admin-tls-ca FILE"
        )
    return (
        f"no admin listener answers at {endpoint}: {reason(error)}; start a service there with "
        "`ratelimit serve`, or name another with --admin HOST:PORT or unix:PATH"
    )
