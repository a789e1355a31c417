"""Makes spans of calls: which calls, and what is told of each.

A span is a plain value here; it is sent in JSON (`otlp`). What must not live here: how a caller
names its own span (`parents`).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service import wire
from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.eventloop.clock import Clock, elapsed_us, now_us
from ratelimit_service.model import Code, Descriptor, Hit
from ratelimit_service.service import CallOrigin, DecisionRecord, Refusal, Traced
from ratelimit_service.settings import Settings
from ratelimit_service.telemetry.budget import Budget
from ratelimit_service.telemetry.parents import Parent, parent_of
from ratelimit_service.text.display import printable

__all__ = ["Spans"]

_FLUSH_SECONDS: Final = 0.25
_MOST_WAITING: Final = 64
"""After so long, or when there are so many, spans are sent on."""

_MOST_DESCRIPTORS: Final = 20
_MOST_CHARACTERS: Final = 256
"""How many descriptors a span tells of, and how much of a text that callers choose."""

_FAULTS: Final = frozenset({StatusCode.INTERNAL, StatusCode.UNAVAILABLE})
"""Refusals that are an error of ours, and not of the caller."""


class Spans:
    """The tracer of one process: at most so many spans a second, sampled as their parents are."""

    def __init__(
        self,
        settings: Settings,
        send: Callable[[bytes], None],
        shard_of: Callable[[Hit], str],
        clock: Clock = elapsed_us,
    ) -> None:
        """`send` takes a list in JSON, `shard_of` says which server has a counter, if any."""
        self._budget = Budget(settings.otel_spans_per_second, clock)
        self._ratio = settings.otel_sampling_ratio
        self._values = settings.otel_values
        self._store = settings.store.partition(":")[0]
        self._send = send
        self._shard_of = shard_of
        self._waiting: list[dict[str, object]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether there may be more spans in this second."""
        return self._budget.room > 0

    def choose(self, origins: Sequence[CallOrigin]) -> Sequence[Traced]:
        """The sampled ones, as far as there may be more spans in this second."""
        chosen = []
        for index, origin in enumerate(origins):
            parent = parent_of(origin.headers)
            if self._is_sampled(parent) and self._budget.take(1):
                chosen.append(Traced(index, parent))
        return chosen

    def _is_sampled(self, parent: Parent) -> bool:
        if parent.sampled is not None:
            return parent.sampled
        return random.random() < self._ratio  # noqa: S311 -- no secret

    def decided(self, traced: Traced, record: DecisionRecord) -> None:
        """Makes the span, which is sent in a moment."""
        assert isinstance(traced.parent, Parent)  # noqa: S101 -- what `choose` gave
        end_us = now_us()
        attributes, error = self._attributes(record)
        self._waiting.append(
            {
                "trace": traced.parent.trace_id,
                "parent": traced.parent.span_id,
                "state": traced.parent.state,
                "start_us": end_us - max(0, record.took_us),
                "end_us": end_us,
                "attributes": attributes,
                "error": error,
            }
        )
        if len(self._waiting) >= _MOST_WAITING:
            self.flush()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Sends what has not been sent yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            spans, self._waiting = self._waiting, []
            self._send(json.dumps(spans).encode())

    def _attributes(self, record: DecisionRecord) -> tuple[dict[str, object], str]:
        """The attributes of a span, and what went wrong."""
        answer, error = record.answer, ""
        attributes: dict[str, object] = {
            "rpc.system": "grpc",
            "rpc.service": wire.SERVICE,
            "rpc.method": wire.METHOD,
            "ratelimit.decided_by": record.by.value,
        }
        if isinstance(answer, Refusal):
            attributes["rpc.grpc.status_code"] = int(answer.code)
            error = printable(answer.message) if answer.code in _FAULTS else ""
        else:
            attributes["rpc.grpc.status_code"] = 0
            over = wire.decode_decision(answer).code is Code.OVER_LIMIT
            attributes["ratelimit.code"] = (Code.OVER_LIMIT if over else Code.OK).name
        try:
            request = wire.decode_request(record.body)
        except BadRequestError:
            pass  # then there is nothing more to tell
        else:
            attributes["ratelimit.domain"] = _cut(request.domain)
            attributes["ratelimit.descriptors"] = [
                _cut(self._shown(descriptor))
                for descriptor in request.descriptors[:_MOST_DESCRIPTORS]
            ]
        if record.limit is not None:
            limit = record.limit
            attributes["ratelimit.rule"] = record.rule or "(override)"
            attributes["ratelimit.limit"] = limit.requests_per_unit
            attributes["ratelimit.unit"] = limit.unit.name.lower()
            if limit.multiplier != 1:
                attributes["ratelimit.unit_multiplier"] = limit.multiplier
        if record.outcome is not None:
            attributes["ratelimit.remaining"] = record.outcome.remaining
        if record.hit is not None:
            attributes["ratelimit.store"] = self._store
            if shard := self._shard_of(record.hit):
                attributes["ratelimit.shard"] = shard
        return attributes, error

    def _shown(self, descriptor: Descriptor) -> str:
        """Its keys, with their values if these are asked for."""
        if self._values:
            return ",".join(f"{key}={value}" for key, value in descriptor.entries)
        return ",".join(key for key, _ in descriptor.entries)


def _cut(text: str) -> str:
    """A caller's text, made fit to be shown."""
    return printable(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…")
