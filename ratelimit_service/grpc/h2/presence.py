"""Whether a client is still there: it greets, says something now and then, and takes its answers.

What must not live here: sockets, and what the client says.
"""

from __future__ import annotations

from ratelimit_service.grpc.h2.connection import Connection
from ratelimit_service.grpc.h2.frames import ErrorCode
from ratelimit_service.grpc.h2.limits import BLOCKED_SECONDS, GREETING_SECONDS, PING_SECONDS

__all__ = ["Presence"]


class Presence:
    """What is known of one client's being there. All times are the event loop's, in seconds."""

    def __init__(self, connection: Connection, now: float) -> None:
        self._connection = connection
        self._opened_at = now
        self.heard = False
        """Whether the client has said something since the last look."""
        self._heard_at = now
        """When it said something last."""
        self._pinged_at: float | None = None
        """When it was asked whether it is there, if it has said nothing since."""
        self._blocked_since: float | None = None
        self._delivered = 0
        """How many bytes of answers the client had taken when this was last checked."""
        self.leaving = 0
        """For how many seconds our last words have waited to be sent."""

    def look(self, now: float, max_age: float) -> bool:
        """Tells the client to end what hangs or is too old, and pings it if it is silent.

        Call it once a second. Returns whether to drop the connection once that is written, since
        nobody answers. An age of 0 is no bound.
        """
        connection, gone = self._connection, False
        if self.heard:
            self.heard, self._heard_at, self._pinged_at = False, now, None
        if not connection.greeted:
            if now - self._opened_at > GREETING_SECONDS:
                connection.abandon(ErrorCode.PROTOCOL_ERROR, "nothing was said", "timeout")
        elif self._is_stuck(now):
            text = "answers cannot be delivered"
            connection.abandon(ErrorCode.ENHANCE_YOUR_CALM, text, "stuck")
            gone = True
        elif self._pinged_at is not None:
            gone = now - self._pinged_at > PING_SECONDS
        elif now - self._heard_at > PING_SECONDS:
            self._pinged_at = now
            connection.ping()
        if max_age and now - self._opened_at > max_age:
            connection.shut_down()
        if self.leaving:
            self.leaving += 1
        return gone or self.leaving > BLOCKED_SECONDS

    def age(self, now: float) -> float:
        """For how many seconds the client is here."""
        return now - self._opened_at

    def _is_stuck(self, now: float) -> bool:
        if not self._connection.sender.blocked:
            self._blocked_since = None
            return False
        if self._blocked_since is None or self._delivered != self._connection.sender.delivered:
            # A client that takes its answers slowly, but does take them, is served.
            self._blocked_since = now
            self._delivered = self._connection.sender.delivered
        return now - self._blocked_since > BLOCKED_SECONDS
