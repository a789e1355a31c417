"""Asks over HTTP, as any program may."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping

__all__ = ["HTTPAnswer", "http"]

_SECONDS = 120.0
"""How long an answer may take on a busy machine."""


def http(url: str, body: object = None, headers: Mapping[str, str] | None = None) -> HTTPAnswer:
    """One HTTP request; error statuses are answers as well."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})} if data else dict(headers or {})
    request = urllib.request.Request(url, data, sent)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_SECONDS) as response:
            return HTTPAnswer(response.status, response.read().decode(), dict(response.headers))
    except urllib.error.HTTPError as error:
        return HTTPAnswer(error.code, error.read().decode(), dict(error.headers))


class HTTPAnswer:
    """Status, text and headers (names in lower case)."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        self.status = status
        self.text = text
        self.headers = {key.lower(): value for key, value in headers.items()}
