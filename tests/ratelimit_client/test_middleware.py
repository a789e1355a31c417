"""What callers see of both middlewares, with the real rules on a clock that stands still."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import httpx
import pytest

from ratelimit_client import (
    BadRequestError,
    Decision,
    DeniedError,
    Descriptor,
    Limit,
    Unit,
    asgi,
    wsgi,
)
from ratelimit_client.asgi import App, Message, Receive, Scope, Send
from ratelimit_client.describe import Description, HTTPRequest, address, header, method, path
from ratelimit_client.model import Reason, Status
from ratelimit_client.responses import DECISION, allowed_headers, denial
from ratelimit_client.steps import OnFailure
from ratelimit_client.testing import (
    FakeLimiter,
    FakeSyncLimiter,
    VirtualLimiter,
    VirtualSyncLimiter,
)
from tests.ratelimit_client.conftest import RULES

DESCRIPTION: Description = [{"login": header("x-user")}]


async def asgi_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what the decision leaves, in two parts."""
    decision = scope[DECISION]
    left = decision.remaining if decision.statuses else f"unasked: {decision.reason}"
    own = [(b"x-own", b"1")]
    await send({"type": "http.response.start", "status": 200, "headers": own})
    await send({"type": "http.response.body", "body": b"left ", "more_body": True})
    await send({"type": "http.response.body", "body": str(left).encode()})


def wsgi_app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """The same."""
    decision = environ[DECISION]
    left = decision.remaining if decision.statuses else f"unasked: {decision.reason}"
    start_response("200 OK", [("x-own", "1")])
    return [b"left ", str(left).encode()]


Ask = Callable[..., Awaitable[httpx.Response]]


class Site:
    """One of the two middlewares in front of an application."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def virtual(self, description: Description, rules: str = RULES) -> Ask:
        if self.kind == "asgi":
            return self._asked(VirtualLimiter(rules, domain="api"), description)
        return self._asked(VirtualSyncLimiter(rules, domain="api"), description)

    def away(self, on_failure: OnFailure) -> Ask:
        limiter: FakeLimiter | FakeSyncLimiter = FakeSyncLimiter(on_failure=on_failure)
        if self.kind == "asgi":
            limiter = FakeLimiter(on_failure=on_failure)
        limiter.fail()
        return self._asked(limiter, DESCRIPTION)

    def _asked(self, limiter: Any, description: Description) -> Ask:
        async def ask(verb: str = "GET", url: str = "/", **headers: str) -> httpx.Response:
            named = [(key.replace("_", "-"), value) for key, value in headers.items()]
            if self.kind == "asgi":
                transport = httpx.ASGITransport(
                    asgi.RateLimitMiddleware(asgi_app, limiter, description)
                )
                async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
                    return await client.request(verb, url, headers=named)
            app = wsgi.RateLimitMiddleware(wsgi_app, limiter, description)
            return _of_wsgi(app, verb, url, named)

        return ask


def _of_wsgi(app: Any, verb: str, url: str, headers: list[tuple[str, str]]) -> httpx.Response:
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://a") as client:
        return client.request(verb, url, headers=headers)


@pytest.fixture(params=["asgi", "wsgi"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


async def test_passes(site: Site) -> None:
    """An allowed request reaches the application; the service's headers are on its response."""
    answer = await site.virtual(DESCRIPTION)(x_user="a")

    assert (answer.status_code, answer.text) == (200, "left 0")
    assert answer.headers["x-own"] == "1"
    assert answer.headers["ratelimit"] == '"sign-in";r=0;t=60'
    assert answer.headers["ratelimit-policy"] == '"sign-in";q=1;w=60'
    assert "retry-after" not in answer.headers


async def test_denied(site: Site) -> None:
    """A denied request is answered with the service's headers and body, as Envoy answers it."""
    ask = site.virtual(DESCRIPTION)
    await ask(x_user="a")

    answer = await ask(x_user="a")

    assert answer.status_code == 429
    assert {key: value for key, value in answer.headers.items() if key != "content-length"} == {
        "content-type": "application/problem+json",
        "ratelimit": '"sign-in";r=0;t=60',
        "ratelimit-policy": '"sign-in";q=1;w=60',
        "retry-after": "60",
    }
    assert json.loads(answer.text) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "detail": "The limit is 1 in 1 minute. Try again in 60 s.",
        "violated-policies": ["sign-in"],
        "retry_after": 60,
        "description": "Too many attempts.",
    }
    assert (await ask(x_user="b")).status_code == 200


async def test_denied_where_the_rule_says_no_more(site: Site) -> None:
    """Without an `answer` of the rule a denial has Retry-After and problem details."""
    ask = site.virtual([{"user": header("x-user")}, {"team": "red"}])
    passed = [(await ask(x_user="a")).status_code for _ in range(3)]

    answer = await ask(x_user="a")

    assert passed == [200] * 3
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "60"
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.text) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "violated-policies": ["per-user"],
        "retry_after": 60,
    }


async def test_body_of_a_template(site: Site) -> None:
    """A rule's template is what callers read, in its own content type, and nothing twice."""
    rules = """
domain: api
descriptors:
- key: a
  rate_limit: {unit: minute, requests_per_unit: 0}
  answer: {headers: x-ratelimit, template: "<p>{limit}</p>", content_type: text/html}
"""
    answer = await site.virtual([{"a": "b"}], rules)()

    assert (answer.status_code, answer.text) == (429, "<p>0</p>")
    assert answer.headers.get_list("content-type") == ["text/html"]
    assert answer.headers.get_list("retry-after") == ["60"]


async def test_head(site: Site) -> None:
    """The answer to HEAD has no body, and the headers of the answer to GET."""
    ask = site.virtual([{"login": "a"}])
    await ask()

    get, head = await ask(), await ask("HEAD")

    assert (head.status_code, head.text) == (429, "")
    assert head.headers == get.headers


async def test_nothing_to_ask_about(site: Site) -> None:
    """A request without the header is not limited, as with Envoy, and nobody is asked."""
    ask = site.virtual([{"login": header("x-user")}, {"login": "x", "a": header("x-none")}])

    answers = [await ask(), await ask(x_user="")]

    assert [each.text for each in answers] == ["left unasked: no_limit"] * 2


async def test_a_function_describes(site: Site) -> None:
    """A function may say what is asked about, and what it costs; None is no limit."""

    def describe(request: HTTPRequest) -> Descriptor | None:
        if request.header("X-Free"):
            return None
        return Descriptor.of({"user": request.header("x-user") or ""}, cost=2)

    ask = site.virtual(describe)

    answers = [await ask(x_user="a"), await ask(x_user="a"), await ask(x_free="1", x_user="a")]

    assert [each.text for each in answers][::2] == ["left 1", "left unasked: no_limit"]
    assert answers[1].status_code == 429


async def test_what_a_request_is_described_by(site: Site) -> None:
    """Method, path, address and all headers are there, whatever serves the application."""
    seen: list[HTTPRequest] = []

    def describe(request: HTTPRequest) -> None:
        seen.append(request)

    await site.virtual(describe)("POST", "/a/b?c=d", content_type="text/plain", x_two="1")

    (request,) = seen
    assert (method(request), path(request)) == ("POST", "/a/b")
    assert address(request) in {"127.0.0.1", None}
    assert header("Content-Type")(request) == "text/plain"
    assert header("x-two")(request) == "1"


def test_path_of_wsgi() -> None:
    """A path is text, although WSGI has its bytes as Latin-1 (PEP 3333)."""
    seen: list[str] = []

    def describe(request: HTTPRequest) -> None:
        seen.append(request.path)

    served = wsgi.RateLimitMiddleware(wsgi_app, FakeSyncLimiter(), describe)
    for mounted, rest in (("/a", "/\xc3\xa4"), ("", "/\xff"), ("", "/\u20ac")):
        served({"SCRIPT_NAME": mounted, "PATH_INFO": rest}, lambda *_: lambda _: None)

    assert seen == ["/a/\u00e4", "/\ufffd", "/?"]


@pytest.mark.parametrize(("on_failure", "status"), [("open", 200), ("closed", 503)])
async def test_service_away(site: Site, on_failure: OnFailure, status: int) -> None:
    """Where the service is away requests go on, or are answered with 503."""
    answer = await site.away(on_failure)(x_user="a")

    assert answer.status_code == status
    if status == 503:
        assert answer.headers["content-type"] == "application/problem+json"
        assert json.loads(answer.text) == {
            "type": "about:blank",
            "title": "Service Unavailable",
            "status": 503,
        }


async def test_what_cannot_be_asked(site: Site) -> None:
    """A header that is too long for a request never lets its sender through."""
    with pytest.raises(BadRequestError):
        await site.virtual(DESCRIPTION)(x_user="a" * 70_000)


SLOTS: Description = [{"slot": "a"}]


async def test_lease_is_held_until_the_response_has_ended() -> None:
    """A place under `concurrency` is taken while the application answers, also if it fails."""
    limiter = VirtualLimiter(RULES, domain="api")
    left: list[int | None] = []

    async def look() -> None:
        left.append((await limiter.check(slot="a", cost=0)).remaining)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await look()
        raise RuntimeError(scope[DECISION].lease)

    transport = httpx.ASGITransport(asgi.RateLimitMiddleware(app, limiter, SLOTS))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        with pytest.raises(RuntimeError):
            await client.get("/")
    await look()
    assert left == [1, 2]


def test_lease_is_held_until_the_parts_are_closed() -> None:
    """A WSGI server closes what it was given: then the place is free, also if the app failed."""
    limiter = VirtualSyncLimiter(RULES, domain="api")
    closed = []

    class Parts:
        def __iter__(self) -> Iterator[bytes]:
            yield b"x"

        def close(self) -> None:
            closed.append(1)

    def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/fails":
            raise RuntimeError
        start_response("200 OK", [])
        return Parts()

    def serve(where: str) -> Any:
        return wsgi.RateLimitMiddleware(app, limiter, SLOTS)(
            {"PATH_INFO": where}, lambda *_: lambda _: None
        )

    def left() -> int | None:
        return limiter.check(slot="a", cost=0).remaining

    first, second = serve("/"), serve("/")
    assert left() == 0
    assert list(first) == [b"x"]
    first.close()
    second.close()
    assert (left(), closed) == (2, [1, 1])
    with pytest.raises(RuntimeError):
        serve("/fails")
    assert left() == 2


@pytest.mark.parametrize("extension", [True, False])
async def test_websockets(extension: bool) -> None:
    """A denied WebSocket is refused: with the response where the server can send it."""
    limiter = VirtualLimiter(RULES, domain="api")
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept", "headers": [(b"x-own", b"1")]})

    extensions: dict[str, object] = {"websocket.http.response": {}} if extension else {}
    scope = {"type": "websocket", "path": "/", "headers": [], "extensions": extensions}
    served: App = asgi.RateLimitMiddleware(app, limiter, [{"login": "a"}])
    for _ in range(2):
        await served(dict(scope), receive, send)

    assert [name for name, _ in sent[0]["headers"]] == [b"x-own", b"ratelimit-policy", b"ratelimit"]
    if extension:
        start, body = sent[1:]
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
        assert b"sign-in" in body["body"]
    else:
        assert sent[1:] == [{"type": "websocket.close", "code": 1013}]


async def test_lifespan() -> None:
    """When the application shuts down the limiter's connections are closed."""
    closed = asyncio.Event()

    class Noted(FakeLimiter):
        async def close(self) -> None:
            closed.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "lifespan"

    async def nothing(*_: object) -> Message:
        return {}

    await asgi.RateLimitMiddleware(app, Noted(), SLOTS)({"type": "lifespan"}, nothing, nothing)  # type: ignore[arg-type]

    assert closed.is_set()


def test_headers_cannot_be_broken() -> None:
    """Whatever answers in the service's place cannot write lines of its own into a response."""
    status = Status(False, Limit(1, Unit.DAY), 0, 0.2)
    result = (
        ("x-a", "1\r\nset-cookie: b"),
        ("x b: c\r\n", "2"),
        ("content-length", "7"),
        ("content-type", "text/html\r\nx: y"),
    )
    decision = Decision(False, Reason.OVER_LIMIT, (status,), headers=result, body=b"!")

    assert allowed_headers(decision) == [("x-a", "1??set-cookie: b")]
    assert denial(decision, "GET").headers == [
        ("x-a", "1??set-cookie: b"),
        ("Retry-After", "1"),
        ("Content-Type", "text/html??x: y"),
        ("Content-Length", "1"),
    ]


def test_denied_error_says_why() -> None:
    """Its text says when to come back, or why nobody was asked."""
    away = Decision(False, Reason.UNAVAILABLE, detail="no service answers")
    assert str(DeniedError(away)) == "the request is denied: no service answers"
