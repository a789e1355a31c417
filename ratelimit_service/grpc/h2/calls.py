"""The methods that clients call: decisions in batches, health, reflection. Messages are bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc.h2.connection import (
    Calls,
    Cancelled,
    Ended,
    Event,
    Message,
    Methods,
)
from ratelimit_service.grpc.h2.costs import LONG_BYTES, USUAL_BYTES, USUAL_TAGS
from ratelimit_service.grpc.h2.gathered import Gathered, Pending, rank_of
from ratelimit_service.grpc.h2.limits import MAX_WATCHES
from ratelimit_service.grpc.h2.overload import (
    FRESH_US,
    LOOKS,
    Allowance,
    Fate,
    Haste,
    Overload,
    too_slow,
)
from ratelimit_service.grpc.h2.protocol import Http2Protocol
from ratelimit_service.grpc.health import HEALTH_SERVICE, HealthService
from ratelimit_service.grpc.reflection import REFLECTION_PATHS, reflect
from ratelimit_service.service import AT_ONCE, NEVER, RANKS, Refusal, Service, counted_until
from ratelimit_service.wire import METHOD, SERVICE

__all__ = ["METHODS", "METHODS_UNREFLECTED", "ServiceCalls"]

_DECIDE: Final = f"/{SERVICE}/{METHOD}".encode()
_CHECK: Final = f"/{HEALTH_SERVICE}/Check".encode()
_WATCH: Final = f"/{HEALTH_SERVICE}/Watch".encode()

_TAG: Final = b"\x12"
"""What stands in front of each descriptor of a request, and of each entry's value."""

_ENOUGH: Final = 16
"""So many calls are a batch of their own: with more of them each would cost little less."""

_MANY: Final = 32
"""A call that costs more than so many usual calls is planned in a turn of its own, and counted in
another."""

_STORE_LOOK_US: Final = 200
"""For so long what is known of waits in the store is used again. To ask the store for each of many
connections would take a good part of the time of those that are late."""

METHODS: Final = Methods(frozenset({_DECIDE, _CHECK, _WATCH}), REFLECTION_PATHS)
METHODS_UNREFLECTED: Final = Methods(METHODS.unary, frozenset())


class ServiceCalls:
    """Answers the calls of all connections."""

    def __init__(self, service: Service, health: HealthService, overload: Overload) -> None:
        self._service = service
        self._health = health
        self._overload = overload
        self._haste = Haste(_DECIDE, self.failed)
        self.allowance = Allowance()
        self._gathered: dict[tuple[bool, int, bool, int], Gathered] = {}
        """The calls of this turn that are to be decided, by what they have in common: whether there
        is no time to count them, about how long their callers wait, whether nobody asks who they
        are, and their rank."""
        self._pending = Pending()
        self._store_us: list[int] = []
        """How long calls of each rank wait in the store; -1 where nobody has asked."""
        self._store_looked_us = 0
        """When that was forgotten last, by `elapsed_us`."""
        self._watches: dict[Http2Protocol, dict[int, asyncio.Task[None]]] = {}
        """The calls that wait for changes of health, by their connections and streams."""

    def handle(self, protocol: Http2Protocol, events: list[Event]) -> None:
        """Hands on the calls of one read that ask for a decision, and answers the others."""
        alone = len(events) == 1
        for event in events:
            try:
                if isinstance(event, Calls):
                    calls = event if alone else _still_open(protocol, event)
                    if calls.head.path != _DECIDE:
                        self._call_all(protocol, calls)
                    elif calls.stream_ids:
                        self._decide(protocol, calls)
                elif isinstance(event, Message):
                    protocol.connection.send(event.stream_id, reflect(event.message))
                elif isinstance(event, Ended):
                    protocol.connection.finish(event.stream_id)
                else:
                    self._cancel(protocol, event)
            except Exception as error:
                self._fail(protocol, _streams(event), error)

    @property
    def wants_origins(self) -> bool:
        """Whether somebody asks just now who makes calls."""
        return self._service.telling.wants_origins

    def haste(self, protocol: Http2Protocol) -> Haste | None:
        """What a connection may do by itself with its next piece, if its calls have waited.

        After a fault of ours that is nothing, and the calls are handled one by one.
        """
        try:
            return self._haste_of(protocol)
        except Exception as error:
            self._service.bug(error)
            return None

    def _haste_of(self, protocol: Http2Protocol) -> Haste | None:
        haste, timeout_us = self._haste, protocol.backlog.timeout_us
        fate = protocol.backlog.fate(protocol.now_us, protocol.waited_us, timeout_us)
        fate = self._fate(protocol, timeout_us, fate)
        if fate is Fate.COUNTED:
            return None
        at_hand, overload = self._service.at_hand, self._overload
        at_hand.watching = True
        haste.timeout_us = timeout_us
        haste.refusing = fate is Fate.REFUSED
        haste.gone_percent = protocol.backlog.gone_percent(protocol.drawing.spread_us)
        if haste.given:
            overload.hurried(haste.given)
            haste.given = 0
        if haste.turned_away:
            self._tell_turned_away()
        haste.answers = at_hand.answers(protocol.now_us)
        overload.glances -= haste.glanced
        haste.glanced, haste.glances = 0, overload.glances if at_hand.denials else 0
        return haste

    def _fate(self, protocol: Http2Protocol, timeout_us: int | None, fate: Fate) -> Fate:
        """What becomes of calls that have waited, and whose callers wait for `timeout_us`.

        `fate` is what their waiting alone makes of them.
        """
        if timeout_us is None:
            return Fate.COUNTED
        if fate is Fate.COUNTED:
            # Where calls wait for us and for the store, both must leave time for an answer.
            waited_us, store_us = protocol.now_us - protocol.arrived_us, self.store_us(protocol)
            if store_us is not None and too_slow(waited_us + store_us, timeout_us):
                fate = Fate.HURRIED
        if fate is Fate.HURRIED and not (self._service.waits and self._overload.may_hurry):
            return Fate.REFUSED
        return fate

    def store_us(self, protocol: Http2Protocol) -> int | None:
        """How long a new call would wait in the store, as far as is known.

        That is as long as the oldest one before it has waited, or longer, if so many wait.
        """
        service = self._service
        if not service.waits:
            return None
        rank, now_us = rank_of(protocol.most_undecided()), protocol.now_us
        if not self._store_us or not 0 <= now_us - self._store_looked_us < _STORE_LOOK_US:
            self._store_us, self._store_looked_us = [-1] * RANKS, now_us
        store_us = self._store_us[rank]
        if store_us < 0:
            store_us = max(self._pending.oldest_us(now_us, rank), service.wait_us(rank))
            self._store_us[rank] = store_us
        return store_us

    def look(self) -> None:
        """Counts what connections have done in haste; to be called about once a second."""
        try:
            self._tell_turned_away()
            self._haste.looks = LOOKS
            self._overload.note(Fate.HURRIED, self._service.at_hand.settle())
            self._overload.waited(self._pending.oldest_us(elapsed_us(), RANKS - 1))
            self._overload.look()
        except Exception as error:  # who calls this has connections to look after
            self._service.bug(error)

    def _tell_turned_away(self) -> None:
        """Counts the calls that connections have refused, and tells listeners of some of these."""
        haste = self._haste
        refused, told = haste.refused, haste.turned_away
        haste.refused, haste.turned_away = 0, []
        self._overload.note(Fate.REFUSED, refused)
        self._service.telling.turned_away(told, refused - len(told))

    def failed(self, error: Exception) -> None:
        """Counts and logs a fault of ours."""
        self._service.bug(error)

    def _fail(self, protocol: Http2Protocol, stream_ids: Sequence[int], error: Exception) -> None:
        """Refuses those of the calls that were not answered before the error."""
        refusal = self._refusal(error)
        for stream_id in stream_ids:
            protocol.connection.finish(stream_id, refusal.code, refusal.message)

    def forget(self, protocol: Http2Protocol) -> None:
        """Ends the watches of a connection that is gone."""
        for task in self._watches.get(protocol, {}).values():
            task.cancel()

    def _decide(self, protocol: Http2Protocol, calls: Calls) -> None:
        connection, stream_ids = protocol.connection, calls.stream_ids
        timeout_us, arrived_us = calls.head.timeout_us, protocol.arrived_us
        deadline_us = NEVER if timeout_us is None else counted_until(arrived_us, timeout_us)
        fate = protocol.backlog.fate(protocol.now_us, protocol.waited_us, timeout_us)
        fresh = protocol.now_us - arrived_us <= FRESH_US and not protocol.drawing.begun
        if fate is not Fate.COUNTED or not fresh:
            fate = self._fate(protocol, timeout_us, fate)
        if fate is Fate.COUNTED:
            self._overload.counted(len(stream_ids))
        else:
            self._overload.note(fate, len(stream_ids), late=not fresh)
            if fate is Fate.REFUSED:
                connection.refuse(stream_ids)
                if calls.origins is not None:
                    looks = min(self._haste.looks, len(stream_ids))
                    self._haste.looks -= looks
                    told = list(zip(calls.messages[:looks], calls.origins[:looks], strict=True))
                    self._service.telling.turned_away(told, len(stream_ids) - looks)
                return
            self._overload.hurried(len(stream_ids))
            deadline_us = AT_ONCE

        if connection.unusual and max(map(len, calls.messages)) > LONG_BYTES:
            calls = self._decide_large(protocol, calls, deadline_us)
            stream_ids = calls.stream_ids
            if not stream_ids:
                return
        weight = _weight(calls.messages) if connection.unusual else len(stream_ids)
        rank = rank_of(protocol.most_undecided(weight))
        if len(stream_ids) >= _ENOUGH:
            alone = Gathered(self._pending, rank)
            alone.add(protocol, calls, deadline_us, weight)
            try:
                alone.submit(self._service, elapsed_us())
            except Exception as error:
                alone.fail(self._service, error)
            return
        patience = -1 if timeout_us is None else timeout_us.bit_length()
        key = deadline_us == AT_ONCE, patience, calls.origins is None, rank
        gathered = self._gathered.get(key)
        if gathered is None:
            gathered = self._gathered[key] = Gathered(self._pending, rank)
        gathered.add(protocol, calls, deadline_us, weight)
        protocol.at_end_of_turn(self._submit, weight)

    def _decide_large(self, protocol: Http2Protocol, calls: Calls, deadline_us: int) -> Calls:
        """Has those calls decided one by one, in turns of their own, that have many descriptors.

        Returns the others.
        """
        others = []
        for place, message in enumerate(calls.messages):
            weight = _weight((message,))
            if weight <= _MANY:
                others.append(place)
                continue
            one = _some(calls, (place,))
            arrived_us = protocol.arrived_us
            step = partial(self._decide_alone, protocol, one, deadline_us, arrived_us)
            protocol.in_a_turn_alone(step, weight)
        return calls if len(others) == len(calls.messages) else _some(calls, others)

    def _decide_alone(
        self, protocol: Http2Protocol, calls: Calls, deadline_us: int, arrived_us: int
    ) -> None:
        """Has calls decided, in a turn of their own."""
        try:
            self._decide_in_time(protocol, calls, deadline_us, arrived_us)
        except Exception as error:
            self._fail(protocol, calls.stream_ids, error)
            protocol.flush_soon()

    def _decide_in_time(
        self, protocol: Http2Protocol, calls: Calls, deadline_us: int, arrived_us: int
    ) -> None:
        """Has calls decided, unless they have waited for their turn for too long."""
        timeout_us = calls.head.timeout_us
        waited_us = elapsed_us() - arrived_us
        if timeout_us is not None and deadline_us != AT_ONCE and too_slow(waited_us, timeout_us):
            self._overload.note(Fate.REFUSED, len(calls.stream_ids))
            protocol.connection.refuse(calls.stream_ids)
            protocol.flush_soon()
            return
        # The next one waits for its answer: a store has no more than one before small calls.
        weight = _weight(calls.messages)
        alone = Gathered(
            self._pending, rank_of(protocol.most_undecided(weight)), protocol.release_steps
        )
        protocol.hold_steps()
        try:
            alone.add(protocol, calls, deadline_us, weight)
        except Exception:
            protocol.release_steps()
            raise
        try:
            alone.submit(self._service, elapsed_us())
        except Exception as error:
            alone.fail(self._service, error)

    def _submit(self, now_us: int) -> None:
        """Has all calls of a turn decided."""
        batches, self._gathered = self._gathered, {}
        for gathered in batches.values():
            try:
                gathered.submit(self._service, now_us)
            except Exception as error:  # its fault must not cost the others their answers
                gathered.fail(self._service, error)

    def _call_all(self, protocol: Http2Protocol, calls: Calls) -> None:
        """Answers calls that ask for no decision."""
        for stream_id, message in zip(calls.stream_ids, calls.messages, strict=True):
            self._call(protocol, calls.head.path, stream_id, message)

    def _call(self, protocol: Http2Protocol, path: bytes, stream_id: int, message: bytes) -> None:
        connection = protocol.connection
        if path == _CHECK:
            answer = self._health.check(message)
            if isinstance(answer, Refusal):
                connection.finish(stream_id, answer.code, answer.message)
            else:
                connection.answer(stream_id, answer)
            return
        watches = self._watches.setdefault(protocol, {})
        if len(watches) >= MAX_WATCHES:
            text = f"a connection may have {MAX_WATCHES} calls of Watch at once"
            connection.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)
            return
        task = asyncio.get_running_loop().create_task(self._watch(protocol, stream_id, message))
        watches[stream_id] = task
        task.add_done_callback(partial(self._watched, protocol, stream_id))

    def _watched(self, protocol: Http2Protocol, stream_id: int, _: object) -> None:
        """Forgets a watch that is over."""
        watches = self._watches[protocol]
        del watches[stream_id]
        if not watches:
            del self._watches[protocol]

    async def _watch(self, protocol: Http2Protocol, stream_id: int, message: bytes) -> None:
        try:
            async for answer in self._health.watch(message):
                protocol.connection.send(stream_id, answer)
                protocol.flush()
            protocol.connection.finish(stream_id)
        except Exception as error:
            refusal = self._refusal(error)
            protocol.connection.finish(stream_id, refusal.code, refusal.message)
        protocol.flush()

    def _refusal(self, error: Exception) -> Refusal:
        """What the caller is told if its request cannot be read, or met a fault of ours."""
        if isinstance(error, BadRequestError):
            return Refusal(error.code, str(error))
        return self._service.bug(error)

    def _cancel(self, protocol: Http2Protocol, event: Cancelled) -> None:
        task = self._watches.get(protocol, {}).get(event.stream_id)
        if task is not None:
            task.cancel()


def _weight(messages: Sequence[bytes]) -> int:
    """How many usual calls these messages are worth, by their descriptors and entries."""
    weight = len(messages)
    for message in messages:
        if len(message) > USUAL_BYTES:
            weight += message.count(_TAG) // USUAL_TAGS
    return weight


def _streams(event: Event) -> list[int]:
    """The streams that an event is about."""
    return event.stream_ids if isinstance(event, Calls) else [event.stream_id]


def _still_open(protocol: Http2Protocol, calls: Calls) -> Calls:
    """The calls without those that the same read has also cancelled."""
    connection = protocol.connection
    ids = calls.stream_ids
    still = [place for place, stream_id in enumerate(ids) if connection.is_open(stream_id)]
    return calls if len(still) == len(ids) else _some(calls, still)


def _some(calls: Calls, places: Sequence[int]) -> Calls:
    """The calls at these places among some calls."""
    ids, messages, origins = calls.stream_ids, calls.messages, calls.origins
    return Calls(
        calls.head,
        [ids[place] for place in places],
        [messages[place] for place in places],
        None if origins is None else [origins[place] for place in places],
    )
