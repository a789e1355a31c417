"""`denials`: what was denied since this was last asked, for those who watch.

Nothing is noted while nobody asks. Who asks is expected to ask again within seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ratelimit_service.clock import elapsed_us, now_us
from ratelimit_service.service.decision_line import Circumstances, line_of
from ratelimit_service.service.questions.question import About, Deciding, Question
from ratelimit_service.service.records import Chosen, DecisionRecord, Listener
from ratelimit_service.service.service import Service

__all__ = ["QUESTION"]

_MOST = 40
"""Denials that are told at once. The first ones are; others cost their callers nothing."""

_PATIENCE_US = 5_000_000
"""Nobody watches any more if it was not asked for so long."""

_MOST_BYTES = 1 << 13
"""Requests that are larger are not told: to write one down would hold others up."""


class _Tail:
    """Hears what a service decides, beside whoever hears it already."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._former: Listener | None = service.listener
        self._former_chosen: Chosen | None = service.chosen
        self._found: deque[tuple[int, DecisionRecord]] = deque(maxlen=_MOST)
        self._asked_us = elapsed_us()
        service.listener, service.chosen = self._hear, self._chosen
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_PATIENCE_US / 1_000_000, self._look)

    def take(self) -> list[tuple[int, DecisionRecord]]:
        """What was denied since the last time."""
        self._asked_us = elapsed_us()
        found = list(self._found)
        self._found.clear()
        return found

    def stop(self) -> None:
        """Hears no more; who heard before goes on to."""
        self._timer.cancel()
        self._service.listener, self._service.chosen = self._former, self._former_chosen

    def _look(self) -> None:
        if elapsed_us() - self._asked_us < _PATIENCE_US:
            self._timer = self._loop.call_later(_PATIENCE_US / 1_000_000, self._look)
            return
        self.stop()
        _tails.pop(self._service, None)

    def _chosen(self, denied: bool) -> bool:
        if denied and len(self._found) < _MOST:
            return True
        if self._former is None:
            return False
        return self._former_chosen is None or self._former_chosen(denied)

    def _hear(self, records: Sequence[DecisionRecord]) -> None:
        at_us = now_us()
        for record in records:
            if len(self._found) == _MOST:
                break
            if record.denied and len(record.body) <= _MOST_BYTES:
                self._found.append((at_us, record))
        if self._former is not None and (wanted := self._wanted(records)):
            self._former(wanted)

    def _wanted(self, records: Sequence[DecisionRecord]) -> Sequence[DecisionRecord]:
        """Those that the former listener would have been told of."""
        chosen = self._former_chosen
        if chosen is None:
            return records
        found = []
        for record in records:
            times = record.times
            if record.denied:  # the others were chosen by it
                times = sum([chosen(True) for _ in range(times)])
            if times:
                found.append(record if times == record.times else record._replace(times=times))
        return found


_tails: dict[Service, _Tail] = {}
"""Of each service that is watched; there is one in a process."""


async def _told(deciding: Deciding, _: About) -> object:
    service = deciding.service
    tail = _tails.get(service)
    if tail is None:
        tail = _tails[service] = _Tail(service)
    store = deciding.settings.store.partition(":")[0]
    lines = []
    for at_us, record in tail.take():
        shard = deciding.shard_of(record.hit) if record.hit is not None else ""
        caller = record.caller.peer if record.caller is not None else ""
        lines.append(
            line_of(record, at_us, circumstances=Circumstances(caller, "", "", store, shard))
        )
        await asyncio.sleep(0)
    return lines


QUESTION = Question("denials", _told)
