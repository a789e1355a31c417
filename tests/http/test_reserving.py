"""Reservations over HTTP, asked of a whole service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_openapi import of, valid
from tests.http_client import HTTPAnswer, http
from tests.servers.service import ServiceProcess

RULES = """
domain: llm
reservations: true
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000}}]
"""
ALICE = {"domain": "llm", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    directory = tmp_path_factory.mktemp("reserving")
    (directory / "rules.yaml").write_text(RULES)
    service = ServiceProcess(Path(directory), "--rules", str(directory / "rules.yaml"))
    service.start()
    yield service
    service.kill()


def ask(service: ServiceProcess, path: str, **fields: object) -> HTTPAnswer:
    return http(f"http://127.0.0.1:{service.http_port}{path}", {**ALICE, **fields})


def test_reserve_and_settle(service: ServiceProcess) -> None:
    """200 with an id, 429 without room; a settle says whether anything was held."""
    held = ask(service, "/json/reserve", amount=800, ttl="60s")
    denied = ask(service, "/json/reserve", amount=201)
    too_large = ask(service, "/json/reserve", amount=1_001)
    reservation_id = json.loads(held.text)["reservationId"]
    settled = [
        ask(service, "/json/settle", reservationId=reservation_id, actualAmount=650)
        for _ in range(2)
    ]

    for answer, name in (
        (held, "Reserve"),
        (denied, "Reserve"),
        (too_large, "Reserve"),
        (settled[0], "Commit"),
    ):
        valid(of(f"{name}Response"), json.loads(answer.text))
    valid(of("ReserveRequest"), {**ALICE, "amount": 800, "ttl": "60s"})
    valid(of("CommitRequest"), {**ALICE, "reservationId": "5e1f", "actualAmount": 650})
    assert (held.status, json.loads(held.text)["code"]) == (200, "OK")
    assert (denied.status, json.loads(denied.text)) == (429, {"code": "OVER_LIMIT"})
    assert too_large.status == 429
    assert json.loads(too_large.text) == {"code": "OVER_LIMIT", "tooLarge": True}
    assert [each.status for each in settled] == [200, 200]
    assert [json.loads(each.text)["reservationReleased"] for each in settled] == [True, False]
    assert json.loads(service.decide("llm", 350, user="alice").text)["overallCode"] == "OK"
    assert service.decide("llm", user="alice").status == 429


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/json/reserve", {"amount": -1}, "the body is no ReserveRequest in JSON: "),
        ("/json/reserve", {"amount": 1, "ttl": "0s"}, "ttl is none: leave it out"),
        ("/json/settle", {"actual": 1}, "the body is no CommitRequest in JSON: "),
        ("/json/settle", {"reservationId": "x" * 20_000}, "the body is too large"),
    ],
)
def test_what_cannot_be_read_is_refused(
    service: ServiceProcess, path: str, fields: dict[str, object], message: str
) -> None:
    """400 says what is wrong."""
    answer = ask(service, path, **fields)

    assert answer.status == 400
    assert answer.text.startswith(message)
