"""Header sets and bodies of denials, as docs/rules.md describes them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from ratelimit_service.model import SECOND_US, Code, Decision, Descriptor, Entry, FailurePolicy
from ratelimit_service.settings import Settings
from tests.examples import up_to
from tests.service.asking import Asking, Away

LIMIT = "rate_limit: {unit: minute, requests_per_unit: 2}"
RULES = f"domain: edge\ndescriptors: [{{key: a, {LIMIT}}}]"
STYLED = """\
domain: edge
answer: {headers: x-ratelimit, body: json}
descriptors:
- key: a
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: b
  rate_limits:
  - {unit: minute, requests_per_unit: 2, name: burst}
  - {unit: month, requests_per_unit: 9, per: calendar}
  - {unit: minute, requests_per_unit: 5, algorithm: concurrency}
  answer: {headers: ietf, body: problem, description: Slow down., link: "https://example.com/limits"}
- key: c
  rate_limit: {window: 5m, requests_per_unit: 1}
  answer:
    headers: none
    template: "<p>{limit} in {unit}, {{again}} in {retry_after}s</p>"
    content_type: text/html
- key: d
  rate_limit: {window: 5m, requests_per_unit: 1}
  answer: {body: text, description: Please wait.}
"""


def headers(decision: Decision) -> dict[str, str]:
    by_name = dict(decision.response_headers)
    assert len(by_name) == len(decision.response_headers), "a header stands twice"
    return by_name


@pytest.mark.parametrize(
    ("name", "allowed", "denied"),
    [
        ("none", {}, {}),
        (
            "reference",
            {"RateLimit-Limit": "2", "RateLimit-Remaining": "1", "RateLimit-Reset": "60"},
            {"RateLimit-Limit": "2", "RateLimit-Remaining": "0", "RateLimit-Reset": "60"},
        ),
        (
            "x-ratelimit",
            {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "60"},
            {
                "X-RateLimit-Limit": "2",
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": "60",
                "Retry-After": "60",
            },
        ),
        (
            "ietf",
            {"RateLimit-Policy": '"per-minute";q=2;w=60', "RateLimit": '"per-minute";r=1;t=60'},
            {
                "RateLimit-Policy": '"per-minute";q=2;w=60',
                "RateLimit": '"per-minute";r=0;t=60',
                "Retry-After": "60",
            },
        ),
    ],
)
async def test_header_sets(
    tmp_path: Path, name: str, allowed: dict[str, str], denied: dict[str, str]
) -> None:
    """Each set has its headers; a denial has the same, and says when to come back."""
    asking = Asking(tmp_path, RULES, settings=Settings(headers=name))

    answers = [await asking.ask("a=x", hits=hits) for hits in (1, 1, 1)]

    assert [answer.code for answer in answers] == [Code.OK, Code.OK, Code.OVER_LIMIT]
    assert headers(answers[0]) == allowed
    assert headers(answers[2]) == denied


async def test_rule_before_file_before_setting(tmp_path: Path) -> None:
    """A rule chooses its headers and its body; else its file does, else the settings do."""
    asking = Asking(tmp_path, STYLED, settings=Settings(headers="reference", denial_body="text"))

    of_file = await asking.ask("a=x", hits=3)
    of_rule = await asking.ask("c=x", hits=2)

    assert set(headers(of_file)) == {
        *("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
        *("Retry-After", "content-type"),
    }
    assert json.loads(of_file.raw_body)["error"] == "rate_limited"
    assert headers(of_rule) == {"content-type": "text/html"}
    assert of_rule.raw_body == b"<p>1 in 5 minutes, {again} in 300s</p>"


async def test_reset_as_unix_time(tmp_path: Path) -> None:
    """A rule, its file or the settings have the reset told as Unix time, allowed or denied."""
    for name in ("file", "settings"):
        (tmp_path / name).mkdir()
    text = RULES.replace(
        "domain: edge", "domain: edge\nanswer: {headers: x-ratelimit, reset: unix}"
    )
    of_file = Asking(tmp_path / "file", text)
    of_settings = Asking(
        tmp_path / "settings", RULES, settings=Settings(headers="reference", reset_value="unix")
    )
    moment = str(of_file.now_us // SECOND_US + 60)

    answers = [await of_file.ask("a=x", hits=hits) for hits in (1, 3)]
    other = await of_settings.ask("a=x")

    assert [headers(each)["X-RateLimit-Reset"] for each in answers] == [moment, moment]
    assert headers(answers[1])["Retry-After"] == "60"
    assert headers(other)["RateLimit-Reset"] == moment


async def test_names_of_ones_own(tmp_path: Path) -> None:
    """Each header of a set of three has the rule's name, else the settings', else the set's."""
    settings = Settings(headers="reference", limit_header="Most", remaining_header="Left")
    names = "answer: {headers: x-ratelimit, remaining_header: X-Quota-Left}"
    asking = Asking(
        tmp_path,
        f"domain: edge\ndescriptors: [{{key: a, {LIMIT}, {names}}}, {{key: b, {LIMIT}}}]",
        settings=settings,
    )

    assert set(headers(await asking.ask("a=x"))) == {"Most", "X-Quota-Left", "X-RateLimit-Reset"}
    assert set(headers(await asking.ask("b=x"))) == {"Most", "Left", "RateLimit-Reset"}


async def test_every_limit_is_a_policy(tmp_path: Path) -> None:
    """The IETF's headers list all limits; what has no fixed window has none."""
    asking = Asking(tmp_path, STYLED)

    decision = await asking.ask("b=x")

    sent = headers(decision)
    assert sent["RateLimit-Policy"] == (
        '"burst";q=2;w=60, "per-month";q=9, "per-minute";q=5;qu="concurrent-requests"'
    )
    assert [item.split(";")[:2] for item in sent["RateLimit"].split(", ")] == [
        ['"burst"', "r=1"],
        ['"per-month"', "r=8"],
        ['"per-minute"', "r=4"],
    ]


async def test_policies_have_different_names(tmp_path: Path) -> None:
    """Limits of one name are told apart, also from one that is called so by its rule."""
    names = ("a", "a", "a-2")
    descriptors = [
        f"- {{key: k{index}, rate_limit: {{unit: day, requests_per_unit: 1, name: {name}}}}}"
        for index, name in enumerate(names)
    ]
    text = "\n".join(["domain: edge", "answer: {headers: ietf}", "descriptors:", *descriptors])

    decision = await Asking(tmp_path, text).ask("k0=x", "k1=x", "k2=x")

    policies = headers(decision)["RateLimit-Policy"].split(", ")
    assert [policy.split(";")[0] for policy in policies] == ['"a"', '"a-2"', '"a-2-2"']


async def test_sets_side_by_side(tmp_path: Path) -> None:
    """Descriptors with other sets bring both; when to come back is said once, for all of them."""
    asking = Asking(tmp_path, STYLED)

    decision = await asking.ask("a=x", "b=x", hits=3)

    assert headers(decision)["Retry-After"] == "60"
    assert {"RateLimit", "X-RateLimit-Limit"} <= set(headers(decision))


async def test_problem_details(tmp_path: Path) -> None:
    """A problem is one of RFC 9457, with the violated policy and what the rule says to people."""
    asking = Asking(tmp_path, STYLED)

    decision = await asking.ask("b=x", hits=3)

    assert headers(decision)["content-type"] == "application/problem+json"
    assert json.loads(decision.raw_body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "detail": "The limit is 2 in 1 minute. Try again in 60 s.",
        "violated-policies": ["burst"],
        "retry_after": 60,
        "description": "Slow down.",
        "link": "https://example.com/limits",
    }


async def test_text_keeps_the_type_of_envoy(tmp_path: Path) -> None:
    """Text has no type of its own: Envoy's is text/plain."""
    asking = Asking(tmp_path, STYLED)

    decision = await asking.ask("d=x", hits=2)

    assert "content-type" not in headers(decision)
    assert decision.raw_body == (b"Please wait. The limit is 1 in 5 minutes. Try again in 300 s.")


async def test_allowed_has_no_body(tmp_path: Path) -> None:
    """Only denials have a body."""
    asking = Asking(tmp_path, STYLED)

    decisions = [await asking.ask(f"{key}=x") for key in "abcd"]

    assert [decision.raw_body for decision in decisions] == [b""] * 4
    assert not any("content-type" in headers(decision) for decision in decisions)


async def test_denied_without_a_count(tmp_path: Path) -> None:
    """Where a failure policy denies, a body tells no limit and no wait, and no header does."""
    settings = Settings(headers="ietf", denial_body="json", failure_policy=FailurePolicy.CLOSED)
    asking = Asking(tmp_path, RULES, settings=settings, store=Away())

    decision = await asking.ask("a=x")

    assert decision.code is Code.OVER_LIMIT
    assert headers(decision) == {"content-type": "application/json"}
    assert json.loads(decision.raw_body) == {
        "error": "rate_limited",
        "message": "Requests are denied for a moment.",
    }


async def test_what_decided(tmp_path: Path) -> None:
    """Metadata name the limit that denied, else the one with the fewest hits left."""
    asking = Asking(tmp_path, STYLED, settings=Settings(decision_metadata=True))

    decisions = [await asking.ask("a=x", "b=x", hits=hits) for hits in (1, 2)]

    assert [decision.metadata and decision.metadata["decided"] for decision in decisions] == [
        {
            "rule": "a",
            "limit": "per-minute",
            "descriptor": 0.0,
            "by": "count",
            "denied": denied,
            "shadow": False,
        }
        for denied in (False, True)
    ]


async def test_what_decided_without_a_count(tmp_path: Path) -> None:
    """Without a store the failure policy decides, and a request without a limit says nothing."""
    settings = Settings(decision_metadata=True, shadow_mode=True)
    asking = Asking(tmp_path, RULES, settings=settings, store=Away())

    counted, unknown = await asking.ask("a=x"), await asking.ask("z=x")

    assert counted.metadata is not None
    assert counted.metadata["decided"] == {
        "rule": "a",
        "limit": "per-minute",
        "descriptor": 0.0,
        "by": "policy",
        "denied": False,
        "shadow": True,
    }
    assert unknown.metadata is None


@hypothesis(max_examples=up_to(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_callers_cannot_write_into_answers(tmp_path: Path, value: str) -> None:
    """Nothing of a request is in headers or bodies, so nobody can break out of them."""
    asking = Asking(tmp_path, STYLED)

    theirs, plain = (
        asyncio.run(asking.ask(*(Descriptor((Entry(key, text),)) for key in "abcd"), hits=9))
        for text in (value, "x")
    )

    assert theirs == plain
