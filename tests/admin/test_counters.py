"""What the admin listener tells of counters and of callers."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.admin.conftest import AdminSite


async def inspected(admin: AdminSite, descriptor: str) -> Any:
    return await admin.told(f"/inspect?domain=edge&descriptor={quote(descriptor)}")


async def test_inspect(admin: AdminSite) -> None:
    """It tells how the counters of a descriptor stand, however it has to be written."""
    await admin.asking.ask("user=ann")

    told = await inspected(admin, "user=ann")

    assert told["descriptor"] == [["user", "ann"]]
    assert [(each["count"], each["remaining"]) for each in told["counters"]] == [(1, 1)]
    assert (await inspected(admin, r"user=a\,b"))["descriptor"] == [["user", "a,b"]]


@pytest.mark.parametrize(
    "query", ["", "?domain=edge", "?domain=edge&descriptor==x", "?domain=edge&descriptor=a&limit=2"]
)
async def test_inspect_says_what_to_write(admin: AdminSite, query: str) -> None:
    """What is missing, unknown or cannot be read is said in a sentence."""
    answer = await admin.ask(f"/inspect{query}")

    assert answer.status == 400
    assert "key=value,key=value" in json.loads(answer.text)["error"]
