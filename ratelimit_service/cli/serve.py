"""`ratelimit serve`: an option for every setting, in groups, and what is below them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import groupby
from typing import Final

import click
from click.core import ParameterSource

from ratelimit_service.cli.say import say
from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import Setting, Settings, settings
from ratelimit_service.settings.environment import defaults, refuse_incomplete, remarks

__all__ = ["STANDS_IN", "serve"]

STANDS_IN = "stands in"
"""What the group's context holds if no command was given, as envoyproxy/ratelimit is started."""

_NEAR = 0.75
"""How alike an unknown flag must be to one of ours to be taken for a misspelling, from 0 to 1."""


class _Parsed(click.ParamType[object]):
    """A value read by a setting's own parser."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.metavar
        self._setting = setting

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._setting.parse(value)
        except SettingsError as error:
            self.fail(str(error), param, ctx)


class _Switch(click.types.BoolParamType):
    """True or false, as click reads them, with an error that says so."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> bool:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither true nor false", param, ctx)


def _option(setting: Setting) -> click.Option:
    switch = not setting.metavar
    return click.Option(
        [setting.flag, setting.name],
        default=setting.default,
        envvar=setting.environment,
        show_envvar=True,  # in errors
        is_flag=switch,
        type=_Switch() if switch else _Parsed(setting),
        metavar=setting.metavar or None,
    )


_FOR_LATER: Final = {signal.SIGHUP, signal.SIGUSR2}
"""Signals that must not end it before there is somebody to hear them: `runtime.signals` does so."""


_BY_US: Final = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}
"""Where a setting comes from that somebody named as ours."""


def _refuse_unreadable_stores(ctx: click.Context, given: Settings) -> None:
    """Raises SettingsError, which names the variable or the flag, for a URL that is no store's."""
    from ratelimit_service.stores.redis.address import parse_store  # noqa: PLC0415 -- see `main`

    theirs = {"store": "REDIS_URL", "second_store": "REDIS_PERSECOND_URL"}
    for setting in settings():
        url = getattr(given, setting.name)
        if setting.name not in theirs or url in {"", "memory"} or url.startswith("file:"):
            continue
        source = ctx.get_parameter_source(setting.name)
        names = {
            ParameterSource.COMMANDLINE: setting.flag,
            ParameterSource.ENVIRONMENT: setting.environment,
        }
        named = theirs[setting.name]
        if named not in os.environ:  # noqa: TID251 -- only for the name
            named = setting.default_environment
        try:
            parse_store(url)
        except SettingsError as error:
            raise SettingsError(
                f"{names.get(source or ParameterSource.DEFAULT, named)}: {error}"
            ) from error


def _serve(*, only_check: bool, **values: object) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_LATER)
    from ratelimit_service.runtime.announcement import not_served  # noqa: PLC0415 -- see `main`
    from ratelimit_service.runtime.app import check, serve  # noqa: PLC0415

    given = Settings(**values)  # type: ignore[arg-type]  # each was read by its parser
    ctx = click.get_current_context()
    messages = remarks(os.environ)  # noqa: TID251 -- handed over, not read
    refuse_incomplete(
        os.environ,  # noqa: TID251 -- handed over, not read
        given,
        store_named=ctx.get_parameter_source("store") in _BY_US,
    )
    _refuse_unreadable_stores(ctx, given)
    messages += _of_unknown(ctx)
    if only_check:
        rules = check(given)
        for line in messages:
            say(line, err=True)
        say("it would start")
        for line in not_served(rules.snapshot):
            say(line)
        if rules.begun and not rules.snapshot.domains:
            say(f"no domain has rules, so the failure policy decides all: {given.failure_policy}")
        return 0
    return serve(given, messages)


def _of_unknown(ctx: click.Context) -> Sequence[str]:
    """What is said of arguments that are not ours. Raises NoSuchOption for one that is misspelt.

    envoyproxy/ratelimit takes no arguments and ignores those that it is given. Raises UsageError
    for any if `serve` was typed.
    """
    if not ctx.args:
        return ()
    if ctx.obj != STANDS_IN:
        raise click.UsageError(
            f"serve takes flags only, and not {ctx.args[0]!r}: name rules with --rules PATH"
        )
    flags = [setting.flag for setting in settings()]
    for argument in ctx.args:
        name = argument.partition("=")[0]
        if near := get_close_matches(name, flags, cutoff=_NEAR):
            raise click.NoSuchOption(name, possibilities=near, ctx=ctx)
    return [f"ignored, since they are no arguments of this service: {' '.join(ctx.args)}"]


class _Serve(click.Command):
    """`serve`, whose defaults are what the environment says below our own names."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        if parent is not None and parent.obj == STANDS_IN:
            extra |= {"ignore_unknown_options": True}
        extra |= {"allow_extra_args": True}  # see `_of_unknown`
        return super().make_context(
            info_name,
            args,
            parent,
            default_map=defaults(os.environ),  # noqa: TID251 -- handed over, not read
            **extra,
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings under the headings of their groups, then all else."""
        declared = {setting.name: setting for setting in settings()}
        for title, group in groupby(declared.values(), lambda setting: setting.group):
            with formatter.section(title):
                formatter.write_dl([_shown(setting) for setting in group])
        records = [
            option.get_help_record(ctx)
            for option in self.get_params(ctx)
            if option.name not in declared
        ]
        with formatter.section("Other"):
            formatter.write_dl([record for record in records if record])


def _shown(setting: Setting) -> tuple[str, str]:
    """A flag, and what it does, with where else it can be set and what holds if it is not."""
    default = setting.default_text if setting.metavar else ""
    notes = f"env var: {setting.environment}" + (f"; default: {default}" if default else "")
    return f"{setting.flag} {setting.metavar}".strip(), f"{setting.help}  [{notes}]"


serve = _Serve(
    "serve",
    params=[
        *(_option(setting) for setting in settings()),
        click.Option(
            ["--check", "only_check"],
            is_flag=True,
            help="Only tell whether it would start: settings, rules, TLS files; no port is tried.",
        ),
    ],
    callback=_serve,
    short_help="Serve decisions over gRPC and HTTP.",
    help=(
        "Serve decisions over gRPC and HTTP.\n\n"
        "The ports open once the rules are loaded. Rules are reloaded when their files "
        "change, and on SIGHUP; SIGTERM drains, SIGUSR2 replaces the workers.\n\n"
        "Example: ratelimit serve --rules rules/ --store redis://localhost:6379/0"
    ),
)
