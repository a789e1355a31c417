"""The command shown at start: one that makes a decision by the rules just loaded."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ratelimit_service.rules.tree import Level, Node, Snapshot

__all__ = ["example"]


def example(snapshot: Snapshot, program: str, options: Sequence[str]) -> str | None:
    """A shell command that asks for the first limited rule; None if there is none.

    `program` is how this process was started; the command starts with it, relative to the
    working directory if it lies below. `options` say how the service is reached.
    """
    for domain in snapshot.domains.values():
        path = _first_limited(domain.root)
        if path:
            entries = ",".join(_entry(node) for node in path)
            relative = os.path.relpath(program)
            name = relative if not relative.startswith("..") else Path(program).name
            return shlex.join([name, "hit", *options, domain.name, entries])
    return None


def _first_limited(level: Level) -> list[Node] | None:
    for node in sorted(level.nodes, key=lambda node: node.source):
        if node.rule and not node.rule.unlimited:
            return [node]
        if node.children and (below := _first_limited(node.children)):
            return [node, *below]
    return None


def _entry(node: Node) -> str:
    value = node.value.replace("*", "1") or "alice"
    return f"{_escaped(node.key)}={_escaped(value)}"


def _escaped(text: str) -> str:
    for special in "\\,=":
        text = text.replace(special, "\\" + special)
    return text
