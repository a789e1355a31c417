"""What a connection does by itself with calls that there is no time for, many at once.

Runs of calls are refused, and a few are answered from what is at hand. Clients take such calls back
in runs of resets, which are here as well. What must not live here: when there is no time
(`overload`), and how the bytes of a run are read (`passing`, `runs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from ratelimit_service.errors import BadRequestError
from ratelimit_service.grpc.h2 import passing, runs
from ratelimit_service.grpc.h2.account import Memory, expect
from ratelimit_service.grpc.h2.costs import FRAME_US, RUN_FRAME_US, UNPACK_US
from ratelimit_service.grpc.h2.events import Event
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    FRAME_HEAD_BYTES,
    HEADERS,
    SHORT_FRAME_BYTES,
)
from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.grpc.h2.incoming import Incoming
from ratelimit_service.grpc.h2.life import Leaving
from ratelimit_service.grpc.h2.limits import MAX_STREAMS
from ratelimit_service.grpc.h2.messages import PACKED, only_message
from ratelimit_service.grpc.h2.overload import Haste
from ratelimit_service.grpc.h2.streams import Methods
from ratelimit_service.service import Ready

__all__ = ["Hurrying"]

_WHOLE_HEADERS: Final = bytes((HEADERS, END_HEADERS))

_GLANCES_AT_ONCE: Final = 64
_LEAST_GLANCES: Final = 4
"""So many calls are looked at together whether a denial is at hand. Fewer cost as much as the
least."""

_USUAL_PARTS: Final = 2
"""Frames in which clients send a short message, and its end."""


class Hurrying(Incoming):
    """The part of a connection that ends calls by itself when there is no time for them."""

    def __init__(self, methods: Methods, memory: Memory) -> None:
        super().__init__(methods, memory)
        self._usual_block, self._usual_head = b"", Head()
        """The header block of the last call that came whole, and its head: a client's calls have
        the same headers nearly always, and comparing a block takes less time than looking it up."""
        self.haste: Haste | None = None
        """What may be done with the calls of the next piece if there is no time for them."""
        self._unanswered: set[int] = set()
        """Calls that came too late even for a refusal: their callers will take them back."""
        self._unanswered_for_long: set[int] = set()
        """The same of the second before."""

    def _refuse_run(
        self, haste: Haste, data: bytes, start: int, stop: int, events: list[Event]
    ) -> int:
        """Refuses a run of calls that there is no time for.

        The header block of the first is `data[start:stop]`. Returns where the last one ends.
        Returns 0, and has taken nothing, if there is none.
        """
        block = data[start:stop]
        if not self._life.steady or self._block is not None:
            return 0
        head = self._known(block)
        if head is None or not haste.concerns(head):
            return 0
        begin = start - FRAME_HEAD_BYTES
        if haste.glances > 0 and not haste.gone_percent:
            at, streams, messages = self._take_calls(haste, data, begin, block)
            if streams:
                self._deny_or_refuse(haste, streams, messages, block)
                return at
        at, streams, taken_back = self._pass_calls(haste, data, begin, block, events)
        if not streams:
            return 0
        haste.refused += len(streams)
        if self.wants_origins and haste.looks > 0:
            end = stop + 9 + int.from_bytes(data[stop : stop + 3], "big")
            self._tell_refused(haste, data[stop + 9 : end], head.encoding, block)
        gone = set(taken_back)
        if haste.gone_percent:
            first = len(streams) * haste.gone_percent // 100
            # Who keeps to the streams that we allow has no more of these open.
            first = min(first, MAX_STREAMS - len(self._unanswered))
            self._unanswered.update(streams[:first])
            self._unanswered -= gone
            streams = streams[first:]
        if gone:
            streams = [each for each in streams if each not in gone]
        if streams:
            self._output.append(runs.refusals(streams))
        return at

    def _take_calls(
        self, haste: Haste, data: bytes, at: int, block: bytes
    ) -> tuple[int, list[int], list[bytes]]:
        """Takes a few short calls with this header block: where they end, streams, and messages."""
        most = min(haste.glances, _GLANCES_AT_ONCE, MAX_STREAMS - len(self._streams))
        end, streams, messages = runs.usual_calls(data, at, block, self.latest_stream, most)
        count = len(streams)
        if count:
            weight = max(count, _LEAST_GLANCES)
            haste.glances -= weight
            haste.glanced += weight
            self._opens_all(streams)
            self._consume(end - at - count * (2 * FRAME_HEAD_BYTES + len(block)))
            self._credit(count)
        return end, streams, messages

    def _deny_or_refuse(
        self, haste: Haste, streams: list[int], messages: list[bytes], block: bytes
    ) -> None:
        """Denies those of the calls whose callers are known to be over, and refuses the others."""
        asks = self.wants_origins
        refused: list[int] = []
        denied: list[int] = []
        found: list[Ready] = []
        for stream_id, message in zip(streams, messages, strict=True):
            ready = haste.answers.get(message)
            if ready is None or not ready.denied:
                refused.append(stream_id)
                if asks and haste.looks > 0:
                    haste.looks -= 1
                    haste.turned_away.append((message, self._origin(block)))
            else:
                denied.append(stream_id)
                found.append(ready)
        if denied:
            answered = self._answer_denied(haste, denied, found)
            self._credit(-answered)  # they are credited already
            refused += denied[answered:]
            for ready in found[:answered]:
                ready.times += 1
                if asks and haste.looks > 0:
                    haste.looks -= 1
                    ready.origins.append(self._origin(block))
        haste.refused += len(refused)
        if refused:
            self._output.append(runs.refusals(refused))

    def _answer_denied(self, haste: Haste, streams: list[int], found: Sequence[Ready]) -> int:
        """Answers the first of these calls, as far as windows allow; returns how many."""
        self._streams.update(dict.fromkeys(streams))
        try:
            return self.answer_whole(streams, [ready.message for ready in found])
        except Exception as error:  # then the others are refused
            haste.failed(error)
            return sum(stream_id not in self._streams for stream_id in streams)
        finally:
            for stream_id in streams:
                self._streams.pop(stream_id, None)

    def _known(self, block: bytes) -> Head | None:
        """The head of a header block, if it is known."""
        # What all connections remember may be forgotten while this one compares its usual block.
        usual = block and block == self._usual_block
        return self._usual_head if usual else self._headers.recall(block)

    def _tell_refused(self, haste: Haste, body: bytes, encoding: bytes, block: bytes) -> None:
        """Notes what a refused call has asked, and who made it, for whoever listens."""
        haste.looks -= 1
        if body[:1] == PACKED:
            self._worked_us += UNPACK_US
        with suppress(BadRequestError):  # what has no message has asked nothing
            message = only_message(bytearray(body), encoding)
            haste.turned_away.append((message, self._origin(block)))

    def _goes_on(self, haste: Haste, data: bytes, at: int) -> bool:
        """Whether what follows may belong to a run: not if it begins a call of another kind."""
        if data[at + 3 : at + 5] != _WHOLE_HEADERS:
            return True
        start = at + FRAME_HEAD_BYTES
        stop = start + int.from_bytes(data[at : at + 3], "big")
        head = self._known(data[start:stop])
        return head is not None and haste.concerns(head)

    def _pass_calls(
        self, haste: Haste, data: bytes, start: int, block: bytes, events: list[Event]
    ) -> tuple[int, list[int], list[int]]:
        """Passes a run of calls that are not handed on, and resets among them.

        Returns where it ends, the calls' streams, and those that the client has taken back, which
        need no refusal. The fault is ours, so later frames of the client on these streams cost it
        as little as if they had been answered.
        """
        passed = passing.calls(data, start, block, self.latest_stream)
        self._pass(passed, events)
        streams, taken_back = passed.streams, passed.taken_back
        # Of callers that trace, no two blocks are alike.
        alike = partial(self._headers.count_known, haste.concerns)
        walks = [passing.varied_calls]
        if not (self.blocked or (self.wants_origins and haste.looks > 0)):
            # To refuse a call its headers are enough, in whatever order its other frames come.
            walks.append(passing.begun_calls)
        for walk in walks:
            if passed.until == len(data) or len(taken_back) >= passing.MOST_TAKEN_BACK:
                break
            if not self._goes_on(haste, data, passed.until):
                break
            passed = walk(data, passed.until, self.latest_stream, alike)
            self._pass(passed, events)
            streams += passed.streams
            taken_back += passed.taken_back
        return passed.until, streams, taken_back

    def _pass(self, passed: passing.Passed, events: list[Event]) -> None:
        """Takes calls that are not handed on, and what came among them, as one after the other."""
        if passed.streams:
            self._opens_all(passed.streams)
            self._consume(passed.message_bytes)
            self._credit(len(passed.streams))
        if passed.updates:
            self._spend(FRAME_US * passed.updates, "windows")
            self._widen(passed.wider)
        self._worked_us += RUN_FRAME_US * (passed.updates + len(passed.taken_back))
        more_parts = passed.small_parts - _USUAL_PARTS * len(passed.streams)
        if more_parts > 0:
            self._spend(FRAME_US * more_parts, "parts")
            self._worked_us += RUN_FRAME_US * more_parts
        if passed.taken_back:
            self._reset_all(passed.taken_back, events)

    def _done_in_haste(
        self, haste: Haste, head: Head, stream_id: int, message: bytes, block: bytes
    ) -> bool:
        """Ends a call that there is no time for, if its answer is at hand.

        If a fault of ours prevents that, the call is handed on, and becomes a refusal if that fails
        as well.
        """
        streams = self._streams
        streams[stream_id] = None
        try:
            self._answer_in_haste(haste, head, stream_id, message, block)
        except Exception as error:
            haste.failed(error)
        if stream_id not in streams:
            return True
        del streams[stream_id]
        return False

    def _answer_in_haste(
        self, haste: Haste, head: Head, stream_id: int, message: bytes, block: bytes
    ) -> None:
        """Answers a call if its answer is at hand, and windows allow."""
        if not haste.concerns(head):
            return
        ready = haste.answers.get(message)
        if ready is None or not self.answer_whole([stream_id], [ready.message]):
            return
        ready.times += 1
        if ready.denied:
            haste.glanced += _LEAST_GLANCES
        else:
            haste.given += 1
        if self.wants_origins and haste.looks > 0:
            haste.looks -= 1
            ready.origins.append(self._origin(block))

    def _reset_run(self, data: bytes, start: int, events: list[Event]) -> int:
        """Handles a run of resets.

        Returns where the last one ends. Returns 0, and has done nothing, if the first is faulty.
        """
        end, stream_ids = runs.resets(data, start)
        for at, stream_id in enumerate(stream_ids):
            if not self._was_opened(stream_id):
                stream_ids = stream_ids[:at]
                end = start + at * SHORT_FRAME_BYTES
                break
        if not stream_ids:
            return 0
        self._worked_us += RUN_FRAME_US * len(stream_ids)
        self._reset_all(stream_ids, events)
        return end

    def _reset_all(self, stream_ids: list[int], events: list[Event]) -> None:
        """Takes the client's resets of these streams."""
        expect(all(map(self._was_opened, stream_ids)), "RST_STREAM on an idle stream")
        cost_us = FRAME_US * len(stream_ids)
        if not self._streams.keys().isdisjoint(stream_ids):
            for stream_id in stream_ids:
                cost_us += self._withdraw(stream_id, events)
        if self._unanswered or self._unanswered_for_long:
            self._unanswered.difference_update(stream_ids)
            self._unanswered_for_long.difference_update(stream_ids)
        self._spend(cost_us, "resets")

    def _rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        super()._rst_stream(stream_id, payload, events)
        self._unanswered.discard(stream_id)
        self._unanswered_for_long.discard(stream_id)

    def _refuse_unanswered(self) -> None:
        """Refuses the calls that were not answered, and that nobody has taken back for a second."""
        if self._unanswered_for_long:
            self._output.append(runs.refusals(sorted(self._unanswered_for_long)))
        self._unanswered_for_long, self._unanswered = self._unanswered, set()

    def _close_if_done(self) -> None:
        """As `OpenStreams` does it, but first refuses the calls that have no answer yet."""
        if not self._streams and self._life.leaving is Leaving.DRAINING:
            for _ in range(2):
                self._refuse_unanswered()
        super()._close_if_done()
