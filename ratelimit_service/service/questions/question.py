"""A question: what the admin listener asks of the processes that decide, and gets as JSON.

The admin listener is in the process that was started. Counters, plans, local caches and sketches
are in the workers, which decide. So a route asks by name, and what answers runs where all of these
are. Asked and answered are JSON, since they go over the channel to a worker.

To add a question, write a file here with a function that answers, and add a line to `registry`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ratelimit_service.errors import RateLimitError, StatusCode
from ratelimit_service.model import Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.caller_history import CallerHistory
from ratelimit_service.service.overrides.following import Overrides
from ratelimit_service.service.records import DecisionRecord
from ratelimit_service.service.service import Service
from ratelimit_service.service.tail import Tail
from ratelimit_service.settings import Settings
from ratelimit_service.stores import LookAt, ShardState, Store
from ratelimit_service.stores.queues import Queues

__all__ = ["About", "Deciding", "Question", "QuestionError", "no_domain"]

About = Mapping[str, object]
"""What a question is about, as JSON has it; whoever answers checks it."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """What decides in a process, and all that may be asked about it.

    `snapshot` gives the rules that hold now. `live_counters` is how many counters this process has
    in memory, None if they are elsewhere. `shard_of` says which server has a hit's counter, "" if
    none has. `look_at` tells how counters stand, past any local cache, and `forget` lets them start
    again (it raises StoreError). `overrides` are those in force. `tail` knows the latest denials,
    and `line_of` writes one of them, of this moment, as the decision log has it. `history` knows
    callers, unless nobody wants that. `queues` are those of rules, None where
    counters are in memory. `shard_states` says how the store's servers stand, if it has any.
    """

    settings: Settings
    service: Service
    store: Store
    snapshot: Callable[[], Snapshot]
    stats: Stats
    health: Health
    live_counters: Callable[[], int] | None
    shard_of: Callable[[Hit], str]
    look_at: LookAt
    forget: Callable[[Sequence[Hit]], Awaitable[None]]
    overrides: Overrides
    tail: Tail
    line_of: Callable[[DecisionRecord, int], str]
    history: CallerHistory | None = None
    queues: Queues | None = None
    shard_states: Callable[[], Sequence[ShardState]] = tuple


class Question(NamedTuple):
    """A name, and what answers.

    The function runs on the event loop that decides. It must not hold that up: it waits for the
    store without blocking, and does what is long in slices (`slices.slowly` and `stepwise`), or in
    a thread. It returns what JSON can say, some hundred rows at most. It raises QuestionError for
    what cannot be answered; a StoreError may pass through it.
    """

    name: str
    answer: Callable[[Deciding, About], Awaitable[object]]


class QuestionError(RateLimitError):
    """A question that has no answer; the text says why, and what to do.

    The code says whose fault it is: INVALID_ARGUMENT the asker's, NOT_FOUND nobody's, UNAVAILABLE
    the store's or a process's that is away.
    """

    def __init__(self, message: str, code: StatusCode = StatusCode.INVALID_ARGUMENT) -> None:
        super().__init__(message)
        self.code = code


def no_domain(name: str, domains: Iterable[str]) -> str:
    """Says that no rules have this domain, and which they have."""
    return f"there is no domain {name!r}: there are {', '.join(sorted(domains)) or 'none'}"
