"""`/counters`: which callers are over, near or busy. `/inspect`: how one's counters stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.http.route import AdminRequest, Operating, Route
from ratelimit_service.service.caller_history import WINDOWS, CallerOrder, Stretch
from ratelimit_service.service.caller_rows import MOST_ROWS, rows_of
from ratelimit_service.service.questions import QuestionError, no_domain
from ratelimit_service.text.descriptors import DescriptorTextError, read_descriptor

__all__ = ["callers", "routes"]

_ROWS: Final = 20
_MOST_NAMED: Final = 10
"""Rules that are named to whoever asks for one that is none."""

_MOST_DIGITS: Final = 10
_MAY_BE_ASKED: Final = frozenset({"domain", "rule", "order", "limit", "window"})


def routes(operating: Operating) -> Iterator[Route]:
    """The routes of this file."""

    async def counters(request: AdminRequest) -> object:
        query = request.query
        if unknown := sorted(query.keys() - _MAY_BE_ASKED):
            known = ", ".join(sorted(_MAY_BE_ASKED))
            raise QuestionError(f"{unknown[0]!r} is nothing to ask for: there are {known}")
        order = _chosen(query, "order", tuple(CallerOrder))
        window = _chosen(query, "window", tuple(WINDOWS))
        only = {"domain": query.get("domain", ""), "rule": query.get("rule", "")}
        answer = await callers(operating, order, window, _number(query), only)
        if not answer["callers"] and (note := await _misspelt(operating, **only)):
            answer["note"] = note
        return answer

    async def inspect(request: AdminRequest) -> object:
        query = request.query
        unknown = query.keys() - {"domain", "descriptor"}
        if unknown or query.keys() < {"domain", "descriptor"}:
            raise QuestionError("write ?domain=DOMAIN&descriptor=key=value,key=value")
        try:
            descriptor = read_descriptor(query["descriptor"])
        except DescriptorTextError as error:
            raise QuestionError(str(error)) from error
        entries = [list(entry) for entry in descriptor.entries]
        return await operating.ask("inspect", {"domain": query["domain"], "descriptor": entries})

    does = "the callers that are over, near or busy (?domain=D&rule=R&order=O&limit=N&window=W)"
    yield Route("GET", "/counters", does, counters)
    does = "the counters of a descriptor as they stand (?domain=D&descriptor=key=value,…)"
    yield Route("GET", "/inspect", does, inspect)


async def callers(
    operating: Operating, order: str, window: str, most: int, only: Mapping[str, str]
) -> dict[str, object]:
    """The first callers by an order, over all processes. Raises QuestionError.

    `here` is how many processes of this service decide: its workers, or this one. `elsewhere` is
    how many others have left records in Redis, those that have ended meanwhile as well.

    `only` names the `domain` and the `rule` that are asked about, "" for all.
    """
    about = {"window": window, **only}
    stretch, processes = Stretch(), list[str]()
    for answer in await operating.ask_all("callers", about):
        await _add(answer, stretch, processes)
    here = len(processes)
    others = await operating.ask("callers", {**about, "known": list(processes)})
    await _add(others, stretch, processes)
    return {
        "window": window,
        "order": order,
        "here": here,
        "elsewhere": len(processes) - here,
        "left_out": stretch.left_out,
        "callers": rows_of(stretch, CallerOrder(order), most),
    }


async def _misspelt(operating: Operating, domain: str, rule: str) -> str:
    """Says that there is no such domain or rule; "" if there is."""
    domains = operating.snapshot().domains
    if domain not in {"", *domains}:
        return no_domain(domain, domains)
    if not rule:
        return ""
    searched = [domains[domain]] if domain else list(domains.values())
    known: dict[str, None] = {}
    async for candidate in slowly(chain.from_iterable(one.rules for one in searched)):
        if candidate.path == rule:
            return ""
        known[candidate.path] = None
    named = ", ".join(list(known)[:_MOST_NAMED]) or "none"
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    where = f" in {domain}" if domain else ""
    return f"there is no rule {rule!r}{where}: there are {named}{more}"


async def _add(answer: Any, stretch: Stretch, processes: list[str]) -> None:
    """Adds what one process knows."""
    processes += answer["processes"]
    stretch.left_out += answer["left_out"]
    async for part in slowly(answer["rules"]):
        stretch.hear(part)


def _chosen(query: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of these words; the first if none is named."""
    word = query.get(name, words[0])
    if word not in words:
        raise QuestionError(f"{name} is one of {', '.join(words)}, not {word!r}")
    return str(word)


def _number(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(_ROWS))
    digits = text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS
    if not (digits and 0 < int(text) <= MOST_ROWS):
        raise QuestionError(f"limit is a number from 1 to {MOST_ROWS}, not {text!r}")
    return int(text)
