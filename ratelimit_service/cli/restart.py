"""`ratelimit restart`: replaces the workers of a service on this machine."""

from __future__ import annotations

import click

from ratelimit_service.cli.say import say
from ratelimit_service.cli.words import duration
from ratelimit_service.text.addresses import split_address

__all__ = ["restart"]


@click.command()
@click.option(
    "--http",
    default="localhost:8080",
    show_default=True,
    metavar="HOST:PORT",
    envvar="RATELIMIT_HTTP",
    help="The HTTP port of the service.",
)
@click.option(
    "--timeout",
    "timeout_us",
    default="5m",
    show_default=True,
    metavar="DURATION",
    callback=duration,
    help="How long to wait for the end.",
)
@click.option("--tls", is_flag=True, help="The HTTP port speaks TLS.")
def restart(http: str, timeout_us: int, tls: bool) -> int:
    """Replace the workers of the service on this machine, one after the other.

    It goes on as the version that is installed now, with what the rules and files say now; no
    call fails. Settings stay as they were given at its start. Exits 0 once all workers are new,
    2 if nothing was changed, and why.

    Example: ratelimit restart --http localhost:8080
    """
    from ratelimit_service.runtime.restart import restart as restarted  # noqa: PLC0415

    split_address(http)
    for line in restarted(http, timeout_us, tls=tls):
        say(line)
    return 0
