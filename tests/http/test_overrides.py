"""Overrides at the admin listener, by routes and by the command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.cli.words import moment
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.model import SECOND_US, Code, time_text
from ratelimit_service.service.questions import QuestionError
from ratelimit_service.settings import Settings
from tests.http.conftest import STEERED_RULES, AdminSite, Operator, StartSite

BOB = {"domain": "edge", "descriptor": [["user", "bob"]]}
BOB_LISTED = {"kind": "ban", "domain": "edge", "entries": [["user", "bob"]]}


async def test_commands_make_overrides(operator: Operator) -> None:
    """Each command does at once what it says, and is undone by its opposite."""
    assert (await operator.types("ban", "edge", "user=bob")).code == 0
    assert await operator.passed(3) == 0
    assert (await operator.types("unban", "edge", "user=bob")).code == 0
    assert await operator.passed(3) == 2

    answer = await operator.json_of("grant", "edge", "user=bob", "--hits", "3")
    assert await operator.passed(9) == 3
    assert (await operator.types("overrides", "remove", answer["override"]["id"])).code == 0

    assert (await operator.types("limit", "edge", "user=bob", "--requests", "3")).code == 0
    assert await operator.passed(9) == 1
    assert (await operator.types("exempt", "edge", "user=*")).code == 0
    assert await operator.passed(9) == 0  # an exact limit comes before a pattern
    assert await operator.passed(9, "user=alice") == 9


async def test_overrides_are_listed_in_words(operator: Operator) -> None:
    """The list says what each does, to whom, until when, by whom and why."""
    assert (await operator.types("overrides")).err == "no override is in force\n"
    asking = operator.admin.asking
    until = "2026-01-01T02:00:00Z"
    asking.now_us = 1767225600 * SECOND_US  # 2026-01-01
    ban = ("ban", "edge", r"user=a\,b*", "--for", "2h", "--reason", "scrapes")
    answer = (await operator.json_of(*ban))["override"]
    result = await operator.types("overrides")

    who = answer["who"]
    assert result.out == (
        f"ban {answer['id']}: edge user=a\\,b*, until {until}, by {who}: scrapes\n"
    )
    assert (await operator.json_of("overrides"))["overrides"] == [answer]
    asking.now_us += 7_200 * SECOND_US
    assert (await operator.json_of("overrides"))["overrides"] == []


async def test_a_grant_for_one_caller_ends_with_its_window(operator: Operator) -> None:
    """It is listed with its end, also if it was to hold for longer, and not once it is over."""
    asking = operator.admin.asking
    asking.now_us = 1767225600 * SECOND_US  # 2026-01-01
    grant = ("grant", "edge", "user=bob", "--hits", "3", "--for", "9w")
    answer = (await operator.json_of(*grant))["override"]

    assert answer["until"] == "2026-01-02T00:00:00.000000Z"
    asking.now_us += 86_400 * SECOND_US
    assert (await operator.json_of("overrides"))["overrides"] == []


async def test_a_grant_for_a_pattern_ends_with_the_last_window(operator: Operator) -> None:
    """Its hits are gone with the windows of the limits that it can take, and so is the grant."""
    asking = operator.admin.asking
    asking.now_us = 1767225600 * SECOND_US + 1  # 2026-01-01
    ends = {
        ("user=*", ""): "2026-01-02T00:00:00.000000Z",
        ("plan=a*", "short"): "2026-01-01T00:01:00.000000Z",
        ("plan=a*", "long"): "2026-01-02T00:00:00.000001Z",
        ("plan=*", ""): "2026-01-02T00:00:00.000001Z",
        ("nobody=*", ""): None,
    }
    for (descriptor, name), until in ends.items():
        words = ("--limit", name) if name else ()
        answer = await operator.json_of("grant", "edge", descriptor, "--hits", "3", *words)
        assert answer["override"].get("until") == until, (descriptor, name)
    sooner = ("grant", "edge", "user=b*", "--hits", "3", "--for", "1s")
    assert (await operator.json_of(*sooner))["override"]["until"] == "2026-01-01T00:00:01.000001Z"

    asking.now_us += 86_400 * SECOND_US
    (left,) = (await operator.json_of("overrides"))["overrides"]
    assert left["entries"] == [["nobody", "*"]]


async def test_an_override_that_nothing_can_meet_is_told(operator: Operator) -> None:
    """A misspelt domain or key is told, also of a ban and of a pattern, which hold all the same."""
    meant = {
        ("egde", "user=bob"): "'edge'",
        ("edge", "usr=bob"): "'user'",
        ("egde", "user=*"): "'edge'",
        ("edge", "usr=*"): "'user'",
    }
    for (domain, descriptor), word in meant.items():
        result = await operator.types("ban", domain, descriptor)
        assert result.code == 0
        assert "note: nothing limits it now: no rule" in result.err
        assert f"did you mean {word}?" in result.err
    assert (await operator.types("ban", "edge", "user=bob")).err.splitlines() == [
        "note: it has no end: it holds until it is removed"
    ]


async def test_reset_takes_no_pattern(operator: Operator) -> None:
    """Who writes a * is told that it stands for itself."""
    assert "a * stands for itself" in (await operator.types("reset", "edge", "user=*")).err
    assert (await operator.types("reset", "edge", "user=bob")).err == ""


async def test_overrides_end_at_a_moment(operator: Operator) -> None:
    """--until names the next such weekday, a day or a time, all in UTC."""
    noon = 1767268800 * SECOND_US  # Thursday, 2026-01-01T12:00Z
    for text, hours in (
        ("friday", 12),
        ("Monday", 84),
        ("thursday", 156),
        ("2026-01-03", 36),
        ("2026-01-01T14:00+01:00", 1),
    ):
        assert moment("--until", text, noon) == noon + hours * 3_600 * SECOND_US, text
    operator.admin.asking.now_us = now_us()
    then = time_text(now_us() + 2 * 86_400 * SECOND_US)[:11] + "00:00:00Z"

    answer = await operator.json_of("ban", "edge", "user=bob", "--until", then)

    assert answer["override"]["until"] == then.replace("Z", ".000000Z")
    assert await operator.passed(1) == 0


async def test_a_new_number_takes_the_old_ones_place(operator: Operator) -> None:
    """The same override for the same descriptor replaces the one before; grants add up."""
    first = await operator.json_of("limit", "edge", "user=bob", "--requests", "5")
    second = await operator.types("limit", "edge", "user=bob", "--requests", "6")
    assert f"instead of limit {first['override']['id']}" in second.out
    assert await operator.passed(9) == 6

    await operator.json_of("grant", "edge", "user=bob", "--hits", "1")
    answer = await operator.json_of("grant", "edge", "user=bob", "--hits", "1")
    assert answer["replaced"] == []
    assert answer["notes"][0].startswith("it ends ")
    assert await operator.passed(9) == 2


async def test_what_is_lost_by_replacing_is_told(operator: Operator) -> None:
    """Who replaces a ban by one that ends sooner is told, since from then on none holds."""
    first = (await operator.json_of("ban", "edge", "user=bob"))["override"]
    second = await operator.json_of("ban", "edge", "user=bob", "--until", "2030-01-02")
    assert second["notes"] == [
        f"ban {first['id']}, which it replaces, would have held until it is removed: "
        "from 2030-01-02T00:00:00Z on neither holds"
    ]
    later = await operator.json_of("ban", "edge", "user=bob", "--until", "2030-01-03")
    assert later["notes"] == []
    sooner = await operator.json_of("ban", "edge", "user=bob", "--until", "2030-01-01")
    assert sooner["notes"] == [
        f"ban {later['override']['id']}, which it replaces, would have held until "
        "2030-01-03T00:00:00Z: from 2030-01-01T00:00:00Z on neither holds"
    ]


async def test_reset(operator: Operator) -> None:
    """The counters of a descriptor start again, all of them or one limit's."""
    assert await operator.passed(3, "plan=a") == 2
    answer = await operator.json_of("reset", "edge", "plan=a", "--limit", "short")
    assert [(each["limit"], each["count"]) for each in answer["reset"]] == [("short", 2)]
    assert await operator.passed(3, "plan=a") == 0

    result = await operator.types("reset", "edge", "plan=a")
    assert result.out == (
        "limit short starts again, it had counted 0\nlimit long starts again, it had counted 2\n"
    )
    assert await operator.passed(3, "plan=a") == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("reset", "edge", "nobody=x"), "nothing counts it: no rule"),
        (
            ("reset", "edge", "plan=a", "--limit", "x"),
            "no limit there is called 'x', only short, long",
        ),
        (
            ("ban", "edge", "plan=a", "--limit", "x"),
            "no limit there is called 'x', only short, long",
        ),
        (("unban", "edge", "user=bob"), "there is no ban for just this descriptor in edge"),
        (("overrides", "remove", "00"), "there is no override '00': `ratelimit overrides`"),
        (("overrides", "remove"), "write which one: ratelimit overrides remove ID"),
        (("ban", "edge", "user=bob", "--for", "soon"), "--for 'soon' is no duration"),
        (("ban", "edge", "user=bob", "--for", "0s"), "for_seconds must be above 0"),
        (("ban", "edge", "user=bob", "--until", "soon"), "--until 'soon' is no time: write monday"),
        (("ban", "edge", "user=bob", "--until", "2026-01-01"), "--until '2026-01-01' is over"),
        (("ban", "edge", "user=bob", "--until", "9999-12-31T23:59:59-01:00"), "-01:00' is no time"),
        (("ban", "edge", "user=bob", "--until", "9999-12-31T23:59:59.999999"), "ten years"),
        (
            ("ban", "edge", "user=bob", "--until", "monday", "--for", "1h"),
            "--for and --until both say when it ends",
        ),
        (("grant", "edge", "user=bob", "--hits", "0"), "hits must be from 1 to 4294967295"),
        (("limit", "edge", "user=bob", "--requests", "-1"), "requests must be from 0 to"),
        (("ban", "edge", "=bob"), "write key=value,key=value"),
    ],
)
async def test_mistakes_are_told(operator: Operator, words: tuple[str, ...], expected: str) -> None:
    """What cannot be done is one line that says why, and changes nothing."""
    done = await operator.types(*words)

    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert (await operator.json_of("overrides"))["overrides"] == []


async def test_notes(operator: Operator) -> None:
    """An override that can do nothing now is made, and its maker is told."""
    result = await operator.types("exempt", "edge", "nobody=x")

    assert result.code == 0
    assert result.err.startswith("note: nothing limits it now: no rule")
    ban = await operator.json_of("ban", "edge", "user=bob")
    answer = await operator.json_of("exempt", "edge", "user=b*")
    assert answer["notes"] == [f"exact overrides come before it: ban {ban['override']['id']}"]


async def test_overrides_that_take_a_descriptor(admin: AdminSite) -> None:
    """Of a descriptor those overrides are listed that take it, the first one first."""
    for value, kind in (("*", "ban"), ("b*", "exempt"), ("bob", "exempt"), ("eve", "ban")):
        body = {"domain": "edge", "descriptor": [["user", value]], "kind": kind}
        assert (await admin.ask("/overrides", body)).status == 200

    answer: Any = await admin.json_of("/overrides?domain=edge&descriptor=user%3Dbob")
    assert [each["entries"][0][1] for each in answer["overrides"]] == ["bob", "*", "b*"]


async def test_explain_and_inspect_show_overrides(operator: Operator, tmp_path: Path) -> None:
    """If asked, explain says which overrides take a descriptor, and so does inspect."""
    (tmp_path / "rules.yaml").write_text(STEERED_RULES)
    words = ("explain", "edge", "user=bob", "--rules", str(tmp_path / "rules.yaml"), "--overrides")
    assert (await operator.types(*words)).out.endswith("no override takes it\n")

    ban = (await operator.json_of("ban", "edge", "user=bob"))["override"]
    exempt = (await operator.json_of("exempt", "edge", "user=*"))["override"]
    assert f"override: ban {ban['id']}: edge user=bob" in (await operator.types(*words)).out
    assert (await operator.json_of(*words))["overrides"] == [ban, exempt]
    answer: Any = await operator.admin.json_of("/inspect?domain=edge&descriptor=user%3Dbob")
    assert answer["overrides"] == [ban, exempt]


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        ("/overrides", {**BOB, "kind": "banish"}, 400, "kind must be one of ban, exempt"),
        ("/overrides", {**BOB, "kind": "ban", "hits": 1}, 400, "hits belongs to grant"),
        ("/reset", {**BOB, "descriptor": [["user", "\udcff"]]}, 400, "is no UTF-8"),
        ("/reset", {**BOB, "domain": "\udcff"}, 400, "is no UTF-8"),
        ("/overrides", {**BOB, "kind": "ban", "till": 1}, 400, "'till' is unknown here"),
        ("/overrides", {**BOB, "kind": "ban", "until": 1}, 400, "1 is no time"),
        ("/overrides", {**BOB, "kind": "ban", "until": "2000-01-01T00:00Z"}, 400, "is over"),
        (
            "/overrides",
            {**BOB, "kind": "ban", "until": "9999-01-01T00:00Z"},
            400,
            "it ends in more than ten years",
        ),
        (
            "/overrides",
            {**BOB, "kind": "ban", "until": "9999-12-31T23:59-01:00"},
            400,
            "is no time",
        ),
        ("/overrides", {**BOB, "kind": "ban", "for_seconds": 1e-9}, 400, "must be above 0"),
        (
            "/overrides",
            {**BOB, "kind": "ban", "until": "2126-01-01T00:00Z", "for_seconds": 1},
            400,
            "both say when it ends",
        ),
        ("/overrides", {"domain": "edge", "kind": "ban"}, 400, "name a descriptor"),
        ("/overrides", {**BOB, "kind": "ban", "for_seconds": "1h"}, 400, "must be a number"),
        ("/overrides/import", {"overrides": {}}, 400, "a list of 1 to 100 overrides"),
        ("/overrides/import", {"overrides": [{}] * 101}, 400, "a list of 1 to 100 overrides"),
        ("/overrides/import", {"overrides": [7]}, 400, "must be a JSON object"),
        ("/overrides/import", {"overrides": [{"kind": "ban"}]}, 400, "entries must be a list"),
        (
            "/overrides/import",
            {"overrides": [{**BOB_LISTED, "made": "0001-01-01T00:00+01:00"}]},
            400,
            "is no time",
        ),
        ("/overrides/remove", {"id": "00"}, 404, "there is no override '00'"),
        ("/overrides/remove", {"id": "00", "domain": "edge"}, 400, "an id says which one"),
        ("/overrides/remove", {**BOB, "kind": "ban", "reason": 7}, 400, "reason must be text"),
        ("/reset", {**BOB, "reason": "x" * 501}, 400, "reason has 501 characters"),
        ("/reset", {**BOB, "reason": "\udcff"}, 400, "reason is no UTF-8"),
        ("/overrides?domain=edge", None, 400, "write ?domain=DOMAIN&descriptor="),
        ("/audit?most=x", None, 400, "write ?most=NUMBER"),
    ],
)
async def test_bodies_that_say_nothing_useful(
    admin: AdminSite, path: str, body: object, status: int, expected: str
) -> None:
    """What is missing, unknown or wrong is said in a sentence."""
    answer = await admin.ask(path, body)

    assert (answer.status, expected in json.loads(answer.text)["error"]) == (status, True), (
        answer.text
    )


async def test_the_same_override_made_at_once(operator: Operator) -> None:
    """Of those about the same there is one, also if all of them are made at the same moment."""
    ask = operator.admin.operating.ask
    await asyncio.gather(
        *[ask("override", {**BOB, "kind": "ban"}) for _ in range(5)],
        ask("import_overrides", {"overrides": [BOB_LISTED]}),
    )
    assert len((await operator.json_of("overrides"))["overrides"]) == 1

    removed = await asyncio.gather(
        *[ask("remove_override", {**BOB, "kind": "ban"}) for _ in range(2)],
        return_exceptions=True,
    )
    assert [type(each) for each in removed] == [dict, QuestionError]


async def test_overrides_outlive_the_process(operator: Operator, start_site: StartSite) -> None:
    """With counters in memory the named file brings overrides over a restart."""
    await operator.types("ban", "edge", "user=bob")
    again = await start_site(operator.admin.asking.settings, STEERED_RULES)
    async with again.overrides.followed():
        assert (await again.asking.ask("user=bob")).code is Code.OVER_LIMIT


async def test_a_grant_of_a_long_window_can_be_read_again(
    operator: Operator, start_site: StartSite, tmp_path: Path
) -> None:
    """It ends with its window, which may be longer than any other override may hold."""
    rules = "{domain: edge, descriptors: [{key: user, rate_limit: {requests_per_unit: 0, "
    rules += "unit: year, unit_multiplier: 285, algorithm: sliding_window}}]}"
    settings = operator.admin.asking.settings
    operator.admin = await start_site(settings, rules)
    made = (await operator.json_of("grant", "edge", "user=bob", "--hits", "3"))["override"]
    file = tmp_path / "saved.jsonl"
    file.write_text((await operator.types("overrides", "export")).out)
    result = await operator.types("overrides", "import", str(file))
    assert result.out == "1 override: 1 there already\n"

    again = await start_site(settings, rules)
    async with again.overrides.followed():
        assert [each.id for each in again.overrides.in_force()] == [made["id"]]


async def test_metrics_tell_of_overrides(operator: Operator) -> None:
    """Metrics say how many are in force, by kind."""
    await operator.types("ban", "edge", "user=bob")
    await operator.types("limit", "edge", "user=*", "--requests", "5")

    assert operator.admin.asking.stats.overrides == {"ban": 1, "limit": 1}


async def test_what_an_override_may_have_meant(operator: Operator, start_site: StartSite) -> None:
    """One that takes nobody names a domain like its own, or the order of keys that has a limit."""
    result = await operator.types("ban", "egde", "user=bob")
    assert "it holds until it is removed" in result.err
    assert "there is no domain 'egde', only edge; did you mean 'edge'?" in result.err

    rules = """
domain: edge
descriptors:
  - key: tenant
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
"""
    site = await start_site(Settings(), rules)
    about = {"domain": "edge", "descriptor": [["user", "b"], ["tenant", "a"]], "kind": "ban"}
    answer = await site.ask("/overrides", about)
    assert "did you mean tenant=a,user=b?" in answer.text
