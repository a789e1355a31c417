"""What docs/replay.md shows is what comes out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ratelimit_service.decision_log.line import line_of, read_line
from ratelimit_service.model import Entry, Override, OverrideKind
from ratelimit_service.model.refusal import Answer
from ratelimit_service.rule_lab.replay.envoy_log import read_mapping
from ratelimit_service.rule_lab.replay.findings import NEAR
from ratelimit_service.rule_lab.replay.recorded import moment_us
from ratelimit_service.rule_lab.replay.use import SAMPLE, TOP_NAMES
from ratelimit_service.service import CallOrigin
from ratelimit_service.wire.reservations import CommitRequest, ReserveRequest, ReserveResponse
from tests.rule_lab.replay.playing import run
from tests.service.asking import Asking, Heard

DOCUMENTS = Path(__file__).parents[3] / "docs"
DOCUMENT = (DOCUMENTS / "replay.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def test_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example's log and rules print the example's report."""
    requests, report, *_ = blocks("text")
    (tmp_path / "requests.csv").write_text(requests)
    (tmp_path / "new.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)

    ran = run(capsys, "--rules", "new.yaml", "requests.csv")

    assert ran.code == 0
    assert ran.out == report


def test_bounds() -> None:
    """The document names the bounds that hold."""
    assert f"Up to {SAMPLE:,} callers" in DOCUMENT
    assert f"exact up to {TOP_NAMES:,} of them" in DOCUMENT
    assert f"above {NEAR} times the limit" in DOCUMENT


def test_mapping(tmp_path: Path) -> None:
    """The mapping for Envoy's access log is one."""
    examples = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    (text,) = [each for each in examples if "$client" in each]
    path = tmp_path / "mapping.yaml"
    path.write_text(text)

    mapped = read_mapping(path)

    assert mapped.fields == ("client", "x_plan", "path", "cost")
    assert (mapped.time, mapped.domain, mapped.flags) == ("$start_time", "edge", "$response_flags")


def answer_of(answer: Answer) -> bytes:
    assert isinstance(answer, bytes), answer
    return answer


DECISION_LOG = (DOCUMENTS / "decision-log.md").read_text()


async def test_decision_log(tmp_path: Path) -> None:
    """The document names every field that decisions have, and its example can be read."""
    rules = """domain: edge
descriptors:
- {key: user, rate_limit: {unit: minute, unit_multiplier: 2, requests_per_unit: 1, name: a}}
- {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- key: paying
  charge: first
  rate_limits:
  - {name: tier, unit: day, requests_per_unit: 1}
  - {name: credits, unit: week, requests_per_unit: 1}
- {key: tokens, rate_limit: {unit: day, requests_per_unit: 1000, reservations: true}}
"""
    asking = Asking(tmp_path, rules)
    events = Heard(asking.service)
    for _ in range(2):
        await asking.ask("user=bob")
        await asking.ask("seen=bob")
    await asking.ask("paying=bob")
    await asking.service.decide([b"\xff"])
    asked = ReserveRequest(
        domain="edge", descriptors=[{"entries": [{"key": "tokens", "value": "bob"}]}], amount=800
    )
    reserve = asking.service.reservations.call("Reserve", asked.SerializeToString())
    held = ReserveResponse.FromString(answer_of(await reserve)).reservation_id
    await asking.service.reservations.call("Reserve", asked.SerializeToString())
    used = CommitRequest(
        domain="edge", descriptors=asked.descriptors, reservation_id=held, actual_amount=900
    )
    await asking.service.reservations.call("Commit", used.SerializeToString())
    ban = Override("b1", OverrideKind.BAN, "edge", (Entry("user", "bob"),), 0, reason="abuse")
    events[0] = events[0]._replace(overrides=(ban,))
    headers = [(b"x-request-id", b"an-id"), (b"b3", b"0af7651916cd43dd-b7ad6b7169203331")]
    events[:] = [each._replace(caller=CallOrigin("10.0.0.7", headers)) for each in events]
    lines = [json.loads(line_of(each, 0, 0.5, str.upper, "redis", "there:6379")) for each in events]

    documented = set(re.findall(r"^\| `(\w+)` \|", DECISION_LOG, re.MULTILINE))
    assert {field for line in lines for field in line} == documented
    codes = ["OK", "OK", "OVER_LIMIT", "OK", "OK", "INVALID_ARGUMENT", "OK", "OVER_LIMIT", "OK"]
    assert [line["code"] for line in lines] == codes
    assert [line.get("used") for line in lines] == [1, 1, 1, 1, 1, None, 800, 800, None]
    assert [line.get("shadowed") for line in lines] == [None, None, None, True, *[None] * 5]
    told = {"hits": 800, "ttl_seconds": 600}
    assert [line.get("reserve") for line in lines[6:]] == [{"id": held[:8], **told}, told, None]
    assert lines[8]["settle"] == {"id": held[:8], "hits": 900, "held": 800, "overrun": 100}
    assert held not in str(lines)
    assert str(lines[2]["source"]).endswith(".yaml:3:15")

    shown = re.search(r"```json\n(.*?)```", DECISION_LOG, re.DOTALL)
    assert shown
    example = read_line(shown[1], moment_us)
    assert example.request.descriptors[0].entries == (("user", "alice"),)
    assert set(example.fields) <= documented
