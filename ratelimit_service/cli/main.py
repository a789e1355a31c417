"""The command `ratelimit` and its entry point. Each command has a module of its own.

Every error is one line on standard error and exit code 2. What only one command needs is
imported by that command when it runs, so that `hit` starts fast.
"""

from __future__ import annotations

import os
import sys

import click

from ratelimit_service import __version__, compiled
from ratelimit_service.cli.completion import completion
from ratelimit_service.cli.demo import demo
from ratelimit_service.cli.diff import diff
from ratelimit_service.cli.explain import explain
from ratelimit_service.cli.health import health
from ratelimit_service.cli.hit import hit
from ratelimit_service.cli.init import init
from ratelimit_service.cli.inspect import inspect
from ratelimit_service.cli.lint import lint
from ratelimit_service.cli.man import man
from ratelimit_service.cli.overrides import overrides
from ratelimit_service.cli.queue import queue
from ratelimit_service.cli.replay import replay
from ratelimit_service.cli.restart import restart
from ratelimit_service.cli.say import fail, mistake
from ratelimit_service.cli.schema import schema
from ratelimit_service.cli.serve import STANDS_IN, serve
from ratelimit_service.cli.size import size
from ratelimit_service.cli.status import status
from ratelimit_service.cli.steer import ban, exempt, grant, limit, reset, unban
from ratelimit_service.cli.test import test
from ratelimit_service.cli.top import top
from ratelimit_service.cli.why import why
from ratelimit_service.errors import RateLimitError
from ratelimit_service.text.display import reason

__all__ = ["main", "ratelimit"]


def main() -> None:
    """The entry point of the command; never shows a traceback for a user's mistake."""
    arguments = sys.argv[1:]
    how = None
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _GROUP_OPTIONS):
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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(
    __version__, message=f"ratelimit %(version)s ({'compiled' if compiled() else 'interpreted'})"
)
def ratelimit() -> None:
    """Decides whether requests may pass, for Envoy and everything that speaks its protocol.

    Without a command it serves, so that it can stand in for envoyproxy/ratelimit, whose
    environment names for rules, ports and Redis it reads.
    """


for _command in (
    serve,
    demo,
    health,
    status,
    restart,
    init,
    lint,
    test,
    diff,
    replay,
    explain,
    why,
    top,
    inspect,
    queue,
    size,
    schema,
    hit,
    ban,
    unban,
    exempt,
    limit,
    grant,
    reset,
    overrides,
    completion,
    man,
):
    ratelimit.add_command(_command)
