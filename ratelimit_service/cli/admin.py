"""The options of commands that ask the admin listener."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import click

from ratelimit_service.settings import ADMIN_ADDRESS_BY_DEFAULT, DEFAULT_ADMIN

__all__ = ["AS_JSON", "asks_admin"]

AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


def asks_admin(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command `--admin` and what belongs to it, and an `admin` that asks.

    The command stands below `@click.command()` and its own options, and takes a parameter
    `admin: AdminClient`. The token is taken from RATELIMIT_ADMIN_TOKEN: a flag would be seen by
    all who may list processes.
    """

    @wraps(command)
    def asking(
        *args: object,
        admin: str,
        admin_token: str,
        admin_tls_ca: str,
        admin_tls_cert: str,
        admin_tls_key: str,
        **options: object,
    ) -> int:
        from ratelimit_service.cli.admin_client import AdminAddress, AdminClient  # noqa: PLC0415

        endpoint = ADMIN_ADDRESS_BY_DEFAULT if admin == DEFAULT_ADMIN else admin
        address = AdminAddress(endpoint, admin_token, admin_tls_ca, admin_tls_cert, admin_tls_key)
        return command(*args, admin=AdminClient(address), **options)

    for option in reversed(_OPTIONS):
        asking = option(asking)
    return asking


_OPTIONS = (
    click.option(
        "--admin",
        default=ADMIN_ADDRESS_BY_DEFAULT,
        show_default=True,
        metavar="HOST:PORT",
        envvar="RATELIMIT_ADMIN",
        help="Where the service's admin listener is; unix:PATH for a Unix socket.",
    ),
    click.option(
        "--admin-tls-ca",
        default="",
        metavar="FILE",
        envvar="RATELIMIT_ADMIN_TLS_CA",
        help="Speak TLS, with a listener that these authorities vouch for.",
    ),
    click.option("--admin-tls-cert", default="", metavar="FILE", help="What it asks of us."),
    click.option("--admin-tls-key", default="", metavar="FILE", help="Its key."),
    click.option(
        "--admin-token", default="", envvar="RATELIMIT_ADMIN_TOKEN", hidden=True, expose_value=True
    ),
)
