"""From the editor to production: every command that is shown, and those of the machines."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.inside import Inside
from tests.http_client import http
from tests.servers.service import COMMAND, ServiceProcess

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs" / "shipping-rules.md").read_text()
HOOKS = TOP / ".pre-commit-hooks.yaml"
ACTION = TOP / "examples" / "ci" / "github-actions.yml"

WHO = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


@pytest.fixture
def ratelimit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be a repository, which is the working directory."""
    top = tmp_path / "repository"
    top.mkdir()
    monkeypatch.chdir(top)
    for name, value in WHO.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(COMMAND).parent}:{os.environ['PATH']}")
    return top


def shell(script: str, **environment: str) -> str:
    """What a script prints; it fails where a command does, as a step of an Action."""
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def shown() -> Iterator[tuple[str, str]]:
    """Every command of the page, with the output shown below it."""
    for found in re.finditer(r"^    \$ (.*)\n((?:(?:    (?!\$).*)?\n)*)", PAGE, re.MULTILINE):
        lines = [line.removeprefix("    ") for line in found[2].splitlines()]
        text = "\n".join(lines)
        yield found[1], text.split("\n\n" if "| |" not in text else "\n\n\n")[0].strip("\n")


def test_page(repository: Path, ratelimit: Inside, tmp_path: Path) -> None:
    """Every command of docs/shipping-rules.md does what the page shows, one after the other."""
    (cases,) = re.findall(r"```yaml\n(cases:.*?)```", PAGE, re.DOTALL)
    service = None
    for command, output in shown():
        if command.startswith("ratelimit test") and not Path("rules/api.test.yaml").exists():
            Path("rules/api.test.yaml").write_text(cases)
        if command.startswith("curl "):
            if service is None:
                service = ServiceProcess(tmp_path, "--rules", "rules/")
                service.start()
            there = command.removeprefix("curl ").replace("localhost:8080", "")
            said = http(f"http://127.0.0.1:{service.http_port}{there}").text
            assert output in said, command
            continue
        if re.match(r"ratelimit (?!serve)[^<>]*$", command):
            ran = ratelimit(*shlex.split(command)[1:])
            said = ran.out + ran.err
        else:
            said = shell(command)
        assert said.strip() == output, command
    assert service is not None
    service.kill()


def rules(text: str) -> None:
    Path("rules").mkdir(exist_ok=True)
    Path("rules/api.yaml").write_text(text)
    case = (
        "{name: one, steps: [{at: 0s, domain: api, descriptors: [{k: a}], times: 5, expect: OK}]}"
    )
    Path("rules/api.test.yaml").write_text(f"cases: [{case}]\n")


GOOD = "domain: api\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n"


@pytest.mark.parametrize("hook", yaml.safe_load(HOOKS.read_text()), ids=lambda hook: hook["id"])
def test_hooks(hook: dict[str, object], ratelimit: Inside) -> None:
    """Each hook passes rules that are right, and stops those that are not."""
    command = [*shlex.split(str(hook["entry"])), *map(str, hook["args"])]  # type: ignore[call-overload]
    assert command[0] == "ratelimit"

    rules(GOOD)
    passed = ratelimit(*command[1:])
    rules(GOOD.replace("5", "4, x: 1"))
    stopped = ratelimit(*command[1:])

    assert passed.code == 0
    assert stopped.code > 0
    assert re.match(str(hook["files"]), "rules/api.yaml")


def test_all_that_rules_may_have_is_installed() -> None:
    """Hooks and Action install what `regex` needs: rules that are right pass there, too."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    needed = project["optional-dependencies"]["regex"]
    steps = yaml.safe_load(ACTION.read_text())["jobs"]["rules"]["steps"]

    assert [hook["additional_dependencies"] for hook in yaml.safe_load(HOOKS.read_text())] == [
        needed
    ] * 2
    assert f"pip install '{project['name']}[regex]'" in [each.get("run") for each in steps]


def test_action(repository: Path) -> None:
    """The Action's own commands lint and test, and say what changes; a change is no failure."""
    steps = yaml.safe_load(ACTION.read_text())["jobs"]["rules"]["steps"]
    scripts = {each["name"]: each["run"] for each in steps if "run" in each}
    rules(GOOD)
    shell("git init --quiet --initial-branch=main")
    shell("git add . && git commit --quiet --message one")
    rules(GOOD.replace("5", "9"))
    told = str(repository / "summary")
    environment = {"BASE": "main", "GITHUB_STEP_SUMMARY": told}

    said = {name: shell(scripts[name], **environment) for name in ("lint", "test", "diff")}

    assert said["lint"].endswith("no problems found\n")
    assert said["test"] == "1 case passed\n"
    assert Path(told).read_text() == Path("changes.md").read_text()
    assert "| **loosened** | `api` | `k` | `5 per day` | `9 per day` |" in Path(told).read_text()
    rules("domain: api\nx: 1\n")
    for name in ("lint", "test", "diff"):
        with pytest.raises(AssertionError):
            shell(scripts[name], **environment)
