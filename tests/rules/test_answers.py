"""What `answer` in rule files may say."""

from __future__ import annotations

import pytest

from ratelimit_service.model import AnswerStyle, Body, HeaderSet
from ratelimit_service.rules.schema import parse

RULE = "rate_limit: {unit: minute, requests_per_unit: 2}"


def problems(answer: str) -> list[str]:
    text = f"domain: edge\ndescriptors:\n- key: a\n  {RULE}\n  answer: {answer}\n"
    return [problem.message for problem in parse("api.yaml", text.encode()).problems]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            "{headers: itf}",
            "headers 'itf' is unknown: did you mean 'ietf'? "
            "Allowed are none, reference, x-ratelimit, ietf",
        ),
        (
            "{template: '{limits}'}",
            "template: '{limits}' means nothing: in braces are allowed limit, unit, "
            "window_seconds, retry_after, name, description, link; did you mean 'limit'?; "
            "write {{ and }} for braces themselves",
        ),
        (
            "{template: '{limit.__class__}'}",
            "template: '{limit.__class__}' means nothing: in braces are allowed limit, unit, "
            "window_seconds, retry_after, name, description, link; "
            "write {{ and }} for braces themselves",
        ),
        (
            "{template: '{limit'}",
            "template has a brace that is not closed: write {{ and }} for braces themselves",
        ),
        (
            "{template: a, body: text}",
            "template and body exclude each other: leave one out",
        ),
        (
            "{template: a, content_type: html}",
            "content_type must be one as text/html or application/json; charset=utf-8",
        ),
        (
            "{content_type: text/html}",
            "content_type is of a template: body says by itself what it is",
        ),
        (
            "{link: example.com}",
            "link must be an address that begins with https:// or http://, without spaces",
        ),
        (
            f"{{description: {'x' * 4097}}}",
            "description has 4097 characters: 4096 are allowed",
        ),
        (
            "ietf",
            "this must be a mapping of headers, body, template, content_type, description, link, "
            "reset, limit_header, remaining_header, reset_header",
        ),
        ("{reset: iso}", "reset 'iso' is unknown: allowed are seconds, unix"),
        (
            "{reset_header: 'X Reset'}",
            "reset_header must be the name of a header, as X-RateLimit-Reset",
        ),
    ],
)
def test_problems(answer: str, message: str) -> None:
    """Each mistake is named, with what is allowed."""
    assert problems(answer) == [message]


def test_file_and_rule() -> None:
    """A rule says over its file; who says a template does not take over the file's body."""
    text = f"""\
domain: edge
answer: {{headers: ietf, body: problem, link: "https://example.com"}}
descriptors:
- {{key: a, {RULE}}}
- {{key: b, {RULE}, answer: {{template: no}}}}
"""
    nodes = parse("api.yaml", text.encode()).nodes

    assert [node.rule.answer for node in nodes if node.rule] == [
        AnswerStyle(HeaderSet.IETF, Body.PROBLEM, link="https://example.com"),
        AnswerStyle(HeaderSet.IETF, template="no", link="https://example.com"),
    ]
