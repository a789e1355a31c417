"""What cannot stand on one level: nodes that take the same, and too many matchers of a kind.

Whoever arranges nodes must ask here first: `Level.of` does not look for conflicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.tree import Node

__all__ = ["taken_twice", "too_many"]


_OF_FILES = "one file, or remove one: every file counts unless its name begins with a dot"


def taken_twice(
    node: Node, seen: dict[tuple[str, str, bool], Node], *, of_files: bool = False
) -> str:
    """What is wrong if an earlier node of a level takes what this one takes; else "".

    `seen` are the earlier nodes by what they take; this one is added. `of_files` are nodes that
    may come from several files of a directory.
    """
    message = ""
    for claim in node.takes:
        other = seen.setdefault(claim, node)
        if other is not node and not message:
            whole = node.value == other.value
            what = "the same key and value stand" if whole else f"{claim[1]!r} stands"
            message = f"{what} at {other.source}{': merge the two' if whole else ', too'}"
            if of_files and other.source.file != node.source.file:
                message += f"{'' if whole else ': merge the two'} into {_OF_FILES}"
    return message


def too_many(nodes: Iterable[Node]) -> Iterator[tuple[Node, str]]:
    """Nodes of a level with a matcher of which it has too many, and what is wrong then."""
    kinds: dict[tuple[str, type[Matcher]], list[Node]] = {}
    for node in nodes:
        if node.matcher is not None:
            kinds.setdefault((node.key, type(node.matcher)), []).append(node)
    for (_, kind), those in kinds.items():
        excess = kind.excess([node.matcher for node in those if node.matcher is not None])
        if excess is not None:
            matcher, message = excess
            yield next(node for node in those if node.matcher is matcher), message
