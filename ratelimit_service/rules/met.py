"""A node as requests meet it: what they read of it, and nothing else.

Among 100,000 rules a request waits for memory more than for instructions. So what it reads of one
of them is one small object, which the look-up finds; what rules have in common is elsewhere, and
shared. What must not live here: what only people are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ratelimit_service.observer import Tally

if TYPE_CHECKING:  # a tree is made of these
    from ratelimit_service.rules.tree import Level, Node, Rule

__all__ = ["DETAILED", "ENDS", "NO_RULE", "REPLACES", "SPECIAL", "MetNode"]

NO_RULE: Final = 1
SPECIAL: Final = 2
DETAILED: Final = 4
REPLACES: Final = 8
ENDS: Final = 16
"""What a request heeds of a node: that it has no rule; that what is counted, or shown in metrics,
is another value than the entry's; that its rule has detailed metrics, or replaces others; that it
ends (`valid_until`)."""


class MetNode:
    """A node of a level, or none: a limit that a caller brings has a tally, too."""

    __slots__ = ("children", "compiled", "heed", "node", "tally")

    def __init__(self, node: Node | None = None, tally: Tally | None = None) -> None:
        self.node: Final = node
        self.children: Level | None = None
        """The node's."""
        self.heed = NO_RULE
        """What is to be heeded of it, so that a request need not read the node: bits, as above."""
        self.tally = tally
        """Where its hits are tallied, once its rule is compiled."""
        self.compiled: object = None
        """What `limiter.compiler` has worked out of its rule. Nobody else looks at it."""
        if node is not None:
            self.children = node.children
            self.heed = _heed(node)

    def lasts(self, minute: int) -> bool:
        """Whether it has not ended in a minute from the Unix epoch."""
        if not self.heed & ENDS:
            return True
        end = self.node.valid_until if self.node is not None else None
        return end is None or minute < end

    @property
    def declared(self) -> Rule | None:
        """Its rule as the file has it."""
        return None if self.node is None else self.node.rule


def _heed(node: Node) -> int:
    heed = 0
    rule = node.rule
    if rule is None:
        heed = NO_RULE
    else:
        if rule.detailed_metric:
            heed = DETAILED
        if rule.replaces:
            heed |= REPLACES
    if node.share_threshold or node.value_to_metric or node.grouping is not None:
        heed |= SPECIAL
    if node.valid_until is not None:
        heed |= ENDS
    return heed
