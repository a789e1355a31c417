"""Plays recorded requests through new rules and, to compare, through old ones.

What must not live here: what becomes of a request under one set of rules (`trace`), and what it
says to people (`report`).
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from operator import lt

from ratelimit_service.containers.sketches import TopNames
from ratelimit_service.model import Code
from ratelimit_service.rule_lab.replay.matched import Matched
from ratelimit_service.rule_lab.replay.recorded import Block
from ratelimit_service.rule_lab.replay.sketches import CallerSample
from ratelimit_service.rule_lab.replay.trace import Trace
from ratelimit_service.rule_lab.replay.use import SAMPLE, TOP_NAMES

__all__ = ["Replay", "SideChanges"]


class SideChanges:
    """Requests that one set of rules admits and the other denies."""

    def __init__(self) -> None:
        self.requests = 0
        self.names = TopNames[str](TOP_NAMES)
        self.callers = CallerSample[str](SAMPLE)

    def note(self, matched: Matched | None) -> None:
        """Notes a request by the descriptor that one of the two denied it for."""
        self.requests += 1
        if matched is None:
            return
        self.names.add(matched.name)
        matched.use.changed.add(matched.name)
        name_hash = matched.name_hash
        for sample in (self.callers, matched.use.changed_callers):
            if sample.wants(name_hash) and sample.get(name_hash) is None:
                sample.put(name_hash, matched.name)


class Replay:
    """Recorded requests through new rules and, to compare, through old ones."""

    def __init__(self, new: Trace, old: Trace | None = None) -> None:
        self.new = new
        self.old = old
        if old is not None:
            old.compared_with = new
        self.requests = 0
        self.late = 0
        """Requests that stood too far back in their log; they count as of the time reached."""
        self.first_us = 0
        self.last_us = 0
        self.recorded: Counter[Code] = Counter()
        """What the logs say was answered, where they do."""
        self.newly_denied = SideChanges()
        self.newly_allowed = SideChanges()

    def play(self, block: Block) -> None:
        """Asks the requests of a log, or of the next part of it."""
        stamps, requests, codes = block
        if not stamps:
            return
        new, old = self.new, self.old
        if not self.requests:
            self.first_us = stamps[0]
        times = stamps
        if stamps[0] < self.last_us or stamps != sorted(stamps):
            times = list(accumulate(stamps, max, initial=self.last_us))[1:]
            self.late += sum(map(lt, stamps, times))
        self.last_us = times[-1]
        self.requests += len(times)
        for code in Code:
            if came := codes.count(code):
                self.recorded[code] += came
        denied = new.decide_all(requests, times)
        if old is None:
            return
        before = old.decide_all(requests, times)
        for index in sorted(denied.keys() ^ before.keys()):
            if index in denied:
                self.newly_denied.note(denied[index])
            else:
                self.newly_allowed.note(before[index])
