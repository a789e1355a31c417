"""The recipes of docs/how-to: what their commands are said to do, the rules do."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ratelimit_client import DeniedError, SyncLimiter
from ratelimit_service.cli.results import FORMATS
from ratelimit_service.cli.words import parse_descriptor
from ratelimit_service.rule_lab.simulation.cases import read_cases
from ratelimit_service.rule_lab.simulation.rule_test_run import RuleTestRun
from tests.deploy.test_monitoring import promtool
from tests.policies.shipped import POLICIES, TOP
from tests.ratelimit_client.live import Live
from tests.servers.service import ServiceProcess

HOW_TO = TOP / "docs" / "how-to"
PASSES, DENIED = "OK", "OVER_LIMIT"

EXPECTED = {
    "addresses": [PASSES, DENIED],
    "api-key": [DENIED, DENIED],
    "elastic": [PASSES, PASSES, DENIED, PASSES],
    "concurrency": [DENIED, PASSES, PASSES],
    "credits": [PASSES, PASSES, PASSES],
    "llm-budget": [PASSES, DENIED, DENIED],
    "login": [DENIED, PASSES],
    "mcp": [PASSES, DENIED, PASSES],
    "money": [PASSES, DENIED, PASSES, PASSES],
    "tiers": [PASSES, DENIED, PASSES],
    "two-limits": [DENIED],
}
"""What the last request of each command comes to; all before it pass."""


class Command(NamedTuple):
    """A `ratelimit hit` of a page."""

    domain: str
    descriptors: list[str]
    options: dict[str, str]


def commands(page: str) -> Iterator[Command]:
    for line in re.findall(r"^    \$ ratelimit hit (.*)$", page, re.MULTILINE):
        domain, *words = shlex.split(line)
        flags = [index for index, word in enumerate(words) if word.startswith("--")]
        first = flags[0] if flags else len(words)
        options = {words[index]: (words[index + 1 :] or [""])[0] for index in flags}
        yield Command(domain, words[:first], options)


def steps(command: Command, expected: str) -> Iterator[dict[str, object]]:
    hits = int(command.options.get("--hits", 1))
    step = {
        "domain": command.domain,
        "descriptors": [
            [{entry.key: entry.value} for entry in parse_descriptor(each).entries]
            for each in command.descriptors
        ],
        "hits": -hits if "--refund" in command.options else hits,
    }
    before = int(command.options.get("--repeat", 1)) - 1
    if before:
        yield {**step, "times": before, "expect": PASSES}
    yield {**step, "expect": expected}


@pytest.mark.parametrize("recipe", EXPECTED)
def test_commands_do_what_is_said(recipe: str, tmp_path: Path) -> None:
    """The commands of a recipe, one after the other, come to what the page says of them."""
    page = (HOW_TO / f"{recipe}.md").read_text()
    shown = list(commands(page))
    (rules,) = re.findall(r"ratelimit serve --rules (\S+)", page)
    made = tmp_path / "recipe.test.yaml"
    case = {
        "name": recipe,
        "steps": [
            step
            for command, expected in zip(shown, EXPECTED[recipe], strict=True)
            for step in steps(command, expected)
        ],
    }
    made.write_text(yaml.safe_dump({"rules": str(TOP / rules), "cases": [case]}))

    results = list(RuleTestRun().run(read_cases(made)))

    assert [line for line in FORMATS["text"](results) if not line.endswith("passed")] == []


@pytest.mark.parametrize("recipe", EXPECTED)
def test_request_is_one_that_the_route_asks_about(recipe: str) -> None:
    """The request to Envoy takes the route, and has all headers of a descriptor."""
    page = (HOW_TO / f"{recipe}.md").read_text()
    (policy,) = set(re.findall(r"<!-- examples/policies/([\w-]+)/", page))
    routes = yaml.safe_load((TOP / "examples/policies" / policy / "envoy.yaml").read_text())
    (words,) = (
        shlex.split(line) for line in re.findall(r"^    \$ curl -i (.*)$", page, re.MULTILINE)
    )
    named = {word.partition(":")[0] for word in words if word.startswith("x-")}
    path = words[-1].removeprefix("localhost:10000")

    route = next(each for each in routes if path.startswith(taken(each["match"])))

    limits = route["typed_per_filter_config"]["envoy.filters.http.ratelimit"]["rate_limits"]
    assert {"name": ":method", "string_match": {"exact": "POST"}} not in route["match"].get(
        "headers", []
    ) or words[:2] == ["-X", "POST"]
    assert any(headers_of(limit) == named for limit in limits)


def taken(match: dict[str, Any]) -> str:
    """The path, or its beginning, that a route takes; none if it takes only some callers."""
    if any(header["name"].startswith("x-") for header in match.get("headers", ())):
        return "no path"
    return str(match.get("path") or match["prefix"])


def headers_of(limit: dict[str, Any]) -> set[str]:
    """The headers without which a descriptor is left out, or says no number of hits."""
    actions = [each for each in limit["actions"] if "request_headers" in each]
    hits = re.findall(r"%REQ\(([\w-]+)\)%", str(limit.get("hits_addend", "")))
    return {each["request_headers"]["header_name"] for each in actions} | set(hits)


def test_recipes_show_what_ships() -> None:
    """Recipes with commands show policies that ship, which another test lets Envoy enforce."""
    shown = {
        path.stem: set(re.findall(r"<!-- examples/policies/([\w-]+)/", path.read_text()))
        for path in HOW_TO.glob("*.md")
    }

    assert {name for name, policies in shown.items() if policies} == EXPECTED.keys()
    assert set().union(*shown.values()) <= {policy.name for policy in POLICIES}


def test_the_list_has_every_recipe() -> None:
    """The first page of the recipes leads to each of them."""
    listed = re.findall(r"\]\(([\w-]+)\.md\)", (HOW_TO / "index.md").read_text())

    assert sorted([*listed, "index"]) == sorted(path.stem for path in HOW_TO.glob("*.md"))


def test_program_of_the_llm_budget(tmp_path: Path) -> None:
    """The program of the page holds its estimate during an answer, then counts what it took."""
    page = (HOW_TO / "llm-budget.md").read_text()
    program, streaming = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    example = (TOP / "examples" / "middleware" / "llm_gateway.py").read_text()
    assert textwrap.indent(streaming, 8 * " ") in example
    names: dict[str, object] = {}
    exec(program, names)
    answer = names["answer"]
    assert callable(answer)
    live = Live(tmp_path, (TOP / "examples/policies/llm/llm.yaml").read_text())
    left = []
    with SyncLimiter(live.addresses["grpc"], domain="llm", deadline=30) as limiter:

        def look() -> None:
            asked = {"tokens": "1", "organization": "acme", "model": "large"}
            left.append(limiter.check(asked, cost=0).remaining)

        def model(prompt: str, max_tokens: int) -> tuple[str, int]:
            look()
            return f"{prompt} {max_tokens}", 120

        assert answer(limiter, "acme", "tell", model) == "tell 500"
        look()
    live.close()

    assert left == [30_000 - 501, 30_000 - 120]


def test_program_and_alarms_of_money(tmp_path: Path) -> None:
    """The program holds a price and counts what was due; alarms read what moves in its turn."""
    page = (HOW_TO / "money.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (alarms,) = re.findall(r"```yaml\n(groups:.*?)```", page, re.DOTALL)
    made = tmp_path / "alarms.yaml"
    made.write_text(alarms)
    promtool("check", "rules", str(made))
    read = re.findall(r"\((ratelimit_\w+)\{(.*?)\}", alarms)
    names: dict[str, object] = {}
    exec(program, names)
    answer = names["answer"]
    assert callable(answer)
    service = ServiceProcess(
        tmp_path, "--rules", str(TOP / "examples" / "policies" / "money" / "money.yaml")
    )
    service.start()

    def moved() -> list[bool]:
        """Whether what an alarm reads of the team is above 0."""
        found = []
        for name, labels in read:
            series = f'{re.escape(name)}{{{labels.replace(", ", ",")},value="\\w+=web"}} (\\S+)'
            values = re.findall(series, service.get("/metrics").text)
            found.append(any(float(value) for value in values))
        return found

    with SyncLimiter(service.address, domain="money", deadline=30, on_failure="raise") as limiter:

        def left() -> int | None:
            return limiter.check(team="web", cost=0).remaining

        def model(prompt: str, max_tokens: int) -> tuple[str, int, int]:
            assert left() == 5_000_000 - 1_050  # 40,000 and 500 tokens at most
            return f"{prompt[:4]} {max_tokens}", 100, 200

        said = [moved()]
        assert answer(limiter, "web", "coder", "tell" * 10_000, model) == "tell 500"
        assert left() == 5_000_000 - 23  # 22.5 of them, rounded up
        for spent in (2_400_000, 200_000, 1_500_000, 899_977):
            limiter.reserve(team="web", cost=spent).settle(spent)
            limiter.charge({"half": "web"}, {"most": "web"}, cost=spent)
            said.append(moved())
        with pytest.raises(DeniedError):
            limiter.reserve(team="web", cost=1)
        said.append(moved())
    service.kill()

    none, half, most, spent_all = (
        [place < number for place in range(len(read))] for number in range(4)
    )
    assert said == [none, none, half, most, most, spent_all]


def test_program_of_the_microservice(tmp_path: Path) -> None:
    """The program of the page lets five requests of a user pass, by the rules that ship."""
    page = (HOW_TO / "microservice.md").read_text()
    (rules,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert yaml.safe_load(rules) == yaml.safe_load((TOP / "rules" / "demo.yaml").read_text())
    service = ServiceProcess(tmp_path, "--rules", str(TOP / "rules"))
    service.start()
    names: dict[str, object] = {}
    assert "timeout=0.1" in program
    exec(program.replace("timeout=0.1", "timeout=30"), names)
    allowed = names["allowed"]
    assert callable(allowed)
    address = f"127.0.0.1:{service.http_port}"

    assert allowed(address, "alice", 5)
    assert not allowed(address, "alice", 6)
    service.kill()
    assert allowed(address, "alice", 6), "nobody answers, so it passes"
