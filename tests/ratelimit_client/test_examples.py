"""The examples of middleware, in front of real frameworks and beside the real service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from examples.middleware import django_app, fastapi_app, flask_app, llm_gateway
from ratelimit_client import Limiter, SyncLimiter
from ratelimit_service.model import SECOND_US
from tests.ratelimit_client.live import Live

RULES = (Path(llm_gateway.__file__).parent / "rules.yaml").read_text()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("shop"), RULES)
    yield live
    live.close()


@pytest.fixture(autouse=True)
def new_day(shop: Live) -> None:
    shop.asking.now_us += 86_400 * SECOND_US


@pytest.fixture
async def limiter(shop: Live) -> AsyncIterator[Limiter]:
    options = {"domain": "shop", "deadline": 30, "on_failure": "raise"}
    async with Limiter(shop.addresses["grpc"], **options) as limiter:  # type: ignore[arg-type]
        yield limiter


@pytest.fixture
def blocking(shop: Live) -> Iterator[SyncLimiter]:
    options = {"domain": "shop", "deadline": 30, "on_failure": "raise"}
    with SyncLimiter(shop.addresses["http"], **options) as limiter:  # type: ignore[arg-type]
        yield limiter


def of(app: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://shop")


def of_wsgi(app: object) -> httpx.Client:
    return httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop")  # type: ignore[arg-type]


def see(answers: list[httpx.Response], policies: str) -> None:
    """Five pass, and the sixth is told what the rule says."""
    assert [each.status_code for each in answers] == [200] * 5 + [429]
    denied = answers[-1]
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.headers["ratelimit-policy"] == policies
    assert denied.headers["retry-after"] == str(denied.json()["retry_after"])
    assert denied.json()["violated-policies"] == ["per-key"]


BOTH = '"per-address";q=100;w=60, "per-key";q=5;w=60'


async def test_fastapi(limiter: Limiter) -> None:
    """FastAPI: five requests with a key pass, reports two at a time."""
    async with of(fastapi_app.create_app(limiter)) as client:
        see([await client.get("/", headers={"x-api-key": "a"}) for _ in range(6)], BOTH)
        async with limiter.lease(reports="b"), limiter.lease(reports="b"):
            full = await client.get("/report", headers={"x-api-key": "b"})
        free = await client.get("/report", headers={"x-api-key": "b"})

    assert (full.status_code, full.headers["retry-after"], free.status_code) == (429, "1", 200)


def test_flask(blocking: SyncLimiter) -> None:
    """Flask: five requests with a key pass, and a decorated view as its cost allows."""
    with of_wsgi(flask_app.create_app(blocking).wsgi_app) as client:
        see([client.get("/", headers={"x-api-key": "c"}) for _ in range(6)], BOTH)
        models = [client.get("/model", headers={"x-api-key": "d"}) for _ in range(3)]

    assert [each.status_code for each in models] == [200, 200, 429]
    assert int(models[-1].headers["retry-after"]) > 60


def test_django(blocking: SyncLimiter) -> None:
    """Django: the address is limited before Django, and the key inside of it."""
    with of_wsgi(django_app.create_app(blocking)) as client:
        see(
            [client.get("/", headers={"x-api-key": "e"}) for _ in range(6)],
            '"per-key";q=5;w=60, "per-address";q=100;w=60',
        )
        without = client.get("/")

    assert without.headers["ratelimit-policy"] == '"per-address";q=100;w=60'


async def left(limiter: Limiter, key: str) -> int | None:
    return (await limiter.check(tokens=key, cost=0)).remaining


async def test_llm_gateway(limiter: Limiter) -> None:
    """Tokens are reserved while an answer streams, and settled with what it took."""
    key = {"x-api-key": "f"}
    async with of(llm_gateway.create_app(limiter)) as client:
        short = await client.post("/v1/answers", content="one two three", headers=key)
        assert (short.text, await left(limiter, "f")) == ("one two three ", 1970)
        await client.post("/v1/answers", content="word " * 160, headers=key)
        assert await left(limiter, "f") == 370
        denied = await client.post("/v1/answers", content="one", headers=key)

    assert (denied.status_code, await left(limiter, "f")) == (429, 370)
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.json()["violated-policies"] == ["tokens"]


async def test_llm_gateway_whose_caller_hangs_up(limiter: Limiter) -> None:
    """Who hangs up pays for what was streamed."""
    streaming = asyncio.Event()

    async def endless(_prompt: str) -> AsyncIterator[tuple[str, int]]:
        for _ in range(7):
            yield "word", 10
        streaming.set()
        await asyncio.Event().wait()

    app = llm_gateway.create_app(limiter, endless)
    async with of(app) as client:
        headers = {"x-api-key": "g"}
        call = asyncio.create_task(client.post("/v1/answers", content="x", headers=headers))
        await streaming.wait()
        assert await left(limiter, "g") == 1500
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async with asyncio.timeout(30):
        while await left(limiter, "g") != 1930:
            await asyncio.sleep(0.01)
