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
from ratelimit_service.rule_lab.replay.json_lines import decisions, plain_entries
from ratelimit_service.rule_lab.replay.logs import Lines, by_parts
from ratelimit_service.rule_lab.replay.recorded import Block, Moments, RecordedRequest, RequestCache
from ratelimit_service.text.display import count

__all__ = ["DecisionLogReader", "RequestText"]

_CODES: Final = {"OK": Code.OK, "OVER_LIMIT": Code.OVER_LIMIT}

RequestText = bytes
"""Descriptors as they stand in the line, and behind them hits and domain."""


class DecisionLogReader:
    """Reads such a log."""

    def __init__(self, cache: RequestCache[RequestText] | None = None) -> None:
        """`cache` is shared with other logs that are replayed together."""
        self.sampled = False
        """Whether decisions were left out of the log."""
        self.hashed = False
        """Whether values are not those that callers sent."""
        self.refused = 0
        """Requests that could not be read when they came, or that only settled what was held."""
        self._cache = cache or RequestCache[RequestText]()
        self._unusual = RequestCache[Request]()
        """Of lines that were read one by one."""
        self._moments = Moments()

    def blocks(self, lines: Lines) -> Iterator[Block]:
        """The requests; a line that is none is told to `lines`."""
        self._lines = lines
        return by_parts(lines, self._at_once, self._one_by_one)

    def _at_once(self, lines: Sequence[bytes]) -> Block | None:
        """The requests of lines that all are of the usual form; None if one might not be."""
        columns = decisions(lines)
        if columns is None:
            return None
        try:
            times = self._moments.all_us(columns.times)
        except ValueError:
            return None
        domains, hits = columns.domains, columns.hits
        if not any(hits) and domains.count(domains[0]) == len(lines):
            behind = _behind(domains[0], 0)
            keys = [descriptors + behind for descriptors in columns.descriptors]
        else:
            keys = [
                descriptors + _behind(domain, addend)
                for descriptors, domain, addend in zip(
                    columns.descriptors, domains, hits, strict=True
                )
            ]
        cached = self._cache.requests
        requests: list[RecordedRequest] = []
        for index, request in enumerate(map(cached.get, keys)):
            if request is None:
                request = self._request(  # noqa: PLW2901 -- found late
                    keys[index], domains[index], columns.descriptors[index], hits[index]
                )
                if request is None:
                    return None
            requests.append(request)
        self.sampled = self.sampled or columns.sampled
        self.hashed = self.hashed or columns.hashed
        return Block(times, requests, list(map(_CODES.get, columns.codes)))

    def _request(
        self, key: RequestText, domain: str, descriptors: bytes, hits: int
    ) -> RecordedRequest | None:
        """What was asked by a line; None if that cannot be."""
        entries = plain_entries(descriptors)
        if entries and not hits:
            descriptors_read = [
                new_tuple(Descriptor, (several, None, None, False)) for several in entries
            ]
            request = new_tuple(Request, (domain, tuple(descriptors_read), 0))
        else:
            try:
                parsed = json.loads(descriptors.decode("utf-8", "replace"))
                request = read_request({"domain": domain, "descriptors": parsed, "hits": hits})
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
                return None
        return self._cache.add(key, len(key), request)

    def _one_by_one(self, texts: Sequence[str], first: int) -> Iterator[Block]:
        block = Block([], [], [])
        for number, line in enumerate(texts, first):
            if not line:
                continue
            try:
                decision = read_line(line, self._moments.moment_us)
            except NothingAskedError:
                self.refused += 1
                continue
            except BadDecisionError as error:
                self._lines.bad(str(error), number)
                continue
            if "sample" in decision.fields:
                self.sampled = True
            if "hashed" in decision.fields:
                self.hashed = True
            recorded = self._unusual.requests.get(decision.request)
            if recorded is None:
                recorded = self._unusual.add(decision.request, len(line), decision.request)
            block.add(decision.at_us, recorded, _CODES.get(decision.code))
        yield block

    def notes(self) -> Iterator[str]:
        """What is to be known of the log as a whole."""
        if self.sampled:
            yield (
                "a decision log holds only a sample of its decisions, so more was asked than is "
                "replayed here: write it with --decision-log-sample denied=1,allowed=1"
            )
        if self.refused:
            yield (
                "refused when they came, or settled what was held, and not asked here: "
                f"{count(self.refused, 'request')}"
            )
        if self.hashed:
            yield (
                "values in a decision log are hashed: rules for certain values, prefixes or "
                "networks meet nobody here"
            )


def _behind(domain: str, hits: int) -> bytes:
    return f"{hits} {domain}".encode("utf-8", "surrogatepass")
