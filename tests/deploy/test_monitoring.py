"""deploy/monitoring and docs/runbook.md: tested by promtool, and held to the catalogue."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratelimit_service.cli.service_client import Client
from ratelimit_service.metrics import CATALOGUE, MetricKind, Metrics, Sources
from ratelimit_service.model import Code, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.settings import settings
from tests.cli.inside import Inside
from tests.conftest import need
from tests.http_client import http
from tests.runtime.callers import ask
from tests.servers.process import wait_until
from tests.servers.service import ServiceProcess
from tests.service.asking import descriptor

TOP = Path(__file__).parents[2]
MONITORING = TOP / "deploy" / "monitoring"
RUNBOOK = (TOP / "docs" / "runbook.md").read_text()
PROMTOOL = str(TOP / ".tools" / "promtool")
GROUPS = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())

_OF_PROMETHEUS = {"job", "instance", "le"}
_SUFFIXES = {
    MetricKind.COUNTER: ("_total",),
    MetricKind.GAUGE: ("",),
    MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"),
}
LABELS = {
    metric.name + suffix: {*metric.labels, *_OF_PROMETHEUS}
    for metric in CATALOGUE
    for suffix in _SUFFIXES[metric.kind]
}
"""Every series of a scrape, with the labels that it can have."""


def promtool(*words: str) -> str:
    need(PROMTOOL, "Debian's package prometheus has it")
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def of_dashboard() -> Iterator[tuple[str, str]]:
    """Each panel's title with an expression of it."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for each in DASHBOARD["annotations"]["list"]:
        yield each["name"], each["expr"]


def plain(expression: str) -> str:
    """An expression as Prometheus reads it, once Grafana has put its variables in."""
    return expression.replace("$__rate_interval", "5m")


def names(expression: str) -> set[str]:
    """The metrics and recorded series that an expression reads."""
    return set(re.findall(r"\bratelimit[_:][a-z0-9_:]+", re.sub(r'"[^"]*"', '""', expression)))


def labels(expression: str) -> set[str]:
    """The labels that an expression selects by, or groups by."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", bare)
    grouped = [name for text in re.findall(r"\bby \(([^)]*)\)", bare) for name in text.split(", ")]
    return {*selected, *grouped} - {""}


def test_rules_do_what_they_say() -> None:
    """Every alert fires in its case, says what it should, and is silent a moment before."""
    promtool("check", "rules", str(MONITORING / "rules.yaml"))
    promtool("test", "rules", *map(str, MONITORING.glob("rules.*test.yaml")))

    cases = yaml.safe_load((MONITORING / "rules.test.yaml").read_text())["tests"]
    assert {case["name"] for case in cases} == ALERTS.keys()
    for case in cases:
        fires, silent = case["alert_rule_test"]
        assert fires["alertname"] == silent["alertname"] == case["name"]
        assert fires["exp_alerts"]
        assert not silent["exp_alerts"]
        for series in case["input_series"]:
            assert series["values"].startswith("_x"), f"{case['name']}: absent before the start"


SELECTED = re.compile(r"(ratelimit_\w+_total)(?:\{([^}]*)\})?")
MATCHED = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')


def matches(of_series: Mapping[str, str], label: str, operator: str, value: str) -> bool:
    """Whether a series has what a selector asks for."""
    found = of_series.get(label, "")
    if operator == "=~":
        return re.fullmatch(value, found) is not None
    return (found == value) == (operator == "=")


def test_counters_of_alerts_are_there_from_the_start() -> None:
    """Before anything has happened each counter that an alert selects has its series, at 0.

    Else the first event would make the series, and an alert on its growth would not see it.
    """
    rules = b"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]"
    domain = Domain("d", Level.of(parse("f", rules).nodes))
    snapshot = Snapshot(1, {"d": domain})
    sources = Sources(Stats(), Health(), lambda: snapshot, lambda: 0, list)
    samples = [
        sample
        for family in Metrics(sources).collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    ]
    selections = {found for rule in RULES for found in SELECTED.findall(rule["expr"])}

    assert len(selections) > 10
    for name, selector in selections:
        chosen = [
            sample
            for sample in samples
            if sample.name == name
            and all(matches(sample.labels, *asked) for asked in MATCHED.findall(selector))
        ]
        assert chosen, (name, selector)
        assert {sample.value for sample in chosen} == {0}


def test_dashboard_can_be_read(tmp_path: Path) -> None:
    """Prometheus can read every expression of the dashboard."""
    rules = [
        {"record": f"panel:{number}", "expr": plain(expression)}
        for number, (_, expression) in enumerate(of_dashboard())
    ]
    file = tmp_path / "expressions.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    promtool("check", "rules", str(file))


RECORDED = {rule["record"] for rule in RULES if "record" in rule}


@pytest.mark.parametrize(
    ("where", "expression"),
    [*of_dashboard(), *((rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES)],
)
def test_every_metric_is_ours(where: str, expression: str) -> None:
    """Dashboard and rules read only metrics of the catalogue, by labels that these have."""
    found = names(expression)
    assert found, where
    assert found <= LABELS.keys() | RECORDED
    known = set().union(*(LABELS.get(name, {"job", "domain", "rule"}) for name in found))
    assert labels(expression) <= known


def test_panels_are_laid_out() -> None:
    """Every panel has a number, a title and a place of its own, and one of the data sources."""
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert (
        len({panel["id"] for panel in panels}) == len({p["title"] for p in panels}) == len(panels)
    )
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


def test_every_alert_has_its_place_in_the_runbook() -> None:
    """The runbook says of every alert what it means, what to look at and what to do."""
    sections = dict(
        re.findall(r"^## (Ratelimit\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    )
    assert list(sections) == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        parts = re.findall(r"^\*\*(.*?)\.\*\*", sections[name], re.MULTILINE)
        assert parts == ["Meaning", "Look at", "Do"], name


def test_what_the_runbook_names_exists() -> None:
    """Metrics and settings in the runbook are there."""
    ours = re.findall(r"`(ratelimit_\w+)`", RUNBOOK)
    assert ours
    assert set(ours) <= LABELS.keys()
    flags = set(re.findall(r"`(--[\w-]+)", RUNBOOK)) - {"--latency"}
    assert flags
    assert flags <= {each.flag for each in settings()}


def test_every_command_of_the_runbook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command of the runbook works beside a service that has denied somebody."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATELIMIT_GRPC", "127.0.0.1:0")
    monkeypatch.setenv("RATELIMIT_HTTP", "127.0.0.1:0")
    shutil.copytree(TOP / "rules", "rules")
    service = ServiceProcess(tmp_path, "--rules", "rules", "--decision-log", "decisions.jsonl")
    monkeypatch.setenv("RATELIMIT_ADMIN", f"127.0.0.1:{service.admin_port}")
    service.start()
    try:
        http(f"http://127.0.0.1:{service.admin_port}/denials")  # from now on they are noted
        alice, log = Request("demo", (descriptor("user=alice"),)), Path("decisions.jsonl")
        with Client(service.address) as client:  # five a minute, and one may end meanwhile
            wait_until(lambda: ask(client, alice) is Code.OVER_LIMIT, "a denial")
        wait_until(lambda: log.exists() and "OVER_LIMIT" in log.read_text(), "it to be written")
        for command in dict.fromkeys(re.findall(r"^    \$ (.*)$", RUNBOOK, re.MULTILINE)):
            words = shlex.split(command.replace("localhost:8080", f"127.0.0.1:{service.http_port}"))
            if words[0] == "curl":
                assert http(f"http://{words[-1]}").status == 200, command
            else:
                ran = Inside(monkeypatch, capsys)(*words[1:])
                assert ran.code == 0, (command, ran)
    finally:
        service.kill()
