"""Django in one file: all requests by address, and signed-in users by a middleware of Django's.

The first stands before Django, so that denied requests cost nothing. The second knows who is
signed in. Run it with `python django_app.py runserver`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from ratelimit_client import SyncLimiter
from ratelimit_client.describe import address
from ratelimit_client.wsgi import RateLimitMiddleware

__all__ = ["create_app"]

limiter = SyncLimiter("localhost:8081", domain="shop")


class KeyLimit:
    """A middleware of Django's: by what its own code knows of the request."""

    def __init__(self, respond: Callable[[HttpRequest], HttpResponse]) -> None:
        self._respond = respond

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # With django.contrib.auth this would be request.user.pk.
        key = request.headers.get("x-api-key")
        decision = limiter.check(api_key=key) if key else None
        if decision is not None and not decision:
            response = HttpResponse(decision.body, "application/problem+json", 429)
        else:
            response = self._respond(request)
        for name, value in decision.headers if decision is not None else ():
            response.headers[name] = value
        return response


def home(_: HttpRequest) -> HttpResponse:
    return JsonResponse({"hello": "world"})


urlpatterns = [path("", home)]

settings.configure(
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=[f"{__name__}.KeyLimit"],
    ROOT_URLCONF=__name__,
    WSGI_APPLICATION=f"{__name__}.application",
)
django.setup()


def create_app(own: SyncLimiter) -> RateLimitMiddleware:
    """What a WSGI server serves. Tests give it another limiter."""
    global limiter  # noqa: PLW0603
    limiter = own
    return RateLimitMiddleware(WSGIHandler(), limiter, [{"remote_address": address}])


application = create_app(limiter)

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
