"""`queues`: how the queues of rules with `on_limit: enqueue` stand. Nothing is taken out of them.

Queues of rules that are gone are told as well, as long as their streams are there. About `domain`,
where only one is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ratelimit_service.errors import StatusCode, StoreError
from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.model import SECOND_US
from ratelimit_service.rules.tree import Rule
from ratelimit_service.service.enqueueing import nowhere_to_queue
from ratelimit_service.service.questions.question import (
    About,
    Deciding,
    Question,
    QuestionError,
    no_domain,
)
from ratelimit_service.stores.queues import Queue, QueueLook, Queues

__all__ = ["QUESTION"]

_MOST: Final = 200
"""Queues that are told, those of the first rules."""

_AT_ONCE: Final = 20


async def _told(deciding: Deciding, about: About) -> object:
    domain = str(about.get("domain") or "")
    domains = deciding.snapshot().domains
    gone, unlisted = await _of_no_rule(deciding, domain)
    if domain and domain not in domains and not gone:
        raise QuestionError(no_domain(domain, domains), StatusCode.NOT_FOUND)
    rules: list[Rule] = []
    left_out = 0
    for name in sorted(domains):
        if domains[name].enqueues and domain in {"", name}:
            async for rule in slowly(domains[name].rules):
                if rule.enqueue and len(rules) < _MOST:
                    rules.append(rule)
                elif rule.enqueue:
                    left_out += 1
    told: list[dict[str, object]] = []
    for start in range(0, len(rules), _AT_ONCE):
        if deciding.queues is None:
            raise QuestionError(nowhere_to_queue(rules[:1]), StatusCode.NOT_FOUND)
        some = rules[start : start + _AT_ONCE]
        told += await asyncio.gather(*[_of_rule(rule, deciding.queues) for rule in some])
    if told and all("unknown" in each for each in told):
        raise QuestionError(str(told[0]["unknown"]), StatusCode.UNAVAILABLE)
    answer = {"queues": told + gone, "most": deciding.settings.queue_length, "left_out": left_out}
    return {**answer, "unlisted": unlisted} if unlisted else answer


async def _of_no_rule(deciding: Deciding, domain: str) -> tuple[list[dict[str, object]], str]:
    """The queues of rules that are gone, or why nobody knows of them."""
    queues, domains = deciding.queues, deciding.snapshot().domains
    if queues is None:
        return [], ""
    has_rule: set[Queue] = set()
    for each in domains.values():
        if each.enqueues:
            async for rule in slowly(each.rules):
                if rule.enqueue:
                    has_rule.add(_named(rule))
    found: list[dict[str, object]] = []
    try:
        for queue in await queues.listed():
            if queue not in has_rule and domain in {"", queue.domain} and len(found) < _MOST:
                look = await _look(queue, queues)
                if isinstance(look, str) or look.there:
                    found.append(_shown(queue, {"no_rule": True}, look))
                else:
                    await queues.forget(queue)
    except StoreError as error:
        return found, str(error)
    return found, ""


def _named(rule: Rule) -> Queue:
    return Queue(rule.domain, rule.path)


async def _of_rule(rule: Rule, queues: Queues) -> dict[str, object]:
    queue = _named(rule)
    return _shown(queue, {"source": str(rule.source)}, await _look(queue, queues))


async def _look(queue: Queue, queues: Queues) -> QueueLook | str:
    """How a queue stands, or why nobody can say."""
    try:
        return await queues.look(queue)
    except StoreError as error:
        return str(error)


def _shown(queue: Queue, beside: Mapping[str, object], look: QueueLook | str) -> dict[str, object]:
    named = {"domain": queue.domain, "rule": queue.rule, **beside}
    if isinstance(look, str):
        return {**named, "unknown": look}
    return {
        **named,
        "key": look.key,
        "shard": look.shard,
        "length": look.length,
        "oldest_seconds": _seconds(look.oldest_us),
        "newest_seconds": _seconds(look.newest_us),
        "dropped": look.dropped,
    }


def _seconds(age_us: int | None) -> float | None:
    return None if age_us is None else age_us / SECOND_US


QUESTION: Final = Question("queues", _told)
