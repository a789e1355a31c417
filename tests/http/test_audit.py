"""What is kept of changes: in the log, in the audit log, and in the store."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.model import SECOND_US
from ratelimit_service.settings import Settings
from ratelimit_service.stores.overrides import Audited
from tests.http.conftest import Operator, StartSite

BOB = {"domain": "edge", "descriptor": [["user", "bob"]]}


async def test_the_log_tells_changes_in_sentences(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    """Of each change the log says who has made it, from where, and what has changed."""
    caplog.set_level("INFO")
    operator.admin.asking.now_us = 1767225600 * SECOND_US  # 2026-01-01
    first = (await operator.json_of("limit", "edge", "user=bob", "--requests", "5"))["override"][
        "id"
    ]
    again = ("limit", "edge", "user=bob", "--requests", "7", "--for", "2h", "--reason", "x\ny")
    second = (await operator.json_of(*again))["override"]["id"]
    await operator.types("reset", "edge", "user=bob")
    await operator.types("overrides", "remove", second)

    bob = "edge user=bob"
    new = rf"limit {second}: {bob}, 7 requests, until 2026-01-01T02:00:00Z, by local: x\ny"
    old = f"limit {first}: {bob}, 5 requests, by local"
    assert [each.message for each in caplog.records if "local" in each.message] == [
        f"local from 127.0.0.1 has added {old}",
        f"local from 127.0.0.1 has added {new}, instead of {old}",
        f"local from 127.0.0.1 has reset the counters of {bob}, which had counted 0",
        f"local from 127.0.0.1 has removed {new}",
    ]


async def test_changes_are_audited(operator: Operator, tmp_path: Path) -> None:
    """A change leaves who, from where, what, why, before and after in a log and in the store."""
    await operator.passed(2)
    made = await operator.json_of("ban", "edge", "user=bob", "--reason", "abuse")
    await operator.types("reset", "edge", "user=bob")
    await operator.types("unban", "edge", "user=bob", "--reason", "sorry")
    store: Any = await operator.admin.json_of("/audit?most=9")

    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert store["audit"] == lines[::-1]
    ban, reset, unban = lines
    assert [each["action"] for each in lines] == ["override", "reset", "remove"]
    assert (ban["before"], ban["after"]) == ([], [made["override"]])
    assert (unban["before"], unban["after"]) == ([made["override"]], [])
    assert (ban["reason"], unban["reason"], ban["from"]) == ("abuse", "sorry", "127.0.0.1")
    assert ban["who"] == made["override"]["who"] != ""
    assert [each["count"] for each in reset["before"]] == [2]


async def test_many_changes_are_told_in_parts(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are asked for, few are read at once; what changes meanwhile moves none."""
    store = operator.admin.overrides.kept
    for number in range(1_000):
        await store.change([], [], json.dumps({"number": number}))
    audited, looked = store.audited, list[int]()

    async def noted(most: int, after: str = "") -> Audited:
        result = await audited(most, after)
        looked.append(len(result.lines))
        await store.change([], [], "another one" if len(looked) % 2 else '{"number": -1}')
        return result

    monkeypatch.setattr(store, "audited", noted)
    result: Any = await operator.admin.json_of("/audit?most=1000")
    few: Any = await operator.admin.json_of("/audit?most=3")

    assert looked == [50] * 20 + [3]
    assert [each["number"] for each in result["audit"]] == list(range(999, -1, -1))
    assert [each["number"] for each in few["audit"]] == [-1, -1]  # one of three is no JSON


async def test_lines_of_strangers_are_left_out(operator: Operator) -> None:
    """What is no object, or is nested too deep to be read or written, is not told."""
    store = operator.admin.overrides.kept
    deep = ['{"a": ' * depth + "1" + "}" * depth for depth in (900, 990, 5_000)]
    for line in ("5", "[1]", "null", "nonsense", *deep, '{"number": 1}'):
        await store.change([], [], line)

    result: Any = await operator.admin.json_of("/audit?most=20")

    assert [each for each in result["audit"] if "number" in each] == [{"number": 1}]
    assert all(isinstance(each, dict) for each in result["audit"])


async def test_an_audit_log_that_cannot_be_written(
    start_site: StartSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the audit log takes no line the change is made, and whoever made it is told.

    Health says so from the start on, until a line can be written.
    """
    path = tmp_path / "no" / "audit.jsonl"
    admin = await start_site(Settings(audit_log=str(path)))
    assert str(path) in admin.asking.health.faults["audit_log"]
    answer: Any = await admin.json_of("/overrides", {**BOB, "kind": "ban"})

    assert "cannot be written" in answer["warning"]
    assert '"action": "override"' in caplog.text

    path.parent.mkdir()
    answer = await admin.json_of("/overrides", {**BOB, "kind": "exempt"})
    assert "warning" not in answer
    assert admin.asking.health.faults == {}


@pytest.mark.parametrize("room", [0, 30])
async def test_an_audit_log_that_takes_a_part(
    start_site: StartSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Of a line that only a part has room for nothing is left, and whoever made it is told."""
    path = tmp_path / "audit.jsonl"
    admin = await start_site(Settings(audit_log=str(path)))
    await admin.json_of("/overrides", {**BOB, "kind": "ban"})
    before, write = path.read_bytes(), os.write

    def full(file: int, data: bytes) -> int:
        rest = len(before) + room - path.stat().st_size
        if not rest:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:rest])

    with monkeypatch.context() as patched:
        patched.setattr("ratelimit_service.files.whole_file.os.write", full)
        answer: Any = await admin.json_of("/overrides", {**BOB, "kind": "exempt"})
    assert answer["warning"] == "the audit log cannot be written: No space left on device"
    assert path.read_bytes() == before

    await admin.json_of("/overrides", {**BOB, "kind": "exempt"})
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


async def test_a_change_that_fails_is_not_logged(
    start_site: StartSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what was changed, and nothing of a change that the store did not take."""
    directory = tmp_path / "gone"
    directory.mkdir()
    admin = await start_site(Settings(overrides_file=str(directory / "overrides.json")))
    caplog.set_level("INFO")
    assert (await admin.ask("/overrides", {**BOB, "kind": "ban"})).status == 200
    assert caplog.text.count("has added ban") == 1

    (directory / "overrides.json").unlink()
    directory.rmdir()
    assert (await admin.ask("/overrides", {**BOB, "kind": "exempt"})).status == 503
    assert caplog.text.count("has added ban") == 1
