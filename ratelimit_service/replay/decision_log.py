"""Our own decision log as a source of requests: `service.decision_line` has its lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from ratelimit_service.model import Code, Request
from ratelimit_service.replay.logs import Lines
from ratelimit_service.replay.recorded import Moments, Recorded, recorded
from ratelimit_service.service.decision_line import BadDecisionError, NothingAskedError, read_line
from ratelimit_service.text import count

__all__ = ["DecisionLogReader"]

_ASKED: Final = ("domain", "descriptors", "hits")
_CODES: Final = {"OK": Code.OK, "OVER_LIMIT": Code.OVER_LIMIT}
_MOST_KNOWN: Final = 1 << 16
_MOST_TEXT: Final = 2_048
"""Characters of what was asked that are remembered with the request."""

_BEGIN: Final = '{"v":1,"time":"'
_TIME_END: Final = len(_BEGIN) + len("2026-01-31T14:00:00.000000Z")
_USUAL_END: Final = re.compile(
    r',"code":"(OK|OVER_LIMIT)"'
    r'(?:,"(?:by|descriptor|rule|source|limit|used|remaining|reset_seconds|shadowed|store|shard'
    r'|duration_seconds|caller|request_id|trace_id)":'
    r'(?:(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e-?[0-9]+)?|"[^"\\\x00-\x1f]*"|true'
    r'|\{"[a-z_]+":(?:0|[1-9][0-9]*|"[^"\\\x00-\x1f]*")'
    r'(?:,"[a-z_]+":(?:0|[1-9][0-9]*|"[^"\\\x00-\x1f]*"))*\}))*\}'
)
"""What stands behind what was asked in most lines of ours; none of it matters here but the code."""


def _asked(line: str) -> str:
    """What was asked, as a line of ours has it behind the time; "" of other lines."""
    if not (line.startswith(_BEGIN) and line.startswith('","domain":', _TIME_END)):
        return ""
    end = line.find(',"code":"', _TIME_END, _TIME_END + _MOST_TEXT)
    return line[_TIME_END + 2 : end] if end > 0 else ""


def _is_all(text: str, fields: Mapping[str, object]) -> bool:
    """Whether a text holds all that a line with these fields says was asked, and nothing else."""
    try:
        asked = json.loads(f"{{{text}}}")
    except ValueError:
        return False
    return bool(asked and asked == {name: fields[name] for name in _ASKED if name in fields})


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
        self._texts: dict[str, Request] = {}
        """Requests by their text in lines of ours: to read JSON takes longer than to decide."""
        self._moments = Moments()

    def records(self, lines: Lines) -> Iterator[Recorded]:
        """The requests; a line that is none is told to `lines`."""
        known, texts, moment = self._known, self._texts, self._moments.moment_us
        for line in lines:
            if not line:
                continue
            asked = _asked(line)
            request = texts.get(asked)
            if request is not None and (again := self._again(line, request, len(asked))):
                yield again
                continue
            try:
                read = read_line(line, moment)
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
            if _is_all(asked, fields):
                if len(texts) >= _MOST_KNOWN:
                    texts.clear()
                texts[asked] = request
            for _ in range(read.times):
                yield recorded((at_us, request, _CODES.get(read.code)))

    def _again(self, line: str, request: Request, size: int) -> Recorded | None:
        """A line about a request that is known by its text of this size; None if it says more."""
        usual = _USUAL_END.fullmatch(line, _TIME_END + 2 + size)
        if usual is None:
            return None
        try:
            at_us = self._moments.moment_us(line[len(_BEGIN) : _TIME_END])
        except ValueError:
            return None  # it is told where all fields are read
        return recorded((at_us, request, _CODES[usual[1]]))

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
