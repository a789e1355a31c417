"""`ratelimit schema`: the rule language as a JSON Schema."""

from __future__ import annotations

import click

from ratelimit_service.cli.say import say

__all__ = ["schema"]


@click.command()
def schema() -> int:
    """Print the JSON Schema of rule files, for editors.

    With it an editor completes keys, explains them, and marks what cannot be right. What only
    makes no sense together, lint tells. The name below begins with a dot, so that the schema is
    not taken for a rule file.

    Example: ratelimit schema > rules/.schema.json
    """
    from ratelimit_service.rules.json_schema import json_schema  # noqa: PLC0415

    say(json_schema().removesuffix("\n"))
    return 0
