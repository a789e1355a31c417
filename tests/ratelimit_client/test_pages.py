"""docs/clients.md and docs/middleware.md: every example and every command does what is shown."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn

from ratelimit_client import Limiter
from tests.cli.inside import Inside
from tests.ratelimit_client.live import Live
from tests.servers.process import free_port, wait_until
from tests.waiting import PATIENCE_SECONDS

TOP = Path(__file__).parents[2]
CLIENTS = (TOP / "docs" / "clients.md").read_text()
MIDDLEWARE = (TOP / "docs" / "middleware.md").read_text()
PYTHON = re.compile(r"```python\n(.*?)```\n(?:\n((?:    [^\n]*\n)+))?", re.DOTALL)
SECONDS = re.compile(r"\b\d+ s\b|;t=\d+|retry-after: \d+|\"retry_after\": \d+")


def shown(text: str) -> str:
    """An indented block as it is printed, without the seconds that pass."""
    return same("".join(line[4:] + "\n" for line in text.splitlines()))


def same(text: str) -> str:
    return SECONDS.sub("N", text.replace("\r\n", "\n"))


def rules() -> str:
    (text,) = re.findall(r"```yaml\n(domain: api.*?)```", CLIENTS, re.DOTALL)
    return str(text)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    live = Live(tmp_path, rules())
    yield live
    live.close()


async def test_examples_of_the_client(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each example prints what stands below it, in the order of the page."""
    (tmp_path / "api.yaml").write_text(rules())
    monkeypatch.chdir(tmp_path)
    program, *examples = PYTHON.findall(CLIENTS)
    assert "asyncio.run(main())" in program[0]
    assert len(examples) == CLIENTS.count("```python") - 1

    async with Limiter(live.addresses["grpc"], domain="api", deadline=30) as limiter:
        names: dict[str, object] = {"limiter": limiter, "Limiter": Limiter}
        for text, printed in examples:
            assert printed, text
            code = compile(text, "clients.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            done = eval(code, names)
            if inspect.isawaitable(done):
                await done
            assert capsys.readouterr().out == shown(printed), text


def test_commands_of_the_client(live: Live, tmp_path: Path, ratelimit: Inside) -> None:
    """The program of the page, beside the service, prints what the page shows."""
    (tmp_path / "api.yaml").write_text(rules())
    program = PYTHON.findall(CLIENTS)[0][0].replace("localhost:8081", live.addresses["grpc"])
    program = program.replace('domain="api")', 'domain="api", deadline=30)')
    (tmp_path / "ask.py").write_text(program)
    commands = re.findall(r"^    \$ (.*)$", CLIENTS, re.MULTILINE)
    assert commands[1:] == ["ratelimit serve --rules api.yaml &", *["python ask.py"] * 2]

    assert ratelimit("serve", "--check", "--rules", tmp_path / "api.yaml").code == 0
    printed = [
        subprocess.run(
            [sys.executable, "ask.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]

    answer = re.findall(r"\$ python ask\.py\n((?:    [^$\n][^\n]*\n)+)", CLIENTS)
    assert [same(each) for each in printed] == [shown(each) for each in answer]


def test_extras() -> None:
    """The extras that the pages install are the package's."""
    project = tomllib.loads((TOP / "client" / "pyproject.toml").read_text())["project"]
    named = re.findall(r"ratelimit-client\[([\w,]+)\]", CLIENTS + MIDDLEWARE)

    assert {each for names in named for each in names.split(",")} == set(
        project["optional-dependencies"]
    )
    assert project["dependencies"] == []


def test_snippets_of_middleware(live: Live) -> None:
    """Each application of the page can be made."""
    for text, _ in PYTHON.findall(MIDDLEWARE):
        names: dict[str, object] = {"__name__": "__main__"}
        exec(compile(text, "middleware.md", "exec"), names)
        assert "app" in names or "async for text, tokens in model(prompt)" in text


def run(command: str) -> str:
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    return done.stdout


def of_one_answer(text: str) -> tuple[str, set[str], str]:
    """Status line, headers and body; servers add a date and their name."""
    head, _, body = same(text).partition("\n\n")
    line, *headers = head.splitlines()
    lengths = re.compile(r"content-length: \d+")  # as the seconds
    own = {lengths.sub("content-length", each) for each in headers}
    return line, {each for each in own if not each.startswith(("date:", "server:"))}, body.strip()


@pytest.fixture
def ratelimit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(monkeypatch, capsys)


class Uvicorn:
    """Serves an application of the examples in a thread, with its limiter asking `live`."""

    def __init__(self, name: str, live: Live) -> None:
        module = importlib.import_module(name)
        limiter = Limiter(live.addresses["grpc"], domain="shop", deadline=30)
        self.port = free_port()
        app = module.create_app(limiter)
        self._server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, "uvicorn to start")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_SECONDS)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is missing")
def test_commands_of_middleware(tmp_path: Path, ratelimit: Inside) -> None:
    """The servers of the page start, and a caller gets exactly the answers that it shows."""
    _, serve, *rest = re.findall(r"^    \$ (.*)$", MIDDLEWARE, re.MULTILINE)
    file = TOP / "examples" / "middleware" / "rules.yaml"
    assert serve == f"ratelimit serve --rules {file.relative_to(TOP)} &"
    assert ratelimit("serve", "--check", "--rules", file).code == 0
    printed = []

    with ExitStack() as running:
        live = Live(tmp_path, file.read_text())
        running.callback(live.close)
        ports = {}
        for command in rest:
            if served := re.fullmatch(r"uvicorn ([\w.]+):app --port (\d+) &", command):
                server = Uvicorn(served[1], live)
                running.callback(server.close)
                ports[served[2]] = server.port
                continue
            curl = re.sub(r"localhost:(\d+)", lambda to: f"127.0.0.1:{ports[to[1]]}", command)
            times = 6 if " -i " in curl else 1
            printed += [run(curl.replace("curl", "curl -s")) for _ in range(times)]

    blocks = re.findall(r"^    HTTP/1.1 (?:.*\n)(?:(?:    .*)?\n)+", MIDDLEWARE, re.MULTILINE)
    passed, denied = (shown(each.strip("\n")) for each in blocks)
    assert of_one_answer(printed[0]) == of_one_answer(passed)
    assert of_one_answer(printed[5]) == of_one_answer(denied)
    assert [each.splitlines()[0] for each in printed[1:5]] == ["HTTP/1.1 200 OK"] * 4
    assert f"{rest[-1]}\n    {printed[6].strip()}\n" in MIDDLEWARE
