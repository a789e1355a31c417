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
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 1000}}
- key: layers
  charge: first
  rate_limits:
  - {name: tier, unit: year, requests_per_unit: 10}
  - {name: credits, unit: month, requests_per_unit: 1000}
"""
ALICE = {"domain": "llm", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}
NO_RESERVE = "the body is no ReserveRequest in JSON:"
NO_COMMIT = "the body is no CommitRequest in JSON:"
LAYERS = [{"entries": [{"key": "layers", "value": "alice"}]}]


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


def test_the_limit_that_held_is_settled(service: ServiceProcess) -> None:
    """Of limits that pay in turn; an overrun stays there."""
    held = ask(service, "/json/reserve", descriptors=LAYERS, amount=800)
    reservation_id = json.loads(held.text)["reservationId"]
    settled = ask(
        service,
        "/json/settle",
        descriptors=LAYERS,
        reservationId=reservation_id,
        actualAmount=1_001,
    )

    assert json.loads(settled.text) == {"reservationReleased": True}
    assert service.decide("llm", 11, layers="alice").status == 429
    assert json.loads(service.decide("llm", 10, layers="alice").text)["overallCode"] == "OK"


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/json/reserve", {"amount": -1}, f"{NO_RESERVE} amount must be a whole number from 0"),
        ("/json/reserve", {"amount": "x"}, f"{NO_RESERVE} amount must be a whole number from 0"),
        ("/json/reserve", {"ttl": "5"}, f"{NO_RESERVE} ttl must be a number of seconds with an s"),
        ("/json/reserve", {"ttl": 60}, f"{NO_RESERVE} ttl must be a number of seconds with an s"),
        ("/json/reserve", {"amount": 1, "ttl": "0s"}, "ttl is none: leave it out"),
        ("/json/reserve", {"reservationId": 7}, f"{NO_RESERVE} reservationId must be the text"),
        (
            "/json/reserve",
            {"descriptors": [{"entries": [{"key": "user", "valu": "alice"}]}]},
            f"{NO_RESERVE} an entry has key and value, and no 'valu'",
        ),
        (
            "/json/settle",
            {"actual": 1},
            f"{NO_COMMIT} CommitRequest has no field 'actual': allowed are domain, descriptors, "
            "reservationId, actualAmount",
        ),
        ("/json/settle", {"actualAmount": 1.5}, f"{NO_COMMIT} actualAmount must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused(
    service: ServiceProcess, path: str, fields: dict[str, object], message: str
) -> None:
    """400 says on one line what is wrong."""
    answer = ask(service, path, **fields)

    assert answer.status == 400
    assert answer.text.startswith(message)
    assert answer.text.count("\n") == 1


@pytest.mark.parametrize("path", ["/json/reserve", "/json/settle"])
def test_a_list_reserves_and_settles_nothing(service: ServiceProcess, path: str) -> None:
    """Only decisions can be asked for by lists."""
    answer = http(f"http://127.0.0.1:{service.http_port}{path}", [ALICE])

    assert (answer.status, answer.text.partition(": ")[2]) == (400, "it must be an object\n")
