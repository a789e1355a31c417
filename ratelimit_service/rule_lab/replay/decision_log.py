"""Our own decision log as a source of requests: `decision_log.line` has its lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from ratelimit_service.decision_log.line import (
    BadDecisionError,
    NothingAskedError,
    read_line,
    read_request,
)
from ratelimit_service.model import Code, Descriptor, Request, new_tuple
from ratelimit_service.rule_lab.replay.json_lines import asked_entries, decisions
from ratelimit_service.rule_lab.replay.logs import Lines, by_parts
from ratelimit_service.rule_lab.replay.recorded import Block, Known, Moments, RecordedRequest
from ratelimit_service.text.display import count

__all__ = ["AskedText", "DecisionLogReader"]

_CODES: Final = {"OK": Code.OK, "OVER_LIMIT": Code.OVER_LIMIT}

AskedText = bytes
"""Descriptors as they stand in the line, and behind them hits and domain."""


class DecisionLogReader:
    """Reads such a log."""

    def __init__(self, known: Known[AskedText] | None = None) -> None:
        """`known` is shared with other logs that are replayed together."""
        self.sampled = False
        """Whether decisions were left out of the log."""
        self.hashed = False
        """Whether values are not those that callers sent."""
        self.refused = 0
        """Requests that could not be read when they came."""
        self._known = known or Known[AskedText]()
        self._unusual = Known[Request]()
        """Of lines that were read one by one."""
        self._moments = Moments()

    def blocks(self, lines: Lines) -> Iterator[Block]:
        """The requests; a line that is none is told to `lines`."""
        self._lines = lines
        return by_parts(lines, self._at_once, self._one_by_one)

    def _at_once(self, lines: Sequence[bytes]) -> Block | None:
        """The requests of lines that all are of the usual form; None if one might not be."""
        found = decisions(lines)
        if found is None:
            return None
        try:
            times = self._moments.all_us(found.times)
        except ValueError:
            return None
        domains, hits = found.domains, found.hits
        if not any(hits) and domains.count(domains[0]) == len(lines):
            behind = _behind(domains[0], 0)
            asked = [descriptors + behind for descriptors in found.descriptors]
        else:
            asked = [
                descriptors + _behind(domain, addend)
                for descriptors, domain, addend in zip(
                    found.descriptors, domains, hits, strict=True
                )
            ]
        known = self._known.requests
        requests: list[RecordedRequest] = []
        for place, request in enumerate(map(known.get, asked)):
            if request is None:
                request = self._request(  # noqa: PLW2901 -- found late
                    asked[place], domains[place], found.descriptors[place], hits[place]
                )
                if request is None:
                    return None
            requests.append(request)
        self.sampled = self.sampled or found.sampled
        self.hashed = self.hashed or found.hashed
        return Block(times, requests, list(map(_CODES.get, found.codes)))

    def _request(
        self, asked: AskedText, domain: str, descriptors: bytes, hits: int
    ) -> RecordedRequest | None:
        """What was asked by a line; None if that cannot be."""
        entries = asked_entries(descriptors)
        if entries and not hits:
            descriptors_read = [
                new_tuple(Descriptor, (each, None, None, False)) for each in entries
            ]
            request = new_tuple(Request, (domain, tuple(descriptors_read), 0))
        else:
            try:
                told = json.loads(descriptors.decode("utf-8", "replace"))
                request = read_request({"domain": domain, "descriptors": told, "hits": hits})
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
                return None
        return self._known.keep(asked, len(asked), request)

    def _one_by_one(self, texts: Sequence[str], number: int) -> Iterator[Block]:
        block = Block([], [], [])
        for place, line in enumerate(texts, number):
            if not line:
                continue
            try:
                read = read_line(line, self._moments.moment_us)
            except NothingAskedError:
                self.refused += 1
                continue
            except BadDecisionError as error:
                self._lines.bad(str(error), place)
                continue
            if "sample" in read.fields:
                self.sampled = True
            if "hashed" in read.fields:
                self.hashed = True
            asked = self._unusual.requests.get(read.request)
            if asked is None:
                asked = self._unusual.keep(read.request, len(line), read.request)
            block.times.append(read.at_us)
            block.requests.append(asked)
            block.codes.append(_CODES.get(read.code))
        yield block

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


def _behind(domain: str, hits: int) -> bytes:
    return f"{hits} {domain}".encode("utf-8", "surrogatepass")
