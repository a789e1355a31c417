"""The messages that tell workers which rules hold: all rules, and then what has changed.

What must not live here: which workers there are (`workers`), and what a part says (`records`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from ratelimit_service.rules.records import packed
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.runtime.channel import MessageKind

__all__ = ["RuleMessages", "TypedMessage"]

_MOST_CHANGES: Final = 2
"""Rules and their changes are kept for new workers. Once these are so many times as large as the
rules alone, all rules are sent again."""

TypedMessage = tuple[MessageKind, bytes]


class RuleMessages:
    """What a new worker is told: all rules, and then what has changed since."""

    def __init__(self) -> None:
        self.messages: list[TypedMessage] = []
        self._sent: Mapping[str, Domain] = {}
        """The rules that workers have when they have taken these messages."""
        self._whole_bytes = 0
        """How much of the messages are all rules, before any change."""

    async def add(self, snapshot: Snapshot) -> list[TypedMessage]:
        """Adds what tells of the rules of now, and returns that.

        Usually only changes are told. Now and then all rules are, so that workers that start later
        do not have more and more changes to take.
        """
        size = sum(len(part) for _, part in self.messages)
        whole = not self.messages or size > _MOST_CHANGES * self._whole_bytes
        rules = []
        for part in packed(snapshot.domains.values(), {} if whole else self._sent):
            rules.append((MessageKind.RULES, part))
            await asyncio.sleep(0)
        end = {"unserved": sorted(snapshot.unserved), "emptied": snapshot.emptied}
        rules.append((MessageKind.RULES_END, json.dumps(end).encode()))
        if self.messages:
            kind, former = self.messages[-1]
            self.messages[-1] = kind, json.dumps({**json.loads(former), "passed": True}).encode()
        if whole:
            self.messages = []
            self._whole_bytes = sum(len(part) for _, part in rules)
        self.messages += rules
        self._sent = snapshot.domains
        return rules
