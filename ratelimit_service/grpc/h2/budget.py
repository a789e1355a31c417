"""What one connection costs beyond its calls, and what it makes us keep; both are bounded.

The table in `costs` says what each thing costs; answered calls make up for a part of that. What
must not live here: frames.
"""

from __future__ import annotations

from ratelimit_service.grpc.h2.costs import ANSWERED_US, BUDGET_US, SAVED_US
from ratelimit_service.grpc.h2.frames import ErrorCode
from ratelimit_service.grpc.h2.limits import ALL_HELD_BYTES, HELD_BYTES

__all__ = ["Budget", "ConnectionFaultError", "Memory", "expect"]


class ConnectionFaultError(Exception):
    """Ends the connection with GOAWAY. `reason` is the word under which it is counted."""

    def __init__(self, code: ErrorCode, text: str, reason: str = "protocol") -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason


def expect(condition: bool, text: str) -> None:
    """Raises ConnectionFaultError if the client breaks the protocol."""
    if not condition:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, text)


class Memory:
    """What all connections of a process make us keep, in bytes."""

    def __init__(self, most: int = ALL_HELD_BYTES) -> None:
        self.most = most
        self.held = 0
        self.connections = 0
        self.paused_unread = 0
        """How often a client was not read from for a while, since it did not read our answers."""

    @property
    def share(self) -> int:
        """What one connection may make us keep while all together keep too much."""
        return self.most // max(1, self.connections)


class Budget:
    """What a connection has cost in this second, and what is kept for it."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._spent_us = 0
        """Below 0 if answered calls have made up for more than was spent."""
        self.worked_us = 0
        """All work on frames that are no usual calls, charged or not: it counts against turns."""
        self.held = 0
        """Bytes kept for the client: messages that are not whole, answers that wait."""

    def spend(self, cost_us: int, reason: str) -> None:
        """Charges work that answers no call. Raises ConnectionFaultError above the budget."""
        self.worked_us += cost_us
        self._spent_us += cost_us
        if self._spent_us > BUDGET_US:
            text = f"too much work for nothing: {reason}"
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text, f"flood_{reason}")

    def credit(self, calls: int = 1) -> None:
        """Credits calls that were answered, or were not answered by our own fault."""
        self._spent_us = max(-SAVED_US, self._spent_us - ANSWERED_US * calls)

    def forgive(self) -> None:
        """Forgets at the end of a second what was spent in it; what was saved stays."""
        self._spent_us = min(0, self._spent_us)

    def hold(self, size: int) -> None:
        """Counts so many more bytes as kept; fewer if `size` is negative."""
        self.held += size
        self.memory.held += size

    @property
    def holds_too_much(self) -> bool:
        """Whether the client makes us keep more than it may."""
        held, memory = self.held, self.memory
        return held > HELD_BYTES or (memory.held > memory.most and held > memory.share)

    def forget(self) -> None:
        """Forgets what is kept: the connection is gone."""
        self.memory.held -= self.held
        self.held = 0
