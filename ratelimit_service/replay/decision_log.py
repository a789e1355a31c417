"""Our own decision log as a source of requests: `service.decision_line` has its lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from ratelimit_service.model import Code, Descriptor, Entry, Request
from ratelimit_service.replay.logs import Lines
from ratelimit_service.replay.recorded import Block, Moments, Recorded, recorded
from ratelimit_service.service.decision_line import (
    BadDecisionError,
    NothingAskedError,
    read_line,
    read_request,
)
from ratelimit_service.text import count

__all__ = ["DecisionLogReader"]

_ASKED: Final = frozenset(("domain", "descriptors", "hits"))
_CODES: Final = {"OK": Code.OK, "OVER_LIMIT": Code.OVER_LIMIT}
_MOST_KNOWN: Final = 1 << 16
_MOST_TEXT: Final = 2_048
"""Characters of what was asked that are remembered with the request."""

_MOST_TIMES: Final = 10_000
"""A line may stand for any number of requests, but so many records of it are held at a time."""

_BEGIN: Final = '{"v":1,"time":"'
_TIME_AT: Final = len(_BEGIN)
_PART_AT: Final = _TIME_AT + len("2026-01-31T14:00:00.")
_ZONE_AT: Final = _PART_AT + len("000000")
_ASKED_AT: Final = _ZONE_AT + len('Z",')
_MOST_SECONDS: Final = 1_000
_CODE: Final = ',"code":"'
_USED: Final = ',"used":'

_NUMBER: Final = r"(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:e-?[0-9]++)?+"
_TEXT: Final = r'"[^"\\\x00-\x1f]*+"'
_FLAT: Final = rf'"[a-z_]++":(?:{_NUMBER}|{_TEXT})'
_END: Final = re.compile(
    r'(OK|OVER_LIMIT)"'
    r'(?:,"(?:by|descriptor|rule|source|limit|used|remaining|reset_seconds|shadowed|store|shard'
    r'|duration_seconds|caller|request_id|trace_id)":'
    rf"(?:{_NUMBER}|{_TEXT}|true|\{{{_FLAT}(?:,{_FLAT})*+\}}))*+\}}"
)
"""What stands behind what was asked in most lines of ours; none of it matters here but the code."""

_USED_END: Final = re.compile(
    rf'{_NUMBER},"remaining":{_NUMBER},"reset_seconds":{_NUMBER}(?:,"shadowed":true)?+'
    rf'(?:,"store":{_TEXT})?+(?:,"shard":{_TEXT})?+(?:,"duration_seconds":{_NUMBER})?+'
    rf'(?:,"caller":{_TEXT})?+(?:,"request_id":{_TEXT})?+(?:,"trace_id":{_TEXT})?+\}}'
)
"""The part of the same that is another one in each line: from what was used on."""


_USUAL: Final = re.compile(
    r'"domain":"([^"\\\x00-\x1f]++)","descriptors":'
    r'\[\{"entries":\[\["([^"\\\x00-\x1f]++)","([^"\\\x00-\x1f]*+)"\]\]\}\]'
)
"""What was asked by most lines of ours: one descriptor of one entry."""


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
        """Equal requests become one object, which is found faster."""
        self._texts: dict[str, Request] = {}
        """Requests by their text in lines of ours: to read JSON takes longer than to decide."""
        self._ends: dict[str, Code] = {}
        """Codes by what stands from there to what was used: it names the rule and its limit."""
        self._seconds: dict[str, int] = {}
        """Seconds, in microseconds since 1970, by how lines of them begin, up to the fraction."""
        self._moments = Moments()

    def blocks(self, lines: Lines) -> Iterator[Block]:
        """The requests; a line that is none is told to `lines`."""
        while taken := lines.take():
            yield from self._read(taken, lines)

    def _read(self, taken: list[str], lines: Lines) -> Iterator[Block]:
        texts, ends, seconds = self._texts, self._ends, self._seconds
        block: Block = []
        for place, line in enumerate(taken, 1 - len(taken)):
            asked, _, told = line.partition(_CODE)
            ruled, used, rest = told.partition(_USED)
            code = ends.get(ruled)
            if code is None or not used or _USED_END.fullmatch(rest) is None:
                code = self._code(told, ruled if used else "")
            request = texts.get(asked[_ZONE_AT:])
            if request is None and code is not None:
                request = self._request(asked)
            if request is not None and code is not None:
                second_us = seconds.get(line[:_PART_AT], -1)
                if second_us < 0:
                    second_us = self._second_us(line)
                part = line[_PART_AT:_ZONE_AT]
                if second_us >= 0 and part.isdigit() and part.isascii():
                    block.append(recorded((second_us + int(part), request, code)))
                    continue
            if not line:
                continue
            record, times = self._unusual(line, lines, lines.number + place)
            while times > 0 and record is not None:
                block += [record] * min(times, _MOST_TIMES)
                times -= _MOST_TIMES
                yield block
                block = []
        yield block

    def _code(self, told: str, ruled: str) -> Code | None:
        """The code of a line by its end; None if it might say something that matters here."""
        usual = _END.fullmatch(told)
        if usual is None:
            return None
        code = _CODES[usual[1]]
        if ruled and _END.fullmatch(f"{ruled}}}") is not None:
            if len(self._ends) >= _MOST_KNOWN:
                self._ends.clear()
            self._ends[ruled] = code
        return code

    def _request(self, asked: str) -> Request | None:
        """What was asked by a line of ours, of which this is the part before the code."""
        text = asked[_ASKED_AT:]
        if not asked.startswith('Z","', _ZONE_AT) or len(text) > _MOST_TEXT:
            return None
        usual = _USUAL.fullmatch(text)
        if usual is not None:
            domain, key, value = usual.groups()
            request = Request(domain, (Descriptor((Entry(key, value),)),))
        else:
            try:
                fields = json.loads(f"{{{text}}}")
                if not fields.keys() <= _ASKED:
                    return None
                request = read_request(fields)
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
                return None
        request = self._one(request)
        if len(self._texts) >= _MOST_KNOWN:
            self._texts.clear()
        self._texts[asked[_ZONE_AT:]] = request
        return request

    def _second_us(self, line: str) -> int:
        """The second of a line of ours; -1 of any other."""
        text = line[_TIME_AT : _PART_AT - 1]
        if not line.startswith(_BEGIN) or line[_PART_AT - 1] != "." or text[-3] != ":":
            return -1
        try:
            found = self._moments.moment_us(f"{text}.0Z")
        except ValueError:
            return -1  # it is told where all fields are read
        if len(self._seconds) >= _MOST_SECONDS:
            self._seconds.clear()
        self._seconds[line[:_PART_AT]] = found
        return found

    def _one(self, request: Request) -> Request:
        """The one of all equal requests."""
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        return self._known.setdefault(request, request)

    def _unusual(self, line: str, lines: Lines, number: int) -> tuple[Recorded | None, int]:
        """The record of any line, and how often it came."""
        try:
            read = read_line(line, self._moments.moment_us)
        except NothingAskedError:
            self.refused += 1
            return None, 0
        except BadDecisionError as error:
            lines.bad(str(error), number)
            return None, 0
        if "sample" in read.fields:
            self.sampled = True
        if "hashed" in read.fields:
            self.hashed = True
        record = Recorded(read.at_us, self._one(read.request), _CODES.get(read.code))
        return record, read.times

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
