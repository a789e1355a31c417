"""The command `ratelimit` and its entry point. Each command has a module of its own.

Every error is one line on standard error and exit code 2. A module is imported when its command
is called, and what only some calls need by these, so that all of them start fast.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

import click

from ratelimit_service import __version__, compiled
from ratelimit_service.cli.say import fail, mistake
from ratelimit_service.errors import RateLimitError
from ratelimit_service.text.display import reason

__all__ = ["COMMANDS", "main", "ratelimit"]


def main() -> None:
    """The entry point of the command; never shows a traceback for a user's mistake."""
    arguments = sys.argv[1:]
    how = None
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _GROUP_OPTIONS):
        from ratelimit_service.cli.serve import STANDS_IN  # noqa: PLC0415

        arguments, how = ["serve", *arguments], STANDS_IN
    try:
        code = ratelimit.main(arguments, "ratelimit", standalone_mode=False, obj=how)
    except click.Abort:
        code = 130
    except click.ClickException as error:
        code = fail(mistake(error))
    except RateLimitError as error:
        code = fail(str(error))
    except OSError as error:
        code = fail(f"{error.filename}: {reason(error)}" if error.filename else reason(error))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as `head` does; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


_GROUP_OPTIONS = {"--help", "-h", "--version"}


COMMANDS: Final = (
    *("serve", "demo", "health", "status", "restart"),
    *("init", "lint", "test", "diff", "replay"),
    *("explain", "why", "top", "inspect", "queue", "size", "schema", "hit"),
    *("ban", "unban", "exempt", "limit", "grant", "reset", "overrides"),
    *("completion", "man"),
)
"""All commands, in the order in which they are shown."""

_OVERRIDING: Final = frozenset(("ban", "unban", "exempt", "limit", "grant", "reset"))
"""Those that share the module `override`; each other one is in a module of its name."""


class _Commands(click.Group):
    """The commands. The module of one is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of this name, if there is one."""
        if cmd_name not in COMMANDS:
            return None
        module = "override" if cmd_name in _OVERRIDING else cmd_name
        command: object = getattr(import_module(f"ratelimit_service.cli.{module}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of these words. Raises click.UsageError, which names one that is alike."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # noqa: PLC0415

            alike = "".join(get_close_matches(args[0], COMMANDS, 1))
            hint = f" Did you mean {alike!r}?" if alike else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx) from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    __version__, message=f"ratelimit %(version)s ({'compiled' if compiled() else 'interpreted'})"
)
def ratelimit() -> None:
    """Decides whether requests may pass, for Envoy and everything that speaks its protocol.

    Without a command it serves, so that it can stand in for envoyproxy/ratelimit, whose
    environment names for rules, ports and Redis it reads.
    """
