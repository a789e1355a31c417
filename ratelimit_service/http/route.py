"""What a route of the admin listener is, and what its handler gets.

To add routes, write a file in `routes/` with a function `routes(operating)` that returns them, and
add a line to `routes/registry`. A handler gets an `AdminRequest` and returns what JSON can say,
what it has written as JSON itself, a piece at a time as it is large (`Written`), or a response of
its own. It finds all that it may need in its `Operating`:

* settings, rules (`snapshot`), health and stats of the process that was started;
* the store, counters, plans and sketches by a question: `operating.ask(NAME, about)` has one of
  the workers answer, `operating.ask_all` has each of them answer. Questions are written in
  `service/questions`, where their docstring says how.

A handler must not hold up the event loop: the same loop accepts connections.
Whoever may not ask is turned away before a handler is called (`access`). A route whose method is
GET needs the role `read` and must change nothing; all others need the role `write`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from aiohttp import web

from ratelimit_service.metrics import Sources
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.questions import About, asked, told
from ratelimit_service.settings import Settings

__all__ = ["Actor", "AdminRequest", "Deciders", "Operating", "Role", "Route", "Written"]


class Role(StrEnum):
    """What somebody may do at the admin listener."""

    READ = "read"
    WRITE = "write"
    """Change things, and all that `READ` may."""


class Actor(NamedTuple):
    """Who asks, for the audit: a name, a role, and from where.

    The name is that of a token, or says how else somebody was let in. `address` is an IP address,
    or `unix` for a Unix socket.
    """

    name: str
    role: Role
    address: str


class Written(NamedTuple):
    """JSON that is written down already."""

    text: str


class AdminRequest(NamedTuple):
    """What a handler gets. `query` has the first value of each name, `body` the JSON object.

    `may_still_ask` says whether who asks would be let in now: a stream that lasts asks it.
    """

    actor: Actor
    query: Mapping[str, str]
    body: Mapping[str, object]
    http: web.Request
    may_still_ask: Callable[[], bool]


class Route(NamedTuple):
    """One method at one path, and a line that says what it does.

    A handler raises QuestionError for what it cannot answer; its code becomes the status.
    """

    method: str
    path: str
    does: str
    handler: Callable[[AdminRequest], Awaitable[object]]

    @property
    def role(self) -> Role:
        """What somebody needs to be let in."""
        return Role.READ if self.method == "GET" else Role.WRITE


class Deciders(Protocol):
    """The processes that decide, which answer questions in bytes (`service.questions`)."""

    async def ask(self, question: bytes) -> bytes:
        """The answer of one that is well."""

    async def ask_all(self, question: bytes) -> list[bytes]:
        """The answer of each."""


@dataclass(frozen=True, slots=True)
class Operating:
    """What handlers need.

    `snapshot` gives the rules that hold now. `collect` fetches what the workers have counted, so
    that `stats`, the rules' tallies and `sources` are of this moment. `processes` is what
    `/processes` shows. `problems` are those of the rules. `ending` is set when the listener is to
    close: streams end then.
    """

    settings: Settings
    snapshot: Callable[[], Snapshot]
    stats: Stats
    health: Health
    deciders: Deciders
    sources: Sources
    collect: Callable[[], Awaitable[None]]
    processes: Callable[[], object]
    problems: Callable[[], Sequence[Problem]] = tuple
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, name: str, about: About | None = None) -> object:
        """What one of the processes that decide answers. Raises QuestionError."""
        return told(await self.deciders.ask(asked(name, about or {})))

    async def ask_all(self, name: str, about: About | None = None) -> list[object]:
        """What each of the processes that decide answers. Raises QuestionError if one does not."""
        return [told(each) for each in await self.deciders.ask_all(asked(name, about or {}))]
