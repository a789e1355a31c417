"""A gateway to a language model that streams, and charges tokens when the answer has ended.

Before the answer an estimate is reserved: so a caller cannot start a hundred answers with the
tokens of one. Afterwards what was used is counted in its place. The caller pays for what was
streamed, also by hanging up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import Response, StreamingResponse

from ratelimit_client import Budget, DeniedError, Limiter
from ratelimit_client.responses import denial

__all__ = ["app", "create_app", "pretend"]

ESTIMATE = 500

Model = Callable[[str], AsyncIterator[tuple[str, int]]]
"""Takes a prompt and yields pieces of text with the tokens of each."""


async def pretend(prompt: str) -> AsyncIterator[tuple[str, int]]:
    """Stands for a model: it says every word again, at ten tokens a word."""
    for word in prompt.split():
        yield f"{word} ", 10


def create_app(limiter: Limiter, model: Model = pretend) -> FastAPI:
    """The application. Tests give it another limiter, and another model."""
    app = FastAPI()

    async def streamed(prompt: str, budget: Budget) -> AsyncIterator[str]:
        async with budget:  # at its end, whatever that is, the budget is settled
            async for text, tokens in model(prompt):
                budget.spend(tokens)
                yield text

    @app.post("/v1/answers")
    async def answer(request: Request, x_api_key: Annotated[str, Header()]) -> Response:
        prompt = (await request.body()).decode()
        try:
            budget = await limiter.reserve(tokens=x_api_key, cost=ESTIMATE)
        except DeniedError as error:
            told = denial(error.decision, request.method)
            return Response(told.body, told.status, dict(told.headers))
        return StreamingResponse(streamed(prompt, budget), media_type="text/plain")

    return app


app = create_app(Limiter("localhost:8081", domain="shop"))
