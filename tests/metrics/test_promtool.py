"""Envoy Gateway's dashboard and queries, run by Prometheus' own tool on a page of ours."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import yaml

from ratelimit_service.metrics import EXPORTERS, Page, Sources
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Rule, Snapshot
from ratelimit_service.settings import Settings
from tests.conftest import need

PROMTOOL = str(Path(__file__).parents[2] / ".tools" / "promtool")

DOMAIN = "default/eg/http"
ROUTE = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example"
MATCH = "rule-0-match-0"
RULES = f"""
domain: {DOMAIN}
descriptors:
  - key: {ROUTE}
    value: {ROUTE}
    descriptors:
      - {{key: {MATCH}, value: {MATCH}, rate_limit: {{unit: hour, requests_per_unit: 3}}}}
      - key: masked_remote_address
        value: 0.0.0.0/0
        rate_limit: {{unit: hour, requests_per_unit: 3}}
"""

PLACE = f'domain="{DOMAIN}", key1="{ROUTE}_{ROUTE}", key2="{MATCH}_{MATCH}"'
NAME = "ratelimit_service_rate_limit_"
EXPRESSIONS = {
    # The five numbers of the dashboard.
    f"{NAME}total_hits{{{PLACE}}}": 9,
    f"{NAME}near_limit{{{PLACE}}}": 1,
    f"{NAME}over_limit{{{PLACE}}}": 4,
    f"{NAME}within_limit{{{PLACE}}}": 5,
    f"{NAME}shadow_mode{{{PLACE}}}": 2,
    # What its end-to-end tests ask for.
    f'{NAME}over_limit{{key2="masked_remote_address_0_0_0_0/0"}}': 7,
    f'{NAME}total_hits{{key2="{MATCH}_{MATCH}"}}': 9,
    # Alerts that others write.
    f'sum({NAME}over_limit{{domain="{DOMAIN}"}})': 11,
    f"sum by (key1) ({NAME}total_hits)": 16,
    'sum(ratelimit_service_total_requests{grpc_method="ShouldRateLimit"})': 20,
    "histogram_quantile(1, sum by (le) (ratelimit_service_response_time_seconds_bucket))": 0.0005,
    'ratelimit_service_should_rate_limit_error{err_type="redis_error"}': 2,
    "ratelimit_service_config_load_success": 3,
    # Of the process, which the dashboard has beside them.
    "count(process_resident_memory_bytes > 0)": 1,
    "count(process_virtual_memory_bytes > 0)": 1,
}
"""Each gives one number."""


def counted() -> Sources:
    domain = Domain(DOMAIN, Level.of(parse("f", RULES.encode()).nodes))
    stats = Stats()
    for rule, numbers in zip(domain.rules, ((9, 4, 1, 5, 2), (7, 7, 0, 0, 0)), strict=True):
        assert isinstance(rule, Rule)
        tally = rule.tallies.of("")
        tally.hits, tally.over, tally.near, tally.within, tally.shadow = numbers
    stats.decisions["ok"] = 20
    stats.store_errors["timeout"] = 2
    stats.rule_loads["success"] = 3
    stats.latency.add(300, 20)
    snapshot = Snapshot(1, {DOMAIN: domain})
    return Sources(stats, Health(), lambda: snapshot)


async def page() -> str:
    settings = Settings(rules="", reference_metrics="127.0.0.1:0")
    pages = [each for exporter in EXPORTERS for each in exporter(settings)]
    (shown,) = [each for each in pages if isinstance(each, Page)]
    parts = shown.render(await counted().read())
    return b"".join([part async for part in parts]).decode()


async def test_dashboards_read_ours(tmp_path: Path) -> None:
    """Each expression of Envoy Gateway's dashboard and tests finds its number on a page of ours.

    The dashboard's one number that a Go program alone has is left out.
    """
    need(PROMTOOL, "Debian's package prometheus has it")
    assert shutil.which(PROMTOOL)
    lines = [line.rpartition(" ") for line in (await page()).splitlines() if line[0] != "#"]
    series = [{"series": name, "values": number} for name, _, number in lines]
    tests = [
        # Summed up, so that the labels of a result need not be written down.
        {
            "expr": f"sum({expr})",
            "eval_time": "0m",
            "exp_samples": [{"labels": "{}", "value": value}],
        }
        for expr, value in EXPRESSIONS.items()
    ]
    unit = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    file = tmp_path / "expressions.yaml"
    file.write_text(yaml.safe_dump({"tests": [unit]}, allow_unicode=True))

    done = await asyncio.to_thread(
        subprocess.run,
        [PROMTOOL, "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
