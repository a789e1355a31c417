"""Our own decision log as a source of requests: `service.decision_line` has its lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ratelimit_service.model import Code, Request
from ratelimit_service.replay.logs import Lines
from ratelimit_service.replay.recorded import Recorded, moment_us
from ratelimit_service.service.decision_line import BadDecisionError, NothingAskedError, read_line
from ratelimit_service.text import count

__all__ = ["DecisionLogReader"]

_CODES: Final = {"OK": Code.OK, "OVER_LIMIT": Code.OVER_LIMIT}
_MOST_KNOWN: Final = 1 << 16


class DecisionLogReader:
    """Reads such a log."""

    def __init__(self) -> None:
        self.sampled = False
        """Whether decisions were left out of the log."""
        self.hashed = False
        """Whether values are not those that callers sent."""
        self.refused = 0
        """Requests that could not be read when they came."""
        self._known: dict[Request, Request] = {}

    def records(self, lines: Lines) -> Iterator[Recorded]:
        """The requests; a line that is none is told to `lines`."""
        known = self._known
        for line in lines:
            if not line:
                continue
            try:
                read = read_line(line, moment_us)
            except NothingAskedError:
                self.refused += 1
                continue
            except BadDecisionError as error:
                lines.bad(str(error))
                continue
            at_us, request, fields = read
            if "sample" in fields:
                self.sampled = True
            if "hashed" in fields:
                self.hashed = True
            if len(known) >= _MOST_KNOWN:
                known.clear()
            # Equal requests become one object, which is found faster.
            request = known.setdefault(request, request)
            for _ in range(read.times):
                yield Recorded(at_us, request, _CODES.get(read.code))

    def notes(self) -> Iterator[str]:
        """What is to be known of the log as a whole."""
        if self.sampled:
            yield (
                "a decision log holds only a sample of its decisions, so more was asked than is "
                "replayed here: write it with --decision-log-sample denied=1,allowed=1"
            )
        if self.refused:
            yield f"refused when they came, and not asked here: {count(self.refused, 'request')}"
        if self.hashed:
            yield (
                "values in a decision log are hashed: rules for certain values, prefixes or "
                "networks meet nobody here"
            )
