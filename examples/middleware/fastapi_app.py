"""FastAPI: every request is limited by address and API key, reports by what is under way."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, HTTPException

from ratelimit_client import DeniedError, Limiter
from ratelimit_client.asgi import RateLimitMiddleware
from ratelimit_client.describe import address, header

__all__ = ["app", "create_app"]


def create_app(limiter: Limiter) -> FastAPI:
    """The application. Tests give it another limiter."""
    app = FastAPI()
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        description=[{"remote_address": address}, {"api_key": header("x-api-key")}],
    )

    @app.get("/")
    async def home() -> dict[str, str]:
        return {"hello": "world"}

    @app.get("/report")
    async def report(x_api_key: Annotated[str, Header()]) -> dict[str, str]:
        try:
            async with limiter.lease(reports=x_api_key):
                return {"report": "done"}
        except DeniedError as error:
            raise HTTPException(429, "Two reports at a time.", {"Retry-After": "1"}) from error

    return app


app = create_app(Limiter("localhost:8081", domain="shop"))
