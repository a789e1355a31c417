"""`ratelimit completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from ratelimit_service.cli.say import say

__all__ = ["completion"]

_SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "fish": FishComplete,
    "zsh": ZshComplete,
}
_ASKS = "_RATELIMIT_COMPLETE"
"""The variable by which click knows that a shell asks."""


@click.command()
@click.argument("shell", type=click.Choice(sorted(_SHELLS)))
def completion(shell: str) -> int:
    """Print a script with which a shell completes commands and flags.

    Bash (4.4 or later) and zsh read it at their start if it is in a file that ~/.bashrc or ~/.zshrc
    sources. Fish finds it in ~/.config/fish/completions/ratelimit.fish.

    Example: ratelimit completion bash >> ~/.bashrc
    """
    root = click.get_current_context().find_root().command
    completer = _SHELLS[shell](root, {}, "ratelimit", _ASKS)
    # Click's own `source` would start bash only to ask for its version.
    say((completer.source_template % completer.source_vars()).strip())
    return 0
