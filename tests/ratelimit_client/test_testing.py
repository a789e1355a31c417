"""The limiter for tests of programs that use one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ratelimit_client
from ratelimit_client import DeniedError, Reason, UnavailableError
from ratelimit_client.model import Descriptor, Request
from ratelimit_client.testing import FakeLimiter, FakeSyncLimiter


async def test_fake() -> None:
    """A fake allows everything but what it is told to deny, and notes what it was asked."""
    limiter = FakeLimiter()
    limiter.deny(user="mallory", retry_after=30)

    first = await limiter.check({"user": "alice"}, path="/")
    denied = await limiter.check({"path": "/", "user": "mallory"}, cost=2)
    limiter.allow(user="mallory")
    after = await limiter.check(user="mallory")

    assert [bool(each) for each in (first, denied, after)] == [True, False, True]
    assert (denied.reason, denied.retry_after) == (Reason.OVER_LIMIT, 30)
    request = Descriptor((("path", "/"), ("user", "mallory")))
    assert limiter.asked[1] == Request("test", (request,), 2)


def test_fake_without_asyncio() -> None:
    """The same for programs that block; what would wait moves the fake's clock."""
    limiter = FakeSyncLimiter(on_failure="raise")
    limiter.deny(retry_after=2)
    with pytest.raises(DeniedError), limiter.lease(user="a"):
        pass
    assert not limiter.wait(user="a", at_most=10)
    assert 8 < limiter.clock.now() <= 10

    limiter.allow()
    assert limiter.check(user="a")
    limiter.fail()
    with pytest.raises(UnavailableError):
        limiter.check(user="a")
    limiter.recover()
    with limiter.reserve(user="a", cost=5) as budget:
        budget.spend(3)
    assert [each.cost for each in limiter.asked[-2:]] == [5, 2]


BARE = """
import sys
sys.path.insert(0, sys.argv[1])
import ratelimit_client, ratelimit_client.asgi, ratelimit_client.wsgi
from ratelimit_client.testing import FakeSyncLimiter, VirtualSyncLimiter
assert FakeSyncLimiter().check(user="a")
for make, extra in (
    (lambda: ratelimit_client.Limiter("localhost:1", domain="a"), "grpc"),
    (lambda: ratelimit_client.SyncLimiter("localhost:1", domain="a"), "grpc"),
    (lambda: ratelimit_client.Limiter("http://localhost", domain="a"), "http"),
    (lambda: ratelimit_client.SyncLimiter("http://localhost", domain="a"), "http"),
    (lambda: VirtualSyncLimiter("domain: a", domain="a"), "testing"),
):
    try:
        make()
    except ratelimit_client.MissingExtraError as error:
        assert f"pip install 'ratelimit-client[{extra}]'" in str(error), error
    else:
        raise AssertionError(extra)
"""


def test_alone() -> None:
    """Without extras it imports and fakes, says which extra is missing, and has no 5 MB."""
    package = Path(ratelimit_client.__file__).parent

    subprocess.run(
        [sys.executable, "-I", "-S", "-c", BARE, str(package.parent)],
        check=True,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )

    assert sum(each.stat().st_size for each in package.rglob("*.py")) < 5_000_000
