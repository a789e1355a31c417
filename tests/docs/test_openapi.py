"""docs/openapi.yaml: what /json takes and answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings

from ratelimit_client.json_form import to_json
from ratelimit_client.model import Request
from ratelimit_service import model, wire
from ratelimit_service.model import FailurePolicy
from ratelimit_service.observability.health import Phase
from ratelimit_service.settings import Settings
from ratelimit_service.wire.json import MAX_BATCH, decision_to_json
from ratelimit_service.wire.request import MAX_DESCRIPTORS, MAX_ENTRIES
from tests.examples import up_to
from tests.http.test_http import REQUEST, Site
from tests.http_client import HTTPAnswer
from tests.ratelimit_client.test_wire import DECISIONS, REQUESTS, finished
from tests.service.asking import Away

PAGE = yaml.safe_load((Path(__file__).parents[2] / "docs" / "openapi.yaml").read_text())
ASKED = PAGE["paths"]["/json"]["post"]
EXAMPLES = ASKED["requestBody"]["content"]["application/json"]["examples"]


def valid(schema: dict[str, Any], found: object) -> None:
    """Fails if something is not as a schema of the page says, or not mentioned by it."""
    _validator(json.dumps(schema)).validate(found)


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**json.loads(schema), "components": PAGE["components"]})


def of(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def documented(answer: HTTPAnswer) -> None:
    """An answer is of a status, a content type, headers and a form that the page has."""
    told = ASKED["responses"][str(answer.status)]
    if "$ref" in told:
        told = PAGE["components"]["responses"][told["$ref"].rpartition("/")[2]]
    content_type = answer.headers["content-type"].partition(";")[0]
    form = told["content"][content_type]["schema"]
    valid(form, json.loads(answer.text) if content_type == "application/json" else answer.text)
    named = {name.lower(): head for name, head in told.get("headers", {}).items()}
    limits = {
        name
        for name in answer.headers
        if name == "retry-after" or name.startswith(("x-ratelimit", "ratelimit"))
    }
    assert limits <= named.keys()
    for name in limits:
        head = named[name]
        if "$ref" in head:
            head = PAGE["components"]["headers"][head["$ref"].rpartition("/")[2]]
        valid(head["schema"], int(answer.headers[name]))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    settings = Settings(headers="x-ratelimit", denial_body="json", denial_quota=True)
    site = Site(tmp_path, settings, None)
    await site.start()
    site.asking.health.enter(Phase.SERVING)
    yield site
    await site.admin.close()


async def test_answers(site: Site) -> None:
    """Every answer of /json, allowed, denied or refused, is as the page says."""
    asked: list[tuple[object, dict[str, str], int]] = [
        (REQUEST, {}, 200),
        (REQUEST, {}, 429),
        ({"domain": "edge"}, {}, 400),
        ([], {}, 400),
        (REQUEST, {"Origin": "https://example.com"}, 403),
        ("a" * 140_000, {}, 413),
        (REQUEST, {"Content-Type": "text/plain"}, 415),
        (REQUEST, {"Host": "example.com"}, 421),
        ([REQUEST, {"domain": "edge"}], {}, 200),
    ]
    for body, headers, status in asked:
        answer = await site.ask("/json", body, **headers)
        assert answer.status == status
        documented(answer)


@pytest.mark.parametrize(
    ("policy", "status"),
    [(FailurePolicy.OPEN, 200), (FailurePolicy.CLOSED, 429), (FailurePolicy.ERROR, 503)],
)
async def test_answers_without_a_store(tmp_path: Path, policy: FailurePolicy, status: int) -> None:
    """What the failure policies answer is as the page says, too, also in a list."""
    site = Site(tmp_path, Settings(failure_policy=policy), Away())
    await site.start()
    answers = [await site.ask("/json", body) for body in (REQUEST, [REQUEST])]
    await site.admin.close()

    assert [each.status for each in answers] == [status, 200]
    for each in answers:
        documented(each)


@pytest.mark.parametrize("name", EXAMPLES)
async def test_examples(site: Site, name: str) -> None:
    """Each example is a request by the page's own schema, and one that the service takes."""
    example = EXAMPLES[name]["value"]

    valid(ASKED["requestBody"]["content"]["application/json"]["schema"], example)
    answer = await site.ask("/json", example)

    assert answer.status == 200
    assert "error" not in answer.text
    documented(answer)


@settings(max_examples=up_to(20))
@given(DECISIONS)
def test_any_decision(decision: model.Decision) -> None:
    """Any decision has the form that the page gives."""
    valid(
        of("RateLimitResponse"),
        json.loads(finished(decision_to_json(wire.encode_decision(decision)))),
    )


@settings(max_examples=up_to(20))
@given(REQUESTS)
def test_any_request(request: Request) -> None:
    """Any request of the client has the form that the page gives."""
    valid(of("RateLimitRequest"), json.loads(to_json(request)))


def test_bounds() -> None:
    """The page has the bounds that requests and lists are held to."""
    schemas = PAGE["components"]["schemas"]
    several = schemas["RateLimitRequests"]

    assert several["maxItems"] == MAX_BATCH
    assert schemas["RateLimitRequest"]["properties"]["descriptors"]["maxItems"] == MAX_DESCRIPTORS
    assert f"{MAX_DESCRIPTORS} descriptors and {MAX_ENTRIES:,} entries" in several["description"]
