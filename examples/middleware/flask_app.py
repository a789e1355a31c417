"""Flask: every request is limited by address and API key, a view by a decorator."""

from __future__ import annotations

from flask import Flask, Response, request

from ratelimit_client import DeniedError, SyncLimiter
from ratelimit_client.describe import address, header
from ratelimit_client.wsgi import RateLimitMiddleware

__all__ = ["app", "create_app"]


def create_app(limiter: SyncLimiter) -> Flask:
    """The application. Tests give it another limiter."""
    app = Flask(__name__)
    app.wsgi_app = RateLimitMiddleware(  # type: ignore[method-assign]
        app.wsgi_app,
        limiter,
        [{"remote_address": address}, {"api_key": header("x-api-key")}],
    )

    @app.get("/")
    def home() -> dict[str, str]:
        return {"hello": "world"}

    @app.get("/model")
    @limiter.limited(tokens=lambda: request.headers["x-api-key"], cost=900)
    def model() -> dict[str, str]:
        return {"answer": "42"}

    @app.errorhandler(DeniedError)
    def denied(error: DeniedError) -> Response:
        wait = error.decision.retry_after or 1
        return Response("Come back later.\n", 429, {"Retry-After": f"{wait:.0f}"})

    return app


app = create_app(SyncLimiter("localhost:8081", domain="shop"))
