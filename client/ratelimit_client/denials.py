"""Requests that were denied a moment ago, so that the service need not be asked again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

from ratelimit_client.model import Decision, Reason, Request

__all__ = ["Denials"]

_MOST_SECONDS = 5.0
"""A denial is forgotten after this, so that a limit that was raised soon counts."""

_ROUNDED_SECONDS = 1.0
"""The service rounds waits up to whole seconds, so that the window may end this much earlier."""


class Denials:
    """A bounded table: the denials that were used longest ago make room. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._remembered: OrderedDict[Request, tuple[float, float, Decision]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, request: Request, now: float) -> Decision | None:
        """The denial of exactly this request, if it must still hold."""
        with self._lock:
            denial = self._remembered.get(request)
            if denial is None:
                return None
            asked_at, until, decision = denial
            if now >= until:
                del self._remembered[request]
                return None
            self._remembered.move_to_end(request)
        return replace(decision, reason=Reason.KNOWN_DENIAL, age=now - asked_at)

    def put(
        self, request: Request, decision: Decision, asked_at: float, ends_at: float | None = None
    ) -> None:
        """Remembers a denial until its window may be over. What no count denied is not kept.

        If the service says when it `ends_at`, that counts, but never more than the whole seconds of
        its wait: its clock may be another one.
        """
        wait = decision.retry_after
        if decision.reason is not Reason.OVER_LIMIT or wait is None:
            return
        until = asked_at + wait - _ROUNDED_SECONDS
        if ends_at is not None:
            until = max(until, min(ends_at, asked_at + wait))
        until = min(until, asked_at + _MOST_SECONDS)
        if until <= asked_at:
            return
        with self._lock:
            self._remembered[request] = asked_at, until, decision
            self._remembered.move_to_end(request)
            if len(self._remembered) > self._most:
                self._remembered.popitem(last=False)

    def clear(self) -> None:
        """Forgets all, since hits were given back."""
        with self._lock:
            self._remembered.clear()
