"""`ratelimit status`: what somebody on call asks first, against an admin listener."""

from __future__ import annotations

import asyncio
import json

import pytest

from ratelimit_service.stores import ShardState
from tests.cli.inside import Inside
from tests.http.conftest import AdminSite, StartSite, start_site

__all__ = ["start_site"]


@pytest.fixture
async def site(start_site: StartSite) -> AdminSite:
    return await start_site()


async def test_all_is_well(ratelimit: Inside, site: AdminSite) -> None:
    """One screen has health, store, rules, decisions, overrides, callers and the last denials."""
    site.workers.append({"state": "serving"})
    await site.json_of("/denials")  # from now on some are noted
    for user in ("ann", "ann", "ann", "bob"):
        await site.asking.ask(f"user={user}")
    await site.asking.ask("user=bob", hits=5)

    result = await asyncio.to_thread(ratelimit, "status", "--admin", f"127.0.0.1:{site.port}")

    lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert lines[0] == "health     serving, nothing is degraded"
    assert lines[1:4] == [
        "store      memory",
        "processes  1 worker, serving, version 1",
        "rules      1 rule in 1 domain, no problem",
    ]
    assert lines[4].startswith("decisions  0 a second allowed, 0 denied, 0 refused")
    assert lines[5:7] == [
        "by policy  none of the hits of this second, 0.0 % since the start",
        "overrides  0 in force",
    ]
    assert "edge: user  user=bob" in result.out
    ann, bob = (
        next(n for n, each in enumerate(lines) if f"edge user={u}:" in each) for u in ("ann", "bob")
    )
    assert lines[bob - 1] == "the last denials"
    assert bob < ann
    assert "denied at " in lines[ann]
    assert " UTC by `user`" in lines[ann]


async def test_something_is_wrong(ratelimit: Inside, site: AdminSite) -> None:
    """What is degraded is at the top, and the exit status is 1; a server that is away is told."""
    site.asking.health.degrade("store main", "cannot connect to it")
    site.shards.append(ShardState("main", "server", "", True, None, 0, 0, 1))

    result = await asyncio.to_thread(ratelimit, "status", "--admin", f"127.0.0.1:{site.port}")
    as_json = await asyncio.to_thread(
        ratelimit, "status", "--json", "--admin", f"127.0.0.1:{site.port}"
    )

    lines = result.out.splitlines()
    assert (result.code, as_json.code) == (1, 1)
    assert lines[:4] == [
        "health     serving, DEGRADED",
        "           store main: cannot connect to it",
        "store      memory",
        "           server main: AWAY, breaker OPEN",
    ]
    answer = json.loads(as_json.out)
    assert answer["faults"] == {"store main": "cannot connect to it"}
    assert answer["rules"]["rules"] == 1
    assert answer["callers"]["callers"] == []


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], "NO WORKER: see the log, version 1"),
        (["serving", "serving"], "2 workers, serving, version 1"),
        (["serving", "starting", "serving"], "3 workers: 2 serving, 1 starting, version 1"),
    ],
)
async def test_workers(
    ratelimit: Inside, site: AdminSite, states: list[str], expected: str
) -> None:
    """Workers are told by their states; that there is none is said as such."""
    site.workers += [{"state": state} for state in states]

    result = await asyncio.to_thread(ratelimit, "status", "--admin", f"127.0.0.1:{site.port}")

    assert f"processes  {expected}" in result.out.splitlines()


async def test_problems_of_rules_are_told_once(ratelimit: Inside, site: AdminSite) -> None:
    """The first problem is among what is degraded; the others stand with the rules."""
    for name in ("bad", "worse"):
        (site.directory / f"{name}.yaml").write_text("domain: x\ndescriptors: 7\n")
    site.asking.rules.load()

    result = await asyncio.to_thread(ratelimit, "status", "--admin", f"127.0.0.1:{site.port}")

    answer = [line.split()[0] for line in result.out.splitlines() if ".yaml:2:14: " in line]
    assert [each.rpartition("/")[2] for each in answer] == ["rules:", "worse.yaml:2:14:"]
    assert result.code == 1
    assert f"rules: {site.directory}/bad.yaml:2:14:" in result.out
