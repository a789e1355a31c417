"""The methods that clients call: decisions in batches, health, reflection. Messages are bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc.call_batch import CallBatch, Pending, answer_each, priority_of
from ratelimit_service.grpc.h2.admission import (
    FRESH_US,
    in_time,
    refused,
    too_slow,
)
from ratelimit_service.grpc.h2.client import Client, Visit
from ratelimit_service.grpc.h2.connection import (
    Calls,
    Cancelled,
    Ended,
    Event,
    Message,
    Methods,
)
from ratelimit_service.grpc.h2.costs import LONG_BYTES, USUAL_BYTES, USUAL_TAGS
from ratelimit_service.grpc.h2.limits import MAX_WATCHES
from ratelimit_service.grpc.health import HEALTH_SERVICE, HealthService
from ratelimit_service.grpc.overload import Overload
from ratelimit_service.grpc.reflection import REFLECTION_PATHS, reflect
from ratelimit_service.model.call_origin import CallOrigin
from ratelimit_service.service import PRIORITIES, Answer, Refusal, Service, counted_until
from ratelimit_service.wire import METHOD, SERVICE
from ratelimit_service.wire.reservations import RESERVING_METHODS, RESERVING_SERVICE

__all__ = ["METHODS", "METHODS_UNREFLECTED", "ServiceCalls"]

_DECIDE: Final = f"/{SERVICE}/{METHOD}".encode()
_CHECK: Final = f"/{HEALTH_SERVICE}/Check".encode()
_WATCH: Final = f"/{HEALTH_SERVICE}/Watch".encode()

_TAG: Final = b"\x12"
"""What stands in front of each descriptor of a request, and of each entry's value."""

_MANY: Final = 32
"""A call that costs more than so many usual calls is planned in a turn of its own, and counted in
another."""

_STORE_LOOK_US: Final = 200
"""For so long what is known of waits in the store is used again. To ask the store for each of many
connections would take a good part of the time of those that are late."""

_MOST_TOLD: Final = 256
"""Listeners are told of calls that there is no time for, but of so many in a second at most."""

_RESERVE: Final = {
    f"/{RESERVING_SERVICE}/{method}".encode(): method for method in RESERVING_METHODS
}
"""The methods that reserve and settle, by their paths."""

METHODS: Final = Methods(frozenset({_DECIDE, _CHECK, _WATCH, *_RESERVE}), REFLECTION_PATHS)
METHODS_UNREFLECTED: Final = Methods(METHODS.unary, frozenset())


class ServiceCalls:
    """Answers the calls of all connections."""

    def __init__(self, service: Service, health: HealthService, overload: Overload) -> None:
        self._service = service
        self._health = health
        self._overload = overload
        self._gathered: dict[tuple[int, bool, int], CallBatch] = {}
        """The calls of this turn that are to be decided, by what they have in common: about how
        long their callers wait, whether nobody asks who they are, and their priority."""
        self._pending = Pending(service)
        self._waits_us: list[int] = []
        """How long calls of each priority wait in the store; -1 where nobody has asked."""
        self._store_looked_us = 0
        """When that was forgotten last, by `elapsed_us`."""
        self._told = 0
        """Of how many refused calls listeners were told in this second."""
        self._watches: dict[Client, dict[int, asyncio.Task[None]]] = {}
        """The calls that wait for changes of health, by their connections and streams."""
        self._reserving: set[asyncio.Task[None]] = set()
        """The calls that reserve or settle."""

    def handle(self, client: Client, events: list[Event], visit: Visit) -> None:
        """Hands on the calls of one visit that ask for a decision, and answers the others."""
        alone = len(events) == 1
        late = None
        if visit.oldest_us > FRESH_US or client.late or any(self._pending.since_us):
            late = self._late(client, visit, events)
        for event in events:
            try:
                if isinstance(event, Calls):
                    client.patience_us = event.head.timeout_us or client.patience_us
                    calls, arrived_us = event, visit.now_us - visit.oldest_us
                    if not alone:
                        calls = _still_open(client, event)
                    if late is not None:
                        calls = self._in_time(client, calls, late)
                        away = len(event.stream_ids) - len(calls.stream_ids)
                        arrived_us = visit.now_us - late.waited_us(away)
                        late.before += len(event.stream_ids)
                    if calls.head.path != _DECIDE:
                        self._call_all(client, calls, visit.now_us)
                    elif calls.stream_ids:
                        self._decide(client, calls, visit, arrived_us)
                elif isinstance(event, Message):
                    client.connection.sender.send(event.stream_id, reflect(event.message))
                elif isinstance(event, Ended):
                    client.connection.sender.finish(event.stream_id)
                else:
                    self._cancel(client, event)
            except Exception as error:
                self._fail(client, _streams(event), error)
        if late is not None:
            client.late = late.refused

    @property
    def wants_origins(self) -> bool:
        """Whether somebody asks just now who makes calls."""
        events = self._service.events
        return bool(events.listeners) or (events.tracer is not None and events.wants_origins)

    def _late(self, client: Client, visit: Visit, events: list[Event]) -> _Late | None:
        """What is known of calls that may be late; None if none can be."""
        try:
            store_us = self._store_us(client, visit.now_us)
            if visit.oldest_us + store_us <= FRESH_US and not client.late:
                return None
            return _Late(visit, events, store_us)
        except Exception as error:  # then they are counted
            self._service.bug(error)
            return None

    def _in_time(self, client: Client, calls: Calls, late: _Late) -> Calls:
        """Refuses those calls for which there is no time, or denies them; returns the others."""
        patience_us = calls.head.timeout_us
        if patience_us is None or calls.head.path != _DECIDE:
            return calls
        visit, total = late.visit, late.total
        waited_us = visit.oldest_us, visit.newest_us
        # Where the store is too far or too slow for a caller, failure policies answer at once: that
        # waits for nothing, and is no overload.
        store_us = 0 if too_slow(self._service.reply_us(), patience_us) else late.store_us
        counted = in_time(total, *waited_us, visit.each_us, patience_us, store_us)
        away = refused(len(calls.stream_ids), late.before, total, counted)
        if not away:
            return calls
        late.refused = True
        rest = _some(calls, range(away, len(calls.stream_ids)))
        calls = _some(calls, range(away))
        if late.store_us and self._service.leases:  # who needs no store is not refused for its sake
            counted = in_time(total, *waited_us, visit.each_us, patience_us, 0)
            calls = self._pay(client, calls, refused(away, late.before, total, counted))
        if calls.stream_ids:
            self._turn_away(client, calls)
        return rest

    def _pay(self, client: Client, calls: Calls, first: int) -> Calls:
        """Answers those calls from the `first` on that need no store; returns the others."""
        origins = calls.origins
        its_origins = None if origins is None else origins[first:]
        answers = self._service.pay_known(calls.messages[first:], its_origins)
        return self._answer_known(client, calls, [*[None] * first, *answers])

    def _answer_known(
        self, client: Client, calls: Calls, answers: Sequence[Answer | None]
    ) -> Calls:
        """Answers those calls that have an answer here; returns the others."""
        known = [index for index, answer in enumerate(answers) if answer is not None]
        if not known:
            return calls
        its_ids = [calls.stream_ids[index] for index in known]
        its_answers = [answer for answer in answers if answer is not None]
        done = client.connection.sender.answer_whole(its_ids, its_answers)
        answer_each(self._service, client, its_ids, its_answers, done=done)
        return _some(calls, sorted(set(range(len(calls.stream_ids))).difference(known)))

    def _store_us(self, client: Client, now_us: int) -> int:
        """How long a new call would wait in the store, as far as is known.

        That is as long as the oldest one before it has waited, or longer, if so many wait.
        """
        service = self._service
        if not service.waits:
            return 0
        priority = priority_of(client.most_undecided())
        if not self._waits_us or not 0 <= now_us - self._store_looked_us < _STORE_LOOK_US:
            self._waits_us, self._store_looked_us = [-1] * PRIORITIES, now_us
        store_us = self._waits_us[priority]
        if store_us < 0:
            store_us = max(self._pending.oldest_us(now_us, priority), service.wait_us(priority))
            self._waits_us[priority] = store_us
        return store_us

    def look(self) -> None:
        """Notices the end of an overload; to be called about once a second."""
        try:
            self._told = 0
            self._overload.waited(self._pending.oldest_us(elapsed_us(), PRIORITIES - 1))
            self._overload.look()
        except Exception as error:  # who calls this has connections to look after
            self._service.bug(error)

    def failed(self, error: Exception) -> None:
        """Counts and logs a fault of ours."""
        self._service.bug(error)

    def _fail(self, client: Client, stream_ids: Sequence[int], error: Exception) -> None:
        """Refuses those of the calls that were not answered before the error."""
        refusal = self._refusal(error)
        for stream_id in stream_ids:
            client.connection.sender.finish(stream_id, refusal.code, refusal.message)

    def forget(self, client: Client) -> None:
        """Ends the watches of a connection that is gone."""
        for task in self._watches.get(client, {}).values():
            task.cancel()

    def _decide(self, client: Client, calls: Calls, visit: Visit, arrived_us: int) -> None:
        """Has calls decided that have come at that time, or later."""
        timeout_us = calls.head.timeout_us
        deadline_us = counted_until(arrived_us, timeout_us)
        weight = len(calls.stream_ids)
        longest = max(map(len, calls.messages))
        if longest > USUAL_BYTES:
            if longest > LONG_BYTES:
                calls = self._decide_large(client, calls, deadline_us, arrived_us)
                if not calls.stream_ids:
                    return
            weight = _weight(calls.messages)
        priority = priority_of(client.most_undecided(weight)) if self._service.waits else 0
        if visit.alone and weight == 1:
            alone = CallBatch(self._pending, priority, client, calls, deadline_us, weight)
            try:
                alone.submit(visit.now_us)
            except Exception as error:
                alone.fail(error)
            return
        patience = -1 if timeout_us is None else timeout_us.bit_length()
        key = patience, calls.origins is None, priority
        batch = self._gathered.get(key)
        if batch is None:
            self._gathered[key] = CallBatch(
                self._pending, priority, client, calls, deadline_us, weight
            )
        else:
            batch.add(client, calls, deadline_us, weight)
        client.scheduler.later(self._submit_all, client, weight)

    def _turn_away(self, client: Client, calls: Calls) -> None:
        """Denies those of late calls whose callers are known to be over, and refuses the others."""
        overload, called = self._overload, len(calls.stream_ids)
        looks = min(overload.looks(), called)
        if looks:
            overload.looked(looks)
            its_origins = None if calls.origins is None else calls.origins[:looks]
            denials = self._service.deny_known(calls.messages[:looks], its_origins)
            calls = self._answer_known(client, calls, denials)
        left = len(calls.stream_ids)
        client.connection.sender.refuse(calls.stream_ids)
        overload.turned_away(called - left, left)
        self._tell_refused(calls)

    def _tell_refused(self, calls: Calls) -> None:
        """Tells whoever listens of refused calls: who made some of them, and how many others."""
        if calls.origins is None:
            return
        listed = list(zip(calls.messages, calls.origins, strict=True))[: _MOST_TOLD - self._told]
        self._told += len(listed)
        self._service.events.turned_away(listed, len(calls.stream_ids) - len(listed))

    def _decide_large(
        self, client: Client, calls: Calls, deadline_us: int, arrived_us: int
    ) -> Calls:
        """Has those calls decided one by one, in turns of their own, that have many descriptors.

        Returns the others.
        """
        others = []
        for index, message in enumerate(calls.messages):
            weight = _weight((message,))
            if weight <= _MANY:
                others.append(index)
                continue
            one = _some(calls, (index,))
            step = partial(self._decide_alone, client, one, deadline_us, arrived_us)
            client.in_a_turn_alone(step)
        return calls if len(others) == len(calls.messages) else _some(calls, others)

    def _decide_alone(
        self, client: Client, calls: Calls, deadline_us: int, arrived_us: int
    ) -> None:
        """Has calls decided, in a turn of their own."""
        try:
            self._decide_in_time(client, calls, deadline_us, arrived_us)
        except Exception as error:
            self._fail(client, calls.stream_ids, error)
            client.flush_soon()

    def _decide_in_time(
        self, client: Client, calls: Calls, deadline_us: int, arrived_us: int
    ) -> None:
        """Has calls decided, unless they have waited for their turn for too long."""
        timeout_us = calls.head.timeout_us
        if timeout_us is not None and too_slow(elapsed_us() - arrived_us, timeout_us):
            self._turn_away(client, calls)
            client.flush_soon()
            return
        # The next one waits for its answer: a store has no more than one before small calls.
        weight = _weight(calls.messages)
        priority = priority_of(client.most_undecided(weight))
        client.scheduler.hold_steps()
        try:
            alone = CallBatch(self._pending, priority, client, calls, deadline_us, weight)
        except Exception:
            client.scheduler.release_steps()
            raise
        alone.then = client.scheduler.release_steps
        try:
            alone.submit(elapsed_us())
        except Exception as error:
            alone.fail(error)

    def _submit_all(self, now_us: int) -> None:
        """Has all calls of a turn decided."""
        batches, self._gathered = self._gathered, {}
        for batch in batches.values():
            try:
                batch.submit(now_us)
            except Exception as error:  # its fault must not cost the others their answers
                batch.fail(error)

    def _call_all(self, client: Client, calls: Calls, now_us: int) -> None:
        """Answers calls of the other methods."""
        method = _RESERVE.get(calls.head.path)
        if method is not None:
            deadline_us = counted_until(now_us, calls.head.timeout_us)
            origins: Sequence[CallOrigin | None] = calls.origins or [None] * len(calls.messages)
            of_each = zip(calls.stream_ids, calls.messages, origins, strict=True)
            for stream_id, message, origin in of_each:
                ask = partial(self._service.reservations.call, method, message, deadline_us, origin)
                client.in_a_turn_alone(partial(self._begin_reserving, client, stream_id, ask))
            return
        for stream_id, message in zip(calls.stream_ids, calls.messages, strict=True):
            self._call(client, calls.head.path, stream_id, message)

    def _call(self, client: Client, path: bytes, stream_id: int, message: bytes) -> None:
        connection = client.connection
        if path == _CHECK:
            answer = self._health.check(message)
            if isinstance(answer, Refusal):
                connection.sender.finish(stream_id, answer.code, answer.message)
            else:
                connection.sender.answer(stream_id, answer)
            return
        watches = self._watches.setdefault(client, {})
        if len(watches) >= MAX_WATCHES:
            text = f"a connection may have {MAX_WATCHES} calls of Watch at once"
            connection.sender.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)
            return
        task = asyncio.get_running_loop().create_task(self._watch(client, stream_id, message))
        watches[stream_id] = task
        task.add_done_callback(partial(self._watched, client, stream_id))

    def _begin_reserving(
        self, client: Client, stream_id: int, ask: Callable[[], Awaitable[Answer]]
    ) -> None:
        """Begins a call that reserves or settles: one in a turn, so that many hold nobody up."""
        task = asyncio.get_running_loop().create_task(self._reserve(client, stream_id, ask))
        self._reserving.add(task)
        task.add_done_callback(self._reserving.discard)

    async def _reserve(
        self, client: Client, stream_id: int, ask: Callable[[], Awaitable[Answer]]
    ) -> None:
        """Answers a call that reserves or settles, once its answer is there."""
        answer_each(self._service, client, [stream_id], [await ask()])
        client.flush_soon()

    def _watched(self, client: Client, stream_id: int, _: object) -> None:
        """Forgets a watch that is over."""
        watches = self._watches[client]
        del watches[stream_id]
        if not watches:
            del self._watches[client]

    async def _watch(self, client: Client, stream_id: int, message: bytes) -> None:
        try:
            async for answer in self._health.watch(message):
                client.connection.sender.send(stream_id, answer)
                client.flush()
            client.connection.sender.finish(stream_id)
        except Exception as error:
            refusal = self._refusal(error)
            client.connection.sender.finish(stream_id, refusal.code, refusal.message)
        client.flush()

    def _refusal(self, error: Exception) -> Refusal:
        """What the caller is told if its request cannot be read, or met a fault of ours."""
        if isinstance(error, BadRequestError):
            return Refusal(error.code, str(error))
        return self._service.bug(error)

    def _cancel(self, client: Client, event: Cancelled) -> None:
        task = self._watches.get(client, {}).get(event.stream_id)
        if task is not None:
            task.cancel()


class _Late:
    """What is known of the calls of a visit that may be late."""

    __slots__ = ("before", "refused", "store_us", "total", "visit")

    def __init__(self, visit: Visit, events: list[Event], store_us: int) -> None:
        self.visit = visit
        self.store_us = store_us
        calls = sum(len(each.stream_ids) for each in events if isinstance(each, Calls))
        self.total = calls + int(calls * visit.behind)
        """How many calls there are, with those that come behind them."""
        self.before = 0
        """How many of them came in events before."""
        self.refused = False

    def waited_us(self, refused: int) -> int:
        """How long the next call has waited, behind so many that were refused."""
        visit = self.visit
        came_us = (visit.oldest_us - visit.newest_us) * (self.before + refused) // (self.total or 1)
        return visit.oldest_us - came_us


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


def _still_open(client: Client, calls: Calls) -> Calls:
    """The calls without those that the same read has also cancelled."""
    connection = client.connection
    ids = calls.stream_ids
    still = [index for index, stream_id in enumerate(ids) if connection.is_open(stream_id)]
    return calls if len(still) == len(ids) else _some(calls, still)


def _some(calls: Calls, indices: Sequence[int]) -> Calls:
    """The calls at these places among some calls."""
    ids, messages, origins = calls.stream_ids, calls.messages, calls.origins
    return Calls(
        calls.head,
        [ids[index] for index in indices],
        [messages[index] for index in indices],
        None if origins is None else [origins[index] for index in indices],
    )
