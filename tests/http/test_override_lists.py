"""Overrides by the thousand: told bit by bit, exported, and imported from lists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.model import MAX_OVERRIDES, time_text
from tests.http.conftest import AdminSite, Operator
from tests.service.overriding import BAN, EXEMPT, override
from tests.stores.cases import T


async def test_many_overrides_are_told_bit_by_bit(admin: AdminSite) -> None:
    """However many there are all are listed, the oldest first, or only the newest."""
    many = [override(BAN, f"user={n}", made_us=T + n // 3) for n in range(250)]
    await admin.overrides.change(many, [])
    fields = [each.fields() for each in many]

    assert await admin.json_of("/overrides") == {"overrides": fields}
    newest = await admin.json_of("/overrides?newest=3")
    assert isinstance(newest, dict)
    assert (newest["overrides"], newest["count"]) == (fields[-3:], 250)
    assert (await admin.ask("/overrides?newest=0")).status == 400


async def test_overrides_are_exported_and_imported(operator: Operator, tmp_path: Path) -> None:
    """All that export prints import makes again, as it was; and once more changes nothing."""
    for words in (
        ("ban", "edge", "user=b*", "--for", "2h", "--reason", "scrapes"),
        ("limit", "edge", "plan=a", "--requests", "9", "--limit", "long"),
        ("grant", "edge", "user=bob", "--hits", "3"),
    ):
        assert (await operator.types(*words)).code == 0
    file = tmp_path / "saved.jsonl"
    file.write_text((await operator.types("overrides", "export")).out)
    saved = (await operator.json_of("overrides"))["overrides"]
    assert [json.loads(line) for line in file.read_text().splitlines()] == saved
    for each in saved[:2]:
        await operator.types("overrides", "remove", each["id"])

    result = await operator.types("overrides", "import", str(file))
    assert (result.code, result.out) == (0, "3 overrides: 2 added, 1 there already\n")
    assert (await operator.json_of("overrides"))["overrides"] == saved
    # As --json prints it, and as some editors save it.
    file.write_text(json.dumps({"overrides": saved}), encoding="utf-8-sig")
    answer = await operator.json_of("overrides", "import", str(file))
    assert answer == {
        "added": 0,
        "replaced": 0,
        "unchanged": 3,
        "ended": 0,
        "notes": [],
        "warnings": [],
    }

    audited = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    lines = [each for each in audited if each["action"] == "import"]
    assert [(each["before"], each["after"]) for each in lines] == [([], [one]) for one in saved[:2]]


async def test_overrides_of_a_list_are_new_or_take_places(
    operator: Operator, tmp_path: Path
) -> None:
    """A list written by hand needs no ids; it can be imported again, and checked before."""
    lines = [
        {"kind": "ban", "domain": "edge", "entries": [["user", "eve"]]},
        {"kind": "grant", "domain": "edge", "entries": [["user", "bob"]], "hits": 3},
        {"kind": "ban", "domain": "edge", "entries": [["user", "old"]], "until": time_text(1)},
        {"kind": "ban", "domain": "adge", "entries": [["user", "eve"]]},
    ]
    file = tmp_path / "list.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert (await operator.types("ban", "edge", "user=eve", "--reason", "old")).code == 0

    result = await operator.types("overrides", "import", str(file), "--check")
    assert result.out == "4 overrides: 2 would be added, 1 would be replaced, 1 had ended\n"
    assert "adge user=eve: nothing limits it now: " in result.err
    assert len((await operator.json_of("overrides"))["overrides"]) == 1
    result = await operator.types("overrides", "import", str(file))
    assert result.out == "4 overrides: 2 added, 1 replaced, 1 had ended\n"
    made = (await operator.json_of("overrides"))["overrides"]
    assert await operator.passed(9) == 5
    result = await operator.types("overrides", "import", str(file))
    assert result.out == "4 overrides: 3 there already, 1 had ended\n"
    assert (await operator.json_of("overrides"))["overrides"] == made


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2 is no JSON: "),
        ("7", "override 2 is no JSON object"),
        ('{"kind": "bar"}', "override 2 cannot be read: kind must be one of "),
        (
            '{"kind": "ban", "domain": "edge", "entries": [["user", "eve"]], "reason": "again"}',
            "override 2 is about the same as override 1",
        ),
        (
            '{"kind": "ban", "domain": "edge", "entries": [["plan", "a"]], "limit": "shirt"}',
            "no limit there is called 'shirt', only short, long",
        ),
    ],
)
async def test_a_list_is_taken_whole_or_not_at_all(
    operator: Operator, tmp_path: Path, line: str, expected: str
) -> None:
    """If one of a list cannot be added none is, and the error says which one."""
    first = {"kind": "ban", "domain": "edge", "entries": [["user", "eve"]]}
    file = tmp_path / "list.jsonl"
    file.write_text(f"{json.dumps(first)}\n{line}\n")
    done = await operator.types("overrides", "import", str(file))
    assert done.code == 2
    assert expected in done.err
    assert (await operator.json_of("overrides"))["overrides"] == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n  \n"])
async def test_lines_of_a_list(operator: Operator, tmp_path: Path, end: str) -> None:
    """A value may hold what ends lines elsewhere; lines without anything say nothing."""
    values = ["a\u2028b", "c\u0085d"]
    listed = [{"kind": "ban", "domain": "edge", "entries": [["user", each]]} for each in values]
    file = tmp_path / "list.jsonl"
    text = "".join(json.dumps(each, ensure_ascii=False) + end for each in listed)
    file.write_bytes(text.encode())

    assert (await operator.types("overrides", "import", str(file))).out == "2 overrides: 2 added\n"
    answer = (await operator.json_of("overrides"))["overrides"]
    assert sorted(each["entries"][0][1] for each in answer) == values


async def test_times_of_a_list(admin: AdminSite) -> None:
    """None was made later than now: so it can be read again. A grant may have ended long ago."""
    ban = {"kind": "ban", "domain": "edge", "entries": [["user", "bob"]]}
    grant = {**ban, "kind": "grant", "hits": 3, "made": "2020-01-01T00:00:00Z"}
    late = {**ban, "made": "9999-12-31T00:00:00Z"}
    route = "/overrides/import"
    answer: Any = await admin.json_of(route, {"overrides": [late, grant]})
    refused = await admin.ask(route, {"overrides": [{**late, "until": "9999-12-31T00:00:00Z"}]})

    assert (answer["added"], answer["ended"]) == (1, 1)
    assert (refused.status, "more than ten years" in refused.text) == (400, True)


async def test_a_list_that_is_not_there(operator: Operator, tmp_path: Path) -> None:
    """A file that cannot be read is named, with the reason in words."""
    done = await operator.types("overrides", "import", str(tmp_path / "none"))
    assert done == (
        2,
        "",
        f"ratelimit: {tmp_path}/none cannot be read: No such file or directory\n",
    )


async def test_a_list_that_is_too_long_is_refused(operator: Operator, tmp_path: Path) -> None:
    """What does not fit is refused before anything is added; what takes places fits."""
    bans = [override(BAN, f"user={number}", made_us=T) for number in range(MAX_OVERRIDES)]
    await operator.admin.overrides.change(bans, [])
    new = [override(BAN, f"user=new{number}", made_us=T) for number in range(150)]
    file = tmp_path / "list.jsonl"
    file.write_text("".join(json.dumps(each.fields()) + "\n" for each in new))
    done = await operator.types("overrides", "import", str(file))
    assert done.code == 2
    assert "there are 10000 overrides, these are 150 more, and 10000 is the most" in done.err
    assert operator.admin.overrides.find(new[0].id) is None

    instead = [override(EXEMPT, "user=bob"), *(replace(each, reason="new") for each in bans[1:151])]
    await operator.admin.overrides.change([instead[0]], [bans[0].id])
    file.write_text("".join(json.dumps(each.fields()) + "\n" for each in instead))
    assert (await operator.types("overrides", "import", str(file))).out == (
        "151 overrides: 150 replaced, 1 there already\n"
    )
