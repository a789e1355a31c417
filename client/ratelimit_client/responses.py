"""What a caller is told over HTTP, as Envoy would: the service's headers and its body of a denial.

Where the service says no body, it is problem details (RFC 9457).
"""

from __future__ import annotations

import json
import math
import re
from typing import Final, NamedTuple

from ratelimit_client.model import Decision, Limit, Reason

__all__ = ["DECISION", "UNASKED", "Response", "allowed_headers", "denial"]

DECISION: Final = "ratelimit.decision"
"""Where the middlewares leave the decision: in the scope, or in the environ."""

UNASKED: Final = Decision(True, Reason.NO_LIMIT)
"""The decision of a request that nothing is asked about."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE: Final = re.compile(r"[^\t\x20-\x7e]")
_OF_A_BODY: Final = {"content-type", "content-length"}
_QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"


class Response(NamedTuple):
    """An answer that is whole."""

    status: int
    phrase: str
    headers: list[tuple[str, str]]
    body: bytes


def allowed_headers(decision: Decision) -> list[tuple[str, str]]:
    """What the service adds to the response of a request that goes on."""
    return [
        (name, _UNSAFE.sub("?", value))
        for name, value in decision.headers
        if _TOKEN.fullmatch(name) and name.lower() not in _OF_A_BODY
    ]


def denial(decision: Decision, method: str) -> Response:
    """429 for who is over a limit, 503 where the service gave no answer.

    The answer to HEAD has no body, but its headers (RFC 9110, section 9.3.2).
    """
    headers = allowed_headers(decision)
    names = {name.lower() for name, _ in headers}
    wait = None if decision.retry_after is None else max(1, math.ceil(decision.retry_after))
    if wait is not None and "retry-after" not in names:
        headers.append(("Retry-After", str(wait)))
    unavailable = decision.reason is Reason.UNAVAILABLE
    body, content_type = decision.body, "text/plain; charset=utf-8"
    for name, value in decision.headers:
        if name.lower() == "content-type":
            content_type = _UNSAFE.sub("?", value)
    if not body:
        problem = _UNAVAILABLE if unavailable else _problem(decision, wait)
        body, content_type = json.dumps(problem).encode(), "application/problem+json"
    headers += [("Content-Type", content_type), ("Content-Length", str(len(body)))]
    if method == "HEAD":
        body = b""
    if unavailable:
        return Response(503, "Service Unavailable", headers, body)
    return Response(429, "Too Many Requests", headers, body)


_UNAVAILABLE: Final = {"type": "about:blank", "title": "Service Unavailable", "status": 503}


def _problem(decision: Decision, wait: int | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "type": _QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
    }
    limit = decision.limit
    if limit is not None:
        fields["violated-policies"] = [limit.name or _by_window(limit)]
    if wait is not None:
        fields["retry_after"] = wait
    return fields


def _by_window(limit: Limit) -> str:
    """As the service calls a limit without a name."""
    return f"per-{limit.unit}" if limit.multiplier == 1 else f"per-{limit.multiplier}-{limit.unit}s"
