"""What the admin listener tells of counters and of callers."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from ratelimit_service.settings import Settings
from ratelimit_service.wire.reservations import ReserveRequest
from tests.http.conftest import AdminSite, StartSite


async def inspected(admin: AdminSite, descriptor: str) -> Any:
    return await admin.json_of(f"/inspect?domain=edge&descriptor={quote(descriptor)}")


async def test_inspect(admin: AdminSite) -> None:
    """It tells how the counters of a descriptor stand, however it has to be written."""
    await admin.asking.ask("user=ann")

    answer = await inspected(admin, "user=ann")

    assert answer["descriptor"] == [["user", "ann"]]
    assert [(each["count"], each["remaining"]) for each in answer["counters"]] == [(1, 1)]
    assert (await inspected(admin, r"user=a\,b"))["descriptor"] == [["user", "a,b"]]


async def test_inspect_tells_what_is_held(start_site: StartSite) -> None:
    """What reservations hold stands beside the count, and is not left for others."""
    limit = "{unit: year, requests_per_unit: 9, reservations: true}"
    rules = f"domain: edge\ndescriptors: [{{key: user, rate_limit: {limit}}}]"
    site = await start_site(Settings(), rules)
    await site.asking.ask("user=ann")
    message = ReserveRequest(domain="edge", amount=6)
    message.descriptors.add().entries.add(key="user", value="ann")

    await site.asking.service.reservations.call("Reserve", message.SerializeToString())
    (counter,) = (await inspected(site, "user=ann"))["counters"]

    assert (counter["count"], counter["held"], counter["remaining"]) == (1, 6, 2)


@pytest.mark.parametrize(
    "query", ["", "?domain=edge", "?domain=edge&descriptor==x", "?domain=edge&descriptor=a&limit=2"]
)
async def test_inspect_says_what_to_write(admin: AdminSite, query: str) -> None:
    """What is missing, unknown or cannot be read is said in a sentence."""
    answer = await admin.ask(f"/inspect{query}")

    assert answer.status == 400
    assert "key=value,key=value" in json.loads(answer.text)["error"]


async def test_counters(admin: AdminSite) -> None:
    """It tells who is over, near and busy, the most first."""
    for name, times in (("ann", 4), ("bob", 7), ("cy", 2)):
        for _ in range(times):
            await admin.asking.ask(f"user={name}")

    over = await callers(admin, "")
    busy = await callers(admin, "?order=hits&limit=1&window=hour")
    near = await callers(admin, "?order=near&domain=edge&rule=user")

    assert [(each["caller"], each["over"]) for each in over] == [
        ([["user", "bob"]], 5),
        ([["user", "ann"]], 2),
    ]
    assert [(each["caller"], each["hits"]) for each in busy] == [([["user", "bob"]], 7)]
    assert [each["remaining"] for each in near] == [0, 0, 0]
    assert await callers(admin, "?domain=elsewhere") == []
    assert await callers(admin, "?rule=none") == []


async def test_counters_of_a_rule_that_is_none(start_site: StartSite) -> None:
    """Whoever misspells a rule is told which there are, and not that nobody is limited there."""
    many = "".join(f"- {{key: k{n}, rate_limit: {{unlimited: true}}}}\n" for n in range(12))
    site = await start_site(Settings(), f"domain: edge\ndescriptors:\n{many}")

    ten = ", ".join(f"k{n}" for n in range(10))
    for query, note in (
        ("rule=k", f"there is no rule 'k': there are {ten} and 2 more"),
        ("rule=k&domain=edge", f"there is no rule 'k' in edge: there are {ten} and 2 more"),
        ("rule=k&domain=egde", "there is no domain 'egde': there are edge"),
        ("rule=k11", None),
    ):
        answer: Any = await site.json_of(f"/counters?{query}")
        assert (answer["callers"], answer.get("note")) == ([], note)


async def callers(admin: AdminSite, query: str) -> Any:
    answer: Any = await admin.json_of(f"/counters{query}")
    assert (answer["here"], answer["elsewhere"], answer["left_out"]) == (1, 0, 0)
    return answer["callers"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?order=most", "order is one of over, near, hits, not 'most'"),
        ("?window=day", "window is one of minute, hour, not 'day'"),
        ("?limit=0", "limit is a number from 1 to 1000, not '0'"),
        ("?limit=10000000000000", "limit is a number from 1 to 1000"),
        ("?limit=x", "limit is a number from 1 to 1000, not 'x'"),
        ("?user=ann", "'user' is nothing to ask for: there are domain, limit, order"),
    ],
)
async def test_counters_say_what_to_ask(admin: AdminSite, query: str, expected: str) -> None:
    """What cannot be asked is said in a sentence."""
    answer = await admin.ask(f"/counters{query}")

    assert answer.status == 400
    assert expected in json.loads(answer.text)["error"]


async def test_without_callers(start_site: StartSite) -> None:
    """Where none are kept in mind that is said."""
    site = await start_site(Settings(no_callers=True))

    answer = await site.ask("/counters")

    assert (answer.status, "--no-callers" in answer.text) == (404, True)
