"""`/overrides`, `/reset` and `/audit`: what decides in place of the rules, and who says so."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ratelimit_service.files.whole_file import append_whole
from ratelimit_service.http.port import SAFE_HEADERS, streamed
from ratelimit_service.http.route import AdminRequest, Operating, Route
from ratelimit_service.service.questions import QuestionError
from ratelimit_service.text.descriptors import DescriptorTextError, read_descriptor

__all__ = ["routes"]

log = logging.getLogger(__name__)

_AUDIT_LOG: Final = "audit_log"
"""The component of health."""

_MOST_DIGITS: Final = 10
_ABOUT: Final = ("domain", "descriptor", "limit", "reason")
_OF_OVERRIDE: Final = (*_ABOUT, "kind", "requests", "hits", "for_seconds", "until")
_OF_IMPORT: Final = ("overrides", "check")
_OF_REMOVAL: Final = (*_ABOUT, "kind", "id")


class _Audited(NamedTuple):
    """Some changes, how many records were looked at for them, and a cursor to those after them."""

    changes: Sequence[object]
    looked_at: int
    cursor: str


class _Overrides:
    """The handlers."""

    def __init__(self, operating: Operating) -> None:
        self._operating = operating
        path = operating.settings.audit_log
        if path:
            try:
                os.close(_opened(path))
            except OSError as error:
                self._degrade(error)

    async def overrides(self, request: AdminRequest) -> object:
        query = request.query
        if not query:
            first = await self._some()
            return await streamed(request.http, "application/json", self._all(first), SAFE_HEADERS)
        if query.keys() == {"newest"}:
            return await self._some(newest=_number("newest", query["newest"]))
        if query.keys() != {"domain", "descriptor"}:
            raise QuestionError("write ?domain=DOMAIN&descriptor=key=value,key=value, or nothing")
        try:
            entries = read_descriptor(query["descriptor"]).entries
        except DescriptorTextError as error:
            raise QuestionError(str(error)) from error
        about = {"domain": query["domain"], "descriptor": [list(entry) for entry in entries]}
        return await self._operating.ask("overrides", about)

    async def _some(self, **about: object) -> Mapping[str, object]:
        """Overrides that are told at a time. Raises QuestionError."""
        answer = await self._operating.ask("overrides", about)
        if not isinstance(answer, Mapping):
            raise TypeError(answer)
        return answer

    async def _all(self, some: Mapping[str, object]) -> AsyncIterator[bytes]:
        """The list of all overrides, of which these are the first."""
        yield b'{"overrides": ['
        separator = ""
        while listed := some["overrides"]:
            yield (separator + json.dumps(listed)[1:-1]).encode()
            separator = ", "
            try:
                some = await self._some(after=some["last"])
            except QuestionError as error:  # the answer has begun: it can only end early
                raise ConnectionResetError(str(error)) from error
        yield b"]}\n"

    async def add(self, request: AdminRequest) -> object:
        return await self._change("override", request, _OF_OVERRIDE)

    async def import_some(self, request: AdminRequest) -> object:
        return await self._change("import_overrides", request, _OF_IMPORT)

    async def remove(self, request: AdminRequest) -> object:
        return await self._change("remove_override", request, _OF_REMOVAL)

    async def remove_one(self, request: AdminRequest) -> object:
        named = request._replace(body={**request.body, "id": request.http.match_info["id"]})
        return await self._change("remove_override", named, ("id", "reason"))

    async def reset(self, request: AdminRequest) -> object:
        return await self._change("reset", request, _ABOUT)

    async def audit(self, request: AdminRequest) -> object:
        most = _number("most", request.query.get("most", "100"))
        first = await self._audited(most)
        parts = self._all_audited(first, most)
        return await streamed(request.http, "application/json", parts, SAFE_HEADERS)

    async def _audited(self, most: int, after: str = "") -> _Audited:
        """Changes that are told at a time. Raises QuestionError."""
        answer = await self._operating.ask("audit", {"most": most, "after": after})
        if not isinstance(answer, Mapping):
            raise TypeError(answer)
        # A worker of an older version gives no cursor, and may not say at how many it has looked.
        looked_at = answer.get("looked_at", most)
        return _Audited(answer["audit"], looked_at, answer.get("place", ""))

    async def _all_audited(self, some: _Audited, most: int) -> AsyncIterator[bytes]:
        """The list of the last changes, of which these are the first."""
        yield b'{"audit": ['
        separator = ""
        while True:
            if some.changes:
                yield (separator + json.dumps(some.changes)[1:-1]).encode()
                separator = ", "
            most -= some.looked_at
            if most <= 0 or not some.cursor:
                break
            try:
                some = await self._audited(most, some.cursor)
            except QuestionError as error:  # the answer has begun: it can only end early
                raise ConnectionResetError(str(error)) from error
        yield b"]}\n"

    async def _change(
        self, question: str, request: AdminRequest, known: tuple[str, ...]
    ) -> dict[str, object]:
        """Has a change made, and writes it to the audit log."""
        for name in request.body:
            if name not in known:
                raise QuestionError(f"{name!r} is unknown here: write {', '.join(known)}")
        actor = request.actor
        about = {**request.body, "who": actor.name, "from": actor.address}
        answer = await self._operating.ask(question, about)
        if not isinstance(answer, Mapping):
            raise TypeError(answer)
        fields = dict(answer)
        audit = fields.pop("audit", [])
        lines = [audit] if isinstance(audit, str) else audit
        path = self._operating.settings.audit_log
        if path and isinstance(lines, list) and lines:
            text = "\n".join(map(str, lines))
            try:
                await asyncio.to_thread(_append, path, text)
                self._operating.health.recover(_AUDIT_LOG)
            except OSError as error:
                log.warning(
                    "the audit log %s cannot be written: %s: %s", path, error.strerror, text
                )
                fields["warning"] = f"the audit log cannot be written: {error.strerror}"
                self._degrade(error)
        return fields

    def _degrade(self, error: OSError) -> None:
        path = self._operating.settings.audit_log
        why = f"{path} cannot be written: {error.strerror}; until it can, changes are in the log"
        self._operating.health.degrade(_AUDIT_LOG, why)


def _number(name: str, text: str) -> int:
    """A number in a query. Raises QuestionError."""
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise QuestionError(f"write ?{name}=NUMBER")
    return int(text)


def _append(path: str, lines: str) -> None:
    """Adds lines in one piece, or nothing if there is no room for all of it.

    A pipe that nobody reads is an error: nobody waits for it.
    """
    file = _opened(path)
    try:
        append_whole(file, f"{lines}\n".encode())
    finally:
        os.close(file)


def _opened(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    return os.open(path, flags, 0o640)


def routes(operating: Operating) -> Iterator[Route]:
    """The routes of this file."""
    overrides = _Overrides(operating)
    yield Route(
        "GET",
        "/overrides",
        "the overrides in force (?newest=N, ?domain=D&descriptor=key=value,… those that take it)",
        overrides.overrides,
    )
    does = (
        "add one: kind, domain, descriptor, requests or hits, limit, for_seconds or until, reason"
    )
    yield Route("POST", "/overrides", does, overrides.add)
    does = "add the overrides of a list, all or none (check: only say what would be done)"
    yield Route("POST", "/overrides/import", does, overrides.import_some)
    does = "end those of a kind for a domain and a descriptor, or one by its id"
    yield Route("POST", "/overrides/remove", does, overrides.remove)
    yield Route("DELETE", "/overrides/{id}", "end one", overrides.remove_one)
    does = "let the counters of a domain and a descriptor start again"
    yield Route("POST", "/reset", does, overrides.reset)
    yield Route("GET", "/audit", "the last changes and who made them (?most=100)", overrides.audit)
