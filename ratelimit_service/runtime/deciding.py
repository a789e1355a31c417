"""What decides in a process, built from the settings: the store, and the service over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from ratelimit_service.algorithms import spec_of
from ratelimit_service.decision_log.line import lines_of
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.runtime.stores import Opened, open_store
from ratelimit_service.service import Service
from ratelimit_service.service.caller_history import CallerHistory
from ratelimit_service.service.enqueueing import Enqueueing
from ratelimit_service.service.overrides.following import Overrides
from ratelimit_service.service.questions import Deciding
from ratelimit_service.service.tail import Tail
from ratelimit_service.settings import Settings

__all__ = ["deciding"]


@asynccontextmanager
async def deciding(
    settings: Settings, snapshot: Callable[[], Snapshot], stats: Stats, health: Health
) -> AsyncIterator[Deciding]:
    """A service whose store has been tried once. Raises SettingsError if there can be none."""
    opened = open_store(settings, stats, health)
    store, records, queues = opened.store, opened.records, opened.queues
    keeping: asyncio.Task[None] | None = None
    try:
        await store.start()
        rules_changed = partial(_tell, opened, snapshot)
        rules_changed()
        service = Service(
            snapshot,
            store,
            settings,
            stats,
            note=health.note,
            known_over=opened.known_over,
            pay=opened.pay,
        )
        service.reply_us = opened.reply_us
        service.enqueueing = enqueueing = Enqueueing(queues, stats)
        history = CallerHistory(service.callers, records) if service.callers is not None else None
        if history is not None:
            keeping = asyncio.create_task(history.keep())
        overrides = Overrides(opened.override_store, service.overrides, stats)
        async with overrides.followed():
            yield Deciding(
                settings,
                service,
                store,
                snapshot,
                stats,
                health,
                opened.live_counters,
                opened.shard_of,
                opened.look_at,
                opened.forget,
                overrides,
                Tail(service.events),
                lines_of(settings.store, opened.shard_of),
                history,
                queues,
                opened.shard_states,
                rules_changed,
            )
        await enqueueing.finish()
        if history is not None and records is not None:
            await history.leave()  # for those who ask when this process is gone
    finally:
        if keeping is not None:
            keeping.cancel()
        await store.close()


def _tell(opened: Opened, snapshot: Callable[[], Snapshot]) -> None:
    """Tells the store which limits are leased."""
    domains = snapshot().domains.values()
    opened.lease({spec_of(limit) for domain in domains for limit in domain.leased})
