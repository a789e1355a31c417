"""What the console's page asks for: events of this moment, the rules as a tree, explanations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain

from aiohttp import web

from ratelimit_service.errors import StatusCode
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.http.connections import WRITE_SECONDS
from ratelimit_service.http.feed import Feed
from ratelimit_service.http.route import AdminRequest, Operating, Route, Written
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.rules.tree import ways
from ratelimit_service.service.questions import QuestionError
from ratelimit_service.text.descriptors import DescriptorTextError, read_descriptor

__all__ = ["routes"]

_MOST_WATCHING = 50
_STREAM_SECONDS = 600.0
"""How long a stream lives; who watches then asks again, and must still be let in."""

_MOST_RULES = 2_000
_MOST_PROBLEMS = 100


def routes(operating: Operating) -> Iterator[Route]:
    """The routes of this file."""
    feed = Feed(operating)

    async def events(request: AdminRequest) -> object:
        if feed.watching >= _MOST_WATCHING:
            why = f"{_MOST_WATCHING} pages watch already: close one"
            raise QuestionError(why, StatusCode.UNAVAILABLE)
        return await _watch(operating, feed, request)

    async def tree(_: AdminRequest) -> object:
        return await _tree(operating)

    async def explained(request: AdminRequest) -> object:
        return _explained(operating, request.query)

    async def denials(_: AdminRequest) -> object:
        return {"denials": await feed.last_denials()}

    async def status(_: AdminRequest) -> object:
        snapshot = operating.snapshot()
        problems = [problem for problem in operating.problems() if not problem.hint]
        rules_of = chain.from_iterable(domain.rules for domain in snapshot.domains.values())
        rules = {
            "domains": len(snapshot.domains),
            "rules": len([True async for _ in slowly(rules_of)]),
            "problems": [str(problem) for problem in problems[:_MOST_PROBLEMS]],
            "unserved": sorted(snapshot.unserved),
        }
        return {**await feed.moment(), "rules": rules}  # not what each rule counted

    yield Route("GET", "/status", "all that somebody on call asks first, of one second", status)
    does = "the last denials that were noted, as lines of the decision log"
    yield Route("GET", "/denials", does, denials)
    yield Route("GET", "/events", "what happens now, as server-sent events", events)
    yield Route("GET", "/tree", "the rules as a tree, and what is wrong with them", tree)
    yield Route(
        "GET",
        "/explain",
        "which rule a descriptor meets (?domain=D&descriptor=key=value,…)",
        explained,
    )


async def _watch(
    operating: Operating, feed: Feed, admin_request: AdminRequest
) -> web.StreamResponse:
    """Sends events for as long as who watches may ask, reads, and the port is open.

    A stream that is old ends as well.
    """
    request = admin_request.http
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    message = feed.join()
    ending = asyncio.ensure_future(operating.ending.wait())
    now = asyncio.get_running_loop().time
    until = now() + _STREAM_SECONDS
    try:
        await response.prepare(request)
        while now() < until and admin_request.may_still_ask():
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(message)
            following = asyncio.ensure_future(feed.following())
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({following, ending}, timeout=until - now(), return_when=first)
            if not following.done():
                following.cancel()
                break
            message = following.result()
        with suppress(ConnectionError):
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write_eof()
    except TimeoutError:  # what is left would wait for this reader for ever
        if request.transport is not None:
            request.transport.abort()
    finally:
        ending.cancel()
        feed.leave()
    return response


async def _tree(operating: Operating) -> Written:
    """Each domain with its rules in the order of the files, written down rule by rule."""
    snapshot = operating.snapshot()
    parts: list[str] = []
    remaining = _MOST_RULES
    for name in sorted(snapshot.domains):
        parts.append(f'{"," if parts else ""}{{"domain":{json.dumps(name)},"rules":[')
        comma = ""
        async for way in slowly(ways(snapshot.domains[name].root.nodes)):
            rule = way[-1].rule
            if rule is None:
                continue
            if not remaining:
                break
            remaining -= 1
            fields = {
                "rule": rule.path,
                "way": [[node.key, node.value] for node in way],
                "source": str(rule.source),
                "limits": [limit_text(limit) for limit in rule.limits],
                "shadow": rule.shadow_mode,
                "quota": rule.quota_mode,
                "queue": rule.enqueue,
            }
            parts.append(comma + json.dumps(fields))
            comma = ","
        parts.append("]}")
    problems = [
        {"text": str(problem), "hint": problem.hint, "tolerated": problem.tolerated}
        for problem in operating.problems()[:_MOST_PROBLEMS]
    ]
    rest = {"unserved": sorted(snapshot.unserved), "problems": problems, "more": not remaining}
    return Written(f'{{"domains":[{"".join(parts)}],{json.dumps(rest)[1:]}')


def _explained(operating: Operating, query: Mapping[str, str]) -> object:
    domain, text = query.get("domain", ""), query.get("descriptor", "")
    if not (domain and text):
        raise QuestionError("write ?domain=DOMAIN&descriptor=key=value,key=value")
    try:
        descriptor = read_descriptor(text)
    except DescriptorTextError as error:
        raise QuestionError(str(error)) from error
    explanation = explain(at_moment(operating.snapshot(), now_us()), domain, descriptor)
    rule = explanation.rule
    return {
        "rule": rule.path if rule is not None else None,
        "source": str(rule.source) if rule is not None else None,
        "limits": [limit_text(limit) for limit in rule.limits] if rule is not None else [],
        "why": explanation.why,
        "steps": [
            {
                "entry": list(step.entry),
                "how": step.how,
                "taken": step.taken,
                "source": step.source,
                "passed_over": [
                    {"node": node.node, "source": node.source, "why": node.why}
                    for node in step.passed_over
                ],
            }
            for step in explanation.steps
        ],
    }
