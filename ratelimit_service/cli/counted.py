"""The option of commands that try rules out: which hits of denied requests count."""

from __future__ import annotations

from typing import Final

import click

from ratelimit_service.model import CountDenied

__all__ = ["counting_denied"]


class _CountDenied(click.ParamType[CountDenied]):
    """One of the words of `serve --count-denied`."""

    name = "which"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> CountDenied:
        try:
            return CountDenied(str(value).lower())
        except ValueError:
            self.fail(f"{value!r} is unknown: use {' or '.join(CountDenied)}", param, ctx)


counting_denied: Final = click.option(
    "--count-denied",
    metavar="WHICH",
    envvar="RATELIMIT_COUNT_DENIED",
    type=_CountDenied(),
    help="Which hits of denied requests count, as for serve: none, reported or all.",
)
"""Gives the command `count_denied`, None if nobody has said so."""
