"""`ratelimit health`: asks the service on this machine whether it is ready, for a health check."""

from __future__ import annotations

import os

import click

from ratelimit_service.cli.say import say
from ratelimit_service.settings import Settings, split_address
from ratelimit_service.settings.environment import defaults

__all__ = ["health"]

_SECONDS = 1.0
_MOST_BYTES = 1 << 16
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- to be replaced
_NOT_READY = 1


@click.command()
@click.option(
    "--http",
    metavar="HOST:PORT",
    envvar="RATELIMIT_HTTP",
    help="The HTTP port of the service, if not as in the environment.",
)
@click.option(
    "--http-tls-cert",
    metavar="FILE",
    envvar="RATELIMIT_HTTP_TLS_CERT",
    help="Given to a service whose HTTP port speaks TLS; the file is not read.",
)
def health(http: str | None, http_tls_cert: str | None) -> int:
    """Tell whether the service on this machine is ready.

    The port is the one that `serve` would open with the same environment. Exits 0 if the service
    takes requests, 1 if it does not or does not answer within a second.

    Example: ratelimit health --http localhost:8080
    """
    from http.client import BadStatusLine, HTTPException  # noqa: PLC0415

    below = defaults(os.environ)  # noqa: TID251 -- handed over, not read
    address = http or below.get("http") or Settings().http
    tls = http_tls_cert or below.get("http_tls_cert")
    try:
        status, text = _fetched(address, tls=bool(tls))
    except BadStatusLine:
        say(
            f"what answers at {address} speaks no HTTP/1: if it is the service's gRPC port, name "
            "its HTTP port with --http HOST:PORT, 8080 if nothing else was said",
            err=True,
        )
        return _NOT_READY
    except (OSError, HTTPException) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        text = f"no service answers at {address}: {why}; name its HTTP port with --http HOST:PORT"
        say(text, err=True)
        return _NOT_READY
    say(text.strip())
    return 0 if status == 200 else _NOT_READY


def _fetched(address: str, *, tls: bool) -> tuple[int, str]:
    from http.client import HTTPConnection, HTTPSConnection  # noqa: PLC0415

    host, port = split_address(address)
    host = _ANYWHERE.get(host, host)
    connection = HTTPConnection(host, port, timeout=_SECONDS)
    if tls:
        # Anybody who could answer in its place on this machine could also end it.
        import ssl  # noqa: PLC0415

        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES).decode("utf-8", "replace")
    finally:
        connection.close()
