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
    Received,
)
from ratelimit_service.grpc.h2.costs import LONG_BYTES, USUAL_BYTES, USUAL_TAGS
from ratelimit_service.grpc.h2.gathered import Gathered, Pending, answer_each, rank_of
from ratelimit_service.grpc.h2.limits import MAX_WATCHES
from ratelimit_service.grpc.h2.overload import Allowance, Overload, too_slow
from ratelimit_service.grpc.h2.protocol import Http2Protocol
from ratelimit_service.grpc.health import HEALTH_SERVICE, HealthService
from ratelimit_service.grpc.reflection import REFLECTION_PATHS, reflect
from ratelimit_service.service import NEVER, RANKS, Refusal, Service, counted_until
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

_MOST_TOLD: Final = 256
"""Listeners are told of calls that there is no time for, but of so many in a second at most."""

METHODS: Final = Methods(frozenset({_DECIDE, _CHECK, _WATCH}), REFLECTION_PATHS)
METHODS_UNREFLECTED: Final = Methods(METHODS.unary, frozenset())


class ServiceCalls:
    """Answers the calls of all connections."""

    def __init__(self, service: Service, health: HealthService, overload: Overload) -> None:
        self._service = service
        self._health = health
        self._overload = overload
        self.allowance = Allowance()
        self._gathered: dict[tuple[int, bool, int], Gathered] = {}
        """The calls of this turn that are to be decided, by what they have in common: about how
        long their callers wait, whether nobody asks who they are, and their rank."""
        self._pending = Pending(service)
        self._store_us: list[int] = []
        """How long calls of each rank wait in the store; -1 where nobody has asked."""
        self._store_looked_us = 0
        """When that was forgotten last, by `elapsed_us`."""
        self._told = 0
        """Of how many refused calls listeners were told in this second."""
        self._watches: dict[Http2Protocol, dict[int, asyncio.Task[None]]] = {}
        """The calls that wait for changes of health, by their connections and streams."""

    def handle(self, protocol: Http2Protocol, received: Received, *, at_once: bool) -> None:
        """Hands on the calls of one read that ask for a decision, and answers the others.

        They are decided `at_once`, or together with those of others at the end of the turn.
        """
        events, unusual = received.events, received.unusual
        alone = len(events) == 1
        for event in events:
            try:
                if isinstance(event, Calls):
                    calls = event if alone else _still_open(protocol, event)
                    if calls.head.path != _DECIDE:
                        self._call_all(protocol, calls)
                    elif calls.stream_ids:
                        self._decide(protocol, calls, unusual=unusual, at_once=at_once)
                elif isinstance(event, Message):
                    protocol.connection.sender.send(event.stream_id, reflect(event.message))
                elif isinstance(event, Ended):
                    protocol.connection.sender.finish(event.stream_id)
                else:
                    self._cancel(protocol, event)
            except Exception as error:
                self._fail(protocol, _streams(event), error)

    @property
    def wants_origins(self) -> bool:
        """Whether somebody asks just now who makes calls."""
        telling = self._service.telling
        return bool(telling.listeners) or (telling.tracer is not None and telling.wants_origins)

    def next_are_late(self, protocol: Http2Protocol) -> bool:
        """Whether the next calls are not counted, if their callers wait as long as those before."""
        try:
            return self.are_late(protocol, protocol.backlog.timeout_us)
        except Exception as error:  # each is looked at by itself
            self._service.bug(error)
            return False

    def are_late(self, protocol: Http2Protocol, timeout_us: int) -> bool:
        """Whether the next calls of a connection are not counted, if their callers wait so long."""
        backlog, now_us = protocol.backlog, protocol.now_us
        if backlog.is_late(now_us, protocol.waited_us, timeout_us):
            return True
        # Where calls wait for us and for the store, both must leave time for an answer.
        store_us = self.store_us(protocol)
        waited_us = now_us - protocol.arrived_us
        return store_us is not None and too_slow(waited_us + store_us, timeout_us)

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
        """Notices the end of an overload; to be called about once a second."""
        try:
            self._told = 0
            self._overload.waited(self._pending.oldest_us(elapsed_us(), RANKS - 1))
            self._overload.look()
        except Exception as error:  # who calls this has connections to look after
            self._service.bug(error)

    def failed(self, error: Exception) -> None:
        """Counts and logs a fault of ours."""
        self._service.bug(error)

    def _fail(self, protocol: Http2Protocol, stream_ids: Sequence[int], error: Exception) -> None:
        """Refuses those of the calls that were not answered before the error."""
        refusal = self._refusal(error)
        for stream_id in stream_ids:
            protocol.connection.sender.finish(stream_id, refusal.code, refusal.message)

    def forget(self, protocol: Http2Protocol) -> None:
        """Ends the watches of a connection that is gone."""
        for task in self._watches.get(protocol, {}).values():
            task.cancel()

    def _decide(
        self, protocol: Http2Protocol, calls: Calls, *, unusual: bool, at_once: bool
    ) -> None:
        """Has calls decided, unless there is no time to count them."""
        timeout_us, arrived_us = calls.head.timeout_us, protocol.arrived_us
        deadline_us = NEVER
        if timeout_us is not None:
            if not protocol.fresh and self.are_late(protocol, timeout_us):
                self._turn_away(protocol, calls)
                return
            protocol.backlog.timeout_us = timeout_us
            deadline_us = counted_until(arrived_us, timeout_us)
        weight = len(calls.stream_ids)
        if unusual:
            if max(map(len, calls.messages)) > LONG_BYTES:
                calls = self._decide_large(protocol, calls, deadline_us)
                if not calls.stream_ids:
                    return
            weight = _weight(calls.messages)
        rank = rank_of(protocol.most_undecided(weight)) if self._service.waits else 0
        if at_once or weight >= _ENOUGH:
            alone = Gathered(self._pending, rank, protocol, calls, deadline_us, weight)
            try:
                alone.submit(protocol.now_us)
            except Exception as error:
                alone.fail(error)
            return
        patience = -1 if timeout_us is None else timeout_us.bit_length()
        key = patience, calls.origins is None, rank
        gathered = self._gathered.get(key)
        if gathered is None:
            self._gathered[key] = Gathered(
                self._pending, rank, protocol, calls, deadline_us, weight
            )
        else:
            gathered.add(protocol, calls, deadline_us, weight)
        protocol.at_end_of_turn(self._submit_all, weight)

    def _turn_away(self, protocol: Http2Protocol, calls: Calls) -> None:
        """Denies those of late calls whose callers are known to be over, and refuses the others."""
        overload = self._overload
        stream_ids, messages, origins = calls.stream_ids, calls.messages, calls.origins
        looks = min(overload.looks(), len(stream_ids))
        denied = 0
        if looks:
            overload.looked(looks)
            told = None if origins is None else origins[:looks]
            found = self._service.deny_known(messages[:looks], told)
            known = [place for place, answer in enumerate(found) if answer is not None]
            answers = [answer for answer in found if answer is not None]
            its_ids = [stream_ids[place] for place in known]
            done = protocol.connection.sender.answer_whole(its_ids, answers)
            answer_each(self._service, protocol, its_ids, answers, done=done)
            denied = len(known)
            if denied:
                calls = _some(calls, sorted(set(range(len(stream_ids))).difference(known)))
        protocol.connection.sender.refuse(calls.stream_ids)
        overload.turned_away(denied, len(calls.stream_ids))
        self._tell_refused(calls)

    def _tell_refused(self, calls: Calls) -> None:
        """Tells whoever listens of refused calls: who made some of them, and how many others."""
        if calls.origins is None:
            return
        told = list(zip(calls.messages, calls.origins, strict=True))[: _MOST_TOLD - self._told]
        self._told += len(told)
        self._service.telling.turned_away(told, len(calls.stream_ids) - len(told))

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
        if timeout_us is not None and too_slow(elapsed_us() - arrived_us, timeout_us):
            self._turn_away(protocol, calls)
            protocol.flush_soon()
            return
        # The next one waits for its answer: a store has no more than one before small calls.
        weight = _weight(calls.messages)
        rank = rank_of(protocol.most_undecided(weight))
        protocol.hold_steps()
        try:
            alone = Gathered(self._pending, rank, protocol, calls, deadline_us, weight)
        except Exception:
            protocol.release_steps()
            raise
        alone.then = protocol.release_steps
        try:
            alone.submit(elapsed_us())
        except Exception as error:
            alone.fail(error)

    def _submit_all(self, now_us: int) -> None:
        """Has all calls of a turn decided."""
        batches, self._gathered = self._gathered, {}
        for gathered in batches.values():
            try:
                gathered.submit(now_us)
            except Exception as error:  # its fault must not cost the others their answers
                gathered.fail(error)

    def _call_all(self, protocol: Http2Protocol, calls: Calls) -> None:
        """Answers calls that ask for no decision."""
        for stream_id, message in zip(calls.stream_ids, calls.messages, strict=True):
            self._call(protocol, calls.head.path, stream_id, message)

    def _call(self, protocol: Http2Protocol, path: bytes, stream_id: int, message: bytes) -> None:
        connection = protocol.connection
        if path == _CHECK:
            answer = self._health.check(message)
            if isinstance(answer, Refusal):
                connection.sender.finish(stream_id, answer.code, answer.message)
            else:
                connection.sender.answer(stream_id, answer)
            return
        watches = self._watches.setdefault(protocol, {})
        if len(watches) >= MAX_WATCHES:
            text = f"a connection may have {MAX_WATCHES} calls of Watch at once"
            connection.sender.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)
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
                protocol.connection.sender.send(stream_id, answer)
                protocol.flush()
            protocol.connection.sender.finish(stream_id)
        except Exception as error:
            refusal = self._refusal(error)
            protocol.connection.sender.finish(stream_id, refusal.code, refusal.message)
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
